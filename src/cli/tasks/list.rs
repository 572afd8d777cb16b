//! `brigade tasks` and `brigade tasks list`.

use super::show::document;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::output::Answer;
use crate::domain::graph::{is_blocked, unfinished_blockers};
use crate::domain::task::{Task, TaskStatus};
use crate::ports::{Board as _, BoardView};
use crate::stores::open::Purpose;
use crate::ui::style::{DIM, paint};
use crate::ui::tasks::{self, Look};

/// List the tasks
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only those that stand so: pending (blocked ones too), blocked, in_progress, completed, failed
    #[arg(long, value_parser = standing_parser(), hide_possible_values = true)]
    status: Option<Standing>,
    /// Only those of this owner
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Only those that wait for nothing: pending, unblocked, not backing off
    #[arg(long)]
    ready: bool,
}

/// What `--status` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Status(TaskStatus),
    Blocked,
}

impl Standing {
    fn is_of(self, task: &Task, view: &BoardView) -> bool {
        match self {
            Self::Status(status) => task.status == status,
            Self::Blocked => is_blocked(task, view),
        }
    }
}

fn standing_parser() -> impl clap::builder::TypedValueParser<Value = Standing> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let words = TaskStatus::ALL.map(TaskStatus::as_str).into_iter().chain(["blocked"]);
    PossibleValuesParser::new(words)
        .map(|word| TaskStatus::from_word(&word).map_or(Standing::Blocked, Standing::Status))
}

/// Reads a status.
pub(super) fn status_parser() -> impl clap::builder::TypedValueParser<Value = TaskStatus> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(TaskStatus::ALL.map(TaskStatus::as_str))
        .map(|word| TaskStatus::from_word(&word).unwrap_or(TaskStatus::Pending))
}

/// Names are unique ignoring case.
fn is_owner(task: &Task, name: &str) -> bool {
    task.owner.as_deref().is_some_and(|owner| owner.eq_ignore_ascii_case(name))
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
            .filter(|task| self.status.is_none_or(|status| status.is_of(task, &view)))
            .filter(|task| self.owner.as_ref().is_none_or(|owner| is_owner(task, owner)))
            .filter(|task| !self.ready || is_ready(task))
            .collect();
        let answer = if context.output.json {
            let documents: Vec<_> = chosen.iter().map(|task| document(task)).collect();
            context.output.answer(&documents, String::new)?
        } else {
            let live = context.live_workers(&view);
            let approvals = if chosen.iter().any(|task| task.status == TaskStatus::InProgress) {
                let book = context.stores(Purpose::Look).await?.requests.all().await?;
                book.open_approvals().cloned().collect()
            } else {
                Vec::new()
            };
            let look = Look { view: &view, live_workers: live.as_ref(), approvals: &approvals, now };
            let text = tasks::list(chosen.iter().copied(), &look, context.output.columns);
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
