//! `brigade tasks rm`.

use crate::api::Order;
use crate::domain::task::TaskId;
use crate::front::cli::arguments::task_id;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;

/// Delete tasks; their numbers are never used again
///
/// If a task does not exist or is in progress, none is deleted.
#[derive(Debug, clap::Args)]
pub struct Rm {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
    /// Delete tasks in progress, or with a status of another program, too
    #[arg(long)]
    force: bool,
}

impl Rm {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        order::give(context, Order::DeleteTasks { ids: self.ids, force: self.force }).await
    }
}
