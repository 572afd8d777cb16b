//! Runs the verify command of a task and counts refused completions. A task is completed only if the command exits 0.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::command::{self, CommandContext, CommandEnd, CommandOutcome};
use super::step::Step;
use super::{RecordEvent, ServiceError};
use crate::domain::access::PathRule;
use crate::domain::phase::ClaimRef;
use crate::sandbox::CommandExit;

/// The number of refused completions at which an attempt fails.
pub const REFUSALS_MAX: u32 = 3;

/// The first line of the output of a command that failed without output.
const SILENT: &str = "It printed nothing. The shell ran:";

/// Counts the refused completions of a member's current attempt. Each attempt has its own count.
#[derive(Debug, Default)]
pub struct RefusalCounter(Mutex<Option<(ClaimRef, u32)>>);

impl RefusalCounter {
    /// Adds one refusal of this attempt and returns their number.
    pub fn increment(&self, claim: ClaimRef) -> u32 {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = counted.filter(|(of, _)| *of == claim).map_or(0, |(_, count)| count);
        *counted = Some((claim, before + 1));
        before + 1
    }
}

/// Runs verify commands.
pub struct Verifier {
    /// The place, the caller and the limits of the command.
    pub context: CommandContext,
    /// The longest run.
    pub timeout: Duration,
    /// Receives the start and the end of each run.
    pub events: RecordEvent,
}

impl Verifier {
    /// Runs the command in the place of the work.
    ///
    /// # Errors
    /// As [`command::run`].
    pub async fn run(&self, command: &str) -> Result<CommandOutcome, ServiceError> {
        self.run_as(command, &self.context).await
    }

    /// Returns the place, the caller and the limits of commands in this folder, which they may write.
    pub fn context_in(&self, folder: &Path) -> CommandContext {
        let mut context = self.context.clone();
        context.rules.push(PathRule::writable(folder));
        context.workspace = folder.to_owned();
        context
    }

    /// Runs the command as `context` says.
    ///
    /// # Errors
    /// As [`command::run`].
    pub async fn run_as(&self, command: &str, context: &CommandContext) -> Result<CommandOutcome, ServiceError> {
        let task = context.claim.borrow().map(|claim| claim.task);
        let step = Step::new(&context.teammate, task, "verify", command.to_owned());
        let failure = |result: &Result<CommandOutcome, ServiceError>| match result {
            Ok(outcome) if outcome.is_success() => None,
            Ok(outcome) => Some(outcome.headline()),
            Err(error) => Some(error.headline()),
        };
        step.run(&self.events, self.run_traced_if_silent(command, context), failure).await
    }

    /// Runs the command. If it fails without output, runs it again and shows its commands as the shell ran them, such as `test 41 = 42`.
    /// Otherwise an author could only guess why `test` or `grep -q` failed. The trace has no prefix, because small models copy it.
    async fn run_traced_if_silent(
        &self,
        command: &str,
        context: &CommandContext,
    ) -> Result<CommandOutcome, ServiceError> {
        let outcome = command::run(command, self.timeout, context).await?;
        let has_exited = matches!(outcome.end, CommandEnd::Ended(CommandExit::Code(_)));
        if outcome.is_success() || !has_exited || !outcome.output.trim().is_empty() {
            return Ok(outcome);
        }
        let traced = command::run(&format!("PS4=; set -x\n{command}"), self.timeout, context).await?;
        if traced.end != outcome.end {
            return Ok(outcome);
        }
        Ok(CommandOutcome { output: format!("{SILENT}\n{}", traced.output), ..traced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;

    #[test]
    fn refusals_are_counted_per_attempt() {
        let refusals = RefusalCounter::default();
        let claim = |task, attempt| ClaimRef { task: TaskId(task), attempt };
        assert_eq!((refusals.increment(claim(1, 1)), refusals.increment(claim(1, 1))), (1, 2));
        assert_eq!(refusals.increment(claim(1, 2)), 1, "another attempt");
        assert_eq!(refusals.increment(claim(2, 2)), 1, "another task");
    }
}
