//! What the team needs of the world, as traits. Each says what holds after a crash; every implementation passes the
//! same contract tests.
//!
//! All calls are asynchronous: an implementation that blocks (locks, files) does so off the runtime's threads. Locks are
//! held inside one call, never across two.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::change::{Actor, Change};
use crate::domain::event::{Event, Fact};
use crate::domain::graph::{Obstacle, TaskLookup};
use crate::domain::message::Message;
use crate::domain::name::Name;
use crate::domain::record::{RosterMember, WorkerRecord, WorkerTeammate};
use crate::domain::refusal::Refusal;
use crate::domain::request::{Answer, Request, RequestBook, RequestError, RequestKind};
use crate::domain::spend::{Book, LedgerLine};
use crate::domain::state::{SharedState, StateUpdate};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;

mod model;
mod repository;
mod transcripts;

pub use repository::{
    Assignment, Merge, MergeTry, Provision, Publish, Repository, RepositoryError, TEAMMATES_DOMAIN, Worktree,
};

pub use transcripts::{SetAside, Transcripts};

pub use model::{
    ChatMessage, CountTokens, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ModelSpec, Purpose,
    StopReason, ToolSpec,
};

/// Why a store did not do what it was asked. What was not done is wholly not done.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The rules refuse the change.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The task cannot be claimed.
    #[error("task {id} cannot be claimed: {obstacle}")]
    NotClaimable {
        /// The task.
        id: TaskId,
        /// What is in its way.
        obstacle: Obstacle,
    },
    /// A request is not known, or not to be answered so.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// There is no such task.
    #[error("there is no task {0} on the board")]
    NoTask(TaskId),
    /// The task's file is not a task; it is left as it is.
    #[error("the file of task {id} is spoiled: {reason}")]
    Spoiled {
        /// The task.
        id: TaskId,
        /// What is wrong with it.
        reason: String,
    },
    /// A blocker that does not exist.
    #[error("task {task} cannot wait for {blocker}: there is no such task")]
    UnknownBlocker {
        /// The task that was to wait; 0 for one that is being created.
        task: TaskId,
        /// The blocker.
        blocker: TaskId,
    },
    /// What was handed in cannot stand on the board.
    #[error("{0}")]
    Invalid(String),
    /// The dependency would make tasks wait for themselves.
    #[error("that would make tasks wait for each other in a circle: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" -> "))]
    Cycle(Vec<TaskId>),
    /// Nobody of that name has an inbox.
    #[error("there is nobody called `{name}` in the team; there are: {}", .known.join(", "))]
    UnknownRecipient {
        /// Who was addressed.
        name: String,
        /// Who could be.
        known: Vec<String>,
    },
    /// The inbox holds as much as it may.
    #[error("the inbox of {name} is full ({bytes} bytes, at most {bytes_max}); try again once it has been read")]
    InboxFull {
        /// Whose.
        name: String,
        /// What it holds.
        bytes: u64,
        /// What it may hold.
        bytes_max: u64,
    },
    /// Something is larger than its bound.
    #[error("{what} has {bytes} bytes; at most {bytes_max} are taken")]
    TooLarge {
        /// What.
        what: String,
        /// Its size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// A file of a newer Brigade.
    #[error("{path} has format {found}, this Brigade knows up to {known}: use a newer one")]
    NewerFormat {
        /// The file.
        path: String,
        /// The version it has.
        found: u64,
        /// The newest this program knows.
        known: u64,
    },
    /// A control file of the workspace is a symbolic link: its path, and the path that it holds.
    #[error("cannot use {0}: it is a symbolic link to {1}, and a command of the team could lead it elsewhere")]
    Link(String, String),
    /// Another team has the workspace.
    #[error("team `{team}` (pid {pid}) already runs in this workspace")]
    Occupied {
        /// Its name.
        team: String,
        /// Its lead's process.
        pid: u32,
    },
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried: "write", "lock".
        action: &'static str,
        /// On what.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What "accepted" means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It survives the death of every process.
    Process,
    /// It survives a power cut too.
    #[default]
    Power,
}

impl Durability {
    /// The word that stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Power => "power",
        }
    }

    /// What a word stands for; one nobody knows for the stronger.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        if word == Self::Process.as_str() { Self::Process } else { Self::Power }
    }
}

/// The result of a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// Who wants to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant {
    /// The name that becomes the owner.
    pub name: String,
    /// What it can do: its role and capabilities.
    pub capabilities: Vec<String>,
    /// The worker whose life carries the claim; `lease:<name>` without one.
    pub worker: String,
    /// How long a claim without a process lives; `None` for a worker's.
    pub lease: Option<Duration>,
}

/// A file on the board that is not a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpoiledFile {
    /// Its name.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The board at one moment.
