//! The preparations of task worktrees that run or failed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::domain::task::TaskId;
use crate::stores::lock_data;

/// Failed preparations of a worktree after which the next name is used.
const FAILURES_MAX: u32 = 3;

/// The preparations of one process.
#[derive(Default)]
pub(super) struct Preparations {
    /// One lock for each task, held while its worktree is prepared: the previous holder's preparation may still run.
    locks: Mutex<HashMap<TaskId, Arc<Mutex<()>>>>,
    /// Failures in a row, by worktree name.
    failures: Mutex<HashMap<String, u32>>,
}

impl Preparations {
    pub(super) fn lock_of(&self, task: TaskId) -> Arc<Mutex<()>> {
        Arc::clone(lock_data(&self.locks).entry(task).or_default())
    }

    /// Counts a failure. Returns whether the limit for this worktree is reached.
    pub(super) fn has_failed_often(&self, worktree: &str) -> bool {
        let mut failures = lock_data(&self.failures);
        let count = failures.entry(worktree.to_owned()).or_default();
        *count += 1;
        *count >= FAILURES_MAX
    }

    /// Records a success: only failures in a row count.
    pub(super) fn record_success(&self, worktree: &str) {
        lock_data(&self.failures).remove(worktree);
    }
}
