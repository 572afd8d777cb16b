//! Completes the task of an agent that ended its work without a report. The teammate's loop decides when. All kinds of agents use it.

use super::host::AgentHost;
use super::{AgentError, TurnOutcome};
use crate::domain::agent::last_words::with_last_words;
use crate::domain::log::event::VERIFY_STEP;
use crate::domain::task::TaskStatus;
use crate::domain::task::evidence::Evidence;
use crate::domain::task::transition::{Actor, Change};
use crate::domain::team::approval::ReviewSubject;
use crate::domain::team::member_place::ReadOnly;
use crate::domain::team::phase::{ClaimRef, PhaseEvent};
use crate::ports::{StoreError, StoreResult};
use crate::service::attempt_log::REFUSALS_MAX;
use crate::service::completion::{Completion, Incomplete, TaskReport, completed_message};
use crate::service::request_mail;
use crate::tools::{ToolError, sanitized_text};

/// The longest summary, in bytes.
const SUMMARY_BYTES_MAX: usize = 16 * 1024;

impl AgentHost {
    /// Returns the evidence that can complete the held task without a report.
    ///
    /// # Errors
    /// The board cannot be read.
    pub(crate) async fn evidence(&mut self, claim: ClaimRef) -> StoreResult<Evidence> {
        self.refresh_working_dir().await;
        if self.context.working_dir.read_only == Some(ReadOnly::NoPlan) {
            return Ok(Evidence::None);
        }
        let task = match self.services.stores.board.get(claim.task).await {
            Ok(task) => task,
            // The lead takes the claim away soon.
            Err(StoreError::NoTask(_) | StoreError::InvalidTask { .. }) => return Ok(Evidence::None),
            Err(error) => return Err(error),
        };
        if self.context.review.is_some() {
            let approvals = request_mail::load_approvals(&self.services.stores, self.name()).await?;
            if approvals.has_approved_work(&ReviewSubject::of(&task, None)) {
                return Ok(Evidence::Approved);
            }
        }
        Ok(Evidence::of(task.verify.is_some(), self.context.caller.attempt_log.activity(claim)))
    }

    /// Returns true if the agent ended its work with a question that may still be answered.
    pub(crate) fn awaits_answer_to_question(&self) -> bool {
        let now = self.services.clock.now();
        self.turn_control.claim().is_some_and(|claim| self.context.caller.attempt_log.awaits_answer(claim, now))
    }

    /// Returns the reason of the failure of an attempt without a report: its question without an answer, or `cause` with the agent's last
    /// words. Then follows the reason why the completion gate refused the attempt.
    pub(crate) fn failure_without_report(&self, claim: ClaimRef, cause: &str, has_ended: bool) -> String {
        let log = &self.context.caller.attempt_log;
        let reason = match log.unanswered_question(claim) {
            Some(question) if has_ended => question.reason(self.name()),
            _ => with_last_words(cause, &log.last_words(claim)),
        };
        let refusal = log.refusal(claim).map(|refusal| format!("; {refusal}"));
        sanitized_text(&(reason + &refusal.unwrap_or_default()), SUMMARY_BYTES_MAX)
    }

    /// Sends the person the agent's question without an answer, if the task of this attempt has failed and is not tried again.
    pub(crate) async fn forward_question(&self, claim: ClaimRef) {
        let question = self.context.caller.attempt_log.unanswered_question(claim);
        let Some(question) = question.filter(|question| !question.is_with_person()) else { return };
        let Ok(task) = self.services.stores.board.get(claim.task).await else { return };
        if task.status != TaskStatus::Failed || task.last_failed_attempt() != claim.attempt {
            return;
        }
        let text = sanitized_text(&format!("{} failed: {}", task.id, question.reason("I")), SUMMARY_BYTES_MAX);
        if let Err(error) = self.services.outbox().ask_person(self.name(), text).await {
            self.services.events.warn(self.name(), format!("cannot send its question to the person: {error}"));
        }
    }

