//! `broadcast`: mail to every teammate.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, required};
use super::messaging::{message, send};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::message::MessageType;

pub(super) struct Broadcast;

#[async_trait::async_trait]
impl TypedTool for Broadcast {
    const NAME: &'static str = "broadcast";
    const DESCRIPTION: &'static str = "Sends a message to every teammate. Each of them reads it, which costs tokens: use it only if all need it now, otherwise `send_message`.";
    const PARAMETERS: &'static [Parameter] = &[required("content", ParameterType::Text, "The message")];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "content")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let content = arguments.text("content");
        if content.trim().is_empty() {
            return Err(ToolError::Recoverable("argument `content` is empty".to_owned()));
        }
        let (mut sent, mut failed) = (Vec::new(), Vec::new());
        for member in context.team_control.members() {
            if member.is_same(context.caller.name.as_str()) || member.is_reserved() {
                continue;
            }
            match send(context, member.as_str(), message(context, MessageType::Broadcast, content)).await {
                Ok(()) => sent.push(member.to_string()),
                Err(ToolError::Recoverable(error)) => failed.push(format!("{member}: {error}")),
                Err(error) => return Err(error),
            }
        }
        let to = if sent.is_empty() { "no one".to_owned() } else { sent.join(", ") };
        if failed.is_empty() {
            return Ok(ToolOutput::text(format!("sent to {to}")));
        }
        Err(ToolError::Recoverable(format!("sent to {to}; not sent to:\n{}", failed.join("\n"))))
    }
}
