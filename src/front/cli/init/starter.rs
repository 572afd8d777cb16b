//! The text of the config that `brigade init` writes.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::agents::external::programs;
use crate::agents::external::protocol::AgentProgram;
use crate::config::quoted;
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::AgentKind;
use crate::providers;

/// The provider of the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// Runs the `sh` blocks of tasks, without a key.
    Runbook,
    /// An external agent, with the person's login, by its name.
    Agent(&'static str),
    /// A service with models, by its name.
    Service(&'static str),
}

impl Provider {
    /// Returns the parser of its name, which also has the descriptions for the help.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        let known = providers::all().filter(|provider| Self::of(provider).is_some());
        let values = known.map(|provider| PossibleValue::new(provider.name).help(provider.about));
        PossibleValuesParser::new(values)
            .map(|name| providers::provider(&name).and_then(Self::of).unwrap_or(Self::Runbook))
    }

    fn of(provider: &'static providers::Provider) -> Option<Self> {
        match provider.agent {
            AgentKind::Runbook => Some(Self::Runbook),
            AgentKind::Program => Some(Self::Agent(provider.name)),
            AgentKind::Builtin => provider.service.is_some().then_some(Self::Service(provider.name)),
        }
    }

    /// Returns its name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runbook => "runbook",
            Self::Agent(name) | Self::Service(name) => name,
        }
    }

    /// Returns the program of an external agent.
    pub fn program(self) -> Option<&'static dyn AgentProgram> {
        programs::program(self.name())
    }

    /// Returns its row.
    pub fn row(self) -> Option<&'static providers::Provider> {
        providers::provider(self.name())
    }
}

/// The settings of the model of a new team.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub name: String,
    pub base_url: Option<String>,
    /// The context window that the server told.
    pub context_window_tokens: Option<u64>,
}

/// The shape of the team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// One member
    Solo,
    /// Two members; work is reviewed before its task is completed
    Review,
    /// Two members, each task in its own git worktree
    Worktrees,
}

const HEADER: &str = "\
# The teams of this workspace. `brigade config show` prints every setting with its value and source.
# `brigade config schema` prints the JSON Schema for editors.
";

const RUNBOOK_SETTINGS: &str = r#"goal = "See a team work"
plan = "plan.md"                  # tasks to start from
done_when = "test -s report.txt"  # a command that exits 0 once the goal is met
"#;

const RUNBOOK_LEAD: &str = r#"
# How models are reached. `runbook` needs no key: it runs the `sh` blocks of a task's description, in order.
[teams.NAME.lead]
provider = "runbook"
"#;

const BUDGET_LINES: &str = "
[teams.NAME.budget]
tokens = 500_000                  # the team stops before it uses more
";

const AGENT_SETTINGS: &str = r#"plan = "plan.md"                  # tasks to start from
"#;

/// The lead needs no model: the tasks come from the plan.
const AGENT_LEAD: &str = r#"
# The lead follows fixed rules and needs no model. The members use the login of PROGRAM.
[teams.NAME.lead]
provider = "runbook"

[teams.NAME.budget]
tokens = 2_000_000                # each agent stops before its next request if the team has used more
"#;

const CODER: &str = r#"
# Members use the lead's provider, model and base_url unless they set their own.
[[teams.NAME.members]]
name = "alice"
role = "coder"
prompt = "prompts/coder.md"
"#;

/// Lets the coder do the tasks of a tester, because the team has none.
const SOLO: &str = "capabilities = [\"tester\"]\n";

const TESTER: &str = r#"
[[teams.NAME.members]]
name = "bob"
role = "tester"
"#;

const ISOLATION: &str = "isolation = \"worktree\"            # each task has its own git worktree and branch\n";

const LIMITS: &str = "
# Limits, with the units in their names. These are the defaults. At the top of the file, `[limits]` applies to all teams.
# [teams.NAME.limits]
# turns_max = 50
# command_timeout_ms = 120000
";

/// The table of a team's limits, which a file has once.
const LIMITS_TABLE: &str = "[teams.NAME.limits]\n";
/// The part of a small context window that an answer may have.
const ANSWER_PART: u64 = 4;
/// The context window for which the default limits are too large, in tokens.
const LIMITED_WINDOW_TOKENS: u64 = 32_000;

/// Returns the text of `brigade.toml`. It names this plan, if the provider needs one.
pub fn config(team: &Name, provider: Provider, model: &Model, template: Option<Template>, plan_file: &str) -> String {
    let mut text = format!("{HEADER}\n[teams.NAME]\n");
    match provider {
        Provider::Runbook => text += RUNBOOK_SETTINGS,
        Provider::Service(_) => {}
        Provider::Agent(_) => text += AGENT_SETTINGS,
    }
    if template == Some(Template::Review) {
        text += review(provider);
    }
    if template == Some(Template::Worktrees) || provider.program().is_some() {
        text += ISOLATION;
    }
    match provider {
        Provider::Runbook => text += RUNBOOK_LEAD,
        Provider::Service(_) => text += &model_lead(provider, model),
        Provider::Agent(_) => text += AGENT_LEAD,
    }
    let member_provider =
        provider.program().map(|_| format!("provider = {}\n", quoted(provider.name()))).unwrap_or_default();
    text = text + CODER + &member_provider;
    text += if template == Some(Template::Solo) { SOLO } else { TESTER };
    if template != Some(Template::Solo) {
        text += &member_provider;
    }
    let plan = format!("{:<17}", format!("\"{plan_file}\""));
    if !text.contains(LIMITS_TABLE) {
        text += LIMITS;
    }
    let program = provider.program().map(AgentProgram::name).unwrap_or_default();
    text.replace("\"plan.md\"        ", &plan).replace("PROGRAM", program).replace("NAME", team.as_str())
}

/// Returns the settings of a lead with a model, and the limits that this model needs.
fn model_lead(provider: Provider, model: &Model) -> String {
    let row = provider.row();
    let keys = row.map(|row| row.keys().collect::<Vec<_>>().join(" or ")).unwrap_or_default();
    let needs_key = row.and_then(|row| row.service.as_ref()).is_some_and(|service| service.needs_key);
    let needs_key = needs_key && model.base_url.is_none();
    let about_key = if needs_key {
        format!("The key is in the environment variable {keys}.")
    } else {
        format!("If the server needs a key, set the environment variable {keys}.")
    };
    let mut text = format!("\n# {about_key} For a server at another address, set `base_url`.\n[teams.NAME.lead]\n");
    text += &format!("provider = {}\nmodel = {}\n", quoted(provider.name()), quoted(&model.name));
    if let Some(base_url) = &model.base_url {
        text += &format!("base_url = {}\n", quoted(base_url));
    }
    if let Some(window) = model.context_window_tokens {
        text +=
            &format!("context_window_tokens = {window}    # the server told it; correct it if you change the server\n");
        if window < LIMITED_WINDOW_TOKENS {
            let tokens = window / ANSWER_PART;
            text += &format!("\n{LIMITS_TABLE}output_tokens_max = {tokens}          # leaves room for the context\n");
        }
    }
    if row.is_some_and(|row| row.costs_money_at(model.base_url.as_deref())) {
        text += BUDGET_LINES;
    }
    text
}

/// Returns the setting for reviews. A runbook cannot judge work, so a person reviews it.
fn review(provider: Provider) -> &'static str {
    match provider {
        Provider::Runbook => "review = \"human\"                  # you approve each task: `brigade review`\n",
        Provider::Service(_) | Provider::Agent(_) => {
            "review = \"tester\"                 # a member with this role approves each task\n"
        }
    }
}
