//! The records of a transcript and the blocks of a message.
//!
//! A transcript only grows. A compaction is a record, not a rewrite: `covers` is the number of earlier records that its summary
//! replaces for the model. [`super::prompt`] decides which records the model reads.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::domain::log::snapshot::is_default;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The harness: tasks, mail, tool results.
    #[default]
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
        /// The model's own text of the arguments, if it is not the shortest JSON of `input`. Providers cache requests by their bytes.
        #[serde(default, deserialize_with = "valid_or_default", skip_serializing_if = "Option::is_none")]
        arguments: Option<String>,
        /// The provider's fields of the call, such as a signature.
        #[serde(default, deserialize_with = "valid_or_default", skip_serializing_if = "Extra::is_empty")]
        extra: Extra,
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
    /// A block that is sent back to its provider unchanged, such as signed thinking, reasoning, or an item of an API.
    #[serde(untagged)]
    Other(Value),
}

/// Fields that go back to their provider unchanged. Brigade does not interpret them.
pub type Extra = Map<String, Value>;

/// The source of an answer. Its signatures, its reasoning and the ids of its items are valid only there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The provider, under the config's name.
    pub provider: String,
    /// The API, such as `responses`. The blocks of an answer are in its format.
    pub api: String,
    /// The model.
    pub model: String,
}

impl Block {
    /// Creates a tool call without the provider's own text and fields.
    pub fn tool_use(id: impl Into<String>, name: impl Into<String>, input: Value) -> Self {
        Self::ToolUse { id: id.into(), name: name.into(), input, arguments: None, extra: Extra::new() }
    }

    /// Creates a text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// Returns true if only the model that made it accepts it, or a part of it.
    pub fn is_bound_to_origin(&self) -> bool {
        match self {
            Self::Other(_) => true,
            Self::ToolUse { extra, .. } => !extra.is_empty(),
            Self::Text { .. } | Self::ToolResult { .. } => false,
        }
    }

    /// Returns the part that any model accepts, if there is one.
    pub fn without_origin(&self) -> Option<Self> {
        match self.clone() {
            Self::Other(_) => None,
            Self::ToolUse { id, name, input, arguments, .. } => {
                Some(Self::ToolUse { id, name, input, arguments, extra: Extra::new() })
            }
            block => Some(block),
        }
    }

    /// Returns the text of a text block.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            _ => None,
        }
    }
}

/// The ticks in a US dollar, the unit of a reported bill.
pub const TICKS_PER_USD: f64 = 1e10;

/// The tokens of model requests, as reported by the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Input tokens, without those of the cache.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens read from the provider's cache.
    #[serde(skip_serializing_if = "is_default")]
    pub cache_read_tokens: u64,
    /// Input tokens written to the provider's cache.
    #[serde(skip_serializing_if = "is_default")]
    pub cache_write_tokens: u64,
    /// The part of the output tokens that is reasoning, if the provider reports it.
    #[serde(skip_serializing_if = "is_default")]
    pub reasoning_tokens: u64,
    /// The bill, in ticks of [`TICKS_PER_USD`], if the provider reports it.
    #[serde(deserialize_with = "valid_or_default", skip_serializing_if = "Option::is_none")]
    pub cost_ticks: Option<u64>,
}

impl Usage {
    /// Combines each count with that of `other`. The bill stays.
    pub fn each(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            input_tokens: combine(self.input_tokens, other.input_tokens),
            output_tokens: combine(self.output_tokens, other.output_tokens),
            cache_read_tokens: combine(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: combine(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: combine(self.reasoning_tokens, other.reasoning_tokens),
            cost_ticks: self.cost_ticks,
        }
    }

    /// Returns the sum. Saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let costs = [self.cost_ticks, other.cost_ticks];
        let cost_ticks = costs.into_iter().flatten().reduce(u64::saturating_add);
        Self { cost_ticks, ..self.each(other, u64::saturating_add) }
    }

