//! Assembles an answer from the events of its stream.
//!
//! Events: <https://platform.claude.com/docs/en/build-with-claude/streaming>. Stop reasons:
//! <https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons>. Unknown events, blocks, deltas and keys are ignored, as
//! the API's versioning requires. Fields that other servers leave out are optional.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use crate::domain::agent::transcript::{Block, Usage};
use crate::domain::text::characters::readable_json;
use crate::ports::{Listener, ModelResponse, StopReason};
use crate::providers::api::{AnswerProgress, Assembler, ProtocolError, make_id_unique};
use crate::providers::arguments;
use crate::providers::errors::{ApiError, quoted};
use crate::providers::repetition;
use crate::providers::sse::SseEvent;

/// The counters in a usage report.
const COUNTERS: [&str; 4] = ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];

/// The fields that can have content at the start of a block.
const CONTENT_FIELDS: [&str; 4] = ["text", "thinking", "data", "signature"];

/// An answer whose stream is being read.
#[derive(Debug, Default)]
pub struct MessageAssembler {
    blocks: BTreeMap<u64, PartialBlock>,
    progress: AnswerProgress,
    usage: Option<Usage>,
    /// True if the server reported a counter that is not a number.
    is_miscounted: bool,
    /// True if the end of the answer has a usage report. The start does not know the output.
    has_final_usage: bool,
    stop: Option<String>,
    is_complete: bool,
}

/// An unfinished block: its start and all additions.
#[derive(Debug, Default)]
struct PartialBlock {
    start: Map<String, Value>,
    text: String,
    thinking: String,
    json: String,
    signature: Option<String>,
    is_closed: bool,
}

impl MessageAssembler {
    /// Ends the answer if its last block is a call that it repeats, or if it has too many blocks.
    fn check_repetition(&mut self) {
        let Some(last) = self.blocks.values().next_back().filter(|block| block.kind() == "tool_use") else { return };
        let is_same = |block: &&PartialBlock| block.kind() == "tool_use" && block.call() == last.call();
        self.progress.check_calls(self.blocks.values().filter(is_same).count(), self.blocks.len());
        self.close_if_repeating();
    }

    fn close_if_repeating(&mut self) {
        if self.progress.is_repeating {
            self.blocks.values_mut().for_each(|block| block.is_closed = true);
        }
    }

    /// Updates the counters. They are totals of the message, and missing ones keep their value.
    fn count(&mut self, usage: &Value, listener: &dyn Listener) {
        if !usage.is_object() {
            return;
        }
        let is_count = |key: &&str| usage.get(key).is_none_or(|count| count.is_null() || count.is_u64());
        if !COUNTERS.iter().all(is_count) {
            // An invalid counter makes the usage unknown, and an unknown usage is charged at its maximum.
            self.usage = None;
            self.is_miscounted = true;
        }
        if self.is_miscounted {
            return;
        }
        let set = |total: &mut u64, key: &str| *total = usage.get(key).and_then(Value::as_u64).unwrap_or(*total);
        let used = self.usage.get_or_insert_default();
        set(&mut used.input_tokens, "input_tokens");
        set(&mut used.output_tokens, "output_tokens");
        set(&mut used.cache_read_tokens, "cache_read_input_tokens");
        set(&mut used.cache_write_tokens, "cache_creation_input_tokens");
        listener.on_usage(*used);
    }

    fn begin(&mut self, index: &Value, start: &Value, listener: &dyn Listener) -> Result<(), ProtocolError> {
        let (Some(index), Value::Object(start)) = (index.as_u64(), start) else {
            return Err(ProtocolError::Invalid(
                "cannot read an event: a block starts without its index or type".to_owned(),
            ));
        };
        let block = PartialBlock { start: start.clone(), ..PartialBlock::default() };
        self.progress.add(CONTENT_FIELDS.iter().map(|part| block.start_text(part).len()).sum(), listener);
        if block.kind() == "text" && !block.start_text("text").is_empty() {
            listener.on_text(block.start_text("text"));
        }
        self.blocks.insert(index, block);
        Ok(())
    }

    /// Adds a delta. Its signature counts too, because hidden thinking arrives as one.
    fn add(&mut self, index: &Value, delta: &Value, listener: &dyn Listener) -> Result<(), ProtocolError> {
        let [text, thinking, json, signature] =
            ["text", "thinking", "partial_json", "signature"].map(|field| delta[field].as_str().unwrap_or_default());
        self.progress.add([text, thinking, json, signature].map(str::len).iter().sum(), listener);
        let block = index.as_u64().and_then(|index| self.blocks.get_mut(&index)).ok_or_else(not_started)?;
        block.thinking.push_str(thinking);
        block.json.push_str(json);
        if !signature.is_empty() {
            block.signature = Some(signature.to_owned());
        }
        if !text.is_empty() {
            listener.on_text(text);
            self.progress.append(&mut block.text, text);
            self.close_if_repeating();
        }
        Ok(())
    }

    /// Takes the end of the message, or its whole answer.
    fn end(&mut self, fields: &Value, usage: &Value, listener: &dyn Listener) {
        self.stop = fields["stop_reason"].as_str().map(str::to_owned).or(self.stop.take());
        self.has_final_usage |= !usage.is_null();
        self.count(usage, listener);
    }
}

fn not_started() -> ProtocolError {
    ProtocolError::Invalid("cannot read an event: its block has not started".to_owned())
}

