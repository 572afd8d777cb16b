//! `brigade tasks update`.

use super::finish::{change, complete, holder};
use super::list::status_parser;
use crate::cli::arguments::{By, acting_name, number, task_id, text_or_stdin, whole_number, word, words};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::Answer;
use crate::domain::change::{Change, TaskEdit};
use crate::domain::task::{TaskId, TaskResult, TaskStatus};

/// Change a task's text, order, dependencies or status
///
/// A status is changed by the same rules as by its own command: pending retries a failed task, reopens a completed one and
/// releases a held one; completed completes it, failed fails it.
#[derive(Debug, clap::Args)]
pub struct Update {
    /// The task's number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// What is to be done, in one line
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// The whole of it; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Higher goes first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    priority: Option<i64>,
    /// Roles or capabilities, one of which is needed; "" for none
    #[arg(long, value_name = "WORDS", value_delimiter = ',', value_parser = word)]
    requires: Option<Vec<String>>,
    /// A command that must exit 0 before completion; "" for none
    #[arg(long, value_name = "COMMAND")]
    verify: Option<String>,
    /// Keep it for this teammate; "" frees it
    #[arg(long = "for", value_name = "NAME")]
    owner: Option<String>,
    /// Failures at which it is given up
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    max_attempts: Option<u32>,
    /// Tasks that must be finished first, besides those it waits for
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    after: Vec<TaskId>,
    /// Tasks it is to wait for no longer
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    not_after: Vec<TaskId>,
    /// Tasks that are to wait for this one
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    before: Vec<TaskId>,
    /// Where it is to stand: pending, completed, failed; alone, without other changes
    #[arg(long, value_parser = status_parser(), hide_possible_values = true)]
    #[arg(conflicts_with_all = ["subject", "description", "priority", "requires", "verify", "owner", "max_attempts", "after", "not_after", "before"])]
    status: Option<TaskStatus>,
    /// Why, for --status
    #[arg(long, short, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "status")]
    reason: String,
    #[command(flatten)]
    by: By,
}

impl Update {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let id = self.id;
        if let Some(status) = self.status {
            return set_status(context, id, status, self.reason, &self.by).await;
        }
        let by = self.by.actor()?;
        let edit = self.edit()?;
        if edit == TaskEdit::default() {
            let hint = format!("say what is to change, such as: brigade tasks update {} --priority 5", id.0);
            return Err(CliError::usage("nothing to change").hint(hint));
        }
        change(context, context.board()?.as_ref(), id, Change::Edit(edit), &by, "changed").await
    }

    fn edit(self) -> CliResult<TaskEdit> {
        if self.subject.as_deref().is_some_and(|subject| subject.trim().is_empty() || subject.contains('\n')) {
            return Err(CliError::usage("a task needs a subject of one line"));
        }
        if let Some(owner) = self.owner.as_deref().filter(|owner| !owner.is_empty()) {
            acting_name(owner)?;
        }
        Ok(TaskEdit {
            subject: self.subject.map(|subject| subject.trim().to_owned()),
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

/// The change that brings the task to this status, by its rules.
async fn set_status(context: &Context, id: TaskId, status: TaskStatus, reason: String, by: &By) -> CliResult<Answer> {
    let board = context.board()?;
    let present = board.get(id).await?.status;
    match (present, status) {
        (TaskStatus::Pending, TaskStatus::Pending) => Err(CliError::refused(format!("task {id} is pending already"))),
        (TaskStatus::Failed, TaskStatus::Pending) => {
            change(context, board.as_ref(), id, Change::Retry, &by.actor()?, "to be tried again:").await
        }
        (TaskStatus::Completed, TaskStatus::Pending) => {
            change(context, board.as_ref(), id, Change::Reopen, &by.actor()?, "to be done again:").await
        }
        (TaskStatus::InProgress, TaskStatus::Pending) => {
            let release = Change::Release { reason, counts: false };
            change(context, board.as_ref(), id, release, &holder(context, by, "release", id).await?, "released").await
        }
        (_, TaskStatus::InProgress) => {
            let hint = format!("brigade tasks claim {} --as NAME", id.0);
            Err(CliError::usage("a task comes to be in progress only by a claim").hint(hint))
        }
        (_, TaskStatus::Completed) => {
            let result = TaskResult::said(reason, "");
            complete(context, id, result, &holder(context, by, "complete", id).await?).await
        }
        (_, TaskStatus::Failed) => {
            let actor = holder(context, by, "fail", id).await?;
            if reason.trim().is_empty() {
                return Err(CliError::usage("a failure needs a reason: --reason TEXT"));
            }
            change(context, board.as_ref(), id, Change::Fail { reason, is_final: true }, &actor, "failed").await
        }
    }
}