    /// Returns the difference of each count; 0 if it is negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let cost_ticks = self.cost_ticks.map(|cost| cost.saturating_sub(other.cost_ticks.unwrap_or_default()));
        Self { cost_ticks, ..self.each(other, u64::saturating_sub) }
    }

    /// Returns the bill in US dollars, if the provider reported it.
    #[expect(clippy::cast_precision_loss, reason = "bills stay below 2^53 ticks, about a million dollars")]
    pub fn billed_usd(self) -> Option<f64> {
        self.cost_ticks.map(|ticks| ticks as f64 / TICKS_PER_USD)
    }

    /// Returns the number of input tokens, with those of the cache.
    pub fn total_input(self) -> u64 {
        self.input_tokens.saturating_add(self.cache_read_tokens).saturating_add(self.cache_write_tokens)
    }

    /// Returns the number of tokens of all kinds.
    pub fn total(self) -> u64 {
        self.total_input().saturating_add(self.output_tokens)
    }
}

/// A record: a line of `transcripts/<name>.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Time of the record.
    pub at: UnixMs,
    /// Its content.
    #[serde(flatten)]
    pub entry: TranscriptEntry,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TranscriptEntry {
    /// A message.
    Message(MessageRecord),
    /// A summary that replaces earlier records for the model. Without a summary the model starts a new context.
    Compaction {
        /// The summary.
        #[serde(default)]
        summary: String,
        /// Number of records from the start that it covers.
        #[serde(default)]
        covers: u64,
        /// The list of the tool `todo` at that time. The model loses it with its context otherwise.
        #[serde(default, deserialize_with = "valid_or_default", skip_serializing_if = "String::is_empty")]
        todo_list: String,
    },
    /// A prompt to the session of an external agent. It has the text of every message for the agent that no earlier prompt of the
    /// session had. The record is written before the prompt is sent.
    Sent(SentPrompt),
}

/// A prompt that was sent to an external agent, or was about to be sent when the process ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SentPrompt {
    /// The id of the agent's session.
    pub session: String,
    /// The folder in which the agent works, absolute. Some agents find a session only there.
    pub folder: String,
    /// The key by which the agent's own history has the prompt.
    pub key: String,
    /// True if the prompt before it did not arrive. This one has its messages too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub includes_last: bool,
}

impl TranscriptEntry {
    /// Returns true if the model sees nothing of the records before this one, not even a summary. Only mail since its last answer stays.
    pub fn starts_context(&self) -> bool {
        matches!(self, Self::Compaction { summary, .. } if summary.is_empty())
    }
}

/// The kind of a text that the harness gives a model to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptKind {
    /// The goal of a session.
    Goal,
    /// A request for the report at the end of a session.
    Report,
    /// Mail with at least one message that needs an answer.
    Mail,
}

/// A message with the harness's data about it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageRecord {
    /// The author.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Block>,
    /// The kind of a prompt; `None` for a message that needs no answer.
    #[serde(deserialize_with = "valid_or_default", skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptKind>,
    /// True for the identity block that begins a context.
    #[serde(skip_serializing_if = "is_default")]
    pub identity: bool,
    /// The recipient of a message that a person wrote.
    #[serde(deserialize_with = "valid_or_default", skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The task it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The attempt of that task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Usage of the request that produced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The source of a model's answer. Records before this field have none; all of them are from the Messages API.
    #[serde(deserialize_with = "valid_or_default", skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Ids of the mail in it. Duplicates are removed across restarts by this field alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delivered: Vec<String>,
}

impl MessageRecord {
    /// Returns true if it is mail.
    pub fn is_mail(&self) -> bool {
        self.role == Role::User && (!self.delivered.is_empty() || self.prompt == Some(PromptKind::Mail))
    }

    /// Creates a message without further data.
    pub fn new(role: Role, content: Vec<Block>) -> Self {
        Self { role, content, ..Self::default() }
    }

    /// Creates the record of an identity block.
    pub fn identity(block: &str) -> Self {
        Self { identity: true, ..Self::new(Role::User, vec![Block::text(block)]) }
    }
}

