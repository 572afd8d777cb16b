//! `send_message`: mail to one member or the person.

use super::prelude::*;
use crate::domain::team::message::MessageType;
use crate::domain::team::name::LEAD;
use crate::domain::team::pending_questions::is_question;

/// Sends a message: a question, an answer, or what the other needs to know. Not for thanks or reports.
#[derive(Deserialize, JsonSchema)]
pub(super) struct SendMessage {
    /// A member, `lead` or `human`
    to: String,
    content: String,
    #[serde(rename = "msg_type")]
    #[schemars(extend("shown_to" = "no_one"))]
    _msg_type: Option<MessageWord>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum MessageWord {
    Message,
}

impl TypedTool for SendMessage {
    const NAME: &'static str = "send_message";

    fn about(&self) -> String {
        format!("to {}: {}", self.to.clone(), self.content.clone())
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        check_not_empty("content", &self.content)?;
        context.count_message()?;
        let (outbox, sender) = (context.outbox(), context.sender());
        outbox.send_from_member(&sender, &self.to, MessageType::Message, &self.content).await?;
        let claim = *context.caller.claim.borrow();
        // A lead without a model answers nothing.
        let can_be_answered = context.team_control.lead_has_model() || !self.to.trim().eq_ignore_ascii_case(LEAD);
        if let Some(claim) = claim
            && is_question(&self.content)
        {
            let (log, now) = (&context.caller.attempt_log, context.clock.now());
            log.record_question(claim, self.to.trim(), &self.content, now, can_be_answered);
        }
        Ok(ToolOutput::text(format!("sent to {}", self.to.trim())))
    }
}
