//! `task_get`: all that the board has about one task.

use std::fmt::Write as _;

use super::prelude::*;
use crate::domain::task::claim_queue::{Candidate, TaskScope, find_claim_obstacle};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::BoardView;

/// Shows all of a task: description, owner, blockers, result.
#[derive(Deserialize, JsonSchema)]
pub(super) struct TaskGet {
    task_id: TaskId,
}

impl TypedTool for TaskGet {
    const NAME: &'static str = "task_get";

    fn about(&self) -> String {
        self.task_id.to_string()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = context.stores.board.get(self.task_id).await?;
        let view = context.stores.board.view().await?;
        let (name, capabilities) = (context.caller.name.as_str(), &context.caller.capabilities);
        let caller = Candidate { name, capabilities, scope: TaskScope::All };
        Ok(ToolOutput::text(describe(&task, &view, &caller, context.clock.now())))
    }
}

/// Returns all that the board has about a task, for a member that could claim it.
pub fn describe(task: &Task, view: &BoardView, caller: &Candidate<'_>, now: UnixMs) -> String {
    let mut text = format!("Task {}: {}\nstatus: {}", task.id, task.subject, task.status_word());
    // Writing into a string cannot fail.
    if let Some(owner) = &task.owner {
        let _ = write!(text, ", owner: {owner}, attempt: {}", task.attempt);
    }
    text.push('\n');
    if task.status == TaskStatus::Pending {
        let obstacle = find_claim_obstacle(task, caller, view, now);
        let _ = match obstacle {
            None => writeln!(text, "you can claim it"),
            Some(obstacle) => writeln!(text, "you cannot claim it: {obstacle}"),
        };
    }
    let mut line = |label: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{label}: {value}");
        }
    };
    line("blocked by", joined_ids(&task.blocked_by));
    line("blocks", joined_ids(&task.blocks));
    line("requires", task.requires.join(" or "));
    line("priority", if task.priority == 0 { String::new() } else { task.priority.to_string() });
    line("verify", task.verify.clone().unwrap_or_default());
    line("created by", task.created_by.clone().unwrap_or_default());
    if task.failures > 0 {
        line("failures", format!("{} of {}", task.failures, task.max_attempts));
    }
    if let Some(result) = &task.result {
        line("result", result.summary.clone());
        line("evidence", result.evidence.clone());
        line("caution", result.caveat().map(|caveat| caveat.to_string()).unwrap_or_default());
    }
    line("description", task.description.clone());
    text
}

pub(super) fn joined_ids(tasks: &[TaskId]) -> String {
    tasks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
