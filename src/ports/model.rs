//! Model requests and their answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::agent::prompt::text_bytes;
use crate::domain::agent::transcript::{Block, Extra, Origin, Role, Usage};
use crate::domain::team::account::AccountId;
use crate::domain::team::team_spec::ApiKind;

/// Maximum number of tokens that a provider adds to a request, such as its instructions for tools.
const PROVIDER_TOKENS_MAX: u64 = 1024;
/// Maximum number of bytes around a tool, a message or a block in the body of any API: names of fields, ids, roles, cache breakpoints.
const FRAMING_BYTES_MAX: u64 = 256;

/// The description of a tool for a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// Instructions for its use.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
}

/// A message to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Its author.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Block>,
    /// The source of an answer, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestPurpose {
    /// A turn of work.
    #[default]
    Turn,
    /// A summary that replaces the context. The tools stay in the request, so that it begins like the request before and
    /// the provider's cache applies. Tool calls in the answer are ignored.
    Summary,
    /// A summary, after the model called tools instead. The request has no tools.
    SummaryWithoutTools,
    /// An answer of a sub-agent to a question of the member. It has its own context.
    Question,
}

/// A request to a model.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// Name of the member, for logs and the scripted provider.
    pub teammate: Arc<str>,
    /// The model, under the config's name.
    pub model: Arc<str>,
    /// The system prompt.
    pub system: Arc<str>,
    /// The context.
    pub messages: Arc<[Arc<ChatMessage>]>,
    /// The tools that it may call.
    pub tools: Arc<[ToolSpec]>,
    /// Maximum length of the answer, in tokens.
    pub output_tokens_max: u32,
    /// The purpose of the request.
    pub purpose: RequestPurpose,
    /// Maximum time without data from the provider, before the answer and within it.
    pub silence_timeout: Duration,
    /// Maximum time of the whole answer.
    pub answer_timeout: Duration,
}

impl ModelRequest {
    /// Returns true if the request is for a summary.
    pub fn is_for_summary(&self) -> bool {
        matches!(self.purpose, RequestPurpose::Summary | RequestPurpose::SummaryWithoutTools)
    }

    /// Returns the most input tokens that a server can count: one for each byte of the body, and those that it adds. A token of any
    /// tokenizer stands for at least one byte.
    pub fn input_tokens_max(&self) -> u64 {
        self.input_tokens_max_with(&escaped_bytes)
    }

    /// As [`Self::input_tokens_max`], with the most tokens that `text_tokens` returns for each text.
    pub fn input_tokens_max_with(&self, text_tokens: &dyn Fn(&str) -> u64) -> u64 {
        self.body_tokens(text_tokens).sum::<u64>() + PROVIDER_TOKENS_MAX
    }

    /// Returns true if a server can have counted this usage: at most [`Self::input_tokens_max`], and an answer of at most the requested
    /// length. A server that reports more is wrong.
    pub fn can_have_used(&self, usage: Usage) -> bool {
        let mut tokens = usage.total_input().saturating_sub(PROVIDER_TOKENS_MAX);
        // Stops counting as early as possible: a true report is far below the bound.
        let fits = tokens == 0
            || self.body_tokens(&escaped_bytes).any(|most| {
                tokens = tokens.saturating_sub(most);
                tokens == 0
            });
        fits && usage.output_tokens <= u64::from(self.output_tokens_max)
    }

    /// Returns the bytes of the texts that the model reads, without tools and framing.
    pub fn text_bytes(&self) -> u64 {
        let blocks = self.messages.iter().flat_map(|message| &message.content);
        (self.system.len() + blocks.map(text_bytes).sum::<usize>()) as u64
    }

    /// The most tokens of each part of the body, in any API. Everything but texts counts as one for each byte.
    fn body_tokens(&self, text_tokens: &dyn Fn(&str) -> u64) -> impl Iterator<Item = u64> {
        let tools = self.tools.iter().map(|tool| {
            let texts = escaped_bytes(&tool.name) + escaped_bytes(&tool.description);
            FRAMING_BYTES_MAX + texts + tool.input_schema.to_string().len() as u64
        });
        let messages = self.messages.iter().map(move |message| message.tokens_max(text_tokens));
        std::iter::once(FRAMING_BYTES_MAX + text_tokens(&self.system)).chain(tools).chain(messages)
    }
}

impl ChatMessage {
    /// Creates a message without a source.
    pub fn new(role: Role, content: Vec<Block>) -> Self {
        Self { role, content, origin: None }
    }

