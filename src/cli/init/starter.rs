//! The text of the config that `brigade init` writes.

use clap::ValueEnum;

use crate::domain::name::Name;

/// The provider of the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Runs the `sh` blocks of tasks, without a key
    Runbook,
    /// Models that speak the Messages API
    Anthropic,
    /// The program Claude Code, with your login
    ClaudeCode,
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

const ANTHROPIC_LEAD: &str = r#"
# The key is in the environment variable ANTHROPIC_API_KEY. For a server of your own, set `base_url`.
[teams.NAME.lead]
provider = "anthropic"
model = "claude-sonnet-4-5"

[teams.NAME.budget]
tokens = 500_000                  # the team stops before it uses more
"#;

const CLAUDE_CODE_SETTINGS: &str = r#"plan = "plan.md"                  # tasks to start from
"#;

/// The lead needs no model: the tasks come from the plan.
const CLAUDE_CODE_LEAD: &str = r#"
# The lead follows fixed rules and needs no model. The members use the login of Claude Code.
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

/// Returns the text of `brigade.toml`. It names this plan, if the provider needs one.
pub fn config(team: &Name, provider: Provider, template: Option<Template>, plan_file: &str) -> String {
    let mut text = format!("{HEADER}\n[teams.NAME]\n");
    match provider {
        Provider::Runbook => text += RUNBOOK_SETTINGS,
        Provider::Anthropic => {}
        Provider::ClaudeCode => text += CLAUDE_CODE_SETTINGS,
    }
    if template == Some(Template::Review) {
        text += review(provider);
    }
    if template == Some(Template::Worktrees) || provider == Provider::ClaudeCode {
        text += ISOLATION;
    }
    text += match provider {
        Provider::Runbook => RUNBOOK_LEAD,
        Provider::Anthropic => ANTHROPIC_LEAD,
        Provider::ClaudeCode => CLAUDE_CODE_LEAD,
    };
    let member_provider = if provider == Provider::ClaudeCode { "provider = \"claude-code\"\n" } else { "" };
    text = text + CODER + member_provider;
    text += if template == Some(Template::Solo) { SOLO } else { TESTER };
    if template != Some(Template::Solo) {
        text += member_provider;
    }
    let plan = format!("{:<17}", format!("\"{plan_file}\""));
    (text + LIMITS).replace("\"plan.md\"        ", &plan).replace("NAME", team.as_str())
}

/// Returns the setting for reviews. A runbook cannot judge work, so a person reviews it.
fn review(provider: Provider) -> &'static str {
    match provider {
        Provider::Runbook => "review = \"human\"                  # you approve each task: `brigade review`\n",
        Provider::Anthropic | Provider::ClaudeCode => {
            "review = \"tester\"                 # a member with this role approves each task\n"
        }
    }
}
