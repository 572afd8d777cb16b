//! The error of a command: a message, a hint and an exit code.

use std::io::ErrorKind;

use serde_json::json;

use super::exit::Exit;
use crate::config::CONFIG_FILE;
use crate::config::diagnostics::{ConfigError, Problem};
use crate::domain::name::InvalidName;
use crate::domain::suggestion::did_you_mean;
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::task_error::TaskError;
use crate::embed::EmbedError;
use crate::ports::{MissingTask, RepositoryError, StoreError};
use crate::stores::file::links::SymbolicLinkError;
use crate::stores::fs::LockTimeout;
use crate::team::LaunchError;
use crate::ui::command_form::shell_word;
use crate::ui::text::one_line;
use crate::ui::why::restore_hint;

/// An error for a person or for a program that reads JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The message, without the word "error".
    pub message: String,
    /// The next step, with the command to run.
    pub hint: Option<String>,
    /// The exit code.
    pub exit: Exit,
    /// The tasks that were changed before the error.
    pub done: Vec<TaskId>,
    /// The problems of a config or plan file. `message` has their headlines, and `hint` is that of the first.
    pub problems: Vec<Problem>,
}

/// The result of a command.
pub type CliResult<T> = Result<T, CliError>;

impl CliError {
    /// The command line or the config is invalid.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message.into(), Exit::Usage)
    }

    /// The request is refused, or a system call failed.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(message.into(), Exit::Unfinished)
    }

    /// A config or plan file has these problems.
    pub fn problems(problems: Vec<Problem>) -> Self {
        let headlines: Vec<String> = problems.iter().map(Problem::headline).collect();
        let hint = problems.first().and_then(|problem| problem.hint.clone());
        Self { hint, problems, ..Self::usage(headlines.join("\n")) }
    }

    fn new(message: String, exit: Exit) -> Self {
        Self { message, hint: None, exit, done: Vec::new(), problems: Vec::new() }
    }

    /// The command cannot start, because the system refuses a thread or an event queue.
    pub fn not_started(error: &std::io::Error) -> Self {
        let hint = "raise the limits for processes (`ulimit -u`) and open files (`ulimit -n`), or end other programs of this user";
        Self::refused(error.to_string()).hint(hint)
    }

    /// Adds a hint.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Changes the hint, and those of the problems.
    pub fn map_hints(mut self, change: impl Fn(String) -> String) -> Self {
        for hint in self.problems.iter_mut().map(|problem| &mut problem.hint).chain([&mut self.hint]) {
            *hint = hint.take().map(&change);
        }
        self
    }

    /// Returns the error as one line of JSON.
    pub fn to_json(&self) -> String {
        let mut error = json!({ "message": self.message, "hint": self.hint, "code": self.exit as u8 });
        if !self.done.is_empty() {
            error["done"] = json!(self.done);
        }
        if !self.problems.is_empty() {
            error["errors"] = self.problems.iter().map(problem_json).collect();
        }
        json!({ "schema_version": 1, "error": error }).to_string()
    }
}

/// A problem for programs. Unknown positions are left out.
fn problem_json(problem: &Problem) -> serde_json::Value {
    let mut value = json!({ "message": problem.message, "hint": problem.hint });
    if let Some(file) = &problem.file {
        value["file"] = json!(file.to_string_lossy());
        value["line"] = json!(problem.line);
    }
    if problem.column > 0 {
        value["column"] = json!(problem.column);
    }
    value
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Problems(problems) => Self::problems(problems),
            error => Self { hint: error.hint(), ..Self::usage(error.to_string()) },
        }
    }
}

