//! `brigade tasks add`.

use super::bulk::waiting_notes;
use super::show::document;
use crate::cli::arguments::{
    ActingAs, acting_name, number, subject, task_id, text_or_stdin, whole_number, word, words,
};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::CommandAnswer;
use crate::domain::task::{NewTask, TaskId};
use crate::domain::transition::Actor;
use crate::stores::workspace::OpenMode;
use crate::ui::text::one_line;

/// Add a task
#[derive(Debug, clap::Args)]
pub struct Add {
    /// The subject, in one line
    #[arg(value_parser = subject)]
    subject: String,
    /// The full description; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Tasks that must be completed first, such as 3,4
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = task_id)]
    after: Vec<TaskId>,
    /// Roles or capabilities; the teammate needs one of them, such as coder,rust
    #[arg(long, value_name = "WORDS", value_delimiter = ',', value_parser = word)]
    requires: Vec<String>,
    /// A command that must exit 0 before the task is completed
    #[arg(long, value_name = "COMMAND")]
    verify: Option<String>,
    /// A whole number such as 5 or -1; higher numbers go first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = whole_number)]
    priority: i64,
    /// Failed attempts after which the task fails, 1 or more [default: 3]
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    max_attempts: Option<u32>,
    /// Reserve the task for this teammate
    #[arg(long = "for", value_name = "NAME")]
    owner: Option<String>,
    /// Add it as this teammate [default: a person]
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
}

impl Add {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let owner = self.owner.as_deref().map(acting_name).transpose()?;
        let by = ActingAs { name: self.by, ..ActingAs::default() }.actor()?;
        let task = NewTask {
            subject: self.subject,
            description: text_or_stdin(self.description)?,
            blocked_by: self.after,
            requires: words(&self.requires),
            verify: self.verify.filter(|command| !command.trim().is_empty()),
            priority: self.priority,
            max_attempts: self.max_attempts,
            owner: owner.map(|owner| owner.to_string()),
            ..NewTask::default()
        };
        add(context, task, &by).await
    }
}

/// Adds a task.
pub(in crate::cli) async fn add(context: &Context, task: NewTask, by: &Actor) -> CliResult<CommandAnswer> {
    let board = context.board(OpenMode::Write).await?;
    let mut created = board.create(by, vec![task], false).await?;
    let Some(task) = created.pop() else {
        return Err(CliError::refused("the board took no task"));
    };
    let answer =
        context.output.answer(&document(&task), || format!("added {} {}\n", task.id, one_line(&task.subject)))?;
    Ok(answer.notes(waiting_notes(context, std::iter::once(&task)).await))
}
