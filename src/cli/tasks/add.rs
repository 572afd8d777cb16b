//! `brigade tasks add`.

use super::bulk::waiting_notes;
use super::show::document;
use crate::api::members;
use crate::cli::arguments::{ActingAs, acting_name, number, subject, task_id, text_or_stdin, whole_number};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::CommandAnswer;
use crate::domain::task::transition::{Actor, TaskEdit};
use crate::domain::task::{NewTask, TaskId};
use crate::domain::team::budget::TOKENS_MAX;
use crate::service::ServiceError;
use crate::service::task_creation::add_task;
use crate::stores::workspace::OpenMode;
use crate::ui::text::one_line;

/// The options that `add` and `update` share.
#[derive(Debug, clap::Args)]
pub struct TaskOptions {
    /// The full description; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Tasks that must be completed first, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    after: Vec<TaskId>,
    /// Roles or capabilities, such as coder,rust; the teammate needs one of them; "" for none
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    requires: Option<Vec<String>>,
    /// A command that must exit 0 before the task is completed; "" for none
    #[arg(long, value_name = "COMMAND")]
    verify: Option<String>,
    /// A whole number such as 5 or -1; higher numbers go first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    priority: Option<i64>,
    /// Failed attempts after which the task fails, 1 or more; 3 for a task added without it
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    max_attempts: Option<u32>,
    /// The tokens that all attempts may use together, such as 200000; 0 for the cap of the team
    #[arg(long, value_name = "N", value_parser = number::<u64>(0..=TOKENS_MAX))]
    tokens_max: Option<u64>,
    /// Reserve the task for this teammate; "" for all
    #[arg(long = "for", value_name = "NAME")]
    owner: Option<String>,
}

impl TaskOptions {
    /// Returns the options as an edit.
    pub(super) async fn edit(self, context: &Context) -> CliResult<TaskEdit> {
        if let Some(owner) = self.owner.as_deref().filter(|owner| !owner.is_empty()) {
            check_owner(owner, &members::all_names(&context.workspace).await)?;
        }
        Ok(TaskEdit {
            description: self.description.map(text_or_stdin).transpose()?,
            priority: self.priority,
            requires: self.requires,
            verify: self.verify,
            owner: self.owner,
            max_attempts: self.max_attempts,
            tokens_max: self.tokens_max,
            add_blocked_by: self.after,
            ..TaskEdit::default()
        })
    }
}

/// Refuses a reserved name, and a teammate's name in another case: claims compare names exactly. Other names may belong to agents of
/// other programs.
fn check_owner(owner: &str, teammates: &[String]) -> CliResult<()> {
    acting_name(owner)?;
    let meant = teammates.iter().find(|name| name.eq_ignore_ascii_case(owner));
    match meant.filter(|name| *name != owner) {
        Some(name) => {
            let message = format!("cannot reserve the task for `{owner}`: there is no such teammate");
            Err(CliError::refused(message).hint(format!("did you mean `{name}`?")))
        }
        None => Ok(()),
    }
}

/// Add a task
#[derive(Debug, clap::Args)]
pub struct Add {
    /// The subject, in one line
    #[arg(value_parser = subject)]
    subject: String,
    #[command(flatten)]
    options: TaskOptions,
    /// Add it as this teammate [default: you]
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
}

impl Add {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs { name: self.by, ..ActingAs::default() }.actor()?;
        let edit = self.options.edit(context).await?;
        let task = NewTask {
            subject: self.subject,
            description: edit.description.unwrap_or_default(),
            blocked_by: edit.add_blocked_by,
            requires: edit.requires.unwrap_or_default(),
            verify: edit.verify,
            priority: edit.priority.unwrap_or_default(),
            max_attempts: edit.max_attempts,
            tokens_max: edit.tokens_max.filter(|tokens_max| *tokens_max > 0),
            owner: edit.owner,
            ..NewTask::default()
        };
        add(context, task, &by).await
    }
}

/// Adds a task.
pub(in crate::cli) async fn add(context: &Context, task: NewTask, by: &Actor) -> CliResult<CommandAnswer> {
    let board = context.workspace.board(OpenMode::Write).await?;
    let task = add_task(board.as_ref(), by, task).await.map_err(|error| match error {
        ServiceError::Store(error) => error.into(),
        error => CliError::refused(format!("cannot add the task: {error}")),
    })?;
    let answer =
        context.output.answer(&document(&task), || format!("added {} {}\n", task.id, one_line(&task.subject)))?;
    Ok(answer.notes(waiting_notes(context, std::iter::once(&task)).await))
}
