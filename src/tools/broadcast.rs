//! `broadcast`: mail to all.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, required};
use super::checked::{Checked, text_of};
use super::mail::{message, send};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::message::MessageType;

pub(super) struct Broadcast;

#[async_trait::async_trait]
impl Checked for Broadcast {
    const NAME: &'static str = "broadcast";
    const DESCRIPTION: &'static str = "Sends the same message to every teammate. Each of them reads it and pays for it: use it only for what all must know now, and send_message for the rest.";
    const PARAMETERS: &'static [Parameter] = &[required("content", Kind::Text, "The message")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "content")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let content = arguments.text("content");
        if content.trim().is_empty() {
            return Err(ToolError::Mendable("argument `content` is empty".to_owned()));
        }
        let (mut sent, mut failed) = (Vec::new(), Vec::new());
        for member in context.control.members() {
            if member.is_same(context.name.as_str()) || member.is_reserved() {
                continue;
            }
            match send(context, member.as_str(), message(context, MessageType::Broadcast, content)).await {
                Ok(()) => sent.push(member.to_string()),
                Err(ToolError::Mendable(error)) => failed.push(format!("{member}: {error}")),
                Err(error) => return Err(error),
            }
        }
        let to = if sent.is_empty() { "nobody".to_owned() } else { sent.join(", ") };
        if failed.is_empty() {
            return Ok(ToolOutput::text(format!("sent to {to}")));
        }
        Err(ToolError::Mendable(format!("sent to {to}; not sent to:\n{}", failed.join("\n"))))
    }
}
