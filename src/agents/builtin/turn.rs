//! One turn: the model is asked, then the requested tools run. Each part is recorded before the next starts.
//!
//! A turn is never dropped. [`crate::agents::turn_control`] decides which of its remaining steps are skipped. A call that was not made
//! or not finished gets a result that says so, because providers refuse a context with a missing result.

use std::sync::Arc;

use tokio::time::Instant;

use super::Turn;
use super::repetition::Finding;
use super::request_prefix::RequestPrefix;
use super::retry::RequestFailure;
use super::tool_calls::{calls_of, clear_cut_arguments, move_reports_last, remove_call_markup};
use crate::agents::{AgentError, ModelFailureKind, TurnOutcome, identity};
use crate::domain::agent::text_tool_call::{ToolSignature, contains_tool_call};
use crate::domain::agent::transcript::Block;
use crate::domain::log::event::REPORT_TOOL;
use crate::domain::task::evidence::Evidence;
use crate::domain::team::account::Account;
use crate::domain::team::phase::PhaseEvent;
use crate::domain::team::team_spec::ModelSpec;
use crate::domain::time::UnixMs;
use crate::ports::{ChatMessage, ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason, ToolSpec};

/// Maximum number of consecutive compactions without a turn. After them the context counts as not repairable.
const COMPACTIONS_IN_A_ROW_MAX: u32 = 2;
/// Consecutive answers cut by the length limit after which the attempt fails.
const TRUNCATED_IN_A_ROW_MAX: u32 = 3;

const TEXT_CALL: &str = "That was text, so nothing was called and nothing has happened. To call a tool, call it now as a tool call, not as text or a code block.";

