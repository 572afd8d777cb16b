//! The failed attempts of a task: a short account for its next holder. A crash or a stop is no failed attempt.

use serde::{Deserialize, Serialize};

use super::failure_summary;
use super::task::Task;

/// The most failed attempts that a task lists. The oldest are dropped.
pub const FAILED_ATTEMPTS_MAX: usize = 5;

/// A failed attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Its number.
    pub attempt: u32,
    /// Name of its holder. Empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The reason in one line.
    #[serde(default)]
    pub reason: String,
}

/// Adds the current attempt of `task` to its failed attempts.
pub(super) fn record(task: &mut Task, reason: &str) {
    let (attempt, owner) = (task.attempt, task.owner.clone().unwrap_or_default());
    task.failed_attempts.push(FailedAttempt { attempt, owner, reason: failure_summary::summary_of(reason) });
    let excess = task.failed_attempts.len().saturating_sub(FAILED_ATTEMPTS_MAX);
    task.failed_attempts.drain(..excess);
}
