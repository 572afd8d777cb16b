//! Opens the stores of a workspace. Only this module knows all kinds of stores.
//!
//! A process opens a workspace to lead it (one process at a time), to change it by a command, or to read it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::ports::{Clock, IoAction, StoreChange, StoreResult, Stores, Workers};

use super::approvals::FileRequests;
use super::file::atomic_write::sweep_temporaries;
use super::file::board::{BOARD_FOLDER, FileBoard};
use super::file::events::FileEventLog;
use super::file::exchange_file::ExchangeFile;
use super::file::format::{check_format, write_format};
use super::file::ledger::FileLedger;
use super::file::links::refuse_links;
use super::file::mailbox::FileMailbox;
use super::file::roster::{FileRoster, ROSTER_FILE};
use super::file::state::{FileState, STATE_FILE};
use super::file::transcripts::FileTranscripts;
use super::file::watch::{self, NoEvents, Watcher};
use super::file::workers::leader_lock::{self, LeaderInfo, LeaderLock, acquire_leader_lock, read_record};
use super::file::workers::{FileWorkers, ProcessId};
use super::file::{Durability, LOCK_FILES, TEAM_FOLDER, blocking, failed};
use super::fs::{FileSystem, RealFileSystem};
use super::memory;

/// The most change notices that wait for a slow listener. A listener that lags further must check everything.
const CHANGES_MAX: usize = 1024;

/// The access that a process needs to a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenMode {
    /// Lead this team: the process registers as a worker, watches for changes by other programs, and excludes other leads.
    Lead {
        /// The team's name.
        team: String,
    },
    /// Change the workspace by a command, with or without a running team: send mail, change tasks, set the desired state.
    Write,
    /// Read only: creates, locks and repairs nothing on the board.
    ReadOnly,
}

/// The options for opening a workspace.
#[derive(Clone)]
pub struct OpenOptions {
    /// The access to the workspace.
    pub mode: OpenMode,
    /// The failures that accepted writes survive.
    pub durability: Durability,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
}

/// An open workspace. The leader lock and the worker's registration last until it is dropped.
pub struct Workspace {
    /// The stores.
    pub stores: Stores,
    /// Warnings for the person: no file events, unreliable locks.
    pub warnings: Vec<String>,
    _watcher: Option<Watcher>,
    _lead: Option<Arc<LeaderLock>>,
}

/// One kind of stores.
pub struct StoreKind {
    /// The name in the config and on the command line.
    pub name: &'static str,
    /// A description of one line.
    pub about: &'static str,
    open: fn(RealFileSystem, &Path, &OpenOptions) -> StoreResult<Workspace>,
}

/// All kinds of stores.
pub static STORES: [StoreKind; 2] = [
    StoreKind { name: "file", about: "plain files in the workspace, shared with other programs", open: open_files },
    StoreKind { name: "memory", about: "keeps nothing: for rehearsals and tests", open: open_memory },
];

impl StoreKind {
    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        STORES.iter().find(|kind| kind.name == name)
    }

    /// Opens the stores of `workspace`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::AlreadyLed`] if another process leads, [`crate::ports::StoreError::NewerFormat`], and
    /// [`crate::ports::StoreError::Io`].
    pub async fn open(&self, workspace: &Path, options: OpenOptions) -> StoreResult<Workspace> {
        let (open, workspace) = (self.open, workspace.to_owned());
        blocking(move || open(RealFileSystem::default(), &workspace, &options)).await
    }
}

/// Opens the file stores of `workspace`. Must be called within a tokio runtime.
///
/// # Errors
/// As [`StoreKind::open`].
pub async fn open(workspace: &Path, options: OpenOptions) -> StoreResult<Workspace> {
    open_with(RealFileSystem::default(), workspace, options).await
}

