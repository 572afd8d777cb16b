//! Assembles an answer from the events of its stream
//! (<https://platform.openai.com/docs/api-reference/responses-streaming>). The event at the end of an item has the whole item, and wins.
//! The event at the end of the answer fills gaps, because some servers have a field only there. Unknown events are ignored, and unknown
//! items go back to the server.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use crate::domain::agent::transcript::{Block, Extra, Usage};
use crate::ports::{Listener, ModelResponse, StopReason};
use crate::providers::api::{AnswerProgress, Assembler, ProtocolError, make_id_unique};
use crate::providers::arguments;
use crate::providers::errors::{ApiError, quoted};
use crate::providers::repetition::{self, ITEMS_MAX};
use crate::providers::sse::SseEvent;
use crate::providers::usage::{UsageFields, usage_of};

const USAGE_FIELDS: UsageFields = UsageFields {
    input: "input_tokens",
    input_details: "input_tokens_details",
    output: "output_tokens",
    output_details: "output_tokens_details",
};

const MESSAGE: &str = "message";
const CALL: &str = "function_call";
const REASONING: &str = "reasoning";

/// An answer whose stream is being read.
#[derive(Debug, Default)]
pub struct ResponseAssembler {
    /// The items by their place in the answer.
    items: BTreeMap<u64, PartialItem>,
    progress: AnswerProgress,
    usage: Option<Usage>,
    end: Option<End>,
    has_refusal: bool,
}

/// The end of an answer.
#[derive(Debug)]
enum End {
    Complete,
    /// The answer was cut for this reason.
    Cut(String),
}

/// An item that is arriving.
#[derive(Debug, Default)]
struct PartialItem {
    fields: Map<String, Value>,
    text: String,
    arguments: String,
    /// True if `fields` are those of the whole item.
    is_done: bool,
    /// The bytes that were counted.
    bytes: usize,
}

impl PartialItem {
    fn kind(&self) -> &str {
        word(&self.fields, "type")
    }

    /// Returns true if it can be an item with these fields.
    fn matches(&self, fields: &Map<String, Value>) -> bool {
        self.kind().is_empty() || self.kind() == word(fields, "type")
    }

    /// The fields other than these.
    fn extra(&mut self, own: &[&str]) -> Extra {
        let mut fields = std::mem::take(&mut self.fields);
        fields.retain(|key, _| !own.contains(&key.as_str()));
        fields
    }
}

impl Assembler for ResponseAssembler {
    fn process_event(&mut self, event: &SseEvent, listener: &dyn Listener) -> Result<(), ProtocolError> {
        if self.is_complete() || event.data.trim() == "[DONE]" {
            return Ok(());
        }
        let data: Value = match serde_json::from_str(&event.data) {
            Ok(data) => data,
            // An event with a name can be an unknown one, with any data.
            Err(_) if event.data.trim().is_empty() => return Ok(()),
            Err(_) if !matches!(event.name.split('.').next(), Some("" | "response" | "error")) => return Ok(()),
            Err(error) => return Err(ProtocolError::Invalid(format!("cannot read an event: {error}"))),
        };
        let delta = || data["delta"].as_str().unwrap_or_default();
        match data["type"].as_str().unwrap_or(&event.name) {
            "response.output_item.added" => self.begin(&data, listener),
            "response.output_item.done" => self.complete(&data, listener),
            "response.output_text.delta" => self.add_text(&data, delta(), listener),
            "response.function_call_arguments.delta" => {
                self.open_item(&data).arguments.push_str(delta());
                self.count_delta(&data, delta(), listener);
            }
            "response.function_call_arguments.done" => {
                if let Some(text) = data["arguments"].as_str() {
                    text.clone_into(&mut self.open_item(&data).arguments);
                }
            }
            "response.refusal.delta" => self.has_refusal |= !delta().is_empty(),
            "response.completed" | "response.done" => return self.end(&data["response"], "completed", listener),
            "response.incomplete" => return self.end(&data["response"], "incomplete", listener),
            "response.failed" => return Err(reported(&data["response"])),
            "error" => return Err(reported(&data)),
            // The whole answer of a server that does not stream.
            "" if data["object"] == "response" => return self.end(&data, "completed", listener),
            kind if kind.ends_with(".delta") => self.count_delta(&data, delta(), listener),
            _ => {}
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.end.is_some() || self.progress.is_repeating
    }

    fn progress(&self) -> &AnswerProgress {
        &self.progress
    }

    fn finish(mut self: Box<Self>, spare_id: &str) -> Result<ModelResponse, ProtocolError> {
        let is_cut = matches!(self.end, Some(End::Cut(_)));
        if self.progress.is_repeating {
            self.items.retain(|_, item| item.is_done || item.kind() == MESSAGE);
        }
        let items = std::mem::take(&mut self.items);
        let has_cut_arguments = |item: &PartialItem| item.kind() == CALL && !arguments::are_whole(&item.arguments);
        if !is_cut && items.values().any(has_cut_arguments) {
            return Err(arguments::hidden_cut());
        }
        let mut ids = HashSet::new();
        let items_count = items.len();
        let mut content = Vec::with_capacity(items_count);
        for (index, item) in items.into_values().enumerate() {
            match item.kind() {
                MESSAGE => content.extend(message_blocks(item)),
                CALL => {
                    let mut id = word(&item.fields, "call_id").to_owned();
                    make_id_unique(&mut id, &mut ids, spare_id, index);
                    content.push(call_block(item, id, is_cut));
                }
                // The item at its start can have incomplete fields.
                _ => content.extend(item.is_done.then_some(Block::Other(Value::Object(item.fields)))),
            }
        }
        // The server refuses reasoning without the item that follows it.
        while matches!(content.last(), Some(Block::Other(item)) if item["type"] == REASONING) {
            content.pop();
        }
        let stop = self.stop_reason(&content, items_count);
        Ok(ModelResponse { content, stop, usage: self.usage.filter(|_| !self.progress.is_repeating), origin: None })
    }
}

impl ResponseAssembler {
    fn stop_reason(&self, content: &[Block], items_count: usize) -> StopReason {
        if self.progress.is_repeating {
            return repetition::stop_reason(items_count);
        }
        if self.has_refusal {
            return StopReason::Refusal;
        }
        match &self.end {
            Some(End::Cut(reason)) => match reason.as_str() {
                "max_output_tokens" | "max_tokens" | "length" => StopReason::MaxTokens,
                "content_filter" => StopReason::Refusal,
                other => StopReason::Other(quoted(other)),
            },
            _ if content.iter().any(|block| matches!(block, Block::ToolUse { .. })) => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        }
    }

