//! Sets up a worktree before other commands run there: runs the setup command of the team, unless it has succeeded there already.

use super::RecordEvent;
use super::step;
use crate::domain::agent::access::PathRule;
use crate::domain::task::failure_summary;
use crate::ports::{PendingSetup, Repository, RepositoryError, Setup, SetupPlace};
use crate::process::CommandError;
use crate::process::command::{self, CommandContext, CommandOutcome, TimeLimit};

/// The variable with the first port of a command's worktree.
pub const PORT_VARIABLE: &str = "BRIGADE_PORT_BASE";

/// The reason why a worktree is not set up. It is not the failure of an attempt.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Its files or ports cannot be prepared.
    #[error("cannot set up the worktree: {0}")]
    Repository(#[from] RepositoryError),
    /// The setup command cannot be run, or its claim is lost.
    #[error("cannot set up the worktree: {0}")]
    Command(#[from] CommandError),
    /// The setup command failed.
    #[error("setup `{command}` failed: {}\n{}", outcome.ending_text(), failure_summary::stored_text(&outcome.output))]
    Failed {
        /// The command.
        command: String,
        /// Its outcome.
        outcome: CommandOutcome,
        /// True if the work of the task changes something that the command depends on.
        is_changed_by_task: bool,
    },
}

impl SetupError {
    /// The error in one bounded line.
    pub fn headline(&self) -> String {
        failure_summary::summary_of(&self.to_string())
    }
}

/// Prepares a worktree and runs the setup command if it is pending. Adds the ports of the worktree to `context`, whose folder is the
/// worktree.
///
/// # Errors
/// [`SetupError`]. The next call tries again.
pub async fn set_up(
    repository: &dyn Repository,
    place: &SetupPlace,
    context: &mut CommandContext,
    events: &RecordEvent,
) -> Result<(), SetupError> {
    let setup = repository.prepare_setup(place).await?;
    context.variables.retain(|(name, _)| *name != PORT_VARIABLE);
    context.variables.push((PORT_VARIABLE.to_owned(), setup.port_base.to_string()));
    run_pending(repository, place, setup, context, events).await
}

/// Runs the setup command if it is pending.
///
/// # Errors
/// As [`set_up`].
pub async fn run_pending(
    repository: &dyn Repository,
    place: &SetupPlace,
    setup: Setup,
    context: &CommandContext,
    events: &RecordEvent,
) -> Result<(), SetupError> {
    let Some(PendingSetup { command, timeout, writable, key, is_changed_by_task }) = setup.pending else {
        return Ok(());
    };
    let mut context = context.clone();
    context.rules.extend(writable.into_iter().map(PathRule::writable));
    let work = Box::pin(command::run(&command, TimeLimit::of_setup(timeout), &context));
    let outcome = step::run_command("setup", &command, &context, events, work).await?;
    if !outcome.is_success() {
        return Err(SetupError::Failed { command, outcome, is_changed_by_task });
    }
    Ok(repository.record_setup(place, &key).await?)
}
