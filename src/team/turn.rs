//! One turn: the model is asked, then the requested tools run. Each part is recorded before the next starts.
//!
//! A turn is never dropped. [`super::cancellation`] decides which of its remaining steps are skipped. A call that was not made or not
//! finished gets a result that says so, because providers refuse a context with a missing result.

use std::sync::{Arc, PoisonError};

use serde_json::Value;
use tokio::time::Instant;

use super::agent::{Agent, AgentError, TurnOutcome};
use super::cancellation::StopLevel;
use super::conversation::text_of;
use super::liveness::Activity;
use super::retry::RequestFailure;
use super::worktree::WorktreeSetup;
use crate::domain::event::EventKind;
use crate::domain::phase::{ClaimRef, PhaseEvent};
use crate::domain::text_tool_call::{ToolSignature, contains_tool_call};
use crate::domain::transcript::{Block, Role, Usage};
use crate::ports::{ChatMessage, ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason, ToolSpec};
use crate::tools::{Tool, ToolEffect, ToolError, ToolOutput};

/// Maximum number of consecutive compactions without a turn. After them the context counts as not repairable.
const COMPACTIONS_IN_A_ROW_MAX: u32 = 2;
/// Consecutive answers cut by the length limit after which the attempt fails.
const TRUNCATED_IN_A_ROW_MAX: u32 = 3;
/// Bytes of the context's end that replace a summary if no model can write one.
const SUMMARY_FALLBACK_BYTES: usize = 8 * 1024;
/// Characters shown of the name of an unknown tool.
const TOOL_NAME_CHARS_MAX: usize = 64;
/// The tool that reports a task's result.
const REPORT_TOOL: &str = "task_update";

const TRUNCATED: &str =
    "Not called: the answer was cut by its length limit. Call it again, and split the work into smaller calls.";
const UNKNOWN_STOP: &str =
    "Not called: the answer ended for a reason Brigade does not know, so this call may be incomplete. Call it again.";
const ARGUMENTS_NOT_OBJECT: &str = "Not called: the arguments are not a JSON object. Call it again with valid JSON.";
const REFUSED: &str = "Not called: the answer was a refusal.";
const TEXT_CALL: &str = "That was text, so nothing was called and nothing has happened. To call a tool, call it now as a tool call, not as text or a code block.";
const ABORTED: &str = "the turn was aborted while it ran";
const INTERRUPTED: &str =
    "Interrupted: the turn was aborted during this call. It may have had effects. Check before you repeat it.";

/// A tool call by the model.
struct ToolCall {
    id: String,
    tool: String,
    input: Value,
}

impl Agent {
    /// Runs one turn: asks the model and runs the tools that it calls.
    pub async fn turn(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        if self.turn_control.level() >= StopLevel::FinishTurn {
            return Ok(vec![TurnOutcome::Event(PhaseEvent::TurnEnded)]);
        }
        self.services.events.wait_for_capacity().await;
        if self.is_llm()
            && self.is_context_large().await
            && let Some(outcome) = self.compact().await?
        {
            return Ok(vec![outcome]);
        }
        match self.request_turn().await {
            Ok(response) => {
                self.compactions_in_a_row = 0;
                let mut outcomes = self.handle_response(response).await?;
                if self.turn_control.level() == StopLevel::FinishTurn
                    && outcomes == [TurnOutcome::Event(PhaseEvent::TurnEnded)]
                {
                    outcomes = self.report_if_done().await?;
                }
                Ok(outcomes)
            }
            Err(RequestFailure::Model(ModelError::ContextTooLong { message, window_tokens })) => {
                self.reported_window = window_tokens.or(self.reported_window);
                self.repair_context(message).await
            }
            Err(failure) => Ok(vec![outcome_of(failure)]),
        }
    }

    /// Lets a `runbook` member report the result of its last turn before it stops. Makes no other call.
    pub(super) async fn report_if_done(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        let no_report = vec![TurnOutcome::Event(PhaseEvent::TurnEnded)];
        let is_aborted = self.turn_control.level() >= StopLevel::ClaimLost;
        if self.is_llm() || is_aborted || self.task().is_none() {
            return Ok(no_report);
        }
        let Ok(response) = self.request_turn().await else { return Ok(no_report) };
        let is_other_call = |block: &Block| matches!(block, Block::ToolUse { name, .. } if *name != REPORT_TOOL);
        if response.content.iter().any(is_other_call) { Ok(no_report) } else { self.handle_response(response).await }
    }

