//! `brigade tasks rm`.

use std::collections::BTreeSet;

use crate::api::Order;
use crate::api::task::{DeletedTask, document};
use crate::domain::task::TaskId;
use crate::front::cli::arguments::task_id;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::lines::one_line;
use crate::front::text::why::worktree_location;

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

/// Deleted tasks as the answer.
pub(in crate::front::cli) fn answer(context: &Context, deleted: &[DeletedTask]) -> CliResult<CommandAnswer> {
    let documents: Vec<_> = deleted.iter().map(|deleted| document(&deleted.task)).collect();
    let line = |DeletedTask { task, worktree, .. }: &DeletedTask| {
        let left = worktree.as_ref().map(|folder| format!("; its worktree stays: {}", worktree_location(folder)));
        format!("deleted {} {}{}\n", task.id, one_line(&task.subject), left.unwrap_or_default())
    };
    let answer = context.output.answer(&documents, || deleted.iter().map(line).collect())?;
    let plans: BTreeSet<String> = deleted.iter().filter_map(|deleted| deleted.plan.as_deref()).map(one_line).collect();
    Ok(answer.notes(plans.iter().map(|plan| {
        format!("the next import of {plan}, also at a launch, adds the deleted tasks again: delete them there too")
    })))
}