/// Opens the file stores over `files`, such as those of one command.
///
/// # Errors
/// As [`StoreKind::open`].
pub async fn open_with(files: RealFileSystem, workspace: &Path, options: OpenOptions) -> StoreResult<Workspace> {
    let workspace = workspace.to_owned();
    blocking(move || open_files(files, &workspace, &options)).await
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
) -> StoreResult<Workspace> {
    open_over(Platform { files, process, watch: |_, _| Ok(None) }, workspace, options)
}

/// The process that leads `workspace`, if any. Blocks briefly.
///
/// # Errors
/// [`crate::ports::StoreError::Io`].
pub fn current_leader(workspace: &Path) -> StoreResult<Option<LeaderInfo>> {
    leader_lock::current_leader(&RealFileSystem::default(), workspace)
}

/// The lead that the record of `workspace` names, even if it has ended. Blocks briefly.
#[must_use]
pub fn recorded_leader(workspace: &Path) -> Option<LeaderInfo> {
    read_record(&RealFileSystem::default(), &workspace.join(TEAM_FOLDER))
}

fn open_memory(_: RealFileSystem, _: &Path, options: &OpenOptions) -> StoreResult<Workspace> {
    let changes = broadcast::channel(CHANGES_MAX).0;
    let stores = memory::stores(Arc::clone(&options.clock), changes);
    Ok(Workspace { stores, warnings: Vec::new(), _watcher: None, _lead: None })
}

fn open_files(files: RealFileSystem, workspace: &Path, options: &OpenOptions) -> StoreResult<Workspace> {
    let workspace = std::path::absolute(workspace).map_err(failed("open", workspace))?;
    if options.mode != OpenMode::ReadOnly {
        refuse_links(&workspace)?;
    }
    let files = Arc::new(files.with_root(&workspace));
    let watch = |workspace: &Path, changes| watch::start(workspace, changes).map(Some);
    open_over(Platform { files, process: ProcessId::own(), watch }, &workspace, options)
}

/// The file system, process and file events that the stores use.
struct Platform {
    files: Arc<dyn FileSystem>,
    process: ProcessId,
    /// Starts to watch the system's file events.
    watch: fn(&Path, broadcast::Sender<StoreChange>) -> Result<Option<Watcher>, NoEvents>,
}

fn open_over(platform: Platform, workspace: &Path, options: &OpenOptions) -> StoreResult<Workspace> {
    let files = &platform.files;
    let team_folder = workspace.join(TEAM_FOLDER);
    let changes = broadcast::channel(CHANGES_MAX).0;
    check_format(&**files, &team_folder)?;
    let mut resources = LeadResources { warnings: Vec::new(), has_events: false, watcher: None, lead: None };
    let workers: Arc<dyn Workers> = match &options.mode {
        OpenMode::Lead { team } => {
            resources.open_as_lead(&platform, workspace, &team_folder, options, team, &changes)?;
            let (files, clock) = (Arc::clone(files), Arc::clone(&options.clock));
            let workers = FileWorkers::register_as(&platform.process, files, clock, &team_folder, team)?;
            Arc::new(resources.lead.iter().fold(workers, FileWorkers::as_leader))
        }
        OpenMode::Write | OpenMode::ReadOnly => {
            Arc::new(FileWorkers::open_read_only(Arc::clone(files), Arc::clone(&options.clock), &team_folder))
        }
    };
    let stores = file_stores(files, workspace, options, workers, changes, resources.has_events)?;
    Ok(Workspace { stores, warnings: resources.warnings, _watcher: resources.watcher, _lead: resources.lead })
}

/// The parts of an opened workspace that only a lead has, and the warnings.
struct LeadResources {
    warnings: Vec<String>,
    /// True if changes by other programs are announced.
    has_events: bool,
    watcher: Option<Watcher>,
    lead: Option<Arc<LeaderLock>>,
}

