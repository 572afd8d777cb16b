//! The answer of a function that does not do what it was asked for.

use std::io::ErrorKind;

use schemars::JsonSchema;
use serde::Serialize;

use super::next::{Launch, Next, OrderForm};
use super::question::Question;
use crate::config::CONFIG_FILE;
use crate::config::diagnostics::{ConfigError, Problem};
use crate::domain::task::task_error::TaskError;
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::team::name::InvalidName;
use crate::domain::text::suggestion::did_you_mean;
use crate::domain::text::{one_line, shell_word};
use crate::embed::EmbedError;
use crate::ports::{MissingTask, RepositoryError, StoreError};
use crate::stores::file::links::SymbolicLinkError;
use crate::stores::fs::LockTimeout;
use crate::team::LaunchError;

/// The kind of a refusal, for a front end that maps it to an exit code or a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The request, the config or a plan is invalid. The same request fails again until it is corrected.
    Invalid,
    /// The state of the workspace does not permit the request, or a system call failed.
    Refused,
    /// A team runs in the workspace.
    AlreadyLed,
}

/// The reason why a request was not carried out, and the next step. Unless `done` names tasks, nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind.
    pub code: RefusalCode,
    /// The reason: `cannot X: reason`.
    pub message: String,
    /// The next steps: alternatives, or one after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
    /// The tasks that were changed before the refusal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<TaskId>,
    /// The problems of a config or plan file. `message` has their headlines, and `next` is that of the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub problems: Vec<Problem>,
}

/// The result of a question or an order.
pub type ApiResult<T> = Result<T, Refusal>;

impl Refusal {
    /// The request or the config is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(message.into(), RefusalCode::Invalid)
    }

    /// The request is refused, or a system call failed.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(message.into(), RefusalCode::Refused)
    }

    /// A config or plan file has these problems.
    pub fn problems(problems: Vec<Problem>) -> Self {
        let headlines: Vec<String> = problems.iter().map(Problem::headline).collect();
        let next = problems.first().and_then(|problem| problem.hint.clone());
        Self { next: next.into_iter().map(Next::from).collect(), problems, ..Self::invalid(headlines.join("\n")) }
    }

    fn new(message: String, code: RefusalCode) -> Self {
        Self { code, message, next: Vec::new(), done: Vec::new(), problems: Vec::new() }
    }

    /// Sets the next step.
    #[must_use]
    pub fn next(self, next: impl Into<Next>) -> Self {
        self.steps([next.into()])
    }

    /// Sets the next steps.
    #[must_use]
    pub fn steps(self, next: impl IntoIterator<Item = Next>) -> Self {
        Self { next: next.into_iter().collect(), ..self }
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Problems(problems) => Self::problems(problems),
            error => {
                let is_missing = matches!(error, ConfigError::NotFound(_));
                let init = is_missing.then(|| Launch::Init.into());
                Self::invalid(error.to_string()).steps(init.into_iter().chain(error.hint().map(Next::from)))
            }
        }
    }
}

impl From<EmbedError> for Refusal {
    fn from(error: EmbedError) -> Self {
        match error {
            EmbedError::Config(error) => error.into(),
            EmbedError::Plan(problems) => Self::problems(problems),
            EmbedError::Store(error) | EmbedError::Launch(LaunchError::Store(error)) => error.into(),
            EmbedError::Launch(LaunchError::Repository(error)) => Self { code: RefusalCode::Invalid, ..error.into() },
            EmbedError::Launch(LaunchError::Model { .. }) => Self::invalid(error.to_string()).next(Question::Doctor),
            EmbedError::Launch(LaunchError::GoalWithoutModel(_)) => {
                let hint = "set provider and model of the lead in the config, or launch with a plan";
                Self::invalid(error.to_string()).next(hint)
            }
            EmbedError::Launch(LaunchError::Program { reason, hint }) => Self::invalid(reason).next(hint),
            EmbedError::Guard(_) => Self::refused(error.to_string()),
            error => Self::invalid(error.to_string()),
        }
    }
}