#[derive(Debug, Clone, Default)]
pub struct BoardView {
    /// Counts up whenever the store sees a change.
    pub revision: u64,
    /// The tasks by number.
    pub tasks: BTreeMap<TaskId, Arc<Task>>,
    /// Files that are no tasks.
    pub spoiled: Vec<SpoiledFile>,
    /// Tasks deleted on request whose references are still being pruned.
    pub deleted: BTreeSet<TaskId>,
}

impl TaskLookup for BoardView {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).map(Arc::as_ref)
    }
    fn was_deleted(&self, id: TaskId) -> bool {
        self.deleted.contains(&id)
    }
    fn is_spoiled(&self, id: TaskId) -> bool {
        self.spoiled.iter().any(|spoiled| TaskId::from_file_name(&spoiled.file) == Some(id))
    }
}

/// A claim that was taken away.
#[derive(Debug, Clone, PartialEq)]
pub struct Reclaimed {
    /// The task after it.
    pub task: Task,
    /// Who had it.
    pub owner: String,
    /// Why it was taken.
    pub reason: String,
}

/// The task board.
///
/// After a crash at any point each task is as before or as after the call, never between. With power durability this holds
/// for a power cut too, for [`Board::create`], [`Board::change`] and [`Board::delete`] once they returned; a claim may be lost.
/// What a change means for others (blockers pruned) is finished by the next open or call.
#[async_trait]
pub trait Board: Send + Sync {
    /// Puts tasks on the board, all or none, and gives each an id that was never used. Unknown blockers and cycles are refused.
    /// With `skip_known_sources`, one whose `source` is on the board already is left out, and its present task returned in its place.
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>>;

    /// The board as it is now.
    async fn view(&self) -> StoreResult<Arc<BoardView>>;

    /// One task as it is now.
    async fn get(&self, id: TaskId) -> StoreResult<Task>;

    /// Claims the best claimable task, if there is one: highest priority, then lowest number. Checks and takes under one lock.
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>>;

    /// Claims this task, or says what is in its way.
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task>;

    /// Changes a task by the rules of [`crate::domain::change`], and what hangs on it: a completed task is taken out of the
    /// others' blockers, a reopened one put back into those of its pending dependents.
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task>;

    /// Removes a task: its file, and its number from the others. The number is never used again.
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task>;

    /// Of these tasks, which are not on the board, those that [`Board::delete`] took away. It remembers the last some thousand.
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>>;

    /// Takes away the claims that `is_lost` names with a reason, and leases that have run out. `counts` says whether the loss
    /// counts as a failure of the task. Foreign tasks are never touched.
    async fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>>;
}

/// Which claims are to be taken away.
#[derive(Debug, Clone, Default)]
pub struct LostClaims {
    /// Workers that live; a claim of any other worker is lost. `None`: nothing is said about workers.
    pub live_workers: Option<HashSet<String>>,
    /// Single claims whose holder is gone though its worker lives: task and attempt.
    pub claims: Vec<(TaskId, u32)>,
    /// Claims by command whose lease is over by the clock alone, which jumped: they are kept.
    pub spared: Vec<(TaskId, u32)>,
    /// Whether the loss counts as a failure of the task: others of the team lived on.
    pub counts: bool,
    /// Why, for people.
    pub reason: String,
}

/// A message on its way to a transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// What a transcript names it by: the message's id, or file and offset for a foreign line.
    pub key: String,
    /// The message.
    pub message: Message,
}

/// The inboxes.
///
/// A message that [`Mailbox::send`] accepted is delivered exactly once: [`Mailbox::take`] hands it out again and again, also
/// after a crash, until [`Mailbox::settle`] is told that the transcript carries it.
#[async_trait]
pub trait Mailbox: Send + Sync {
    /// Puts a message into the inbox of `to`, gives it an id and returns that. Unknown recipients and full inboxes are errors.
    async fn send(&self, to: &str, message: Message) -> StoreResult<String>;

    /// Who can be written to besides `lead` and `human`. The first call of an opened store speaks for the team: whom an earlier
    /// run opened an inbox for and this one does not cannot be written to any more. Later calls add.
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()>;

    /// The mail of `name` that no transcript carries yet, in order; `delivered` are the keys its transcript has. Lines that are
    /// no messages are kept aside and named in a warning.
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>>;

    /// Says that the transcript of `name` carries these keys durably; what held them can go.
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()>;

    /// The mail that waits for `name`, without taking it: what was taken before under the key it is handed out with. After a
    /// restart that may be mail a transcript carries already: nothing but the transcript knows.
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>>;

    /// Whose inboxes have mail waiting, or mail that [`Mailbox::take`] has to look at. Cheap: nothing is read.
    async fn waiting(&self) -> StoreResult<Vec<String>>;
}

/// Requests that wait for an answer, such as a plan to approve. The mail that carries them is sent apart from this.
///
/// What [`Requests::open`] and [`Requests::answer`] recorded is there after a crash, and with power durability after a power
/// cut. Whoever delivers the mail of another program records its requests here too: recording one twice does no harm.
#[async_trait]
pub trait Requests: Send + Sync {
    /// Records a request under its id; one that is known is left as it is.
    async fn open(&self, request: Request) -> StoreResult<()>;

