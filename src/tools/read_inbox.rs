//! `read_inbox`: what mail waits. The harness delivers it, exactly once, between turns; this tool takes nothing.

use serde_json::Value;

use super::arguments::{Arguments, Parameter};
use super::checked::Checked;
use super::{ToolContext, ToolError, ToolOutput};
use crate::ports::Delivery;

pub(super) struct ReadInbox;

#[async_trait::async_trait]
impl Checked for ReadInbox {
    const NAME: &'static str = "read_inbox";
    const DESCRIPTION: &'static str = "Says whether mail waits for you and from whom. You seldom need it: mail is put before you by itself, as <inbox>, each message once.";
    const PARAMETERS: &'static [Parameter] = &[];

    fn about(&self, _: &Value) -> String {
        String::new()
    }

    async fn run(&self, _: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let waiting = context.stores.mailbox.peek(context.name.as_str()).await?;
        if waiting.is_empty() {
            return Ok(ToolOutput::text("no mail waits; new mail is shown to you by itself"));
        }
        let lines: Vec<String> = waiting
            .iter()
            .map(|Delivery { message, .. }| format!("- {} from {}", message.kind.as_str(), message.from))
            .collect();
        Ok(ToolOutput::text(format!(
            "{} waiting; shown to you after the results of this turn's tools:\n{}",
            if lines.len() == 1 { "1 message is".to_owned() } else { format!("{} messages are", lines.len()) },
            lines.join("\n")
        )))
    }
}
