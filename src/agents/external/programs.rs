//! The table of external programs.

use super::claude;
use super::protocol::AgentProgram;
use crate::domain::agent::permission::ToolKind;
use crate::domain::team::team_spec::ExternalProgram;

/// Returns the implementation for this program.
pub fn program_of(program: ExternalProgram) -> &'static dyn AgentProgram {
    match program {
        ExternalProgram::ClaudeCode => &claude::ClaudeCode,
    }
}

/// Returns the kind of an external agent's own tool with this name; `None` for other tools.
pub fn tool_kind(tool: &str) -> Option<ToolKind> {
    ExternalProgram::ALL.into_iter().find_map(|program| program_of(program).tool_kind(tool))
}