    /// The item that a delta belongs to. Some servers change the ids of items, so its place decides.
    fn open_item(&mut self, data: &Value) -> &mut PartialItem {
        let last = self.items.keys().next_back().copied();
        let index = data["output_index"].as_u64().or_else(|| self.key_of_id(&data["item_id"])).or(last);
        self.items.entry(index.unwrap_or_default()).or_default()
    }

    fn key_of_id(&self, id: &Value) -> Option<u64> {
        let id = id.as_str().filter(|id| !id.is_empty())?;
        self.items.iter().find(|(_, item)| word(&item.fields, "id") == id).map(|(key, _)| *key)
    }

    /// This place, if it is free, or the one after the last item.
    fn free_key(&self, index: Option<u64>) -> u64 {
        let next = self.items.keys().next_back().map_or(0, |last| last.saturating_add(1));
        index.filter(|index| !self.items.contains_key(index)).unwrap_or(next)
    }

    fn begin(&mut self, data: &Value, listener: &dyn Listener) {
        let Value::Object(fields) = &data["item"] else { return };
        let key = self.free_key(data["output_index"].as_u64());
        self.items.insert(key, PartialItem { fields: fields.clone(), ..PartialItem::default() });
        self.progress.is_repeating |= self.items.len() >= ITEMS_MAX;
        self.count_content(key, word(fields, "name").len(), listener);
    }

    /// Takes the whole item at its end.
    fn complete(&mut self, data: &Value, listener: &dyn Listener) {
        let Value::Object(fields) = &data["item"] else { return };
        let is_open = |key: &u64| self.items.get(key).is_some_and(|item| !item.is_done && item.matches(fields));
        let index = data["output_index"].as_u64();
        let open = index.filter(is_open).or_else(|| self.key_of_id(&data["item"]["id"]).filter(is_open));
        let key = open.unwrap_or_else(|| self.free_key(index));
        self.set_fields(key, fields.clone(), listener);
        self.check_repetition(key);
    }

    fn set_fields(&mut self, key: u64, fields: Map<String, Value>, listener: &dyn Listener) {
        let item = self.items.entry(key).or_default();
        item.is_done = true;
        let added = json_bytes(&fields).saturating_sub(item.bytes);
        match word(&fields, "type") {
            MESSAGE => {
                let (text, has_refusal) = text_of(&fields);
                self.has_refusal |= has_refusal;
                if let Some(rest) = text.strip_prefix(&item.text).filter(|rest| !rest.is_empty()) {
                    listener.on_text(rest);
                }
                if !text.is_empty() {
                    item.text = text;
                }
            }
            CALL => match &fields.get("arguments") {
                Some(Value::String(text)) if !text.is_empty() => text.clone_into(&mut item.arguments),
                Some(object @ Value::Object(_)) => item.arguments = object.to_string(),
                _ => {}
            },
            _ => {}
        }
        item.fields = fields;
        self.count_content(key, added, listener);
    }

    fn add_text(&mut self, data: &Value, text: &str, listener: &dyn Listener) {
        self.count_delta(data, text, listener);
        listener.on_text(text);
        let item = self.open_item(data);
        if item.fields.is_empty() {
            item.fields.insert("type".to_owned(), MESSAGE.into());
        }
        let mut all = std::mem::take(&mut item.text);
        self.progress.append(&mut all, text);
        self.open_item(data).text = all;
    }