    async fn repair_context(&mut self, reason: String) -> Result<Vec<TurnOutcome>, AgentError> {
        if self.compactions_in_a_row >= COMPACTIONS_IN_A_ROW_MAX {
            self.compactions_in_a_row = 0;
            return Ok(vec![TurnOutcome::ModelFailed { reason, is_permanent: true, retry_after: None }]);
        }
        Ok(vec![self.compact().await?.unwrap_or(TurnOutcome::Event(PhaseEvent::TurnEnded))])
    }

    /// Sends the context to the model.
    async fn request_turn(&mut self) -> Result<ModelResponse, RequestFailure> {
        let identity_block = self.identity_block().await;
        let messages = self.conversation.messages(&identity_block);
        let max_usage = self.max_usage(&identity_block, 0).await;
        self.send(messages, RequestPurpose::Turn, max_usage).await
    }

    /// Sends a request that can use at most `max_usage`, with retries, and records its start and end.
    async fn send(
        &self,
        messages: Arc<[Arc<ChatMessage>]>,
        purpose: RequestPurpose,
        max_usage: Usage,
    ) -> Result<ModelResponse, RequestFailure> {
        let request = ModelRequest {
            teammate: self.name().into(),
            model: self.spec.model.model.as_str().into(),
            system: Arc::clone(&self.system),
            messages,
            tools: Arc::clone(&self.tool_specs),
            output_tokens_max: self.output_tokens_max(),
            purpose,
            silence_timeout: self.services.limits.model_silence_timeout,
            answer_timeout: self.services.limits.model_answer_timeout,
        };
        let (teammate, task) = (self.name().to_owned(), self.task());
        self.services.events.record(EventKind::TurnStarted { teammate: teammate.clone(), task });
        let started = Instant::now();
        let response = self.request(&request, max_usage).await?;
        let usage = response.usage.unwrap_or_default();
        self.services.events.record(EventKind::TurnFinished {
            teammate,
            task,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            ms: elapsed_ms(started),
        });
        Ok(response)
    }

    /// Records the model's answer and runs its tool calls.
    async fn handle_response(&mut self, response: ModelResponse) -> Result<Vec<TurnOutcome>, AgentError> {
        let mut record = self.message_with_claim(Role::Assistant, response.content.clone());
        record.usage = response.usage.filter(|usage| usage.total() > 0);
        if record.content.is_empty() {
            record.content.push(Block::text("(nothing more)"));
        }
        self.conversation.record(record).await?;
        self.record_text(&response.content);
        let text: String = response.content.iter().filter_map(text_of).collect();
        let calls: Vec<ToolCall> = response.content.into_iter().filter_map(call_of).collect();
        let continues = match response.stop {
            StopReason::Refusal => false,
            StopReason::PauseTurn | StopReason::MaxTokens | StopReason::ContextFull => true,
            _ if calls.is_empty() => self.warn_of_text_call(&text).await?,
            _ => true,
        };
        self.has_warned_of_text_call &= calls.is_empty();
        let failure_reason = self.record_truncated(response.stop == StopReason::MaxTokens);
        if response.stop == StopReason::MaxTokens && calls.is_empty() && failure_reason.is_none() {
            self.append_message("Your answer was cut by its length limit. Continue from there.".to_owned()).await?;
        }
        let mut outcomes = self.run_calls(calls, &response.stop).await?;
        if let Some(reason) = failure_reason {
            outcomes.push(TurnOutcome::Truncated(reason));
            return Ok(outcomes);
        }
        if response.stop == StopReason::ContextFull {
            outcomes.extend(self.compact().await?);
        }
        let has_ended = |outcome: &TurnOutcome| {
            matches!(outcome, TurnOutcome::Event(PhaseEvent::WorkEnded) | TurnOutcome::HarnessFailed(_))
        };
        if !outcomes.iter().any(has_ended) {
            outcomes.push(TurnOutcome::Event(if continues { PhaseEvent::TurnEnded } else { PhaseEvent::WorkEnded }));
        }
        Ok(outcomes)
    }

    /// Warns of a cut answer. Returns the reason to give up after too many of them in a row.
    fn record_truncated(&mut self, is_truncated: bool) -> Option<String> {
        self.truncated_in_a_row = if is_truncated { self.truncated_in_a_row + 1 } else { 0 };
        if !is_truncated {
            return None;
        }
        let limit = format!("cut at {} tokens (output_tokens_max)", self.output_tokens_max());
        self.services.events.warn(self.name(), format!("answer {limit}"));
        if self.truncated_in_a_row < TRUNCATED_IN_A_ROW_MAX {
            return None;
        }
        self.truncated_in_a_row = 0;
        Some(format!("{TRUNCATED_IN_A_ROW_MAX} answers of its model in a row were {limit}"))
    }

