//! What a command says when it cannot do what it was asked: a message, a hint, an exit code.

use serde_json::json;

use super::exit::Exit;
use crate::config::CONFIG_FILE;
use crate::config::problem::ConfigError;
use crate::domain::name::InvalidName;
use crate::domain::plan::PlanErrors;
use crate::domain::refusal::Refusal;
use crate::domain::task::{TaskId, TaskStatus};
use crate::embed::EmbedError;
use crate::ports::StoreError;
use crate::stores::fs::LockTimeout;
use crate::team::LaunchError;

/// An error for the person at the terminal, or the program behind the pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// How the command ends.
    pub exit: Exit,
    /// Tasks to which it was done before it stopped.
    pub done: Vec<TaskId>,
}

/// What a command comes to.
pub type CliResult<T> = Result<T, CliError>;

impl CliError {
    /// It was asked wrongly, or the config is wrong.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: Exit::Usage, done: Vec::new() }
    }

    /// It was refused, or the system would not.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: Exit::Unfinished, done: Vec::new() }
    }

    /// The system does not give what is needed to start at all: a thread, an event queue.
    #[must_use]
    pub fn not_started(error: &std::io::Error) -> Self {
        let hint = "raise the limits on processes (`ulimit -u`) and on open files (`ulimit -n`), or end other programs of this user";
        Self::refused(error.to_string()).hint(hint)
    }

    /// The same, with what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The line for programs.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut error = json!({ "message": self.message, "hint": self.hint, "code": self.exit as u8 });
        if !self.done.is_empty() {
            error["done"] = json!(self.done);
        }
        json!({ "schema_version": 1, "error": error }).to_string()
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self { hint: error.hint(), ..Self::usage(error.to_string()) }
    }
}

impl From<EmbedError> for CliError {
    fn from(error: EmbedError) -> Self {
        match error {
            EmbedError::Config(error) => error.into(),
            EmbedError::Store(error) | EmbedError::Launch(LaunchError::Store(error)) => error.into(),
            EmbedError::Guard(_) => Self::refused(error.to_string()),
            error => Self::usage(error.to_string()),
        }
    }
}

impl From<InvalidName> for CliError {
    fn from(error: InvalidName) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<PlanErrors> for CliError {
    fn from(error: PlanErrors) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let hint = match &error {
            StoreError::NotClaimable { id, .. } => Some(format!("brigade why {}", id.0)),
            StoreError::NoTask(_) => Some("see `brigade tasks`".to_owned()),
            StoreError::Spoiled { id, .. } => Some(format!("mend .tasks/{} by hand, or remove it", id.file_name())),
            StoreError::UnknownBlocker { .. } => Some("tasks are named by their numbers: --after 3,4".to_owned()),
            StoreError::Occupied { .. } => Some("`brigade stop` stops it, `brigade team` shows it".to_owned()),
            StoreError::Refused(refusal) => refusal_hint(refusal),
            StoreError::Link(path, _) => Some(link_hint(path)),
            StoreError::Io { source, .. } if LockTimeout::in_error(source).is_some() => {
                Some("end the process that holds it, or wait until it is done; `brigade stop` needs no lock".to_owned())
            }
            StoreError::Io { source, .. } if is_not_writable(source) => {
                Some("you may not write there: commands that a team runs see its control files read-only".to_owned())
            }
            _ => None,
        };
        let exit = match error {
            StoreError::Occupied { .. } => Exit::Occupied,
            StoreError::Link(..) => Exit::Usage,
            _ => Exit::Unfinished,
        };
        let message = match &error {
            StoreError::UnknownBlocker { task: TaskId(0), blocker } => {
                format!("the new task cannot wait for {blocker}: there is no such task")
            }
            other => other.to_string(),
        };
        Self { message, hint, exit, done: Vec::new() }
    }
}

fn is_not_writable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    [PermissionDenied, ReadOnlyFilesystem].contains(&error.kind())
}

fn link_hint(path: &str) -> String {
    let other =
        if path.ends_with(CONFIG_FILE) { ", or name the config with --config FILE --workspace DIR" } else { "" };
    format!("remove the link (rm {path}){other}")
}

fn refusal_hint(refusal: &Refusal) -> Option<String> {
    match refusal {
        Refusal::Stale { task, status: TaskStatus::Pending, .. } => {
            Some(format!("to work on it again: brigade tasks claim {} --as NAME", task.0))
        }
        Refusal::Stale { task, .. } => Some(format!("see who has it now: brigade tasks show {}", task.0)),
        Refusal::NotHolder { task, .. } => Some(format!(
            "its holder says --as NAME --attempt N; a person insists with --force: brigade tasks show {}",
            task.0
        )),
        Refusal::NeedsForce { .. } => Some("say --force to insist".to_owned()),
        Refusal::WrongStatus { .. } | Refusal::NotAllowed { .. } => None,
    }
}
