//! Commands and programs under the guard. See [`crate::sandbox`] for how they are confined.
//!
//! | what runs | module |
//! |---|---|
//! | one command: for the tool `bash`, a task's `verify` or a team's `done_when` | `command` |
//! | the program of an external agent, with which Brigade exchanges lines | `agent_process` |
//! | the socket on which programs in a member's sandbox reach the board | `board_socket` |

#![warn(missing_docs)]

pub mod agent_process;
pub mod board_socket;
pub mod command;
mod guarded_process;

use crate::domain::task::failure_summary;

/// The reason why a command or a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It cannot be started as it is. The caller can correct it.
    #[error("{0}")]
    Refused(String),
    /// The caller no longer holds the task for which it ran.
    #[error("{0}")]
    ClaimLost(String),
    /// The system failed, or the process cannot be recorded. The caller cannot correct this.
    #[error("{0}")]
    Failed(String),
}

impl CommandError {
    /// The error in one line, without advice.
    pub fn headline(&self) -> String {
        failure_summary::first_sentence(&self.to_string())
    }
}
