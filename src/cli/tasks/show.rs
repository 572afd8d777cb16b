//! `brigade tasks show`, and what a task is for programs.

use serde_json::value::RawValue;

use crate::cli::arguments::task_id;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::output::Answer;
use crate::domain::task::{MAX_ATTEMPTS_DEFAULT, Task, TaskId};
use crate::ports::Board as _;
use crate::ui::tasks;

/// Show a task in full
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The task's number
    #[arg(value_parser = task_id)]
    id: TaskId,
}

impl Show {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let board = context.board_to_look_at()?;
        // Asked first: it says what is wrong with a task that is not in the view.
        let task = board.get(self.id).await?;
        let view = board.view().await?;
        let now = context.now();
        context.output.answer(&document(&task), || tasks::card(&task, &view, now, context.output.columns))
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