impl Assembler for MessageAssembler {
    fn process_event(&mut self, event: &SseEvent, listener: &dyn Listener) -> Result<(), ProtocolError> {
        if self.progress.is_repeating {
            return Ok(());
        }
        let is_known = || ["message", "content", "error"].iter().any(|start| event.name.starts_with(start));
        let data = match serde_json::from_str(&event.data).map(Value::Object) {
            Ok(data) => data,
            // An event with a name can be an unknown one, with any data.
            Err(_) if !event.name.is_empty() && !is_known() => return Ok(()),
            Err(error) => return Err(ProtocolError::Invalid(format!("cannot read an event: {error}"))),
        };
        match data["type"].as_str().unwrap_or(&event.name) {
            "message_start" => self.count(&data["message"]["usage"], listener),
            "content_block_start" => {
                // Some servers close all blocks at the end of the answer. There the next block marks the end of the last one.
                self.check_repetition();
                if !self.progress.is_repeating {
                    self.begin(&data["index"], &data["content_block"], listener)?;
                }
            }
            "content_block_delta" => self.add(&data["index"], &data["delta"], listener)?,
            "content_block_stop" => {
                let block = data["index"].as_u64().and_then(|index| self.blocks.get_mut(&index));
                block.ok_or_else(not_started)?.is_closed = true;
                self.check_repetition();
            }
            "message_delta" => self.end(&data["delta"], &data["usage"], listener),
            "message_stop" => self.is_complete = true,
            // The whole answer of a server that does not stream.
            "message" if data["content"].is_array() => {
                for (index, block) in data["content"].as_array().into_iter().flatten().enumerate() {
                    self.begin(&index.into(), block, listener)?;
                }
                self.blocks.values_mut().for_each(|block| block.is_closed = true);
                self.end(&data, &data["usage"], listener);
                self.is_complete = true;
            }
            "error" => return Err(ProtocolError::Reported(Box::new(ApiError::of_value(&data)))),
            // `ping` and unknown events.
            _ => {}
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_complete || self.progress.is_repeating
    }

    fn progress(&self) -> &AnswerProgress {
        &self.progress
    }

    fn finish(self: Box<Self>, spare_id: &str) -> Result<ModelResponse, ProtocolError> {
        let mut ids = HashSet::new();
        let items_count = self.blocks.len();
        let blocks = self.blocks.into_values().enumerate().filter_map(|(index, block)| {
            let mut block = block.finish()?;
            if let Block::ToolUse { id, .. } = &mut block {
                make_id_unique(id, &mut ids, spare_id, index);
            }
            Some(block)
        });
        let content: Vec<Block> = blocks.collect();
        let calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        if self.progress.is_repeating {
            let stop = repetition::stop_reason(items_count);
            return Ok(ModelResponse { content, stop, usage: None, origin: None });
        }
        let is_cut = matches!(self.stop.as_deref(), Some("max_tokens" | "model_context_window_exceeded" | "refusal"));
        if !is_cut && content.iter().any(|block| matches!(block, Block::ToolUse { input: Value::String(_), .. })) {
            return Err(arguments::hidden_cut());
        }
        let stop = match self.stop.as_deref() {
            Some("end_turn") => StopReason::EndTurn,
            Some("tool_use") => StopReason::ToolUse,
            Some("max_tokens") => StopReason::MaxTokens,
            Some("model_context_window_exceeded") => StopReason::ContextFull,
            Some("pause_turn") => StopReason::PauseTurn,
            Some("refusal") => StopReason::Refusal,
            Some(other) => StopReason::Other(quoted(other)),
            // The message is complete, but the server named no reason.
            None if calls => StopReason::ToolUse,
            None => StopReason::EndTurn,
        };
        Ok(ModelResponse { content, stop, usage: self.usage.filter(|_| self.has_final_usage), origin: None })
    }
}

impl PartialBlock {
    fn kind(&self) -> &str {
        self.start_text("type")
    }

    fn start_text(&self, key: &str) -> &str {
        self.start.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// The name of a tool and its arguments, as they have arrived.
    fn call(&self) -> (&str, Option<&Value>, &str) {
        (self.start_text("name"), self.start.get("input"), self.json.as_str())
    }

    /// The block for the transcript; `None` for empty text.
    fn finish(mut self) -> Option<Block> {
        match self.kind() {
            "text" => {
                let text = self.start_text("text").to_owned() + &self.text;
                (!text.trim().is_empty()).then_some(Block::Text { text })
            }
            "tool_use" => {
                let (id, name) = (self.start_text("id").to_owned(), self.start_text("name").to_owned());
                Some(Block::tool_use(id, name, self.input()))
            }
            _ => {
                self.complete_other();
                Some(Block::Other(Value::Object(self.start)))
            }
        }
    }

    /// A tool's arguments. If they are not a JSON object, or can be incomplete, they stay text, and the call is never run.
    fn input(&mut self) -> Value {
        let initial = self.start.remove("input");
        if !self.is_closed {
            return Value::String(std::mem::take(&mut self.json));
        }
        if self.json.trim().is_empty() {
            return initial.filter(|input| !input.is_null()).unwrap_or_else(|| Value::Object(Map::new()));
        }
        match serde_json::from_str(&readable_json(&self.json)) {
            Ok(input @ Value::Object(_)) => input,
            _ => Value::String(std::mem::take(&mut self.json)),
        }
    }

    /// Completes thinking and unknown blocks: adds all deltas to their start.
    fn complete_other(&mut self) {
        for (key, added) in [("text", &self.text), ("thinking", &self.thinking)] {
            if !added.is_empty() {
                let complete = self.start.get(key).and_then(Value::as_str).unwrap_or("").to_owned() + added;
                self.start.insert(key.to_owned(), Value::String(complete));
            }
        }
        if let Some(signature) = self.signature.take() {
            self.start.insert("signature".to_owned(), Value::String(signature));
        }
        if !self.json.is_empty()
            && let Ok(input) = serde_json::from_str(&readable_json(&self.json))
        {
            self.start.insert("input".to_owned(), input);
        }
    }
}