    /// Runs the calls of one answer in order. Each gets a result, even if it was not made.
    async fn run_calls(&mut self, calls: Vec<ToolCall>, stop: &StopReason) -> Result<Vec<TurnOutcome>, AgentError> {
        let mut outcomes = Vec::new();
        for call in calls {
            let skip = match stop {
                StopReason::MaxTokens | StopReason::ContextFull => Some(TRUNCATED),
                StopReason::Refusal => Some(REFUSED),
                StopReason::Other(_) => Some(UNKNOWN_STOP),
                _ => self.skip_reason().or_else(|| outcomes.iter().find_map(skip_reason_after)),
            };
            match skip {
                Some(reason) => self.record_result(call.id, reason.to_owned(), true).await?,
                None => outcomes.extend(self.run_call(call).await?),
            }
        }
        if self.turn_control.level() >= StopLevel::ClaimLost {
            outcomes.push(TurnOutcome::Aborted);
        }
        Ok(outcomes)
    }

    /// Warns a model once that it wrote a tool call as text. Returns true if it was warned now, and should get another turn.
    async fn warn_of_text_call(&mut self, text: &str) -> Result<bool, AgentError> {
        if self.has_warned_of_text_call || !contains_tool_call(text, &tool_signatures(&self.tool_specs)) {
            return Ok(false);
        }
        self.has_warned_of_text_call = true;
        self.append_message(TEXT_CALL.to_owned()).await?;
        Ok(true)
    }

