//! Use cases, each written once. Tools, agents, the lead and the commands of the command line call them.
//!
//! | use case | module |
//! |---|---|
//! | complete a task: commit, review, verify and merge | `completion`, `review`, `verify`, `merge` |
//! | record what an agent did in its attempt, and limit it | `attempt_log`, `attempt_quota` |
//! | send a message | `messages` |
//! | request and answer approvals, list what waits for the person | `approvals`, `pending` |
//! | add a task, import a plan | `task_creation`, `plan_import` |
//! | set up a worktree | `setup` |
//! | record the steps of a member | `step` |
//! | claim a task by command, reclaim the tasks of a team that ended | `claims` |
//! | end the commands of dead workers | `workers` |
//!
//! These modules know ports and domain, and run commands through [`crate::process`].

#![warn(missing_docs)]

use std::sync::Arc;

use crate::domain::log::event::EventKind;
use crate::domain::task::failure_summary;
use crate::domain::task::task_error::TaskError;
use crate::ports::{RepositoryError, StoreError};
use crate::process::CommandError;

pub mod attempt_log;
pub mod attempt_quota;
pub mod claims;
pub mod completion;
pub mod merge;
pub mod messages;
pub mod pending;
pub mod plan_import;
pub mod request_mail;
pub mod review;
pub mod setup;
pub mod step;
pub mod task_creation;
pub mod verify;
pub mod workers;

/// A function that records an event.
pub type RecordEvent = Arc<dyn Fn(EventKind) + Send + Sync>;

/// The reason why a use case was not done.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The use case refused the request. The caller can correct it.
    #[error("{0}")]
    Refused(String),
    /// A command was not run, or the caller no longer holds its task.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Git failed. The caller cannot correct this.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

impl ServiceError {
    /// The error in one line, without advice.
    pub fn headline(&self) -> String {
        failure_summary::first_sentence(&self.to_string())
    }
}

impl From<TaskError> for ServiceError {
    fn from(error: TaskError) -> Self {
        Self::Store(error.into())
    }
}
