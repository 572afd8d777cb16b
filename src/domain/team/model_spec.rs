//! The model of a member: its provider, its server, and the settings of its requests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::team_spec::AgentKind;
use crate::domain::text::words::words;

words! {
    /// The format of requests and answers.
    pub enum ApiKind {
        /// The Messages API of Anthropic.
        Messages = "messages",
        /// Chat completions.
        Chat = "chat",
        /// The Responses API of OpenAI, without state on the server.
        Responses = "responses",
    }

    /// The amount of thinking before an answer. Each model accepts some of them.
    pub enum Effort {
        /// No thinking.
        None = "none",
        /// As little as possible.
        Minimal = "minimal",
        /// Little.
        Low = "low",
        /// Some.
        Medium = "medium",
        /// Much.
        High = "high",
        /// Very much.
        Xhigh = "xhigh",
        /// As much as possible.
        Max = "max",
    }

    /// The form in which a model calls tools.
    #[derive(Default)]
    pub enum ToolCalls {
        /// The calls of its API.
        #[default]
        Native = "native",
        /// Answers that a schema forces to be JSON, with one call each.
        Json = "json",
    }

    /// The form in which a service gets the effort.
    pub enum ThinkingForm {
        /// `reasoning_effort`.
        ReasoningEffort = "reasoning_effort",
        /// `reasoning: {effort}`.
        Reasoning = "reasoning",
        /// `thinking: {type}`: only if the model thinks.
        Type = "type",
        /// `thinking: {type}` and `reasoning_effort`.
        TypeAndEffort = "type_and_effort",
        /// `thinking: {type, budget_tokens}`.
        Budget = "budget",
        /// `output_config: {effort}`.
        OutputConfig = "output_config",
        /// `enable_thinking`: only if the model thinks.
        EnableThinking = "enable_thinking",
        /// `chat_template_kwargs: {enable_thinking}`: only if the model thinks.
        ChatTemplate = "chat_template_kwargs",
    }

    /// The field with the limit of an answer, in chat completions and Responses.
    pub enum MaxTokensField {
        /// `max_tokens`, which most servers know.
        MaxTokens = "max_tokens",
        /// `max_completion_tokens`, its successor.
        MaxCompletionTokens = "max_completion_tokens",
        /// `max_output_tokens`, that of Responses.
        MaxOutputTokens = "max_output_tokens",
    }

    /// The field in which the reasoning of an answer goes back, in chat completions.
    pub enum ReasoningBack {
        /// The one in which it came.
        SameField = "same_field",
        /// `reasoning_content`. Beside calls, an empty one if there is no reasoning.
        Content = "reasoning_content",
        /// `reasoning`. Beside calls, an empty one if there is no reasoning.
        Reasoning = "reasoning",
        /// None: it does not go back.
        None = "none",
    }

    /// The header with the key of a session, by which a service finds the server with its cache.
    pub enum SessionHeader {
        /// No header.
        None = "none",
        /// `x-session-id`.
        XSessionId = "x-session-id",
        /// `x-session-affinity`.
        XSessionAffinity = "x-session-affinity",
    }

    /// The source of the cost of an answer.
    pub enum CostSource {
        /// The bill that the server reports, if it does.
        Reported = "reported",
        /// The table of prices.
        Prices = "prices",
    }

    /// The role of the system prompt in chat completions.
    pub enum InstructionRole {
        /// `system`, which all servers know.
        System = "system",
        /// `developer`.
        Developer = "developer",
    }

    /// The form of the ids of calls.
    pub enum IdForm {
        /// Any text.
        Any = "any",
        /// Nine letters or digits.
        NineAlphanumeric = "nine",
    }
}

impl IdForm {
    /// Returns the id in this form. The same id always has the same result, so that a result finds its call.
    pub fn of(self, id: &str) -> Cow<'_, str> {
        const LENGTH: usize = 9;
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let is_valid = id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if self == Self::Any || is_valid {
            return Cow::Borrowed(id);
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut rest = hasher.finish();
        let digits = (0..LENGTH).map(|_| {
            let digit = DIGITS[(rest % 36) as usize];
            rest /= 36;
            char::from(digit)
        });
        Cow::Owned(digits.collect())
    }
}

impl MaxTokensField {
    /// Returns the field with the same meaning.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::MaxTokens => Self::MaxCompletionTokens,
            Self::MaxCompletionTokens | Self::MaxOutputTokens => Self::MaxTokens,
        }
    }
}

/// The largest `extra_body`, in bytes of JSON.
pub const EXTRA_BODY_BYTES_MAX: usize = 4096;

