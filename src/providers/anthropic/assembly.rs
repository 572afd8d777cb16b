//! Assembles an answer from the events of its stream.
//!
//! Events: <https://platform.claude.com/docs/en/build-with-claude/streaming>. Stop reasons:
//! <https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons>. Unknown events, blocks, deltas and keys are ignored, as
//! the API's versioning requires. Fields that other servers leave out are optional.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::{ApiError, ApiErrorBody, shorten};
use crate::domain::transcript::{Block, Usage};
use crate::ports::{Listener, ModelResponse, StopReason};
use crate::providers::sse::SseEvent;

/// The reason why a stream has no usable answer.
#[derive(Debug)]
pub enum ProtocolError {
    /// The server reported an error.
    Reported(Box<ApiError>),
    /// The event does not conform to the API.
    Invalid(String),
}

/// The counters in a usage report.
const COUNTERS: [&str; 4] = ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];

/// The number of equal calls at which an answer is ended. Small models can repeat a call up to the length limit.
const SAME_CALLS_MAX: usize = 3;
/// The same for equal passages of text, one after another.
const SAME_PASSAGES_MAX: usize = 6;
/// The longest passage that is compared, in lines.
const PASSAGE_LINES_MAX: usize = 8;
/// The shortest passage that is compared, in bytes. Shorter ones can be meant, such as the rows of a drawing.
const PASSAGE_BYTES_MIN: usize = 40;

/// The fields that can have content at the start of a block.
const CONTENT_FIELDS: [&str; 4] = ["text", "thinking", "data", "signature"];

/// An answer whose stream is being read.
#[derive(Debug, Default)]
pub struct MessageAssembler {
    blocks: BTreeMap<u64, PartialBlock>,
    /// The bytes of all blocks. A block that starts again counts again.
    content_bytes: usize,
    usage: Option<Usage>,
    /// True if the server reported a counter that is not a number.
    is_miscounted: bool,
    /// True if the end of the answer has a usage report. The start does not know the output.
    has_final_usage: bool,
    stop: Option<String>,
    is_complete: bool,
    is_repeating: bool,
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

#[derive(Deserialize)]
struct EventType {
    #[serde(rename = "type", default)]
    kind: Option<String>,
}

/// The fields of the known events.
#[derive(Deserialize, Default)]
#[serde(default)]
struct EventFields {
    message: MessageHead,
    index: Option<u64>,
    content_block: Option<Map<String, Value>>,
    delta: Delta,
    usage: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MessageHead {
    usage: Option<Value>,
}

/// The additions of a delta. The field's name is their destination.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta {
    text: Option<String>,
    thinking: Option<String>,
    partial_json: Option<String>,
    signature: Option<String>,
    stop_reason: Option<String>,
}

impl Delta {
    /// The number of bytes. It includes the signature, because hidden thinking arrives as one.
    fn bytes(&self) -> usize {
        let parts = [&self.text, &self.thinking, &self.partial_json, &self.signature];
        parts.into_iter().flatten().map(String::len).sum()
    }
}

impl MessageAssembler {
    /// Processes an event. Its text and the counters go to `listener` immediately. After the end of a repeating answer events are ignored.
    ///
    /// # Errors
    /// The server reported an error, or the event does not conform to the API. The answer cannot be completed.
    pub fn process_event(&mut self, event: &SseEvent, listener: &dyn Listener) -> Result<(), ProtocolError> {
        if self.is_repeating {
            return Ok(());
        }
        let kind = match parse::<EventType>(&event.data) {
            Ok(EventType { kind }) => kind,
            // An event with a name can be an unknown one, with any data.
            Err(_) if !event.name.is_empty() => None,
            Err(error) => return Err(error),
        };
        let fields = || parse::<EventFields>(&event.data);
        match kind.as_deref().unwrap_or(&event.name) {
            "message_start" => self.count(fields()?.message.usage.as_ref(), listener),
            "content_block_start" => {
                // Some servers close all blocks at the end of the answer. There the next block marks the end of the last one.
                self.check_repetition();
                if !self.is_repeating {
                    self.begin(fields()?, listener)?;
                }
            }
            "content_block_delta" => self.add(fields()?, listener)?,
            "content_block_stop" => {
                self.block_mut(fields()?.index)?.is_closed = true;
                self.check_repetition();
            }
            "message_delta" => {
                let EventFields { delta, usage, .. } = fields()?;
                self.stop = delta.stop_reason.or(self.stop.take());
                self.has_final_usage |= usage.is_some();
                self.count(usage.as_ref(), listener);
            }
            "message_stop" => self.is_complete = true,
            "error" => return Err(ProtocolError::Reported(Box::new(parse::<ApiErrorBody>(&event.data)?.error))),
            // `ping` and unknown events.
            _ => {}
        }
        Ok(())
    }

    /// Returns true after the end of the answer, or if the rest is not needed.
    pub fn is_complete(&self) -> bool {
        self.is_complete || self.is_repeating
    }

    /// Returns true if the answer repeats a call or a passage, so that its rest is not needed.
    pub fn is_repeating(&self) -> bool {
        self.is_repeating
    }

    /// Returns the number of bytes in all blocks so far.
    pub fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// Ends the answer if its last block is a call that it has made [`SAME_CALLS_MAX`] times.
    fn check_repetition(&mut self) {
        let Some(last) = self.blocks.values().next_back().filter(|block| block.kind() == "tool_use") else { return };
        let is_same = |block: &&PartialBlock| block.kind() == "tool_use" && block.call() == last.call();
        let same = self.blocks.values().filter(is_same).count();
        if same >= SAME_CALLS_MAX {
            self.end_repetition();
        }
    }

