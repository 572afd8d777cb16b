//! How a turn goes: the model is asked, the tools it asks for are run, every part is recorded before the next begins.
//!
//! A turn always runs to its end; [`super::reins`] say how soon that must be. A call that was not made or not ended has a
//! result that says so, because a model reads no context in which one is missing.

use std::sync::{Arc, PoisonError};

use serde_json::Value;
use tokio::time::Instant;

use super::agent::{Agent, AgentError, Outcome};
use super::conversation::text_of;
use super::lodging::Arrival;
use super::progress::Activity;
use super::reins::Pace;
use super::retry::Unanswered;
use crate::domain::context::summary_with_steps;
use crate::domain::event::Fact;
use crate::domain::phase::{Event, Held};
use crate::domain::transcript::{Block, Role, Usage};
use crate::domain::written_call::{Callable, is_written_call};
use crate::ports::{ChatMessage, ModelError, ModelRequest, ModelResponse, Purpose, StopReason, ToolSpec};
use crate::tools::{Tool, ToolEffect, ToolError, ToolOutput};

/// Compactions without a turn between them before the context counts as beyond mending.
const COMPACTIONS_IN_A_ROW_MAX: u32 = 2;
/// Answers in a row that may be cut by their length limit; after these the attempt has failed.
const CUT_IN_A_ROW_MAX: u32 = 3;
/// Bytes of the context's end that stand in for a summary where no model can write one.
const SUMMARY_FALLBACK_BYTES: usize = 8 * 1024;

/// The longest name that is told of a tool there is not.
const TOOL_NAME_CHARS_MAX: usize = 64;

/// The tool that reports what came of a task.
const REPORT_TOOL: &str = "task_update";

const CUT_OFF: &str = "The answer was cut by its length limit, so this call was not made: ask again, in smaller parts.";
const UNKNOWN_STOP: &str =
    "Not called: the answer ended for a reason Brigade does not know, so this call may not be whole. Ask again.";
const NO_OBJECT: &str = "Not called: the arguments are not a JSON object. Ask again with valid JSON.";
const REFUSED: &str = "Not called: the answer was a refusal.";
const WRITTEN_CALL: &str = "That was text, so nothing was called and nothing has happened. If you meant to call a tool, call it now as a tool call, not in words or a code block.";
const BROKEN_OFF: &str = "the turn was broken off while it ran";
const INTERRUPTED: &str =
    "Interrupted: the turn was broken off while this ran. It may have had effects; look before you do it again.";

/// A tool the model asks for.
struct Call {
    id: String,
    tool: String,
    input: Value,
}

impl Agent {
    /// One turn: asks the model, runs the tools it asks for.
    pub async fn turn(&mut self) -> Result<Vec<Outcome>, AgentError> {
        if self.reins.pace() >= Pace::Finish {
            return Ok(vec![Outcome::Event(Event::TurnEnded)]);
        }
        self.shared.notes.room().await;
        if self.thinks()
            && self.is_context_large().await
            && let Some(outcome) = self.compact().await?
        {
            return Ok(vec![outcome]);
        }
        match self.ask().await {
            Ok(response) => {
                self.compactions_in_a_row = 0;
                let mut outcomes = self.answer(response).await?;
                if self.reins.pace() == Pace::Finish && outcomes == [Outcome::Event(Event::TurnEnded)] {
                    outcomes = self.report_if_done().await?;
                }
                Ok(outcomes)
            }
            Err(Unanswered::Model(ModelError::ContextTooLong { message, window_tokens })) => {
                self.window_learned = window_tokens.or(self.window_learned);
                self.mend_context(message).await
            }
            Err(unanswered) => Ok(vec![outcome_of(unanswered)]),
        }
    }

    /// Has what is done reported before the claim is given back, where that costs nothing: asked to stop, a model that does not
    /// think may report what its last turn brought, and do nothing else.
    pub(super) async fn report_if_done(&mut self) -> Result<Vec<Outcome>, AgentError> {
        let nothing = vec![Outcome::Event(Event::TurnEnded)];
        let was_broken_off = self.reins.pace() >= Pace::LetGo;
        if self.thinks() || was_broken_off || self.task().is_none() {
            return Ok(nothing);
        }
        let Ok(response) = self.ask().await else { return Ok(nothing) };
        let is_report = |block: &Block| !matches!(block, Block::ToolUse { name, .. } if *name != REPORT_TOOL);
        if response.content.iter().all(is_report) { self.answer(response).await } else { Ok(nothing) }
    }

