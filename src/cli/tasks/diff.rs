//! `brigade tasks diff`.

use crate::cli::approvals::{target_branch, with_summary};
use crate::cli::arguments::task_id;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::CommandAnswer;
use crate::cli::pager::page_answer;
use crate::domain::git::worktree_name::WorktreeName;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::git::{DriverOptions, GitRepository};
use crate::sandbox::filter::own_program_path;
use crate::stores::workspace::OpenMode;
use crate::ui::text::{count, join_up_to, one_line};

/// The most new files that the note names.
const NAMED_MAX: usize = 10;

/// Show what a task has changed, in a team with worktrees
///
/// While the task is worked on, it shows the state of its worktree, with changes that are not committed yet.
#[derive(Debug, clap::Args)]
pub struct Diff {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// Show only the changed lines per file
    #[arg(long)]
    stat: bool,
}

impl Diff {
    /// Shows the diff.
    ///
    /// # Errors
    /// There is no such task, it has no worktree and no commit, or git fails.
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let task = context.workspace.board(OpenMode::ReadOnly).await?.get(self.id).await?;
        let (text, new_files) = self.diff(context, &task)?;
        let data = serde_json::json!({ "diff": text, "new_files": new_files });
        let answer = context.output.answer(&data, || text.clone())?;
        let note = (!new_files.is_empty()).then(|| {
            let names = join_up_to(new_files.iter().map(|name| one_line(name)), NAMED_MAX);
            format!("{} not committed yet: {names}", count(new_files.len(), "new file"))
        });
        Ok(page_answer(context, answer, &format!("`brigade tasks diff {}`", self.id.0)).notes(note))
    }

    /// Returns the diff of the task's commit, else of its worktree, and the files of the worktree that git does not track yet.
    ///
    /// # Errors
    /// The task has neither, or git fails.
    fn diff(&self, context: &Context, task: &Task) -> CliResult<(String, Vec<String>)> {
        let workspace = context.workspace.location.workspace()?;
        // Programs get the patch as git prints it.
        let shown = |diff: &dyn Fn(Option<usize>) -> CliResult<String>| {
            if context.output.json { diff(None) } else { with_summary(context, self.stat, diff) }
        };
        if let Some(merge) = task.completion().and_then(|result| result.commit.as_deref()) {
            let diff = |columns| Ok(GitRepository::merge_diff(&workspace, merge, columns)?);
            return Ok((shown(&diff)?, Vec::new()));
        }
        // Another program may have written any path.
        let worktree = task.worktree.as_deref().and_then(WorktreeName::of_folder);
        let worktree = worktree.map(|name| (name.folder(), name.team));
        let Some((folder, team)) = worktree.filter(|(folder, _)| workspace.join(folder).is_dir()) else {
            if task.worktree.is_some() && task.status == TaskStatus::Completed {
                return Ok(("no file was changed\n".to_owned(), Vec::new()));
            }
            let error = CliError::refused(format!("{} has no diff: it has no worktree and no commit", task.id));
            return Err(
                error.hint("only tasks of a team with `isolation = \"worktree\"` have one, once they are worked on")
            );
        };
        let sandbox = context.workspace.location.sandbox(None)?;
        let drivers = || DriverOptions { program: own_program_path(), launch_sandbox: Some(sandbox.clone()) };
        // The config may have other teams by now.
        let target = target_branch(context, Some(&team));
        let diff =
            |columns| Ok(GitRepository::worktree_diff(&workspace, &folder, target.as_ref(), columns, drivers())?);
        Ok((shown(&diff)?, GitRepository::untracked_files(&workspace, &folder, drivers())?))
    }
}
