//! `brigade tasks` and `brigade tasks list`.

use super::show::document;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::output::Answer;
use crate::domain::graph::unfinished_blockers;
use crate::domain::task::{Task, TaskStatus};
use crate::ports::Board as _;
use crate::ui::style::{DIM, paint};
use crate::ui::tasks;

/// List the tasks
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only those that stand so: pending, in_progress, completed, failed
    #[arg(long, value_parser = status_parser(), hide_possible_values = true)]
    status: Option<TaskStatus>,
    /// Only those of this owner
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Only those that wait for nothing: pending, unblocked, not backing off
    #[arg(long)]
    ready: bool,
}

/// Reads a status.
pub(super) fn status_parser() -> impl clap::builder::TypedValueParser<Value = TaskStatus> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(TaskStatus::ALL.map(TaskStatus::as_str))
        .map(|word| TaskStatus::from_word(&word).unwrap_or(TaskStatus::Pending))
}

impl List {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let board = context.board_to_look_at()?;
        let view = board.view().await?;
        let now = context.now();
        let is_ready = |task: &Task| {
            task.status == TaskStatus::Pending
                && task.not_before.is_none_or(|until| until <= now)
                && unfinished_blockers(task, view.as_ref()).next().is_none()
        };
        let chosen: Vec<&Task> = view
            .tasks
            .values()
            .map(AsRef::as_ref)
            .filter(|task| self.status.is_none_or(|status| task.status == status))
            .filter(|task| self.owner.is_none() || task.owner == self.owner)
            .filter(|task| !self.ready || is_ready(task))
            .collect();
        let answer = if context.output.json {
            let documents: Vec<_> = chosen.iter().map(|task| document(task)).collect();
            context.output.answer(&documents, String::new)?
        } else {
            let text = tasks::list(chosen.iter().copied(), &view, now, context.output.columns);
            let text = if chosen.is_empty() { String::new() } else { text };
            context.output.answer(&(), || text)?
        };
        let tally = match (view.tasks.len(), chosen.len()) {
            (0, _) => "no tasks yet: brigade tasks add SUBJECT, or brigade tasks import FILE".to_owned(),
            (all, chosen) if chosen < all => format!("{chosen} of {}", tasks::tally(&view)),
            _ => tasks::tally(&view),
        };
        let answer = tasks::spoiled(&view).into_iter().fold(answer, Answer::note);
        Ok(answer.note(paint(DIM, &tally)))
    }
}
