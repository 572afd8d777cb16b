//! `brigade tasks diff`.

use crate::api::Question;
use crate::api::task::{self, Changes};
use crate::domain::task::TaskId;
use crate::domain::text::one_line;
use crate::domain::text::units::{count, join_up_to};
use crate::front::cli::arguments::task_id;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::output::CommandAnswer;
use crate::front::cli::pager::page_answer;
use crate::front::cli::requests::{NO_CHANGE, with_summary};

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
    /// Selects the whole diff of a task.
    pub(in crate::front) fn of(id: TaskId) -> Self {
        Self { id, stat: false }
    }

    /// Shows the diff.
    ///
    /// # Errors
    /// There is no such task, it has no worktree and no commit, or git fails.
    pub(in crate::front) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let task = task::find(&context.workspace, self.id).await?;
        let (text, new_files) = match Changes::of_task(&context.workspace, &task)? {
            // Programs get the patch as git prints it.
            Some(changes) if context.output.json => (changes.patch()?, changes.new_files()?),
            Some(changes) => (with_summary(context, self.stat, &changes)?, changes.new_files()?),
            None => (NO_CHANGE.to_owned(), Vec::new()),
        };
        let data = serde_json::json!({ "diff": text, "new_files": new_files });
        let answer = context.output.answer(&data, || text.clone())?;
        let note = (!new_files.is_empty()).then(|| {
            let names = join_up_to(new_files.iter().map(|name| one_line(name)), NAMED_MAX);
            format!("{} not committed yet: {names}", count(new_files.len(), "new file"))
        });
        Ok(page_answer(context, answer, Question::Diff { task: self.id }).notes(note))
    }
}