    async fn mend_context(&mut self, reason: String) -> Result<Vec<Outcome>, AgentError> {
        if self.compactions_in_a_row >= COMPACTIONS_IN_A_ROW_MAX {
            self.compactions_in_a_row = 0;
            return Ok(vec![Outcome::ModelFailed { reason, is_final: true, retry_after: None }]);
        }
        Ok(vec![self.compact().await?.unwrap_or(Outcome::Event(Event::TurnEnded))])
    }

    /// Sends the context.
    async fn ask(&mut self) -> Result<ModelResponse, Unanswered> {
        let identity = self.identity().await;
        let messages = self.conversation.messages(&identity);
        let most = self.most(&identity, 0).await;
        self.send(messages, Purpose::Turn, most).await
    }

    /// Sends a request, which can use `most`, again after temporary errors, and tells how it went.
    async fn send(
        &self,
        messages: Arc<[Arc<ChatMessage>]>,
        purpose: Purpose,
        most: Usage,
    ) -> Result<ModelResponse, Unanswered> {
        let request = ModelRequest {
            teammate: self.name().into(),
            model: self.spec.model.model.as_str().into(),
            system: Arc::clone(&self.system),
            messages,
            tools: Arc::clone(&self.tool_specs),
            output_tokens_max: self.output_tokens_max(),
            purpose,
            silence_timeout: self.shared.limits.model_silence_timeout,
            answer_timeout: self.shared.limits.model_answer_timeout,
        };
        let (teammate, task) = (self.name().to_owned(), self.task());
        self.shared.notes.fact(Fact::TurnStarted { teammate: teammate.clone(), task });
        let started = Instant::now();
        let response = self.request(&request, most).await?;
        let usage = response.usage.unwrap_or_default();
        self.shared.notes.fact(Fact::TurnFinished {
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

    /// Records what the model said and runs what it asked for.
    async fn answer(&mut self, response: ModelResponse) -> Result<Vec<Outcome>, AgentError> {
        let mut record = self.stamped(Role::Assistant, response.content.clone());
        record.usage = response.usage.filter(|usage| usage.total() > 0);
        if record.content.is_empty() {
            record.content.push(Block::text("(nothing more)"));
        }
        self.conversation.record(record).await?;
        self.note_said(&response.content);
        let said: String = response.content.iter().filter_map(text_of).collect();
        let calls: Vec<Call> = response.content.into_iter().filter_map(call_of).collect();
        let goes_on = match response.stop {
            StopReason::Refusal => false,
            StopReason::PauseTurn | StopReason::MaxTokens | StopReason::ContextFull => true,
            _ if calls.is_empty() => self.tell_of_written_call(&said).await?,
            _ => true,
        };
        self.told_of_written_call &= calls.is_empty();
        let given_up = self.note_cut(response.stop == StopReason::MaxTokens);
        if response.stop == StopReason::MaxTokens && calls.is_empty() && given_up.is_none() {
            self.tell("Your answer was cut by its length limit. Go on from there.".to_owned()).await?;
        }
        let mut outcomes = self.run_calls(calls, &response.stop).await?;
        if let Some(reason) = given_up {
            outcomes.push(Outcome::CutOff(reason));
            return Ok(outcomes);
        }
        if response.stop == StopReason::ContextFull {
            outcomes.extend(self.compact().await?);
        }
        let has_ended =
            |outcome: &Outcome| matches!(outcome, Outcome::Event(Event::WorkEnded) | Outcome::HarnessFailed(_));
        if !outcomes.iter().any(has_ended) {
            outcomes.push(Outcome::Event(if goes_on { Event::TurnEnded } else { Event::WorkEnded }));
        }
        Ok(outcomes)
    }

    /// Says that an answer was cut, where it was; why no more are asked for, when that has happened too often in a row.
    fn note_cut(&mut self, is_cut: bool) -> Option<String> {
        self.cut_in_a_row = if is_cut { self.cut_in_a_row + 1 } else { 0 };
        if !is_cut {
            return None;
        }
        let limit = format!("cut at {} tokens (output_tokens_max)", self.output_tokens_max());
        self.shared.notes.warn(self.name(), format!("answer {limit}"));
        if self.cut_in_a_row < CUT_IN_A_ROW_MAX {
            return None;
        }
        self.cut_in_a_row = 0;
        Some(format!("{CUT_IN_A_ROW_MAX} answers of its model in a row were {limit}"))
    }

    /// Runs the calls of one answer in order; each has a result afterwards, be it that it was not made.
    async fn run_calls(&mut self, calls: Vec<Call>, stop: &StopReason) -> Result<Vec<Outcome>, AgentError> {
        let mut outcomes = Vec::new();
        for call in calls {
            let skip = match stop {
                StopReason::MaxTokens | StopReason::ContextFull => Some(CUT_OFF),
                StopReason::Refusal => Some(REFUSED),
                StopReason::Other(_) => Some(UNKNOWN_STOP),
                _ => self.not_to_be_called().or_else(|| outcomes.iter().find_map(not_to_be_followed)),
            };
            match skip {
                Some(reason) => self.record_result(call.id, reason.to_owned(), true).await?,
                None => outcomes.extend(self.call(call).await?),
            }
        }
        if self.reins.pace() >= Pace::LetGo {
            outcomes.push(Outcome::BrokenOff);
        }
        Ok(outcomes)
    }

    /// Tells a model once that the call it wrote as text was not made; says whether it is to go on.
    async fn tell_of_written_call(&mut self, said: &str) -> Result<bool, AgentError> {
        if self.told_of_written_call || !is_written_call(said, &callables(&self.tool_specs)) {
            return Ok(false);
        }
        self.told_of_written_call = true;
        self.tell(WRITTEN_CALL.to_owned()).await?;
        Ok(true)
    }

    fn not_to_be_called(&self) -> Option<&'static str> {
        match self.reins.pace() {
            Pace::Free | Pace::Finish => None,
            Pace::LetGo => Some("Not called: the task is not yours any more."),
            Pace::BreakOff => Some("Not called: the turn was broken off."),
        }
    }

    fn note_said(&self, content: &[Block]) {
        for block in content {
            let Block::Text { text } = block else { continue };
            if !text.trim().is_empty() {
                let (teammate, task) = (self.name().to_owned(), self.task());
                self.shared.notes.fact(Fact::Said { teammate, task, text: text.clone() });
            }
        }
    }

    /// Runs one tool and records its result.
    async fn call(&mut self, call: Call) -> Result<Vec<Outcome>, AgentError> {
        let Call { id, tool, input } = call;
        if !matches!(input, Value::Object(_) | Value::Null) {
            return self.not_made(id, tool, NO_OBJECT.to_owned()).await;
        }
        let place = self.tool_specs.iter().position(|spec| spec.name == tool);
        let Some(found) = place.and_then(|place| self.tools.get(place)).cloned() else {
            let known: Vec<&str> = self.tool_specs.iter().map(|spec| spec.name.as_str()).collect();
            let text = format!("There is no tool `{tool}`. There are: {}.", known.join(", "));
            return self.not_made(id, tool, text).await;
        };
        let input = if input.is_null() { Value::Object(serde_json::Map::new()) } else { input };
        self.stand_where_due().await;
        let result = self.run_tool(&*found, &id, tool, input).await;
        let (text, is_error, outcomes) = match result {
            None => (INTERRUPTED.to_owned(), true, Vec::new()),
            Some(Ok(ToolOutput { text, effect: ToolEffect::Claimed { task, attempt } })) => {
                self.claimed_by_call(text, Held { task, attempt }).await?
            }
            Some(Ok(output)) => (output.text, false, self.effect(output.effect)),
            Some(Err(ToolError::Mendable(text))) => (text, true, Vec::new()),
            Some(Err(ToolError::ClaimLost(text))) => (text, true, vec![Outcome::Event(Event::ClaimLost)]),
            Some(Err(ToolError::Fatal(text))) => (text.clone(), true, vec![Outcome::HarnessFailed(text)]),
        };
        self.record_result(id, text, is_error).await?;
        Ok(outcomes)
    }

    /// Runs a tool and tells how it went; `None` when it was broken off.
    async fn run_tool(
        &self,
        tool: &dyn Tool,
        id: &str,
        name: String,
        input: Value,
    ) -> Option<Result<ToolOutput, ToolError>> {
        let (teammate, task, notes) = (self.name().to_owned(), self.task(), &self.shared.notes);
        notes.room().await;
        notes.fact(Fact::ToolStarted {
            teammate: teammate.clone(),
            task,
            tool: name.clone(),
            call: id.to_owned(),
            about: tool.about(&input),
        });
        let started = Instant::now();
        let busy = self.progress.busy(Activity::RunningTool, self.shared.limits.command_timeout_max.saturating_mul(2));
        let result = tokio::select! {
            biased;
            result = tool.run(input, &self.context) => Some(result),
            () = self.reins.drops_tools() => None,
        };
        drop(busy);
        notes.fact(Fact::ToolFinished {
            teammate,
            task,
            tool: name,
            call: id.to_owned(),
            ok: matches!(result, Some(Ok(_))),
            ms: elapsed_ms(started),
            reason: match &result {
                Some(Ok(_)) => None,
                Some(Err(error)) => Some(error.headline()),
                None => Some(BROKEN_OFF.to_owned()),
            },
        });
        result
    }

    /// Says, and tells the model, why a call could not be made.
    async fn not_made(&mut self, id: String, tool: String, text: String) -> Result<Vec<Outcome>, AgentError> {
        self.shared.notes.fact(Fact::ToolFinished {
            teammate: self.name().to_owned(),
            task: self.task(),
            tool: tool.chars().take(TOOL_NAME_CHARS_MAX).collect(),
            call: id.clone(),
            ok: false,
            ms: 0,
            reason: Some(ToolError::Mendable(text.clone()).headline()),
        });
        self.record_result(id, text, true).await?;
        Ok(Vec::new())
    }

    /// Readies the place for a task that was claimed by a call, and says in its result where it is.
    async fn claimed_by_call(&mut self, text: String, held: Held) -> Result<(String, bool, Vec<Outcome>), AgentError> {
        let task = self.shared.stores.board.get(held.task).await?;
        Ok(match self.move_in(&task).await? {
            Arrival::In => {
                let outcomes = self.effect(ToolEffect::Claimed { task: held.task, attempt: held.attempt });
                (self.place().map_or(text.clone(), |place| format!("{text}\n{place}")), false, outcomes)
            }
            Arrival::Completed => {
                let text = format!("task {} was merged by an earlier attempt and is completed now", held.task);
                (text, false, Vec::new())
            }
            Arrival::Failed(reason) => (reason, true, Vec::new()),
            Arrival::Refused(reason) => (reason.clone(), true, vec![Outcome::HarnessFailed(reason)]),
        })
    }

    fn effect(&self, effect: ToolEffect) -> Vec<Outcome> {
        match effect {
            ToolEffect::None => Vec::new(),
            ToolEffect::Idle => vec![Outcome::Event(Event::WorkEnded)],
            ToolEffect::Claimed { task, attempt } => {
                let held = Held { task, attempt };
                self.reins.hold(Some(held));
                vec![Outcome::Event(Event::Claimed(held))]
            }
            ToolEffect::Finished => {
                self.reins.finished();
                vec![Outcome::Event(Event::Finished)]
            }
            ToolEffect::Stop => vec![Outcome::Event(Event::StopAsked)],
            ToolEffect::GoalDone { summary } => vec![Outcome::GoalDone(summary)],
        }
    }

    async fn record_result(&mut self, id: String, text: String, is_error: bool) -> Result<(), AgentError> {
        let result = Block::ToolResult { tool_use_id: id, content: text, is_error };
        let message = self.stamped(Role::User, vec![result]);
        Ok(self.conversation.record(message).await?)
    }

    /// Replaces the context by a summary its model writes, or, where it cannot, by the context's end. Says what came of it
    /// when the context stays as it is: the model is out of reach, or the turn was broken off.
    async fn compact(&mut self) -> Result<Option<Outcome>, AgentError> {
        self.compact_unless(|error| matches!(error, ModelError::Temporary { .. })).await
    }

    /// The same; the context stays as it is after the errors that `spares` it.
    async fn compact_unless(&mut self, spares: fn(&ModelError) -> bool) -> Result<Option<Outcome>, AgentError> {
        self.compactions_in_a_row += 1;
        let summary = match self.summarise().await {
            Ok(summary) => summary,
            Err(Unanswered::Model(error)) if !spares(&error) => self.conversation.tail_text(SUMMARY_FALLBACK_BYTES),
            Err(unanswered) => return Ok(Some(outcome_of(unanswered))),
        };
        let steps = self.context.todos.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let covers = self.conversation.compact(summary_with_steps(summary, &steps)).await?;
        self.forget_identity();
        self.shared.notes.fact(Fact::Compacted { teammate: self.name().to_owned(), covers });
        Ok(None)
    }

    /// Compacts as a person asked: only a context that is too long for its model is given up without a summary. Says why the context
    /// stays as it is, where it does.
    pub(super) async fn compact_as_asked(&mut self) -> Result<Result<(), String>, AgentError> {
        if self.conversation.is_empty() {
            return Ok(Err("there is nothing to compact: nothing was said since its context began".to_owned()));
        }
        let in_a_row = self.compactions_in_a_row;
        let outcome = self.compact_unless(|error| !matches!(error, ModelError::ContextTooLong { .. })).await?;
        self.compactions_in_a_row = in_a_row;
        let stays = match outcome {
            None => return Ok(Ok(())),
            Some(Outcome::ModelFailed { reason, .. }) => format!("its model gave no answer: {reason}"),
            Some(Outcome::BudgetSpent(spent)) => spent.to_string(),
            Some(_) => "it was broken off".to_owned(),
        };
        Ok(Err(format!("the context stays as it is: {stays}")))
    }

    async fn summarise(&mut self) -> Result<String, Unanswered> {
        let identity = self.identity().await;
        let mut messages = self.conversation.messages(&identity).to_vec();
        let ask = Block::text(self.shared.prompts.compact.clone());
        match messages.last_mut() {
            Some(last) if last.role == Role::User => Arc::make_mut(last).content.push(ask),
            _ => messages.push(Arc::new(ChatMessage { role: Role::User, content: vec![ask] })),
        }
        let messages: Arc<[Arc<ChatMessage>]> = messages.into();
        let most = self.most(&identity, self.shared.prompts.compact.len()).await;
        let mut said = None;
        for purpose in [Purpose::Summary, Purpose::SummaryWithoutTools] {
            let response = self.send(Arc::clone(&messages), purpose, most).await?;
            let calls = response.content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
            said = response.content.into_iter().find_map(|block| match block {
                Block::Text { text } if !text.trim().is_empty() => Some(text),
                _ => None,
            });
            // Words beside a call are no summary: they announce the call.
            if !calls {
                break;
            }
        }
        Ok(said.unwrap_or_else(|| self.conversation.tail_text(SUMMARY_FALLBACK_BYTES)))
    }
}

fn call_of(block: Block) -> Option<Call> {
    match block {
        Block::ToolUse { id, name, input } => Some(Call { id, tool: name, input }),
        _ => None,
    }
}

fn callables(tools: &[ToolSpec]) -> Vec<Callable<'_>> {
    let mut callables = Vec::new();
    for tool in tools {
        let arguments = tool.input_schema["properties"].as_object().into_iter().flat_map(|all| all.keys());
        callables.push(Callable { name: &tool.name, arguments: arguments.map(String::as_str).collect() });
    }
    callables
}

fn outcome_of(unanswered: Unanswered) -> Outcome {
    match unanswered {
        Unanswered::BrokenOff => Outcome::BrokenOff,
        Unanswered::BudgetSpent(spent) => Outcome::BudgetSpent(spent),
        Unanswered::Model(error) => {
            let retry_after = match &error {
                ModelError::Temporary { retry_after, .. } => *retry_after,
                _ => None,
            };
            let is_final = !matches!(error, ModelError::Temporary { .. });
            Outcome::ModelFailed { reason: error.to_string(), is_final, retry_after }
        }
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Why the calls behind this outcome are not made.
fn not_to_be_followed(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Event(Event::ClaimLost) => Some("Not called: the task is not yours any more."),
        Outcome::Event(Event::WorkEnded) => Some("Not called: your work ended with the call before."),
        Outcome::Event(Event::StopAsked) => Some("Not called: you agreed to stop."),
        Outcome::HarnessFailed(_) => Some("Not called: the call before could not be made, and not by your fault."),
        _ => None,
    }
}
