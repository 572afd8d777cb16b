//! The tools a model may ask for: one file each, one line in the table each.
//!
//! A tool gets its arguments and a [`ToolContext`]; it reaches files through the workspace, the board and mail through the
//! ports, and commands through the guard. It knows nothing of turns or models.

pub mod answers;
// Not for other programs: fuzz targets reach it.
#[doc(hidden)]
pub mod arguments;
mod bash;
mod broadcast;
mod checked;
mod claim_task;
pub mod command;
pub mod deliver;
mod edit_file;
mod glob;
mod grep;
mod idle;
mod ignored;
mod mail;
pub mod output;
mod plan_approval;
mod read_file;
mod read_inbox;
pub mod review;
mod send_message;
mod shutdown;
pub mod table;
mod task_create;
mod task_get;
mod task_list;
mod task_update;
mod team;
mod todo;
mod verify;
mod walk;
mod workspace;
mod write_file;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;

use crate::domain::access::PathRule;
use crate::domain::event::Fact;
use crate::domain::name::Name;
use crate::domain::reason;
use crate::domain::record::RunningCommand;
use crate::domain::refusal::Refusal;
use crate::domain::task::TaskId;
use crate::ports::{Clock, StoreError, StoreResult, Stores, ToolSpec};
use crate::sandbox::Sandbox;
pub use deliver::Lodging;

/// Something a model may ask for.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What the model is told of it.
    fn spec(&self) -> ToolSpec;

    /// One line for people about a call with this input: the command, the path.
    fn about(&self, input: &Value) -> String;

    /// Does it. Dropping the future ends what it started.
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// `tool` with all it says bounded and defused, as Brigade's own tools say it.
#[must_use]
pub fn guarded(tool: Arc<dyn Tool>) -> Arc<dyn Tool> {
    Arc::new(checked::Guarded(tool))
}

/// What a tool gives back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolOutput {
    /// What the model reads; already within its bound.
    pub text: String,
    /// What the harness does about it.
    pub effect: ToolEffect,
}

impl ToolOutput {
    /// Output that asks nothing of the harness.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), effect: ToolEffect::None }
    }
}

/// What the harness does after a tool, besides handing on its text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolEffect {
    /// Nothing.
    #[default]
    None,
    /// The teammate has no more work: its WORK phase ends.
    Idle,
    /// The teammate holds this task now.
    Claimed {
        /// The task.
        task: TaskId,
        /// Its attempt.
        attempt: u32,
    },
    /// The teammate no longer holds its task: completed, failed or released.
    Finished,
    /// The teammate agreed to stop.
    Stop,
    /// The lead says the goal is met.
    GoalDone {
        /// What was reached.
        summary: String,
    },
}

/// Why a tool did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The model can mend it: it reads the text as an error result.
    #[error("{0}")]
    Mendable(String),
    /// The teammate no longer holds its task: no further tool is called.
    #[error("{0}")]
    ClaimLost(String),
    /// The turn ends.
    #[error("{0}")]
    Fatal(String),
}

impl ToolError {
    /// Why, in a bounded line.
    #[must_use]
    pub fn headline(&self) -> String {
        reason::for_others(&self.to_string())
    }
}

impl From<StoreError> for ToolError {
    /// A stale attempt is a lost claim; what the system refused ends the turn; everything else can be mended.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(Refusal::Stale { .. }) => Self::ClaimLost(error.to_string()),
            StoreError::Io { .. } | StoreError::NewerFormat { .. } | StoreError::Occupied { .. } => {
                Self::Fatal(error.to_string())
            }
            _ => Self::Mendable(error.to_string()),
        }
    }
}

/// What a lead may do with teammates; the team implements it.
#[async_trait]
pub trait TeamControl: Send + Sync {
    /// Starts a teammate, or a stopped one again, under this role with these instructions. The error says why not.
    async fn spawn_teammate(&self, name: &Name, role: &str, prompt: &str) -> Result<String, String>;

    /// How each teammate stands, as text for the lead.
    async fn list_teammates(&self) -> String;

    /// Whom mail can be sent to.
    fn members(&self) -> Vec<Name>;

    /// Whether the lead has a model that decides; where it goes by rule, decisions are the person's.
    fn lead_thinks(&self) -> bool;

    /// Who is to review what `author` did, of those who can do `what`: another member whose model thinks, one that waits for work
    /// first. Where there is none it is the lead, or the person where that goes by rule.
    fn reviewer(&self, author: &Name, what: &str) -> String;
}

/// The limits a tool keeps.
#[derive(Debug, Clone)]
pub struct ToolLimits {
    /// How long a command may run unless the call says otherwise.
    pub command_timeout: Duration,
    /// The longest a call may ask for.
    pub command_timeout_max: Duration,
    /// The most output in bytes.
    pub output_bytes_max: usize,
}

/// Everything a tool may reach.
pub struct ToolContext {
    /// Who calls.
    pub name: Name,
    /// Its role.
    pub role: String,
    /// All it can do.
    pub capabilities: Vec<String>,
    /// Its team.
    pub team: Name,
    /// Whether the caller is the lead.
    pub is_lead: bool,
    /// The task it holds and the attempt, as of now.
    pub holding: watch::Receiver<Option<(TaskId, u32)>>,
    /// The stores.
    pub stores: Stores,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The workspace's root folder, absolute.
    pub workspace: PathBuf,
    /// Files and folders, absolute or relative to the workspace, that no tool may write.
    pub control_files: Arc<[PathBuf]>,
    /// Rules for the paths of commands besides those of the sandbox.
    pub boundaries: Arc<[PathRule]>,
    /// Whether no model decides what the caller does: what it reports is what commands printed, not words about them.
    pub goes_by_rule: bool,
    /// Where tasks have worktrees of their own: the one the caller works in, whose root `workspace` is then.
    pub lodging: Option<Arc<Lodging>>,
    /// Why the caller may write no file and change nothing by a command, where that is so.
    pub read_only: Option<ReadOnly>,
    /// Who reviews what is done before it is completed: a role, a capability, `lead`, `human`; nobody without it.
    pub review: Option<Arc<str>>,
    /// What confines commands.
    pub sandbox: Sandbox,
    /// Where the process groups of running commands are recorded.
    pub commands: Arc<dyn CommandRegistry>,
    /// The limits.
    pub limits: ToolLimits,
    /// What the lead may do with teammates.
    pub control: Arc<dyn TeamControl>,
    /// Where facts go that are not the harness's own, such as a message that was sent.
    pub facts: Arc<dyn Fn(Fact) + Send + Sync>,
    /// The teammate's list of things to do; `todo` keeps it.
    pub todos: Arc<Mutex<String>>,
}

/// Why a member may write nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// Each task has a worktree of its own, and it holds no task.
    NoTask,
    /// Its plan for what it holds was not approved yet.
    NoPlan,
}

impl ReadOnly {
    /// The same, for a model that tried.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::NoTask => "each task has a worktree of its own, and files are written in one alone: claim a task",
            Self::NoPlan => {
                "the workspace is read-only until your plan is approved: claim a task, look, hand in a plan with plan_approval, and end your turn"
            }
        }
    }
}

/// Where running commands are recorded, so that whoever takes over a lost claim can end them first.
#[async_trait]
pub trait CommandRegistry: Send + Sync {
    /// Records that this command runs for the caller; returns once the record is written. The command starts after that.
    async fn started(&self, command: RunningCommand) -> StoreResult<()>;

    /// Records that it has ended, and all it had started.
    async fn ended(&self, command: RunningCommand);
}
