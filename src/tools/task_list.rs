//! `task_list`: the board in lines.

use std::fmt::Write as _;

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional};
use super::checked::{Checked, text_of};
use super::task_get::numbers;
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::graph::{TaskLookup, unfinished_blockers};
use crate::domain::task::{Task, TaskStatus};
use crate::ports::BoardView;

/// The most tasks shown.
const TASKS_MAX: usize = 200;

/// The order in which statuses are shown: what goes on first.
const ORDER: [TaskStatus; 4] = [TaskStatus::InProgress, TaskStatus::Pending, TaskStatus::Failed, TaskStatus::Completed];

pub(super) struct TaskList;

#[async_trait::async_trait]
impl Checked for TaskList {
    const NAME: &'static str = "task_list";
    const DESCRIPTION: &'static str = "Shows the tasks of the board, a line each: number, status, owner, subject, what it still waits for. For a description or a result use task_get.";
    const PARAMETERS: &'static [Parameter] = &[optional(
        "status",
        Kind::Word(&["pending", "in_progress", "completed", "failed"]),
        "Only tasks with this status",
    )];

    fn about(&self, input: &Value) -> String {
        text_of(input, "status")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let wanted = arguments.optional_text("status").and_then(TaskStatus::from_word);
        let view = context.stores.board.view().await?;
        Ok(ToolOutput::text(list(&view, wanted)))
    }
}

fn list(view: &BoardView, wanted: Option<TaskStatus>) -> String {
    let of = |status| view.tasks.values().filter(move |task| task.status == status);
    let counts: Vec<String> = ORDER.iter().map(|status| format!("{} {status}", of(*status).count())).collect();
    let mut text = format!(
        "{} {}: {}\n",
        view.tasks.len(),
        if view.tasks.len() == 1 { "task" } else { "tasks" },
        counts.join(", ")
    );
    let statuses = ORDER.into_iter().filter(|status| wanted.is_none_or(|wanted| wanted == *status));
    let tasks: Vec<_> = statuses.flat_map(of).collect();
    for task in tasks.iter().take(TASKS_MAX) {
        line(&mut text, task, view);
    }
    // Writing into a string cannot fail.
    if tasks.len() > TASKS_MAX {
        let _ = writeln!(text, "({TASKS_MAX} of {} are shown; ask for one status)", tasks.len());
    }
    for spoiled in &view.spoiled {
        let _ = writeln!(text, "(spoiled, not a task: {}: {})", spoiled.file, spoiled.reason);
    }
    text
}

fn line(text: &mut String, task: &Task, lookup: &dyn TaskLookup) {
    let owner = task.owner.as_ref().map(|owner| format!(" ({owner})")).unwrap_or_default();
    let _ = write!(text, "{} {}{owner} {}", task.id, task.status, task.subject);
    let blockers: Vec<_> = unfinished_blockers(task, lookup).map(|blocker| blocker.id).collect();
    if !blockers.is_empty() && task.status == TaskStatus::Pending {
        let _ = write!(text, " [waits for {}]", numbers(&blockers));
    }
    if !task.requires.is_empty() {
        let _ = write!(text, " [requires {}]", task.requires.join(" or "));
    }
    if task.priority != 0 {
        let _ = write!(text, " [priority {}]", task.priority);
    }
    text.push('\n');
}
