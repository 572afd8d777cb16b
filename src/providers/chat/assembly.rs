//! Assembles an answer from the chunks of its stream (<https://platform.openai.com/docs/api-reference/chat-streaming>). Servers differ in
//! many details, so the content decides, not the order or the presence of fields. Unknown fields are ignored. Fields of another type than
//! expected count as missing.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use super::json_calls::{self, JsonAnswer};
use super::reasoning::Reasoning;
use crate::domain::agent::transcript::{Block, Extra, Usage};
use crate::domain::team::model_spec::ToolCalls;
use crate::ports::{Listener, ModelResponse, StopReason};
use crate::providers::api::{AnswerProgress, Assembler, ProtocolError, make_id_unique};
use crate::providers::arguments;
use crate::providers::errors::{ApiError, quoted};
use crate::providers::repetition;
use crate::providers::sse::SseEvent;
use crate::providers::text_calls::NAMESPACE;
use crate::providers::usage::{UsageFields, usage_of};

/// The data of the event at the end of a stream.
const DONE: &str = "[DONE]";
/// The fields of a call that go back to the server with it: the signature of Gemini, also behind LiteLLM.
const CALL_FIELDS: [&str; 2] = ["extra_content", "provider_specific_fields"];
const USAGE_FIELDS: UsageFields = UsageFields {
    input: "prompt_tokens",
    input_details: "prompt_tokens_details",
    output: "completion_tokens",
    output_details: "completion_tokens_details",
};
/// The reasons for an end that are errors of the server.
const FAILED: [&str; 3] = ["error", "network_error", "insufficient_system_resource"];

/// An answer whose stream is being read.
#[derive(Debug, Default)]
pub struct ChatAssembler {
    /// True if the text is a call as JSON. People do not see it.
    reads_json: bool,
    text: String,
    reasoning: Reasoning,
    calls: Vec<PartialCall>,
    progress: AnswerProgress,
    usage: Option<Usage>,
    is_miscounted: bool,
    finish: Option<String>,
    has_refusal: bool,
    is_done: bool,
}

/// A call whose arguments are arriving.
#[derive(Debug, Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// The provider's own fields.
    extra: Extra,
}

impl PartialCall {
    fn is_whole(&self) -> bool {
        self.arguments.trim_end().ends_with('}') && arguments::are_whole(&self.arguments)
    }

    /// Returns true if this piece is all of the call again.
    fn is_same_as(&self, piece: &CallPiece) -> bool {
        let same = [(piece.id, &self.id), (piece.name, &self.name), (Some(&*piece.arguments), &self.arguments)];
        same.into_iter().all(|(text, own)| text.unwrap_or_default() == own)
    }
}

/// A piece of a call. A field that is empty or has another type than expected counts as missing.
struct CallPiece<'a> {
    index: Option<u64>,
    id: Option<&'a str>,
    name: Option<&'a str>,
    arguments: Cow<'a, str>,
    extra: Vec<(&'static str, &'a Value)>,
}

impl<'a> CallPiece<'a> {
    fn of(piece: &'a Value) -> Self {
        let text = |value: &'a Value| value.as_str().filter(|text| !text.is_empty());
        let function = &piece["function"];
        let arguments = match &function["arguments"] {
            Value::Null => Cow::Borrowed(""),
            Value::String(text) => Cow::Borrowed(text.as_str()),
            object => Cow::Owned(object.to_string()),
        };
        let name = text(&function["name"]).map(|name| name.strip_prefix(NAMESPACE).unwrap_or(name));
        let extra = CALL_FIELDS.iter().map(|field| (*field, &piece[*field])).filter(|(_, value)| value.is_object());
        Self { index: piece["index"].as_u64(), id: text(&piece["id"]), name, arguments, extra: extra.collect() }
    }
}

