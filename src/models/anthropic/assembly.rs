//! An answer put together from the events of its stream.
//!
//! The events: <https://platform.claude.com/docs/en/build-with-claude/streaming>; why an answer ends:
//! <https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons>. Events, blocks, deltas and keys that are not known are
//! passed over, as the API's versioning asks for; what other servers leave out is done without.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::{ApiError, ApiErrorBody, shorten};
use crate::domain::transcript::{Block, Usage};
use crate::models::sse::SseEvent;
use crate::ports::{Listener, ModelResponse, StopReason};

/// Why a stream is of no use.
#[derive(Debug)]
pub enum Trouble {
    /// The server says so.
    Told(ApiError),
    /// It is not what the API sends.
    Malformed(String),
}

/// What a server counts of a message.
const COUNTERS: [&str; 4] = ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];

/// Where a block that begins may have something in it already.
const PARTS: [&str; 4] = ["text", "thinking", "data", "signature"];

/// An answer that is coming.
#[derive(Debug, Default)]
pub struct Assembly {
    blocks: BTreeMap<u64, Growing>,
    usage: Option<Usage>,
    /// The server reported something that is no count.
    is_miscounted: bool,
    stop: Option<String>,
    is_whole: bool,
}

/// A block that is coming: how it began, and what was added since.
#[derive(Debug, Default)]
struct Growing {
    start: Map<String, Value>,
    text: String,
    thinking: String,
    json: String,
    signature: Option<String>,
    is_closed: bool,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type", default)]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct MessageStart {
    #[serde(default)]
    message: Head,
}

#[derive(Deserialize, Default)]
struct Head {
    #[serde(default)]
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct BlockStart {
    index: u64,
    content_block: Map<String, Value>,
}

#[derive(Deserialize)]
struct BlockDelta {
    index: u64,
    delta: Delta,
}

#[derive(Deserialize)]
struct BlockStop {
    index: u64,
}

/// What a delta may add; the name of the field says where.
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
    /// What came with it. A signature counts: thinking that is not shown comes as one.
    fn bytes(&self) -> usize {
        let parts = [&self.text, &self.thinking, &self.partial_json, &self.signature];
        parts.into_iter().flatten().map(String::len).sum()
    }
}

#[derive(Deserialize)]
struct MessageDelta {
    #[serde(default)]
    delta: Delta,
    #[serde(default)]
    usage: Option<Value>,
}

impl Assembly {
    /// Takes an event; text goes to `listener` at once.
    ///
    /// # Errors
    /// The answer will not come to its end.
    pub fn take(&mut self, event: &SseEvent, listener: &dyn Listener) -> Result<(), Trouble> {
        let kind = match read::<Kind>(&event.data) {
            Ok(Kind { kind }) => kind,
            // By its name it may be one that is not known, whatever it carries.
            Err(_) if !event.name.is_empty() => None,
            Err(trouble) => return Err(trouble),
        };
        match kind.as_deref().unwrap_or(&event.name) {
            "message_start" => self.count(read::<MessageStart>(&event.data)?.message.usage.as_ref(), listener),
            "content_block_start" => self.begin(read(&event.data)?, listener),
            "content_block_delta" => self.add(read(&event.data)?, listener)?,
            "content_block_stop" => self.grown(read::<BlockStop>(&event.data)?.index)?.is_closed = true,
            "message_delta" => {
                let MessageDelta { delta, usage } = read(&event.data)?;
                self.stop = delta.stop_reason.or(self.stop.take());
                self.count(usage.as_ref(), listener);
            }
            "message_stop" => self.is_whole = true,
            "error" => return Err(Trouble::Told(read::<ApiErrorBody>(&event.data)?.error)),
            // `ping`, and what is not known.
            _ => {}
        }
        Ok(())
    }