/// Reads an optional field. A value that this version does not know counts as none, so that the rest of the record is kept.
fn valid_or_default<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// The version of the format, at the start of each line.
const FORMAT_VERSION: u32 = 1;

#[derive(Serialize)]
struct RecordLine<'a> {
    v: u32,
    #[serde(flatten)]
    record: &'a Record,
}

impl Record {
    /// Returns the line without a newline.
    pub fn to_line(&self) -> String {
        // All map keys are strings, so serializing cannot fail.
        serde_json::to_string(&RecordLine { v: FORMAT_VERSION, record: self }).unwrap_or_default()
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The error of serde, if it is not a record.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
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
        message.prompt = Some(PromptKind::Goal);
        let compaction = |todo_list: &str| TranscriptEntry::Compaction {
            summary: "s".into(),
            covers: 4,
            todo_list: todo_list.into(),
        };
        let sent = SentPrompt { session: "s".into(), folder: "/w".into(), key: "k".into(), includes_last: true };
        for entry in [TranscriptEntry::Message(message), compaction(""), compaction("one"), TranscriptEntry::Sent(sent)]
        {
            let record = Record { at: UnixMs(7), entry };
            assert_eq!(Record::parse(record.to_line().as_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn record_with_unknown_optional_values_is_kept() {
        let line =
            br#"{"v":1,"at":1,"kind":"message","content":[{"type":"text","text":"hi"}],"prompt":"other","to":5}"#;
        let TranscriptEntry::Message(message) = Record::parse(line).unwrap().entry else { panic!("a message") };
        assert_eq!(message, MessageRecord::new(Role::User, vec![Block::text("hi")]));
        let line = br#"{"v":1,"at":1,"kind":"compaction","summary":"s","covers":1,"todo_list":5}"#;
        let TranscriptEntry::Compaction { todo_list, .. } = Record::parse(line).unwrap().entry else { panic!("one") };
        assert_eq!(todo_list, "");
    }

    /// Transcripts of earlier versions load, and their lines stay the same. Only the new fields add to a line.
    #[test]
    fn records_without_origin_keep_their_lines() {
        let old = include_str!("../../../tests/contracts/transcript.jsonl");
        for line in old.lines() {
            let record = Record::parse(line.as_bytes()).unwrap();
            assert_eq!(record.to_line(), line);
            let TranscriptEntry::Message(message) = record.entry else { continue };
            assert_eq!(message.origin, None);
            assert!(!message.content.iter().any(Block::is_bound_to_origin));
        }
        let new = include_str!("../../../tests/contracts/transcript_origin.jsonl");
        for line in new.lines() {
            assert_eq!(Record::parse(line.as_bytes()).unwrap().to_line(), line);
        }
    }

    #[test]
    fn odd_values_of_optional_fields_keep_the_call() {
        let block = r#"{"type":"tool_use","id":"x","name":"idle","input":{},"arguments":7,"extra":"no"}"#;
        assert_eq!(serde_json::from_str::<Block>(block).unwrap(), Block::tool_use("x", "idle", serde_json::json!({})));
        let line =
            r#"{"v":1,"at":1,"kind":"message","role":"assistant","content":[],"usage":{"cost_ticks":"no"},"origin":5}"#;
        let TranscriptEntry::Message(message) = Record::parse(line.as_bytes()).unwrap().entry else { panic!("one") };
        assert_eq!((message.origin, message.usage), (None, Some(Usage::default())));
    }

    #[test]
    fn tool_use_without_input_parses_as_null() {
        let line = br#"{"v":1,"at":1,"kind":"message","role":"assistant","content":[{"type":"tool_use","id":"x","name":"idle"}]}"#;
        let TranscriptEntry::Message(message) = Record::parse(line).unwrap().entry else { panic!("a message") };
        assert_eq!(message.content, [Block::tool_use("x", "idle", Value::Null)]);
    }
}
