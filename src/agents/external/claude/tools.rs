//! The program's own tools.

use crate::domain::permission::ToolKind;

/// A tool of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaudeTool {
    /// Its name in the program.
    pub name: &'static str,
    /// Brigade's name for it, which rules use.
    pub brigade_name: &'static str,
    pub kind: ToolKind,
}

/// The tools that it may use. Its tools for teams, sub-agents, schedules and worktrees are left out: Brigade does that work. Names that a
/// version does not know have no effect.
#[rustfmt::skip]
pub(super) const TOOLS: [ClaudeTool; 14] = [
    ClaudeTool { name: "Bash", brigade_name: "bash", kind: ToolKind::Command },
    ClaudeTool { name: "Edit", brigade_name: "edit_file", kind: ToolKind::Edit },
    ClaudeTool { name: "Write", brigade_name: "write_file", kind: ToolKind::Edit },
    ClaudeTool { name: "NotebookEdit", brigade_name: "edit_file", kind: ToolKind::Edit },
    ClaudeTool { name: "Read", brigade_name: "read_file", kind: ToolKind::Read },
    ClaudeTool { name: "Glob", brigade_name: "glob", kind: ToolKind::Read },
    ClaudeTool { name: "Grep", brigade_name: "grep", kind: ToolKind::Read },
    ClaudeTool { name: "WebFetch", brigade_name: "web_fetch", kind: ToolKind::Web },
    ClaudeTool { name: "WebSearch", brigade_name: "web_search", kind: ToolKind::Web },
    ClaudeTool { name: "TodoWrite", brigade_name: "todo", kind: ToolKind::Read },
    // They read the output of commands that were allowed, and end them.
    ClaudeTool { name: "BashOutput", brigade_name: "bash_output", kind: ToolKind::Read },
    ClaudeTool { name: "TaskOutput", brigade_name: "bash_output", kind: ToolKind::Read },
    ClaudeTool { name: "TaskStop", brigade_name: "bash_stop", kind: ToolKind::Read },
    ClaudeTool { name: "KillShell", brigade_name: "bash_stop", kind: ToolKind::Read },
];

/// Returns the tool with this name, if the program may use it.
pub(super) fn find_tool(name: &str) -> Option<&'static ClaudeTool> {
    TOOLS.iter().find(|tool| tool.name == name)
}
