//! Claude Code as an agent, over its stream-json protocol in both directions.
//!
//! The facts about the protocol were seen in runs of versions 2.1.197 and 2.1.330. `docs/internals/claude-code.md` lists them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::protocol::{AgentProgram, AgentProtocol};
use crate::domain::permission::ToolKind;

mod invocation;
mod messages;
mod protocol;
mod tools;

pub use protocol::ClaudeProtocol;

/// The name of Brigade's tool server in the agent.
const SERVER_NAME: &str = "brigade";

/// Claude Code.
#[derive(Debug, Clone, Copy)]
pub struct ClaudeCode;

impl AgentProgram for ClaudeCode {
    fn name(&self) -> &'static str {
        "Claude Code"
    }

    fn default_command(&self) -> &'static str {
        "claude"
    }

    fn tool_kind(&self, tool: &str) -> Option<ToolKind> {
        tools::find_tool(tool).map(|tool| tool.kind)
    }

    fn protocol(&self) -> Box<dyn AgentProtocol> {
        Box::new(ClaudeProtocol::default())
    }

    /// A history is `projects/<folder>/<session>.jsonl` in the config folder. The folder's name depends on the working directory and
    /// the version, so every folder is searched.
    fn history(&self, home: &Path, session: &str) -> Option<PathBuf> {
        let folders = std::fs::read_dir(home.join("projects")).ok()?;
        let name = format!("{session}.jsonl");
        folders.flatten().map(|folder| folder.path().join(&name)).find(|file| file.is_file())
    }

    /// The agent records a prompt under its `uuid`, and one that it takes during a turn as an attachment with `source_uuid`. After a
    /// resume, its own check for repeated prompts ignores the second kind.
    fn has_prompt(&self, history: &Path, key: &str) -> std::io::Result<bool> {
        for line in BufReader::new(std::fs::File::open(history)?).split(b'\n') {
            // The last line may be incomplete after a kill.
            let Ok(record) = serde_json::from_slice::<Value>(&line?) else { continue };
            if record["uuid"] == key || record["attachment"]["source_uuid"] == key {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_found_in_any_project_folder() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(ClaudeCode.history(home.path(), "s"), None);
        let history = home.path().join("projects/b/s.jsonl");
        std::fs::create_dir_all(home.path().join("projects/a/s.jsonl")).unwrap();
        std::fs::create_dir_all(history.parent().unwrap()).unwrap();
        assert_eq!(ClaudeCode.history(home.path(), "s"), None, "a folder is no history");
        std::fs::write(&history, "").unwrap();
        assert_eq!(ClaudeCode.history(home.path(), "s"), Some(history));
        assert_eq!(ClaudeCode.history(home.path(), "other"), None);
    }

    #[test]
    fn prompt_is_found_by_either_uuid() {
        let folder = tempfile::tempdir().unwrap();
        let history = folder.path().join("s.jsonl");
        let records = "{\"type\":\"user\",\"uuid\":\"k1\",\"message\":{\"content\":\"text k3\"}}\n\
                       {\"type\":\"attachment\",\"attachment\":{\"source_uuid\":\"k2\"}}\n\
                       {\"type\":\"user\",\"uuid\":\"k4";
        std::fs::write(&history, records).unwrap();
        let found = ["k1", "k2", "k3", "k4"].map(|key| ClaudeCode.has_prompt(&history, key).unwrap());
        assert_eq!(found, [true, true, false, false]);
        assert!(ClaudeCode.has_prompt(&folder.path().join("missing"), "k1").is_err());
    }
}
