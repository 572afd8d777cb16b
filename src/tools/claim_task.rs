//! `claim_task`: claims one task of the board.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, required};
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::phase::ClaimRef;
use crate::domain::prompt::verify_line;
use crate::ports::Claimant;

pub(super) struct ClaimTask;

#[async_trait::async_trait]
impl TypedTool for ClaimTask {
    const NAME: &'static str = "claim_task";
    const DESCRIPTION: &'static str = "Claims one pending task for you. You get tasks without it: use it only to choose one, and only if you hold none. It fails, with the reason, if the task is blocked, claimed, reserved for another member, or requires a role or capability that you lack.";
    const PARAMETERS: &'static [Parameter] = &[required("task_id", ParameterType::Task, "The task's number")];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "task_id")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let claim = *context.claim.borrow();
        if let Some(ClaimRef { task, .. }) = claim {
            return Err(ToolError::Recoverable(format!(
                "a member holds one task at a time: first report task {task} with `task_update` (completed, failed, or pending to release it)"
            )));
        }
        let claimant = Claimant {
            name: context.caller.name.to_string(),
            capabilities: context.caller.capabilities.clone(),
            worker: context.stores.workers.worker_id().to_owned(),
            lease: None,
        };
        let task = context.stores.board.claim(arguments.task("task_id"), &claimant).await?;
        let mut text = format!("you hold task {} (attempt {}): {}\n", task.id, task.attempt, task.subject);
        if let Some(verify) = &task.verify {
            text.push_str(&verify_line(verify));
            text.push('\n');
        }
        text.push_str(&task.description);
        Ok(ToolOutput { text, effect: ToolEffect::Claimed(ClaimRef::of(&task)) })
    }
}
