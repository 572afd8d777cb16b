//! The open requests to a teammate: to stop, to take a prompt, to compact its context.

use std::collections::VecDeque;

use super::command::Prompt;
use crate::agents::{AgentError, AgentHost};
use crate::domain::team::approval::{ApprovalAnswer, Request, RequestKind};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::phase::PhaseEvent;
use crate::team::handle::Reply;

/// The requests to a teammate that it has not dealt with yet.
#[derive(Default)]
pub(super) struct PendingRequests {
    /// The id of a shutdown request.
    pub shutdown: Option<String>,
    /// The prompts that are not in its transcript yet.
    pub prompts: VecDeque<Prompt>,
    /// The number of the last prompt in its transcript.
    pub prompts_taken: u64,
    /// The receivers of the results of requested compactions.
    pub compactions: Vec<Reply>,
}

impl PendingRequests {
    /// Puts the next prompt into the transcript. Returns false if none waits.
    pub async fn record_next_prompt(&mut self, host: &mut AgentHost) -> Result<bool, AgentError> {
        let Some(prompt) = self.prompts.front().cloned() else { return Ok(false) };
        host.append_prompt(prompt.kind, prompt.text).await?;
        // A prompt that cannot be recorded now is recorded at the next poll.
        self.prompts.pop_front();
        self.prompts_taken = prompt.number;
        Ok(true)
    }

    /// Accepts a shutdown request that its model has not answered. Returns the stop event.
    pub async fn accept_shutdown(&mut self, host: &AgentHost) -> Option<PhaseEvent> {
        let request_id = self.shutdown.take()?;
        let requests = &host.services.stores.requests;
        let now = host.services.clock.now();
        let approvals = requests.all().await.unwrap_or_default();
        let is_this_request = |request: &&Request| request.id == request_id && request.kind == RequestKind::Shutdown;
        let answered = approvals.requests.iter().find(is_this_request).and_then(|request| request.answer.as_ref());
        if let Some(answer) = answered {
            return answer.approve.then_some(PhaseEvent::StopRequested);
        }
        let text = "Idle, so it stops.";
        let message = Message {
            request_id: Some(request_id.clone()),
            approve: Some(true),
            ..Message::new(MessageType::ShutdownResponse, host.name(), text, now)
        };
        host.notify_lead(message).await;
        let (text, by) = (text.to_owned(), host.name().to_owned());
        let answer = ApprovalAnswer { approve: true, text, by, at: now, ..ApprovalAnswer::default() };
        if let Err(error) = requests.answer(&request_id, RequestKind::Shutdown, answer).await {
            tracing::debug!("cannot record the answer to a shutdown request: {error}");
        }
        Some(PhaseEvent::StopRequested)
    }
}
