//! `brigade replay`.

mod stepper;

use std::io::IsTerminal as _;

use serde::Serialize;
use serde_json::value::RawValue;

use super::arguments::task_id;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::run_selection::{self, Moment, Run, RunChoice};
use super::tasks::show::document;
use crate::domain::event::{Event, InvalidFileSnapshot};
use crate::domain::replay::ReplayState;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::ui::replay::{ReplayPosition, board, changes, event_text, render, team, unknown};
use crate::ui::team::TeamView;

/// Show the board and the team as they were at any event of a run
///
/// On a terminal it steps through the run: Enter shows the next event, and `?` lists the keys. With --at, or without a terminal, it
/// shows one moment. With --from or --to it shows each event between them and its changes.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// Show this moment: an event number, `first`, `latest`, `0:42` (into the run), `10m` (ago), or `2026-01-31T12:00:00Z`
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

/// A moment of a run, for programs.
#[derive(Serialize)]
struct MomentDocument<'a> {
    run: RunDocument<'a>,
    event: &'a Event,
    team: TeamView,
    tasks: Vec<Option<Box<RawValue>>>,
    spoiled: &'a [InvalidFileSnapshot],
    /// The parts of the state that the log does not contain.
    unknown: Vec<String>,
}

#[derive(Serialize)]
struct RunDocument<'a> {
    run: usize,
    team: &'a str,
    began: String,
    first: u64,
    last: u64,
}

/// An event and its changes, for programs.
#[derive(Serialize)]
struct Step<'a> {
    event: &'a Event,
    changes: Vec<String>,
}

impl Replay {
    /// Shows a moment, or steps through the run.
    ///
    /// # Errors
    /// The run or the moment does not exist, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let RunChoice::Nth(nth) = self.run else {
            return Err(CliError::usage("cannot replay all runs: choose one").hint("`brigade log --runs` lists them"));
        };
        let run = &run_selection::nth(context, nth).await?;
        let stepper = Stepper { run, now: context.now(), task: self.task };
        if self.from.is_some() || self.to.is_some() {
            let from = self.from.unwrap_or(Moment::First).index_in(run, stepper.now)?;
            let to = self.to.unwrap_or(Moment::Latest).index_in(run, stepper.now)?;
            return stepper.show_range(context, from, to);
        }
        let is_interactive = self.at.is_none() && !context.output.json && !context.is_in_repl();
        if is_interactive && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return stepper.step_through(context);
        }
        let index = self.at.unwrap_or(Moment::Latest).index_in(run, stepper.now)?;
        stepper.show_moment(context, stepper.last_change_of_task(index))
    }
}

/// Shows the moments of one run.
struct Stepper<'a> {
    run: &'a Run,
    now: UnixMs,
    task: Option<TaskId>,
}

impl Stepper<'_> {
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
            let text = render(&self.position(), event, &before, &after, columns, usize::MAX);
            return context.output.answer(&(), || text);
        }
        let view = board(&after);
        let (first, last) = self.run.span();
        let name = self.position().team;
        let shown = MomentDocument {
            run: RunDocument { run: self.run.number, team: name, began: self.run.began().to_iso(), first, last },
            event,
            team: team(&after, name),
            tasks: view.tasks.values().map(|task| document(task)).collect(),
            spoiled: &after.invalid_files,
            unknown: unknown(&after),
        };
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
                changes.iter().for_each(|change| text += &crate::ui::text::indented(change, columns, 9));
            }
            steps.push(Step { event, changes });
        }
        let is_empty = steps.is_empty();
        let answer = context.output.answer(&steps, || text)?;
        Ok(if is_empty { answer.note("no event in this range matches") } else { answer })
    }
}
