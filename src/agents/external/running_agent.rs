//! A running process of an external agent: its program, its protocol and its state.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use super::protocol::{AgentEvent, AgentMessage, AgentProtocol, Invocation, QuestionId, SessionStart};
use super::usage::UsageCounter;
use crate::domain::phase::ClaimRef;
use crate::domain::time::UnixMs;
use crate::run::budget::Reservation;
use crate::service::ServiceError;
use crate::service::agent_process::AgentProcess;
use crate::service::command::CommandContext;

/// The last lines of the program that are kept for an error.
const DIAGNOSTICS_MAX: usize = 5;
/// The longest kept line, in characters.
const DIAGNOSTIC_CHARS_MAX: usize = 500;

/// The place of a session: another one needs another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
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

/// A process of an agent.
pub(super) struct RunningAgent {
    process: AgentProcess,
    pub protocol: Box<dyn AgentProtocol>,
    pub place: Place,
    events: VecDeque<AgentEvent>,
    diagnostics: VecDeque<String>,
    /// The ended tools after which the agent waits before its next request.
    pub waiting: Vec<QuestionId>,
    /// True between a prompt and the end of the agent's turn.
    pub is_in_turn: bool,
    /// True after a tool of the current model request has ended: the member's turn has ended with it.
    pub has_stepped: bool,
    /// The start of the current model request.
    pub request_started: Option<Instant>,
    /// The end of the quota window that is used up.
    pub quota_until: Option<UnixMs>,
    /// The agent's own tools that run, by the ids of their calls.
    pub tools: HashMap<String, RunningTool>,
    /// Budget for the current or next model request.
    pub reservation: Option<Reservation>,
    pub usage: UsageCounter,
    /// The size of the last model request, in tokens.
    pub context_tokens: u64,
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
        context: CommandContext,
        place: Place,
    ) -> Result<Self, ServiceError> {
        let Invocation { arguments, variables } = protocol.invocation(start);
        // The arguments have no NUL character, which is the only one that cannot be quoted.
        let arguments = shlex::try_join(arguments.iter().map(String::as_str)).unwrap_or_default();
        let mut context = context;
        context.variables.extend(variables);
        let mut process = AgentProcess::start(&format!("exec {command} {arguments}"), &context).await?;
        for line in protocol.opening(start) {
            // If the program has ended, its output has ended too.
            let _ = process.write_line(&line).await;
        }
        Ok(Self {
            process,
            protocol,
            place,
            events: VecDeque::new(),
            diagnostics: VecDeque::new(),
            waiting: Vec::new(),
            is_in_turn: false,
            has_stepped: false,
            request_started: None,
            quota_until: None,
            tools: HashMap::new(),
            reservation: None,
            usage: UsageCounter::new(start.is_known),
            context_tokens: 0,
        })
    }

    /// Sends a message. If the program has ended, [`Self::next_event`] returns `None`.
    pub async fn send(&mut self, message: &AgentMessage<'_>) {
        let line = self.protocol.write(message);
        if let Err(error) = self.process.write_line(&line).await {
            tracing::debug!(%error, "an agent takes no message");
        }
    }

    /// Returns the next event; `None` after the end of the program. Cancel safe.
    pub async fn next_event(&mut self) -> Option<AgentEvent> {
        loop {
            match self.events.pop_front() {
                Some(AgentEvent::Diagnostic(text)) => self.record_diagnostic(&text),
                Some(event) => return Some(event),
                None => {
                    let line = self.process.next_line().await?;
                    self.events.extend(self.protocol.read(&line));
                }
            }
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

    /// Lets the agent go on after its ended tools. `text` is added to its context.
    pub async fn release(&mut self, text: Option<&str>) {
        let mut text = text;
        for question in std::mem::take(&mut self.waiting) {
            self.send(&AgentMessage::Continue(&question, text.take())).await;
        }
    }

    /// Ends the program and all that it started, and waits for that.
    pub async fn end(self) {
        self.process.end().await;
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
