//! `broadcast`: mail to every teammate.

use super::prelude::*;
use crate::domain::team::message::MessageType;
use crate::domain::team::name::Name;
use crate::domain::team::records::MemberStatus;

/// Sends a message to every teammate. Only if all of them need it now.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Broadcast {
    content: String,
}

impl TypedTool for Broadcast {
    const NAME: &'static str = "broadcast";

    fn about(&self) -> String {
        self.content.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        check_not_empty("content", &self.content)?;
        let (mut sent, mut failed) = (Vec::new(), Vec::new());
        let (outbox, sender) = (context.outbox(), context.sender());
        let outside = context.outside_agents().await?;
        let outside = outside.iter().filter(|agent| agent.status != MemberStatus::Shutdown);
        let outside: Vec<Name> = outside.filter_map(|agent| Name::new(&agent.name).ok()).collect();
        for member in sender.members.iter().chain(&outside) {
            if member.is_same(sender.name.as_str()) || member.is_reserved() {
                continue;
            }
            context.count_message()?;
            let outcome =
                outbox.send_from_member(&sender, member.as_str(), MessageType::Broadcast, &self.content).await;
            match outcome.map_err(ToolError::from) {
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
