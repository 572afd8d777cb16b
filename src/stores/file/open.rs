//! Opens the file stores of a workspace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::broadcast;

use super::atomic_write::sweep_temporaries;
use super::board::{BOARD_FOLDER, BoardFiles, FileBoard};
use super::events::FileEventLog;
use super::exchange_file::ExchangeFile;
use super::format::{check_format, write_format};
use super::ledger::FileLedger;
use super::links::refuse_links;
use super::mailbox::FileMailbox;
use super::roster::{FileRoster, ROSTER_FILE};
use super::state::{FileState, STATE_FILE};
use super::transcripts::FileTranscripts;
use super::watch::{self, NoEvents, Watcher};
use super::workers::leader_lock::{FileLeadership, LeaderLock, acquire_leader_lock};
use super::workers::{FileWorkers, ProcessId};
use super::{Durability, LOCK_FILES, TEAM_FOLDER, failed};
use crate::ports::{IoAction, StoreChange, StoreResult, Stores};
use crate::stores::fs::{FileSystem, RealFileSystem};
use crate::stores::request_store::RequestStore;
#[cfg(doc)]
use crate::stores::workspace::StoreKind;
use crate::stores::workspace::{CHANGES_MAX, OpenMode, OpenOptions, OpenStores};

/// Opens the file stores of `workspace`. Blocks.
///
/// # Errors
/// As [`StoreKind::open`].
pub fn open(workspace: &Path, options: &OpenOptions) -> StoreResult<OpenStores> {
    let workspace = std::path::absolute(workspace).map_err(failed("open", workspace))?;
    if options.mode != OpenMode::ReadOnly {
        refuse_links(&workspace)?;
    }
    let files = Arc::new(RealFileSystem::with_wait_limit(&workspace, options.wait_limit.clone()));
    let watch = |workspace: &Path, changes| watch::start(workspace, changes).map(Some);
    open_over(Platform { files, process: ProcessId::own(), watch }, &workspace, options)
}

/// Opens the file stores of `workspace` as process `process`, over any file system: for simulations. Blocks.
///
/// System file events are not watched. The simulation can send to `changes` of the stores itself.
///
/// # Errors
/// As [`StoreKind::open`].
pub fn open_as(
    process: ProcessId,
    files: Arc<dyn FileSystem>,
    workspace: &Path,
    options: &OpenOptions,
) -> StoreResult<OpenStores> {
    open_over(Platform { files, process, watch: |_, _| Ok(None) }, workspace, options)
}

/// The file system, process and file events that the stores use.
struct Platform {
    files: Arc<dyn FileSystem>,
    process: ProcessId,
    /// Starts to watch the system's file events.
    watch: fn(&Path, broadcast::Sender<StoreChange>) -> Result<Option<Watcher>, NoEvents>,
}

fn open_over(platform: Platform, workspace: &Path, options: &OpenOptions) -> StoreResult<OpenStores> {
    let files = &platform.files;
    let clock = &options.clock;
    let team_folder = workspace.join(TEAM_FOLDER);
    let changes = broadcast::channel(CHANGES_MAX).0;
    check_format(&**files, &team_folder)?;
    let mut warnings = Vec::new();
    let mut lead = None;
    let mut watcher = None;
    if let OpenMode::Lead { team } = &options.mode {
        lead = Some(Arc::new(become_lead(&platform, workspace, options.durability, team)?));
        warnings.extend(files.unreliable_lock_file_system(workspace).map(|kind| {
            format!(
                "the workspace is on {kind}, where locks are unreliable: a worker counts as dead after 30 s without heartbeat"
            )
        }));
        watcher = match (platform.watch)(workspace, changes.clone()) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                warnings.push(error.to_string());
                None
            }
        };
    }
    let workers = match &options.mode {
        OpenMode::Lead { team } | OpenMode::Work { team } => {
            FileWorkers::register(&platform.process, Arc::clone(files), Arc::clone(clock), &team_folder, team)?
        }
        OpenMode::Write | OpenMode::ReadOnly => {
            FileWorkers::open_read_only(Arc::clone(files), Arc::clone(clock), &team_folder)
        }
    };
    let leadership = FileLeadership::new(Arc::clone(files), workspace, lead.as_ref());
    // Without a watch, changes by other programs are not announced.
    let has_events = watcher.is_some();
    let stores = file_stores(files, workspace, options, workers, leadership, changes, has_events)?;
    Ok(OpenStores::new(stores, warnings, (watcher, lead)))
}

