//! Reads a member's mail into its transcript.

use std::sync::Arc;

use super::host::AgentHost;
use super::{AgentError, TurnOutcome};
use crate::domain::agent::prompt::mail_record;
use crate::domain::log::event::EventKind;
use crate::domain::team::approval::{PLAN_BYTES_MAX, Request, RequestKind};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::HUMAN;
use crate::domain::team::phase::PhaseEvent;
use crate::domain::time::UnixMs;
use crate::ports::Delivery;

/// Bytes of mail put into a context at once. The rest follows in the next turn.
const MAIL_BYTES_MAX: usize = 64 * 1024;

impl AgentHost {
    /// Puts waiting mail into the context and returns its effects. Notices alone have none.
    pub async fn read_inbox(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        loop {
            match self.read_mail_batch().await? {
                // Only notices so far; other mail may follow.
                Some(outcomes) if outcomes.is_empty() => {}
                outcomes => return Ok(outcomes.unwrap_or_default()),
            }
        }
    }

    /// Puts the next batch of mail into the context. Returns `None` if none waits.
    async fn read_mail_batch(&mut self) -> Result<Option<Vec<TurnOutcome>>, AgentError> {
        let mailbox = Arc::clone(&self.services.stores.mailbox);
        let mut deliveries = match mailbox.take(self.name(), self.conversation.delivered_keys()).await {
            Ok(deliveries) => deliveries,
            // A person's stop request must work without the lock that taking mail needs.
            Err(_) if self.has_stop_request().await? => {
                return Ok(Some(vec![TurnOutcome::Event(PhaseEvent::StopRequested)]));
            }
            Err(error) => return Err(error.into()),
        };
        if deliveries.is_empty() {
            if self.has_unsettled_mail {
                self.settle().await;
            }
            return Ok(None);
        }
        deliveries.truncate(batch_len(&deliveries));
        let messages: Vec<Message> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        let keys: Vec<String> = deliveries.into_iter().map(|delivery| delivery.key).collect();
        self.conversation.record(self.with_claim(mail_record(&messages, keys.clone()))).await?;
        // The mailbox soon shows no mail. The new message keeps the lead from ending the session before the next report.
        self.progress.set_new_message(self.conversation.prompts.is_answer_due);
        self.settle().await;
        for (message, key) in messages.iter().zip(keys) {
            self.services.events.record(EventKind::MessageDelivered {
                to: self.name().to_owned(),
                from: message.from.clone(),
                message: key,
            });
            if let Some(claim) = self.turn_control.claim()
                && !message.kind.is_notice()
            {
                self.context.caller.attempt_log.record_mail(claim, &message.from);
            }
            self.record_request(message).await;
            if message.from == HUMAN && message.request_id.is_some() {
                // The person's command answered a plan or a review, and writes no event log.
                self.services.events.request_requests_read();
            }
        }
        Ok(Some(mail_outcomes(&messages, self.services.launched_at)))
    }

    /// Returns true if a person's stop request waits in the mailbox. Takes no lock.
    async fn has_stop_request(&self) -> Result<bool, AgentError> {
        let waiting = self.services.stores.mailbox.peek(self.name()).await?;
        let messages: Vec<Message> = waiting.into_iter().map(|delivery| delivery.message).collect();
        let outcomes = mail_outcomes(&messages, self.services.launched_at);
        Ok(outcomes.contains(&TurnOutcome::Event(PhaseEvent::StopRequested)))
    }

    /// Removes the mail in the transcript from the mailbox. After an error that mail still counts as delivered, and the next call tries
    /// again.
    async fn settle(&mut self) {
        let settled = match self.conversation.synced_keys().await {
            Ok(keys) => self.services.stores.mailbox.settle(self.spec.name.as_str(), keys).await,
            Err(error) => Err(error),
        };
        self.has_unsettled_mail = settled.is_err();
        if let Err(error) = settled {
            self.services
                .events
                .warn(self.name(), format!("cannot remove its read mail from the mailbox yet: {error}"));
        }
    }

    /// Records a request that another program sent by mail, so that it can be answered. Requests of Brigade are recorded already.
    async fn record_request(&self, message: &Message) {
        let kind = match message.kind {
            MessageType::PlanApprovalRequest => RequestKind::PlanApproval,
            MessageType::ShutdownRequest if message.from != HUMAN => RequestKind::Shutdown,
            _ => return,
        };
        let Some(request) = request_of(message, kind, self.name(), self.services.clock.now()) else { return };
        if let Err(error) = self.services.stores.requests.record(request).await {
            self.services.events.warn(self.name(), format!("cannot record a request: {error}"));
        }
    }
}

/// Returns the approval request in a message of another program. `to` must answer it. A plan over the size limit stays in the mail
/// only.
pub(crate) fn request_of(message: &Message, kind: RequestKind, to: &str, now: UnixMs) -> Option<Request> {
    let request = Request::new(message.request_id.as_deref()?, kind, &message.from, to, now);
    let plan = message.plan.clone().filter(|plan| plan.len() <= PLAN_BYTES_MAX).unwrap_or_default();
    Some(Request { plan, ..request })
}

/// Returns the number of deliveries that are put into the context at once: at least one.
fn batch_len(deliveries: &[Delivery]) -> usize {
    let mut bytes = 0;
    let fits = |delivery: &&Delivery| {
        bytes += delivery.message.content.len() + delivery.message.plan.as_ref().map_or(0, String::len);
        bytes <= MAIL_BYTES_MAX
    };
    deliveries.iter().take_while(fits).count().max(1)
}

/// Returns the effects of mail. A shutdown request from before the launch is ignored: it was for an earlier run.
fn mail_outcomes(messages: &[Message], launched_at: UnixMs) -> Vec<TurnOutcome> {
    let mut outcomes = Vec::new();
    for message in messages {
        match message.kind {
            MessageType::ShutdownRequest if message.timestamp < launched_at.as_seconds() => {}
            MessageType::ShutdownRequest if message.from == HUMAN => {
                outcomes.push(TurnOutcome::Event(PhaseEvent::StopRequested));
            }
            MessageType::ShutdownRequest => {
                outcomes.push(TurnOutcome::ShutdownRequested {
                    request_id: message.request_id.clone().unwrap_or_default(),
                });
            }
            kind if kind.is_notice() => {}
            _ => outcomes.push(TurnOutcome::Event(PhaseEvent::Mail)),
        }
    }
    outcomes.dedup();
    outcomes
}