    /// Returns the message for a model. A model that did not make it gets no source, signatures, reasoning and ids of items: its
    /// provider would refuse them.
    #[must_use]
    pub fn for_reader(self: &Arc<Self>, reader: &Origin) -> Arc<Self> {
        // Answers of earlier versions name no source. All of them are from the Messages API.
        let is_own = match &self.origin {
            Some(origin) => origin == reader,
            None => reader.api == ApiKind::Messages.as_str(),
        };
        let is_plain = self.origin.is_none() && !self.content.iter().any(Block::is_bound_to_origin);
        if self.role == Role::User || is_own || is_plain {
            return Arc::clone(self);
        }
        Arc::new(Self::new(self.role, self.content.iter().filter_map(Block::without_origin).collect()))
    }

    /// Returns the most tokens of the message in the body of a request, in any API. `text_tokens` returns the most for a text.
    pub fn tokens_max(&self, text_tokens: &dyn Fn(&str) -> u64) -> u64 {
        FRAMING_BYTES_MAX + blocks_tokens_max(&self.content, text_tokens)
    }
}

/// Returns the most tokens of these blocks in the body of a request, in any API. `text_tokens` returns the most for a text.
pub fn blocks_tokens_max(blocks: &[Block], text_tokens: &dyn Fn(&str) -> u64) -> u64 {
    let most = |block: &Block| match block {
        Block::Text { text } => text_tokens(text),
        // Some APIs carry the arguments as JSON in a string.
        Block::ToolUse { name, input, arguments, extra, .. } => {
            let arguments =
                arguments.as_ref().map_or_else(|| escaped_bytes(&input.to_string()), |text| escaped_bytes(text));
            escaped_bytes(name) + arguments + json_bytes(extra)
        }
        Block::ToolResult { content, .. } => text_tokens(content),
        Block::Other(value) => value.to_string().len() as u64,
    };
    blocks.iter().map(|block| FRAMING_BYTES_MAX + most(block)).sum()
}

/// Returns the bytes of these fields as JSON.
fn json_bytes(extra: &Extra) -> u64 {
    if extra.is_empty() { 0 } else { serde_json::to_string(extra).map_or(0, |json| json.len() as u64) }
}

/// Returns the bytes of a text in a JSON string (<https://www.rfc-editor.org/rfc/rfc8259#section-7>). No tokenizer has more tokens.
pub fn escaped_bytes(text: &str) -> u64 {
    let escapes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    });
    text.len() as u64 + escapes.sum::<u64>()
}

/// Receives an answer while it is streamed. After an incomplete answer, the received parts are discarded.
pub trait Listener: Send + Sync {
    /// Receives any part of the answer, or another sign of life.
    fn on_activity(&self) {}

    /// Receives the next piece of the answer's text. All pieces together are the full text.
    fn on_text(&self, _delta: &str) {}

    /// Receives the size of a piece, text or not. Thinking and tool arguments cost tokens as well.
    fn on_bytes(&self, _bytes: usize) {}

    /// Receives the usage so far, as a total that the provider reports.
    fn on_usage(&self, _usage: Usage) {}

    /// Receives a text for the person about the server or its settings, such as a setting that saves a request.
    fn on_notice(&self, _text: &str) {}

    /// Receives that the provider was not reached or did not start, so nothing was used. Other requests without an answer may have
    /// used tokens.
    fn on_declined(&self) {}
}

/// Ignores the stream.
impl Listener for () {}

/// The reason why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The answer is complete.
    EndTurn,
    /// It calls tools.
    ToolUse,
    /// The answer was cut at the token limit. A tool call at its end must not be executed.
    MaxTokens,
    /// The client ended the answer because the model made the same call, or wrote the same passage, again and again. Its calls are
    /// complete. If it ends with a call, that one must not be executed. The usage is unknown.
    Repetition,
    /// The client ended the answer because it has too many calls. None of them must be executed. The usage is unknown.
    TooManyCalls,
    /// The answer was cut because the model's context is full.
    ContextFull,
    /// The model refuses to answer.
    Refusal,
    /// The model asks to continue in another request.
    PauseTurn,
    /// Another reason, in the provider's word. The answer may be incomplete, so its tool calls must not be executed.
    #[serde(untagged)]
    Other(String),
}

