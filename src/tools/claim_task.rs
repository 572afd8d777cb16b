//! `claim_task`: takes one task of the board.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, required};
use super::checked::{Checked, text_of};
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::ports::Claimant;

pub(super) struct ClaimTask;

#[async_trait::async_trait]
impl Checked for ClaimTask {
    const NAME: &'static str = "claim_task";
    const DESCRIPTION: &'static str = "Claims one pending task, so that you work on it and nobody else does. You hold one task at a time; report it with task_update before you claim another. When you are idle the best task comes to you by itself: use this only to choose one yourself. It is refused, with the reason, when the task waits for others, is held or kept for somebody, or requires what you cannot do. Example: {\"task_id\": 3}";
    const PARAMETERS: &'static [Parameter] = &[required("task_id", Kind::Task, "The task's number")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "task_id")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let held = *context.holding.borrow();
        if let Some((task, _)) = held {
            return Err(ToolError::Mendable(format!(
                "you hold task {task}; report it with task_update (completed, failed, or pending to release it) first"
            )));
        }
        let claimant = Claimant {
            name: context.name.to_string(),
            capabilities: context.capabilities.clone(),
            worker: context.stores.workers.me().to_owned(),
            lease: None,
        };
        let task = context.stores.board.claim(arguments.task("task_id"), &claimant).await?;
        let mut text =
            format!("you hold task {} (attempt {}): {}\n{}", task.id, task.attempt, task.subject, task.description);
        if let Some(verify) = &task.verify {
            text.push_str(&format!("\nBefore it counts as completed, this command must exit 0: {verify}"));
        }
        Ok(ToolOutput { text, effect: ToolEffect::Claimed { task: task.id, attempt: task.attempt } })
    }
}
