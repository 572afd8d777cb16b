//! How a model is asked and what it answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::domain::context::block_bytes;
use crate::domain::transcript::{Block, Role, Usage};

/// Tokens that a provider may add to a request of its own, such as its instructions for tools.
const ADDED_TOKENS_MAX: u64 = 4096;
/// Tokens that may stand around a tool or a block: names, ids, roles.
const AROUND_TOKENS_MAX: u64 = 64;

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// When and how to use it.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
}

/// A message as a model is sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// Whose words.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Block>,
}

/// What an answer is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// The work goes on.
    #[default]
    Turn,
    /// A summary replaces the context. The tools stay in the request, so that its beginning is the former one's and a
    /// provider's cache holds it; a call in the answer is not made.
    Summary,
    /// As before, of a model that called tools instead: it must not be able to.
    SummaryWithoutTools,
}

/// One request to a model.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// Who asks, for logs and for scripts.
    pub teammate: Arc<str>,
    /// The model, as the config names it.
    pub model: Arc<str>,
    /// The system prompt.
    pub system: Arc<str>,
    /// The context.
    pub messages: Arc<[Arc<ChatMessage>]>,
    /// The tools it may ask for.
    pub tools: Arc<[ToolSpec]>,
    /// The longest answer, in tokens.
    pub output_tokens_max: u32,
    /// What the answer is wanted for.
    pub purpose: Purpose,
    /// How long the provider may send nothing, before its answer and within it.
    pub silence_timeout: Duration,
    /// How long the whole answer may take, whatever comes meanwhile.
    pub answer_timeout: Duration,
}

impl ModelRequest {
    /// Whether a summary is wanted.
    #[must_use]
    pub fn is_for_summary(&self) -> bool {
        self.purpose != Purpose::Turn
    }

    /// Whether it can have used this: a token that is read stands for one byte of the request at least, and an answer has at most
    /// the tokens that were asked for. A server that reports more is wrong, whatever the reason.
    #[must_use]
    pub fn can_have_used(&self, usage: Usage) -> bool {
        let read = usage.input_tokens.saturating_add(usage.cache_read_tokens).saturating_add(usage.cache_write_tokens);
        let tools = self
            .tools
            .iter()
            .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.to_string().len());
        let blocks = self.messages.iter().flat_map(|message| &message.content).map(block_bytes);
        let mut sizes = std::iter::once(self.system.len()).chain(tools).chain(blocks);
        let mut left = read.saturating_sub(ADDED_TOKENS_MAX);
        // Counts no further than needed: a true report is far below the bound.
        let fits = left == 0
            || sizes.any(|bytes| {
                left = left.saturating_sub(bytes as u64 + AROUND_TOKENS_MAX);
                left == 0
            });
        fits && usage.output_tokens <= u64::from(self.output_tokens_max)
    }
}

/// Hears an answer while it comes. What it hears is lost with an answer that does not come to its end.
pub trait Listener: Send + Sync {
    /// Something of the answer came, be it only a sign of life.
    fn alive(&self);

    /// The model says this next; all pieces together are the texts of the answer.
    fn text(&self, delta: &str);

    /// So many bytes of the answer came, words or not: thinking and the arguments of calls cost as much.
    fn wrote(&self, bytes: usize);

    /// The provider says what was used up to here; each time in all.
    fn used(&self, usage: Usage);

    /// The provider was not reached, or would not begin: nothing was used. Any other request without an answer may have been worked on.
    fn declined(&self) {}
}

/// Nobody listens.
impl Listener for () {
    fn alive(&self) {}

    fn text(&self, _delta: &str) {}

    fn wrote(&self, _bytes: usize) {}

    fn used(&self, _usage: Usage) {}
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// It had said all.
    EndTurn,
    /// It asks for tools.
    ToolUse,
    /// The answer was cut: a tool call at its end must not be run.
    MaxTokens,
    /// The answer was cut because the model's context is full.
    ContextFull,
    /// It will not answer.
    Refusal,
    /// It wants to go on.
    PauseTurn,
    /// Anything else, as it was called: whether the answer is whole is not known, so its tool calls must not be run.
    Other(String),
}

/// A model's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelResponse {
    /// Its parts.
    pub content: Vec<Block>,
    /// Why it ends here.
    pub stop: StopReason,
    /// What it used; `None` where the provider does not say.
    pub usage: Option<Usage>,
}

/// Why a model did not answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// It may answer later.
    #[error("{message}")]
    Temporary {
        /// What it said.
        message: String,
        /// How long it asked us to wait.
        retry_after: Option<Duration>,
    },
    /// The context is too long for it: compaction mends that.
    #[error("the context is too long for the model: {message}")]
    ContextTooLong {
        /// What it said.
        message: String,
        /// How many tokens it takes, where it said so.
        window_tokens: Option<u64>,
    },
    /// Asking again cannot help.
    #[error("{0}")]
    Final(String),
}

/// Which model, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelSpec {
    /// A name of the PROVIDERS table.
    pub provider: String,
    /// The model's name, for providers that have several; a file for `scripted`.
    pub model: String,
    /// Where the provider is reached, instead of its usual place.
    pub base_url: Option<String>,
    /// How many tokens the model takes in all, where the config says so.
    pub context_window_tokens: Option<u64>,
}

impl ModelSpec {
    /// The provider's model of this name, where it usually is reached.
    #[must_use]
    pub fn new(provider: &str, model: &str) -> Self {
        Self { provider: provider.to_owned(), model: model.to_owned(), ..Self::default() }
    }
}

/// Says about how many tokens a text has. It may block for a while at its first call.
pub type CountTokens = fn(&str) -> u64;

/// How a model is reached.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Sends one request and waits for the whole answer; `listener` hears it as it comes, from providers that stream.
    /// Dropping the future gives the request up. It does not retry: the turn around it does, and says so.
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError>;

    /// How many tokens the model takes in all, answer included, where the provider knows.
    fn context_window_tokens(&self) -> Option<u64> {
        None
    }

    /// Whether this provider thinks. One that does not (`runbook`) is not asked to plan, decide or report: the lead does that by rule.
    fn thinks(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_beyond_the_request_is_impossible() {
        let text = "x".repeat(20_000);
        let request = ModelRequest {
            teammate: "alice".into(),
            model: "m".into(),
            system: "s".repeat(1_000).into(),
            messages: [Arc::new(ChatMessage { role: Role::User, content: vec![Block::text(text)] })].into(),
            tools: [].into(),
            output_tokens_max: 100,
            purpose: Purpose::Turn,
            silence_timeout: Duration::ZERO,
            answer_timeout: Duration::ZERO,
        };
        let bound = 21_000 + ADDED_TOKENS_MAX + 2 * AROUND_TOKENS_MAX;
        let can = |input_tokens, cache_read_tokens, cache_write_tokens, output_tokens| {
            let usage = Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens };
            request.can_have_used(usage)
        };
        assert!(can(0, 0, 0, 0) && can(bound, 0, 0, 100) && can(1, bound - 2, 1, 100));
        assert!(!can(bound + 1, 0, 0, 1) && !can(1, bound, 0, 1) && !can(0, 0, bound + 1, 1) && !can(10, 0, 0, 101));
        assert!(!can(1 << 63, 1 << 63, 0, 0) && !can(0, u64::MAX, 1, 0) && !can(0, 0, 0, u64::MAX));
    }
}