impl LeadResources {
    fn open_as_lead(
        &mut self,
        platform: &Platform,
        workspace: &Path,
        team_folder: &Path,
        options: &OpenOptions,
        team: &str,
        changes: &broadcast::Sender<StoreChange>,
    ) -> StoreResult<()> {
        let files = &platform.files;
        let folders = [workspace.join(BOARD_FOLDER), team_folder.join("inbox"), team_folder.join("transcripts")];
        for folder in &folders {
            files.create_folder(folder).map_err(failed("create", folder))?;
        }
        self.lead = Some(Arc::new(acquire_leader_lock(Arc::clone(files), workspace, &platform.process, team)?));
        for path in LOCK_FILES.map(|file| workspace.join(file)) {
            // Creates the file now, so that commands are denied access to it before the first use.
            drop(files.hold(&path).map_err(failed("create", &path))?);
        }
        sweep_temporaries(&**files, team_folder)?;
        write_format(&**files, team_folder, options.durability)?;
        if options.durability == Durability::Power {
            for folder in folders.iter().map(PathBuf::as_path).chain([team_folder, workspace]) {
                files.sync_folder(folder).map_err(failed(IoAction::Sync, folder))?;
            }
        }
        if let Some(kind) = files.unreliable_lock_file_system(workspace) {
            self.warnings.push(format!(
                "the workspace is on {kind}, where locks are unreliable: a worker counts as dead after 30 s without heartbeat"
            ));
        }
        match (platform.watch)(workspace, changes.clone()) {
            Ok(watcher) => (self.watcher, self.has_events) = (watcher, true),
            Err(error) => self.warnings.push(error.to_string()),
        }
        Ok(())
    }
}

fn file_stores(
    files: &Arc<dyn FileSystem>,
    workspace: &Path,
    options: &OpenOptions,
    workers: Arc<dyn Workers>,
    changes: broadcast::Sender<StoreChange>,
    has_events: bool,
) -> StoreResult<Stores> {
    let (durability, clock) = (options.durability, &options.clock);
    let team_folder = workspace.join(TEAM_FOLDER);
    let exchange_file = |folder: &Path, name: &str, is_valid: fn(&[u8]) -> bool| {
        ExchangeFile::new(Arc::clone(files), durability, folder, name, &team_folder, is_valid)
    };
    let board = match options.mode {
        OpenMode::ReadOnly => FileBoard::open_read_only(Arc::clone(files), workspace, Arc::clone(clock)),
        OpenMode::Lead { .. } | OpenMode::Write => {
            FileBoard::open(Arc::clone(files), workspace, durability, Arc::clone(clock), changes.clone())?
        }
    };
    let transcripts = match options.mode {
        OpenMode::ReadOnly => FileTranscripts::open_read_only(Arc::clone(files), &team_folder),
        OpenMode::Lead { .. } | OpenMode::Write => FileTranscripts::new(Arc::clone(files), durability, &team_folder),
    };
    if matches!(options.mode, OpenMode::Lead { .. }) {
        transcripts.quarantine_non_files()?;
    }
    let state = exchange_file(workspace, STATE_FILE, FileState::is_valid).with_spare_inodes(&team_folder.join("spare"));
    Ok(Stores {
        board: Arc::new(board),
        mailbox: Arc::new(FileMailbox::new(
            Arc::clone(files),
            durability,
            Arc::clone(clock),
            changes.clone(),
            &team_folder,
        )),
        transcripts: Arc::new(transcripts),
        requests: Arc::new(FileRequests::new(Arc::clone(files), team_folder.clone(), durability)),
        state: Arc::new(FileState::new(state, Arc::clone(clock), changes.clone(), has_events)),
        roster: Arc::new(FileRoster::new(exchange_file(&team_folder, ROSTER_FILE, FileRoster::is_valid))),
        events: Arc::new(FileEventLog::new(Arc::clone(files), Arc::clone(clock), &team_folder)),
        ledger: Arc::new(FileLedger::new(Arc::clone(files), &team_folder)),
        workers,
        changes,
    })
}
