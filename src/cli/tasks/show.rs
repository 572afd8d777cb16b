//! `brigade tasks show`, and what a task is for programs.

use serde_json::value::RawValue;

use super::finish::answer_with;
use crate::cli::arguments::task_id;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::Answer;
use crate::domain::request::Request;
use crate::domain::task::{MAX_ATTEMPTS_DEFAULT, Task, TaskId};
use crate::ports::{Board as _, StoreError};
use crate::stores::file::board::FileBoard;
use crate::stores::open::Purpose;
use crate::ui::tasks::{self, Look};
use crate::ui::why::mend;

/// Show tasks in full
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The tasks' numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Show {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let board = context.board_to_look_at()?;
        let mut shown = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            // Asked one by one: it says what is wrong with a task that is not in the view.
            shown.push(match board.get(*id).await {
                Err(StoreError::NoTask(id)) => return Err(no_task(id, &board)),
                task => task?,
            });
        }
        let view = board.view().await?;
        let live = context.live_workers(&view);
        let workspace = context.workspace()?;
        let book = context.stores(Purpose::Look).await?.requests.all().await?;
        let approvals: Vec<Request> = book.open_approvals().cloned().collect();
        let look = Look { view: &view, live_workers: live.as_ref(), approvals: &approvals, now: context.now() };
        answer_with(context, &shown, self.ids.len() > 1, || {
            let card = |task: &Task| {
                let requests: Vec<&Request> = book.about(task.id).collect();
                // What is merged is removed, and a person may have removed it.
                let folder = task.worktree.clone().filter(|folder| workspace.join(folder).is_dir());
                tasks::card(&Task { worktree: folder, ..task.clone() }, &requests, &look, context.output.columns)
            };
            shown.iter().map(card).collect::<Vec<_>>().join("\n")
        })
    }
}

/// There is no such task; where its file was set aside, that is why.
fn no_task(id: TaskId, board: &FileBoard) -> CliError {
    match board.set_aside().get(&id) {
        None => StoreError::NoTask(id).into(),
        Some(file) => CliError::refused(format!("the file of task {id} was no task, and was set aside as {file}"))
            .hint(mend(id, file)),
    }
}

/// The task as programs read it, on one line: all that is in its file, and the fields that are left out there while they
/// have their defaults.
pub(in crate::cli) fn document(task: &Task) -> Option<Box<RawValue>> {
    let mut document = task.to_document();
    let mut fill = |field: &str, default: &serde_json::Value| {
        if !document.contains(field) {
            document.put(field, default);
        }
    };
    for field in ["owner", "activeForm", "verify", "worktree", "notBefore", "claim", "result"] {
        fill(field, &serde_json::Value::Null);
    }
    for field in ["createdBy", "createdAt", "updatedAt"] {
        fill(field, &serde_json::Value::Null);
    }
    for (field, number) in [("priority", 0), ("attempt", 0), ("failures", 0), ("maxAttempts", MAX_ATTEMPTS_DEFAULT)] {
        fill(field, &number.into());
    }
    fill("requires", &serde_json::json!([]));
    // What was a document is JSON.
    RawValue::from_string(document.to_line()).ok()
}
