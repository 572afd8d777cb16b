//! `brigade tasks complete`.

use super::change::{changed, holder_or_person};
use crate::api::task;
use crate::domain::git::worktree_name::{WorktreeName, team_folder};
use crate::domain::task::failure_summary;
use crate::domain::task::transition::{Action, Actor};
use crate::domain::task::{Task, TaskId};
use crate::front::cli::arguments::{ActingAs, task_id};
use crate::front::cli::consent;
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::output::CommandAnswer;
use crate::front::text::command_form::shell_word;
use crate::front::text::lines::one_line;
use crate::ports::UnmergedWork;
use crate::service::completion::{Completion, Incomplete, TaskReport};

/// Complete a task
///
/// If the task has a `verify` command, it runs first. Unless it exits 0, nothing changes.
#[derive(Debug, clap::Args)]
pub struct Complete {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    #[command(flatten)]
    by: ActingAs,
    /// A summary of the work
    #[arg(long, alias = "result", value_name = "TEXT", default_value = "", hide_default_value = true)]
    summary: String,
    /// The evidence: a commit, or a command and its exit status
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    evidence: String,
}

impl Complete {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = holder_or_person(context, &self.by, Action::Complete, self.id).await?;
        let report = TaskReport { summary: self.summary, evidence: self.evidence, ..TaskReport::default() };
        complete(context, self.id, report, &by).await
    }
}

/// Completes a task if the completion gate allows it.
pub(in crate::front) async fn complete(
    context: &Context,
    id: TaskId,
    report: TaskReport,
    by: &Actor,
) -> CliResult<CommandAnswer> {
    let confirm = |task: &Task, command: &str| consent::confirm_verify(context, task, command);
    match task::complete(&context.workspace, id, report, by, confirm).await? {
        Completion::Completed(task) => changed(context, &task, Action::Complete),
        Completion::Incomplete(incomplete) => Err(incomplete_error(id, incomplete)),
    }
}

/// The error of a task that is not completed.
fn incomplete_error(id: TaskId, incomplete: Incomplete) -> CliError {
    let number = id.0;
    match incomplete {
        Incomplete::ReviewPending { id: review, to, rejection } => {
            let (review, to) = (one_line(&review), one_line(&to));
            let mut message = format!("cannot complete {id} yet: it waits for review {review} by {to}");
            if let Some(feedback) = rejection {
                message.push_str(&format!("; an earlier review rejected it: {}", one_line(&feedback)));
            }
            let review = shell_word(&review);
            CliError::refused(message).hint(format!("`brigade review approve {review}`, then complete the task again"))
        }
        Incomplete::ReviewRejected { feedback } => {
            let message = format!("cannot complete {id}: the review rejected it: {}", one_line(&feedback));
            CliError::refused(message)
                .hint(format!("`brigade tasks release {number}`, or `brigade tasks fail {number} --reason TEXT`"))
        }
        Incomplete::Refused { refusal, .. } => {
            let evidence = failure_summary::stored_text(&refusal.evidence);
            let message = format!("cannot complete {id}: {}\n{evidence}", refusal.sentence);
            CliError::refused(message.trim_end().to_owned())
                .hint("correct the work and complete the task again, or release or fail it")
        }
        Incomplete::NotMerged(work) => {
            let otherwise = "or release it for a teammate; --force skips the merge";
            let hint = match (&work.uncommitted_in, merge_command(&work)) {
                (Some(folder), _) => format!("commit it in {folder} and merge it, {otherwise}"),
                (None, Some(merge)) => format!("`{merge}`, then complete the task again; {otherwise}"),
                (None, None) => otherwise.to_owned(),
            };
            CliError::refused(format!("cannot complete {id}: {work}")).hint(hint)
        }
        Incomplete::AttemptFailed { reason } => {
            let message = format!("cannot complete {id}: {}; this attempt has failed", one_line(&reason));
            CliError::refused(message).hint(format!("`brigade why {number}`"))
        }
    }
}

/// The command that merges the work of a task in the team worktree, which is a clone of its own.
fn merge_command(work: &UnmergedWork) -> Option<String> {
    let (team, from, name) = match (work.branches.first(), &work.commits_in) {
        (Some(branch), _) => (WorktreeName::of_branch(branch)?.team, "../..".to_owned(), branch.full()),
        (None, Some(folder)) => (WorktreeName::of_folder(folder)?.team, format!("../../{folder}"), "HEAD".to_owned()),
        (None, None) => return None,
    };
    let [folder, from, name] = [team_folder(&team), from, name].map(|word| shell_word(&word));
    Some(format!("git -C {folder} pull --no-rebase {from} {name}"))
}
