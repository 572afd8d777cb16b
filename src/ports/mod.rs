//! The interfaces between a team and its environment, as traits. Each says what holds after a crash. Every implementation passes
//! the same contract tests.
//!
//! All calls are asynchronous. An implementation that blocks (locks, files) does so on other threads than the runtime's. A lock
//! is held inside one call, never across two.

#![warn(missing_docs)]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use crate::domain::budget::{LedgerRecord, LedgerTotals};
use crate::domain::dependencies::TaskLookup;
use crate::domain::event::{Event, EventKind};
use crate::domain::message::Message;
use crate::domain::name::Name;
use crate::domain::phase::ClaimRef;
use crate::domain::records::{RosterMember, WorkerRecord, WorkerTeammate};
use crate::domain::state::{SharedState, StateUpdate};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;
use crate::domain::transition::{Actor, Change};

mod commands;
mod model;
mod repository;
mod store_error;
mod transcripts;

pub use commands::CommandRegistry;
pub use repository::{
    Assignment, CommandPlace, LaunchedRepository, LeftoverWork, Merge, MergeOutcome, PublishOutcome, Repository,
    RepositoryError, TEAMMATES_DOMAIN, TeamWorktree, Worktree, WorktreeOutcome,
};

pub use store_error::{IoAction, StoreError, StoreResult};
pub use transcripts::{QuarantinedTranscript, Transcripts};

pub use model::{
    AgentKind, ChatMessage, CountTokens, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ModelSpec,
    RequestPurpose, StopReason, ToolSpec,
};

/// The events that accepted data survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The death of every process.
    Process,
    /// Also a power cut.
    #[default]
    Power,
}

impl Durability {
    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Power => "power",
        }
    }

    /// Returns the durability of a word in a file; the stronger one for an unknown word.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        if word == Self::Process.as_str() { Self::Process } else { Self::Power }
    }
}

/// A member or script that claims a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant {
    /// The name that becomes the task's owner.
    pub name: String,
    /// Its role and capabilities.
    pub capabilities: Vec<String>,
    /// The worker that must be alive for the claim to hold; `lease:<name>` for a claim by command.
    pub worker: String,
    /// The length of the lease, for a claim by command.
    pub lease: Option<Duration>,
}

/// A file on the board that is not a valid task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidTaskFile {
    /// Its name.
    pub file: String,
    /// The reason.
    pub reason: String,
}

/// The board at one moment.
#[derive(Debug, Clone, Default)]
pub struct BoardView {
    /// Increases at every change that the store sees.
    pub revision: u64,
    /// The tasks by id.
    pub tasks: BTreeMap<TaskId, Arc<Task>>,
    /// Files that are not valid tasks.
    pub invalid_files: Vec<InvalidTaskFile>,
    /// Deleted tasks that are still being removed from other tasks' dependencies.
    pub deleted: BTreeSet<TaskId>,
}

impl TaskLookup for BoardView {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).map(Arc::as_ref)
    }
    fn was_deleted(&self, id: TaskId) -> bool {
        self.deleted.contains(&id)
    }
    fn is_invalid(&self, id: TaskId) -> bool {
        self.invalid_files.iter().any(|invalid| TaskId::from_file_name(&invalid.file) == Some(id))
    }
}

/// A claim that was removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Reclaimed {
    /// The task after that.
    pub task: Task,
    /// The former owner.
    pub owner: String,
    /// The reason.
    pub reason: String,
}

/// The task board.
///
/// After a crash at any point, each task is as before or as after the call. With power durability this includes power cuts, once
/// [`Board::create`], [`Board::change`] or [`Board::delete`] returned. A power cut may lose a claim. The next open or call
/// completes updates of dependents.
#[async_trait]
pub trait Board: Send + Sync {
    /// Creates all tasks or none, with ids that were never used. Unknown blockers and cycles are errors. With
    /// `skip_known_sources`, the existing task is returned for a `source` that is already on the board.
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>>;

    /// Returns the current board.
    async fn view(&self) -> StoreResult<Arc<BoardView>>;

