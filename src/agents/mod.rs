//! Agents do the work of members. Each kind of agent is one implementation of [`AgentBackend`].
//!
//! The loop of a teammate claims tasks, reads mail, manages the worktree and the transcript, and decides what follows from a
//! [`TurnOutcome`]. It does not depend on the kind of agent. An agent reaches its member and the team through its [`AgentHost`].

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::task::Task;
use crate::domain::team::account::Account;
use crate::domain::team::phase::{IllegalTransition, PhaseEvent};
use crate::domain::time::UnixMs;
use crate::ports::StoreError;
use crate::run::budget::BudgetSpent;
use crate::tools::ToolError;

pub mod builtin;
mod completion;
mod context_content;
pub mod conversation;
pub mod external;
pub mod host;
mod identity;
pub mod isolation;
pub mod mail;
mod message_list;
pub mod permissions;
mod prompt_tracker;
pub mod runbook;
pub mod services;
pub mod task_start;
pub mod token_estimate;
mod tokenizer;
mod transcript_writer;
pub mod turn_control;
mod working_dir;
pub mod worktree;
mod worktree_reporter;

pub use external::ExternalAgent;
pub use host::AgentHost;
pub use services::{AgentServices, WorkspaceAccess};

/// Does the work of one member on its task or its mail.
///
/// A member that must end at once is dropped with its backend, at any await point. State that must survive is on the board or in the
/// transcript.
#[async_trait]
pub trait AgentBackend: Send + Sync {
    /// Prepares for a task that the member has just claimed. After this call the task's description is added to the transcript.
    ///
    /// # Errors
    /// The transcript cannot be written.
    async fn begin_task(&mut self, _task: &Task, _host: &mut AgentHost) -> Result<(), AgentError> {
        Ok(())
    }

    /// Does one turn: the smallest part of the work that ends in a state that can be recorded. It obeys the host's turn control.
    /// Mail is read and stop requests are obeyed between two turns. An agent that ends its work on a task only says so
    /// ([`PhaseEvent::WorkEnded`]): the loop decides whether that completes the task.
    ///
    /// # Errors
    /// A store fails. The member ends, and the lead restarts it.
    async fn turn(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError>;

    /// Shortens the agent's context on a person's request.
    ///
    /// # Errors
    /// The transcript cannot be written.
    async fn compact(&mut self, host: &mut AgentHost) -> Result<CompactionOutcome, AgentError>;
}

/// The result of a requested compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompactionOutcome {
    /// The context is shorter.
    Compacted,
    /// The context stays as it is, for this reason.
    Kept(String),
}

/// The reason why an agent cannot continue. Its member ends, and the lead restarts it, up to a limit.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A store failed, and continuing would lose data.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The phase machine refused an event.
    #[error(transparent)]
    IllegalTransition(#[from] IllegalTransition),
}

/// The kind of a model failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFailureKind {
    /// It may end by itself.
    Temporary {
        /// The wait that the provider asked for.
        retry_after: Option<Duration>,
    },
    /// The quota of this account is used up until this time. This is no outage.
    Quota {
        /// The account.
        account: Account,
        /// The end of the quota window.
        until: UnixMs,
    },
    /// The server, the key or the model in the settings is wrong.
    WrongSetting,
    /// Another request cannot help.
    Permanent,
}

/// The result of a turn or of reading the inbox.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnOutcome {
    /// An event of the phase machine.
    Event(PhaseEvent),
    /// The model could not be reached.
    ModelFailed {
        /// The provider's error.
        reason: String,
        /// The kind of the failure.
        kind: ModelFailureKind,
    },
    /// A tool failed for a reason outside the task and the model: a store or the workspace.
    HarnessFailed(String),
    /// The harness stopped the agent, for this reason. The agent repeats itself, the length limit cut off several answers in a row, or the
    /// context cannot be made short enough for the model.
    AttemptFailed(String),
    /// The agent passed a limit of its attempt, its program keeps ending, or the answers of its model cannot be read. The attempt has
    /// failed, for this reason.
    AgentFailed(String),
    /// The budget of the team or the member, or the cap of the task, does not allow the next request.
    BudgetSpent(BudgetSpent),
    /// The agent's program ended by itself. The next turn continues its session.
    AgentEnded {
        /// The program and its last words, for people.
        reason: String,
        /// True if it made a model request and no tool call ended: it used money and brought nothing.
        is_fruitless: bool,
    },
    /// The turn was aborted by the turn control.
    Aborted,
    /// The lead requested a shutdown.
    ShutdownRequested {
        /// The request's id.
        request_id: String,
    },
    /// The lead's model reports that the goal is met.
    GoalDone(String),
}

impl TurnOutcome {
    /// Returns the outcome of a failed call; `None` if the agent can correct it.
    pub fn of_error(error: &ToolError) -> Option<Self> {
        match error {
            ToolError::Recoverable(_) | ToolError::CommandFailed(_) => None,
            ToolError::ClaimLost(_) => Some(Self::Event(PhaseEvent::ClaimLost)),
            ToolError::Fatal(text) => Some(Self::HarnessFailed(text.clone())),
        }
    }
}
