//! Use cases, each written once: complete a task, send a message, request and answer approvals, list what waits for the person, import
//! a plan, run a command. Tools, agents, the lead and commands of the command line call them. They know ports and domain, and run commands in the sandbox.

#![warn(missing_docs)]

use std::sync::Arc;

use crate::domain::event::EventKind;
use crate::domain::failure_summary;
use crate::domain::task_error::TaskError;
use crate::ports::{RepositoryError, StoreError};

pub mod approvals;
pub mod command;
pub mod completion;
pub mod merge;
pub mod messages;
pub mod pending;
pub mod plan_import;
pub mod review;
pub mod step;
pub mod verify;
pub mod workers;

/// Records an event.
pub type RecordEvent = Arc<dyn Fn(EventKind) + Send + Sync>;

/// The reason why a use case was not done.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller can correct it.
    #[error("{0}")]
    Refused(String),
    /// The caller no longer holds its task.
    #[error("{0}")]
    ClaimLost(String),
    /// A part that the caller cannot correct failed: git, or the system.
    #[error("{0}")]
    Failed(String),
}

impl ServiceError {
    /// The error in one bounded line.
    #[must_use]
    pub fn headline(&self) -> String {
        failure_summary::headline(&self.to_string())
    }
}

impl From<TaskError> for ServiceError {
    fn from(error: TaskError) -> Self {
        Self::Store(error.into())
    }
}

impl From<RepositoryError> for ServiceError {
    fn from(error: RepositoryError) -> Self {
        Self::Failed(error.to_string())
    }
}
