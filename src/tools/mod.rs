//! The tools of models: one file and one line in [`table::TOOLS`] each.
//!
//! A tool is a struct of its arguments ([`TypedTool`]). It gets a [`ToolContext`]. It reaches files through the workspace, board
//! and mail through the ports, and commands through the guard. It does not know turns or models.

#![warn(missing_docs)]

mod adapter;
// Public for `brigade mcp` and fuzz targets only.
#[doc(hidden)]
pub mod arguments;
mod ask;
mod bash;
mod broadcast;
mod claim_task;
pub(crate) mod command_hints;
mod delete_file;
mod edit_file;
mod glob;
mod grep;
mod idle;
mod ignored;
mod lead_tools;
mod plan_approval;
mod read_file;
mod read_inbox;
mod review;
mod send_message;
mod shutdown;
pub mod table;
mod task_create;
pub(crate) mod task_get;
pub(crate) mod task_list;
mod task_update;
mod todo;
mod walk;
mod workspace;
mod write_file;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::domain::agent::access::PathRule;
use crate::domain::agent::path_pattern;
use crate::domain::agent::permission::{PermissionCall, PermissionDecision, Permissions};
use crate::domain::task::failure_summary;
use crate::domain::task::task_error::TaskError;
use crate::domain::task::transition::Actor;
use crate::domain::team::member_place::ReadOnly;
use crate::domain::team::name::Name;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::RosterMember;
use crate::domain::team::team_spec::ToolLimits;
use crate::ports::{Clock, StoreError, Stores, ToolSpec, WorkInspector};
use crate::process::CommandError;
use crate::process::command::{CommandContext, CommandOutcome, CommandRegistry};
use crate::sandbox::Sandbox;
use crate::service::attempt_log::AttemptLog;
use crate::service::attempt_quota::{AttemptLimit, AttemptQuota};
use crate::service::completion::{CompletionGate, WorkPlace};
use crate::service::merge::TaskWorktree;
use crate::service::messages::{Outbox, SendError, Sender};
use crate::service::setup::PORT_VARIABLE;
use crate::service::verify::Verifier;
use crate::service::{RecordEvent, ServiceError};

use workspace::{FileAccess, OpenRoot};

pub(crate) use adapter::sanitized_text;
pub use adapter::{TypedTool, typed};
pub use write_file::{WRITE_TOOL, file_text};

/// The names that every tool needs.
mod prelude {
    pub(super) use schemars::JsonSchema;
    pub(super) use serde::Deserialize;

    pub(super) use super::adapter::TypedTool;
    pub(super) use super::arguments::{check_not_empty, check_size};
    pub(super) use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
}

/// A function that a model can call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Name, description and schema, as the model reads them.
    fn spec(&self) -> ToolSpec;

    /// Describes a call with this input in one line for people: the command, the path.
    fn about(&self, input: &Value) -> String;

    /// Runs the tool. Dropping the future ends all that it started.
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// Wraps `tool`, so that its output is bounded and escaped like that of Brigade's own tools.
pub fn sanitized(tool: Arc<dyn Tool>) -> Arc<dyn Tool> {
    Arc::new(adapter::SanitizedTool(tool))
}

/// The result of a tool call that succeeded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolOutput {
    /// The text for the model, within its bound.
    pub text: String,
    /// The action of the harness after the call.
    pub effect: ToolEffect,
}

impl ToolOutput {
    /// Output without an effect.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), effect: ToolEffect::None }
    }
}

/// The action of the harness after a tool call. The text goes to the model in any case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolEffect {
    /// No action.
    #[default]
    None,
    /// No action: a call that changes a file left it as it was.
    FileUnchanged,
    /// A sub-agent answers this question. Its answer is the output of the call.
    Ask {
        /// The question.
        question: String,
    },
    /// The teammate has no more work: ends its WORK phase.
    Idle,
    /// The teammate now holds this task.
    Claimed(ClaimRef),
    /// The teammate no longer holds its task: it is completed, failed or released.
    Finished,
    /// The teammate agreed to stop.
    Stop,
    /// The lead reports that the goal is met.
    GoalDone {
        /// The result, with evidence.
        summary: String,
    },
}

/// The error of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The model can correct it: it gets the text as an error result.
    #[error("{0}")]
    Recoverable(String),
    /// A command of the model failed. The model gets its report.
    #[error("{}", .0.report())]
    CommandFailed(CommandOutcome),
    /// The teammate no longer holds its task: no further tool runs.
    #[error("{0}")]
    ClaimLost(String),
    /// Ends the turn.
    #[error("{0}")]
    Fatal(String),
}

impl ToolError {
    /// The error in one line, for others than the caller.
    pub fn headline(&self) -> String {
        match self {
            Self::CommandFailed(outcome) => outcome.headline(),
            Self::Recoverable(text) | Self::ClaimLost(text) | Self::Fatal(text) => {
                failure_summary::first_sentence(text)
            }
        }
    }
}

