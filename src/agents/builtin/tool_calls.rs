//! Runs the tool calls of a model's answer.

use std::sync::Arc;

use serde_json::Value;

use super::Turn;
use super::repetition::{CallEnd, TurnDigest};
use crate::agents::permissions::CallNotMade;
use crate::agents::turn_control::StopLevel;
use crate::agents::worktree::WorktreeSetup;
use crate::agents::{AgentError, TurnOutcome};
use crate::domain::agent::text_tool_call::without_call_markup;
use crate::domain::agent::transcript::Block;
use crate::domain::log::event::{CLAIM_TOOL, REPORT_TOOL};
use crate::domain::team::phase::{ClaimRef, PhaseEvent};
use crate::ports::StopReason;
use crate::tools::{ToolEffect, ToolOutput, table};

/// The most characters of a tool's name in the event about a call that was not made.
const TOOL_NAME_CHARS_MAX: usize = 64;

const ARGUMENTS_NOT_OBJECT: &str = "the arguments are not a JSON object. Call it again with valid JSON";
const BROKEN_CHARACTER: &str = "a character of the arguments arrived broken, and is U+FFFD here, so the call was not made. Call it again; to write U+FFFD itself, use an escape";
pub(super) const INTERRUPTED: &str =
    "Interrupted: the turn was aborted during this call. It may have had effects. Check before you repeat it.";

/// A tool call by the model.
pub(super) struct ToolCall {
    id: String,
    pub tool: String,
    pub input: Value,
    /// The reason why the call must not be made, because of the way the answer ended.
    pub skip: Option<SkipReason>,
}

/// The reason why a call is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SkipReason {
    Truncated,
    Repeated,
    TooMany,
    Refused,
    UnknownStop,
    ClaimLost,
    Aborted,
    WorkEnded,
    Stopping,
    HarnessFailed,
    LimitPassed,
}

impl SkipReason {
    /// The result of the call for the model.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Truncated => {
                "Not called: the answer was cut by its length limit in this call. Call it again, and split the work into smaller calls."
            }
            Self::Repeated => "Not called: the calls above are the same.",
            Self::TooMany => "Not called: the answer had too many calls. Call only the first ones again.",
            Self::Refused => "Not called: the answer was a refusal.",
            Self::UnknownStop => {
                "Not called: the answer ended for a reason Brigade does not know, so this call may be incomplete. Call it again."
            }
            Self::ClaimLost => "Not called: the task is not yours any more.",
            Self::Aborted => "Not called: the turn was aborted.",
            Self::WorkEnded => "Not called: your previous call ended your work.",
            Self::Stopping => "Not called: you agreed to stop.",
            Self::LimitPassed => "Not called: your attempt has passed a limit.",
            Self::HarnessFailed => "Not called: the previous call failed because of an error outside your work.",
        }
    }

    /// The reason that this stop level gives.
    fn of_level(level: StopLevel) -> Option<Self> {
        match level {
            StopLevel::Run | StopLevel::FinishTurn => None,
            StopLevel::ClaimLost => Some(Self::ClaimLost),
            StopLevel::Abort => Some(Self::Aborted),
        }
    }

    /// The reason that this outcome of an earlier call gives.
    fn after_outcome(outcome: &TurnOutcome) -> Option<Self> {
        match outcome {
            TurnOutcome::Event(PhaseEvent::ClaimLost) => Some(Self::ClaimLost),
            TurnOutcome::Event(PhaseEvent::WorkEnded) => Some(Self::WorkEnded),
            TurnOutcome::Event(PhaseEvent::StopRequested) => Some(Self::Stopping),
            TurnOutcome::HarnessFailed(_) => Some(Self::HarnessFailed),
            _ => None,
        }
    }
}

/// The result of a call for the model, and its effects.
struct CallResult {
    text: String,
    end: CallEnd,
    outcomes: Vec<TurnOutcome>,
}

impl CallResult {
    fn success(text: String, outcomes: Vec<TurnOutcome>) -> Self {
        Self { text, end: CallEnd::Done, outcomes }
    }

    fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), end: CallEnd::Failed, outcomes: Vec::new() }
    }

    fn not_made(reason: impl Into<String>) -> Self {
        Self { end: CallEnd::NotMade, ..Self::error(reason) }
    }

    fn is_error(&self) -> bool {
        matches!(self.end, CallEnd::NotMade | CallEnd::Failed)
    }
}