    /// Completes the held task, with the agent's last words as the summary. If the completion gate refuses, the reason goes into the
    /// agent's context.
    ///
    /// # Errors
    /// The transcript cannot be written.
    pub(crate) async fn complete_by_evidence(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        let Some(claim) = self.turn_control.claim() else { return Ok(Vec::new()) };
        self.refresh_working_dir().await;
        match self.try_complete(claim).await {
            None => {
                // Another turn may follow. Its context must not end with the agent's own text.
                self.append_result(&format!(
                    "the completion of task {} was interrupted; it stays in progress",
                    claim.task
                ))
                .await?;
                Ok(vec![TurnOutcome::Aborted])
            }
            Some(Ok(Completion::Completed(task))) => {
                self.append_result(&completed_message(&task)).await?;
                Ok(self.finish_task())
            }
            Some(Ok(Completion::Incomplete(incomplete))) => self.handle_incomplete(claim, incomplete).await,
            Some(Err(error)) => match TurnOutcome::of_error(&error) {
                Some(outcome) => Ok(vec![outcome]),
                None => self.refuse(claim, error.to_string()).await,
            },
        }
    }

    /// Asks the completion gate. Returns `None` if the turn control ended the turn before its decision.
    async fn try_complete(&self, claim: ClaimRef) -> Option<Result<Completion, ToolError>> {
        let gate = self.context.completion_gate(Actor::holder(self.name(), claim.attempt));
        // The report has no commit message, because last words do not describe a commit. The task's subject is used.
        let summary = sanitized_text(self.context.caller.attempt_log.last_words(claim).trim(), SUMMARY_BYTES_MAX);
        let report = TaskReport { summary, is_implicit: true, ..TaskReport::default() };
        self.run_to_deadline(VERIFY_STEP, gate.complete(claim.task, report)).await
    }

    async fn handle_incomplete(
        &mut self,
        claim: ClaimRef,
        incomplete: Incomplete,
    ) -> Result<Vec<TurnOutcome>, AgentError> {
        let text = incomplete.message(claim.task);
        let outcomes = match incomplete {
            Incomplete::AttemptFailed { .. } => {
                self.forward_question(claim).await;
                self.finish_task()
            }
            Incomplete::ReviewPending { .. } => vec![TurnOutcome::Event(PhaseEvent::AnswerAwaited)],
            Incomplete::Refused { refusal, .. } => {
                self.context.caller.attempt_log.record_refusal(claim, refusal.reason(1));
                vec![TurnOutcome::Event(PhaseEvent::CompletionRefused)]
            }
            Incomplete::ReviewRejected { .. } | Incomplete::NotMerged(_) => return self.refuse(claim, text).await,
        };
        self.append_result(&text).await?;
        Ok(outcomes)
    }

    /// Counts a refusal that the gate did not count. The attempt fails at refusal number [`REFUSALS_MAX`].
    async fn refuse(&mut self, claim: ClaimRef, reason: String) -> Result<Vec<TurnOutcome>, AgentError> {
        self.append_result(&reason).await?;
        if self.context.caller.attempt_log.count_refusal(claim) < REFUSALS_MAX {
            return Ok(vec![TurnOutcome::Event(PhaseEvent::CompletionRefused)]);
        }
        let reason = match self.context.caller.attempt_log.unanswered_question(claim) {
            Some(question) => format!("{}; {reason}", question.reason(self.name())),
            None => reason,
        };
        let outcomes = self.fail_task(claim, reason, false).await;
        self.forward_question(claim).await;
        Ok(outcomes)
    }

    /// Reports that the attempt of this claim failed, and returns the outcomes of the turn.
    pub(super) async fn fail_task(&self, claim: ClaimRef, reason: String, is_final: bool) -> Vec<TurnOutcome> {
        let by = Actor::holder(self.name(), claim.attempt);
        match self.services.stores.board.change(claim.task, Change::Fail { reason, is_final }, &by).await {
            Ok(_) => self.finish_task(),
            Err(error) => vec![failure_outcome(&error.into())],
        }
    }

    /// Adds the result of the completion to the context. Its text has the limits of a tool result.
    async fn append_result(&mut self, text: &str) -> Result<(), AgentError> {
        let text = sanitized_text(text, self.context.limits.output_bytes_max);
        self.append_message(text).await
    }

    /// Ends the claim after a report, and returns the outcomes of the turn.
    pub(super) fn finish_task(&self) -> Vec<TurnOutcome> {
        self.turn_control.clear_reported_claim();
        vec![TurnOutcome::Event(PhaseEvent::Finished), TurnOutcome::Event(PhaseEvent::WorkEnded)]
    }
}

/// Returns the outcome of a failed report, which the agent cannot correct.
pub(super) fn failure_outcome(error: &ToolError) -> TurnOutcome {
    TurnOutcome::of_error(error).unwrap_or_else(|| TurnOutcome::HarnessFailed(error.to_string()))
}
