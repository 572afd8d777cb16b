//! `brigade replay`.

use std::io::IsTerminal as _;

use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use serde_json::json;
use serde_json::value::RawValue;

use super::arguments::task_id;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::{Color, CommandAnswer, Output};
use super::tasks::show::document;
use crate::api::run::{self, Moment, Run, RunChoice};
use crate::domain::log::event::EventKind;
use crate::domain::log::replay::ReplayState;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::ui::replay::{ReplayPosition, board, changes, event_text, render, team, unknown};
use crate::ui::style::{DIM, WARN, paint};

/// The assumed height of a terminal with unknown size, in lines.
const LINES_DEFAULT: usize = 24;
/// Clears the screen and moves the cursor to its first position.
const CLEAR: &str = "\x1b[2J\x1b[H";

const HELP: &str = "\
n [COUNT]          the next event, or COUNT events forward
p [COUNT]          the previous event, or COUNT events back
b, B               the next or the previous change of the board
#7, #-7            the next or the previous event at which task 7 changed
NUMBER, first, latest, 0:42, 10m, 2026-01-31T12:00:00Z
                   that event, or the last one up to that time
Enter              repeat the last n, p, b, B, #7 or #-7; else the next event
q                  quit";

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

impl Replay {
    /// Shows a moment, or steps through the run.
    ///
    /// # Errors
    /// The run or the moment does not exist, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let RunChoice::Nth(nth) = self.run else {
            return Err(CliError::usage("cannot replay all runs: choose one").hint("`brigade log --runs` lists them"));
        };
        let run = &run::nth(&context.workspace, nth).await?;
        let replay = RunReplay { run, now: context.workspace.now(), task: self.task };
        if self.from.is_some() || self.to.is_some() {
            let from = self.from.unwrap_or(Moment::First).index_in(run, replay.now)?;
            let to = self.to.unwrap_or(Moment::Latest).index_in(run, replay.now)?;
            return replay.show_range(context, from, to);
        }
        let is_interactive = self.at.is_none() && !context.output.json && !context.is_in_repl();
        if is_interactive && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return replay.step_through(context);
        }
        let index = self.at.unwrap_or(Moment::Latest).index_in(run, replay.now)?;
        replay.show_moment(context, replay.last_change_of_task(index))
    }
}

/// Shows the moments of one run.
struct RunReplay<'a> {
    run: &'a Run,
    now: UnixMs,
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
            let text = render(&self.position(), event, &before, &after, columns, usize::MAX);
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
                changes.iter().for_each(|change| text += &crate::ui::text::indented(change, columns, 9));
            }
            steps.push(json!({ "event": event, "changes": changes }));
        }
        let is_empty = steps.is_empty();
        let answer = context.output.answer(&steps, || text)?;
        Ok(if is_empty { answer.note("no event in this range matches") } else { answer })
    }

    /// Steps through the run until the person quits.
    fn step_through(&self, context: &Context) -> CliResult<CommandAnswer> {
        let terminal_error =
            |error: &dyn std::fmt::Display| CliError::refused(format!("cannot use the terminal: {error}"));
        let config = Config::builder().auto_add_history(true).build();
        let mut editor: Editor<(), MemHistory> =
            Editor::with_history(config, MemHistory::new()).map_err(|error| terminal_error(&error))?;
        let mut index = self.last_change_of_task(self.first_complete_index());
        let mut last_move = String::new();
        let mut message = "Enter: the next event; ?: help; q: quit".to_owned();
        loop {
            self.show(context, index, &message).map_err(|error| terminal_error(&error))?;
            message.clear();
            let typed = match editor.readline(&format!("{}/{}> ", self.run.events[index].seq, self.run.span().1)) {
                Ok(typed) => typed,
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => break,
                Err(error) => return Err(terminal_error(&error)),
            };
            // Enter repeats the last move.
            let typed = if typed.trim().is_empty() { last_move.clone() } else { typed };
            match StepCommand::parse(&typed) {
                Ok(StepCommand::Quit) => break,
                Ok(StepCommand::Help) => HELP.clone_into(&mut message),
                Ok(command) => match self.target(index, command) {
                    Ok(next) => {
                        last_move = if matches!(command, StepCommand::By(_) | StepCommand::ToChange { .. }) {
                            typed
                        } else {
                            String::new()
                        };
                        if !matches!(command, StepCommand::By(1) | StepCommand::To(_)) {
                            message = format!("Enter: `{}` again", last_move.trim());
                        }
                        index = next;
                    }
                    Err(reason) => message = reason,
                },
                Err(reason) => message = reason,
            }
        }
        Ok(CommandAnswer::text(String::new()))
    }

    /// The index of the first event at which the board and the team are completely known, or 0.
    fn first_complete_index(&self) -> usize {
        let mut state = ReplayState::default();
        let mut events = self.run.events.iter();
        let is_known = |event| {
            state.apply(event);
            state.is_complete()
        };
        events.position(is_known).unwrap_or(0)
    }

    fn show(&self, context: &Context, index: usize, message: &str) -> std::io::Result<()> {
        let output = Output::new(false, if context.output.color == Color::Never { Color::Never } else { Color::Auto });
        let height = terminal_size::terminal_size().map_or(LINES_DEFAULT, |(_, height)| usize::from(height.0));
        let (before, after) = self.states_around(index);
        let lines_left = height.saturating_sub(message.lines().count() + 2);
        let moment = render(&self.position(), &self.run.events[index], &before, &after, output.columns, lines_left);
        let style = if message.contains('\n') { DIM } else { WARN };
        let message: String = message.lines().map(|line| paint(style, line) + "\n").collect();
        output.print(&format!("{CLEAR}{moment}{message}"))
    }

    /// The index of the event that `command` leads to, or the reason why there is none.
    fn target(&self, index: usize, command: StepCommand) -> Result<usize, String> {
        let last = self.run.events.len() - 1;
        match command {
            StepCommand::By(steps) => {
                let by = usize::try_from(steps.unsigned_abs()).unwrap_or(usize::MAX);
                match if steps < 0 { index.saturating_sub(by) } else { index.saturating_add(by).min(last) } {
                    same if same == index && steps != 0 => Err(self.no_event_message(steps < 0)),
                    next => Ok(next),
                }
            }
            StepCommand::ToChange { task, back } => {
                let indexes = self.changes_of(task);
                let found = if back {
                    indexes.iter().rev().find(|candidate| **candidate < index)
                } else {
                    indexes.iter().find(|candidate| **candidate > index)
                };
                let what = task.map_or_else(|| "the board".to_owned(), |task| task.to_string());
                let side = if back { "before" } else { "after" };
                found.copied().ok_or_else(|| format!("{what} does not change {side} this event"))
            }
            StepCommand::To(moment) => moment.index_in(self.run, self.now).map_err(|error| error.message),
            StepCommand::Help | StepCommand::Quit => Ok(index),
        }
    }

    fn no_event_message(&self, back: bool) -> String {
        if back {
            return "this is the first stored event".to_owned();
        }
        match self.run.events.last().map(|event| &event.kind) {
            Some(EventKind::TeamStopped { .. }) => "this is the last event of the run".to_owned(),
            _ => "this is the last event so far; start `brigade replay` again to read newer ones".to_owned(),
        }
    }

    /// Returns the indexes of the events that changed this task, or the board if `task` is `None`.
    fn changes_of(&self, task: Option<TaskId>) -> Vec<usize> {
        let mut state = ReplayState::default();
        let mut indexes = Vec::new();
        for (index, event) in self.run.events.iter().enumerate() {
            let row = task.and_then(|task| state.tasks.get(&task).cloned());
            let changes = state.board_changes;
            state.apply(event);
            let is_change = match task {
                Some(task) => row.as_ref() != state.tasks.get(&task),
                None => changes != state.board_changes,
            };
            if is_change {
                indexes.push(index);
            }
        }
        indexes
    }
}