impl Turn<'_> {
    /// Runs the calls of one answer in order. Each gets a result, even if it was not made. The last result also has the
    /// turn count, if it is due.
    pub(super) async fn run_calls(&mut self, calls: Vec<ToolCall>) -> Result<Vec<TurnOutcome>, AgentError> {
        let mut digest = TurnDigest::start(self.host.turn_control.claim());
        let mut outcomes = Vec::new();
        self.agent.known_files.start_answer(self.host.turn_control.claim());
        let calls_count = calls.len();
        for (index, call) in calls.into_iter().enumerate() {
            let skip = call
                .skip
                .or_else(|| SkipReason::of_level(self.host.turn_control.level()))
                .or_else(|| outcomes.iter().find_map(SkipReason::after_outcome))
                .or_else(|| self.host.has_passed_limit().then_some(SkipReason::LimitPassed));
            let mut result = match skip {
                Some(reason) => CallResult::not_made(reason.text()),
                None => self.run_or_refuse_call(&call).await?,
            };
            if skip != Some(SkipReason::Repeated) {
                digest.add(&call.tool, &call.input, &result.text, result.end);
            }
            if index + 1 == calls_count
                && let Some(notice) = self.host.turn_count.notice(self.host.task().is_some())
            {
                result.text = format!("{}\n\n{notice}", result.text.trim_end());
            }
            let is_error = result.is_error();
            self.host.record_result(call.id, result.text, is_error).await?;
            outcomes.extend(result.outcomes);
        }
        if calls_count > 0 {
            self.agent.repetition.count_turn(digest);
        } else {
            // A turn without calls ends the row of equal turns.
            self.agent.repetition.forget_turns();
        }
        if self.host.turn_control.level() >= StopLevel::ClaimLost {
            outcomes.push(TurnOutcome::Aborted);
        }
        Ok(outcomes)
    }

    /// Runs one tool, unless it would lose lines of a file that the agent has not seen.
    async fn run_or_refuse_call(&mut self, call: &ToolCall) -> Result<CallResult, AgentError> {
        if let Some(refusal) = self.agent.known_files.refusal(&call.tool, &call.input, &self.host.context) {
            return Ok(CallResult::not_made(refusal));
        }
        let result = self.run_call(call).await?;
        if !result.is_error() {
            self.agent.known_files.record(&call.tool, &call.input, &self.host.context);
        }
        Ok(result)
    }

    /// Runs one tool.
    async fn run_call(&mut self, call: &ToolCall) -> Result<CallResult, AgentError> {
        let tool = match self.agent.prefix.tool(&call.tool) {
            Ok(tool) => Arc::clone(tool),
            // A task may name a tool that requests do not offer. Each tool checks its own permissions.
            Err(reason) => match table::tool_named(&call.tool, self.host.context.caller.is_lead) {
                Some(tool) => tool,
                None => return Ok(self.skip_call(call, reason.clone(), &reason)),
            },
        };
        let input = match self.permitted(&call.tool, call.input.clone()).await {
            Ok(input) => input,
            Err(refusal) => return Ok(self.skip_call(call, refusal.to_string(), refusal.reason())),
        };
        self.host.refresh_working_dir().await;
        let step = self.host.step(&call.id, &call.tool, tool.about(&input));
        let work = async {
            match tool.run(input, &self.host.context).await {
                Ok(ToolOutput { effect: ToolEffect::Ask { question }, .. }) => self.ask(&call.id, &question).await,
                outcome => outcome,
            }
        };
        Ok(match self.host.run_step(step, work, |_| None).await {
            None => CallResult::error(INTERRUPTED),
            Some(Ok(ToolOutput { text, effect: ToolEffect::Claimed(claim) })) => {
                self.prepare_claimed_task(text, claim).await?
            }
            Some(Ok(ToolOutput { text, effect: ToolEffect::FileUnchanged })) => {
                CallResult { end: CallEnd::FileUnchanged, ..CallResult::success(text, Vec::new()) }
            }
            Some(Ok(output)) => CallResult::success(output.text, self.host.apply_effect(output.effect)),
            Some(Err(error)) => CallResult {
                outcomes: TurnOutcome::of_error(&error).into_iter().collect(),
                ..CallResult::error(error.to_string())
            },
        })
    }

    /// Returns the arguments of a call for which the agent has permission.
    pub(super) async fn permitted(&self, tool: &str, input: Value) -> Result<Value, CallNotMade> {
        let input = arguments_of(input)?;
        let permission = table::permission_call(tool, &input);
        self.host.ask_permission(&permission, &table::permission_details(tool, &input)).await?;
        Ok(input)
    }

    /// Tells people the reason why a call was not made. Returns the result for the model.
    fn skip_call(&self, call: &ToolCall, text: String, reason: &str) -> CallResult {
        let tool = call.tool.chars().take(TOOL_NAME_CHARS_MAX).collect();
        self.host.record_call_not_made(tool, call.id.clone(), reason);
        CallResult::error(text)
    }

    /// Prepares the worktree of a task that a tool call claimed, and adds its location to the call's result.
    async fn prepare_claimed_task(&mut self, text: String, claim: ClaimRef) -> Result<CallResult, AgentError> {
        let task = self.host.services.stores.board.get(claim.task).await?;
        Ok(match self.host.prepare_worktree(&task).await? {
            WorktreeSetup::Ready => {
                let text = match self.host.worktree_note() {
                    Some(note) => format!("{text}\n{note}"),
                    None => text,
                };
                CallResult::success(text, self.host.apply_effect(ToolEffect::Claimed(claim)))
            }
            WorktreeSetup::AlreadyMerged => {
                let text = format!("an earlier attempt merged task {}; it is completed now", claim.task);
                CallResult::success(text, Vec::new())
            }
            WorktreeSetup::Interrupted => {
                CallResult::error(format!("the set-up of task {} was interrupted", claim.task))
            }
            WorktreeSetup::Failed(reason) => CallResult::error(reason),
            WorktreeSetup::Unavailable(reason) => {
                CallResult { outcomes: vec![TurnOutcome::HarnessFailed(reason.clone())], ..CallResult::error(reason) }
            }
        })
    }
}

