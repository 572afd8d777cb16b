//! `brigade tasks rm`.

use super::several::each;
use super::show::document;
use crate::cli::arguments::{By, task_id};
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::output::Answer;
use crate::domain::change::Action;
use crate::domain::task::{Task, TaskId};
use crate::ui::text::one_line;
use crate::ui::why::whereabouts;

/// Delete tasks; their numbers are never used again
///
/// All of them or, where one is not there or held by somebody, none.
#[derive(Debug, clap::Args)]
pub struct Rm {
    /// The tasks' numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
    /// Delete them though somebody holds them
    #[arg(long)]
    force: bool,
}

impl Rm {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let board = context.board()?;
        let by = By { force: self.force, ..By::default() }.actor()?;
        let delete = async |id| board.delete(id, &by).await;
        let deleted = each(board.as_ref(), &self.ids, (Action::Delete, "deleted"), &by, delete).await?;
        let documents: Vec<_> = deleted.iter().map(document).collect();
        let workspace = context.workspace()?;
        let line = |task: &Task| {
            let left = task.worktree.as_ref().filter(|folder| workspace.join(folder).is_dir());
            let left = left.map(|folder| format!("; its work stays in {}", whereabouts(folder))).unwrap_or_default();
            format!("deleted {} {}{left}\n", task.id, one_line(&task.subject))
        };
        context.output.answer(&documents, || deleted.iter().map(line).collect())
    }
}
