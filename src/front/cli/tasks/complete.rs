//! `brigade tasks complete`.

use crate::api::Order;
use crate::domain::task::TaskId;
use crate::front::cli::arguments::{ActorFlags, task_id};
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;

/// Complete a task
///
/// If the task has a `verify` command, it runs first. Unless it exits 0, nothing changes.
#[derive(Debug, clap::Args)]
pub struct Complete {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    #[command(flatten)]
    by: ActorFlags,
    /// A summary of the work
    #[arg(long, alias = "result", value_name = "TEXT", default_value = "", hide_default_value = true)]
    summary: String,
    /// The evidence: a commit, or a command and its exit status
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    evidence: String,
}

impl Complete {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let Self { id, by, summary, evidence } = self;
        order::give(context, Order::CompleteTask { id, summary, evidence, by: by.into() }).await
    }
}
