//! `brigade tasks show`.

use crate::api::request::approvals;
use crate::api::task;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::approval::Request;
use crate::front::cli::arguments::task_id;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::outcome;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::tasks;

/// Show all details of tasks
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Show {
    /// Selects one task.
    pub(in crate::front) fn one(id: TaskId) -> Self {
        Self { ids: vec![id] }
    }

    pub(in crate::front) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let mut shown = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            // One by one, because this reports errors in a task that is not in the view.
            shown.push(task::find(&context.workspace, *id).await?);
        }
        let view = task::board(&context.workspace).await?;
        let workspace = context.workspace.folder()?;
        let task_context = task::load_context(&context.workspace, &view).await?;
        let approvals = approvals(&context.workspace).await?;
        outcome::tasks_answer(context, &shown, self.ids.len() > 1, || {
            let card = |task: &Task| {
                let requests: Vec<&Request> = approvals.about(task.id).collect();
                // A merged worktree is removed, and a person may have removed it.
                let folder = task.worktree.clone().filter(|folder| workspace.join(folder).is_dir());
                tasks::card(
                    &Task { worktree: folder, ..task.clone() },
                    &requests,
                    &task_context,
                    context.output.columns,
                )
            };
            shown.iter().map(card).collect::<Vec<_>>().join("\n")
        })
    }
}
