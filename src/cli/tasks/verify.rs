//! Runs a task's `verify` for somebody who completes it by command, through the one runner every command goes through.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::domain::record::RunningCommand;
use crate::domain::task::{Task, VerifyRun};
use crate::ports::StoreResult;
use crate::team::spec::Limits;
use crate::tools::CommandRegistry;
use crate::tools::command::{self, CommandSetting};

/// Nobody takes over a claim by command while its command runs: the guard ends that with this process.
struct NoRegistry;

#[async_trait]
impl CommandRegistry for NoRegistry {
    async fn started(&self, _: RunningCommand) -> StoreResult<()> {
        Ok(())
    }

    async fn ended(&self, _: RunningCommand) {}
}

/// Runs the command; what shows that the task is done, or the error with what it printed.
pub(super) async fn run(context: &Context, verify: &str, task: &Task, by: &str) -> CliResult<VerifyRun> {
    let team = context.team_if_valid(None);
    let limits = team.as_ref().map_or_else(Limits::default, |team| team.limits.clone());
    let held = watch::Sender::new(Some((task.id, task.attempt)));
    let setting = CommandSetting {
        workspace: context.workspace()?,
        sandbox: context.sandbox(team.as_ref())?,
        rules: Vec::new(),
        commands: Arc::new(NoRegistry),
        output_bytes_max: limits.tool_output_bytes_max,
        team: team.map(|team| team.name.to_string()).unwrap_or_default(),
        teammate: by.to_owned(),
        holding: held.subscribe(),
        must_be_confined: false,
        variables: Vec::new(),
        is_noise: |_| false,
    };
    let outcome = command::run(verify, limits.command_timeout, &setting).await;
    let outcome = outcome.map_err(|error| CliError::refused(format!("cannot verify {}: {error}", task.id)))?;
    if outcome.is_success() {
        return Ok(outcome.verified(verify));
    }
    let output = outcome.output.trim_end();
    let message = format!("{} is not done: `{verify}`: {}", task.id, outcome.ending_text());
    let message = if output.is_empty() { message } else { format!("{message}\n{output}") };
    Err(CliError::refused(message).hint("nothing changed: mend it and complete the task again, or release or fail it"))
}