    /// Ends the answer here.
    fn end_repetition(&mut self) {
        self.is_repeating = true;
        self.blocks.values_mut().for_each(|block| block.is_closed = true);
    }

    /// Updates the counters. They are totals of the message, and missing ones keep their value.
    fn count(&mut self, usage: Option<&Value>, listener: &dyn Listener) {
        let Some(usage) = usage.filter(|usage| usage.is_object()) else { return };
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

    fn count_content(&mut self, bytes: usize, listener: &dyn Listener) {
        self.content_bytes += bytes;
        listener.on_bytes(bytes);
    }

    fn begin(&mut self, start: EventFields, listener: &dyn Listener) -> Result<(), ProtocolError> {
        let EventFields { index: Some(index), content_block: Some(start), .. } = start else {
            return Err(ProtocolError::Invalid(
                "cannot read an event: a block starts without its index or type".to_owned(),
            ));
        };
        let block = PartialBlock { start, ..PartialBlock::default() };
        self.count_content(CONTENT_FIELDS.iter().map(|part| block.start_text(part).len()).sum(), listener);
        if block.kind() == "text" && !block.start_text("text").is_empty() {
            listener.on_text(block.start_text("text"));
        }
        self.blocks.insert(index, block);
        Ok(())
    }

    fn add(
        &mut self,
        EventFields { index, delta, .. }: EventFields,
        listener: &dyn Listener,
    ) -> Result<(), ProtocolError> {
        self.count_content(delta.bytes(), listener);
        let block = self.block_mut(index)?;
        block.thinking.push_str(delta.thinking.as_deref().unwrap_or(""));
        block.json.push_str(delta.partial_json.as_deref().unwrap_or(""));
        block.signature = delta.signature.or(block.signature.take());
        if let Some(text) = delta.text {
            listener.on_text(&text);
            block.text.push_str(&text);
            if text.contains('\n')
                && let Some(end) = end_of_repeated_passage(&block.text)
            {
                // The model would imitate the copies.
                block.text.truncate(end);
                self.end_repetition();
            }
        }
        Ok(())
    }

    fn block_mut(&mut self, index: Option<u64>) -> Result<&mut PartialBlock, ProtocolError> {
        let block = index.and_then(|index| self.blocks.get_mut(&index));
        block.ok_or_else(|| ProtocolError::Invalid("cannot read an event: its block has not started".to_owned()))
    }

    /// Returns the complete answer. A call without an id, or with the id of another call, gets an id that starts with `spare_id`.
    pub fn finish(self, spare_id: &str) -> ModelResponse {
        let mut ids = HashSet::new();
        let blocks = self.blocks.into_values().enumerate().filter_map(|(index, block)| {
            let mut block = block.finish()?;
            if let Block::ToolUse { id, .. } = &mut block
                && (id.is_empty() || !ids.insert(id.clone()))
            {
                *id = format!("{spare_id}-{index}");
            }
            Some(block)
        });
        let content: Vec<Block> = blocks.collect();
        let calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        if self.is_repeating {
            return ModelResponse { content, stop: StopReason::Repetition, usage: None };
        }
        let stop = match self.stop.as_deref() {
            Some("end_turn") => StopReason::EndTurn,
            Some("tool_use") => StopReason::ToolUse,
            Some("max_tokens") => StopReason::MaxTokens,
            Some("model_context_window_exceeded") => StopReason::ContextFull,
            Some("pause_turn") => StopReason::PauseTurn,
            Some("refusal") => StopReason::Refusal,
            Some(other) => StopReason::Other(shorten(other)),
            // The message is complete, but the server named no reason.
            None if calls => StopReason::ToolUse,
            None => StopReason::EndTurn,
        };
        ModelResponse { content, stop, usage: self.usage.filter(|_| self.has_final_usage) }
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
                Some(Block::ToolUse { id, name, input: self.input() })
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
        match serde_json::from_str(&self.json) {
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
            && let Ok(input) = serde_json::from_str(&self.json)
        {
            self.start.insert("input".to_owned(), input);
        }
    }
}

/// Returns the end of the first copy if the whole lines of this text end with [`SAME_PASSAGES_MAX`] copies of a passage.
fn end_of_repeated_passage(text: &str) -> Option<usize> {
    let whole_lines = &text[..=text.rfind('\n')?];
    let lines_max = PASSAGE_LINES_MAX * SAME_PASSAGES_MAX;
    let last_lines: Vec<&str> = whole_lines.split_inclusive('\n').rev().take(lines_max).collect();
    let size = (1..=last_lines.len() / SAME_PASSAGES_MAX).find(|size| {
        let mut passages = last_lines.chunks_exact(*size).take(SAME_PASSAGES_MAX);
        let passage = passages.next().unwrap_or_default();
        passage.iter().map(|line| line.trim().len()).sum::<usize>() >= PASSAGE_BYTES_MIN
            && passages.all(|other| other == passage)
    })?;
    let copies = &last_lines[..size * (SAME_PASSAGES_MAX - 1)];
    Some(whole_lines.len() - copies.iter().map(|line| line.len()).sum::<usize>())
}

fn parse<T: DeserializeOwned>(data: &str) -> Result<T, ProtocolError> {
    serde_json::from_str(data).map_err(|error| ProtocolError::Invalid(format!("cannot read an event: {error}")))
}