    fn count_delta(&mut self, data: &Value, delta: &str, listener: &dyn Listener) {
        self.open_item(data).bytes += delta.len();
        self.progress.add(delta.len(), listener);
    }

    fn count_content(&mut self, key: u64, bytes: usize, listener: &dyn Listener) {
        self.items.entry(key).or_default().bytes += bytes;
        self.progress.add(bytes, listener);
    }

    /// Ends the answer if this item is a call that it repeats, or if it has too many items.
    fn check_repetition(&mut self, key: u64) {
        let Some(last) = self.items.get(&key).filter(|item| item.kind() == CALL) else { return };
        let is_same = |item: &&PartialItem| {
            let is_call = item.is_done && item.kind() == CALL;
            is_call && word(&item.fields, "name") == word(&last.fields, "name") && item.arguments == last.arguments
        };
        self.progress.check_calls(self.items.values().filter(is_same).count(), self.items.len());
    }

    /// Reads the whole answer at its end, and fills the gaps of the items.
    fn end(&mut self, response: &Value, status: &str, listener: &dyn Listener) -> Result<(), ProtocolError> {
        let output = response["output"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.progress.is_repeating |= output.len() >= ITEMS_MAX;
        for (index, item) in output.iter().enumerate().take(ITEMS_MAX) {
            if let Value::Object(fields) = item {
                self.fill(index as u64, fields, output.len(), listener);
            }
        }
        if response["usage"].is_object() {
            // An invalid counter makes the usage unknown, and an unknown usage is charged at its maximum.
            self.usage = usage_of(&response["usage"], &USAGE_FIELDS);
            if let Some(usage) = self.usage {
                listener.on_usage(usage);
            }
        }
        match response["status"].as_str().unwrap_or(status) {
            "failed" | "cancelled" => return Err(reported(response)),
            "incomplete" => {
                let reason = response["incomplete_details"]["reason"].as_str().unwrap_or("incomplete");
                self.end = Some(End::Cut(reason.to_owned()));
            }
            _ => self.end = Some(End::Complete),
        }
        Ok(())
    }

    /// Takes an item of the whole answer that has `total` items, or those of its fields that were missing.
    fn fill(&mut self, index: u64, fields: &Map<String, Value>, total: usize, listener: &dyn Listener) {
        let is_same_kind = |key: &u64| self.items.get(key).is_some_and(|item| item.matches(fields));
        let id = fields.get("id").unwrap_or(&Value::Null);
        let known = self.key_of_id(id).or(Some(index)).filter(is_same_kind);
        let (key, mut filled) = match known.and_then(|key| Some((key, self.items.get(&key)?))) {
            Some((key, item)) if item.is_done => (key, item.fields.clone()),
            Some((key, _)) => (key, Map::new()),
            None if self.items.len() < total => (self.free_key(Some(index)), Map::new()),
            None => return,
        };
        for (name, value) in fields {
            if filled.get(name).is_none_or(is_empty) {
                filled.insert(name.clone(), value.clone());
            }
        }
        self.set_fields(key, filled, listener);
    }
}

/// A message: its item without the text, then its text. An empty one is left out.
fn message_blocks(mut item: PartialItem) -> Vec<Block> {
    let text = std::mem::take(&mut item.text);
    if text.trim().is_empty() {
        return Vec::new();
    }
    let head = item.extra(&["content"]);
    let has_own_fields = ["id", "phase"].iter().any(|key| head.contains_key(*key));
    let head = has_own_fields.then_some(Block::Other(Value::Object(head)));
    head.into_iter().chain([Block::Text { text }]).collect()
}

fn call_block(mut item: PartialItem, id: String, is_cut: bool) -> Block {
    let (name, text) = (word(&item.fields, "name").to_owned(), std::mem::take(&mut item.arguments));
    let extra = item.extra(&["type", "call_id", "name", "arguments", "status"]);
    if is_cut { arguments::cut_call(id, name, text, extra) } else { arguments::call(id, name, text, extra) }
}

/// The text of a message, and true if it has a refusal.
fn text_of(fields: &Map<String, Value>) -> (String, bool) {
    let parts = fields.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = parts.iter().filter(|part| part["type"] == "output_text").filter_map(|part| part["text"].as_str());
    (text.collect(), parts.iter().any(|part| part["type"] == "refusal"))
}

fn word<'a>(fields: &'a Map<String, Value>, key: &str) -> &'a str {
    fields.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}

fn json_bytes(fields: &Map<String, Value>) -> usize {
    serde_json::to_string(fields).map_or(0, |json| json.len())
}

/// The error in an event, or in an answer that failed.
fn reported(value: &Value) -> ProtocolError {
    let mut error = if value["error"].is_null() { value.clone() } else { value["error"].clone() };
    if let Value::Object(fields) = &mut error
        && fields.get("type").is_some_and(|kind| kind == "error")
    {
        fields.remove("type");
    }
    ProtocolError::Reported(Box::new(ApiError::of_value(&error)))
}