impl From<StoreError> for ToolError {
    /// A stale attempt is a lost claim. An error of the system ends the turn. The model can correct every other one.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(TaskError::Stale { .. }) => Self::ClaimLost(error.to_string()),
            StoreError::Io { .. } | StoreError::NewerFormat { .. } | StoreError::AlreadyLed { .. } => {
                Self::Fatal(error.to_string())
            }
            _ => Self::Recoverable(error.to_string()),
        }
    }
}

impl From<CommandError> for ToolError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Refused(text) => Self::Recoverable(text),
            CommandError::ClaimLost(text) => Self::ClaimLost(text),
            CommandError::Failed(text) => Self::Fatal(text),
        }
    }
}

impl From<ServiceError> for ToolError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Store(error) => error.into(),
            ServiceError::Refused(text) => Self::Recoverable(text),
            ServiceError::Command(error) => error.into(),
            ServiceError::Repository(error) => Self::Fatal(error.to_string()),
        }
    }
}

impl From<AttemptLimit> for ToolError {
    fn from(limit: AttemptLimit) -> Self {
        Self::Recoverable(limit.to_string())
    }
}

impl From<SendError> for ToolError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Store(error) => error.into(),
            SendError::ToSelf | SendError::NoInbox { .. } => Self::Recoverable(error.to_string()),
        }
    }
}

/// The lead's control over teammates. The team implements it.
#[async_trait]
pub trait TeamControl: Send + Sync {
    /// Starts a new or stopped teammate with this role and these instructions. The error has the reason, for the lead.
    async fn spawn_teammate(&self, name: &Name, role: &str, prompt: &str) -> Result<String, String>;

    /// Lists the status of each teammate, as text for the lead.
    async fn list_teammates(&self) -> String;

    /// The names that accept mail.
    fn members(&self) -> Vec<Name>;

    /// Returns true if the lead has a model that decides. For a `runbook` lead, the person decides.
    fn lead_has_model(&self) -> bool;

    /// Selects the reviewer of `author`'s work: another member with a model and the role or capability `required`, idle ones
    /// first. Without such a member it is the lead, or the person if the lead is `runbook`.
    fn reviewer(&self, author: &Name, required: &str) -> String;
}

/// The member that calls a tool.
#[derive(Debug)]
pub struct Caller {
    /// Its name.
    pub name: Name,
    /// Its role and its configured capabilities.
    pub capabilities: Vec<String>,
    /// The team's name.
    pub team: Name,
    /// True if it is the lead.
    pub is_lead: bool,
    /// The claim that it holds now.
    pub claim: watch::Receiver<Option<ClaimRef>>,
    /// The list that the tool `todo` keeps for it.
    pub todos: Arc<Mutex<String>>,
    /// Records what its agent does in its attempt.
    pub attempt_log: AttemptLog,
    /// Its rules. Search tools leave out the files that it may not read.
    pub permissions: Permissions,
    /// Limits what its agent leaves in its attempt.
    pub attempt_quota: AttemptQuota,
}

/// The folder in which file tools and commands work, and what they may not do there.
#[derive(Clone)]
pub struct WorkingDir {
    /// The folder, absolute: the workspace, or the task's worktree.
    pub root: PathBuf,
    /// Control files and folders: no file tool reads or writes them. Absolute or relative to `root`.
    pub control_files: Arc<[PathBuf]>,
    /// Rules for the paths of commands, in addition to those of the sandbox.
    pub boundaries: Arc<[PathRule]>,
    /// The worktree of the caller's task, in a team with isolation. `root` is its folder.
    pub task_worktree: Option<Arc<TaskWorktree>>,
    /// The first port of the folder, in a team with isolation.
    pub port_base: Option<u16>,
    /// The reason why the caller can write no file, neither with a tool nor by a command.
    pub read_only: Option<ReadOnly>,
}

impl WorkingDir {
    /// Creates the folder without rules of its own.
    pub fn new(root: PathBuf, control_files: Arc<[PathBuf]>) -> Self {
        Self { root, control_files, boundaries: Arc::default(), task_worktree: None, port_base: None, read_only: None }
    }
}

/// All that a tool can use.
pub struct ToolContext {
    /// The member that calls the tool.
    pub caller: Caller,
    /// The caller's folder.
    pub working_dir: WorkingDir,
    /// The confinement of commands.
    pub sandbox: Sandbox,
    /// Records the process groups of running commands.
    pub registry: Arc<dyn CommandRegistry>,
    /// The limits of commands and of tool output.
    pub limits: ToolLimits,
    /// The board, the mailbox and the other stores.
    pub stores: Stores,
    /// Finds work that is not merged, in a team with isolation.
    pub work_inspector: Option<Arc<dyn WorkInspector>>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The reviewer that completions need: a role, a capability, `lead` or `human`. Without it there is no review.
    pub review: Option<Arc<str>>,
    /// The lead's control over teammates.
    pub team_control: Arc<dyn TeamControl>,
    /// Records an event of the tool itself, such as a message that it sent.
    pub events: RecordEvent,
}

