//! The state of a running process of an external agent.

use std::collections::HashMap;

use tokio::time::Instant;

use super::connection::AgentConnection;
use super::protocol::{ControlRequestId, ControlResponse};
use super::usage::UsageCounter;
use crate::domain::team::phase::ClaimRef;
use crate::run::budget::Reservation;

/// The folder, the claim and the access of a process. If one of them changes, a new process starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessScope {
    /// The working directory, absolute.
    pub folder: String,
    /// The claim, which the process must not outlive.
    pub claim: Option<ClaimRef>,
    /// True if the agent can write nothing there.
    pub is_read_only: bool,
}

/// A tool that the agent runs.
pub(super) struct RunningTool {
    pub name: String,
    /// True if it can change something.
    pub is_work: bool,
    /// True if it runs a command. A failed command can have changed something too.
    pub is_command: bool,
    pub started: Instant,
}

/// An answer to the agent after which it may make its next model request: a tool has ended, or must not run.
pub(super) struct WithheldAnswer {
    pub request_id: ControlRequestId,
    /// The reason why the tool must not run.
    pub refusal: Option<String>,
}

/// The current or next model request of an agent.
#[derive(Default)]
pub(super) struct ModelRequest {
    /// Budget for it.
    pub reservation: Option<Reservation>,
    /// Its start; `None` before it.
    pub started: Option<Instant>,
    /// The size of the last one, in tokens.
    pub context_tokens: u64,
}

/// A process of an agent.
pub(super) struct RunningAgent {
    pub connection: AgentConnection,
    pub scope: ProcessScope,
    /// The answers that the agent gets in the member's next turn.
    pub withheld: Vec<WithheldAnswer>,
    /// The notice about the number of turns, for the member's next turn.
    pub turn_notice: Option<String>,
    /// True between a prompt and its completion.
    pub has_open_prompt: bool,
    /// True if the agent has said that it took the last prompt.
    pub has_taken_prompt: bool,
    /// True after the first tool of the current model request ended or was denied: the member's turn has ended with it.
    pub has_ended_turn: bool,
    /// The agent's own tools that run, by the ids of their calls.
    pub tools: HashMap<String, RunningTool>,
    pub request: ModelRequest,
    pub usage: UsageCounter,
}

impl RunningAgent {
    /// Creates the state of a process that has just started.
    pub fn new(connection: AgentConnection, scope: ProcessScope) -> Self {
        Self {
            connection,
            scope,
            withheld: Vec::new(),
            turn_notice: None,
            has_open_prompt: false,
            has_taken_prompt: false,
            has_ended_turn: false,
            tools: HashMap::new(),
            request: ModelRequest::default(),
            usage: UsageCounter::default(),
        }
    }

    /// Sends the withheld answers. `text` is added to the agent's context.
    pub async fn release(&mut self, mut text: Option<&str>) {
        for WithheldAnswer { request_id, refusal } in std::mem::take(&mut self.withheld) {
            let added = text.take();
            match refusal {
                None => self.connection.respond(&request_id, ControlResponse::Continue(added)).await,
                Some(mut reason) => {
                    reason.extend(added.map(|text| format!("\n\n{text}")));
                    self.connection.respond(&request_id, ControlResponse::DenyTool(&reason)).await;
                }
            }
        }
    }
}

/// Returns a random UUID, version 4. See RFC 9562, section 5.4.
pub(super) fn random_uuid() -> String {
    let bits = (fastrand::u128(..) & !(0xF << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62);
    let digits = format!("{bits:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_has_version_and_variant() {
        let uuid = random_uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
        assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        assert_ne!(uuid, random_uuid());
    }
}
