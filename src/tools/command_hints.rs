//! Runs a command of a member, and adds hints about git to its outcome.

use super::ToolContext;
use crate::domain::git::git_hints::{self, GitPlace};
use crate::process::CommandError;
use crate::process::command::{self, CommandOutcome, TimeLimit};

/// Runs a command that the caller's agent wants, for at most `limit`. Dropping the future ends it.
///
/// # Errors
/// As [`command::run`].
pub(crate) async fn run(
    command: &str,
    limit: TimeLimit,
    context: &ToolContext,
) -> Result<CommandOutcome, CommandError> {
    let mut outcome = command::run(command, limit, &context.command_context()).await?;
    if let Some(place) = git_place(context) {
        outcome.hints.extend(git_hints::hint(&outcome.output, place).map(str::to_owned));
    }
    Ok(outcome)
}

/// The caller's place; `None` in a team without isolation, where git works as everywhere.
fn git_place(context: &ToolContext) -> Option<GitPlace> {
    let working_dir = &context.working_dir;
    match (working_dir.read_only, &working_dir.task_worktree) {
        (Some(reason), _) => Some(GitPlace::ReadOnly(reason)),
        (None, Some(_)) => Some(GitPlace::Task),
        (None, None) => working_dir.port_base.map(|_| GitPlace::Lead),
    }
}
