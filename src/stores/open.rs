//! Opens the stores of a workspace, of whichever kind: the one place that knows them all.
//!
//! A process opens a workspace to lead it, which one process at a time may; to act by hand; or to look.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::ports::{Clock, StoreChange, StoreResult, Stores, Workers};

use super::file::board::{BOARD_FOLDER, FileBoard};
use super::file::events::FileEventLog;
use super::file::format::{check_format, write_format};
use super::file::ledger::FileLedger;
use super::file::links::refuse_links;
use super::file::mailbox::FileMailbox;
use super::file::replace::sweep_temporaries;
use super::file::roster::{FileRoster, ROSTER_FILE};
use super::file::shared::SharedFile;
use super::file::state::{FileState, STATE_FILE};
use super::file::transcripts::FileTranscripts;
use super::file::watch::{self, NoEvents, Watcher};
use super::file::workers::lead::{Leader, Leadership, occupy, read_record, who_leads};
use super::file::workers::{FileWorkers, Incarnation};
use super::file::{Durability, LOCK_FILES, TEAM_FOLDER, blocking, failed};
use super::fs::{FileSystem, RealFileSystem};
use super::memory;
use super::requests::FileRequests;

/// Hints that may wait for a slow listener; one that lags further is told to look at everything.
const CHANGES_MAX: usize = 1024;

/// What a process opens a workspace for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// To lead this team: it becomes a worker, tells of changes by others, and keeps other leads out.
    Lead {
        /// The team's name.
        team: String,
    },
    /// To act by hand, whether a team runs or not: to send mail, to change tasks, to set the desired state.
    Act,
    /// To look only: nothing of the board is made, locked or mended.
    Look,
}

/// How a workspace is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// What for.
    pub purpose: Purpose,
    /// What "accepted" means.
    pub durability: Durability,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
}

/// An open workspace. It is led, and its worker lives, until this is dropped.
pub struct Workspace {
    /// The stores.
    pub stores: Stores,
    /// What the person should know: no file events, locks that are not to be trusted.
    pub warnings: Vec<String>,
    _watcher: Option<Watcher>,
    _lead: Option<Arc<Leadership>>,
}

/// One kind of stores.
pub struct StoreKind {
    /// Its name, as the config and the command line spell it.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    open: fn(RealFileSystem, &Path, &OpenOptions) -> StoreResult<Workspace>,
}

/// All kinds of stores.
pub static STORES: [StoreKind; 2] = [
    StoreKind { name: "file", about: "plain files in the workspace, shared with other programs", open: open_files },
    StoreKind { name: "memory", about: "nothing is kept: for rehearsals and tests", open: open_memory },
];

impl StoreKind {
    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        STORES.iter().find(|kind| kind.name == name)
    }

    /// Opens the stores of `workspace`. Call it within a runtime.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Occupied`] when another process leads, [`crate::ports::StoreError::NewerFormat`], and
    /// [`crate::ports::StoreError::Io`].
    pub async fn open(&self, workspace: &Path, options: OpenOptions) -> StoreResult<Workspace> {
        let (open, workspace) = (self.open, workspace.to_owned());
        blocking(move || open(RealFileSystem::default(), &workspace, &options)).await
    }
}

/// Opens the file stores of `workspace`. Call it within a runtime.
///
/// # Errors
/// As [`StoreKind::open`].
pub async fn open(workspace: &Path, options: OpenOptions) -> StoreResult<Workspace> {
    open_with(RealFileSystem::default(), workspace, options).await
}

/// The same over `files`, such as those of one command.
///
/// # Errors
/// As [`StoreKind::open`].
pub async fn open_with(files: RealFileSystem, workspace: &Path, options: OpenOptions) -> StoreResult<Workspace> {
    let workspace = workspace.to_owned();
    blocking(move || open_files(files, &workspace, &options)).await
}

/// Opens the file stores of `workspace` as another process than this one would, over whatever file system it has: for simulations.
/// File events of the system are not listened to; `changes` of the stores can be told of by whoever simulates them. Blocks.
///
/// # Errors
/// As [`StoreKind::open`].
pub fn open_as(
    process: Incarnation,
    files: Arc<dyn FileSystem>,
    workspace: &Path,
    options: &OpenOptions,
) -> StoreResult<Workspace> {
    open_over(Ground { files, process, watch: |_, _| Ok(None) }, workspace, options)
}

/// Who leads `workspace` now, if anybody does. Blocks for a moment.
///
/// # Errors
/// [`crate::ports::StoreError::Io`].
pub fn leader(workspace: &Path) -> StoreResult<Option<Leader>> {
    who_leads(&RealFileSystem::default(), workspace)
}

/// The lead that the record of `workspace` names, whether it runs or not. Blocks for a moment.
#[must_use]
pub fn recorded_leader(workspace: &Path) -> Option<Leader> {
    read_record(&RealFileSystem::default(), &workspace.join(TEAM_FOLDER))
}

fn open_memory(_: RealFileSystem, _: &Path, options: &OpenOptions) -> StoreResult<Workspace> {
    let changes = broadcast::channel(CHANGES_MAX).0;
    let stores = memory::stores(Arc::clone(&options.clock), changes);
    Ok(Workspace { stores, warnings: Vec::new(), _watcher: None, _lead: None })
}

