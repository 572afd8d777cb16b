//! `todo`: the caller's list of steps.

use super::prelude::*;

/// The longest list, in bytes.
const LIST_BYTES_MAX: usize = 8 * 1024;

/// Keeps your list of steps. Without `content` it shows the list.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Todo {
    /// One step a line
    content: Option<String>,
}

impl TypedTool for Todo {
    const NAME: &'static str = "todo";

    fn about(&self) -> String {
        self.content.clone().unwrap_or_default()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut list = context.caller.todos.lock();
        match self.content {
            Some(content) => {
                check_size("content", &content, LIST_BYTES_MAX, "")?;
                *list = content;
                Ok(ToolOutput::text(format!("list of {} lines saved", list.lines().count())))
            }
            None if list.is_empty() => Ok(ToolOutput::text("the list is empty")),
            None => Ok(ToolOutput::text(list.clone())),
        }
    }
}