impl ToolCall {
    /// Returns the result of the call.
    pub fn result(self, content: String, is_error: bool) -> Block {
        Block::ToolResult { tool_use_id: self.id, content, is_error }
    }
}

/// Returns the arguments of a call as an object.
fn arguments_of(input: Value) -> Result<Value, CallNotMade> {
    match input {
        Value::Object(_) => Ok(input),
        Value::Null => Ok(Value::Object(serde_json::Map::new())),
        Value::String(text) if text.contains(char::REPLACEMENT_CHARACTER) => {
            Err(CallNotMade::Refused(BROKEN_CHARACTER.to_owned()))
        }
        _ => Err(CallNotMade::Refused(ARGUMENTS_NOT_OBJECT.to_owned())),
    }
}

/// Removes the arguments of a call that a limit cut. The model could imitate them.
pub(super) fn clear_cut_arguments(content: &mut [Block], stop: &StopReason) {
    if matches!(stop, StopReason::MaxTokens | StopReason::ContextFull)
        && let Some(Block::ToolUse { input, arguments, .. }) = content.last_mut()
    {
        *input = Value::Object(serde_json::Map::new());
        *arguments = None;
    }
}

/// Removes the markup of calls from the ends of arguments. A file would get it, and the model would imitate it. Returns the changed
/// arguments for people, such as "`content` of write_file".
pub(super) fn remove_call_markup(content: &mut [Block]) -> Vec<String> {
    let mut changed = Vec::new();
    for block in content {
        let Block::ToolUse { name: tool, input: Value::Object(input), arguments, .. } = block else { continue };
        for (name, value) in input {
            let kept = value.as_str().and_then(|text| without_call_markup(name, text)).map(str::to_owned);
            if let Some(kept) = kept {
                *value = Value::String(kept);
                *arguments = None;
                changed.push(format!("`{name}` of {tool}"));
            }
        }
    }
    changed
}

/// Returns the calls of an answer. A limit cuts only the last block of an answer, so the calls before it are whole.
pub(super) fn calls_of(content: Vec<Block>, stop: &StopReason) -> Vec<ToolCall> {
    let last = content.len().saturating_sub(1);
    let mut calls = Vec::new();
    for (index, block) in content.into_iter().enumerate() {
        if let Block::ToolUse { id, name, input, .. } = block {
            let skip = match stop {
                StopReason::MaxTokens | StopReason::ContextFull if index == last => Some(SkipReason::Truncated),
                StopReason::Repetition if index == last => Some(SkipReason::Repeated),
                StopReason::TooManyCalls => Some(SkipReason::TooMany),
                StopReason::Refusal => Some(SkipReason::Refused),
                StopReason::Other(_) => Some(SkipReason::UnknownStop),
                _ => None,
            };
            calls.push(ToolCall { id, tool: name, input, skip });
        }
    }
    calls
}

