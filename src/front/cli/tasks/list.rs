//! `brigade tasks` and `brigade tasks list`.

use crate::api::OrderForm;
use crate::api::task::{self, document, load_context};
use crate::domain::task::claim_queue::is_claimable;
use crate::domain::task::dependencies::is_blocked;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::text::units::count;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::commands::hint;
use crate::front::text::style::DIM;
use crate::front::text::tasks;
use crate::ports::BoardView;

/// List the tasks
#[derive(Debug, Default, clap::Args)]
pub struct List {
    /// Only tasks with this status; pending includes blocked
    #[arg(long, value_parser = status_filter_parser())]
    status: Option<StatusFilter>,
    /// Only tasks of this owner
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Only claimable tasks: pending, not blocked, no back-off
    #[arg(long)]
    ready: bool,
}

/// The value of `--status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusFilter {
    Status(TaskStatus),
    Blocked,
}

impl StatusFilter {
    fn matches(self, task: &Task, view: &BoardView) -> bool {
        match self {
            Self::Status(status) => task.status == status,
            Self::Blocked => is_blocked(task, view),
        }
    }
}

fn status_filter_parser() -> impl clap::builder::TypedValueParser<Value = StatusFilter> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let words = TaskStatus::OWN.map(TaskStatus::as_str).into_iter().chain(["blocked"]);
    PossibleValuesParser::new(words)
        .map(|word| TaskStatus::from_word(&word).map_or(StatusFilter::Blocked, StatusFilter::Status))
}

/// Parses a status that `tasks update` can set: all except `in_progress`, which only a claim sets.
pub(super) fn settable_status_parser() -> impl clap::builder::TypedValueParser<Value = TaskStatus> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let settable = TaskStatus::OWN.into_iter().filter(|status| *status != TaskStatus::InProgress);
    PossibleValuesParser::new(settable.map(TaskStatus::as_str))
        .map(|word| TaskStatus::from_word(&word).unwrap_or(TaskStatus::Pending))
}

/// Returns true if the task's owner has this name, ignoring case.
fn is_owner(task: &Task, name: &str) -> bool {
    task.owner.as_deref().is_some_and(|owner| owner.eq_ignore_ascii_case(name))
}

impl List {
    /// Returns true if an option selects tasks.
    pub(super) fn has_filter(&self) -> bool {
        self.status.is_some() || self.owner.is_some() || self.ready
    }

    pub(in crate::front) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let view = task::board(&context.workspace).await?;
        let now = context.workspace.now();
        let chosen: Vec<&Task> = view
            .tasks
            .values()
            .map(AsRef::as_ref)
            .filter(|task| self.status.is_none_or(|status| status.matches(task, &view)))
            .filter(|task| self.owner.as_ref().is_none_or(|owner| is_owner(task, owner)))
            .filter(|task| !self.ready || is_claimable(task, view.as_ref(), now))
            .collect();
        let answer = if context.output.json {
            let documents: Vec<_> = chosen.iter().map(|task| document(task)).collect();
            context.output.answer(&documents, String::new)?
        } else {
            let task_context = load_context(&context.workspace, &view).await?;
            let text = tasks::list(chosen.iter().copied(), &task_context, context.output.columns);
            let text = if chosen.is_empty() { String::new() } else { text };
            context.output.answer(&(), || text)?.notes(tasks::no_script_note(chosen.iter().copied(), &task_context))
        };
        let counts = match (view.tasks.len(), chosen.len()) {
            (0, _) => hint!["no tasks yet: ", OrderForm::AddTask, ", or ", OrderForm::ImportPlan],
            (all, 0) => format!("no task matches; the board has {}", count(all, "task")).into(),
            (all, chosen) if chosen < all => format!("{chosen} of {}", tasks::counts_text(&view)).into(),
            _ => tasks::counts_text(&view).into(),
        };
        Ok(answer.notes(tasks::invalid_file_warnings(&view)).note(counts.painted(DIM)))
    }
}
