//! Runs the verify command of a task. A task is completed only if it exits 0.

use std::path::Path;
use std::time::Duration;

use super::RecordEvent;
use super::step;
use crate::domain::agent::access::PathRule;
use crate::domain::log::event::VERIFY_STEP;
use crate::process::CommandError;
use crate::process::command::{self, CommandContext, CommandEnd, CommandOutcome, TimeLimit};
use crate::sandbox::CommandExit;

/// The first line of the output of a command that failed without output.
const SILENT: &str = "It printed nothing. The shell ran:";

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
    /// As [`crate::process::command::run`].
    pub async fn run(&self, command: &str) -> Result<CommandOutcome, CommandError> {
        self.run_as(command, &self.context).await
    }

    /// Returns the place, the caller and the limits of commands in this folder, which they may write, except its git folder: it serves
    /// later merges too.
    pub fn context_in(&self, folder: &Path) -> CommandContext {
        let mut context = self.context.clone();
        let own = [".git", ".agent"].map(|name| PathRule::read_only(folder.join(name)));
        context.rules.extend(own.into_iter().chain([PathRule::writable(folder)]));
        context.working_dir = folder.to_owned();
        context
    }

    /// Runs the command as `context` says.
    ///
    /// # Errors
    /// As [`crate::process::command::run`].
    pub async fn run_as(&self, command: &str, context: &CommandContext) -> Result<CommandOutcome, CommandError> {
        // The futures of a command are large. In a box they do not grow the stack of all callers.
        let work = Box::pin(self.run_traced_if_silent(command, context));
        step::run_command(VERIFY_STEP, command, context, &self.events, work).await
    }

    /// Runs the command. If it fails without output, runs it again and shows its commands as the shell ran them, such as `test 41 = 42`.
    /// Otherwise an author could only guess why `test` or `grep -q` failed. The trace has no prefix, because small models copy it.
    async fn run_traced_if_silent(
        &self,
        command: &str,
        context: &CommandContext,
    ) -> Result<CommandOutcome, CommandError> {
        let limit = TimeLimit::of_command(self.timeout);
        let outcome = command::run(command, limit, context).await?;
        let has_exited = matches!(outcome.end, CommandEnd::Ended(CommandExit::Code(_)));
        if outcome.is_success() || !has_exited || !outcome.output.trim().is_empty() {
            return Ok(outcome);
        }
        let traced = command::run(&format!("PS4=; set -x\n{command}"), limit, context).await?;
        if traced.end != outcome.end {
            return Ok(outcome);
        }
        Ok(CommandOutcome { output: format!("{SILENT}\n{}", traced.output), ..traced })
    }
}
