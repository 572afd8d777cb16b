//! `brigade replay`.

use crate::api::Question;
use crate::front::text::commands::hint;
use serde_json::json;
use serde_json::value::RawValue;

use super::arguments::task_id;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use crate::api::run::{self, Moment, Run, RunChoice};
use crate::api::task::document;
use crate::domain::log::replay::ReplayState;
use crate::domain::task::TaskId;
use crate::front::text::replay::{ReplayPosition, board, render, team, unknown};

/// Show the board and the team as they were at any event of a run
///
/// Shows one moment, by default the latest, and the changes of its event. `brigade log` lists the events.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// Show this moment: an event number, `first`, `latest`, `0:42` (into the run), `10m` (ago), or `2026-01-31T12:00:00Z`
    #[arg(long, value_name = "MOMENT", default_value = "latest")]
    at: Moment,
    /// The run: 1 is the newest, 2 the one before; `brigade log --runs` lists them
    #[arg(long, value_name = "RUN", default_value = "1")]
    run: RunChoice,
    /// Show the last event up to the moment at which this task changed
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
}

impl Replay {
    /// Shows a moment.
    ///
    /// # Errors
    /// The run or the moment does not exist, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let RunChoice::Nth(nth) = self.run else {
            return Err(
                CliError::usage("cannot replay all runs: choose one").hint(hint![Question::Runs, " lists them"])
            );
        };
        let run = run::nth(&context.workspace, nth).await?;
        let index = self.at.index_in(&run, context.workspace.now())?;
        let index = self.task.map_or(index, |task| last_change(&run, task, index));
        let before = ReplayState::of(&run.events[..index]);
        let mut after = before.clone();
        let event = &run.events[index];
        after.apply(event);
        let (first, last) = run.span();
        let position =
            ReplayPosition { run: run.number, team: run.team().unwrap_or("a team"), began: run.began(), last };
        let tasks: Vec<Option<Box<RawValue>>> = board(&after).tasks.values().map(|task| document(task)).collect();
        let shown = json!({
            "run": {
                "run": run.number, "team": position.team, "began": run.began().to_iso(), "first": first, "last": last,
            },
            "event": event, "team": team(&after, position.team), "tasks": tasks, "spoiled": after.invalid_files,
            "unknown": unknown(&after),
        });
        context.output.answer(&shown, || render(&position, event, &before, &after, context.output.columns))
    }
}

/// The index of the last event up to `last` at which the task changed.
fn last_change(run: &Run, task: TaskId, last: usize) -> usize {
    let mut state = ReplayState::default();
    let mut found = last;
    for (index, event) in run.events.iter().enumerate().take(last + 1) {
        let before = state.tasks.get(&task).cloned();
        state.apply(event);
        if state.tasks.get(&task) != before.as_ref() {
            found = index;
        }
    }
    found
}