    /// Keeps others from answering it for a moment, so that who reserved it can send its answer and record it then. `process` answers
    /// in the name of `by`; it may reserve it again. Unknown, answered and others' requests are errors.
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request>;

    /// Records an answer in the name of `answer.by`, once: unknown, answered and others' requests are errors.
    async fn answer(&self, id: &str, kind: RequestKind, answer: Answer) -> StoreResult<Request>;

    /// Has somebody else answer a request than who was asked; `None` where it does not wait for an answer.
    async fn hand_on(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>>;

    /// Has a request be that of another attempt, and of who makes it; one that does not wait for an answer is left as it is.
    async fn adopt(&self, id: &str, kind: RequestKind, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()>;

    /// Takes back a request that nobody is to answer any more; unknown and answered ones are left as they are.
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()>;

    /// All requests that are remembered.
    async fn all(&self) -> StoreResult<RequestBook>;
}

/// The shared state file.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// The state, or `None` where there is no file. A torn file is read again until it is whole or has been the same broken
    /// bytes for a second; then those are kept beside it, and pause/pause is put in its place.
    async fn read(&self) -> StoreResult<Option<SharedState>>;

    /// Merges `update` into the file so that no outside writer's change is lost, and returns what the file says then. A change of
    /// the desired state, and a report that the team does something else, are written once this returns; other reports within a
    /// quarter of a second, the last one winning, also when the store is dropped before. What was reported is kept right: what an
    /// outside writer puts back is corrected within 100 ms.
    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState>;
}

/// The roster, `.team/config.json`, which other programs read and write too.
#[async_trait]
pub trait Roster: Send + Sync {
    /// Writes how these members stand; members and fields of others stay.
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()>;

    /// All members the roster names.
    async fn read(&self) -> StoreResult<Vec<RosterMember>>;
}

/// The event log of the run. It alone numbers events.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Appends facts, in this order, and returns them numbered. A fact is written once the call returns, but on a full disk: then
    /// it waits in memory, within bounds, and is written before any later one. A fact that is refused takes no number.
    /// The first append begins a run; only the process that leads appends.
    async fn append(&self, facts: Vec<Fact>) -> StoreResult<Vec<Event>>;
}

/// What model requests used, request by request.
///
/// Lines that [`Ledger::append`] took are there after the death of every process; a power cut may take the last of them.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// What all lines come to.
    async fn read(&self) -> StoreResult<Book>;

    /// Appends lines, in this order. Only one process at a time may: the one that leads, or one that keeps leads out.
    async fn append(&self, lines: Vec<LedgerLine>) -> StoreResult<()>;
}

/// Workers and their lives.
#[async_trait]
pub trait Workers: Send + Sync {
    /// This process's worker id.
    fn me(&self) -> &str;

    /// Replaces this worker's record.
    async fn report(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()>;

    /// Ends the process groups recorded by workers that are gone, tidies their records, and returns the workers that live.
    async fn survey(&self) -> StoreResult<Survey>;

    /// Of these workers, which the survey did not find, those whose process lives all the same: somebody removed what told of it.
    async fn unrecorded(&self, _ids: Vec<String>) -> StoreResult<HashSet<String>> {
        Ok(HashSet::new())
    }

    /// From now on no store of this process waits for a lock: the process is to end.
    fn stop_waiting(&self) {}

    /// Whether this process still leads its workspace. What tells others so is made anew where somebody removed it.
    async fn tenure(&self) -> StoreResult<Tenure> {
        Ok(Tenure::Held)
    }
}

/// How a lead stands in its workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenure {
    /// It leads.
    Held,
    /// It leads, and what tells others so was gone and was made anew.
    Renewed,
    /// Another process leads by now.
    Lost {
        /// Its team.
        team: String,
        /// Its number.
        pid: u32,
    },
    /// The workspace was removed or moved away.
    NoWorkspace,
}

/// Who lives.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Ids of the workers that live, this one among them.
    pub live: HashSet<String>,
    /// Records of workers found dead by this survey.
    pub dead: Vec<WorkerRecord>,
}

/// What changed, as a reason to look. A hint: the poll finds what a hint missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChange {
    /// Something on the board.
    Board,
    /// Mail for somebody.
    Mail(String),
    /// The shared state file.
    State,
    /// Hints were dropped: look at everything.
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
    /// The shared state.
    pub state: Arc<dyn StateStore>,
    /// The roster.
    pub roster: Arc<dyn Roster>,
    /// The event log.
    pub events: Arc<dyn EventLog>,
    /// What model requests used.
    pub ledger: Arc<dyn Ledger>,
    /// Workers.
    pub workers: Arc<dyn Workers>,
    /// Hints that something changed, from this and other processes.
    pub changes: tokio::sync::broadcast::Sender<StoreChange>,
}

/// The wall clock. Waiting goes by the runtime's time, which tests pause.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> UnixMs;
}
