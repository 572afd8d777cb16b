//! `idle`: ends the teammate's WORK phase.

use super::prelude::*;
use crate::domain::team::phase::ClaimRef;

/// Ends your work until mail or a task arrives. Report your task first.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Idle {}

impl TypedTool for Idle {
    const NAME: &'static str = "idle";

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let claim = *context.caller.claim.borrow();
        let text = match claim {
            Some(ClaimRef { task, .. }) => format!("you still hold task {task}: report it with `task_update`"),
            None => "you are idle until mail or a task arrives".to_owned(),
        };
        Ok(ToolOutput { text, effect: ToolEffect::Idle })
    }
}
