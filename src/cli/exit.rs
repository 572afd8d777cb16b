//! The exit codes, in one place.

use std::process::ExitCode;

/// How a command ends, as the shell sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what it was asked.
    Done = 0,
    /// Tasks failed or are left blocked; or what was asked was refused.
    Unfinished = 1,
    /// It was asked in a way it does not understand, or the config is wrong.
    Usage = 2,
    /// The budget is spent.
    BudgetSpent = 3,
    /// Another team holds the workspace.
    Occupied = 4,
    /// It was interrupted.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