    /// Returns the current state of one task.
    async fn get(&self, id: TaskId) -> StoreResult<Task>;

    /// Claims the best claimable task: highest priority, then lowest id. Checks and claims under one lock.
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>>;

    /// Claims this task. The error names the obstacle.
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task>;

    /// Changes a task by the rules of [`crate::domain::transition`]. A completed task is removed from the blockers of others, and
    /// a reopened one is added again to its pending dependents.
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task>;

    /// Deletes a task, and its id from other tasks. The id is never used again.
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task>;

    /// Returns the ids, of tasks no longer on the board, that [`Board::delete`] removed. Remembers the last few thousand.
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>>;

    /// Removes the claims that `request` describes, and those with an expired lease. Tasks without a claim do not change.
    async fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>>;
}

/// The claims to remove.
#[derive(Debug, Clone, Default)]
pub struct ReclaimRequest {
    /// The live workers. Claims of other workers are lost. `None` does not check workers.
    pub live_workers: Option<HashSet<String>>,
    /// The claims whose holder is gone although its worker lives.
    pub claims: Vec<ClaimRef>,
    /// The claims whose lease expired only by a jump of the clock. They stay.
    pub running_leases: Vec<ClaimRef>,
    /// True if the loss counts as a failure of the task, because others of the team were alive.
    pub counts: bool,
    /// The reason, for people.
    pub reason: String,
}

/// A message for a transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Its key in a transcript: the message's id or, for a line of another program, file and offset.
    pub key: String,
    /// The message.
    pub message: Message,
}

/// The inboxes.
///
/// A message that [`Mailbox::send`] accepted is delivered exactly once. [`Mailbox::take`] returns it repeatedly, also after a
/// crash, until [`Mailbox::settle`] confirms that the transcript has it.
#[async_trait]
pub trait Mailbox: Send + Sync {
    /// Adds a message to the inbox of `to` and returns its new id. Unknown recipients and full inboxes are errors.
    async fn send(&self, to: &str, message: Message) -> StoreResult<String>;

    /// Adds recipients to `lead` and `human`. The first call of an opened store replaces the recipients of earlier runs.
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()>;

    /// Returns the mail of `name` that no transcript has, in order. `delivered` are the keys in its transcript. Invalid lines are
    /// moved to quarantine with a warning.
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>>;

    /// Confirms that the transcript of `name` durably has these keys. Their messages may be removed.
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()>;

    /// Returns waiting mail without taking it. Mail that was taken before has the same key. After a restart the transcript may
    /// already have some of it.
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>>;

    /// Returns the recipients with waiting mail, or with mail that [`Mailbox::take`] must check. Reads no file's content.
    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>>;
}

/// Requests that wait for an answer, such as plan approvals. Their messages are sent separately.
///
/// Results of [`Requests::record`] and [`Requests::answer`] survive a crash and, with power durability, a power cut. The reader of
/// another program's mail also records its requests here. Recording a request twice is safe.
#[async_trait]
pub trait Requests: Send + Sync {
    /// Records a request. An id that is stored already changes nothing.
    async fn record(&self, request: Request) -> StoreResult<()>;

    /// Reserves a request for `process`, which sends and records the answer next in the name of `by`. The same process may
    /// reserve it again. Unknown and answered requests and those of others are errors.
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request>;

    /// Records the answer of `answer.by`. Unknown and answered requests and those of others are errors.
    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request>;

    /// Changes the responder; `None` if the request is not open.
    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>>;

    /// Binds an open review to another attempt, whose holder `from` then gets the answer.
    async fn rebind_review(&self, id: &str, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()>;

    /// Withdraws an open request.
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()>;

    /// Returns all stored requests.
    async fn all(&self) -> StoreResult<Approvals>;
}

/// The shared state file.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Returns the state, or `None` without a file. An invalid file is read again until it is valid or unchanged for a second.
    /// Then it is renamed, and a state with pause/pause replaces it.
    async fn read(&self) -> StoreResult<Option<SharedState>>;