/// Creates the folders and lock files of the workspace, and makes this process its lead.
fn become_lead(platform: &Platform, workspace: &Path, durability: Durability, team: &str) -> StoreResult<LeaderLock> {
    let files = &platform.files;
    let team_folder = workspace.join(TEAM_FOLDER);
    let folders = [workspace.join(BOARD_FOLDER), team_folder.join("inbox"), team_folder.join("transcripts")];
    for folder in &folders {
        files.create_folder(folder).map_err(failed("create", folder))?;
    }
    let lead = acquire_leader_lock(Arc::clone(files), workspace, &platform.process, team)?;
    for path in LOCK_FILES.map(|file| workspace.join(file)) {
        // Creates the file now, so that commands are denied access to it before the first use.
        drop(files.hold(&path).map_err(failed("create", &path))?);
    }
    sweep_temporaries(&**files, &team_folder)?;
    write_format(&**files, &team_folder, durability)?;
    if durability == Durability::Power {
        for folder in folders.iter().map(PathBuf::as_path).chain([&*team_folder, workspace]) {
            files.sync_folder(folder).map_err(failed(IoAction::Sync, folder))?;
        }
    }
    Ok(lead)
}

fn file_stores(
    files: &Arc<dyn FileSystem>,
    workspace: &Path,
    options: &OpenOptions,
    workers: FileWorkers,
    leadership: FileLeadership,
    changes: broadcast::Sender<StoreChange>,
    has_events: bool,
) -> StoreResult<Stores> {
    let durability = options.durability;
    let clock = &options.clock;
    let team_folder = workspace.join(TEAM_FOLDER);
    let is_read_only = options.mode == OpenMode::ReadOnly;
    let exchange_file = |folder: &Path, name: &str, is_valid: fn(&[u8]) -> bool| {
        ExchangeFile::new(Arc::clone(files), durability, folder, name, &team_folder, is_valid).read_only(is_read_only)
    };
    let board = match options.mode {
        OpenMode::ReadOnly => BoardFiles::open_read_only(Arc::clone(files), workspace, Arc::clone(clock)),
        OpenMode::Lead { .. } | OpenMode::Work { .. } | OpenMode::Write => {
            BoardFiles::open(Arc::clone(files), workspace, durability, Arc::clone(clock), changes.clone())?
        }
    };
    let state = exchange_file(workspace, STATE_FILE, FileState::is_valid).with_spare_inodes(&team_folder.join("spare"));
    Ok(Stores {
        board: Arc::new(FileBoard::from(board)),
        mailbox: Arc::new(FileMailbox::new(
            Arc::clone(files),
            durability,
            Arc::clone(clock),
            changes.clone(),
            &team_folder,
        )),
        transcripts: Arc::new(FileTranscripts::new(Arc::clone(files), durability, &team_folder)),
        requests: Arc::new(RequestStore::file(Arc::clone(files), team_folder.clone(), durability, is_read_only)),
        state: Arc::new(FileState::new(state, Arc::clone(clock), changes.clone(), has_events)),
        roster: Arc::new(FileRoster::new(exchange_file(&team_folder, ROSTER_FILE, FileRoster::is_valid))),
        events: Arc::new(FileEventLog::new(Arc::clone(files), Arc::clone(clock), &team_folder)),
        ledger: Arc::new(FileLedger::new(Arc::clone(files), &team_folder)),
        workers: Arc::new(workers),
        leadership: Arc::new(leadership),
        wait_limit: options.wait_limit.clone(),
        changes,
    })
}