impl Turn<'_> {
    /// Runs one turn: asks the model and runs the tools that it calls.
    pub(super) async fn run(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        self.end_fallback_of_other_task();
        if self.must_compact()
            && let Some(outcome) = self.compact().await?
        {
            return Ok(vec![outcome]);
        }
        self.begin_context().await?;
        match self.request_turn().await {
            Ok(response) => {
                self.agent.compactions_in_a_row = 0;
                self.handle_response(response).await
            }
            Err(RequestFailure::Model(ModelError::ContextTooLong { message, window_tokens })) => {
                self.agent.model.set_reported_window(window_tokens);
                self.repair_context(message).await
            }
            Err(failure) => Ok(vec![self.outcome_without_answer(failure)]),
        }
    }

    /// Returns the outcome of a turn without an answer. After a failure of all its models, the next turn asks the first one again.
    pub(super) fn outcome_without_answer(&self, failure: RequestFailure) -> TurnOutcome {
        let has_failed = matches!(failure, RequestFailure::Model(_));
        let outcome = outcome_of(failure, &self.agent.model.current().account, self.host.services.clock.now());
        if has_failed {
            self.end_fallback();
        }
        outcome
    }

    /// Records the identity block, unless the context has it. A new role makes a new block.
    pub(super) async fn begin_context(&mut self) -> Result<(), AgentError> {
        let host = &mut *self.host;
        if host.conversation.identity.as_ref().is_some_and(|block| host.profile().is_introduced_by(block)) {
            return Ok(());
        }
        self.agent.has_warned_of_text_call = false;
        let block = identity::render(host).await;
        Ok(host.conversation.set_identity(block).await?)
    }

    async fn repair_context(&mut self, reason: String) -> Result<Vec<TurnOutcome>, AgentError> {
        if self.agent.compactions_in_a_row >= COMPACTIONS_IN_A_ROW_MAX {
            self.agent.compactions_in_a_row = 0;
            // The task itself can be too long. Other tasks can be done.
            return Ok(vec![match self.host.turn_control.claim() {
                Some(_) => {
                    TurnOutcome::AttemptFailed(format!("its context is too long, even when compacted: {reason}"))
                }
                None => TurnOutcome::ModelFailed { reason, kind: ModelFailureKind::Permanent },
            }]);
        }
        Ok(vec![self.compact().await?.unwrap_or(TurnOutcome::Event(PhaseEvent::TurnEnded))])
    }

    /// Sends the context to the model.
    async fn request_turn(&mut self) -> Result<ModelResponse, RequestFailure> {
        let messages = self.host.conversation.messages();
        self.send(&self.agent.prefix, messages, RequestPurpose::Turn).await
    }

    /// Sends a request, with retries, and records its start, its end and its reported usage.
    pub(super) async fn send(
        &self,
        prefix: &RequestPrefix,
        messages: Arc<[Arc<ChatMessage>]>,
        purpose: RequestPurpose,
    ) -> Result<ModelResponse, RequestFailure> {
        loop {
            self.skip_used_up_models().await;
            let index = self.agent.model.index();
            match self.send_to_model(prefix, Arc::clone(&messages), purpose).await {
                Err(RequestFailure::Model(error)) if self.use_fallback(index, &error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Sends a request to the model that answers now.
    async fn send_to_model(
        &self,
        prefix: &RequestPrefix,
        messages: Arc<[Arc<ChatMessage>]>,
        purpose: RequestPurpose,
    ) -> Result<ModelResponse, RequestFailure> {
        let model = self.agent.model.current();
        let request = ModelRequest {
            teammate: self.host.name().into(),
            model: model.spec.model.as_str().into(),
            system: Arc::clone(&prefix.system_prompt),
            messages,
            tools: Arc::clone(&prefix.tool_specs),
            output_tokens_max: self.output_tokens_max(),
            purpose,
            silence_timeout: self.host.services.spec.limits.model.silence_timeout,
            answer_timeout: self.host.services.spec.limits.model.answer_timeout,
        };
        self.host.record_request_start();
        let started = Instant::now();
        let mut size = prefix.size(&request, self.own_tokens().await.as_ref());
        size.input_tokens_max += extra_body_bytes(&model.spec);
        let response = self.request(model, &request, size).await?;
        if let Some(usage) = response.usage {
            prefix.record_usage(&request, usage);
        }
        self.host.record_request_end(response.usage.unwrap_or_default(), Some(started));
        Ok(response)
    }

    /// Records the model's answer and runs its tool calls.
    async fn handle_response(&mut self, mut response: ModelResponse) -> Result<Vec<TurnOutcome>, AgentError> {
        clear_cut_arguments(&mut response.content, &response.stop);
        for argument in remove_call_markup(&mut response.content) {
            self.host
                .services
                .events
                .warn(self.host.name(), format!("removed the markup of a tool call from {argument}"));
        }
        move_reports_last(&mut response.content, &response.stop);
        self.host.record_response(&response).await?;
        if let Some(outcome) = self.host.limit_outcome().await? {
            return Ok(vec![outcome]);
        }
        let text: String = response.content.iter().filter_map(Block::as_text).collect();
        let calls = calls_of(response.content, &response.stop);
        let continues = match response.stop {
            StopReason::Refusal => false,
            StopReason::PauseTurn | StopReason::MaxTokens | StopReason::ContextFull => true,
            _ if calls.is_empty() => self.warn_of_text_call(&text).await?,
            _ => true,
        };
        self.agent.has_warned_of_text_call &= calls.is_empty();
        let is_truncated = response.stop == StopReason::MaxTokens;
        let is_cut_text = is_truncated && calls.is_empty();
        let is_passage_repeated = response.stop == StopReason::Repetition && calls.is_empty() && !continues;
        let is_cut_report =
            is_truncated && calls.last().is_some_and(|call| call.tool == REPORT_TOOL && call.skip.is_some());
        let has_whole_call = calls.iter().any(|call| call.skip.is_none());
        let failure_reason = self.record_truncated(is_truncated, has_whole_call);
        let mut outcomes = self.run_calls(calls).await?;
        if !outcomes.contains(&TurnOutcome::Event(PhaseEvent::Finished))
            && let Some(outcome) = self.host.limit_outcome().await?
        {
            return Ok(vec![outcome]);
        }
        // After cut words or a cut report, verify decides: the agent could write without end.
        let is_over = (is_cut_text || is_cut_report) && self.can_verify().await?;
        if !is_over && let Some(reason) = failure_reason {
            outcomes.push(TurnOutcome::AttemptFailed(reason));
            return Ok(outcomes);
        }
        // A model that repeats calls as text would go on with them.
        if is_cut_text && !is_over && !self.warn_of_text_call(&text).await? {
            self.host
                .append_message("Your answer was cut by its length limit. Continue from there.".to_owned())
                .await?;
        }
        if response.stop == StopReason::ContextFull {
            outcomes.extend(self.compact().await?);
        }
        let has_ended = |outcome: &TurnOutcome| {
            matches!(outcome, TurnOutcome::Event(PhaseEvent::WorkEnded) | TurnOutcome::HarnessFailed(_))
        };
        if !outcomes.iter().any(has_ended) {
            // A report ends the work: another request would only bring closing words.
            let has_reported = outcomes.last() == Some(&TurnOutcome::Event(PhaseEvent::Finished));
            outcomes.push(if is_over || has_reported {
                TurnOutcome::Event(PhaseEvent::WorkEnded)
            } else {
                self.end_of_turn(continues, is_passage_repeated)
            });
        }
        if outcomes.contains(&TurnOutcome::Event(PhaseEvent::WorkEnded)) {
            self.end_fallback();
        }
        Ok(outcomes)
    }

    /// Returns the end of a turn after which the model goes on or ends its work, unless it repeats itself. Then it is stopped: with a task
    /// it has reported nothing, so its attempt ends. The first turn that does nothing new counts as the end of its work.
    fn end_of_turn(&mut self, continues: bool, is_passage_repeated: bool) -> TurnOutcome {
        let finding = if continues { self.agent.repetition.take() } else { None };
        let action = match finding {
            _ if is_passage_repeated => "wrote the same passage again and again",
            None if continues => return TurnOutcome::Event(PhaseEvent::TurnEnded),
            None => return TurnOutcome::Event(PhaseEvent::WorkEnded),
            Some(_) => "made the same calls again with the same results",
        };
        let is_stopped = finding != Some(Finding::NothingNew) && self.host.turn_control.claim().is_some();
        let effect = if is_stopped { "it was stopped" } else { "its work counts as ended" };
        self.host.services.events.warn(self.host.name(), format!("{action}, so {effect}"));
        if !is_stopped {
            return TurnOutcome::Event(PhaseEvent::WorkEnded);
        }
        self.end_fallback();
        TurnOutcome::AttemptFailed(format!("it {action}, so it was stopped"))
    }

    /// Warns of a cut answer. Returns the reason to give up after too many of them in a row that had no whole call.
    fn record_truncated(&mut self, is_truncated: bool, has_whole_call: bool) -> Option<String> {
        let is_wasted = is_truncated && !has_whole_call;
        self.agent.truncated_in_a_row = if is_wasted { self.agent.truncated_in_a_row + 1 } else { 0 };
        if !is_truncated {
            return None;
        }
        let limit = format!("cut at {} tokens (output_tokens_max)", self.output_tokens_max());
        self.host.services.events.warn(self.host.name(), format!("answer {limit}"));
        if self.agent.truncated_in_a_row < TRUNCATED_IN_A_ROW_MAX {
            return None;
        }
        self.agent.truncated_in_a_row = 0;
        Some(format!("{TRUNCATED_IN_A_ROW_MAX} answers of its model in a row were {limit}"))
    }

    /// Returns true if the agent changed something and its task has a verify command. The command can decide about the work now.
    async fn can_verify(&mut self) -> Result<bool, AgentError> {
        let Some(claim) = self.host.turn_control.claim() else { return Ok(false) };
        let has_worked = self.host.context.caller.attempt_log.activity(claim).has_worked;
        Ok(has_worked && self.host.evidence(claim).await? == Evidence::Verify)
    }

    /// Warns a model once that it wrote a tool call as text, unless verify can decide. Returns true if it was warned now, and should get
    /// another turn.
    async fn warn_of_text_call(&mut self, text: &str) -> Result<bool, AgentError> {
        if self.agent.has_warned_of_text_call
            || !contains_tool_call(text, &tool_signatures(&self.agent.prefix.tool_specs))
            || self.can_verify().await?
        {
            return Ok(false);
        }
        self.agent.has_warned_of_text_call = true;
        self.host.append_message(TEXT_CALL.to_owned()).await?;
        Ok(true)
    }
}

/// Returns the most tokens that `extra_body` can add to a request.
fn extra_body_bytes(model: &ModelSpec) -> u64 {
    model.extra_body.iter().map(|(key, value)| (key.len() + value.to_string().len()) as u64).sum()
}

fn tool_signatures(tools: &[ToolSpec]) -> Vec<ToolSignature<'_>> {
    let mut signatures = Vec::new();
    for tool in tools {
        let arguments = tool.input_schema["properties"].as_object().into_iter().flat_map(|all| all.keys());
        signatures.push(ToolSignature { name: &tool.name, arguments: arguments.map(String::as_str).collect() });
    }
    signatures
}

/// Returns the outcome of a turn without an answer from the model with this account.
fn outcome_of(failure: RequestFailure, account: &Account, now: UnixMs) -> TurnOutcome {
    match failure {
        RequestFailure::Aborted => TurnOutcome::Aborted,
        RequestFailure::BudgetSpent(spent) => TurnOutcome::BudgetSpent(*spent),
        RequestFailure::Model(error) => {
            let kind = match &error {
                ModelError::Limited { wait, is_quota: true, .. } => {
                    ModelFailureKind::Quota { account: account.clone(), until: now.plus(wait.unwrap_or_default()) }
                }
                ModelError::Limited { wait: retry_after, .. } | ModelError::Temporary { retry_after, .. } => {
                    ModelFailureKind::Temporary { retry_after: *retry_after }
                }
                ModelError::WrongSetting(_) | ModelError::NoCredit(_) | ModelError::NoServer(_) => {
                    ModelFailureKind::WrongSetting
                }
                ModelError::ContextTooLong { .. } | ModelError::Final(_) => ModelFailureKind::Permanent,
                ModelError::InvalidAnswer(reason) => return TurnOutcome::AgentFailed(format!("its model {reason}")),
            };
            TurnOutcome::ModelFailed { reason: error.to_string(), kind }
        }
    }
}