    /// Merges `update` into the file without losing changes of other writers, and returns the result. Changes of the desired or
    /// current state are written when this returns. Other reports are written within 250 ms, the last one only, also if the store
    /// is dropped. A report that another writer overwrites is restored within 100 ms.
    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState>;
}

/// The roster, `.team/config.json`, which other programs also read and write.
#[async_trait]
pub trait Roster: Send + Sync {
    /// Writes the status of these members. Members and fields of other programs are kept.
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()>;

    /// Returns all members in the roster.
    async fn read(&self) -> StoreResult<Vec<RosterMember>>;
}

/// The event log of the run. Only the log numbers events.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Appends events in this order and returns them numbered. They are written when this returns, except on a full disk. Then
    /// they wait in memory, up to a limit, and are written before later ones. A refused event takes no number. The first append
    /// starts a run. Only the leading process appends.
    async fn append(&self, kinds: Vec<EventKind>) -> StoreResult<Vec<Event>>;
}

/// The usage of model requests.
///
/// Lines accepted by [`Ledger::append`] survive the death of every process. A power cut may lose the last ones.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Returns the sum of all lines.
    async fn read(&self) -> StoreResult<LedgerTotals>;

    /// Appends lines in this order. Only one process at a time may append: the leading one, or one that excludes leads.
    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()>;
}

/// The workers of the workspace.
#[async_trait]
pub trait Workers: Send + Sync {
    /// Returns this process's worker id.
    fn worker_id(&self) -> &str;

    /// Replaces this worker's record.
    async fn report(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()>;

    /// Kills the process groups of dead workers, removes their records, and returns the live and dead workers.
    async fn reap_dead_workers(&self) -> StoreResult<WorkerSurvey>;

    /// Returns the workers among `ids` whose process lives although their files were removed. `ids` are missing in the survey.
    async fn live_without_record(&self, _ids: Vec<String>) -> StoreResult<HashSet<String>> {
        Ok(HashSet::new())
    }

    /// Stops all waiting for locks in this process's stores, because the process ends.
    fn stop_waiting(&self) {}

    /// Checks that this process still leads its workspace. Restores a removed lock file or record.
    async fn leader_status(&self) -> StoreResult<LeaderStatus> {
        Ok(LeaderStatus::Held)
    }
}

/// The state of this process's leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaderStatus {
    /// This process leads.
    Held,
    /// This process leads, and its lock file or record was restored.
    Renewed,
    /// Another process leads now.
    Lost {
        /// Name of its team.
        team: String,
        /// Its process id.
        pid: u32,
    },
    /// The workspace was removed or moved.
    NoWorkspace,
}

/// The live and dead workers.
#[derive(Debug, Clone, Default)]
pub struct WorkerSurvey {
    /// Ids of the live workers, including this one.
    pub live: HashSet<String>,
    /// Records of the workers that this survey found dead.
    pub dead: Vec<WorkerRecord>,
}

/// A hint about a change. Polling finds changes without a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChange {
    /// The board changed.
    Board,
    /// This member has mail.
    Mail(String),
    /// The shared state file changed.
    State,
    /// Hints were lost: poll everything.
    Everything,
}

/// All stores of one workspace.
#[derive(Clone)]
pub struct Stores {
    /// The task board.
    pub board: Arc<dyn Board>,
    /// The inboxes.
    pub mailbox: Arc<dyn Mailbox>,
    /// The transcripts.
    pub transcripts: Arc<dyn Transcripts>,
    /// Requests that wait for an answer.
    pub requests: Arc<dyn Requests>,
    /// The shared state file.
    pub state: Arc<dyn StateStore>,
    /// The roster.
    pub roster: Arc<dyn Roster>,
    /// The event log.
    pub events: Arc<dyn EventLog>,
    /// The usage of model requests.
    pub ledger: Arc<dyn Ledger>,
    /// The workers.
    pub workers: Arc<dyn Workers>,
    /// Hints about changes by this and other processes.
    pub changes: tokio::sync::broadcast::Sender<StoreChange>,
}

/// The wall clock. Waits use the runtime's time instead, which tests pause.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> UnixMs;
}