fn open_files(files: RealFileSystem, workspace: &Path, options: &OpenOptions) -> StoreResult<Workspace> {
    let workspace = std::path::absolute(workspace).map_err(failed("open", workspace))?;
    if options.purpose != Purpose::Look {
        refuse_links(&workspace)?;
    }
    let files = Arc::new(files.with_root(&workspace));
    let watch = |workspace: &Path, changes| watch::start(workspace, changes).map(Some);
    open_over(Ground { files, process: Incarnation::own(), watch }, &workspace, options)
}

/// What a process stands on.
struct Ground {
    files: Arc<dyn FileSystem>,
    process: Incarnation,
    /// Starts to listen to the system's file events.
    watch: fn(&Path, broadcast::Sender<StoreChange>) -> Result<Option<Watcher>, NoEvents>,
}

fn open_over(ground: Ground, workspace: &Path, options: &OpenOptions) -> StoreResult<Workspace> {
    let files = &ground.files;
    let team_folder = workspace.join(TEAM_FOLDER);
    let changes = broadcast::channel(CHANGES_MAX).0;
    check_format(&**files, &team_folder)?;
    let mut opened = Opened { warnings: Vec::new(), has_events: false, watcher: None, lead: None };
    let workers: Arc<dyn Workers> = match &options.purpose {
        Purpose::Lead { team } => {
            opened.lead(&ground, workspace, &team_folder, options, team, &changes)?;
            let (files, clock) = (Arc::clone(files), Arc::clone(&options.clock));
            let workers = FileWorkers::register_as(&ground.process, files, clock, &team_folder, team)?;
            Arc::new(opened.lead.iter().fold(workers, FileWorkers::leading))
        }
        Purpose::Act | Purpose::Look => {
            Arc::new(FileWorkers::visit(Arc::clone(files), Arc::clone(&options.clock), &team_folder))
        }
    };
    let stores = file_stores(files, workspace, options, workers, changes, opened.has_events)?;
    Ok(Workspace { stores, warnings: opened.warnings, _watcher: opened.watcher, _lead: opened.lead })
}

/// What only a lead has.
struct Opened {
    warnings: Vec<String>,
    /// Whether others' changes are told of.
    has_events: bool,
    watcher: Option<Watcher>,
    lead: Option<Arc<Leadership>>,
}

impl Opened {
    fn lead(
        &mut self,
        ground: &Ground,
        workspace: &Path,
        team_folder: &Path,
        options: &OpenOptions,
        team: &str,
        changes: &broadcast::Sender<StoreChange>,
    ) -> StoreResult<()> {
        let files = &ground.files;
        let folders = [workspace.join(BOARD_FOLDER), team_folder.join("inbox"), team_folder.join("transcripts")];
        for folder in &folders {
            files.create_folder(folder).map_err(failed("make", folder))?;
        }
        self.lead = Some(Arc::new(occupy(Arc::clone(files), workspace, &ground.process, team)?));
        for path in LOCK_FILES.map(|file| workspace.join(file)) {
            // That makes the file, so that commands can be kept from it before anything needed it.
            drop(files.hold(&path).map_err(failed("make", &path))?);
        }
        sweep_temporaries(&**files, team_folder)?;
        write_format(&**files, team_folder, options.durability)?;
        if options.durability == Durability::Power {
            for folder in folders.iter().map(PathBuf::as_path).chain([team_folder, workspace]) {
                files.sync_folder(folder).map_err(failed("sync", folder))?;
            }
        }
        if let Some(kind) = files.distrusts_locks(workspace) {
            self.warnings.push(format!(
                "the workspace is on {kind}, where locks are not to be trusted: a worker counts as gone after 30 s of silence"
            ));
        }
        match (ground.watch)(workspace, changes.clone()) {
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
    let shared = |folder: &Path, name: &str, is_whole: fn(&[u8]) -> bool| {
        SharedFile::new(Arc::clone(files), durability, folder, name, &team_folder, is_whole)
    };
    let board = match options.purpose {
        Purpose::Look => FileBoard::look(Arc::clone(files), workspace, Arc::clone(clock)),
        Purpose::Lead { .. } | Purpose::Act => {
            FileBoard::open(Arc::clone(files), workspace, durability, Arc::clone(clock), changes.clone())?
        }
    };
    let transcripts = match options.purpose {
        Purpose::Look => FileTranscripts::look(Arc::clone(files), &team_folder),
        Purpose::Lead { .. } | Purpose::Act => FileTranscripts::new(Arc::clone(files), durability, &team_folder),
    };
    if matches!(options.purpose, Purpose::Lead { .. }) {
        transcripts.set_all_aside()?;
    }
    let state = shared(workspace, STATE_FILE, FileState::is_whole).by_turns(&team_folder.join("spare"));
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
        roster: Arc::new(FileRoster::new(shared(&team_folder, ROSTER_FILE, FileRoster::is_whole))),
        events: Arc::new(FileEventLog::new(Arc::clone(files), Arc::clone(clock), &team_folder)),
        ledger: Arc::new(FileLedger::new(Arc::clone(files), &team_folder)),
        workers,
        changes,
    })
}
