//! The table of external agents, and the checks of their installed programs.

use std::path::Path;

use super::claude::ClaudeCode;
use super::protocol::AgentProgram;
use crate::domain::agent::permission::ToolKind;
use crate::domain::team::team_spec::{MemberSpec, ModelSpec};
use crate::sandbox::Sandbox;

/// An entry of the [`AGENTS`] table.
pub struct ExternalAgentRow {
    /// The provider in the config.
    pub name: &'static str,
    /// The description for people.
    pub about: &'static str,
    /// Its program.
    pub program: &'static dyn AgentProgram,
}

/// All external agents. Config, launch, `brigade init` and `brigade doctor` read this table.
pub const AGENTS: &[ExternalAgentRow] = &[ExternalAgentRow {
    name: "claude-code",
    about: "the program Claude Code, with your login; needs isolation = \"worktree\"",
    program: &ClaudeCode,
}];

/// Returns the program of the agent with this name.
pub fn program(name: &str) -> Option<&'static dyn AgentProgram> {
    AGENTS.iter().find(|row| row.name == name).map(|row| row.program)
}

/// Returns the kind of an external agent's own tool with this name; `None` for other tools.
pub fn tool_kind(tool: &str) -> Option<ToolKind> {
    AGENTS.iter().find_map(|row| row.program.tool_kind(tool))
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
        let Some(program) = program(&model.provider) else { continue };
        if !checked.iter().any(|other| (&other.provider, &other.command) == (&model.provider, &model.command)) {
            program.check(model, sandbox, folder, &mut report)?;
            checked.push(model);
        }
        let unset = model.pass_env.iter().filter(|variable| std::env::var_os(variable).is_none());
        report
            .warnings
            .extend(unset.map(|variable| format!("`pass_env` of {name} names {variable}, which is not set")));
    }
    Ok(report)
}
