//! The reasoning of an answer. It goes back to its server in later requests, under the name of its own field.

use serde_json::{Map, Value, json};

use crate::domain::agent::transcript::Block;
use crate::domain::team::model_spec::ReasoningBack;
use crate::providers::repetition::ITEMS_MAX;

/// The fields with a text. The first one of a piece counts: some servers send the same text under two names.
const TEXT_FIELDS: [&str; 2] = ["reasoning_content", "reasoning"];
/// The field with a list of parts, which has the text of the other fields too.
const DETAILS: &str = "reasoning_details";
/// The fields of a part whose pieces are joined.
const JOINED: [&str; 2] = ["text", "summary"];
/// The kinds of the blocks with reasoning: fields of the message, or a part of its content.
const FIELDS_BLOCK: &str = "reasoning";
const PART_BLOCK: &str = "thinking";

/// The reasoning as far as it has arrived.
#[derive(Debug, Default)]
pub struct Reasoning {
    texts: Map<String, Value>,
    details: Vec<Value>,
    /// The text of parts of the content.
    thinking: String,
}

impl Reasoning {
    /// Adds the reasoning in a piece of an answer. Returns its number of bytes.
    pub fn add(&mut self, delta: &Value) -> usize {
        let mut bytes = 0;
        let texts = TEXT_FIELDS.iter().filter_map(|field| Some((*field, delta[*field].as_str()?)));
        if let Some((field, text)) = texts.filter(|(_, text)| !text.is_empty()).take(1).next() {
            append(self.texts.entry(field).or_insert_with(|| Value::String(String::new())), text);
            bytes += text.len();
        }
        for detail in delta[DETAILS].as_array().into_iter().flatten().take(ITEMS_MAX) {
            bytes += self.add_detail(detail);
        }
        for part in delta["content"].as_array().into_iter().flatten().filter(|part| part["type"] == PART_BLOCK) {
            let texts = part["thinking"].as_array().into_iter().flatten().filter_map(|inner| inner["text"].as_str());
            for text in texts.chain(part["thinking"].as_str()) {
                self.thinking.push_str(text);
                bytes += text.len();
            }
        }
        bytes
    }

    /// Adds a part, or joins it with the part of the same kind and index. A part without a text, such as an encrypted one, stays whole.
    fn add_detail(&mut self, detail: &Value) -> usize {
        let Value::Object(fields) = detail else { return 0 };
        let is_text = JOINED.iter().any(|field| detail[*field].is_string());
        let is_same = |known: &&mut Value| ["type", "index"].iter().all(|key| known[*key] == detail[*key]);
        match self.details.iter_mut().rev().find(is_same).filter(|_| is_text || detail["data"].is_null()) {
            Some(Value::Object(known)) => {
                let mut bytes = 0;
                for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                    bytes += value.as_str().map_or(0, str::len);
                    match (known.get_mut(name), value.as_str()) {
                        (Some(Value::String(text)), Some(more)) if JOINED.contains(&name.as_str()) => {
                            text.push_str(more);
                        }
                        _ => drop(known.insert(name.clone(), value.clone())),
                    }
                }
                bytes
            }
            _ => {
                self.details.push(detail.clone());
                detail.to_string().len()
            }
        }
    }

    /// Returns the blocks of the answer.
    pub fn into_blocks(self) -> Vec<Block> {
        let mut fields = self.texts;
        if !self.details.is_empty() {
            fields = Map::from_iter([(DETAILS.to_owned(), Value::Array(self.details))]);
        }
        let mut blocks = Vec::new();
        if !fields.is_empty() {
            fields.insert("type".to_owned(), FIELDS_BLOCK.into());
            blocks.push(Block::Other(Value::Object(fields)));
        }
        if !self.thinking.is_empty() {
            let parts = json!([{"type": "text", "text": self.thinking}]);
            blocks.push(Block::Other(json!({"type": PART_BLOCK, "thinking": parts})));
        }
        blocks
    }
}

/// Returns the fields with reasoning of an assistant's message, as they go back. A field that `back` names is there beside calls even if
/// there is no reasoning.
pub fn fields_of(content: &[Block], back: ReasoningBack, has_calls: bool) -> Map<String, Value> {
    let fields = content.iter().filter_map(|block| match block {
        Block::Other(Value::Object(fields)) if fields.get("type")? == FIELDS_BLOCK => Some(fields),
        _ => None,
    });
    let fields = fields.flatten().filter(|(name, _)| *name == DETAILS || TEXT_FIELDS.contains(&name.as_str()));
    let mut fields: Map<_, _> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    match back {
        ReasoningBack::SameField => {}
        ReasoningBack::None => fields.clear(),
        ReasoningBack::Content | ReasoningBack::Reasoning => {
            let text = TEXT_FIELDS.iter().find_map(|name| fields.remove(*name));
            if text.is_some() || (has_calls && fields.is_empty()) {
                fields.insert(back.as_str().to_owned(), text.unwrap_or_else(|| Value::String(String::new())));
            }
        }
    }
    fields
}

/// Returns the parts of the content with reasoning of an assistant's message.
pub fn parts_of(content: &[Block]) -> impl Iterator<Item = &Value> {
    content.iter().filter_map(|block| match block {
        Block::Other(part) if part["type"] == PART_BLOCK => Some(part),
        _ => None,
    })
}

fn append(value: &mut Value, more: &str) {
    if let Value::String(text) = value {
        text.push_str(more);
    }
}
