//! Runs a task's `verify` when a person or program completes it by command. It uses the same runner as all commands.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::domain::records::RunningCommand;
use crate::domain::task::{Task, VerifyRun};
use crate::ports::StoreResult;
use crate::team::spec::Limits;
use crate::tools::CommandRegistry;
use crate::tools::command_runner::{self, CommandContext};

/// Keeps no record of running commands: the guard ends the command together with this process.
struct NoRegistry;

#[async_trait]
impl CommandRegistry for NoRegistry {
    async fn started(&self, _: RunningCommand) -> StoreResult<()> {
        Ok(())
    }

    async fn ended(&self, _: RunningCommand) {}
}

/// Runs the command. Returns the evidence for a completed task, or an error with the command's output.
pub(super) async fn run(context: &Context, verify: &str, task: &Task, by: &str) -> CliResult<VerifyRun> {
    let team = context.team_if_valid(None);
    let limits = team.as_ref().map_or_else(Limits::default, |team| team.limits.clone());
    let held = watch::Sender::new(Some((task.id, task.attempt)));
    let setting = CommandContext {
        workspace: context.workspace()?,
        sandbox: context.sandbox(team.as_ref())?,
        rules: Vec::new(),
        commands: Arc::new(NoRegistry),
        output_bytes_max: limits.tool_output_bytes_max,
        team: team.map(|team| team.name.to_string()).unwrap_or_default(),
        teammate: by.to_owned(),
        claim: held.subscribe(),
        must_be_confined: false,
        variables: Vec::new(),
        is_ignored_line: |_| false,
    };
    let outcome = command_runner::run(verify, limits.command_timeout, &setting).await;
    let outcome = outcome.map_err(|error| CliError::refused(format!("cannot verify {}: {error}", task.id)))?;
    if outcome.is_success() {
        return Ok(outcome.verified(verify));
    }
    let output = outcome.output.trim_end();
    let message = format!("cannot complete {}: `{verify}`: {}", task.id, outcome.ending_text());
    let message = if output.is_empty() { message } else { format!("{message}\n{output}") };
    Err(CliError::refused(message).hint("correct the work and complete the task again, or release or fail it"))
}
