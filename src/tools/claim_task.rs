//! `claim_task`: claims one task of the board.

use super::prelude::*;
use crate::domain::agent::prompt::verify_line;
use crate::domain::log::event::CLAIM_TOOL;
use crate::domain::task::TaskId;
use crate::domain::task::claim_queue::TaskScope;
use crate::domain::team::phase::ClaimRef;
use crate::ports::Claimant;

/// Claims a pending task. Tasks come without it; use it only to choose.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ClaimTask {
    task_id: TaskId,
}

impl TypedTool for ClaimTask {
    const NAME: &'static str = CLAIM_TOOL;

    fn about(&self) -> String {
        self.task_id.to_string()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let claim = *context.caller.claim.borrow();
        if let Some(ClaimRef { task, .. }) = claim {
            if task == self.task_id {
                return Ok(ToolOutput::text(format!(
                    "you already hold task {task}; do its work, then report it with `task_update`"
                )));
            }
            return Err(ToolError::Recoverable(format!(
                "a member holds one task at a time: first report task {task} with `task_update` (completed, failed, or pending to release it)"
            )));
        }
        let claimant = Claimant {
            name: context.caller.name.to_string(),
            capabilities: context.caller.capabilities.clone(),
            worker: context.stores.workers.worker_id().to_owned(),
            lease: None,
            scope: TaskScope::All,
        };
        let task = context.stores.board.claim(self.task_id, &claimant).await?;
        let mut text = format!("you hold task {} (attempt {}): {}\n", task.id, task.attempt, task.subject);
        if let Some(verify) = &task.verify {
            text.push_str(&verify_line(verify));
            text.push('\n');
        }
        text.push_str(&task.description);
        Ok(ToolOutput { text, effect: ToolEffect::Claimed(ClaimRef::of(&task)) })
    }
}
