//! `todo`: the caller's own list of steps.

use std::sync::PoisonError;

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional};
use super::checked::{Checked, text_of};
use super::{ToolContext, ToolError, ToolOutput};

/// The longest list, in bytes.
const LIST_BYTES_MAX: usize = 8 * 1024;

pub(super) struct Todo;

#[async_trait::async_trait]
impl Checked for Todo {
    const NAME: &'static str = "todo";
    const DESCRIPTION: &'static str = "Keeps your own list of steps for a task of three or more steps: with `content` it replaces the list, without it shows it. What others should do goes on the board with task_create.";
    const PARAMETERS: &'static [Parameter] = &[optional("content", Kind::Text, "The whole list, one step a line")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "content")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut list = context.todos.lock().unwrap_or_else(PoisonError::into_inner);
        match arguments.optional_text("content") {
            Some(content) if content.len() > LIST_BYTES_MAX => Err(ToolError::Mendable(format!(
                "the list has {} bytes; at most {LIST_BYTES_MAX} are kept",
                content.len()
            ))),
            Some(content) => {
                content.clone_into(&mut list);
                Ok(ToolOutput::text(format!("kept, {} lines", list.lines().count())))
            }
            None if list.is_empty() => Ok(ToolOutput::text("the list is empty")),
            None => Ok(ToolOutput::text(list.clone())),
        }
    }
}