impl From<EmbedError> for CliError {
    fn from(error: EmbedError) -> Self {
        match error {
            EmbedError::Config(error) => error.into(),
            EmbedError::Plan(problems) => Self::problems(problems),
            EmbedError::Store(error) | EmbedError::Launch(LaunchError::Store(error)) => error.into(),
            EmbedError::Launch(LaunchError::Repository(error)) => Self { exit: Exit::Usage, ..error.into() },
            EmbedError::Launch(LaunchError::Model { .. }) => Self::usage(error.to_string())
                .hint("`brigade doctor` checks that models and keys are set, and that servers accept connections"),
            EmbedError::Launch(LaunchError::GoalWithoutModel(_)) => {
                let hint = "set provider and model of the lead in the config, or pass --plan FILE";
                Self::usage(error.to_string()).hint(hint)
            }
            EmbedError::Launch(LaunchError::Program { reason, hint }) => Self::usage(reason).hint(hint),
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

impl From<RepositoryError> for CliError {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::Unusable { reason, hint } => Self { hint, ..Self::refused(reason) },
            RepositoryError::NoGit(reason) => {
                Self::refused(reason).hint("install a current git, or remove isolation from the config")
            }
            error => Self::refused(error.to_string()),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let hint = match &error {
            StoreError::NotClaimable { id, .. } => Some(format!("`brigade why {}`", id.0)),
            StoreError::NoTask(MissingTask { id, quarantined: Some(task) }) => Some(restore_hint(*id, &task.place)),
            StoreError::NoTask(_) => Some("`brigade tasks`".to_owned()),
            StoreError::InvalidTask { id, .. } => {
                Some(format!("repair .tasks/{} by hand, or remove it", id.file_name()))
            }
            StoreError::UnknownBlocker { .. } => Some("pass task numbers, such as --after 3,4".to_owned()),
            StoreError::AlreadyLed { .. } => Some("`brigade team` shows it, `brigade stop` stops it".to_owned()),
            StoreError::UnknownRecipient { name, recipients: known } => {
                did_you_mean(name, known.iter().map(String::as_str))
            }
            StoreError::Refused(refusal) => refusal_hint(refusal),
            StoreError::Io { source, place, .. } if SymbolicLinkError::is_cause_of(source) => Some(link_hint(place)),
            StoreError::Io { source, .. } if LockTimeout::in_error(source).is_some() => {
                Some("end the process that holds the lock, or wait for it; `brigade stop` needs no lock".to_owned())
            }
            StoreError::Io { source, .. } => write_hint(source.kind()).map(str::to_owned),
            _ => None,
        };
        let exit = match &error {
            StoreError::AlreadyLed { .. } => Exit::AlreadyLed,
            StoreError::Io { source, .. } if SymbolicLinkError::is_cause_of(source) => Exit::Usage,
            _ => Exit::Unfinished,
        };
        let message = match &error {
            StoreError::UnknownBlocker { task: TaskId(0), blocker } => {
                format!("cannot add the task: it waits for {blocker}, which does not exist")
            }
            other => other.to_string(),
        };
        Self { hint, ..Self::new(message, exit) }
    }
}

/// Returns the hint for a file that cannot be written.
fn write_hint(error: ErrorKind) -> Option<&'static str> {
    match error {
        ErrorKind::PermissionDenied => Some("check its owner and mode"),
        ErrorKind::ReadOnlyFilesystem => Some(
            "a command that a team runs cannot write the team's control files: run this one in a terminal; if it runs in one, mount the file \
             system for writing",
        ),
        _ => None,
    }
}

fn link_hint(path: &str) -> String {
    let other = if path.ends_with(CONFIG_FILE) { ", or pass --config FILE --workspace DIR" } else { "" };
    format!("`rm {}`{other}", shell_word(path))
}

fn refusal_hint(refusal: &TaskError) -> Option<String> {
    match refusal {
        TaskError::Stale { task, status: TaskStatus::Pending, .. } => {
            Some(format!("claim it again: `brigade tasks claim {}`", task.0))
        }
        TaskError::Stale { task, .. } => Some(format!("`brigade tasks show {}`", task.0)),
        TaskError::NotHolder { task, owner, .. } => Some(format!(
            "`brigade tasks show {}` shows the attempt that {} must pass; a person can add --force",
            task.0,
            one_line(owner)
        )),
        TaskError::NeedsForce { .. } => Some("add --force to override the holder".to_owned()),
        TaskError::WrongStatus { task, action, status, .. } => match status {
            TaskStatus::Pending if action.is_for_holder() => {
                Some(format!("`brigade tasks claim {} --as NAME`", task.0))
            }
            TaskStatus::Completed => Some(format!("`brigade tasks reopen {}`", task.0)),
            TaskStatus::Failed => Some(format!("`brigade tasks retry {}`", task.0)),
            TaskStatus::Pending | TaskStatus::InProgress => None,
            TaskStatus::Unknown => Some(format!("`brigade why {}`", task.0)),
        },
        TaskError::NotAllowed { .. } => None,
    }
}