impl From<InvalidName> for Refusal {
    fn from(error: InvalidName) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<RepositoryError> for Refusal {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::Unusable { reason, next } => Self::refused(reason).steps(next),
            RepositoryError::NoGit(reason) => {
                Self::refused(reason).next("install a current git, or remove isolation from the config")
            }
            error => Self::refused(error.to_string()),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let next = match &error {
            StoreError::NotClaimable { id, .. } => vec![Question::Why { task: Some(*id) }.into()],
            StoreError::NoTask(MissingTask { id, quarantined: Some(task) }) => {
                vec![restore_hint(*id, &task.place).into()]
            }
            StoreError::NoTask(_) => vec![Question::Tasks.into()],
            StoreError::InvalidTask { id, .. } => {
                vec![format!("repair .tasks/{} by hand, or remove it", id.file_name()).into()]
            }
            StoreError::UnknownBlocker { .. } => vec!["name tasks by their numbers, such as 3,4".into()],
            StoreError::AlreadyLed { .. } => vec![Question::Team.into(), OrderForm::Stop { now: false }.into()],
            StoreError::UnknownRecipient { name, recipients: known } => {
                did_you_mean(name, known.iter().map(String::as_str)).into_iter().map(Next::from).collect()
            }
            StoreError::Refused(refusal) => steps_after(refusal),
            StoreError::Io { source, place, .. } if SymbolicLinkError::is_cause_of(source) => {
                vec![link_hint(place).into()]
            }
            StoreError::Io { source, .. } if LockTimeout::in_error(source).is_some() => {
                let wait = "end the process that holds the lock, or wait for it";
                vec![wait.into(), OrderForm::Stop { now: false }.into()]
            }
            StoreError::Io { source, .. } => write_hint(source.kind()).into_iter().map(Next::from).collect(),
            _ => Vec::new(),
        };
        let code = match &error {
            StoreError::AlreadyLed { .. } => RefusalCode::AlreadyLed,
            StoreError::Io { source, .. } if SymbolicLinkError::is_cause_of(source) => RefusalCode::Invalid,
            _ => RefusalCode::Refused,
        };
        let message = match &error {
            StoreError::UnknownBlocker { task: TaskId(0), blocker } => {
                format!("cannot add the task: it waits for {blocker}, which does not exist")
            }
            other => other.to_string(),
        };
        Self { next, ..Self::new(message, code) }
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
    let other = if path.ends_with(CONFIG_FILE) { ", or name another config and another workspace" } else { "" };
    format!("`rm {}`{other}", shell_word(path))
}

fn steps_after(refusal: &TaskError) -> Vec<Next> {
    match refusal {
        TaskError::Stale { task, status: TaskStatus::Pending, .. } => {
            vec![OrderForm::Claim { task: Some(*task), by: None }.into()]
        }
        TaskError::Stale { task, .. } => vec![Question::Task { task: *task }.into()],
        TaskError::NotHolder { task, owner, .. } => {
            let attempt = format!("{} must name its attempt", one_line(owner));
            vec![attempt.into(), OrderForm::WithForce.into(), Question::Task { task: *task }.into()]
        }
        TaskError::NeedsForce { .. } => vec![OrderForm::WithForce.into()],
        TaskError::WrongStatus { task, action, status, .. } => match status {
            TaskStatus::Pending if action.is_for_holder() => {
                vec![OrderForm::Claim { task: Some(*task), by: None }.into()]
            }
            TaskStatus::Completed => vec![OrderForm::Reopen { tasks: vec![*task] }.into()],
            TaskStatus::Failed => vec![OrderForm::Retry { tasks: vec![*task] }.into()],
            TaskStatus::Pending | TaskStatus::InProgress => Vec::new(),
            TaskStatus::Unknown => vec![Question::Why { task: Some(*task) }.into()],
        },
        TaskError::NotAllowed { .. } => Vec::new(),
    }
}

/// Returns the hint for the file of task `id` that was set aside as `path`.
pub fn restore_hint(id: TaskId, path: &str) -> String {
    format!("correct it, then: `mv {} .tasks/{}`; or remove it to drop the task", shell_word(path), id.file_name())
}
