//! `idle`: ends the teammate's WORK phase.

use serde_json::Value;

use super::adapter::TypedTool;
use super::arguments::{Arguments, Parameter};
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::phase::ClaimRef;

pub(super) struct Idle;

#[async_trait::async_trait]
impl TypedTool for Idle {
    const NAME: &'static str = "idle";
    const DESCRIPTION: &'static str = "Reports that you have nothing left to do. You then wait at no cost until mail or a task arrives. If you hold a task, report it first with `task_update`. Never wait with sleep or repeated calls.";
    const PARAMETERS: &'static [Parameter] = &[];

    fn about(&self, _: &Value) -> String {
        String::new()
    }

    async fn run(&self, _: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let claim = *context.claim.borrow();
        let text = match claim {
            Some(ClaimRef { task, .. }) => format!("you still hold task {task}: report it with `task_update`"),
            None => "you are idle until mail or a task arrives".to_owned(),
        };
        Ok(ToolOutput { text, effect: ToolEffect::Idle })
    }
}
