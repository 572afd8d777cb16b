//! The error of a command: a message, a hint and an exit code.

use serde_json::json;

use super::exit::Exit;
use crate::api::{Next, Refusal, RefusalCode};
use crate::config::diagnostics::Problem;
use crate::domain::task::TaskId;
use crate::front::text::commands::{Commands, Hint};

/// An error for a person or for a program that reads JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The message, without the word "error".
    pub message: String,
    /// The next step, with the command to run.
    pub hint: Option<Hint>,
    /// The same, as data.
    pub next: Vec<Next>,
    /// The exit code.
    pub exit: Exit,
    /// The tasks that were changed before the error.
    pub done: Vec<TaskId>,
    /// The problems of a config or plan file. `message` has their headlines, and `hint` is that of the first.
    pub problems: Box<[Problem]>,
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

    fn new(message: String, exit: Exit) -> Self {
        Self { message, hint: None, next: Vec::new(), exit, done: Vec::new(), problems: Box::default() }
    }

    /// The command cannot start, because the system refuses a thread or an event queue.
    pub fn not_started(error: &std::io::Error) -> Self {
        let hint = "raise the limits for processes (`ulimit -u`) and open files (`ulimit -n`), or end other programs of this user";
        Self::refused(error.to_string()).hint(hint)
    }

    /// Adds a hint.
    pub fn hint(self, hint: impl Into<Hint>) -> Self {
        let hint = hint.into();
        Self { next: hint.steps(), hint: Some(hint), ..self }
    }

    /// Returns the error as one line of JSON.
    pub fn to_json(&self, commands: &Commands) -> String {
        let hint = self.hint.as_ref().map(|hint| commands.text(hint));
        let mut error = json!({ "message": self.message, "hint": hint, "code": self.exit as u8 });
        if !self.next.is_empty() {
            error["next"] = json!(self.next);
        }
        if !self.done.is_empty() {
            error["done"] = json!(self.done);
        }
        if !self.problems.is_empty() {
            error["errors"] = json!(self.problems);
        }
        json!({ "schema_version": 1, "error": error }).to_string()
    }
}

/// All errors that the engine's interface turns into a [`Refusal`], and refusals themselves.
impl<E> From<E> for CliError
where
    Refusal: From<E>,
{
    fn from(error: E) -> Self {
        let Refusal { code, message, next, done, problems } = Refusal::from(error);
        let exit = match code {
            RefusalCode::Invalid => Exit::Usage,
            RefusalCode::Refused => Exit::Unfinished,
            RefusalCode::AlreadyLed => Exit::AlreadyLed,
        };
        Self { message, hint: Hint::of_steps(&next), next, exit, done, problems: problems.into() }
    }
}