impl Assembler for ChatAssembler {
    fn process_event(&mut self, event: &SseEvent, listener: &dyn Listener) -> Result<(), ProtocolError> {
        if self.is_complete() {
            return Ok(());
        }
        if event.data.trim() == DONE {
            self.is_done = true;
            return Ok(());
        }
        let chunk: Value = match serde_json::from_str(&event.data) {
            Ok(chunk) => chunk,
            // An event with a name can be an unknown one, with any data.
            Err(_) if event.data.trim().is_empty() || !["", "error"].contains(&event.name.as_str()) => return Ok(()),
            Err(error) => return Err(ProtocolError::Invalid(format!("cannot read a chunk: {error}"))),
        };
        if event.name == "error" {
            return Err(ProtocolError::Reported(Box::new(ApiError::of_value(&chunk))));
        }
        if let Some(error) = ApiError::in_answer(&chunk) {
            return Err(ProtocolError::Reported(Box::new(error)));
        }
        if !chunk.is_object() && event.name.is_empty() {
            return Err(ProtocolError::Invalid("cannot read a chunk: it is no object".to_owned()));
        }
        let choice = &chunk["choices"][0];
        for usage in [&chunk["usage"], &chunk["x_groq"]["usage"], &choice["usage"]] {
            self.count(usage, listener);
        }
        if choice["delta"].is_object() {
            self.add(&choice["delta"], listener);
        } else if choice["message"].is_object() {
            // The whole answer of a server that does not stream.
            self.add(&choice["message"], listener);
            self.is_done = true;
        }
        if let Some(finish) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            if FAILED.contains(&finish) {
                let error = ApiError { kind: Some(finish.to_owned()), ..ApiError::default() };
                return Err(ProtocolError::Reported(Box::new(error)));
            }
            self.finish = Some(finish.to_owned());
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_done || self.progress.is_repeating
    }

    fn may_end(&self) -> bool {
        self.is_complete() || self.finish.is_some()
    }

    fn progress(&self) -> &AnswerProgress {
        &self.progress
    }

    fn finish(mut self: Box<Self>, spare_id: &str) -> Result<ModelResponse, ProtocolError> {
        let is_cut = matches!(self.finish.as_deref(), Some("length" | "content_filter"));
        if self.reads_json && !self.progress.is_repeating && !self.has_refusal && !self.text.trim().is_empty() {
            self.read_json(is_cut)?;
        }
        if !is_cut
            && !self.progress.is_repeating
            && self.calls.iter().any(|call| !arguments::are_whole(&call.arguments))
        {
            return Err(arguments::hidden_cut());
        }
        let stop = self.stop_reason();
        let mut ids = HashSet::new();
        let calls = self.calls.into_iter().enumerate().map(|(index, mut call)| {
            make_id_unique(&mut call.id, &mut ids, spare_id, index);
            let make = if is_cut { arguments::cut_call } else { arguments::call };
            make(call.id, call.name, call.arguments, call.extra)
        });
        let text = (!self.text.trim().is_empty()).then_some(Block::Text { text: self.text });
        let content = self.reasoning.into_blocks().into_iter().chain(text).chain(calls).collect();
        let usage = self.usage.filter(|_| !self.progress.is_repeating);
        Ok(ModelResponse { content, stop, usage, origin: None })
    }
}

impl ChatAssembler {
    /// Starts an answer without content, with calls in this form.
    pub fn new(tool_calls: ToolCalls) -> Self {
        Self { reads_json: tool_calls == ToolCalls::Json, ..Self::default() }
    }

    /// Replaces the text by the call or the words in it. A cut text without both stays.
    fn read_json(&mut self, is_cut: bool) -> Result<(), ProtocolError> {
        match json_calls::read(&self.text, is_cut) {
            Some(JsonAnswer::Words(text)) => self.text = text,
            Some(JsonAnswer::Call { name, arguments }) => {
                self.text.clear();
                let name = name.strip_prefix(NAMESPACE).map(str::to_owned).unwrap_or(name);
                self.calls.push(PartialCall { name, arguments, ..PartialCall::default() });
            }
            None if is_cut => {}
            None => {
                let text = "it is not the whole JSON object that tool_calls = \"json\" asks for";
                return Err(ProtocolError::Invalid(text.to_owned()));
            }
        }
        Ok(())
    }

    fn stop_reason(&self) -> StopReason {
        if self.progress.is_repeating {
            return repetition::stop_reason(self.calls.len());
        }
        if self.has_refusal {
            return StopReason::Refusal;
        }
        match self.finish.as_deref() {
            Some("length") => StopReason::MaxTokens,
            Some("content_filter") => StopReason::Refusal,
            // Many servers end an answer with calls as one without, or name no known reason.
            _ if !self.calls.is_empty() => StopReason::ToolUse,
            Some("stop" | "tool_calls" | "function_call" | "eos" | "end_turn") | None => StopReason::EndTurn,
            Some(other) => StopReason::Other(quoted(other)),
        }
    }

