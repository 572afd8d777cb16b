//! `idle`: nothing is left to do.

use serde_json::Value;

use super::arguments::{Arguments, Parameter};
use super::checked::Checked;
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};

pub(super) struct Idle;

#[async_trait::async_trait]
impl Checked for Idle {
    const NAME: &'static str = "idle";
    const DESCRIPTION: &'static str = "Says that you have nothing left to do. You wait, at no cost, and are called when mail or a task arrives. Report the task you hold first, with task_update. Never wait by sleeping or by asking again and again.";
    const PARAMETERS: &'static [Parameter] = &[];

    fn about(&self, _: &Value) -> String {
        String::new()
    }

    async fn run(&self, _: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let held = *context.holding.borrow();
        let text = match held {
            Some((task, _)) => format!("you still hold task {task}: report it with task_update"),
            None => "you are idle; mail or a task will call you".to_owned(),
        };
        Ok(ToolOutput { text, effect: ToolEffect::Idle })
    }
}
