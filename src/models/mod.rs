//! The providers of models: one file and one line in [`PROVIDERS`] each.

use std::sync::Arc;

use crate::domain::team_spec::ModelSpec;
use crate::ports::{AgentKind, ModelClient};

pub mod anthropic;
mod http;
pub mod scripted;
mod secret;
// Public for fuzz targets only.
#[doc(hidden)]
pub mod sse;
pub mod webhook;

/// An entry of the `PROVIDERS` table.
pub struct Provider {
    /// The name in the config.
    pub name: &'static str,
    /// The description for people.
    pub about: &'static str,
    /// The meaning of `model`, if the provider needs it.
    pub model: Option<&'static str>,
    /// True if `model` is the path of a file. A relative one starts at the folder of the file with the setting.
    pub model_is_path: bool,
    /// The environment variables that can hold its key.
    pub keys: &'static [&'static str],
    /// True if its tokens cost money.
    pub costs_money: bool,
    /// Returns the server that the settings name, as `host:port`.
    pub server: fn(&ModelSpec) -> Option<String>,
    /// Builds a client for one member; the error names the wrong setting. `None` if there is no model.
    pub connect: Option<Connect>,
}

/// Builds a client from the settings of one member.
pub type Connect = fn(&ModelSpec) -> Result<Arc<dyn ModelClient>, String>;

/// All providers.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "anthropic",
        about: "models of Anthropic, or of another server with the Messages API; the key is in ANTHROPIC_API_KEY",
        model: Some("the model's name in the API"),
        model_is_path: false,
        keys: &[anthropic::API_KEY, anthropic::AUTH_TOKEN],
        costs_money: true,
        server: anthropic::server,
        connect: Some(anthropic::connect),
    },
    Provider {
        name: "runbook",
        about: "needs no key: runs the fenced sh blocks of a task's description",
        model: None,
        model_is_path: false,
        keys: &[],
        costs_money: false,
        server: |_| None,
        connect: None,
    },
    Provider {
        name: "scripted",
        about: "answers from the script file that `model` names, for tests and examples",
        model: Some("the path of its script"),
        model_is_path: true,
        keys: &[],
        costs_money: false,
        server: |_| None,
        connect: Some(scripted::connect),
    },
];

/// Names that people try as providers, in lower case, and the hint for them.
pub const PROVIDER_ALIASES: &[(&[&str], &str)] = &[
    (
        &["claude", "claude-code", "anthropic-api", "sonnet", "opus", "haiku"],
        "did you mean `anthropic`? Its key is in ANTHROPIC_API_KEY",
    ),
    (
        &[
            "openai",
            "gpt",
            "chatgpt",
            "codex",
            "azure",
            "gemini",
            "google",
            "mistral",
            "deepseek",
            "openrouter",
            "groq",
        ],
        "Brigade speaks only the Messages API: set provider = \"anthropic\" and base_url to a server that speaks it",
    ),
    (
        &["ollama", "llama", "llama.cpp", "llamacpp", "vllm", "lmstudio", "local"],
        "for a local server that speaks the Messages API (POST /v1/messages), set provider = \"anthropic\", model and \
         base_url = \"http://127.0.0.1:PORT\"; see examples/local-server",
    ),
    (
        &["shell", "sh", "bash", "none", "mock"],
        "did you mean `runbook`? It runs the `sh` blocks of tasks and needs no key",
    ),
];

/// Returns the kind of agent for these settings.
///
/// # Errors
/// A text that names the wrong setting and the allowed values.
pub fn connect(spec: &ModelSpec) -> Result<AgentKind, String> {
    let provider = provider(&spec.provider).ok_or_else(|| {
        let known: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
        format!("unknown provider `{}`; known: {}", spec.provider, known.join(", "))
    })?;
    if let Some(model) = provider.model.filter(|_| spec.model.trim().is_empty()) {
        return Err(format!("the provider `{}` needs `model`, {model}", provider.name));
    }
    match provider.connect {
        Some(connect) => connect(spec).map(AgentKind::Builtin),
        None if spec.base_url.is_some() => {
            Err(format!("the provider `{}` uses no server: remove `base_url`", provider.name))
        }
        None => Ok(AgentKind::Runbook),
    }
}

/// Returns true if members with this provider have a language model. An unknown provider counts as one that has.
#[must_use]
pub fn has_model(provider_name: &str) -> bool {
    provider(provider_name).is_none_or(|provider| provider.connect.is_some())
}

/// Returns the provider with this name.
#[must_use]
pub fn provider(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|provider| provider.name == name)
}
