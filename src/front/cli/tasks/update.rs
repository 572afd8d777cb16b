//! `brigade tasks update`.

use super::add::TaskOptions;
use super::list::settable_status_parser;
use crate::api::Order;
use crate::domain::task::transition::TaskEdit;
use crate::domain::task::{TaskId, TaskStatus};
use crate::front::cli::arguments::{ActorFlags, task_id};
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::commands::{hint, line};

/// Change a task's text, priority, dependencies or status
///
/// A status follows the rules of its own command. `pending` retries a failed task, reopens a completed one and releases one in
/// progress; `completed` completes it; `failed` fails it.
#[derive(Debug, clap::Args)]
pub struct Update {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// The subject, in one line
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    #[command(flatten)]
    options: TaskOptions,
    /// Remove dependencies, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    not_after: Vec<TaskId>,
    /// Make these tasks wait for this one, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    before: Vec<TaskId>,
    /// The new status; cannot be combined with other changes
    #[arg(long, value_parser = settable_status_parser())]
    #[arg(conflicts_with_all = ["TaskOptions", "subject", "not_after", "before"])]
    status: Option<TaskStatus>,
    /// The reason for the new status
    #[arg(long, short, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "status")]
    reason: String,
    #[command(flatten)]
    by: ActorFlags,
}

impl Update {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let id = self.id;
        if let Some(status) = self.status {
            let order = Order::SetTaskStatus { id, status, reason: self.reason, by: self.by.into() };
            return order::give(context, order).await;
        }
        let edit = TaskEdit {
            subject: self.subject,
            remove_blocked_by: self.not_after,
            add_blocks: self.before,
            ..self.options.edit()?
        };
        if edit == TaskEdit::default() {
            let hint = hint!["pass a change, such as: ", line(format!("tasks update {} --priority 5", id.0))];
            return Err(CliError::usage(format!("cannot change {id}: no change is given")).hint(hint));
        }
        order::give(context, Order::EditTask { id, edit: Box::new(edit), by: self.by.into() }).await
    }
}
