//! `brigade tasks claim`.

use std::time::Duration;

use crate::api::Order;
use crate::domain::task::TaskId;
use crate::front::cli::arguments::{lease, task_id};
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;

/// Claim a task, by the same rules as a teammate
///
/// Without a number it claims the best task: highest priority, then lowest number. It prints the attempt number. Pass the number
/// to complete, fail, release and renew: a lost claim is then refused. Renew the lease in time, or the claim is released. If no
/// task is claimable, the exit code is 0 and --json prints `null`.
#[derive(Debug, clap::Args)]
pub struct Claim {
    /// The task number [default: the best claimable task]
    #[arg(value_parser = task_id)]
    id: Option<TaskId>,
    /// Claim it under this name
    #[arg(long = "as", value_name = "NAME")]
    name: String,
    /// Length of the lease: a time such as 90s, 15m or 2h30m, from 1s to 7d
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
    /// The capabilities of NAME, such as coder,rust [default: those in the config]
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    can: Vec<String>,
}

impl Claim {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let Self { id, name, lease, can: capabilities } = self;
        order::give(context, Order::ClaimTask { id, name, lease_s: lease.as_secs(), capabilities }).await
    }
}
