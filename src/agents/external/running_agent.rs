//! A running process of an external agent: its program, its protocol and its state.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use tokio::time::Instant;

use super::protocol::{
    AgentEvent, AgentMessage, AgentProtocol, ControlRequestId, ControlResponse, Invocation, SessionStart,
};
use super::usage::UsageCounter;
use crate::domain::phase::ClaimRef;
use crate::run::budget::Reservation;
use crate::service::ServiceError;
use crate::service::agent_process::AgentProcess;
use crate::service::board_socket::BoardSocket;
use crate::service::command::CommandContext;

/// The last lines of the program that are kept for an error.
const DIAGNOSTICS_MAX: usize = 5;
/// The longest kept line, in characters.
const DIAGNOSTIC_CHARS_MAX: usize = 500;

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
    /// True if it may change files.
    pub is_work: bool,
    pub started: Instant,
}

/// An answer to the agent after which it may make its next model request.
pub(super) enum WithheldAnswer {
    /// A tool has ended.
    Continue { request_id: ControlRequestId },
    /// A tool must not run.
    Deny { request_id: ControlRequestId, reason: String },
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
    process: AgentProcess,
    /// The socket on which processes of the agent reach the board; `None` if it cannot be opened.
    board_socket: Option<BoardSocket>,
    pub protocol: Box<dyn AgentProtocol>,
    pub scope: ProcessScope,
    events: VecDeque<AgentEvent>,
    diagnostics: VecDeque<String>,
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
    /// Starts the program, and begins the conversation. It is ready for prompts after [`AgentEvent::Ready`].
    ///
    /// # Errors
    /// [`ServiceError::Refused`] if it cannot be started; [`ServiceError::Failed`] if it cannot be recorded.
    pub async fn start(
        mut protocol: Box<dyn AgentProtocol>,
        command: &str,
        start: &SessionStart<'_>,
        mut context: CommandContext,
        scope: ProcessScope,
    ) -> Result<Self, ServiceError> {
        let Invocation { arguments, variables } = protocol.invocation(start);
        // The arguments have no NUL character, which is the only one that cannot be quoted.
        let arguments = shlex::try_join(arguments.iter().map(String::as_str)).unwrap_or_default();
        context.variables.extend(variables);
        // Commands of agents can write in their home, and could put another socket in the place of this one.
        let board_socket = BoardSocket::open(start.home.parent().unwrap_or(start.home))
            .inspect_err(|error| tracing::warn!(%error, "no process of an agent can use `brigade mcp`"))
            .ok();
        context.variables.extend(board_socket.iter().flat_map(BoardSocket::variables));
        let mut process = AgentProcess::start(&format!("exec {command} {arguments}"), &context).await?;
        for line in protocol.handshake(start) {
            // If the program has ended, its output has ended too.
            let _ = process.write_line(&line).await;
        }
        Ok(Self {
            process,
            board_socket,
            protocol,
            scope,
            events: VecDeque::new(),
            diagnostics: VecDeque::new(),
            withheld: Vec::new(),
            turn_notice: None,
            has_open_prompt: false,
            has_taken_prompt: false,
            has_ended_turn: false,
            tools: HashMap::new(),
            request: ModelRequest::default(),
            usage: UsageCounter::new(start.is_known),
        })
    }

    /// Sends a message. If the program does not take it, it is ended, and [`Self::next_event`] returns `None` after its last events.
    pub async fn send(&mut self, message: &AgentMessage<'_>) {
        if let AgentMessage::Response { request_id, response: ControlResponse::Mcp(answer) } = message
            && let Some(socket) = &mut self.board_socket
            && socket.respond(request_id, *answer)
        {
            return;
        }
        let line = self.protocol.write(message);
        if let Err(error) = self.process.write_line(&line).await {
            tracing::debug!(%error, "an agent takes no message");
        }
    }

    /// Responds to a control request.
    pub async fn respond(&mut self, request_id: &str, response: ControlResponse<'_>) {
        self.send(&AgentMessage::Response { request_id, response }).await;
    }

    /// Returns the next event; `None` after the end of the program. Cancel safe.
    pub async fn next_event(&mut self) -> Option<AgentEvent> {
        loop {
            match self.events.pop_front() {
                Some(AgentEvent::Diagnostic(text)) => self.record_diagnostic(&text),
                Some(event) => return Some(event),
                None => tokio::select! {
                    biased;
                    line = self.process.next_line() => self.events.extend(self.protocol.read(&line?)),
                    (request_id, message) = next_board_request(&mut self.board_socket) => {
                        return Some(AgentEvent::McpRequest { request_id, message });
                    }
                },
            }
        }
    }

    /// Waits until the program has ended. Events before that are kept. Cancel safe.
    pub async fn wait_for_end(&mut self) {
        while let Some(line) = self.process.next_line().await {
            self.events.extend(self.protocol.read(&line));
        }
    }

    fn record_diagnostic(&mut self, text: &str) {
        tracing::debug!(text, "an agent's program says");
        if self.diagnostics.len() == DIAGNOSTICS_MAX {
            self.diagnostics.pop_front();
        }
        self.diagnostics.push_back(text.chars().take(DIAGNOSTIC_CHARS_MAX).collect());
    }

    /// Returns the last lines of the program that were no messages.
    pub fn diagnostics(&self) -> String {
        Vec::from_iter(self.diagnostics.iter().map(String::as_str)).join("; ")
    }

    /// Sends the withheld answers. `text` is added to the agent's context.
    pub async fn release(&mut self, mut text: Option<&str>) {
        for answer in std::mem::take(&mut self.withheld) {
            match answer {
                WithheldAnswer::Continue { request_id } => {
                    self.respond(&request_id, ControlResponse::Continue(text.take())).await;
                }
                WithheldAnswer::Deny { request_id, reason } => {
                    let reason = text.take().map_or(reason.clone(), |text| format!("{reason}\n\n{text}"));
                    self.respond(&request_id, ControlResponse::DenyTool(&reason)).await;
                }
            }
        }
    }

    /// Returns the id of its process; 0 if that is not known.
    pub fn pid(&self) -> u32 {
        self.process.pid().unwrap_or_default()
    }

    /// Ends the program and all that it started, and waits for that.
    pub async fn end(self) {
        self.process.end().await;
    }
}

/// Waits for the next request on the socket; forever if there is no socket or it has ended. Cancel safe.
async fn next_board_request(socket: &mut Option<BoardSocket>) -> (String, Value) {
    match socket {
        Some(socket) => match socket.next_request().await {
            Some(request) => request,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
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
