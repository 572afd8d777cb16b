//! The providers of models: one file and one line in [`PROVIDERS`] each. External agents have a line in
//! [`AGENTS`] instead.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use reqwest::Url;

use catalog::{FirstUse, WindowSource};
use compat::Compat;
use key_command::KeyCommands;
use service::{KeyVariable, Service};

use crate::agents::external::programs::AGENTS;
use crate::domain::team::model_spec::{IdForm, MaxTokensField, ReasoningBack, SessionHeader, ThinkingForm};
use crate::domain::team::team_spec::{AgentKind, ApiKind, ModelSpec};
use crate::ports::ModelClient;
use crate::sandbox::Sandbox;

pub mod api;
mod arguments;
pub mod catalog;
pub mod chat;
pub mod compat;
#[doc(hidden)]
pub mod errors;
pub mod exchange;
mod http;
mod joining;
mod key_command;
pub mod messages;
mod options;
mod repetition;
pub mod responses;
pub mod scripted;
pub mod service;
// Public for fuzz targets only.
#[doc(hidden)]
pub mod sse;
#[cfg(test)]
mod test_requests;
#[cfg(test)]
mod tests;
mod text_calls;
pub mod traffic;
mod usage;
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
    /// True if its tokens cost money. See [`Provider::costs_money_at`].
    pub costs_money: bool,
    /// The kind of agent of its members.
    pub agent: AgentKind,
    /// The service that it reaches over HTTP.
    pub service: Option<Service>,
    /// Builds the client of one member, for [`AgentKind::Builtin`]. The error names the wrong setting.
    pub connect: Option<Connect>,
}

impl Provider {
    const fn http(name: &'static str, about: &'static str, service: Service) -> Self {
        Self {
            name,
            about,
            model: Some("the model's name in the API"),
            model_is_path: false,
            costs_money: true,
            agent: AgentKind::Builtin,
            service: Some(service),
            connect: Some(service::connect),
        }
    }

    /// Returns the environment variables that can hold its key.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.service.iter().flat_map(|service| service.keys).map(|key| key.name)
    }

    /// Returns true if its tokens can cost money at this address, or at its own one. A local server is free only on this machine.
    pub fn costs_money_at(&self, base_url: Option<&str>) -> bool {
        let is_elsewhere = |url: &str| Url::parse(url).is_ok_and(|url| !http::is_loopback(&url));
        self.costs_money || (self.service.is_some() && base_url.is_some_and(is_elsewhere))
    }

    /// Returns the server that the settings name, as `host:port`.
    pub fn server(&self, spec: &ModelSpec) -> Option<String> {
        self.service.as_ref()?.server(spec)
    }
}

/// Builds a client from the settings of one member, and the commands that print keys.
pub type Connect = fn(&ModelSpec, &KeyCommands) -> Result<Arc<dyn ModelClient>, String>;

/// A server on this machine: for free, and without a key unless its operator set one.
const fn local(
    name: &'static str,
    about: &'static str,
    base_url: &'static str,
    keys: &'static [KeyVariable],
    first_use: FirstUse,
) -> Provider {
    let service = Service { base_url: Some(base_url), keys, needs_key: false, first_use, ..CHAT };
    Provider { costs_money: false, ..Provider::http(name, about, service) }
}

/// A service with chat completions, whose key is in this variable.
const fn hosted(
    name: &'static str,
    about: &'static str,
    base_url: &'static str,
    keys: &'static [KeyVariable],
    compat: Compat,
    model: &'static str,
) -> Provider {
    let first_use = FirstUse { model: Some(model), ..FirstUse::UNKNOWN };
    Provider::http(name, about, Service { base_url: Some(base_url), keys, compat, first_use, ..CHAT })
}

