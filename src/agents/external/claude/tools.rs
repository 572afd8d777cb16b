//! The program's own tools.

use serde_json::Value;

use crate::domain::agent::path_pattern;
use crate::domain::agent::permission::ToolKind;

/// The tool that finds files. Its pattern can begin with a folder.
const GLOB: &str = "Glob";

/// A tool of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaudeTool {
    /// Its name in the program.
    pub name: &'static str,
    /// Brigade's name for it, which rules use.
    pub brigade_name: &'static str,
    pub kind: ToolKind,
    /// The argument that rules are about.
    pub subject: Subject,
    /// The arguments with the lines that a call removes and adds.
    pub change: Option<[&'static str; 2]>,
}

/// The argument of a tool that rules are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The only path. Every call has it.
    Path(&'static str),
    /// The only path. A call without it is about the working directory.
    Folder(&'static str),
    /// A command, an address or a query.
    Text(&'static str),
    None,
}

impl Subject {
    /// Returns the name of the argument.
    pub fn field(self) -> Option<&'static str> {
        match self {
            Self::Path(field) | Self::Folder(field) | Self::Text(field) => Some(field),
            Self::None => None,
        }
    }

    /// Returns the name of the argument, if it is a path.
    pub fn path_field(self) -> Option<&'static str> {
        self.field().filter(|_| !matches!(self, Self::Text(_)))
    }
}

const fn tool(name: &'static str, brigade_name: &'static str, kind: ToolKind, subject: Subject) -> ClaudeTool {
    ClaudeTool { name, brigade_name, kind, subject, change: None }
}

impl ClaudeTool {
    const fn changing(self, removed: &'static str, added: &'static str) -> Self {
        Self { change: Some([removed, added]), ..self }
    }

    /// Returns the argument of a call that rules are about.
    ///
    /// # Errors
    /// The call names its path in another way than the tool reads it, or in two ways.
    pub fn subject_of(&self, input: &Value) -> Result<String, String> {
        let own_field = self.subject.path_field();
        let path_fields = TOOLS.iter().filter_map(|tool| tool.subject.path_field());
        let is_other = |field: &&str| Some(*field) != own_field && !input[*field].is_null();
        if let Some(other) = path_fields.into_iter().find(is_other) {
            let own = own_field.map_or_else(|| "no path".to_owned(), |field| format!("its path in `{field}`"));
            return Err(format!("{} takes {own}, and this call has `{other}`", self.name));
        }
        let is_path = |pattern: &str| path_pattern::is_outside(pattern) || pattern.split('/').any(|part| part == "..");
        if self.name == GLOB && input["pattern"].as_str().is_some_and(is_path) {
            return Err(format!("{GLOB} takes its folder in `path`, and this call has it in `pattern`"));
        }
        let Some(field) = self.subject.field() else { return Ok(String::new()) };
        match (&input[field], self.subject) {
            // The program replaces it by the home folder.
            (Value::String(path), Subject::Path(_) | Subject::Folder(_)) if path == "~" || path.starts_with("~/") => {
                Err(format!("`{field}` begins with `~`: write the path of the folder"))
            }
            (Value::String(path), Subject::Path(_) | Subject::Folder(_)) if is_of_process(path) => {
                Err(format!("`{field}` is below /proc or /dev/fd, which differ in each process: write the path itself"))
            }
            (Value::String(text), _) => Ok(text.clone()),
            (Value::Null, Subject::Folder(_)) => Ok(String::new()),
            _ => Err(format!("{} needs a text in `{field}`", self.name)),
        }
    }
}

/// Returns true if a path can lead elsewhere in the process of the program than in Brigade's.
fn is_of_process(path: &str) -> bool {
    let path = path_pattern::normalised(path, "");
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    let is_outside = path.starts_with(['/', '.']);
    is_outside && matches!((parts.next(), parts.next()), (Some("proc"), _) | (Some("dev"), Some("fd")))
}

