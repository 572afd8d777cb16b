//! The files whose content an agent knows. A text that replaces another file could lose lines that the agent has never seen, or that
//! another member has added since.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::repetition::hash_of;
use crate::domain::team::phase::ClaimRef;
use crate::tools::{ToolContext, WRITE_TOOL, file_text, table};

/// The most bytes of commands that are kept.
const COMMANDS_BYTES_MAX: usize = 64 * 1024;

/// The files whose content the agent knows in its current attempt.
#[derive(Debug, Default)]
pub(super) struct KnownFiles {
    claim: Option<ClaimRef>,
    files: HashMap<String, KnownContent>,
    /// The commands of the attempt. One that names a file may have shown it.
    commands: String,
    /// The number of the current answer.
    answer: u64,
}

#[derive(Debug)]
struct KnownContent {
    hash: u64,
    /// The answer that showed it. The agent sees that result in the next one.
    shown_in: Option<u64>,
}

impl KnownFiles {
    /// Starts an answer with calls. Another attempt knows no files.
    pub fn start_answer(&mut self, claim: Option<ClaimRef>) {
        if self.claim != claim {
            *self = Self { claim, ..Self::default() };
        }
        self.answer += 1;
    }

    /// Returns the refusal of a call that would replace a file by a text without some of its lines, if the agent does not know the
    /// file's content. The same call in the next answer is made, unless the file changes before.
    pub fn refusal(&mut self, tool: &str, input: &Value, context: &ToolContext) -> Option<String> {
        let (path, text) = (input["path"].as_str()?, input["content"].as_str()?);
        if tool != WRITE_TOOL {
            return None;
        }
        let current = file_text(path, context)?;
        let kept: HashSet<&str> = text.lines().collect();
        if current.lines().all(|line| kept.contains(line)) || self.is_known(path, &current) {
            return None;
        }
        self.insert(path, &current, Some(self.answer));
        Some(format!(
            "Not called: `{path}` has lines that `content` leaves out, and you have not seen them. Read it first. If your text is right, call again."
        ))
    }

    /// Records a call that was made.
    pub fn record(&mut self, tool: &str, input: &Value, context: &ToolContext) {
        if let Some(command) = input["command"].as_str()
            && self.commands.len() + command.len() <= COMMANDS_BYTES_MAX
        {
            self.commands.push_str(command);
            self.commands.push('\n');
        }
        let Some(path) = table::shown_file(tool, input) else { return };
        if let Some(current) = file_text(path, context) {
            self.insert(path, &current, (tool != WRITE_TOOL).then_some(self.answer));
        }
    }

    fn insert(&mut self, path: &str, content: &str, shown_in: Option<u64>) {
        self.files.insert(path.to_owned(), KnownContent { hash: hash_of(content), shown_in });
    }

    fn is_known(&self, path: &str, current: &str) -> bool {
        let file = self.files.get(path);
        let is_shown = file.is_some_and(|file| {
            file.hash == hash_of(current) && file.shown_in.is_none_or(|answer| answer < self.answer)
        });
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path);
        is_shown || self.commands.contains(name)
    }
}