/// A typed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepCommand {
    /// Moves this many events forward, or back if negative.
    By(i64),
    /// Moves to the next or the previous change of this task, or of the board.
    ToChange { task: Option<TaskId>, back: bool },
    /// Moves to a moment.
    To(Moment),
    /// Shows the help.
    Help,
    /// Ends the replay.
    Quit,
}

impl StepCommand {
    fn parse(typed: &str) -> Result<Self, String> {
        let typed = typed.trim();
        let (word, rest) = typed.split_once(char::is_whitespace).unwrap_or((typed, ""));
        let count = || {
            if rest.is_empty() {
                Ok(1)
            } else {
                rest.trim().parse::<i64>().map_err(|_| format!("expected a number of events instead of `{rest}`"))
            }
        };
        Ok(match word {
            "" | "n" | "next" => Self::By(count()?),
            "p" | "previous" => Self::By(-count()?),
            "b" => Self::ToChange { task: None, back: false },
            "B" => Self::ToChange { task: None, back: true },
            "?" | "h" | "help" => Self::Help,
            "q" | "quit" | "exit" => Self::Quit,
            _ => match word.strip_prefix('#') {
                Some(id) => {
                    let back = id.starts_with('-');
                    let id = id
                        .trim_start_matches('-')
                        .parse()
                        .map_err(|_| "expected a task number such as #7".to_owned())?;
                    Self::ToChange { task: Some(TaskId(id)), back }
                }
                None => Self::To(typed.parse().map_err(|error| format!("{error}; ? shows the help"))?),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_step_input_parses_to_target() {
        assert_eq!(StepCommand::parse(""), Ok(StepCommand::By(1)));
        assert_eq!(
            (StepCommand::parse("n 5"), StepCommand::parse(" p ")),
            (Ok(StepCommand::By(5)), Ok(StepCommand::By(-1)))
        );
        assert_eq!(StepCommand::parse("#7"), Ok(StepCommand::ToChange { task: Some(TaskId(7)), back: false }));
        assert_eq!(StepCommand::parse("#-7"), Ok(StepCommand::ToChange { task: Some(TaskId(7)), back: true }));
        assert_eq!(
            (StepCommand::parse("12"), StepCommand::parse("latest")),
            (Ok(StepCommand::To(Moment::Number(12))), Ok(StepCommand::To(Moment::Latest)))
        );
        for bad in ["n x", "#x", "nowhere"] {
            assert!(StepCommand::parse(bad).is_err(), "{bad}");
        }
    }
}
