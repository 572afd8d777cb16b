//! The questions that a front end can ask about a workspace, as data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request_kind::RequestKind;
use crate::domain::task::TaskId;

/// A question about a workspace. An argument that is `None` is open where the question needs it: the person chooses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "question", rename_all = "snake_case")]
pub enum Question {
    /// The reasons for the state of a task.
    Why {
        /// The task.
        task: Option<TaskId>,
    },
    /// The board.
    Tasks,
    /// One task in full.
    Task {
        /// The task.
        task: TaskId,
    },
    /// The changes of a task's work.
    Diff {
        /// The task.
        task: TaskId,
    },
    /// The team and its members.
    Team,
    /// The events of the newest run.
    Log {
        /// Only the events of this task.
        task: Option<TaskId>,
    },
    /// The runs in the event log.
    Runs,
    /// The unread mail of the person.
    Inbox,
    /// The usage of each member, and the budgets.
    Cost,
    /// The settings, each with its value and source.
    Config,
    /// The checks of the workspace, its models and its servers.
    Doctor,
    /// The old files, branches and worktrees.
    Leftovers,
    /// The requests of a kind that wait for an answer.
    Requests {
        /// The kind.
        #[schemars(with = "String")]
        kind: RequestKind,
    },
    /// One request in full.
    Request {
        /// Its kind.
        #[schemars(with = "String")]
        kind: RequestKind,
        /// Its id; `None` for the only one that waits.
        id: Option<String>,
    },
}