/// A model's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelResponse {
    /// Its parts.
    pub content: Vec<Block>,
    /// The reason for its end.
    pub stop: StopReason,
    /// Its usage; `None` if the provider does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Its source, if it matters to the next request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// The reason why a model did not answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The failure is temporary.
    #[error("{message}")]
    Temporary {
        /// The provider's message.
        message: String,
        /// The requested wait before a retry.
        retry_after: Option<Duration>,
    },
    /// The account has reached a rate limit, or has used up a quota. Every request of the account fails until the limit ends.
    #[error("{message}")]
    Limited {
        /// The provider's message.
        message: String,
        /// The time until the end of the limit, if the provider tells it.
        wait: Option<Duration>,
        /// True if a quota is used up, so that retries within a turn cannot help.
        is_quota: bool,
    },
    /// The context is too long for the model. Compaction can help.
    #[error("the context is too long for the model: {message}")]
    ContextTooLong {
        /// The provider's message.
        message: String,
        /// The model's context window in tokens, if reported.
        window_tokens: Option<u64>,
    },
    /// The server, the key or the model in the settings is wrong. The message names the setting.
    #[error("{0}")]
    WrongSetting(String),
    /// The account has no credit, and no time is known at which it gets some. Every request of the account fails.
    #[error("{0}")]
    NoCredit(String),
    /// Nothing answers at the configured address, and nothing has answered there since this process started. The address is wrong,
    /// or the server does not run yet. The message names the setting.
    #[error("{0}")]
    NoServer(String),
    /// The server answered, but its answer cannot be read. Another answer can be valid. This is no outage.
    #[error("{0}")]
    InvalidAnswer(String),
    /// A retry cannot help.
    #[error("{0}")]
    Final(String),
}

/// The connection to a model.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Sends one request and waits for the whole answer. Streaming providers pass its parts to `listener`. Dropping the future
    /// cancels the request. Does not retry after temporary errors: the turn does.
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError>;

    /// Returns true if usage is reported by a server, which can be wrong. False if the person sets it, as in a script.
    fn has_server(&self) -> bool {
        true
    }

    /// Returns the account whose limits hold for its requests, if other processes can use it too.
    fn account(&self) -> Option<AccountId> {
        None
    }

    /// Returns the way to a larger context window at its server, for people, if the provider knows it.
    fn larger_window(&self) -> Option<&'static str> {
        None
    }

    /// Returns the model's context window in tokens, including the answer, if the provider knows it.
    fn context_window_tokens(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_above_request_bounds_is_rejected() {
        let text = "x".repeat(20_000);
        let request = ModelRequest {
            teammate: "alice".into(),
            model: "m".into(),
            system: "s".repeat(1_000).into(),
            messages: [Arc::new(ChatMessage::new(Role::User, vec![Block::text(text)]))].into(),
            tools: [].into(),
            output_tokens_max: 100,
            purpose: RequestPurpose::Turn,
            silence_timeout: Duration::ZERO,
            answer_timeout: Duration::ZERO,
        };
        let bound = request.input_tokens_max();
        assert_eq!(bound, 21_000 + PROVIDER_TOKENS_MAX + 3 * FRAMING_BYTES_MAX);
        let can = |input_tokens, cache_read_tokens, cache_write_tokens, output_tokens| {
            let usage =
                Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, ..Usage::default() };
            request.can_have_used(usage)
        };
        assert!(can(0, 0, 0, 0) && can(bound, 0, 0, 100) && can(1, bound - 2, 1, 100));
        assert!(!can(bound + 1, 0, 0, 1) && !can(1, bound, 0, 1) && !can(0, 0, bound + 1, 1) && !can(10, 0, 0, 101));
        assert!(!can(1 << 63, 1 << 63, 0, 0) && !can(0, u64::MAX, 1, 0) && !can(0, 0, 0, u64::MAX));
    }

    /// Encrypted reasoning has any number of bytes for a token, so a true report can be far below it.
    #[test]
    fn opaque_blocks_are_no_text_but_have_bytes() {
        let encrypted = serde_json::json!({"type": "reasoning", "encrypted_content": "Z".repeat(9_000)});
        let mut message = ChatMessage::new(Role::Assistant, vec![Block::text("four")]);
        let bytes = message.tokens_max(&escaped_bytes);
        message.content.push(Block::Other(encrypted));
        assert!(message.tokens_max(&escaped_bytes) > bytes + 9_000);
        assert_eq!(message.content.iter().map(text_bytes).sum::<usize>(), 4);
    }

    #[test]
    fn escaped_bytes_are_those_of_json() {
        for text in ["", "plain", "a\nb\t\"c\"\\", "\u{0}\u{1f}\u{8}\u{c}\r\u{7f}", "ä€😀\u{2028}"] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(escaped_bytes(text), json.len() as u64 - 2, "{json}");
        }
    }
}
