//! Messages: the lines of an inbox. Knows nothing about files or delivery.

use super::name::HUMAN;
use crate::domain::text::json_document::{Document, DocumentError};
use crate::domain::text::words::words;
use crate::domain::time::UnixMs;

/// Maximum size of an inbox line, in bytes. A sender of a longer one gets an error.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

words! {
    /// The type of a message.
    #[derive(Default)]
    pub enum MessageType {
        /// From one member to another.
        #[default]
        Message = "message",
        /// From one member to all.
        Broadcast = "broadcast",
        /// Asks the recipient to stop.
        ShutdownRequest = "shutdown_request",
        /// The answer to a shutdown request.
        ShutdownResponse = "shutdown_response",
        /// Submits a plan for approval.
        PlanApprovalRequest = "plan_approval_request",
        /// The answer to a plan approval request. With `plan` and without `approve` it is a request, a form that other programs use.
        PlanApprovalResponse = "plan_approval_response",
        /// A task was assigned to the recipient.
        TaskAssigned = "task_assigned",
        /// A task failed and will not be retried.
        TaskFailed = "task_failed",
        /// The sender has nothing to do.
        IdleNotice = "idle_notice",
    }
}

impl MessageType {
    /// Returns true if it needs no reaction, so that it never causes a model request.
    pub fn is_notice(self) -> bool {
        matches!(self, Self::IdleNotice)
    }

    /// Returns true if a model must answer it, even in a later process. A shutdown request expires with its process.
    pub fn needs_answer(self) -> bool {
        !matches!(self, Self::IdleNotice | Self::ShutdownRequest)
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// Its type.
    pub kind: MessageType,
    /// Name of the sender.
    pub from: String,
    /// Its text.
    pub content: String,
    /// Time of sending, in seconds since 1970.
    pub timestamp: f64,
    /// Unique among all messages of a workspace. Lines of other programs may have none.
    pub id: Option<String>,
    /// The request that it is or answers.
    pub request_id: Option<String>,
    /// The decision about a request.
    pub approve: Option<bool>,
    /// The submitted plan.
    pub plan: Option<String>,
    /// The requested changes of the plan.
    pub feedback: Option<String>,
    /// True in a shutdown request that does not wait for the end of the turn. Only Brigade uses this field.
    pub now: Option<bool>,
}

impl Message {
    /// Returns true if the person asks the recipient to stop without finishing its turn.
    pub fn is_immediate_shutdown(&self) -> bool {
        self.kind == MessageType::ShutdownRequest && self.now == Some(true) && self.from == HUMAN
    }

    /// Creates a message without an id. The store sets the id.
    pub fn new(kind: MessageType, from: &str, content: impl Into<String>, now: UnixMs) -> Self {
        Self { kind, from: from.to_owned(), content: content.into(), timestamp: now.as_seconds(), ..Self::default() }
    }

    /// Parses a line. An unknown type becomes a plain message, so that its text is shown.
    ///
    /// # Errors
    /// [`DocumentError`] if it is not a JSON object or a known field has the wrong type.
    pub fn parse(line: &[u8]) -> Result<Self, DocumentError> {
        let document = Document::parse(line)?;
        let word: String = document.get("type")?.unwrap_or_default();
        let kind = MessageType::from_word(&word).unwrap_or_default();
        let approve: Option<bool> = document.get("approve")?;
        let plan: Option<String> = document.get("plan")?;
        let kind = match kind {
            MessageType::PlanApprovalResponse if plan.is_some() && approve.is_none() => {
                MessageType::PlanApprovalRequest
            }
            kind => kind,
        };
        Ok(Self {
            kind,
            from: document.get("from")?.unwrap_or_default(),
            content: document.get("content")?.unwrap_or_default(),
            timestamp: document.get("timestamp")?.unwrap_or_default(),
            id: document.get("id")?,
            request_id: document.get("request_id")?,
            approve,
            plan,
            feedback: document.get("feedback")?,
            now: document.get("now")?,
        })
    }

    /// Returns the line without a newline. Escapes U+0085, U+2028 and U+2029, because some readers break lines there.
    pub fn to_line(&self) -> String {
        let mut document = Document::default();
        document.put("type", &self.kind);
        document.put("from", &self.from);
        document.put("content", &self.content);
        document.put("timestamp", &self.timestamp);
        document.set_optional("id", self.id.as_ref());
        document.set_optional("request_id", self.request_id.as_ref());
        document.set_optional("approve", self.approve.as_ref());
        document.set_optional("plan", self.plan.as_ref());
        document.set_optional("feedback", self.feedback.as_ref());
        document.set_optional("now", self.now.as_ref());
        document.to_line().replace('\u{85}', "\\u0085").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_response_with_plan_text_is_a_request() {
        let line = br#"{"type":"plan_approval_response","from":"bob","content":"p","timestamp":1.5,"request_id":"9b","plan":"p"}"#;
        assert_eq!(Message::parse(line).unwrap().kind, MessageType::PlanApprovalRequest);
        let answer =
            br#"{"type":"plan_approval_response","from":"lead","content":"p","timestamp":1.5,"approve":false}"#;
        assert_eq!(Message::parse(answer).unwrap().kind, MessageType::PlanApprovalResponse);
    }

    #[test]
    fn message_line_has_no_line_separators() {
        let mut message =
            Message::new(MessageType::Message, "bob", "a\u{85}b\u{2028}c\u{2029}d\ne\u{b}f\u{c}g\u{1c}h", UnixMs(1500));
        message.id = Some("m-1".into());
        let line = message.to_line();
        assert!(!line.contains(['\u{85}', '\u{2028}', '\u{2029}', '\n', '\u{b}', '\u{c}', '\u{1c}']), "{line}");
        assert_eq!(Message::parse(line.as_bytes()).unwrap(), message);
    }

    #[test]
    fn unknown_message_type_parses_as_message() {
        let message = Message::parse(br#"{"type":"poke","from":"x","content":"hello"}"#).unwrap();
        assert_eq!((message.kind, message.content.as_str()), (MessageType::Message, "hello"));
    }
}