const OLLAMA: FirstUse = FirstUse {
    model: Some("qwen2.5-coder:7b"),
    windows: WindowSource::Ollama,
    start: Some("`ollama serve`"),
    larger_window: Some(
        "start it with `OLLAMA_CONTEXT_LENGTH=32768 ollama serve`, or set `num_ctx` in a Modelfile; by default Ollama takes 4,096 tokens on most machines",
    ),
};
const LM_STUDIO: FirstUse = FirstUse {
    model: None,
    windows: WindowSource::LmStudio,
    start: Some("`lms server start`"),
    larger_window: Some("`lms load MODEL --context-length 32768`; by default LM Studio loads with 4,096 tokens"),
};
const LLAMA_CPP: FirstUse = FirstUse {
    // Its server has one model, whatever a request names.
    model: Some("default"),
    windows: WindowSource::LlamaCpp,
    start: Some("`llama-server --jinja --ctx-size 32768 --model FILE`"),
    larger_window: Some("start it with --ctx-size 32768; with --parallel N, each member gets a part of it"),
};
const VLLM: FirstUse = FirstUse {
    start: Some("`vllm serve MODEL --enable-auto-tool-choice --tool-call-parser PARSER`"),
    larger_window: Some("start it with --max-model-len 32768"),
    ..FirstUse::UNKNOWN
};
const LITELLM: FirstUse = FirstUse { start: Some("`litellm --config FILE`"), ..FirstUse::UNKNOWN };

/// A service with chat completions about which nothing else is known.
const CHAT: Service = Service {
    base_url: None,
    base_url_variable: None,
    keys: &[],
    needs_key: true,
    root: "/v1",
    adds_root: false,
    api: ApiKind::Chat,
    compat: Compat::DEFAULT,
    window_tokens: |_| None,
    first_use: FirstUse::UNKNOWN,
};

/// A key in the header that chat completions use.
const fn bearer(name: &'static str) -> KeyVariable {
    KeyVariable { name, header: "authorization", prefix: "Bearer " }
}

/// A service with Responses.
const fn responses(
    name: &'static str,
    about: &'static str,
    base_url: Option<&'static str>,
    root: &'static str,
    keys: &'static [KeyVariable],
    model: Option<&'static str>,
) -> Provider {
    let first_use = FirstUse { model, ..FirstUse::UNKNOWN };
    let compat = Compat { cache: true, ..COMPLETION_TOKENS };
    let service = Service { base_url, root, keys, api: ApiKind::Responses, compat, first_use, ..CHAT };
    Provider::http(name, about, service)
}

/// Chat completions with `max_completion_tokens`.
const COMPLETION_TOKENS: Compat = Compat { max_tokens_field: MaxTokensField::MaxCompletionTokens, ..Compat::DEFAULT };

/// A provider that reaches no server.
const NO_SERVER: Provider = Provider {
    name: "",
    about: "",
    model: None,
    model_is_path: false,
    costs_money: false,
    agent: AgentKind::Builtin,
    service: None,
    connect: None,
};

