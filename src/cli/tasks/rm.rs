//! `brigade tasks rm`.

use std::collections::BTreeSet;

use super::bulk::change_each;
use super::show::document;
use crate::cli::arguments::{ActingAs, task_id};
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::output::CommandAnswer;
use crate::domain::task::plan_update::plan_of;
use crate::domain::task::transition::Action;
use crate::domain::task::{Task, TaskId};
use crate::stores::workspace::OpenMode;
use crate::ui::text::one_line;
use crate::ui::why::worktree_location;

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
        let board = context.workspace.board(OpenMode::Write).await?;
        let by = ActingAs { force: self.force, ..ActingAs::default() }.actor()?;
        let delete = async |id| board.delete(id, &by).await;
        let deleted = change_each(board.as_ref(), &self.ids, Action::Delete, &by, delete).await?;
        let documents: Vec<_> = deleted.iter().map(document).collect();
        let workspace = context.workspace.location.workspace()?;
        let line = |task: &Task| {
            let left = task.worktree.as_ref().filter(|folder| workspace.join(folder).is_dir());
            let left =
                left.map(|folder| format!("; its worktree stays: {}", worktree_location(folder))).unwrap_or_default();
            format!("deleted {} {}{left}\n", task.id, one_line(&task.subject))
        };
        let answer = context.output.answer(&documents, || deleted.iter().map(line).collect())?;
        let plan_of = |task: &Task| plan_of(&task.source()?, &task.subject).map(one_line);
        let plans: BTreeSet<String> = deleted.iter().filter_map(plan_of).collect();
        Ok(answer.notes(plans.iter().map(|plan| {
            format!("the next import of {plan}, also at a launch, adds the deleted tasks again: delete them there too")
        })))
    }
}
