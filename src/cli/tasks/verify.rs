//! Runs a task's `verify` when a person or program completes it by command. It uses the same runner as all commands.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::domain::phase::ClaimRef;
use crate::domain::records::RunningCommand;
use crate::domain::task::Task;
use crate::domain::team_spec::Limits;
use crate::ports::StoreResult;
use crate::service::command::CommandContext;
use crate::service::command::CommandRegistry;
use crate::service::verify::Verifier;

/// Keeps no record of running commands: the guard ends the command together with this process.
struct NoRegistry;

#[async_trait]
impl CommandRegistry for NoRegistry {
    async fn started(&self, _: RunningCommand) -> StoreResult<()> {
        Ok(())
    }

    async fn ended(&self, _: RunningCommand) {}
}

/// Returns the runner of this task's verify command.
pub(super) fn verifier(context: &Context, task: &Task, by: &str) -> CliResult<Verifier> {
    let team = context.team_if_valid(None);
    let limits = team.as_ref().map_or_else(Limits::default, |team| team.limits.clone());
    let claim = watch::Sender::new(Some(ClaimRef::of(task)));
    let command_context = CommandContext {
        workspace: context.workspace()?,
        sandbox: context.sandbox(team.as_ref())?,
        rules: Vec::new(),
        registry: Arc::new(NoRegistry),
        output_bytes_max: limits.tool_output_bytes_max,
        team: team.map(|team| team.name.to_string()).unwrap_or_default(),
        teammate: by.to_owned(),
        claim: claim.subscribe(),
        confined_only_reason: None,
        variables: Vec::new(),
        is_ignored_line: |_| false,
    };
    Ok(Verifier { context: command_context, timeout: limits.command_timeout, events: Arc::new(|_| {}) })
}
