//! How a model is asked and what it answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::domain::transcript::{Block, Role, Usage};

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
    /// It will not answer.
    Refusal,
    /// It wants to go on.
    PauseTurn,
    /// Anything else, as it was called.
    Other(String),
}

/// A model's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelResponse {
    /// Its parts.
    pub content: Vec<Block>,
    /// Why it ends here.
    pub stop: StopReason,
    /// What it used.
    pub usage: Usage,
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
    #[error("the context is too long for the model: {0}")]
    ContextTooLong(String),
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
}

/// How a model is reached.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Sends one request and waits for the whole answer. Dropping the future gives the request up. It does not retry: the
    /// turn around it does, and says so.
    async fn request(&self, request: ModelRequest) -> Result<ModelResponse, ModelError>;

    /// Whether this provider thinks. One that does not (`runbook`) is not asked to plan, decide or report: the lead does that by rule.
    fn thinks(&self) -> bool {
        true
    }
}
