//! `brigade tasks update`.

use super::add::TaskOptions;
use super::change::{changed, holder_or_person};
use super::complete::complete;
use super::list::settable_status_parser;
use crate::api::task::{self, StatusChange};
use crate::domain::task::transition::{Action, Change, TaskEdit};
use crate::domain::task::{TaskId, TaskStatus};
use crate::front::cli::arguments::{ActingAs, task_id};
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::output::CommandAnswer;

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
    by: ActingAs,
}

impl Update {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let id = self.id;
        if let Some(status) = self.status {
            return set_status(context, id, status, self.reason, &self.by).await;
        }
        let edit = TaskEdit {
            subject: self.subject,
            remove_blocked_by: self.not_after,
            add_blocks: self.before,
            ..self.options.edit()?
        };
        if edit == TaskEdit::default() {
            let hint = format!("pass a change, such as: `brigade tasks update {} --priority 5`", id.0);
            return Err(CliError::usage(format!("cannot change {id}: no change is given")).hint(hint));
        }
        let by = self.by.actor()?;
        changed(context, &task::edit(&context.workspace, id, edit, &by).await?, Action::Edit)
    }
}

/// Changes the task to this status, by the rules of the matching command.
async fn set_status(
    context: &Context,
    id: TaskId,
    status: TaskStatus,
    reason: String,
    by: &ActingAs,
) -> CliResult<CommandAnswer> {
    let change = match StatusChange::of(&task::find(&context.workspace, id).await?, status, reason)? {
        StatusChange::Complete(report) => {
            let by = holder_or_person(context, by, Action::Complete, id).await?;
            return complete(context, id, report, &by).await;
        }
        StatusChange::Change(change) => *change,
    };
    let actor = match change.action() {
        action @ (Action::Fail | Action::Release) => holder_or_person(context, by, action, id).await?,
        _ => by.actor()?,
    };
    if matches!(&change, Change::Fail { reason, .. } if reason.trim().is_empty()) {
        return Err(CliError::usage(format!("cannot fail {id}: a reason is needed"))
            .hint(format!("`brigade tasks update {} --status failed --reason TEXT`", id.0)));
    }
    super::change::change(context, id, change, &actor).await
}
