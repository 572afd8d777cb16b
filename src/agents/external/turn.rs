//! One turn of an external agent: it gets the new messages and goes on, until a tool call ends or the agent completes its prompt.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Turn;
use super::protocol::AgentEvent;
use super::start::temporary_failure;
use crate::agents::turn_control::StopLevel;
use crate::agents::{AgentError, TurnOutcome};
use crate::domain::agent::transcript::Usage;
use crate::domain::team::budget::{EXTERNAL_INPUT_TOKENS_MAX, EXTERNAL_OUTPUT_TOKENS_MAX};
use crate::domain::team::phase::PhaseEvent;
use crate::run::budget::BudgetError;
use crate::run::progress::Activity;
use crate::service::attempt_quota::AttemptLimit;

/// The longest wait for the end of a model request whose tools were called already.
const REQUEST_END_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest time for an agent to end its turn after it was interrupted.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of times that the program may end without a request of its model before its member waits.
const ENDS_IN_A_ROW_MAX: u32 = 2;

/// The end of a turn, or none yet.
pub(super) type TurnEnd = Option<Vec<TurnOutcome>>;

/// The time when the process of a turn ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// After this turn.
    Now,
    /// After a later turn.
    Later,
}

impl Turn<'_> {
    /// Runs one turn.
    pub(super) async fn run(mut self) -> Result<(Vec<TurnOutcome>, ProcessEnd), AgentError> {
        if let Some(outcome) = self.reserve_budget().await {
            self.interrupt().await?;
            return Ok((vec![outcome], ProcessEnd::Now));
        }
        let notices = self.take_notices().await;
        if self.running.withheld.is_empty()
            && let Some(notices) = notices.clone()
        {
            self.host.append_message(notices).await?;
        }
        self.send_unsent().await?;
        self.running.release(notices.as_deref()).await;
        let outcomes = self.receive().await?;
        if !self.needs_process(&outcomes) {
            self.finish_process(&outcomes).await?;
        } else if self.host.turn_control.level() >= StopLevel::FinishTurn {
            self.interrupt().await?;
        } else {
            return Ok((outcomes, ProcessEnd::Later));
        }
        Ok((outcomes, ProcessEnd::Now))
    }

    /// Returns true if the process stays for the next turn, or for what the member says about the completion of its task.
    fn needs_process(&self, outcomes: &[TurnOutcome]) -> bool {
        let claim = self.host.turn_control.claim();
        let continues = |outcome: &TurnOutcome| match outcome {
            TurnOutcome::Event(PhaseEvent::TurnEnded) => true,
            TurnOutcome::Event(PhaseEvent::WorkEnded) => claim.is_some(),
            _ => false,
        };
        self.running.scope.claim == claim && outcomes.iter().all(continues)
    }

    /// Receives the usage that the process has not reported yet. After a failure, and in an aborted turn, a request that may have been
    /// made counts as its maximum.
    async fn finish_process(&mut self, outcomes: &[TurnOutcome]) -> Result<(), AgentError> {
        let is_failure = |outcome: &TurnOutcome| {
            matches!(
                outcome,
                TurnOutcome::ModelFailed { .. } | TurnOutcome::AgentFailed(_) | TurnOutcome::AgentEnded { .. }
            )
        };
        if !outcomes.iter().any(is_failure) && self.host.turn_control.level() < StopLevel::ClaimLost {
            self.finish_request().await?;
            // Only the result of a turn has the usage of requests without events, such as those of a compaction.
            self.interrupt().await?;
        }
        self.record_aborted_tools();
        Ok(())
    }

    /// Returns the notices for the agent: its turn count and, after a compaction, who it is.
    async fn take_notices(&mut self) -> Option<String> {
        let mut notices: Vec<String> = self.running.turn_notice.take().into_iter().collect();
        // A prompt gets the identity block when the agent takes it.
        if !self.running.withheld.is_empty() {
            notices.extend(self.take_due_identity().await);
        }
        (!notices.is_empty()).then(|| notices.join("\n\n"))
    }

    /// Receives events until the turn has ended.
    async fn receive(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        let progress = Arc::clone(&self.host.progress);
        let turn_control = Arc::clone(&self.host.turn_control);
        loop {
            let (activity, time_max) = match self.running.tools.values().next() {
                Some(tool) => (Activity::RunningTool(tool.name.as_str().into()), self.tool_time_max()),
                None => (Activity::AskingModel, self.host.services.spec.limits.model.silence_timeout),
            };
            let busy = progress.start_activity(activity, time_max.saturating_mul(2));
            let event = tokio::select! {
                biased;
                () = turn_control.wait_for_level(StopLevel::ClaimLost) => return Ok(vec![TurnOutcome::Aborted]),
                event = self.running.connection.next_event() => event,
                () = sleep_until(Instant::now() + time_max) => return Ok(vec![self.end_after_silence(time_max)]),
            };
            drop(busy);
            let end = match event {
                Some(event) => {
                    if let Some(outcome) = self.count(&event).await? {
                        return Ok(vec![outcome]);
                    }
                    self.handle(event).await?
                }
                None => Some(vec![self.continue_after_end()]),
            };
            if let Some(outcomes) = end {
                return Ok(outcomes);
            }
        }
    }

    /// Counts an event that leaves a record. Returns the outcome of the turn if the attempt has passed a limit.
    async fn count(&mut self, event: &AgentEvent) -> Result<Option<TurnOutcome>, AgentError> {
        let (claim, quota) = (self.host.turn_control.claim(), &self.host.context.caller.attempt_quota);
        if let AgentEvent::LineRefused(reason) = event {
            quota.fail(claim, AttemptLimit::Line(reason.clone()));
        } else if let Some(bytes) = event.kept_bytes() {
            // The outcome below has the limit.
            let _ = quota.add_record(claim, bytes);
            self.host.services.events.wait_for_capacity().await;
        }
        self.host.limit_outcome().await
    }

    /// The longest time that a tool of the agent may take. The agent's own limit for commands is shorter.
    fn tool_time_max(&self) -> Duration {
        self.host.services.spec.limits.tools.command_timeout_max.saturating_mul(2)
    }

    /// Returns the outcome after the program sent nothing for a time.
    fn end_after_silence(&mut self, silence: Duration) -> TurnOutcome {
        let reason = format!("{} sent nothing for {} s, so it was ended", self.agent.program.name(), silence.as_secs());
        if self.running.has_open_prompt && !self.running.has_taken_prompt {
            // The program hangs and not its model: it has not even taken the prompt.
            return self.continue_session(reason);
        }
        temporary_failure(format!("{reason}; its session continues"))
    }

    /// Returns the outcome after the program ended by itself or was killed.
    fn continue_after_end(&mut self) -> TurnOutcome {
        self.record_aborted_tools();
        let name = self.agent.program.name();
        let diagnostics = self.running.connection.diagnostics();
        let reason =
            if diagnostics.is_empty() { format!("{name} ended") } else { format!("{name} ended: {diagnostics}") };
        self.continue_session(reason)
    }

    /// Lets the next turn resume the session, unless the program failed too often without a request of its model.
    pub(super) fn continue_session(&mut self, reason: String) -> TurnOutcome {
        // Without a request of its model it has used nothing.
        self.decline_request();
        let claim = self.host.turn_control.claim();
        if let Some(limit) = self.host.context.caller.attempt_quota.add_program_end(claim, &reason) {
            return TurnOutcome::AgentFailed(limit.to_string());
        }
        let has_called = std::mem::take(&mut self.agent.has_called);
        if std::mem::take(&mut self.agent.has_requested) {
            return TurnOutcome::AgentEnded { reason, is_fruitless: !has_called };
        }
        if self.agent.ends_in_a_row >= ENDS_IN_A_ROW_MAX {
            self.agent.ends_in_a_row = 0;
            return temporary_failure(reason);
        }
        self.agent.ends_in_a_row += 1;
        TurnOutcome::AgentEnded { reason, is_fruitless: false }
    }

    /// Reserves budget for the next model request. Returns the outcome of the turn if there is none.
    pub(super) async fn reserve_budget(&mut self) -> Option<TurnOutcome> {
        if self.running.request.reservation.is_some() {
            return None;
        }
        match self.host.reserve_budget(self.host.spec.model.usage_name(), self.request_max()).await {
            Some(Ok(reservation)) => {
                self.running.request.reservation = Some(reservation);
                None
            }
            Some(Err(BudgetError::Spent(spent))) => Some(TurnOutcome::BudgetSpent(spent)),
            Some(Err(error @ BudgetError::Unrecorded(_))) => Some(temporary_failure(error.to_string())),
            None => Some(TurnOutcome::Aborted),
        }
    }

    /// Returns the estimated most that the current or next model request can use.
    pub(super) fn request_max(&self) -> Usage {
        let input_tokens = self.running.request.context_tokens + EXTERNAL_INPUT_TOKENS_MAX;
        Usage { input_tokens, output_tokens: EXTERNAL_OUTPUT_TOKENS_MAX, ..Usage::default() }
    }

    /// Receives the end of the current model request, so that its usage is known.
    async fn finish_request(&mut self) -> Result<(), AgentError> {
        let deadline = Instant::now() + REQUEST_END_TIMEOUT;
        while self.running.request.started.is_some() && self.running.has_open_prompt {
            let Ok(Some(event)) = timeout_at(deadline, self.running.connection.next_event()).await else { break };
            if matches!(
                event,
                AgentEvent::RequestEnded(_) | AgentEvent::QuotaLow { .. } | AgentEvent::PromptCompleted { .. }
            ) {
                drop(self.handle(event).await?);
            }
        }
        // The next one was not made: its tools or its prompt got no answer.
        self.decline_request();
        Ok(())
    }

    /// Interrupts the agent, so that its session has the results of its tools, and the bill all of its usage.
    async fn interrupt(&mut self) -> Result<(), AgentError> {
        if self.running.has_open_prompt {
            self.running.release(None).await;
            self.running.connection.interrupt().await;
            let deadline = Instant::now() + INTERRUPT_TIMEOUT;
            loop {
                let next_event = timeout(deadline - Instant::now(), self.running.connection.next_event());
                let Ok(Some(event)) = next_event.await else { break };
                let is_end = matches!(event, AgentEvent::PromptCompleted { .. });
                self.record_while_stopping(event).await?;
                if is_end {
                    break;
                }
            }
        }
        self.record_aborted_tools();
        Ok(())
    }
}
