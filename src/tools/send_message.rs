//! `send_message`: mail to one member or the person.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::messaging::{message, send};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::message::MessageType;

pub(super) struct SendMessage;

#[async_trait::async_trait]
impl TypedTool for SendMessage {
    const NAME: &'static str = "send_message";
    const DESCRIPTION: &'static str = "Sends a message to one member or to the person; it arrives between two turns. Use it to ask, to answer, or to give information that another member needs for its work. Do not use it to thank, to acknowledge or to report a task (use `task_update`).";
    const PARAMETERS: &'static [Parameter] = &[
        required("to", ParameterType::Text, "The recipient's name, `lead` or `human`"),
        required("content", ParameterType::Text, "The message"),
        optional(
            "msg_type",
            ParameterType::Word(&["message"]),
            "Always `message`; requests and answers have other tools",
        ),
    ];

    fn about(&self, input: &Value) -> String {
        format!("to {}: {}", text_argument(input, "to"), text_argument(input, "content"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let (to, content) = (arguments.text("to"), arguments.text("content"));
        if content.trim().is_empty() {
            return Err(ToolError::Recoverable("argument `content` is empty".to_owned()));
        }
        send(context, to, message(context, MessageType::Message, content)).await?;
        Ok(ToolOutput::text(format!("sent to {}", to.trim())))
    }
}
