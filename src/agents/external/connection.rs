//! The connection to the program of an external agent: Brigade's messages go in, the agent's events come out.

use std::collections::VecDeque;
use std::path::Path;

use serde_json::Value;

use super::protocol::{AgentEvent, AgentProtocol, ControlResponse, Invocation, SessionStart};
use crate::domain::text::shorten;
use crate::process::CommandError;
use crate::process::agent_process::AgentProcess;
use crate::process::board_socket::BoardSocket;
use crate::process::command::CommandContext;

/// The most diagnostic lines that are kept for an error: the last ones.
const DIAGNOSTICS_MAX: usize = 5;
/// The longest kept line, in characters.
const DIAGNOSTIC_CHARS_MAX: usize = 500;

/// A running program, and the protocol that it speaks.
pub(super) struct AgentConnection {
    pub process: AgentProcess,
    /// The socket on which processes of the agent reach the board; `None` if it cannot be opened.
    board_socket: Option<BoardSocket>,
    pub protocol: Box<dyn AgentProtocol>,
    events: VecDeque<AgentEvent>,
    diagnostics: VecDeque<String>,
}

impl AgentConnection {
    /// Starts the program, and begins the conversation. It is ready for prompts after [`AgentEvent::Ready`].
    ///
    /// `sockets` is the folder of the board socket. The agent's processes must not be able to write there: they could replace the
    /// socket.
    ///
    /// # Errors
    /// [`CommandError::Refused`] if it cannot be started; [`CommandError::Failed`] if it cannot be recorded.
    pub async fn open(
        mut protocol: Box<dyn AgentProtocol>,
        command: &str,
        start: &SessionStart<'_>,
        sockets: &Path,
        mut context: CommandContext,
    ) -> Result<Self, CommandError> {
        let Invocation { arguments, variables } = protocol.invocation(start);
        // The arguments have no NUL character, which is the only one that cannot be quoted.
        let arguments = shlex::try_join(arguments.iter().map(String::as_str)).unwrap_or_default();
        context.variables.extend(variables);
        let mut board_socket = BoardSocket::open(sockets)
            .inspect_err(|error| tracing::warn!(%error, "cannot open the board socket, so processes of agents cannot use the board"))
            .ok();
        context.variables.extend(board_socket.iter().flat_map(BoardSocket::variables));
        let mut process = AgentProcess::start(&format!("exec {command} {arguments}"), &context).await?;
        if let Some(socket) = &mut board_socket {
            socket.serve(process.guard());
        }
        for line in protocol.handshake(start) {
            // If the program has ended, `next_event` notices the end of its output.
            let _ = process.write_line(&line).await;
        }
        Ok(Self { process, board_socket, protocol, events: VecDeque::new(), diagnostics: VecDeque::new() })
    }

    /// Sends a prompt.
    pub async fn prompt(&mut self, key: &str, text: &str) {
        let line = self.protocol.prompt(key, text);
        self.send(&line).await;
    }

    /// Responds to a control request.
    pub async fn respond(&mut self, request_id: &str, response: ControlResponse<'_>) {
        if let (ControlResponse::Mcp(answer), Some(socket)) = (response, &mut self.board_socket)
            && socket.respond(request_id, answer)
        {
            return;
        }
        let line = self.protocol.response(request_id, response);
        self.send(&line).await;
    }

    /// Makes the agent give up its prompt.
    pub async fn interrupt(&mut self) {
        let line = self.protocol.interrupt();
        self.send(&line).await;
    }

    /// Sends a line. If the program does not take it, Brigade ends the program. [`Self::next_event`] then returns `None` after its last
    /// events.
    async fn send(&mut self, line: &str) {
        if let Err(error) = self.process.write_line(line).await {
            tracing::debug!(%error, "the agent's program did not take a message");
        }
    }

    /// Returns the next event; `None` after the end of the program. Cancel safe.
    pub async fn next_event(&mut self) -> Option<AgentEvent> {
        loop {
            match self.events.pop_front() {
                Some(AgentEvent::Diagnostic(text)) => self.record_diagnostic(&text),
                Some(event) => return Some(event),
                None => tokio::select! {
                    biased;
                    line = self.process.next_line() => match line? {
                        Ok(line) => self.events.extend(self.protocol.read(&line)),
                        Err(error) => return Some(AgentEvent::LineRefused(format!("its agent's program wrote {error}"))),
                    },
                    (request_id, message) = next_board_request(&mut self.board_socket) => {
                        return Some(AgentEvent::McpRequest { request_id, call_id: None, message });
                    }
                },
            }
        }
    }

    fn record_diagnostic(&mut self, text: &str) {
        tracing::debug!(text, "an agent's program says");
        if self.diagnostics.len() == DIAGNOSTICS_MAX {
            self.diagnostics.pop_front();
        }
        self.diagnostics.push_back(shorten(text, DIAGNOSTIC_CHARS_MAX));
    }

    /// Returns the last lines of the program that were not messages, joined by `; `.
    pub fn diagnostics(&self) -> String {
        Vec::from_iter(self.diagnostics.iter().map(String::as_str)).join("; ")
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