    /// Replaces the counters: they are totals, in whatever chunk they come.
    fn count(&mut self, usage: &Value, listener: &dyn Listener) {
        if !usage.is_object() || self.is_miscounted {
            return;
        }
        let Some(used) = usage_of(usage, &USAGE_FIELDS) else {
            // An invalid counter makes the usage unknown, and an unknown usage is charged at its maximum.
            (self.usage, self.is_miscounted) = (None, true);
            return;
        };
        self.usage = Some(used);
        listener.on_usage(used);
    }

    fn add(&mut self, delta: &Value, listener: &dyn Listener) {
        self.progress.add(self.reasoning.add(delta), listener);
        self.has_refusal |= text_of(&delta["refusal"]).is_some_and(|text| !text.is_empty());
        if let Some(text) = text_of(&delta["content"]).filter(|text| !text.is_empty()) {
            self.add_text(&text, listener);
        }
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            if self.progress.is_repeating {
                return;
            }
            self.add_call(&CallPiece::of(piece), listener);
        }
    }

    fn add_text(&mut self, text: &str, listener: &dyn Listener) {
        self.progress.add(text.len(), listener);
        if !self.reads_json {
            listener.on_text(text);
        }
        self.progress.append(&mut self.text, text);
    }

    /// Adds a piece to its call, or begins a new call.
    fn add_call(&mut self, piece: &CallPiece, listener: &dyn Listener) {
        // Some servers send the last chunk twice.
        if self.finish.is_some() && self.calls.iter().any(|call| call.is_same_as(piece)) {
            return;
        }
        let extra_bytes: usize = piece.extra.iter().map(|(_, value)| value.to_string().len()).sum();
        self.progress.add(piece.name.map_or(0, str::len) + piece.arguments.len() + extra_bytes, listener);
        let slot = match self.slot_of(piece) {
            Some(slot) => slot,
            None => {
                self.check_repetition();
                if self.progress.is_repeating {
                    return;
                }
                self.calls.push(PartialCall { index: piece.index, ..PartialCall::default() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[slot];
        if let Some(id) = piece.id {
            id.clone_into(&mut call.id);
        }
        if let Some(name) = piece.name {
            name.clone_into(&mut call.name);
        }
        call.arguments.push_str(&piece.arguments);
        for (field, value) in &piece.extra {
            call.extra.insert((*field).to_owned(), (*value).clone());
        }
    }

    /// Returns the call that this piece continues; `None` if it begins a new one: with another id, with another name, or with a name after
    /// whole arguments. The index alone decides nothing, because servers leave it out, repeat it, or count with it.
    fn slot_of(&self, piece: &CallPiece) -> Option<usize> {
        let last_with = |matches: &dyn Fn(&PartialCall) -> bool| self.calls.iter().rposition(matches);
        let with_id = piece.id.and_then(|id| last_with(&|call| call.id == id));
        let with_index = piece.index.and_then(|index| last_with(&|call| call.index == Some(index)));
        let slot = with_id.or(with_index).or_else(|| self.calls.len().checked_sub(1))?;
        let call = &self.calls[slot];
        if piece.id.is_some() && with_id.is_none() && !call.id.is_empty() {
            return None;
        }
        let Some(name) = piece.name else { return Some(slot) };
        let is_other_name = !call.name.is_empty() && call.name != name;
        let is_other_index = with_id.is_none() && piece.index.is_some() && with_index.is_none();
        // A server that repeats the id and the name at the end adds nothing.
        let is_repeated = with_id.is_some() && piece.arguments.is_empty() && piece.index == call.index;
        let is_next = call.is_whole() && !is_repeated;
        (!is_other_name && !is_other_index && !is_next).then_some(slot)
    }

    fn check_repetition(&mut self) {
        let Some(last) = self.calls.last() else { return };
        let is_same = |call: &&PartialCall| call.name == last.name && call.arguments == last.arguments;
        self.progress.check_calls(self.calls.iter().filter(is_same).count(), self.calls.len());
    }
}

/// The text of a field that is a text, or a list of parts with texts.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            Some(parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str()).collect())
        }
        _ => None,
    }
}
