//! The tables of all settings. Parsing, checks, environment variables, `config show` and the JSON Schema are generated from
//! them.

use crate::domain::agent::permission::PermissionMode;
use crate::domain::team::budget::TOKENS_MAX;
use crate::domain::team::model_spec::{
    ApiKind, CostSource, Effort, IdForm, InstructionRole, MaxTokensField, ReasoningBack, SessionHeader, ThinkingForm,
    ToolCalls,
};
use crate::domain::team::team_spec::{Isolation, Limits, Memory, OnQuota};
use crate::domain::text::words::words;
use crate::ports::Durability;
use crate::providers;

/// The kind of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// A shell command.
    Command,
    /// The address that a provider's key is sent to.
    Address,
    /// A text, or the name of a file with the text.
    Prompt,
    Path,
    /// The name of a member.
    Name,
    Provider,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of words.
    Words,
    Flag,
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// A number from 0 to this.
    Decimal(u64),
    /// A table of texts, such as headers.
    Texts,
    /// A table of any values.
    Json,
    /// A table of settings that is one value.
    Record(&'static [Setting]),
    /// A table of settings.
    Table(&'static [Setting]),
    /// A list of tables of settings.
    Tables(&'static [Setting]),
    /// Tables of settings under names that the user chooses.
    Named(&'static [Setting]),
}

words! {
    /// The effect of a setting's value. The person agrees to each value with an effect that a file of the workspace sets.
    pub enum Effect {
        /// Commands, programs and their rights.
        Runs = "runs",
        /// Texts and their recipients, and the limit of their number.
        Sends = "sends",
        /// The place of the work.
        Stores = "stores",
        /// Variables, files, folders and decisions that agents get.
        HandsOver = "hands over",
        /// No such effect. A test names all such settings.
        None = "none",
    }
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub key: &'static str,
    pub kind: ValueKind,
    /// The effect of its value.
    pub effect: Effect,
    /// The environment variable that overrides it.
    pub variable: Option<&'static str>,
    /// The description in the schema.
    pub description: &'static str,
    /// The text that stands for a missing value.
    pub default: Option<&'static str>,
}

const fn setting(key: &'static str, kind: ValueKind, effect: Effect, about: &'static str) -> Setting {
    Setting { key, kind, effect, variable: None, description: about, default: None }
}

impl Setting {
    const fn or(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }
}

#[rustfmt::skip]
const DURABILITY: Setting = setting("durability", ValueKind::Choice(&Durability::WORDS), Effect::None, "The failures that accepted work survives: \"power\" (also power cuts) or \"process\" (crashed processes only, faster). Default: power.").or("BRIGADE_DURABILITY").default(Durability::Power.as_str());

#[rustfmt::skip]
const LIMITS_SETTING: Setting = setting("limits", ValueKind::Table(LIMIT_SETTINGS), Effect::None, "Limits; the units are in the names.");

/// More US dollars than any team uses, to catch typing errors.
const USD_MAX: u64 = 1_000_000_000;

/// The settings of a whole file.
#[rustfmt::skip]
pub const TOP_SETTINGS: &[Setting] = &[
    setting("teams", ValueKind::Named(TEAM_SETTINGS), Effect::None, "The teams by name: [teams.NAME]."),
    setting("models", ValueKind::Named(MODEL_SETTINGS), Effect::None, "Models that members name in `model` and `fallback`: [models.NAME]. One definition comes from one file, the workspace's first."),
    setting("prices", ValueKind::Named(PRICE_SETTINGS), Effect::None, "The prices of models, by the names in `model`: [prices.\"NAME\"]. Brigade knows no other prices."),
    LIMITS_SETTING,
    DURABILITY,
    WRITABLE,
];

#[rustfmt::skip]
pub const WRITABLE: Setting = setting("writable", ValueKind::Words, Effect::HandsOver, "Folders in PATH below the home folder that commands may write although you run programs from them, such as \"~/.cargo/bin\". Allowed only in the user's config file.").or("BRIGADE_WRITABLE");

/// The settings of a price, in US dollars per million tokens.
#[rustfmt::skip]
pub const PRICE_SETTINGS: &[Setting] = &[
    setting("input_usd_per_mtok", ValueKind::Decimal(USD_MAX), Effect::Sends, "US dollars per million input tokens."),
    setting("output_usd_per_mtok", ValueKind::Decimal(USD_MAX), Effect::Sends, "US dollars per million output tokens."),
    setting("cache_read_usd_per_mtok", ValueKind::Decimal(USD_MAX), Effect::Sends, "US dollars per million tokens read from the provider's cache. Default: the input price."),
    setting("cache_write_usd_per_mtok", ValueKind::Decimal(USD_MAX), Effect::Sends, "US dollars per million tokens written to the provider's cache. Default: the input price."),
];

/// The settings of a budget.
#[rustfmt::skip]
pub const BUDGET_SETTINGS: &[Setting] = &[
    setting("tokens", ValueKind::Integer(1, TOKENS_MAX), Effect::Sends, "The tokens that the team may use, over all launches, until the counters are reset: input, output and cache tokens.").or("BRIGADE_BUDGET_TOKENS"),
    setting("usd", ValueKind::Decimal(USD_MAX), Effect::Sends, "The US dollars that the team may spend, over all launches, until the counters are reset. Needs the prices of its models.").or("BRIGADE_BUDGET_USD"),
];

/// The settings of the budget of a member or the lead.
#[rustfmt::skip]
pub const MEMBER_BUDGET_SETTINGS: &[Setting] = &[
    setting("tokens", ValueKind::Integer(1, TOKENS_MAX), Effect::Sends, "The tokens that this member may use, over all launches, until the counters are reset. Its sub-agents count for it."),
    setting("usd", ValueKind::Decimal(USD_MAX), Effect::Sends, "The US dollars that this member may spend, over all launches, until the counters are reset. Needs the price of its model."),
];

#[rustfmt::skip]
const MEMBER_BUDGET: Setting = setting("budget", ValueKind::Table(MEMBER_BUDGET_SETTINGS), Effect::None, "The budget of this member, in addition to that of the team. A member with a spent budget releases its task and claims no other; the team goes on. Default: none.");

/// The settings of notifications.
#[rustfmt::skip]
pub const NOTIFY_SETTINGS: &[Setting] = &[
    setting("command", ValueKind::Command, Effect::Runs, "A command that runs when something waits for you, 80 % of a budget is used, a task failed for good or a session ended. It gets BRIGADE_NOTICE, BRIGADE_NOTICE_KIND and BRIGADE_NOTICE_JSON.").or("BRIGADE_NOTIFY_COMMAND"),
    setting("url", ValueKind::Address, Effect::Sends, "An address that gets the same as JSON, by an HTTP POST.").or("BRIGADE_NOTIFY_URL"),
];

/// The settings of a team.
#[rustfmt::skip]
pub const TEAM_SETTINGS: &[Setting] = &[
    setting("goal", ValueKind::Text, Effect::Sends, "The team's goal.").or("BRIGADE_GOAL"),
    setting("plan", ValueKind::Path, Effect::Runs, "A plan file to import tasks from, relative to this file, or a pattern such as \"plans/*.md\".").or("BRIGADE_PLAN"),
    setting("done_when", ValueKind::Command, Effect::Runs, "A command that exits 0 once the goal is met. After 30 min it is ended, and the goal counts as not met.").or("BRIGADE_DONE_WHEN"),
    setting("lead", ValueKind::Table(LEAD_SETTINGS), Effect::None, "The lead. Its default provider is `runbook`, which needs no key."),
    setting("budget", ValueKind::Table(BUDGET_SETTINGS), Effect::None, "The team's budget. Each request is checked before it is sent, at its maximum usage. A spent budget ends the run with exit code 3."),
    setting("isolation", ValueKind::Choice(&Isolation::WORDS), Effect::Stores, "\"none\": teammates share the workspace. \"worktree\": each task has its own git worktree and branch, merged once its verify passed on the merged result. Default: none.").or("BRIGADE_ISOLATION").default(Isolation::None.as_str()),
    setting("merge_into", ValueKind::Text, Effect::Stores, "The branch to merge into, with isolation = \"worktree\". It exists, and no checkout has it checked out. Default: brigade/NAME, with the name of the team.").or("BRIGADE_MERGE_INTO"),
    setting("setup", ValueKind::Command, Effect::Runs, "A command that prepares each new worktree before work starts there, such as \"npm ci\", with isolation = \"worktree\". Default: none.").or("BRIGADE_SETUP"),
    setting("copy", ValueKind::Words, Effect::HandsOver, "Files of the workspace that each worktree gets before `setup` runs, such as [\".env*\"], with isolation = \"worktree\". Git must ignore them. Default: none."),
    setting("keep", ValueKind::Words, Effect::Stores, "Patterns of files that a completed task moves from its worktree into the workspace although git ignores them, such as [\"reports/**\"], with isolation = \"worktree\". They replace no file. Default: none."),
    setting("submodules", ValueKind::Flag, Effect::Runs, "If true, the submodules of each worktree are filled in before `setup` runs, with isolation = \"worktree\". Default: false.").or("BRIGADE_SUBMODULES").default("false"),
    setting("memory", ValueKind::Choice(&Memory::WORDS), Effect::None, "The time for which a teammate remembers its work. \"session\": all tasks are in one context. \"task\": each task starts a new context. After a failed attempt the next one always does. Default: session.").or("BRIGADE_MEMORY").default(Memory::Session.as_str()),
    setting("on_quota", ValueKind::Choice(&OnQuota::WORDS), Effect::None, "The reaction to a used up quota of a provider. \"wait\": the members of its account wait until it resets. \"pause\": the team is paused until you continue it. Default: wait.").or("BRIGADE_ON_QUOTA").default(OnQuota::Wait.as_str()),
    setting("review", ValueKind::Text, Effect::HandsOver, "The reviewer that approves work before a task is completed: a role or capability of another member, \"lead\" or \"human\". Default: no review.").or("BRIGADE_REVIEW"),
    setting("ask", ValueKind::Flag, Effect::None, "If true, members have the tool `ask`: a sub-agent with its own context looks something up for them. Default: false.").or("BRIGADE_ASK").default("false"),
    setting("record", ValueKind::Path, Effect::Stores, "A folder that gets each request and answer of the team's models, one file for each member, without keys. The provider `recorded` answers from it. Default: none.").or("BRIGADE_RECORD"),
    setting("notify", ValueKind::Table(NOTIFY_SETTINGS), Effect::None, "Notifications for you, when you do not watch the team."),
    MODE,
    ALLOW,
    DENY,
    setting("members", ValueKind::Tables(MEMBER_SETTINGS), Effect::None, "The teammates: one [[teams.NAME.members]] each."),
    LIMITS_SETTING,
    DURABILITY,
];

#[rustfmt::skip]
const MODE: Setting = setting("mode", ValueKind::Choice(&PermissionMode::WORDS), Effect::Runs, "The calls of tools about which you are asked: \"auto\" (none), \"accept-edits\" (commands), \"ask\" (commands and changes of files). \"plan\" refuses both. Default: auto; for members the team's.");
#[rustfmt::skip]
const ALLOW: Setting = setting("allow", ValueKind::Words, Effect::Runs, "Calls about which you are not asked, such as [\"bash(cargo test:*)\", \"write_file(docs/*)\"]. They never allow a command with shell operators. Those of the team and of the member hold. Default: none.");
#[rustfmt::skip]
const DENY: Setting = setting("deny", ValueKind::Words, Effect::Runs, "Calls that are refused in every mode, such as [\"bash(git push:*)\"]. They are stronger than `allow`. Those of the team and of the member hold. Default: none.");
#[rustfmt::skip]
const PROGRAM_COMMAND: Setting = setting("command", ValueKind::Command, Effect::Runs, "The command that starts the program of an external agent. Default: its own, such as `claude`; for members the lead's.");
#[rustfmt::skip]
const PASS_ENV: Setting = setting("pass_env", ValueKind::Words, Effect::HandsOver, "The environment variables that the agent's program or `key_command` gets although commands do not, such as [\"ANTHROPIC_API_KEY\"]. Default: none; for members the lead's.");
#[rustfmt::skip]
const PROVIDER: Setting = setting("provider", ValueKind::Provider, Effect::Sends, "The provider of the model. Default for members: the lead's.");
#[rustfmt::skip]
const MODEL: Setting = setting("model", ValueKind::Text, Effect::Sends, "The model's name, or the NAME of [models.NAME]; for `scripted` a script file, relative to this file. Default for members: the lead's.");
#[rustfmt::skip]
const BASE_URL: Setting = setting("base_url", ValueKind::Address, Effect::Sends, "The address of the server, instead of the provider's own. Default for members: the lead's.");
#[rustfmt::skip]
const CONTEXT_WINDOW: Setting = setting("context_window_tokens", ValueKind::Integer(2_000, 100_000_000), Effect::None, "The model's context window in tokens. Contexts are compacted before they exceed it. Default: the provider's value for the model; for members the lead's.");

#[rustfmt::skip]
const API: Setting = setting("api", ValueKind::Choice(&ApiKind::WORDS), Effect::Sends, "The format of requests and answers. Default: the provider's; for members the lead's.");
#[rustfmt::skip]
const COMPAT: Setting = setting("compat", ValueKind::Record(COMPAT_SETTINGS), Effect::None, "The differences of the server from its API. Default: the provider's; for members the lead's.");
#[rustfmt::skip]
const HEADERS: Setting = setting("headers", ValueKind::Texts, Effect::Sends, "Headers of each request, such as { x-team = \"a\" }. Default: none; for members the lead's.");
#[rustfmt::skip]
const EXTRA_BODY: Setting = setting("extra_body", ValueKind::Json, Effect::Sends, "Fields of each request that Brigade does not set, such as { top_p = 0.9 }. At most 4096 bytes. Default: none; for members the lead's.");
#[rustfmt::skip]
const KEY_COMMAND: Setting = setting("key_command", ValueKind::Command, Effect::Runs, "A command that prints the key, instead of a variable with it. It runs again after 15 min, and when the server refuses the key. Default: none; for members the lead's.");
#[rustfmt::skip]
const EFFORT: Setting = setting("effort", ValueKind::Choice(&Effort::WORDS), Effect::None, "The amount of thinking. Each model accepts some of the words. Default: the model's; for members the lead's.");
#[rustfmt::skip]
const TEMPERATURE: Setting = setting("temperature", ValueKind::Decimal(2), Effect::None, "The randomness of answers. Default: the model's; for members the lead's.");
#[rustfmt::skip]
const TOOL_CALLS: Setting = setting("tool_calls", ValueKind::Choice(&ToolCalls::WORDS), Effect::None, "The form of calls in chat completions: native, or JSON answers that a schema forces, for small models on a local server. Default: native; for members the lead's.");
#[rustfmt::skip]
const OUTPUT_TOKENS_MAX: Setting = setting("output_tokens_max", ValueKind::Integer(16, 1_000_000), Effect::None, "The longest answer of the model, in tokens. Default: that of `limits`; for members the lead's.");
#[rustfmt::skip]
const FALLBACK: Setting = setting("fallback", ValueKind::Words, Effect::Sends, "The names of [models.NAME] that answer in order while the model does not, such as [\"spare\"], until the end of the task. Default: none; for members the lead's.");

/// The settings of a server that hold only for its address: they contain or form the key, or describe that server.
pub const OF_ADDRESS: [&str; 4] = ["api", "compat", "headers", "key_command"];
/// The settings that hold only for one model.
pub const OF_MODEL: [&str; 7] =
    ["context_window_tokens", "effort", "temperature", "tool_calls", "extra_body", "output_tokens_max", "fallback"];

/// The settings of a model under a name.
#[rustfmt::skip]
pub const MODEL_SETTINGS: &[Setting] = &[
    setting("provider", ValueKind::Provider, Effect::Sends, "The provider of the model."),
    setting("model", ValueKind::Text, Effect::Sends, "The model's name at the provider. Default: the NAME of [models.NAME]."),
    BASE_URL, API, COMPAT, HEADERS, KEY_COMMAND, PASS_ENV,
    CONTEXT_WINDOW, OUTPUT_TOKENS_MAX, EFFORT, TEMPERATURE, TOOL_CALLS, EXTRA_BODY, FALLBACK,
];

/// The differences of a server from its API.
#[rustfmt::skip]
pub const COMPAT_SETTINGS: &[Setting] = &[
    setting("max_tokens_field", ValueKind::Choice(&MaxTokensField::WORDS), Effect::None, "The field with the limit of an answer, in chat completions and Responses."),
    setting("stream_options", ValueKind::Flag, Effect::None, "If true, `stream_options` asks for usage, in chat completions."),
    setting("include", ValueKind::Flag, Effect::None, "If true, `include` asks for encrypted reasoning, in Responses."),
    setting("cache", ValueKind::Flag, Effect::None, "If true, `prompt_cache_key` tells requests of one member from others, in chat completions and Responses."),
    setting("session_header", ValueKind::Choice(&SessionHeader::WORDS), Effect::None, "The header with the same key as `prompt_cache_key`, by which a service finds the server with the cache."),
    setting("reasoning_back", ValueKind::Choice(&ReasoningBack::WORDS), Effect::None, "The field in which reasoning goes back, in chat completions: the one in which it came, or a named one, which is empty beside calls without reasoning."),
    setting("cost", ValueKind::Choice(&CostSource::WORDS), Effect::None, "The cost of an answer: the bill that the server reports, if it does, or always that of `prices`. Default: reported."),
    setting("instruction_role", ValueKind::Choice(&InstructionRole::WORDS), Effect::None, "The role of the system prompt, in chat completions."),
    setting("id_form", ValueKind::Choice(&IdForm::WORDS), Effect::None, "The ids of calls that the server accepts, in chat completions: any, or nine letters and digits."),
    setting("strict", ValueKind::Flag, Effect::None, "The value of `strict` of each tool, in chat completions. Default: not sent."),
    setting("tool_result_name", ValueKind::Flag, Effect::None, "If true, the result of a tool has the tool's name, in chat completions."),
    setting("assistant_after_tool", ValueKind::Flag, Effect::None, "If true, an answer stands between a tool's result and the next message, in chat completions."),
    setting("content_null", ValueKind::Flag, Effect::None, "If true, the content of an answer without text is null, in chat completions."),
    setting("thinking", ValueKind::Choice(&ThinkingForm::WORDS), Effect::None, "The form in which `effort` is sent."),
];

/// The settings of a lead.
#[rustfmt::skip]
pub const LEAD_SETTINGS: &[Setting] = &[
    PROVIDER.or("BRIGADE_PROVIDER").default(PROVIDER_DEFAULT),
    MODEL.or("BRIGADE_MODEL"),
    BASE_URL.or("BRIGADE_BASE_URL"),
    API, COMPAT, HEADERS, KEY_COMMAND,
    CONTEXT_WINDOW.or("BRIGADE_CONTEXT_WINDOW_TOKENS"),
    OUTPUT_TOKENS_MAX, EFFORT, TEMPERATURE, TOOL_CALLS, EXTRA_BODY, FALLBACK,
    PROGRAM_COMMAND,
    PASS_ENV,
    MEMBER_BUDGET,
    MODE,
    ALLOW,
    DENY,
    setting("prompt", ValueKind::Prompt, Effect::Sends, "Instructions in addition to the built-in ones: a text, or a file relative to this file."),
];

/// The settings of a member.
#[rustfmt::skip]
pub const MEMBER_SETTINGS: &[Setting] = &[
    setting("name", ValueKind::Name, Effect::None, "The member's name: at most 32 letters, digits, `_` or `-`. Not allowed: lead, human, all, system."),
    setting("role", ValueKind::Text, Effect::Sends, "The member's role, which is also a capability. Default: worker."),
    setting("capabilities", ValueKind::Words, Effect::Sends, "Further capabilities, for tasks that require them."),
    setting("prompt", ValueKind::Prompt, Effect::Sends, "Instructions in addition to the built-in ones: a text, or a file relative to this file."),
    setting("plan_first", ValueKind::Flag, Effect::Runs, "If true, the member works read-only until the lead or a person approves its plan for the task. Default: false."),
    setting("memory", ValueKind::Choice(&Memory::WORDS), Effect::None, "The time for which the member remembers its work: \"session\" or \"task\". Default: as the team."),
    PROVIDER,
    MODEL,
    BASE_URL, API, COMPAT, HEADERS, KEY_COMMAND,
    CONTEXT_WINDOW, OUTPUT_TOKENS_MAX, EFFORT, TEMPERATURE, TOOL_CALLS, EXTRA_BODY, FALLBACK,
    PROGRAM_COMMAND,
    PASS_ENV,
    MEMBER_BUDGET,
    MODE,
    ALLOW,
    DENY,
];

/// The role of a member that names none.
pub const ROLE_DEFAULT: &str = "worker";

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// More than any disk has, to catch typing errors.
const DISK_BYTES_MAX: u64 = 1 << 50;

/// The settings of all limits of a team. Their keys are those of [`Limits`].
#[rustfmt::skip]
pub const LIMIT_SETTINGS: &[Setting] = &[
    setting("poll_interval_ms", ValueKind::Integer(10, DAY_MS), Effect::None, "The interval at which an idle teammate checks its mail and the board.").or("BRIGADE_POLL_INTERVAL_MS"),
    setting("idle_timeout_ms", ValueKind::Integer(0, DAY_MS), Effect::None, "The time that an idle teammate polls before it is on call.").or("BRIGADE_IDLE_TIMEOUT_MS"),
    setting("idle_shutdown_ms", ValueKind::Integer(0, DAY_MS), Effect::None, "The time after which an idle teammate ends. The lead starts it again for mail, or for a task that no running teammate is free to do. 0: it does not end.").or("BRIGADE_IDLE_SHUTDOWN_MS"),
    setting("turns_max", ValueKind::Integer(1, 10_000), Effect::None, "The maximum number of turns of one WORK phase.").or("BRIGADE_TURNS_MAX"),
    setting("task_tokens_max", ValueKind::Integer(0, TOKENS_MAX), Effect::None, "The tokens that all attempts of a task may use together, unless the task has a cap of its own. A task at its cap is released, and not claimed again until you raise the cap. 0: no cap.").or("BRIGADE_TASK_TOKENS_MAX"),
    setting("command_timeout_ms", ValueKind::Integer(1, 7 * DAY_MS), Effect::None, "The timeout of a command whose call sets none, and of every task's `verify`.").or("BRIGADE_COMMAND_TIMEOUT_MS"),
    setting("command_timeout_max_ms", ValueKind::Integer(1, 7 * DAY_MS), Effect::None, "The longest timeout that a call may set.").or("BRIGADE_COMMAND_TIMEOUT_MAX_MS"),
    setting("setup_timeout_ms", ValueKind::Integer(1, 7 * DAY_MS), Effect::None, "The timeout of a worktree's `setup`.").or("BRIGADE_SETUP_TIMEOUT_MS"),
    setting("tool_output_bytes_max", ValueKind::Integer(200, 10_000_000), Effect::None, "The maximum size of a tool's output. Longer output loses its middle.").or("BRIGADE_TOOL_OUTPUT_BYTES_MAX"),
    setting("respawns_max", ValueKind::Integer(0, 1_000), Effect::None, "The maximum number of restarts of a teammate in one run, after a panic or a hang.").or("BRIGADE_RESPAWNS_MAX"),
    setting("stall_timeout_ms", ValueKind::Integer(100, 7 * DAY_MS), Effect::None, "The time without progress after which a teammate counts as stalled and loses its task.").or("BRIGADE_STALL_TIMEOUT_MS"),
    setting("model_retries_max", ValueKind::Integer(0, 1_000), Effect::None, "The maximum number of retries of a model request after temporary errors.").or("BRIGADE_MODEL_RETRIES_MAX"),
    setting("model_outage_max_ms", ValueKind::Integer(0, 7 * DAY_MS), Effect::None, "The time without an answer of a model after which a team with one session ends, if no member can work without it. 0 waits forever, as a team that stays up always does.").or("BRIGADE_MODEL_OUTAGE_MAX_MS"),
    setting("model_silence_timeout_ms", ValueKind::Integer(100, DAY_MS), Effect::None, "The time without data from the provider after which a model request is retried.").or("BRIGADE_MODEL_SILENCE_TIMEOUT_MS"),
    setting("model_answer_timeout_ms", ValueKind::Integer(100, DAY_MS), Effect::None, "The maximum time for one answer of a model.").or("BRIGADE_MODEL_ANSWER_TIMEOUT_MS"),
    setting("compact_at_percent", ValueKind::Integer(10, 100), Effect::None, "The part of a model's window, minus the longest answer, at which a context is compacted, in percent.").or("BRIGADE_COMPACT_AT_PERCENT"),
    setting("compact_at_tokens", ValueKind::Integer(1_000, 100_000_000), Effect::None, "The context size in tokens at which it is compacted at the latest, whatever the window.").or("BRIGADE_COMPACT_AT_TOKENS"),
    setting("output_tokens_max", ValueKind::Integer(16, 1_000_000), Effect::None, "The longest answer of a model, in tokens.").or("BRIGADE_OUTPUT_TOKENS_MAX"),
    setting("permission_timeout_ms", ValueKind::Integer(0, DAY_MS), Effect::None, "The time for which a call waits for your permission. After it the call is refused. 0: you are not asked.").or("BRIGADE_PERMISSION_TIMEOUT_MS"),
    setting("stop_timeout_ms", ValueKind::Integer(0, DAY_MS), Effect::None, "The time that running turns have to finish after a request to stop.").or("BRIGADE_STOP_TIMEOUT_MS"),
    setting("free_bytes_min", ValueKind::Integer(0, DISK_BYTES_MAX), Effect::None, "The free disk space that new work needs, in bytes.").or("BRIGADE_FREE_BYTES_MIN"),
];

/// Returns the default of a limit; `None` for another setting.
pub fn limit_default(setting: &Setting) -> Option<serde_json::Value> {
    let is_limit = LIMIT_SETTINGS.contains(setting);
    if is_limit { serde_json::to_value(Limits::default()).ok()?.get(setting.key).cloned() } else { None }
}

/// Variables for flags, and variables that Brigade sets for the commands it runs. They are not settings.
pub const OTHER_VARIABLES: [&str; 16] = [
    "BRIGADE_CONFIG",
    "BRIGADE_WORKSPACE",
    "BRIGADE_PROGRESS",
    "BRIGADE_TEAM",
    "BRIGADE_TEAMMATE",
    "BRIGADE_TASK",
    "BRIGADE_ATTEMPT",
    "BRIGADE_NOTICE",
    "BRIGADE_NOTICE_KIND",
    "BRIGADE_NOTICE_JSON",
    "BRIGADE_PORT_BASE",
    crate::sandbox::environment::TRUST_VARIABLE,
    crate::sandbox::environment::BOARD_SOCKET_VARIABLE,
    crate::sandbox::environment::BOARD_CREDENTIAL_VARIABLE,
    crate::sandbox::CONFINEMENT_VARIABLE,
    crate::sandbox::WORKER_VARIABLE,
];

/// Returns the names of all providers.
pub fn providers() -> impl Iterator<Item = &'static str> {
    providers::all().map(|provider| provider.name)
}

/// The provider of a team without a lead.
pub const PROVIDER_DEFAULT: &str = "runbook";

/// Returns the setting of a key of a team, such as `goal` or `budget.tokens`.
pub fn of_key(key: &str) -> Option<&'static Setting> {
    let (table, key) = match key.split_once('.') {
        Some(("lead", key)) => return of_member(LEAD_SETTINGS, key),
        Some(("budget", key)) => (BUDGET_SETTINGS, key),
        Some(("notify", key)) => (NOTIFY_SETTINGS, key),
        Some(("limits", key)) => (LIMIT_SETTINGS, key),
        _ => (TEAM_SETTINGS, key),
    };
    table.iter().chain(TOP_SETTINGS).find(|setting| setting.key == key)
}

/// Returns the setting of a key of a member or the lead, such as `model` or `budget.tokens`.
fn of_member(table: &'static [Setting], key: &str) -> Option<&'static Setting> {
    let (table, key) = match key.split_once('.') {
        Some(("budget", key)) => (MEMBER_BUDGET_SETTINGS, key),
        _ => (table, key),
    };
    table.iter().find(|setting| setting.key == key)
}

/// Returns the setting of a value of a resolved team, such as `goal`, `lead.model`, `members.alice.role` or
/// `prices.MODEL.input_usd_per_mtok`.
pub fn of_value(key: &str) -> Option<&'static Setting> {
    // A model's name may have dots.
    if let Some((_, key)) = key.strip_prefix("prices.").and_then(|rest| rest.rsplit_once('.')) {
        return PRICE_SETTINGS.iter().find(|setting| setting.key == key);
    }
    if let Some((_, key)) = key.strip_prefix("models.").and_then(|rest| rest.rsplit_once('.')) {
        return MODEL_SETTINGS.iter().find(|setting| setting.key == key);
    }
    match key.strip_prefix("members.").and_then(|rest| rest.split_once('.')) {
        Some((_, key)) => of_member(MEMBER_SETTINGS, key),
        None => of_key(key),
    }
}

/// Returns the environment variables of all settings.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let tables = [TOP_SETTINGS, TEAM_SETTINGS, LEAD_SETTINGS, BUDGET_SETTINGS, NOTIFY_SETTINGS, LIMIT_SETTINGS];
    tables.into_iter().flatten().filter_map(|setting| setting.variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_setting_round_trips_with_default_in_bounds() {
        let defaults = serde_json::to_value(Limits::default()).unwrap();
        assert_eq!(defaults.as_object().unwrap().len(), LIMIT_SETTINGS.len());
        for setting in LIMIT_SETTINGS {
            let ValueKind::Integer(min, max) = setting.kind else { panic!("{}", setting.key) };
            assert!((min..=max).contains(&defaults[setting.key].as_u64().unwrap()), "{}", setting.key);
            let mut changed = defaults.clone();
            changed[setting.key] = (min + 1).into();
            let limits: Limits = serde_json::from_value(changed.clone()).unwrap();
            assert_eq!(serde_json::to_value(limits).unwrap(), changed, "{}", setting.key);
            assert_eq!(setting.variable.unwrap(), format!("BRIGADE_{}", setting.key.to_uppercase()));
        }
    }

    /// A setting without an effect is not in the list that a person agrees to. Add a new setting here only if no value of it runs, sends,
    /// stores or hands over something.
    const WITHOUT_EFFECT: &[&str] = &[
        "ask",
        "context_window_tokens",
        "durability",
        "memory",
        "name",
        "on_quota",
        "command_timeout_max_ms",
        "command_timeout_ms",
        "compat",
        "effort",
        "temperature",
        "tool_calls",
        "max_tokens_field",
        "stream_options",
        "include",
        "cache",
        "session_header",
        "reasoning_back",
        "cost",
        "instruction_role",
        "id_form",
        "strict",
        "tool_result_name",
        "assistant_after_tool",
        "content_null",
        "thinking",
        "compact_at_percent",
        "compact_at_tokens",
        "free_bytes_min",
        "idle_shutdown_ms",
        "idle_timeout_ms",
        "model_answer_timeout_ms",
        "model_outage_max_ms",
        "model_retries_max",
        "model_silence_timeout_ms",
        "output_tokens_max",
        "permission_timeout_ms",
        "poll_interval_ms",
        "respawns_max",
        "setup_timeout_ms",
        "stall_timeout_ms",
        "stop_timeout_ms",
        "task_tokens_max",
        "tool_output_bytes_max",
        "turns_max",
    ];

    #[test]
    fn every_setting_has_effect_or_is_excluded() {
        let is_table = |kind| matches!(kind, ValueKind::Table(_) | ValueKind::Tables(_) | ValueKind::Named(_));
        let all = [TOP_SETTINGS, PRICE_SETTINGS, BUDGET_SETTINGS, NOTIFY_SETTINGS, TEAM_SETTINGS].into_iter();
        let all = all.chain([LEAD_SETTINGS, MEMBER_SETTINGS, MEMBER_BUDGET_SETTINGS, MODEL_SETTINGS, COMPAT_SETTINGS]);
        let all = all.chain([LIMIT_SETTINGS]).flatten();
        for Setting { key, kind, effect, .. } in all.filter(|setting| !is_table(setting.kind)) {
            let is_excluded = WITHOUT_EFFECT.contains(key);
            assert_eq!(*effect == Effect::None, is_excluded, "{key}: {kind:?} has the effect {effect}");
        }
    }

    /// Returns true if a value of this kind contains no command, address or file. Only such settings are allowed outside of teams,
    /// where the user's file sets them for every workspace.
    fn is_plain(kind: ValueKind) -> bool {
        match kind {
            ValueKind::Command | ValueKind::Address | ValueKind::Prompt | ValueKind::Path => false,
            ValueKind::Table(inner) | ValueKind::Tables(inner) | ValueKind::Named(inner) => {
                inner.iter().all(|setting| is_plain(setting.kind))
            }
            ValueKind::Text
            | ValueKind::Name
            | ValueKind::Provider
            | ValueKind::Choice(_)
            | ValueKind::Words
            | ValueKind::Flag
            | ValueKind::Texts
            | ValueKind::Json
            | ValueKind::Record(_)
            | ValueKind::Integer(..)
            | ValueKind::Decimal(_) => true,
        }
    }

    #[test]
    fn only_teams_and_models_at_top_are_not_plain() {
        let not_plain = TOP_SETTINGS.iter().filter(|setting| !is_plain(setting.kind)).map(|setting| setting.key);
        let why = "the user's file would set a command, an address or a file for every workspace";
        // A model has an effect only on the members that name it, and comes from one file as a whole.
        assert_eq!(not_plain.collect::<Vec<_>>(), ["teams", "models"], "{why}");
    }

    #[test]
    fn limits_table_covers_every_field() {
        let limits = format!("{:?}", Limits::default());
        let groups = limits.matches(": ToolLimits {").count() + limits.matches(": ModelLimits {").count();
        assert_eq!(limits.matches(": ").count() - groups, LIMIT_SETTINGS.len(), "a limit has no line in the table");
    }
}
