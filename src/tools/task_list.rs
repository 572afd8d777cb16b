//! `task_list`: the tasks of the board, one a line.

use std::fmt::Write as _;

use super::prelude::*;
use super::task_get::joined_ids;
use crate::domain::task::dependencies::{TaskLookup, unfinished_blockers};
use crate::domain::task::{Task, TaskResult, TaskStatus};
use crate::ports::BoardView;

/// The most tasks shown.
const TASKS_MAX: usize = 200;

/// The order in which statuses are shown.
const ORDER: [TaskStatus; 4] = [TaskStatus::InProgress, TaskStatus::Pending, TaskStatus::Failed, TaskStatus::Completed];

/// Lists the tasks, one a line.
#[derive(Deserialize, JsonSchema)]
pub(super) struct TaskList {
    #[schemars(extend("shown_to" = "lead"))]
    status: Option<TaskStatus>,
}

impl TypedTool for TaskList {
    const NAME: &'static str = "task_list";

    fn about(&self) -> String {
        self.status.map(TaskStatus::as_str).unwrap_or_default().to_owned()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let view = context.stores.board.view().await?;
        Ok(ToolOutput::text(list(&view, self.status)))
    }
}

/// Returns the tasks, one a line, or only those with a status.
pub fn list(view: &BoardView, only: Option<TaskStatus>) -> String {
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
    let _ = write!(text, "{} {}{owner} {}", task.id, task.status_word(), task.subject);
    let blockers: Vec<_> = unfinished_blockers(task, lookup).map(|blocker| blocker.id).collect();
    if !blockers.is_empty() && task.status == TaskStatus::Pending {
        let _ = write!(text, " [waits for {}]", joined_ids(&blockers));
    }
    if let Some(caveat) = task.result.as_ref().and_then(TaskResult::caveat) {
        let _ = write!(text, " [{caveat}]");
    }
    if !task.requires.is_empty() {
        let _ = write!(text, " [requires {}]", task.requires.join(" or "));
    }
    if task.priority != 0 {
        let _ = write!(text, " [priority {}]", task.priority);
    }
    text.push('\n');
}
