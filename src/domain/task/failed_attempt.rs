//! The failed attempts of a task: a short account for its next holder. A crash or a stop is no failed attempt.

use serde::{Deserialize, Serialize};

use super::failure_summary;
use crate::domain::task::Task;

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

impl Task {
    /// Returns the number of the last attempt that failed; 0 if none did.
    pub fn last_failed_attempt(&self) -> u32 {
        self.failed_attempts.last().map_or(0, |failed| failed.attempt)
    }

    /// Returns the first attempt whose work the current one continues: the one after the last failure and the last reopening. It may be
    /// the current one.
    pub fn first_continued_attempt(&self) -> u32 {
        self.last_failed_attempt().max(self.reopened_after).saturating_add(1)
    }
}

/// Adds the current attempt of `task` to its failed attempts.
pub(in crate::domain) fn record(task: &mut Task, reason: &str) {
    let (attempt, owner) = (task.attempt, task.owner.clone().unwrap_or_default());
    task.failed_attempts.push(FailedAttempt { attempt, owner, reason: failure_summary::summary_of(reason) });
    let excess = task.failed_attempts.len().saturating_sub(FAILED_ATTEMPTS_MAX);
    task.failed_attempts.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::transition::{Actor, ActorKind, Change, change, claim, reclaim};
    use crate::domain::task::{Claim, TaskId, TaskStatus};
    use crate::domain::time::UnixMs;

    fn claimed(task: &Task) -> Task {
        claim(task, "alice", Claim { worker: "w".to_owned(), at: UnixMs(1), expires: None })
    }

    fn fail(task: &Task) -> Task {
        let reason = format!("exit {}\nmore", task.attempt);
        change(task, &Change::Fail { reason, is_final: false }, &Actor::holder("alice", task.attempt), UnixMs(1))
            .unwrap()
    }

    #[test]
    fn last_failed_attempts_are_listed() {
        let mut task = Task { max_attempts: 99, ..Task::new(TaskId(1), "x") };
        for _ in 0..FAILED_ATTEMPTS_MAX + 2 {
            task = fail(&claimed(&task));
        }
        let attempts: Vec<u32> = task.failed_attempts.iter().map(|failed| failed.attempt).collect();
        assert_eq!(attempts, [3, 4, 5, 6, 7]);
        let last = &task.failed_attempts[4];
        assert_eq!((last.owner.as_str(), last.reason.lines().count()), ("alice", 1));
        assert_eq!(Task::parse(task.id, task.to_file().as_bytes()).unwrap().failed_attempts, task.failed_attempts);
    }

    #[test]
    fn crash_and_release_are_no_failed_attempts() {
        let task = claimed(&Task::new(TaskId(1), "x"));
        assert!(reclaim(&task, "its holder panicked", true, UnixMs(1)).failed_attempts.is_empty());
        let release = Change::Release { reason: "the team stopped".to_owned(), is_failure: false };
        let released = change(&task, &release, &Actor::holder("alice", 1), UnixMs(1)).unwrap();
        assert!(released.failed_attempts.is_empty());
        let failed = fail(&claimed(&released));
        let last = Task { status: TaskStatus::Failed, ..failed };
        let retried = change(&last, &Change::Retry, &Actor::new("human", ActorKind::Person), UnixMs(1)).unwrap();
        assert_eq!(
            (retried.failures, retried.failed_attempts.len()),
            (0, 1),
            "the next attempt starts in a new context"
        );
    }
}