    fn skip_reason(&self) -> Option<&'static str> {
        match self.turn_control.level() {
            StopLevel::Run | StopLevel::FinishTurn => None,
            StopLevel::ClaimLost => Some("Not called: the task is not yours any more."),
            StopLevel::Abort => Some("Not called: the turn was aborted."),
        }
    }

    fn record_text(&self, content: &[Block]) {
        for block in content {
            let Block::Text { text } = block else { continue };
            if !text.trim().is_empty() {
                let (teammate, task) = (self.name().to_owned(), self.task());
                self.services.events.record(EventKind::Said { teammate, task, text: text.clone() });
            }
        }
    }

    /// Runs one tool and records its result.
    async fn run_call(&mut self, call: ToolCall) -> Result<Vec<TurnOutcome>, AgentError> {
        let ToolCall { id, tool, input } = call;
        if !matches!(input, Value::Object(_) | Value::Null) {
            return self.skip_call(id, tool, ARGUMENTS_NOT_OBJECT.to_owned()).await;
        }
        let index = self.tool_specs.iter().position(|spec| spec.name == tool);
        let Some(implementation) = index.and_then(|index| self.tools.get(index)).cloned() else {
            let names: Vec<&str> = self.tool_specs.iter().map(|spec| spec.name.as_str()).collect();
            let text = format!("There is no tool `{tool}`. There are: {}.", names.join(", "));
            return self.skip_call(id, tool, text).await;
        };
        let input = if input.is_null() { Value::Object(serde_json::Map::new()) } else { input };
        self.enter_worktree().await;
        let result = self.run_tool(&*implementation, &id, tool, input).await;
        let (text, is_error, outcomes) = match result {
            None => (INTERRUPTED.to_owned(), true, Vec::new()),
            Some(Ok(ToolOutput { text, effect: ToolEffect::Claimed { task, attempt } })) => {
                self.claimed_by_call(text, ClaimRef { task, attempt }).await?
            }
            Some(Ok(output)) => (output.text, false, self.apply_effect(output.effect)),
            Some(Err(ToolError::Recoverable(text))) => (text, true, Vec::new()),
            Some(Err(ToolError::ClaimLost(text))) => (text, true, vec![TurnOutcome::Event(PhaseEvent::ClaimLost)]),
            Some(Err(ToolError::Fatal(text))) => (text.clone(), true, vec![TurnOutcome::HarnessFailed(text)]),
        };
        self.record_result(id, text, is_error).await?;
        Ok(outcomes)
    }

    /// Runs a tool and reports its start and end. Returns `None` if it was aborted.
    async fn run_tool(
        &self,
        tool: &dyn Tool,
        id: &str,
        name: String,
        input: Value,
    ) -> Option<Result<ToolOutput, ToolError>> {
        let (teammate, task, events) = (self.name().to_owned(), self.task(), &self.services.events);
        events.wait_for_capacity().await;
        events.record(EventKind::ToolStarted {
            teammate: teammate.clone(),
            task,
            tool: name.clone(),
            call: id.to_owned(),
            about: tool.about(&input),
        });
        let started = Instant::now();
        let activity = self
            .progress
            .start_activity(Activity::RunningTool, self.services.limits.command_timeout_max.saturating_mul(2));
        let result = tokio::select! {
            biased;
            result = tool.run(input, &self.context) => Some(result),
            () = self.turn_control.tool_deadline() => None,
        };
        drop(activity);
        events.record(EventKind::ToolFinished {
            teammate,
            task,
            tool: name,
            call: id.to_owned(),
            ok: matches!(result, Some(Ok(_))),
            ms: elapsed_ms(started),
            reason: match &result {
                Some(Ok(_)) => None,
                Some(Err(error)) => Some(error.headline()),
                None => Some(ABORTED.to_owned()),
            },
        });
        result
    }

    /// Reports to people and to the model why a call was not made.
    async fn skip_call(&mut self, id: String, tool: String, text: String) -> Result<Vec<TurnOutcome>, AgentError> {
        self.services.events.record(EventKind::ToolFinished {
            teammate: self.name().to_owned(),
            task: self.task(),
            tool: tool.chars().take(TOOL_NAME_CHARS_MAX).collect(),
            call: id.clone(),
            ok: false,
            ms: 0,
            reason: Some(ToolError::Recoverable(text.clone()).headline()),
        });
        self.record_result(id, text, true).await?;
        Ok(Vec::new())
    }

    /// Prepares the worktree of a task that a tool call claimed, and adds its location to the call's result.
    async fn claimed_by_call(
        &mut self,
        text: String,
        claim: ClaimRef,
    ) -> Result<(String, bool, Vec<TurnOutcome>), AgentError> {
        let task = self.services.stores.board.get(claim.task).await?;
        Ok(match self.prepare_worktree(&task).await? {
            WorktreeSetup::Ready => {
                let outcomes = self.apply_effect(ToolEffect::Claimed { task: claim.task, attempt: claim.attempt });
                (self.worktree_note().map_or(text.clone(), |note| format!("{text}\n{note}")), false, outcomes)
            }
            WorktreeSetup::AlreadyMerged => {
                let text = format!("an earlier attempt merged task {}; it is completed now", claim.task);
                (text, false, Vec::new())
            }
            WorktreeSetup::Failed(reason) => (reason, true, Vec::new()),
            WorktreeSetup::Unavailable(reason) => (reason.clone(), true, vec![TurnOutcome::HarnessFailed(reason)]),
        })
    }

    fn apply_effect(&self, effect: ToolEffect) -> Vec<TurnOutcome> {
        match effect {
            ToolEffect::None => Vec::new(),
            ToolEffect::Idle => vec![TurnOutcome::Event(PhaseEvent::WorkEnded)],
            ToolEffect::Claimed { task, attempt } => {
                let claim = ClaimRef { task, attempt };
                self.turn_control.set_claim(Some(claim));
                vec![TurnOutcome::Event(PhaseEvent::Claimed(claim))]
            }
            ToolEffect::Finished => {
                self.turn_control.clear_reported_claim();
                vec![TurnOutcome::Event(PhaseEvent::Finished)]
            }
            ToolEffect::Stop => vec![TurnOutcome::Event(PhaseEvent::StopRequested)],
            ToolEffect::GoalDone { summary } => vec![TurnOutcome::GoalDone(summary)],
        }
    }

    async fn record_result(&mut self, id: String, text: String, is_error: bool) -> Result<(), AgentError> {
        let result = Block::ToolResult { tool_use_id: id, content: text, is_error };
        let message = self.message_with_claim(Role::User, vec![result]);
        Ok(self.conversation.record(message).await?)
    }

    /// Replaces the context by a summary from its model or, if the model cannot write one, by the end of the context. Returns an
    /// outcome if the context was kept: the model is out of reach, the budget is spent or the turn was aborted.
    async fn compact(&mut self) -> Result<Option<TurnOutcome>, AgentError> {
        self.compact_unless(|error| matches!(error, ModelError::Temporary { .. })).await
    }

    /// Compacts as [`Self::compact`], but keeps the context if `keeps_context` is true for the error.
    async fn compact_unless(
        &mut self,
        keeps_context: fn(&ModelError) -> bool,
    ) -> Result<Option<TurnOutcome>, AgentError> {
        self.compactions_in_a_row += 1;
        let summary = match self.summarise().await {
            Ok(summary) => summary,
            Err(RequestFailure::Model(error)) if !keeps_context(&error) => {
                self.conversation.tail_text(SUMMARY_FALLBACK_BYTES)
            }
            Err(failure) => return Ok(Some(outcome_of(failure))),
        };
        let todo_list = self.context.todos.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let covers = self.conversation.compact(summary, todo_list).await?;
        self.forget_identity_block();
        self.services.events.record(EventKind::Compacted { teammate: self.name().to_owned(), covers });
        Ok(None)
    }

    /// Compacts on a person's request. Compacts without a summary only if the context is too long for the model. The inner error
    /// says why the context was kept.
    pub(super) async fn compact_on_request(&mut self) -> Result<Result<(), String>, AgentError> {
        if self.conversation.is_empty() {
            return Ok(Err("there is nothing to compact: the context is empty".to_owned()));
        }
        let compactions_before = self.compactions_in_a_row;
        let outcome = self.compact_unless(|error| !matches!(error, ModelError::ContextTooLong { .. })).await?;
        self.compactions_in_a_row = compactions_before;
        let reason = match outcome {
            None => return Ok(Ok(())),
            Some(TurnOutcome::ModelFailed { reason, .. }) => format!("its model gave no answer: {reason}"),
            Some(TurnOutcome::BudgetSpent(spent)) => spent.to_string(),
            Some(_) => "it was aborted".to_owned(),
        };
        Ok(Err(format!("cannot compact, the context stays as it is: {reason}")))
    }

    async fn summarise(&mut self) -> Result<String, RequestFailure> {
        let identity_block = self.identity_block().await;
        let mut messages = self.conversation.messages(&identity_block).to_vec();
        let instruction = Block::text(self.services.prompts.compact.clone());
        match messages.last_mut() {
            Some(last) if last.role == Role::User => Arc::make_mut(last).content.push(instruction),
            _ => messages.push(Arc::new(ChatMessage { role: Role::User, content: vec![instruction] })),
        }
        let messages: Arc<[Arc<ChatMessage>]> = messages.into();
        let max_usage = self.max_usage(&identity_block, self.services.prompts.compact.len()).await;
        let mut summary = None;
        for purpose in [RequestPurpose::Summary, RequestPurpose::SummaryWithoutTools] {
            let response = self.send(Arc::clone(&messages), purpose, max_usage).await?;
            let has_calls = response.content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
            summary = response.content.into_iter().find_map(|block| match block {
                Block::Text { text } if !text.trim().is_empty() => Some(text),
                _ => None,
            });
            // Text next to a call announces the call; it is no summary.
            if !has_calls {
                break;
            }
        }
        Ok(summary.unwrap_or_else(|| self.conversation.tail_text(SUMMARY_FALLBACK_BYTES)))
    }
}

