//! `claim_task`: takes one task of the board.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, required};
use super::checked::{Checked, text_of};
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::context::verify_line;
use crate::ports::Claimant;

pub(super) struct ClaimTask;

#[async_trait::async_trait]
impl Checked for ClaimTask {
    const NAME: &'static str = "claim_task";
    const DESCRIPTION: &'static str = "Claims one pending task for you. Tasks come to you by themselves; use this only to choose one, while you hold none. It is refused, with the reason, when the task waits for others, is held or kept for somebody, or requires what you cannot do.";
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
        let mut text = format!("you hold task {} (attempt {}): {}\n", task.id, task.attempt, task.subject);
        if let Some(verify) = &task.verify {
            text.push_str(&verify_line(verify));
            text.push('\n');
        }
        text.push_str(&task.description);
        Ok(ToolOutput { text, effect: ToolEffect::Claimed { task: task.id, attempt: task.attempt } })
    }
}
