//! `send_message`: mail to one.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::mail::{message, send};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::message::MessageType;

pub(super) struct SendMessage;

#[async_trait::async_trait]
impl Checked for SendMessage {
    const NAME: &'static str = "send_message";
    const DESCRIPTION: &'static str = "Sends a message to one member of the team or to the person; it arrives between their turns. Use it to ask, to answer, and to say what another needs for its work; not to report a task (task_update does that), to thank or to acknowledge.";
    const PARAMETERS: &'static [Parameter] = &[
        required("to", Kind::Text, "The recipient's name, `lead` or `human`"),
        required("content", Kind::Text, "The message"),
        optional(
            "msg_type",
            Kind::Word(&["message"]),
            "The kind of message; requests and answers have tools of their own",
        ),
    ];

    fn about(&self, input: &Value) -> String {
        format!("to {}: {}", text_of(input, "to"), text_of(input, "content"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let (to, content) = (arguments.text("to"), arguments.text("content"));
        if content.trim().is_empty() {
            return Err(ToolError::Mendable("argument `content` is empty".to_owned()));
        }
        send(context, to, message(context, MessageType::Message, content)).await?;
        Ok(ToolOutput::text(format!("sent to {}", to.trim())))
    }
}
