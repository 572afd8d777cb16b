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
use crate::front::text::replay::{ReplayPosition, board, changes, event_text, render, team, unknown};

/// Show the board and the team as they were at any event of a run
///
/// Shows one moment, by default the latest. With --from or --to it shows each event between them and its changes.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// Show this moment: an event number, `first`, `latest`, `0:42` (into the run), `10m` (ago), or `2026-01-31T12:00:00Z` [default:
    /// latest]
    #[arg(long, value_name = "MOMENT", conflicts_with_all = ["from", "to"])]
    at: Option<Moment>,
    /// Show each event from this moment: an event number, `first`, `latest`, `0:42` (into the run), `10m` (ago), or
    /// `2026-01-31T12:00:00Z` [default: first]
    #[arg(long, value_name = "MOMENT")]
    from: Option<Moment>,
    /// Show each event up to this moment: an event number, `first`, `latest`, `0:42` (into the run), `10m` (ago), or
    /// `2026-01-31T12:00:00Z` [default: latest]
    #[arg(long, value_name = "MOMENT")]
    to: Option<Moment>,
    /// The run: 1 is the newest, 2 the one before; `brigade log --runs` lists them
    #[arg(long, value_name = "RUN", default_value = "1")]
    run: RunChoice,
    /// Only events at which this task changed
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
}

impl Replay {
    /// Shows a moment, or the events between two moments.
    ///
    /// # Errors
    /// The run or the moment does not exist, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let RunChoice::Nth(nth) = self.run else {
            return Err(
                CliError::usage("cannot replay all runs: choose one").hint(hint![Question::Runs, " lists them"])
            );
        };
        let run = &run::nth(&context.workspace, nth).await?;
        let replay = RunReplay { run, task: self.task };
        let now = context.workspace.now();
        if self.from.is_some() || self.to.is_some() {
            let from = self.from.unwrap_or(Moment::First).index_in(run, now)?;
            let to = self.to.unwrap_or(Moment::Latest).index_in(run, now)?;
            return replay.show_range(context, from, to);
        }
        let index = self.at.unwrap_or(Moment::Latest).index_in(run, now)?;
        replay.show_moment(context, replay.last_change_of_task(index))
    }
}

/// Shows the moments of one run.
struct RunReplay<'a> {
    run: &'a Run,
    task: Option<TaskId>,
}

impl RunReplay<'_> {
    fn position(&self) -> ReplayPosition<'_> {
        let team = self.run.team().unwrap_or("a team");
        ReplayPosition { run: self.run.number, team, began: self.run.began(), last: self.run.span().1 }
    }

    /// The states before and after the event with this index.
    fn states_around(&self, index: usize) -> (ReplayState, ReplayState) {
        let before = ReplayState::of(&self.run.events[..index]);
        let mut after = before.clone();
        after.apply(&self.run.events[index]);
        (before, after)
    }

    /// The index of the last event up to `last` at which the task changed. Without `--task` it is `last`.
    fn last_change_of_task(&self, last: usize) -> usize {
        let Some(task) = self.task else { return last };
        let mut state = ReplayState::default();
        let mut found = last;
        for (index, event) in self.run.events.iter().enumerate().take(last + 1) {
            let before = state.tasks.get(&task).cloned();
            state.apply(event);
            if state.tasks.get(&task) != before.as_ref() {
                found = index;
            }
        }
        found
    }

    fn show_moment(&self, context: &Context, index: usize) -> CliResult<CommandAnswer> {
        let (before, after) = self.states_around(index);
        let event = &self.run.events[index];
        let columns = context.output.columns;
        if !context.output.json {
            let text = render(&self.position(), event, &before, &after, columns);
            return context.output.answer(&(), || text);
        }
        let view = board(&after);
        let (first, last) = self.run.span();
        let name = self.position().team;
        let tasks: Vec<Option<Box<RawValue>>> = view.tasks.values().map(|task| document(task)).collect();
        let shown = json!({
            "run": {
                "run": self.run.number, "team": name, "began": self.run.began().to_iso(), "first": first, "last": last,
            },
            "event": event, "team": team(&after, name), "tasks": tasks, "spoiled": after.invalid_files,
            "unknown": unknown(&after),
        });
        context.output.answer(&shown, String::new)
    }

    fn show_range(&self, context: &Context, from: usize, to: usize) -> CliResult<CommandAnswer> {
        let mut state = ReplayState::of(&self.run.events[..from]);
        let began = self.run.began();
        let columns = context.output.columns;
        let mut steps = Vec::new();
        let mut text = String::new();
        for event in self.run.events.iter().take(to + 1).skip(from) {
            let before = state.clone();
            state.apply(event);
            if self.task.is_some_and(|task| before.tasks.get(&task) == state.tasks.get(&task)) {
                continue;
            }
            let changes = changes(&before, &state);
            if !context.output.json {
                text += &format!("{:>6} {}", event.seq, event_text(event, &state, began, columns.saturating_sub(7)));
                changes.iter().for_each(|change| text += &crate::front::text::lines::indented(change, columns, 9));
            }
            steps.push(json!({ "event": event, "changes": changes }));
        }
        let is_empty = steps.is_empty();
        let answer = context.output.answer(&steps, || text)?;
        Ok(if is_empty { answer.note("no event in this range matches") } else { answer })
    }
}
