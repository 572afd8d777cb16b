//! A message: a line of an inbox. It knows nothing of files or delivery.

use serde::{Deserialize, Serialize};

use super::document::{Document, DocumentError};
use super::name::HUMAN;
use super::time::UnixMs;

/// The longest line of an inbox, in bytes; a longer one is refused to its sender.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// What kind of message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageType {
    /// From one to one.
    Message,
    /// From one to all.
    Broadcast,
    /// Somebody is asked to stop.
    ShutdownRequest,
    /// The answer.
    ShutdownResponse,
    /// A plan is handed in for approval.
    PlanApprovalRequest,
    /// The answer; with `plan` and without `approve` it is a request, as the tutorial writes it.
    PlanApprovalResponse,
    /// A task is kept for the recipient.
    TaskAssigned,
    /// A task was given up.
    TaskFailed,
    /// Somebody has nothing to do.
    IdleNotice,
}

impl MessageType {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Message,
        Self::Broadcast,
        Self::ShutdownRequest,
        Self::ShutdownResponse,
        Self::PlanApprovalRequest,
        Self::PlanApprovalResponse,
        Self::TaskAssigned,
        Self::TaskFailed,
        Self::IdleNotice,
    ];

    /// The word that stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Broadcast => "broadcast",
            Self::ShutdownRequest => "shutdown_request",
            Self::ShutdownResponse => "shutdown_response",
            Self::PlanApprovalRequest => "plan_approval_request",
            Self::PlanApprovalResponse => "plan_approval_response",
            Self::TaskAssigned => "task_assigned",
            Self::TaskFailed => "task_failed",
            Self::IdleNotice => "idle_notice",
        }
    }

    /// Whether it needs nobody's thought: it is noted, and never the reason for a model request.
    #[must_use]
    pub fn is_notice(self) -> bool {
        matches!(self, Self::IdleNotice)
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// What kind it is.
    pub kind: MessageType,
    /// Who sent it.
    pub from: String,
    /// Its text.
    pub content: String,
    /// When, in seconds since 1970.
    pub timestamp: f64,
    /// Unique among all messages of a workspace; a line of another program has none.
    pub id: Option<String>,
    /// Which request it is or answers.
    pub request_id: Option<String>,
    /// The answer to a request.
    pub approve: Option<bool>,
    /// A plan handed in.
    pub plan: Option<String>,
    /// What is to be changed about it.
    pub feedback: Option<String>,
    /// A request to stop that does not wait for the turn; a field of ours that others need not know.
    pub now: Option<bool>,
}

impl Message {
    /// Whether a person orders its recipient to stop without finishing its turn.
    #[must_use]
    pub fn stops_now(&self) -> bool {
        self.kind == MessageType::ShutdownRequest && self.now == Some(true) && self.from == HUMAN
    }

    /// A message that is about to be sent; the store gives it its id.
    #[must_use]
    pub fn new(kind: MessageType, from: &str, content: impl Into<String>, now: UnixMs) -> Self {
        Self {
            kind,
            from: from.to_owned(),
            content: content.into(),
            timestamp: now.as_seconds(),
            id: None,
            request_id: None,
            approve: None,
            plan: None,
            feedback: None,
            now: None,
        }
    }

    /// Reads a line. A type we do not know is a plain message: what somebody wrote is shown, not dropped.
    ///
    /// # Errors
    /// [`DocumentError`] when it is no JSON object or a known field has the wrong type.
    pub fn parse(line: &[u8]) -> Result<Self, DocumentError> {
        let document = Document::parse(line)?;
        let word: String = document.get("type")?.unwrap_or_default();
        let kind = MessageType::ALL.into_iter().find(|kind| kind.as_str() == word).unwrap_or(MessageType::Message);
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

    /// The line, without a newline. U+0085, U+2028 and U+2029, at which some readers break lines, are escaped.
    #[must_use]
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
    fn a_plan_of_the_tutorial_is_a_request() {
        let line = br#"{"type":"plan_approval_response","from":"bob","content":"p","timestamp":1.5,"request_id":"9b","plan":"p"}"#;
        assert_eq!(Message::parse(line).unwrap().kind, MessageType::PlanApprovalRequest);
        let answer =
            br#"{"type":"plan_approval_response","from":"lead","content":"p","timestamp":1.5,"approve":false}"#;
        assert_eq!(Message::parse(answer).unwrap().kind, MessageType::PlanApprovalResponse);
    }

    #[test]
    fn a_line_is_one_line_for_every_reader() {
        let mut message =
            Message::new(MessageType::Message, "bob", "a\u{85}b\u{2028}c\u{2029}d\ne\u{b}f\u{c}g\u{1c}h", UnixMs(1500));
        message.id = Some("m-1".into());
        let line = message.to_line();
        assert!(!line.contains(['\u{85}', '\u{2028}', '\u{2029}', '\n', '\u{b}', '\u{c}', '\u{1c}']), "{line}");
        assert_eq!(Message::parse(line.as_bytes()).unwrap(), message);
    }

    #[test]
    fn an_unknown_type_is_shown_as_a_message() {
        let message = Message::parse(br#"{"type":"poke","from":"x","content":"hello"}"#).unwrap();
        assert_eq!((message.kind, message.content.as_str()), (MessageType::Message, "hello"));
    }
}