/// The tools that it may use. Its tools for teams, sub-agents, schedules and worktrees are left out: Brigade does that work. Names that a
/// version does not know have no effect.
#[rustfmt::skip]
pub(super) const TOOLS: [ClaudeTool; 14] = [
    tool("Bash",         "bash",        ToolKind::Command, Subject::Text("command")),
    tool("Edit",         "edit_file",   ToolKind::Edit,    Subject::Path("file_path")).changing("old_string", "new_string"),
    tool("Write",        "write_file",  ToolKind::Edit,    Subject::Path("file_path")).changing("", "content"),
    tool("NotebookEdit", "edit_file",   ToolKind::Edit,    Subject::Path("notebook_path")).changing("", "new_source"),
    tool("Read",         "read_file",   ToolKind::Read,    Subject::Path("file_path")),
    tool(GLOB,           "glob",        ToolKind::Read,    Subject::Folder("path")),
    tool("Grep",         "grep",        ToolKind::Read,    Subject::Folder("path")),
    tool("WebFetch",     "web_fetch",   ToolKind::Web,     Subject::Text("url")),
    tool("WebSearch",    "web_search",  ToolKind::Web,     Subject::Text("query")),
    tool("TodoWrite",    "todo",        ToolKind::Board,   Subject::None),
    // They read the output of commands that were allowed, and end them.
    tool("BashOutput",   "bash_output", ToolKind::Board,   Subject::None),
    tool("TaskOutput",   "bash_output", ToolKind::Board,   Subject::None),
    tool("TaskStop",     "bash_stop",   ToolKind::Board,   Subject::None),
    tool("KillShell",    "bash_stop",   ToolKind::Board,   Subject::None),
];

/// Returns the tool with this name, if the program may use it.
pub(super) fn find_tool(name: &str) -> Option<&'static ClaudeTool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn call_has_one_path_in_the_field_of_its_tool() {
        let subject = |tool: &str, input: Value| find_tool(tool).unwrap().subject_of(&input);
        for (tool, input, expected) in [
            ("Read", json!({ "file_path": "a" }), "a"),
            ("NotebookEdit", json!({ "notebook_path": "a", "new_source": "x" }), "a"),
            ("Grep", json!({ "pattern": "x" }), ""),
            ("Grep", json!({ "pattern": "x", "path": "a" }), "a"),
            ("Read", json!({ "file_path": "proc/a" }), "proc/a"),
            ("Bash", json!({ "command": "ls" }), "ls"),
        ] {
            assert_eq!(subject(tool, input.clone()).as_deref(), Ok(expected), "{tool} {input}");
        }
        for (tool, input, reason) in [
            (
                "Read",
                json!({ "file_path": "a", "path": "b" }),
                "takes its path in `file_path`, and this call has `path`",
            ),
            ("Read", json!({ "path": "b" }), "takes its path in `file_path`, and this call has `path`"),
            (
                "Grep",
                json!({ "path": "a", "file_path": "b" }),
                "takes its path in `path`, and this call has `file_path`",
            ),
            ("Write", json!({ "file_path": "a", "notebook_path": ["b"] }), "and this call has `notebook_path`"),
            ("Bash", json!({ "command": "ls", "path": "b" }), "takes no path, and this call has `path`"),
            ("Edit", json!({ "file_path": ["a"] }), "needs a text in `file_path`"),
            ("Read", json!({ "file_path": "~/a" }), "begins with `~`"),
            ("Read", json!({ "file_path": "/proc/self/cwd/secrets/a" }), "is below /proc"),
            ("Read", json!({ "file_path": "../..//proc/7/cwd/a" }), "is below /proc"),
            ("Grep", json!({ "path": "/./dev/fd/8" }), "is below /proc or /dev/fd"),
            ("Glob", json!({ "pattern": "/etc/*" }), "takes its folder in `path`"),
            ("Glob", json!({ "pattern": "src/../*" }), "takes its folder in `path`"),
        ] {
            let refusal = subject(tool, input.clone()).unwrap_err();
            assert!(refusal.contains(reason), "{tool} {input}: {refusal}");
        }
    }
}
