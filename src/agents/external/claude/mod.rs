//! Claude Code as an agent, over its stream-json protocol in both directions.
//!
//! The facts about the protocol were seen in runs of versions 2.1.197 and 2.1.330. `docs/internals/claude-code.md` lists them.

use std::borrow::Cow;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::programs::{ProgramError, ProgramReport};
use super::protocol::{AgentProgram, AgentProtocol};
use crate::domain::agent::permission::ToolKind;
use crate::domain::team::team_spec::ModelSpec;
use crate::platform::reading::{self, AllowedKinds, LineLimits};
use crate::sandbox::Sandbox;

mod invocation;
mod messages;
mod protocol;
mod tools;
mod version;

pub use protocol::ClaudeProtocol;

/// The name of Brigade's tool server in the agent.
const SERVER_NAME: &str = "brigade";

/// The limits of a history, which the agent's commands can write too. The longest sessions of days have some hundred megabytes, and
/// their longest lines are images and documents of at most 32 MB. The next turn begins a new session beyond a limit.
const HISTORY_LIMITS: LineLimits =
    LineLimits { line_bytes_max: 64 * 1024 * 1024, lines_max: 4_000_000, file_bytes_max: 1024 * 1024 * 1024 };
/// The most folders with histories. The program makes one for each working directory.
const HISTORY_FOLDERS_MAX: usize = 10_000;

/// A line of a history, as far as Brigade reads it.
#[derive(Deserialize)]
struct HistoryRecord<'a> {
    #[serde(borrow)]
    uuid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    attachment: Option<Attachment<'a>>,
}

#[derive(Deserialize)]
struct Attachment<'a> {
    #[serde(borrow)]
    source_uuid: Option<Cow<'a, str>>,
}

/// Claude Code.
#[derive(Debug, Clone, Copy)]
pub struct ClaudeCode;

impl AgentProgram for ClaudeCode {
    fn name(&self) -> &'static str {
        "Claude Code"
    }

    fn default_command(&self) -> &'static str {
        version::DEFAULT_COMMAND
    }

    fn check(
        &self,
        spec: &ModelSpec,
        sandbox: &Sandbox,
        folder: &Path,
        report: &mut ProgramReport,
    ) -> Result<(), ProgramError> {
        version::check(spec, sandbox, folder, report)
    }

    fn tool_kind(&self, tool: &str) -> Option<ToolKind> {
        tools::find_tool(tool).map(|tool| tool.kind)
    }

    fn protocol(&self) -> Box<dyn AgentProtocol> {
        Box::new(ClaudeProtocol::default())
    }

    /// A history is `projects/<folder>/<session>.jsonl` in the config folder. The folder's name depends on the working directory and
    /// the version, so every folder is searched.
    fn history(&self, home: &Path, session: &str) -> io::Result<Option<PathBuf>> {
        let folders = match reading::list(&home.join("projects"), HISTORY_FOLDERS_MAX) {
            Err(error) if error.kind() != io::ErrorKind::FileTooLarge => return Ok(None),
            folders => folders?,
        };
        let name = format!("{session}.jsonl");
        let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        Ok(folders.iter().map(|folder| folder.path().join(&name)).find(is_file))
    }

    /// The agent records a prompt under its `uuid`, and one that it takes during a turn as an attachment with `source_uuid`. After a
    /// resume, its own check for repeated prompts ignores the second kind.
    fn has_prompt(&self, history: &Path, key: &str) -> io::Result<bool> {
        let found = reading::read_lines(history, AllowedKinds::FilesHere, HISTORY_LIMITS, |line| {
            // The last line may be incomplete after a kill.
            let Ok(record) = serde_json::from_slice::<HistoryRecord<'_>>(line) else {
                return ControlFlow::Continue(());
            };
            let source = record.attachment.and_then(|attachment| attachment.source_uuid);
            let is_prompt = [record.uuid, source].into_iter().flatten().any(|uuid| uuid == key);
            if is_prompt { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_found_in_any_project_folder() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(ClaudeCode.history(home.path(), "s").unwrap(), None);
        let history = home.path().join("projects/b/s.jsonl");
        std::fs::create_dir_all(home.path().join("projects/a/s.jsonl")).unwrap();
        std::fs::create_dir_all(history.parent().unwrap()).unwrap();
        assert_eq!(ClaudeCode.history(home.path(), "s").unwrap(), None, "a folder is no history");
        std::fs::write(&history, "").unwrap();
        assert_eq!(ClaudeCode.history(home.path(), "s").unwrap(), Some(history));
        assert_eq!(ClaudeCode.history(home.path(), "other").unwrap(), None);
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

    #[test]
    fn sparse_history_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let history = folder.path().join("s.jsonl");
        std::fs::File::create(&history).unwrap().set_len(60 << 30).unwrap();
        assert_eq!(ClaudeCode.has_prompt(&history, "k").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
