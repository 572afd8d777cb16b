//! The errors of stores.

use std::fmt;

use super::{LeadHolder, MissingTask};
use crate::domain::task::TaskId;
use crate::domain::task::claim_queue::ClaimObstacle;
use crate::domain::task::task_error::TaskError;
use crate::domain::team::approval::RequestError;
use crate::domain::text::system_error;

/// The result of a call to a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// The reason why a store refused or failed a call. Such a call has no effect, with one exception: after a failed
/// [`IoAction::Sync`] the data is written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The change breaks a rule.
    #[error(transparent)]
    Refused(#[from] TaskError),
    /// The task cannot be claimed.
    #[error("cannot claim task {id}: {obstacle}")]
    NotClaimable {
        /// The task.
        id: TaskId,
        /// The reason.
        obstacle: ClaimObstacle,
    },
    /// The request is unknown or cannot be answered this way.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The task does not exist.
    #[error("{0}")]
    NoTask(MissingTask),
    /// The task was written by another program and is not valid. It is left unchanged.
    #[error("task {id} is invalid: {reason}")]
    InvalidTask {
        /// The task.
        id: TaskId,
        /// The reason.
        reason: String,
    },
    /// A blocker does not exist.
    #[error("task {task} cannot wait for {blocker}: there is no such task")]
    UnknownBlocker {
        /// The dependent task; 0 for a new one.
        task: TaskId,
        /// The blocker.
        blocker: TaskId,
    },
    /// The values are not allowed on the board.
    #[error("{0}")]
    Invalid(String),
    /// Nothing new may be claimed for this reason, such as a full disk.
    #[error("the team claims no new tasks: {0}")]
    ClaimsPaused(String),
    /// The dependencies would form this cycle.
    #[error("cannot make the change: the dependencies would form a cycle: {}", .0.iter().chain(.0.first()).map(ToString::to_string).collect::<Vec<_>>().join(" -> "))]
    Cycle(Vec<TaskId>),
    /// No inbox has this name.
    #[error("cannot find an inbox for `{name}`: there are inboxes for {}", .recipients.join(", "))]
    UnknownRecipient {
        /// The given name.
        name: String,
        /// The names of all inboxes.
        recipients: Vec<String>,
    },
    /// The inbox is full.
    #[error("the inbox of {name} is full ({bytes} of at most {bytes_max} bytes); try again after it was read")]
    InboxFull {
        /// Name of its member.
        name: String,
        /// Its size.
        bytes: u64,
        /// Its limit.
        bytes_max: u64,
    },
    /// A value is too large.
    #[error("{what} has {bytes} bytes; at most {bytes_max} are allowed")]
    TooLarge {
        /// The value, in words.
        what: String,
        /// Its size.
        bytes: usize,
        /// Its limit.
        bytes_max: usize,
    },
    /// The data was written by a newer Brigade.
    #[error("{place} has format {version}, but this Brigade supports formats up to {version_max}: use a newer version")]
    NewerFormat {
        /// The place of the data.
        place: String,
        /// Its format version.
        version: u64,
        /// The newest supported version.
        version_max: u64,
    },
    /// Another team runs in the workspace.
    #[error("team `{}` ({}) already runs in this workspace", .0.team, .0.process)]
    AlreadyLed(LeadHolder),
    /// The system that holds the data failed, or the data cannot be used.
    #[error("cannot {action} {place}: {}", system_error::reason(source))]
    Io {
        /// The attempted action.
        action: IoAction,
        /// The place of the data, as people find it.
        place: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The action of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoAction {
    /// Making written data survive a power cut.
    Sync,
    /// Getting exclusive access to the data. `TimedOut` if another process kept it for too long.
    Lock,
    /// Any other action, as a verb for people: "read", "write".
    Other(&'static str),
}

impl From<&'static str> for IoAction {
    fn from(verb: &'static str) -> Self {
        Self::Other(verb)
    }
}

impl fmt::Display for IoAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sync => "sync",
            Self::Lock => "lock",
            Self::Other(verb) => verb,
        })
    }
}
