//! The session of an external agent, and the part of the context that it has.

use super::message_list::Position;
use crate::domain::transcript::SentPrompt;

/// A session and its last prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSession {
    /// The last prompt. After a crash it may not have arrived.
    pub last_prompt: SentPrompt,
    /// The end of the messages in the last prompt.
    pub(super) sent: Position,
    /// The end of the messages in earlier prompts that arrived.
    pub(super) sent_before: Position,
    /// True if the last prompt did not arrive.
    pub(super) is_last_lost: bool,
}
