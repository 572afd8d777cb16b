//! `todo`: the caller's list of steps.

use std::sync::PoisonError;

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional};
use super::{ToolContext, ToolError, ToolOutput};

/// The longest list, in bytes.
const LIST_BYTES_MAX: usize = 8 * 1024;

pub(super) struct Todo;

#[async_trait::async_trait]
impl TypedTool for Todo {
    const NAME: &'static str = "todo";
    const DESCRIPTION: &'static str = "Keeps your list of steps, for a task of three or more steps. With `content` it replaces the list, without it shows the list. To add work for others, use `task_create`.";
    const PARAMETERS: &'static [Parameter] =
        &[optional("content", ParameterType::Text, "The full list, one step a line")];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "content")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut list = context.todos.lock().unwrap_or_else(PoisonError::into_inner);
        match arguments.optional_text("content") {
            Some(content) if content.len() > LIST_BYTES_MAX => Err(ToolError::Recoverable(format!(
                "argument `content` has {} bytes, at most {LIST_BYTES_MAX} are allowed",
                content.len()
            ))),
            Some(content) => {
                content.clone_into(&mut list);
                Ok(ToolOutput::text(format!("list of {} lines saved", list.lines().count())))
            }
            None if list.is_empty() => Ok(ToolOutput::text("the list is empty")),
            None => Ok(ToolOutput::text(list.clone())),
        }
    }
}
