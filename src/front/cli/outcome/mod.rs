//! The outcomes of orders as the answers of commands.

mod clean;
mod tasks;
mod team;

pub use clean::cleaned;
pub use tasks::{tasks_answer, waiting_notes};
pub use team::{cost, state};

use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use crate::api::Outcome;

/// Returns an outcome as the answer of a command.
///
/// # Errors
/// The answer cannot be written as JSON, or facts about the outcome cannot be read.
pub async fn answer(context: &Context, outcome: Outcome) -> CliResult<CommandAnswer> {
    match outcome {
        Outcome::Added(task) => tasks::added(context, &task).await,
        Outcome::Changed { action, tasks } => tasks::changed(context, &tasks, action),
        Outcome::Claim(claim) => tasks::claimed(context, claim).await,
        Outcome::Deleted(deleted) => tasks::deleted(context, &deleted),
        Outcome::Sent(sent) => team::sent(context, sent),
        Outcome::Answered(given) => team::answered(context, &given),
        Outcome::ModeSet(state) => team::state(context, *state, true).await,
        Outcome::TeamStopped(stopped) => team::team_stopped(context, stopped),
        Outcome::TeammateStopped { name, stop } => team::teammate_stopped(context, &name, stop),
        Outcome::Merged(merged) => team::merged(context, &merged),
        Outcome::SetAside(set_aside) => team::set_aside(context, &set_aside),
        Outcome::Cleaned(cleanup) => cleaned(context, &cleanup),
        Outcome::CostReset(view) => cost(context, &view, true),
    }
}