impl ToolContext {
    /// Returns the gate for completions of the caller, as `by`, in its folder.
    pub fn completion_gate(&self, by: Actor) -> CompletionGate<'_> {
        CompletionGate {
            stores: &self.stores,
            clock: self.clock.as_ref(),
            by,
            verifier: Verifier {
                context: self.command_context(),
                timeout: self.limits.command_timeout,
                events: Arc::clone(&self.events),
            },
            place: match &self.working_dir.task_worktree {
                Some(worktree) => WorkPlace::Worktree(worktree),
                None => WorkPlace::Workspace,
            },
            reviewer: self.review.as_deref().map(|required| self.team_control.reviewer(&self.caller.name, required)),
            refusals: Some(&self.caller.attempt_log),
        }
    }

    /// Records that the caller changed a file or ran a command.
    fn record_work(&self) {
        if let Some(claim) = *self.caller.claim.borrow() {
            self.caller.attempt_log.record_work(claim);
        }
    }

    /// Counts a task that the caller is about to create.
    ///
    /// # Errors
    /// Its attempt has created too many.
    fn count_task(&self) -> Result<(), ToolError> {
        Ok(self.caller.attempt_quota.add_task(*self.caller.claim.borrow())?)
    }

    /// Counts a message that the caller is about to send.
    ///
    /// # Errors
    /// Its attempt has sent too many.
    fn count_message(&self) -> Result<(), ToolError> {
        Ok(self.caller.attempt_quota.add_message(*self.caller.claim.borrow())?)
    }

    /// Returns the outbox of the caller's messages.
    pub fn outbox(&self) -> Outbox<'_> {
        Outbox { stores: &self.stores, now: self.clock.now(), events: Some(Arc::clone(&self.events)) }
    }

    /// Returns the caller, as it sends messages.
    pub fn sender(&self) -> Sender<'_> {
        let Caller { name, is_lead, .. } = &self.caller;
        Sender { name, is_lead: *is_lead, members: self.team_control.members() }
    }

    /// Returns the agents of other programs in the roster. They can get mail.
    ///
    /// # Errors
    /// The roster cannot be read.
    pub async fn outside_agents(&self) -> Result<Vec<RosterMember>, ToolError> {
        let members = self.team_control.members();
        let mut agents = self.stores.roster.read().await?;
        agents.retain(|agent| {
            let is_valid = Name::new(&agent.name).is_ok_and(|name| !name.is_reserved());
            agent.is_outside() && is_valid && !members.iter().any(|member| member.is_same(&agent.name))
        });
        Ok(agents)
    }

    /// Decides about a call by the rules of the caller. Those about a file hold for each way to write its path, and for links to it.
    pub async fn decide(&self, call: &PermissionCall) -> PermissionDecision {
        let permissions = &self.caller.permissions;
        if !(call.is_about_path() && permissions.has_rules()) {
            return permissions.decide(call);
        }
        let folder = self.working_dir.root.to_string_lossy();
        // Some programs remove `..` before they follow links, others after it.
        let paths = [call.subject.clone(), path_pattern::normalised(&call.subject, &folder)];
        let real_paths = move |workspace: &OpenRoot| {
            let real_paths = paths.iter().filter_map(|path| workspace.real_path_for_rules(path));
            Ok(real_paths.map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>())
        };
        let real_paths = FileAccess::of(self).run_blocking(real_paths).await.unwrap_or_default();
        permissions.decide_path(call, &real_paths, &folder)
    }

    /// Returns true if the search tool of another program could show files that the rules hide: some are below the call's path.
    pub async fn search_would_show_hidden(&self, call: &PermissionCall) -> bool {
        let path = call.subject.clone();
        let access = FileAccess::of_search(self, &call.tool);
        access.run_blocking(move |workspace| Ok(walk::has_hidden_below(workspace, &path))).await.unwrap_or(true)
    }

    /// Returns the path below the caller's folder to which `path` leads, without links.
    ///
    /// # Errors
    /// As for file tools: it leads out of the folder or to a control file, or the caller may not write files.
    pub async fn real_path_to_write(&self, path: &str) -> Result<PathBuf, ToolError> {
        let path = path.to_owned();
        FileAccess::of(self).run_blocking(move |workspace| workspace.resolve_to_write(&path)).await
    }

    /// Returns the context of the caller's commands.
    pub fn command_context(&self) -> CommandContext {
        let worktree = self.working_dir.task_worktree.as_ref();
        let port = self.working_dir.port_base.map(|port| (PORT_VARIABLE, port.to_string()));
        let git = worktree.map(|worktree| worktree.variables()).unwrap_or_default();
        CommandContext {
            working_dir: self.working_dir.root.clone(),
            sandbox: self.sandbox.clone(),
            rules: self.working_dir.boundaries.to_vec(),
            registry: Arc::clone(&self.registry),
            output_bytes_max: self.limits.output_bytes_max,
            team: self.caller.team.to_string(),
            teammate: self.caller.name.to_string(),
            claim: self.caller.claim.clone(),
            confined_only_reason: self
                .working_dir
                .read_only
                .filter(|reason| *reason == ReadOnly::NoPlan)
                .map(ReadOnly::explanation),
            variables: git.into_iter().chain(port).map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}
