//! The records of a transcript and the blocks of a message.
//!
//! A transcript only grows. A compaction is a record, not a rewrite: `covers` is the number of earlier records that its summary
//! replaces for the model. [`super::prompt`] decides which records the model reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::task::TaskId;
use super::time::UnixMs;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The harness: tasks, mail, tool results.
    User,
    /// The model.
    Assistant,
}

/// A part of a message, in the format of the Messages API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A tool call by the model.
    ToolUse {
        /// Id of the call, which its result repeats.
        id: String,
        /// Name of the tool.
        name: String,
        /// Its arguments.
        #[serde(default)]
        input: Value,
    },
    /// The result of a tool call.
    ToolResult {
        /// Id of the call.
        tool_use_id: String,
        /// Its output.
        content: String,
        /// True if it failed and the model can react to that.
        #[serde(default)]
        is_error: bool,
    },
    /// A block that is sent back to its provider unchanged, such as signed thinking.
    #[serde(untagged)]
    Other(Value),
}

impl Block {
    /// Creates a text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// The tokens of model requests, as reported by the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens, without those of the cache.
    #[serde(default)]
    pub input_tokens: u64,
    /// Output tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// Input tokens read from the provider's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Input tokens written to the provider's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// Returns the sum. Saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_add(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
        }
    }

    /// Returns the number of tokens of all kinds.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input_tokens
            .saturating_add(self.output_tokens)
            .saturating_add(self.cache_read_tokens)
            .saturating_add(self.cache_write_tokens)
    }
}

/// A record: a line of `transcripts/<name>.jsonl`.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Time of the record.
    pub at: UnixMs,
    /// Its content.
    pub entry: TranscriptEntry,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum TranscriptEntry {
    /// A message.
    Message(MessageRecord),
    /// A summary that replaces earlier records for the model.
    Compaction {
        /// The summary.
        summary: String,
        /// Number of records from the start that it covers.
        covers: u64,
    },
}

/// A message with the harness's data about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageRecord {
    /// The author.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Block>,
    /// The task it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The attempt of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Usage of the request that produced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Ids of the mail in it. Duplicates are removed across restarts by this field alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivered: Vec<String>,
}

impl MessageRecord {
    /// Creates a message without further data.
    #[must_use]
    pub fn new(role: Role, content: Vec<Block>) -> Self {
        Self { role, content, task: None, attempt: None, usage: None, delivered: Vec::new() }
    }
}

#[derive(Serialize, Deserialize)]
struct RecordLine {
    v: u32,
    at: UnixMs,
    kind: RecordKind,
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
enum RecordKind {
    Message,
    Compaction,
}

impl Record {
    /// Returns the line without a newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let blank = RecordLine {
            v: 1,
            at: self.at,
            kind: RecordKind::Message,
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
            TranscriptEntry::Message(message) => RecordLine {
                role: Some(message.role),
                content: Some(message.content.clone()),
                task: message.task,
                attempt: message.attempt,
                usage: message.usage,
                delivered: message.delivered.clone(),
                ..blank
            },
            TranscriptEntry::Compaction { summary, covers } => RecordLine {
                kind: RecordKind::Compaction,
                summary: Some(summary.clone()),
                covers: Some(*covers),
                ..blank
            },
        };
        // All map keys are strings, so serializing cannot fail.
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The error of serde, if it is not a record.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        let line: RecordLine = serde_json::from_slice(line)?;
        let entry = match line.kind {
            RecordKind::Message => TranscriptEntry::Message(MessageRecord {
                role: line.role.unwrap_or(Role::User),
                content: line.content.unwrap_or_default(),
                task: line.task,
                attempt: line.attempt,
                usage: line.usage,
                delivered: line.delivered,
            }),
            RecordKind::Compaction => TranscriptEntry::Compaction {
                summary: line.summary.unwrap_or_default(),
                covers: line.covers.unwrap_or(0),
            },
        };
        Ok(Self { at: line.at, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_record_round_trips() {
        let block = Block::Other(serde_json::json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}));
        let mut message = MessageRecord::new(Role::Assistant, vec![Block::text("hi"), block]);
        message.usage = Some(Usage { input_tokens: 9, ..Usage::default() });
        for entry in [TranscriptEntry::Message(message), TranscriptEntry::Compaction { summary: "s".into(), covers: 4 }]
        {
            let record = Record { at: UnixMs(7), entry };
            assert_eq!(Record::parse(record.to_line().as_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn tool_use_without_input_parses_as_null() {
        let line = br#"{"v":1,"at":1,"kind":"message","role":"assistant","content":[{"type":"tool_use","id":"x","name":"idle"}]}"#;
        let TranscriptEntry::Message(message) = Record::parse(line).unwrap().entry else { panic!("a message") };
        assert_eq!(message.content, [Block::ToolUse { id: "x".into(), name: "idle".into(), input: Value::Null }]);
    }
}
