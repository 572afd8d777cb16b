//! The verify command of a task: run before the task counts as completed, so that "done" is shown, not said.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::command::{self, CommandOutcome, CommandSetting};
use super::{ToolContext, ToolError};
use crate::domain::task::TaskId;

/// Red verifies of one attempt at which the attempt is given up.
pub(super) const REDS_MAX: u32 = 3;

/// Counts red verifies of the attempt each caller is at. A restart begins a new attempt, and so a new count.
#[derive(Debug, Default)]
pub(super) struct Reds(Mutex<HashMap<String, (TaskId, u32, u32)>>);

impl Reds {
    /// Counts one more for this attempt and returns how many there are.
    pub(super) fn count(&self, caller: &str, task: TaskId, attempt: u32) -> u32 {
        let mut reds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = reds.entry(caller.to_owned()).or_insert((task, attempt, 0));
        if (entry.0, entry.1) != (task, attempt) {
            *entry = (task, attempt, 0);
        }
        entry.2 += 1;
        entry.2
    }

    /// Forgets the caller's attempt: it is over.
    pub(super) fn forget(&self, caller: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(caller);
    }
}

/// Runs a verify command, for as long as any command may take.
pub(super) async fn run(verify: &str, context: &ToolContext) -> Result<CommandOutcome, ToolError> {
    command::run(verify, context.limits.command_timeout_max, &CommandSetting::of(context)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reds_are_counted_for_one_attempt() {
        let reds = Reds::default();
        assert_eq!((reds.count("a", TaskId(1), 1), reds.count("a", TaskId(1), 1)), (1, 2));
        assert_eq!(reds.count("b", TaskId(2), 1), 1);
        assert_eq!(reds.count("a", TaskId(1), 2), 1, "another attempt");
        reds.forget("a");
        assert_eq!(reds.count("a", TaskId(1), 2), 1);
    }
}
