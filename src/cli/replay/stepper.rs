//! Steps through a run at a terminal: shows one moment, then reads a line that chooses the next one.

use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use super::Stepper;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::output::{Color, CommandAnswer, Output};
use crate::cli::run_selection::Moment;
use crate::domain::event::EventKind;
use crate::domain::replay::ReplayState;
use crate::domain::task::TaskId;
use crate::ui::replay::render;
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

impl Stepper<'_> {
    /// Steps through the run until the person quits.
    pub(super) fn step_through(&self, context: &Context) -> CliResult<CommandAnswer> {
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
        Ok(CommandAnswer { text: String::new(), notes: Vec::new(), exit: Exit::Done })
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
            let (row, changes) = (task.and_then(|task| state.tasks.get(&task).cloned()), state.board_changes);
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
