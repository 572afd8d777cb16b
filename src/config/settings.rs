//! The settings there are: one line of a table each. From these tables come the reading, the checks, the environment
//! variables, `config show` and the JSON Schema. They know nothing of files or precedence.

use std::time::Duration;

use crate::models::PROVIDERS;
use crate::team::spec::Limits;

/// What a setting's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A command that is run.
    Command,
    /// An address that a provider's key is sent to.
    Address,
    /// A text, or the name of a file it stands in.
    Prompt,
    /// A file.
    Path,
    /// The name of a team's member.
    Name,
    /// The name of a provider.
    Provider,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Several words.
    Words,
    /// Yes or no.
    Flag,
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// A number from nought to this, with or without a point.
    Decimal(u64),
    /// A table of settings.
    Table(&'static [Setting]),
    /// A list of tables of settings.
    Tables(&'static [Setting]),
    /// Tables of settings under names of their own.
    Named(&'static [Setting]),
    /// The table of limits.
    Limits,
}

impl Kind {
    /// Whether a value of this kind names no command, no address and no file. Only such a setting may stand outside of teams,
    /// where the user's file gives it to every workspace.
    #[must_use]
    pub fn is_plain(self) -> bool {
        match self {
            Self::Command | Self::Address | Self::Prompt | Self::Path => false,
            Self::Table(inner) | Self::Tables(inner) | Self::Named(inner) => {
                inner.iter().all(|setting| setting.kind.is_plain())
            }
            Self::Text
            | Self::Name
            | Self::Provider
            | Self::Choice(_)
            | Self::Words
            | Self::Flag
            | Self::Integer(..)
            | Self::Decimal(_)
            | Self::Limits => true,
        }
    }
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Its key.
    pub key: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// The environment variable that stands for it, if there is one.
    pub variable: Option<&'static str>,
    /// What it is for.
    pub about: &'static str,
}

const fn setting(key: &'static str, kind: Kind, about: &'static str) -> Setting {
    Setting { key, kind, variable: None, about }
}

impl Setting {
    const fn or(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }
}

/// What must survive a power cut.
pub const DURABILITIES: [&str; 2] = ["process", "power"];

/// Where teammates work.
pub const ISOLATIONS: [&str; 2] = ["none", "worktree"];

const DURABILITY: Setting = setting(
    "durability",
    Kind::Choice(&DURABILITIES),
    "What accepted work survives: \"power\" a power cut, \"process\" the death of processes only, which is faster. Default: power.",
)
.or("BRIGADE_DURABILITY");

const LIMITS_SETTING: Setting = setting("limits", Kind::Limits, "Bounds on everything; the units are in the names.");

/// More tokens than any team uses, so that a typing error is seen.
const TOKENS_MAX: u64 = 1_000_000_000_000;
/// More US dollars than anybody means.
const USD_MAX: u64 = 1_000_000_000;

/// The settings of a whole file.
pub const TOP: &[Setting] = &[
    setting("teams", Kind::Named(TEAM), "The teams by name: [teams.NAME]."),
    setting(
        "prices",
        Kind::Named(PRICE),
        "What models cost, by the names `model` gives them: [prices.\"NAME\"]. Known to Brigade from here alone.",
    ),
    LIMITS_SETTING,
    DURABILITY,
    WRITABLE,
];

/// Folders of PATH that commands may write.
pub const WRITABLE: Setting = setting(
    "writable",
    Kind::Words,
    "Folders of PATH below the home folder that commands may write although you run programs from there, such as \"~/.cargo/bin\". Only in the user's config file.",
)
.or("BRIGADE_WRITABLE");

/// The settings of a price, in US dollars per million tokens.
pub const PRICE: &[Setting] = &[
    setting("input_usd_per_mtok", Kind::Decimal(USD_MAX), "Tokens read."),
    setting("output_usd_per_mtok", Kind::Decimal(USD_MAX), "Tokens written."),
    setting(
        "cache_read_usd_per_mtok",
        Kind::Decimal(USD_MAX),
        "Tokens read from the provider's cache. Default: as tokens read.",
    ),
    setting(
        "cache_write_usd_per_mtok",
        Kind::Decimal(USD_MAX),
        "Tokens written to the provider's cache. Default: as tokens read.",
    ),
];

/// The settings of a budget.
pub const BUDGET: &[Setting] = &[
    setting(
        "tokens",
        Kind::Integer(1, TOKENS_MAX),
        "Tokens the team may use in all, over every launch, until `brigade cost --reset`: read, written, and from caches alike.",
    )
    .or("BRIGADE_BUDGET_TOKENS"),
    setting(
        "usd",
        Kind::Decimal(USD_MAX),
        "US dollars the team may use in all, over every launch, until `brigade cost --reset`. Needs the prices of its models.",
    )
    .or("BRIGADE_BUDGET_USD"),
];

/// The settings of a team.
pub const TEAM: &[Setting] = &[
    setting("goal", Kind::Text, "What the team is to reach.").or("BRIGADE_GOAL"),
    setting("plan", Kind::Path, "A plan file to import tasks from, relative to this file.").or("BRIGADE_PLAN"),
    setting("done_when", Kind::Command, "A command that exits 0 once the goal is met.").or("BRIGADE_DONE_WHEN"),
    setting(
        "lead",
        Kind::Table(LEAD),
        "The lead. Without it the team uses the provider `runbook`, which needs no key.",
    ),
    setting(
        "budget",
        Kind::Table(BUDGET),
        "What the team may use. Checked before each request with the most that one can use; once it is spent the team ends, exit code 3.",
    ),
    setting(
        "isolation",
        Kind::Choice(&ISOLATIONS),
        "Where teammates work: \"none\" together in the workspace, \"worktree\" each task in a git worktree and a branch of its own, merged once its verify passed on the merged result. Default: none.",
    )
    .or("BRIGADE_ISOLATION"),
    setting(
        "merge_into",
        Kind::Text,
        "With isolation = \"worktree\": the branch that is merged into. Default: the one checked out when the team is launched.",
    )
    .or("BRIGADE_MERGE_INTO"),
    setting(
        "review",
        Kind::Text,
        "Who approves what was done before a task is completed: a role or capability of another member, \"lead\", or \"human\". Default: nobody.",
    )
    .or("BRIGADE_REVIEW"),
    setting("members", Kind::Tables(MEMBER), "The teammates: one [[teams.NAME.members]] each."),
    LIMITS_SETTING,
    DURABILITY,
];

const PROVIDER: Setting =
    setting("provider", Kind::Provider, "How the model is reached. Members without it have the lead's.");
const MODEL: Setting = setting(
    "model",
    Kind::Text,
    "The model's name; for `scripted` a file, relative to this one. Members without it have the lead's.",
);
const BASE_URL: Setting = setting(
    "base_url",
    Kind::Address,
    "Where the provider is reached, instead of its usual place. Members without it have the lead's.",
);
const CONTEXT_WINDOW: Setting = setting(
    "context_window_tokens",
    Kind::Integer(2_000, 100_000_000),
    "How many tokens the model takes in all; its context is compacted in time. Members without it have the lead's. Default: what the provider knows of the model.",
);

/// The settings of a lead.
pub const LEAD: &[Setting] = &[
    PROVIDER.or("BRIGADE_PROVIDER"),
    MODEL.or("BRIGADE_MODEL"),
    BASE_URL.or("BRIGADE_BASE_URL"),
    CONTEXT_WINDOW.or("BRIGADE_CONTEXT_WINDOW_TOKENS"),
    setting(
        "prompt",
        Kind::Prompt,
        "Instructions besides those every lead has: a text, or a file relative to this one.",
    ),
];

/// The settings of a member.
pub const MEMBER: &[Setting] = &[
    setting(
        "name",
        Kind::Name,
        "Its name: at most 32 letters, digits, `_` or `-`; lead, human, all and system are taken.",
    ),
    setting("role", Kind::Text, "Its role, which counts as a capability. Default: worker."),
    setting("capabilities", Kind::Words, "What it can do besides, as tasks require it."),
    setting(
        "prompt",
        Kind::Prompt,
        "Instructions besides those every teammate has: a text, or a file relative to this one.",
    ),
    setting(
        "plan_first",
        Kind::Flag,
        "Whether it works read-only until its plan for the task it holds is approved, by the lead or a person. Default: false.",
    ),
    PROVIDER,
    MODEL,
    BASE_URL,
    CONTEXT_WINDOW,
];

/// The role of a member that names none.
pub const ROLE_DEFAULT: &str = "worker";

/// One bound of [`Limits`].
#[derive(Debug, Clone, Copy)]
pub struct LimitSetting {
    /// Its key, with the unit last.
    pub key: &'static str,
    /// The environment variable that stands for it.
    pub variable: &'static str,
    /// The least it may be.
    pub min: u64,
    /// The most it may be.
    pub max: u64,
    /// What it is for.
    pub about: &'static str,
    /// Reads it.
    pub get: fn(&Limits) -> u64,
    /// Sets it.
    pub set: fn(&mut Limits, u64),
}

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// More than any disk has, so that a typing error is seen.
const DISK_BYTES_MAX: u64 = 1 << 50;

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A value within `u32`: the tables' bounds keep it there.
fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Makes a line of [`LIMITS`]: the kind of the field, its name in [`Limits`], its key's unit, its bounds, what it is for.
macro_rules! limit {
    (duration $field:ident, $key:literal, $variable:literal, $bounds:expr, $about:literal) => {
        LimitSetting {
            key: $key,
            variable: $variable,
            min: $bounds.0,
            max: $bounds.1,
            about: $about,
            get: |limits| ms(limits.$field),
            set: |limits, value| limits.$field = Duration::from_millis(value),
        }
    };
    (count $field:ident, $key:literal, $variable:literal, $bounds:expr, $about:literal) => {
        LimitSetting {
            key: $key,
            variable: $variable,
            min: $bounds.0,
            max: $bounds.1,
            about: $about,
            get: |limits| u64::from(limits.$field),
            set: |limits, value| limits.$field = small(value),
        }
    };
    (long $field:ident, $key:literal, $variable:literal, $bounds:expr, $about:literal) => {
        LimitSetting {
            key: $key,
            variable: $variable,
            min: $bounds.0,
            max: $bounds.1,
            about: $about,
            get: |limits| limits.$field,
            set: |limits, value| limits.$field = value,
        }
    };
    (bytes $field:ident, $key:literal, $variable:literal, $bounds:expr, $about:literal) => {
        LimitSetting {
            key: $key,
            variable: $variable,
            min: $bounds.0,
            max: $bounds.1,
            about: $about,
            get: |limits| limits.$field as u64,
            set: |limits, value| limits.$field = usize::try_from(value).unwrap_or(usize::MAX),
        }
    };
}

/// All bounds of a team.
#[rustfmt::skip]
pub const LIMITS: &[LimitSetting] = &[
    limit!(duration poll_interval, "poll_interval_ms", "BRIGADE_POLL_INTERVAL_MS", (10, DAY_MS), "How often an idle teammate looks at its mail and the board."),
    limit!(duration idle_timeout, "idle_timeout_ms", "BRIGADE_IDLE_TIMEOUT_MS", (0, DAY_MS), "How long an idle teammate looks before it is on call."),
    limit!(count turns_max, "turns_max", "BRIGADE_TURNS_MAX", (1, 10_000), "Turns of one WORK phase."),
    limit!(duration command_timeout, "command_timeout_ms", "BRIGADE_COMMAND_TIMEOUT_MS", (1, 7 * DAY_MS), "How long a command may run unless the call says otherwise; a task's `verify` always."),
    limit!(duration command_timeout_max, "command_timeout_max_ms", "BRIGADE_COMMAND_TIMEOUT_MAX_MS", (1, 7 * DAY_MS), "The longest time a call may ask for."),
    limit!(bytes tool_output_bytes_max, "tool_output_bytes_max", "BRIGADE_TOOL_OUTPUT_BYTES_MAX", (200, 10_000_000), "The most a tool's output may be; the middle of a longer one is left out."),
    limit!(count respawns_max, "respawns_max", "BRIGADE_RESPAWNS_MAX", (0, 1_000), "How often a teammate is started again after a panic or a hang within one run."),
    limit!(duration stall_timeout, "stall_timeout_ms", "BRIGADE_STALL_TIMEOUT_MS", (100, 7 * DAY_MS), "How long a teammate may go without progress before it counts as stalled and loses its task."),
    limit!(count model_retries_max, "model_retries_max", "BRIGADE_MODEL_RETRIES_MAX", (0, 1_000), "How often a model is asked again after temporary errors."),
    limit!(duration model_silence_timeout, "model_silence_timeout_ms", "BRIGADE_MODEL_SILENCE_TIMEOUT_MS", (100, DAY_MS), "How long a model's provider may send nothing before it is asked again."),
    limit!(duration model_answer_timeout, "model_answer_timeout_ms", "BRIGADE_MODEL_ANSWER_TIMEOUT_MS", (100, DAY_MS), "How long one answer of a model may take in all."),
    limit!(count compact_at_percent, "compact_at_percent", "BRIGADE_COMPACT_AT_PERCENT", (10, 100), "The part of a model's window, less the longest answer, at which a context is compacted, in percent."),
    limit!(long compact_at_tokens, "compact_at_tokens", "BRIGADE_COMPACT_AT_TOKENS", (1_000, 100_000_000), "Tokens of context at which it is compacted at the latest, whatever the window."),
    limit!(count output_tokens_max, "output_tokens_max", "BRIGADE_OUTPUT_TOKENS_MAX", (16, 1_000_000), "The longest answer of a model, in tokens."),
    limit!(duration stop_timeout, "stop_timeout_ms", "BRIGADE_STOP_TIMEOUT_MS", (0, DAY_MS), "How long running turns may take to finish once the team is asked to stop."),
    limit!(long free_bytes_min, "free_bytes_min", "BRIGADE_FREE_BYTES_MIN", (0, DISK_BYTES_MAX), "Bytes that must be free on the disk for new work to be taken."),
];

/// Variables that stand for flags, and those Brigade sets for the commands it runs: known, but no settings.
pub const OTHER_VARIABLES: [&str; 8] = [
    "BRIGADE_CONFIG",
    "BRIGADE_WORKSPACE",
    "BRIGADE_TEAM",
    "BRIGADE_TEAMMATE",
    "BRIGADE_TASK",
    "BRIGADE_ATTEMPT",
    crate::sandbox::CONFINEMENT_VARIABLE,
    crate::sandbox::WORKER_VARIABLE,
];

/// Settings that are planned, and what is not enforced where they stand. One that is not enforced is refused: nobody is to
/// rely on a bound that is not kept.
#[rustfmt::skip]
pub const NOT_ENFORCED: &[(&str, &str)] = &[
    ("approval", "no approval by a person is asked for yet"),
    ("permissions", "no permissions are enforced yet"),
    ("sandbox", "how commands are confined cannot be chosen yet"),
    ("tools", "which tools a member has cannot be chosen yet"),
    ("hooks", "no hooks are run yet"),
    ("notify", "nobody is notified yet"),
    ("mcp_servers", "no MCP servers are reached yet"),
    ("store", "the files of the workspace are the only store yet"),
];

/// Ways to reach a model that are planned; the others are `models::PROVIDERS`.
pub const PROVIDERS_PLANNED: [&str; 1] = ["openai"];

/// The names of the providers this version has.
pub fn providers() -> impl Iterator<Item = &'static str> {
    PROVIDERS.iter().map(|provider| provider.name)
}

/// The provider of a team without a lead.
pub const PROVIDER_DEFAULT: &str = "runbook";

/// All environment variables that stand for settings.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let settings = [TOP, TEAM, LEAD, BUDGET].into_iter().flatten().filter_map(|setting| setting.variable);
    settings.chain(LIMITS.iter().map(|limit| limit.variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_reads_what_it_sets_and_its_default_is_within_its_bounds() {
        for limit in LIMITS {
            let mut limits = Limits::default();
            assert!((limit.min..=limit.max).contains(&(limit.get)(&limits)), "{}", limit.key);
            (limit.set)(&mut limits, limit.min + 1);
            assert_eq!((limit.get)(&limits), limit.min + 1, "{}", limit.key);
            assert_eq!(limit.variable, format!("BRIGADE_{}", limit.key.to_uppercase()));
        }
    }

    #[test]
    fn settings_outside_teams_are_plain() {
        let not_plain = TOP.iter().filter(|setting| !setting.kind.is_plain()).map(|setting| setting.key);
        let why = "the user's file would give a command, an address or a file to workspaces that never asked for it";
        assert_eq!(not_plain.collect::<Vec<_>>(), ["teams"], "{why}");
    }

    #[test]
    fn the_table_has_every_limit() {
        let fields = format!("{:?}", Limits::default()).matches(": ").count();
        assert_eq!(fields, LIMITS.len(), "a field of Limits has no line in the table");
    }
}
