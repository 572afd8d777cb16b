//! `task_list`: the tasks of the board, one a line.

use std::fmt::Write as _;

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional};
use super::task_get::joined_ids;
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::dependencies::{TaskLookup, unfinished_blockers};
use crate::domain::task::{Task, TaskStatus};
use crate::ports::BoardView;

/// The most tasks shown.
const TASKS_MAX: usize = 200;

/// The order in which statuses are shown.
const ORDER: [TaskStatus; 4] = [TaskStatus::InProgress, TaskStatus::Pending, TaskStatus::Failed, TaskStatus::Completed];

pub(super) struct TaskList;

#[async_trait::async_trait]
impl TypedTool for TaskList {
    const NAME: &'static str = "task_list";
    const DESCRIPTION: &'static str = "Lists the tasks of the board, one a line: number, status, owner, subject, unfinished blockers. For a description or a result use `task_get`.";
    const PARAMETERS: &'static [Parameter] = &[optional(
        "status",
        ParameterType::Word(&["pending", "in_progress", "completed", "failed"]),
        "Only tasks with this status",
    )];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "status")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let status = arguments.optional_text("status").and_then(TaskStatus::from_word);
        let view = context.stores.board.view().await?;
        Ok(ToolOutput::text(list(&view, status)))
    }
}

fn list(view: &BoardView, only: Option<TaskStatus>) -> String {
    let with_status = |status| view.tasks.values().filter(move |task| task.status == status);
    let counts: Vec<String> = ORDER.iter().map(|status| format!("{} {status}", with_status(*status).count())).collect();
    let mut text = format!(
        "{} {}: {}\n",
        view.tasks.len(),
        if view.tasks.len() == 1 { "task" } else { "tasks" },
        counts.join(", ")
    );
    let statuses = ORDER.into_iter().filter(|status| only.is_none_or(|only| only == *status));
    let tasks: Vec<_> = statuses.flat_map(with_status).collect();
    for task in tasks.iter().take(TASKS_MAX) {
        line(&mut text, task, view);
    }
    // Writing into a string cannot fail.
    if tasks.len() > TASKS_MAX {
        let _ = writeln!(text, "({TASKS_MAX} of {} are shown; give a `status`)", tasks.len());
    }
    for invalid in &view.invalid {
        let _ = writeln!(text, "(not a valid task: {}: {})", invalid.name, invalid.reason);
    }
    text
}

fn line(text: &mut String, task: &Task, lookup: &dyn TaskLookup) {
    let owner = task.owner.as_ref().map(|owner| format!(" ({owner})")).unwrap_or_default();
    let _ = write!(text, "{} {}{owner} {}", task.id, task.status, task.subject);
    let blockers: Vec<_> = unfinished_blockers(task, lookup).map(|blocker| blocker.id).collect();
    if !blockers.is_empty() && task.status == TaskStatus::Pending {
        let _ = write!(text, " [waits for {}]", joined_ids(&blockers));
    }
    if !task.requires.is_empty() {
        let _ = write!(text, " [requires {}]", task.requires.join(" or "));
    }
    if task.priority != 0 {
        let _ = write!(text, " [priority {}]", task.priority);
    }
    text.push('\n');
}