/// Moves reports after the work of the same answer. Small models report first and then do the work, and the report would end the
/// attempt before it. The answer itself changes: the transcript has calls in the order in which they are made. An answer that also
/// claims a task keeps its order, because the work after the claim is that task's. So does one that may be incomplete.
pub(super) fn move_reports_last(content: &mut [Block], stop: &StopReason) {
    fn tool_of(block: &Block) -> &str {
        if let Block::ToolUse { name, .. } = block { name } else { "" }
    }
    let last_work = content.iter().rposition(|block| table::kind_of(tool_of(block)).is_for_files());
    let first_report = content.iter().position(|block| tool_of(block) == REPORT_TOOL);
    // A provider refuses reasoning that is not before its own call.
    let is_bound = |block: &Block| matches!(block, Block::Other(_));
    if let Some(last_work) = last_work
        && !content[first_report.unwrap_or(last_work).min(last_work)..last_work].iter().any(is_bound)
        && matches!(stop, StopReason::ToolUse | StopReason::EndTurn)
        && !content.iter().any(|block| tool_of(block) == CLAIM_TOOL)
    {
        content[..=last_work].sort_by_key(|block| tool_of(block) == REPORT_TOOL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order_of(tools: &[&str]) -> Vec<String> {
        let call = |tool: &&str| Block::tool_use(String::new(), (*tool).to_owned(), Value::Null);
        let mut content: Vec<Block> = tools.iter().map(call).collect();
        move_reports_last(&mut content, &StopReason::ToolUse);
        calls_of(content, &StopReason::ToolUse).into_iter().map(|call| call.tool).collect()
    }

    #[test]
    fn reports_follow_work_of_the_answer() {
        let early = ["task_update", "task_create", "write_file", "task_update", "bash", "task_get"];
        assert_eq!(order_of(&early), ["task_create", "write_file", "bash", "task_update", "task_update", "task_get"]);
        for unchanged in [
            &["write_file", "task_update", "send_message"][..],
            &["task_update", "claim_task", "write_file"],
            &["task_update", "send_message"],
            &[],
        ] {
            assert_eq!(order_of(unchanged), unchanged);
        }
    }

    /// Reasoning belongs to the call after it, so a report is not moved over it.
    #[test]
    fn report_before_reasoning_keeps_its_place() {
        let call = |tool: &str| Block::tool_use("", tool, Value::Null);
        let reasoning = || Block::Other(serde_json::json!({"type": "reasoning"}));
        let mut content = vec![reasoning(), call(REPORT_TOOL), reasoning(), call("bash")];
        let before = content.clone();
        move_reports_last(&mut content, &StopReason::ToolUse);
        assert_eq!(content, before);
        let mut content = vec![reasoning(), call(REPORT_TOOL), call("bash")];
        move_reports_last(&mut content, &StopReason::ToolUse);
        assert_eq!(content, [reasoning(), call("bash"), call(REPORT_TOOL)]);
    }

    #[test]
    fn answer_with_too_many_calls_runs_none() {
        let content = || vec![Block::tool_use("", "bash", Value::Null); 3];
        let skipped = |stop| calls_of(content(), &stop).into_iter().map(|call| call.skip).collect::<Vec<_>>();
        assert_eq!(skipped(StopReason::TooManyCalls), [Some(SkipReason::TooMany); 3]);
        assert_eq!(skipped(StopReason::Repetition), [None, None, Some(SkipReason::Repeated)]);
    }

    /// The text that a later request sends is that of the changed input.
    #[test]
    fn changed_input_has_no_own_text() {
        let call = |input: Value, arguments: Option<String>| Block::ToolUse {
            id: String::new(),
            name: "write_file".to_owned(),
            input,
            arguments,
            extra: crate::domain::agent::transcript::Extra::new(),
        };
        let input = serde_json::json!({"content": "a\n</content>\n</invoke>"});
        let mut content = vec![call(input, Some("{ }".to_owned()))];
        assert_eq!(remove_call_markup(&mut content).len(), 1);
        assert!(matches!(&content[0], Block::ToolUse { arguments: None, .. }));
        let mut content = vec![call(serde_json::json!({"a": 1}), Some("{ \"a\": 1 }".to_owned()))];
        clear_cut_arguments(&mut content, &StopReason::MaxTokens);
        assert_eq!(content, [call(serde_json::json!({}), None)]);
    }
}
