//! What was said: the records of a transcript, and the blocks a message is made of.
//!
//! A transcript only grows. A compaction is a record, not a rewriting: `covers` says how many records before it the
//! summary stands for. Which of them reach the model is [`super::context`]'s to say.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::task::TaskId;
use super::time::UnixMs;

/// Whose words a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The harness: tasks, mail, tool results.
    User,
    /// The model.
    Assistant,
}

/// A part of a message, in the Messages API's shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// The model asks for a tool.
    ToolUse {
        /// The call's id; its result carries it.
        id: String,
        /// Which tool.
        name: String,
        /// Its arguments.
        #[serde(default)]
        input: Value,
    },
    /// What the tool said.
    ToolResult {
        /// The call it answers.
        tool_use_id: String,
        /// Its output.
        content: String,
        /// Whether it failed in a way the model can mend.
        #[serde(default)]
        is_error: bool,
    },
    /// A block of a kind that is passed back to its provider as it came, such as signed thinking.
    #[serde(untagged)]
    Other(Value),
}

impl Block {
    /// A text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// Tokens of one model request, as the provider reported them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Read, not counting what came from the cache.
    #[serde(default)]
    pub input_tokens: u64,
    /// Written.
    #[serde(default)]
    pub output_tokens: u64,
    /// Read from the provider's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Written to the provider's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_add(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
        }
    }

    /// All tokens, however they were paid for.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input_tokens
            .saturating_add(self.output_tokens)
            .saturating_add(self.cache_read_tokens)
            .saturating_add(self.cache_write_tokens)
    }
}

/// One record: a line of `transcripts/<name>.jsonl`.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// When it was written.
    pub at: UnixMs,
    /// What it says.
    pub entry: Entry,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// Something said.
    Message(MessageRecord),
    /// The records before it are replaced by a summary for the model.
    Compaction {
        /// What matters of them.
        summary: String,
        /// How many records from the start the summary stands for.
        covers: u64,
    },
}

/// A message with what the harness knows about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageRecord {
    /// Whose words.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Block>,
    /// The task it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The attempt of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What the request for it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The mail delivered in it, by id: dedupe across restarts is from here only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivered: Vec<String>,
}

impl MessageRecord {
    /// A message of which the harness knows nothing more.
    #[must_use]
    pub fn new(role: Role, content: Vec<Block>) -> Self {
        Self { role, content, task: None, attempt: None, usage: None, delivered: Vec::new() }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    v: u32,
    at: UnixMs,
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Vec<Block>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    delivered: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    covers: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Message,
    Compaction,
}

impl Record {
    /// The line, without a newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let blank = Line {
            v: 1,
            at: self.at,
            kind: Kind::Message,
            role: None,
            content: None,
            task: None,
            attempt: None,
            usage: None,
            delivered: Vec::new(),
            summary: None,
            covers: None,
        };
        let line = match &self.entry {
            Entry::Message(message) => Line {
                role: Some(message.role),
                content: Some(message.content.clone()),
                task: message.task,
                attempt: message.attempt,
                usage: message.usage,
                delivered: message.delivered.clone(),
                ..blank
            },
            Entry::Compaction { summary, covers } => {
                Line { kind: Kind::Compaction, summary: Some(summary.clone()), covers: Some(*covers), ..blank }
            }
        };
        // Nothing in a line has keys that are not strings, so writing it cannot fail.
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// Reads a line.
    ///
    /// # Errors
    /// What serde says, when it is not a record of ours.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        let line: Line = serde_json::from_slice(line)?;
        let entry = match line.kind {
            Kind::Message => Entry::Message(MessageRecord {
                role: line.role.unwrap_or(Role::User),
                content: line.content.unwrap_or_default(),
                task: line.task,
                attempt: line.attempt,
                usage: line.usage,
                delivered: line.delivered,
            }),
            Kind::Compaction => {
                Entry::Compaction { summary: line.summary.unwrap_or_default(), covers: line.covers.unwrap_or(0) }
            }
        };
        Ok(Self { at: line.at, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let block = Block::Other(serde_json::json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}));
        let mut message = MessageRecord::new(Role::Assistant, vec![Block::text("hi"), block]);
        message.usage = Some(Usage { input_tokens: 9, ..Usage::default() });
        for entry in [Entry::Message(message), Entry::Compaction { summary: "s".into(), covers: 4 }] {
            let record = Record { at: UnixMs(7), entry };
            assert_eq!(Record::parse(record.to_line().as_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn a_tool_use_without_input_has_none() {
        let line = br#"{"v":1,"at":1,"kind":"message","role":"assistant","content":[{"type":"tool_use","id":"x","name":"idle"}]}"#;
        let Entry::Message(message) = Record::parse(line).unwrap().entry else { panic!("a message") };
        assert_eq!(message.content, [Block::ToolUse { id: "x".into(), name: "idle".into(), input: Value::Null }]);
    }
}