/// The fields of a request's body that Brigade sets, or that would make its limits untrue, in all APIs.
pub const OWN_BODY_FIELDS: &[&str] = &[
    "model",
    "messages",
    "input",
    "instructions",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "temperature",
    "store",
    "include",
    "previous_response_id",
    "prompt_cache_key",
];

/// The headers that Brigade or HTTP sets.
pub const OWN_HEADERS: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The configured differences of a server from its API. `None`: as the provider's row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct CompatSpec {
    /// The field with the limit of an answer.
    pub max_tokens_field: Option<MaxTokensField>,
    /// True if `stream_options` is sent.
    pub stream_options: Option<bool>,
    /// True if `include` is sent.
    pub include: Option<bool>,
    /// True if `prompt_cache_key` is sent.
    pub cache: Option<bool>,
    /// The header with the key of a session.
    pub session_header: Option<SessionHeader>,
    /// The field in which reasoning goes back.
    pub reasoning_back: Option<ReasoningBack>,
    /// The source of the cost of an answer.
    pub cost: Option<CostSource>,
    /// The role of the system prompt.
    pub instruction_role: Option<InstructionRole>,
    /// The form of the ids of calls.
    pub id_form: Option<IdForm>,
    /// The value of `strict` of each tool.
    pub strict: Option<bool>,
    /// True if the result of a tool has the tool's name.
    pub tool_result_name: Option<bool>,
    /// True if an answer must stand between a tool's result and the next message.
    pub assistant_after_tool: Option<bool>,
    /// True if the content of an answer without text is null, and not an empty text.
    pub content_null: Option<bool>,
    /// The form in which it gets the effort.
    pub thinking: Option<ThinkingForm>,
}

/// A model and its provider.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct ModelSpec {
    /// The kind of agent that uses it, which the provider determines.
    #[serde(skip)]
    pub agent: AgentKind,
    /// A name of the PROVIDERS table.
    pub provider: String,
    /// The model's name, for providers with several models; a file for `scripted`.
    pub model: String,
    /// The provider's address, if it is not the default.
    pub base_url: Option<String>,
    /// The format of requests and answers, if it is not the provider's default.
    pub api: Option<ApiKind>,
    /// The configured differences of the server.
    pub compat: CompatSpec,
    /// Headers of each request. Values can be secrets.
    pub headers: BTreeMap<String, String>,
    /// Fields of each request in addition to those that Brigade sets.
    pub extra_body: Map<String, Value>,
    /// A shell command that prints the key.
    pub key_command: Option<String>,
    /// The amount of thinking. `None`: the model's default.
    pub effort: Option<Effort>,
    /// The randomness of answers. `None`: the model's default.
    pub temperature: Option<f64>,
    /// The form of its calls.
    pub tool_calls: ToolCalls,
    /// The model's context window in tokens, if configured.
    pub context_window_tokens: Option<u64>,
    /// The length limit of an answer in tokens, instead of the team's.
    pub output_tokens_max: Option<u32>,
    /// The models that answer in order while this one does not. Their own ones have no effect.
    #[serde(skip)]
    pub fallback: Vec<Self>,
    /// The command that starts the program of an external agent, if it is not the default.
    pub command: Option<String>,
    /// The names of environment variables that this program gets, although commands do not.
    pub pass_env: Vec<String>,
}

impl ModelSpec {
    /// Creates the spec of a provider's model at the default address, for Brigade's own loop.
    pub fn new(provider: &str, model: &str) -> Self {
        Self { provider: provider.to_owned(), model: model.to_owned(), ..Self::default() }
    }

    /// Returns the spec of this model at the same server. Settings that hold only for one model are kept only for the same one.
    #[must_use]
    pub fn with_model(self, model: &str) -> Self {
        if self.model == model {
            return self;
        }
        let Self { effort, temperature, tool_calls, extra_body, .. } = Self::default();
        Self {
            model: model.to_owned(),
            effort,
            temperature,
            tool_calls,
            extra_body,
            context_window_tokens: None,
            output_tokens_max: None,
            fallback: Vec::new(),
            ..self
        }
    }

    /// Creates the spec of a member without a model.
    pub fn runbook() -> Self {
        Self { agent: AgentKind::Runbook, ..Self::new("runbook", "") }
    }

    /// Returns the name of the account whose quota it uses: the provider and its server.
    pub fn account(&self) -> String {
        match &self.base_url {
            Some(base_url) => format!("{} at {base_url}", self.provider),
            None => self.provider.clone(),
        }
    }

    /// Returns the name under which its usage is counted and has its price: that of the model, or of the provider.
    pub fn usage_name(&self) -> &str {
        if self.model.is_empty() { &self.provider } else { &self.model }
    }
}