    /// Whether the answer has come to its end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Counters are totals of the whole message; those left out stay as they were.
    fn count(&mut self, usage: Option<&Value>, listener: &dyn Listener) {
        let Some(usage) = usage.filter(|usage| usage.is_object()) else { return };
        let is_count = |key: &&str| usage.get(key).is_none_or(|count| count.is_null() || count.is_u64());
        if !COUNTERS.iter().all(is_count) {
            // What is no count is none: it is as if nothing had been reported, which counts as the most.
            (self.usage, self.is_miscounted) = (None, true);
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
        listener.used(*used);
    }

    fn begin(&mut self, start: BlockStart, listener: &dyn Listener) {
        let BlockStart { index, content_block } = start;
        let block = Growing { start: content_block, ..Growing::default() };
        listener.wrote(PARTS.iter().map(|part| block.began_with(part).len()).sum());
        if block.kind() == "text" && !block.began_with("text").is_empty() {
            listener.text(block.began_with("text"));
        }
        self.blocks.insert(index, block);
    }

    fn add(&mut self, delta: BlockDelta, listener: &dyn Listener) -> Result<(), Trouble> {
        let BlockDelta { index, delta } = delta;
        let block = self.grown(index)?;
        listener.wrote(delta.bytes());
        if let Some(text) = delta.text {
            listener.text(&text);
            block.text.push_str(&text);
        }
        block.thinking.push_str(delta.thinking.as_deref().unwrap_or(""));
        block.json.push_str(delta.partial_json.as_deref().unwrap_or(""));
        block.signature = delta.signature.or(block.signature.take());
        Ok(())
    }

    fn grown(&mut self, index: u64) -> Result<&mut Growing, Trouble> {
        let block = self.blocks.get_mut(&index);
        block.ok_or_else(|| Trouble::Malformed(format!("a piece of block {index} came before its beginning")))
    }

    /// The answer. A call without an id, or with one that was used in it before, is given one that begins with `spare_id`.
    #[must_use]
    pub fn finish(self, spare_id: &str) -> ModelResponse {
        let mut ids = HashSet::new();
        let blocks = self.blocks.into_values().enumerate().filter_map(|(place, block)| {
            let mut block = block.finish()?;
            if let Block::ToolUse { id, .. } = &mut block
                && (id.is_empty() || !ids.insert(id.clone()))
            {
                *id = format!("{spare_id}-{place}");
            }
            Some(block)
        });
        let content: Vec<Block> = blocks.collect();
        let calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        let stop = match self.stop.as_deref() {
            Some("end_turn") => StopReason::EndTurn,
            Some("tool_use") => StopReason::ToolUse,
            Some("max_tokens") => StopReason::MaxTokens,
            Some("model_context_window_exceeded") => StopReason::ContextFull,
            Some("pause_turn") => StopReason::PauseTurn,
            Some("refusal") => StopReason::Refusal,
            Some(other) => StopReason::Other(shorten(other)),
            // The message is whole and nothing is said against it.
            None if calls => StopReason::ToolUse,
            None => StopReason::EndTurn,
        };
        ModelResponse { content, stop, usage: self.usage }
    }
}

impl Growing {
    fn kind(&self) -> &str {
        self.began_with("type")
    }

    fn began_with(&self, key: &str) -> &str {
        self.start.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// The block as a transcript keeps it; `None` for text without any.
    fn finish(mut self) -> Option<Block> {
        match self.kind() {
            "text" => {
                let text = self.began_with("text").to_owned() + &self.text;
                (!text.trim().is_empty()).then_some(Block::Text { text })
            }
            "tool_use" => {
                let (id, name) = (self.began_with("id").to_owned(), self.began_with("name").to_owned());
                Some(Block::ToolUse { id, name, input: self.input() })
            }
            _ => {
                self.complete_other();
                Some(Block::Other(Value::Object(self.start)))
            }
        }
    }

    /// A tool's arguments. What is no JSON object, or may not be whole, stays the text it came as: it is never run.
    fn input(&mut self) -> Value {
        let began_with = self.start.remove("input");
        if !self.is_closed {
            return Value::String(std::mem::take(&mut self.json));
        }
        if self.json.trim().is_empty() {
            return began_with.filter(|input| !input.is_null()).unwrap_or_else(|| Value::Object(Map::new()));
        }
        match serde_json::from_str(&self.json) {
            Ok(input @ Value::Object(_)) => input,
            _ => Value::String(std::mem::take(&mut self.json)),
        }
    }

    /// Thinking, and blocks of kinds Brigade does not know: how they began, with what was added, nothing left out.
    fn complete_other(&mut self) {
        for (key, added) in [("text", &self.text), ("thinking", &self.thinking)] {
            if !added.is_empty() {
                let whole = self.start.get(key).and_then(Value::as_str).unwrap_or("").to_owned() + added;
                self.start.insert(key.to_owned(), Value::String(whole));
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

fn read<T: DeserializeOwned>(data: &str) -> Result<T, Trouble> {
    serde_json::from_str(data).map_err(|error| Trouble::Malformed(format!("an event cannot be read: {error}")))
}