fn call_of(block: Block) -> Option<ToolCall> {
    match block {
        Block::ToolUse { id, name, input } => Some(ToolCall { id, tool: name, input }),
        _ => None,
    }
}

fn tool_signatures(tools: &[ToolSpec]) -> Vec<ToolSignature<'_>> {
    let mut signatures = Vec::new();
    for tool in tools {
        let arguments = tool.input_schema["properties"].as_object().into_iter().flat_map(|all| all.keys());
        signatures.push(ToolSignature { name: &tool.name, arguments: arguments.map(String::as_str).collect() });
    }
    signatures
}

fn outcome_of(failure: RequestFailure) -> TurnOutcome {
    match failure {
        RequestFailure::Aborted => TurnOutcome::Aborted,
        RequestFailure::BudgetSpent(spent) => TurnOutcome::BudgetSpent(spent),
        RequestFailure::Model(error) => {
            let retry_after = match &error {
                ModelError::Temporary { retry_after, .. } => *retry_after,
                _ => None,
            };
            let is_permanent = !matches!(error, ModelError::Temporary { .. });
            TurnOutcome::ModelFailed { reason: error.to_string(), is_permanent, retry_after }
        }
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the reason why the calls after this outcome are not made.
fn skip_reason_after(outcome: &TurnOutcome) -> Option<&'static str> {
    match outcome {
        TurnOutcome::Event(PhaseEvent::ClaimLost) => Some("Not called: the task is not yours any more."),
        TurnOutcome::Event(PhaseEvent::WorkEnded) => Some("Not called: your previous call ended your work."),
        TurnOutcome::Event(PhaseEvent::StopRequested) => Some("Not called: you agreed to stop."),
        TurnOutcome::HarnessFailed(_) => {
            Some("Not called: the previous call failed because of an error outside your work.")
        }
        _ => None,
    }
}
