//! The verify command of a task: run before the task counts as completed, so that "done" is shown, not said.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::command::{self, CommandOutcome, CommandSetting};
use super::{ToolContext, ToolError};
use crate::domain::event::Fact;
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

/// Runs a verify command, for as long as a command may run of which nobody said how long; tells that it runs, and how it went.
pub(super) async fn run(verify: &str, context: &ToolContext) -> Result<CommandOutcome, ToolError> {
    run_as(verify, context, &CommandSetting::of(context)).await
}

/// The same elsewhere.
pub(super) async fn run_as(
    verify: &str,
    context: &ToolContext,
    setting: &CommandSetting,
) -> Result<CommandOutcome, ToolError> {
    let (teammate, held) = (context.name.to_string(), *context.holding.borrow());
    let task = held.map(|(task, _)| task);
    let (tool, call) = ("verify".to_owned(), format!("verify-{}", fastrand::u64(..)));
    let (again, about) = (call.clone(), verify.to_owned());
    (context.facts)(Fact::ToolStarted { teammate: teammate.clone(), task, tool: tool.clone(), call, about });
    let started = Instant::now();
    let outcome = command::run(verify, context.limits.command_timeout, setting).await;
    let ok = outcome.as_ref().is_ok_and(CommandOutcome::is_success);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let reason = match &outcome {
        Ok(outcome) => (!ok).then(|| outcome.headline()),
        Err(error) => Some(error.headline()),
    };
    (context.facts)(Fact::ToolFinished { teammate, task, tool, call: again, ok, ms, reason });
    outcome
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
