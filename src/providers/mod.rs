//! The providers of models: one file and one line in [`PROVIDERS`] each.

use std::path::Path;
use std::sync::Arc;

use crate::domain::team_spec::{AgentKind, ExternalProgram, MemberSpec, ModelSpec};
use crate::ports::ModelClient;
use crate::sandbox::Sandbox;

pub mod anthropic;
mod claude_code;
mod http;
pub mod scripted;
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
    /// The kind of agent of its members.
    pub agent: AgentKind,
    /// Builds the client of one member, for [`AgentKind::Builtin`]. The error names the wrong setting.
    pub connect: Option<Connect>,
}

/// The programs of a team's external agents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProgramReport {
    /// The installed programs: name, version and command, for people.
    pub installed: Vec<String>,
    /// Problems that do not keep them from work.
    pub warnings: Vec<String>,
}

/// The reason why the program of an external agent cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ProgramError {
    /// The problem, for people.
    pub problem: String,
    /// The next step.
    pub hint: String,
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
        agent: AgentKind::Builtin,
        connect: Some(anthropic::connect),
    },
    Provider {
        name: "claude-code",
        about: "the program Claude Code, with your login; needs isolation = \"worktree\"",
        model: None,
        model_is_path: false,
        keys: &[],
        costs_money: true,
        server: |_| None,
        agent: AgentKind::Program(ExternalProgram::ClaudeCode),
        connect: None,
    },
    Provider {
        name: "runbook",
        about: "needs no key: runs the fenced sh blocks of a task's description",
        model: None,
        model_is_path: false,
        keys: &[],
        costs_money: false,
        server: |_| None,
        agent: AgentKind::Runbook,
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
        agent: AgentKind::Builtin,
        connect: Some(scripted::connect),
    },
];

/// Names that people try as providers, in lower case, and the hint for them.
pub const PROVIDER_ALIASES: &[(&[&str], &str)] = &[
    (
        &["claude", "anthropic-api", "sonnet", "opus", "haiku"],
        "did you mean `anthropic`, whose key is in ANTHROPIC_API_KEY, or `claude-code`, the program with your login?",
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

/// Builds the client of the model in these settings.
///
/// # Errors
/// A text that names the wrong setting and the allowed values.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    let provider = provider(&spec.provider).ok_or_else(|| {
        let known: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
        format!("unknown provider `{}`; known: {}", spec.provider, known.join(", "))
    })?;
    if spec.model.trim().is_empty()
        && let Some(model) = provider.model
    {
        return Err(format!("the provider `{}` needs `model`, {model}", provider.name));
    }
    match provider.connect {
        Some(connect) => connect(spec),
        None => Err(format!("the provider `{}` has no models for Brigade's own loop", provider.name)),
    }
}

/// Checks the installed programs of these members, each once, and the variables that they get. Runs them in `folder`. Blocks for some
/// tenths of a second.
///
/// # Errors
/// A program is missing or too old.
pub fn check_programs<'a>(
    members: impl Iterator<Item = &'a MemberSpec>,
    sandbox: &Sandbox,
    folder: &Path,
) -> Result<ProgramReport, ProgramError> {
    let mut checked: Vec<&ModelSpec> = Vec::new();
    let mut report = ProgramReport::default();
    for MemberSpec { name, model, .. } in members {
        let AgentKind::Program(program) = model.agent else { continue };
        let check = match program {
            ExternalProgram::ClaudeCode => claude_code::check,
        };
        if !checked.iter().any(|other| (other.agent, &other.command) == (model.agent, &model.command)) {
            check(model, sandbox, folder, &mut report)?;
            checked.push(model);
        }
        let unset = model.pass_env.iter().filter(|variable| std::env::var_os(variable).is_none());
        report
            .warnings
            .extend(unset.map(|variable| format!("`pass_env` of {name} names {variable}, which is not set")));
    }
    Ok(report)
}

/// Returns the provider with this name.
pub fn provider(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|provider| provider.name == name)
}
