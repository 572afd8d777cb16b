//! `read_inbox`: lists waiting mail. It delivers nothing: the harness delivers each message exactly once, between turns.

use super::prelude::*;
use crate::ports::Delivery;

/// Lists the senders of waiting mail. The mail itself comes without a call.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ReadInbox {}

impl TypedTool for ReadInbox {
    const NAME: &'static str = "read_inbox";

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let waiting = context.stores.mailbox.peek(context.caller.name.as_str()).await?;
        if waiting.is_empty() {
            return Ok(ToolOutput::text("no mail waits; you get new mail without a call"));
        }
        let lines: Vec<String> = waiting
            .iter()
            .map(|Delivery { message, .. }| format!("- {} from {}", message.kind.as_str(), message.from))
            .collect();
        Ok(ToolOutput::text(format!(
            "{} waiting; you get them after the tool results of this turn:\n{}",
            if lines.len() == 1 { "1 message is".to_owned() } else { format!("{} messages are", lines.len()) },
            lines.join("\n")
        )))
    }
}
