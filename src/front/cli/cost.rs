//! `brigade cost`.

use super::context::Context;
use super::error::CliResult;
use super::order;
use super::outcome;
use super::output::CommandAnswer;
use crate::api::Order;
use crate::api::cost::{self};

/// Show the tokens and dollars that a team has used
///
/// It counts all requests of all launches in this workspace. The budget is compared with this count. The prices are in the
/// config, under `prices`.
#[derive(Debug, clap::Args)]
pub struct Cost {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
    /// Reset the counters; the team must be stopped
    #[arg(long)]
    reset: bool,
}

impl Cost {
    /// Shows the usage, or resets it.
    ///
    /// # Errors
    /// The team does not exist, or it runs and `--reset` is given.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if self.reset {
            return order::give(context, Order::ResetCost { team: self.team }).await;
        }
        let view = cost::cost(&context.workspace, self.team.as_deref()).await?;
        outcome::cost(context, &view, false)
    }
}
