//! The counts of tasks, and the result of a goal check together with them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of tasks in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
pub struct TaskCounts {
    /// Completed tasks.
    pub completed: usize,
    /// Tasks that failed and will not be retried.
    pub failed: usize,
    /// Pending tasks with an unfinished blocker.
    pub blocked: usize,
    /// Tasks in progress.
    pub in_progress: usize,
    /// Pending tasks without an unfinished blocker.
    pub pending: usize,
}

/// The result of a goal check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GoalCheck {
    /// True if the goal is met.
    pub met: bool,
    /// The evidence: the command and how it ended.
    pub evidence: String,
}

/// The result of a goal check together with the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoalResult {
    /// The goal is met.
    Met,
    /// The goal is not met.
    NotMet,
    /// The check passed, but not all tasks are completed.
    TasksLeft,
}

impl TaskCounts {
    /// Returns true if all tasks are completed.
    pub fn is_all_completed(&self) -> bool {
        self.failed + self.blocked + self.in_progress + self.pending == 0
    }

    /// Returns the number of all tasks.
    pub fn total(&self) -> usize {
        self.completed + self.failed + self.blocked + self.in_progress + self.pending
    }

    /// Returns a text such as `1 failed, 2 not done`.
    fn unfinished_text(self) -> String {
        let not_done = self.in_progress + self.pending;
        let unfinished = [(self.failed, "failed"), (self.blocked, "blocked"), (not_done, "not done")];
        let unfinished = unfinished.into_iter().filter(|(number, _)| *number > 0);
        unfinished.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
    }
}

impl GoalCheck {
    /// Returns the result together with the tasks. A passed check counts as the goal only if all tasks are completed.
    pub fn result(&self, counts: TaskCounts) -> GoalResult {
        match (self.met, counts.is_all_completed()) {
            (false, _) => GoalResult::NotMet,
            (true, true) => GoalResult::Met,
            (true, false) => GoalResult::TasksLeft,
        }
    }

    /// Returns a sentence for people.
    pub fn sentence(&self, counts: TaskCounts) -> String {
        let evidence = &self.evidence;
        match self.result(counts) {
            GoalResult::NotMet => format!("The goal is not met: {evidence}."),
            GoalResult::Met => format!("The goal is met: {evidence}."),
            GoalResult::TasksLeft => {
                let unfinished = counts.unfinished_text();
                format!("`done_when` passed ({evidence}), but not all tasks are completed: {unfinished}.")
            }
        }
    }
}
