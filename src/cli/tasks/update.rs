//! `brigade tasks update`.

use super::finish::{change, complete, holder};
use super::list::settable_status_parser;
use crate::cli::arguments::{ActingAs, acting_name, number, task_id, text_or_stdin, whole_number, word, words};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::CommandAnswer;
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::transition::{Change, TaskEdit};
use crate::service::completion::TaskReport;
use crate::stores::workspace::OpenMode;

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
    /// The full description; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// A whole number such as 5 or -1; higher numbers go first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    priority: Option<i64>,
    /// Roles or capabilities; the teammate needs one of them; "" for none
    #[arg(long, value_name = "WORDS", value_delimiter = ',', value_parser = word)]
    requires: Option<Vec<String>>,
    /// A command that must exit 0 before the task is completed; "" for none
    #[arg(long, value_name = "COMMAND")]
    verify: Option<String>,
    /// Reserve the task for this teammate; "" for all
    #[arg(long = "for", value_name = "NAME")]
    owner: Option<String>,
    /// Failed attempts after which the task fails, 1 or more
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    max_attempts: Option<u32>,
    /// Add dependencies: tasks that must be completed first, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    after: Vec<TaskId>,
    /// Remove dependencies, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    not_after: Vec<TaskId>,
    /// Make these tasks wait for this one, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    before: Vec<TaskId>,
    /// The new status; without other changes
    #[arg(long, value_parser = settable_status_parser())]
    #[arg(conflicts_with_all = ["subject", "description", "priority", "requires", "verify", "owner", "max_attempts", "after", "not_after", "before"])]
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
        let by = self.by.actor()?;
        let edit = self.edit()?;
        if edit == TaskEdit::default() {
            let hint = format!("pass a change, such as: `brigade tasks update {} --priority 5`", id.0);
            return Err(CliError::usage(format!("cannot change {id}: no change is given")).hint(hint));
        }
        change(context, context.board(OpenMode::Write).await?.as_ref(), id, Change::Edit(edit), &by, "changed").await
    }

    fn edit(self) -> CliResult<TaskEdit> {
        if let Some(owner) = self.owner.as_deref().filter(|owner| !owner.is_empty()) {
            acting_name(owner)?;
        }
        Ok(TaskEdit {
            subject: self.subject,
            description: self.description.map(text_or_stdin).transpose()?,
            active_form: None,
            priority: self.priority,
            requires: self.requires.as_deref().map(words),
            verify: self.verify.map(|command| command.trim().to_owned()),
            owner: self.owner,
            max_attempts: self.max_attempts,
            add_blocked_by: self.after,
            remove_blocked_by: self.not_after,
            add_blocks: self.before,
            imported: None,
        })
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
    let board = context.board(OpenMode::Write).await?;
    let current = board.get(id).await?.status;
    match (current, status) {
        (TaskStatus::Unknown, _) => {
            let error = CliError::refused(format!("cannot change {id}: its status is another program's word"));
            Err(error.hint(format!("`brigade why {}`", id.0)))
        }
        (_, TaskStatus::Unknown) | (TaskStatus::Pending, TaskStatus::Pending) => {
            Err(CliError::refused(format!("task {id} is already pending")))
        }
        (TaskStatus::Failed, TaskStatus::Pending) => {
            change(context, board.as_ref(), id, Change::Retry, &by.actor()?, "retried").await
        }
        (TaskStatus::Completed, TaskStatus::Pending) => {
            change(context, board.as_ref(), id, Change::Reopen, &by.actor()?, "reopened").await
        }
        (TaskStatus::InProgress, TaskStatus::Pending) => {
            let release = Change::Release { reason, counts: false };
            change(context, board.as_ref(), id, release, &holder(context, by, "release", id).await?, "released").await
        }
        (_, TaskStatus::InProgress) => {
            let hint = format!("`brigade tasks claim {} --as NAME`", id.0);
            Err(CliError::usage("cannot set `in_progress`: only a claim does that").hint(hint))
        }
        (_, TaskStatus::Completed) => {
            let report = TaskReport { summary: reason, ..TaskReport::default() };
            complete(context, id, report, &holder(context, by, "complete", id).await?).await
        }
        (_, TaskStatus::Failed) => {
            let actor = holder(context, by, "fail", id).await?;
            if reason.trim().is_empty() {
                return Err(CliError::usage(format!("cannot fail {id}: a reason is needed"))
                    .hint(format!("`brigade tasks update {} --status failed --reason TEXT`", id.0)));
            }
            change(context, board.as_ref(), id, Change::Fail { reason, is_final: true }, &actor, "failed").await
        }
    }
}
