//! Runs the verify command of a task and counts refused completions. A task is completed only if the command exits 0.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::command_runner::{self, CommandContext, CommandOutcome};
use super::{ToolContext, ToolError};
use crate::domain::event::EventKind;
use crate::domain::task::TaskId;

/// The number of refused completions at which an attempt fails.
pub(super) const REFUSALS_MAX: u32 = 3;

/// Counts refused completions for the attempt of each caller. A restart begins a new attempt, and so a new count.
#[derive(Debug, Default)]
pub(super) struct RefusalCounter(Mutex<HashMap<String, (TaskId, u32, u32)>>);

impl RefusalCounter {
    /// Adds one refusal of this attempt and returns their number.
    pub(super) fn increment(&self, caller: &str, task: TaskId, attempt: u32) -> u32 {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = refusals.entry(caller.to_owned()).or_insert((task, attempt, 0));
        if (entry.0, entry.1) != (task, attempt) {
            *entry = (task, attempt, 0);
        }
        entry.2 += 1;
        entry.2
    }

    /// Removes the count of the caller, after the end of its attempt.
    pub(super) fn remove(&self, caller: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(caller);
    }
}

/// Runs a verify command with the default timeout, and records its start and end as events.
pub(super) async fn run(verify: &str, context: &ToolContext) -> Result<CommandOutcome, ToolError> {
    run_as(verify, context, &CommandContext::of(context)).await
}

/// As [`run`], in the given context.
pub(super) async fn run_as(
    verify: &str,
    context: &ToolContext,
    command_context: &CommandContext,
) -> Result<CommandOutcome, ToolError> {
    let teammate = context.name.to_string();
    let task = context.claim.borrow().map(|(task, _)| task);
    let tool = "verify".to_owned();
    let call = format!("verify-{}", fastrand::u64(..));
    (context.events)(EventKind::ToolStarted {
        teammate: teammate.clone(),
        task,
        tool: tool.clone(),
        call: call.clone(),
        about: verify.to_owned(),
    });
    let started = Instant::now();
    let outcome = command_runner::run(verify, context.limits.command_timeout, command_context).await;
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let reason = match &outcome {
        Ok(outcome) if outcome.is_success() => None,
        Ok(outcome) => Some(outcome.headline()),
        Err(error) => Some(error.headline()),
    };
    (context.events)(EventKind::ToolFinished { teammate, task, tool, call, ok: reason.is_none(), ms, reason });
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_per_attempt() {
        let failures = RefusalCounter::default();
        assert_eq!((failures.increment("a", TaskId(1), 1), failures.increment("a", TaskId(1), 1)), (1, 2));
        assert_eq!(failures.increment("b", TaskId(2), 1), 1);
        assert_eq!(failures.increment("a", TaskId(1), 2), 1, "another attempt");
        failures.remove("a");
        assert_eq!(failures.increment("a", TaskId(1), 2), 1);
    }
}