/// All providers, except those of external agents.
#[rustfmt::skip]
pub const PROVIDERS: &[Provider] = &[
    Provider::http("anthropic", "models of Anthropic, or of another server with the Messages API; the key is in ANTHROPIC_API_KEY", messages::ANTHROPIC),
    responses("openai", "models of OpenAI; the key is in OPENAI_API_KEY", Some("https://api.openai.com/v1"), "/v1", &[bearer("OPENAI_API_KEY")], Some("gpt-6-luna")),
    responses("azure", "models of OpenAI at Azure, at `base_url`, such as https://RESOURCE.openai.azure.com; `model` is the deployment; the key is in AZURE_OPENAI_API_KEY", None, "/openai/v1", &[KeyVariable { name: "AZURE_OPENAI_API_KEY", header: "api-key", prefix: "" }], None),
    responses("xai", "models of xAI; the key is in XAI_API_KEY", Some("https://api.x.ai/v1"), "/v1", &[bearer("XAI_API_KEY")], Some("grok-4.7")),
    hosted("openrouter", "models of many vendors through OpenRouter; the key is in OPENROUTER_API_KEY", "https://openrouter.ai/api/v1", &[bearer("OPENROUTER_API_KEY")], Compat { thinking: ThinkingForm::Reasoning, session_header: SessionHeader::XSessionId, ..COMPLETION_TOKENS }, "openai/gpt-oss-120b"),
    hosted("gemini", "models of Google; the key is in GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta/openai", &[bearer("GEMINI_API_KEY")], Compat { needs_signature: true, ..Compat::DEFAULT }, "gemini-3.8-flash"),
    hosted("deepseek", "models of DeepSeek; the key is in DEEPSEEK_API_KEY", "https://api.deepseek.com/v1", &[bearer("DEEPSEEK_API_KEY")], Compat { reasoning_back: ReasoningBack::Content, thinking: ThinkingForm::TypeAndEffort, ..Compat::DEFAULT }, "deepseek-flash"),
    hosted("mistral", "models of Mistral; the key is in MISTRAL_API_KEY", "https://api.mistral.ai/v1", &[bearer("MISTRAL_API_KEY")], Compat { id_form: IdForm::NineAlphanumeric, ..Compat::DEFAULT }, "mistral-large-latest"),
    hosted("groq", "models at Groq; the key is in GROQ_API_KEY", "https://api.groq.com/openai/v1", &[bearer("GROQ_API_KEY")], COMPLETION_TOKENS, "openai/gpt-oss-120b"),
    local("ollama", "models of Ollama on this machine", "http://127.0.0.1:11434/v1", &[bearer("OLLAMA_API_KEY")], OLLAMA),
    local("lmstudio", "models of LM Studio on this machine", "http://127.0.0.1:1234/v1", &[bearer("LM_API_TOKEN")], LM_STUDIO),
    local("vllm", "models of a vLLM server", "http://127.0.0.1:8000/v1", &[bearer("VLLM_API_KEY")], VLLM),
    local("llamacpp", "the model of llama.cpp's server", "http://127.0.0.1:8080/v1", &[bearer("LLAMA_API_KEY")], LLAMA_CPP),
    Provider { costs_money: true, ..local("litellm", "models behind a LiteLLM proxy", "http://127.0.0.1:4000/v1", &[bearer("LITELLM_API_KEY")], LITELLM) },
    Provider::http("openai-compatible", "another server with chat completions, at `base_url`; the key is in OPENAI_API_KEY", Service { keys: &[bearer("OPENAI_API_KEY")], ..CHAT }),
    Provider {
        name: "runbook",
        about: "needs no key: runs the fenced sh blocks of a task's description",
        agent: AgentKind::Runbook,
        ..NO_SERVER
    },
    Provider {
        name: "scripted",
        about: "answers from the script file that `model` names, for tests and examples",
        model: Some("the path of its script"),
        model_is_path: true,
        connect: Some(scripted::connect),
        ..NO_SERVER
    },
    Provider {
        name: traffic::RECORDED,
        about: "answers from the folder of recordings that `model` names, which `record` of a team wrote",
        model: Some("the path of a folder of recordings"),
        model_is_path: true,
        connect: Some(traffic::connect),
        ..NO_SERVER
    },
];

/// Builds the client of the model in these settings. It runs no `key_command`, so that its requests with such a key fail.
///
/// # Errors
/// A text that names the wrong setting and the allowed values.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    connect_with(spec, &KeyCommands::without_runner())
}

/// Returns what builds the clients of one team. The commands that print keys run in this sandbox and folder.
pub fn connector(
    sandbox: Sandbox,
    folder: &Path,
) -> impl Fn(&ModelSpec) -> Result<Arc<dyn ModelClient>, String> + Send + Sync + 'static {
    let commands = KeyCommands::new(sandbox, folder);
    move |spec| connect_with(spec, &commands)
}

fn connect_with(spec: &ModelSpec, commands: &KeyCommands) -> Result<Arc<dyn ModelClient>, String> {
    let provider = provider(&spec.provider).ok_or_else(|| {
        let known: Vec<&str> = all().map(|provider| provider.name).collect();
        format!("unknown provider `{}`; known: {}", spec.provider, known.join(", "))
    })?;
    if spec.model.trim().is_empty()
        && let Some(model) = provider.model
    {
        return Err(format!("the provider `{}` needs `model`, {model}", provider.name));
    }
    match provider.connect {
        Some(connect) => connect(spec, commands),
        None => Err(format!("the provider `{}` has no models for Brigade's own loop", provider.name)),
    }
}

/// Returns all providers.
pub fn all() -> impl Iterator<Item = &'static Provider> {
    static OF_AGENTS: LazyLock<Vec<Provider>> = LazyLock::new(|| {
        let agent = AgentKind::Program;
        let rows = AGENTS.iter().map(|row| Provider {
            name: row.name,
            about: row.about,
            agent,
            costs_money: true,
            ..NO_SERVER
        });
        rows.collect()
    });
    OF_AGENTS.iter().chain(PROVIDERS)
}

/// Returns the provider with this name.
pub fn provider(name: &str) -> Option<&'static Provider> {
    all().find(|provider| provider.name == name)
}
