//! Stepping through a run at a terminal: a moment at a time, and a line in which the next one is chosen.

use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use super::Walk;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::output::{Answer, Color, Output};
use crate::cli::runs::Moment;
use crate::domain::event::Fact;
use crate::domain::replay::{Known, Replay as State};
use crate::domain::task::TaskId;
use crate::ui::replay::render;
use crate::ui::style::{DIM, WARN, paint};

/// How high a terminal is taken for that does not say.
const LINES_DEFAULT: usize = 24;
/// Clears the screen and goes to its beginning.
const CLEAR: &str = "\x1b[2J\x1b[H";

const HELP: &str = "\
n [COUNT]          the next event, or so many on
p [COUNT]          the event before, or so many back
b, B               the next change of the board, the one before
#7, #-7            the next event at which task 7 changed, the one before
NUMBER, first, latest, 0:42, 10m, 2026-01-31T12:00:00Z
                   that event, or the last one up to that time
Enter              the next event; after n, p, b, B, #7 and #-7 the same again
q                  end";

/// Where to go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Go {
    /// So many events on.
    By(i64),
    /// To where the board, or this task, changes next, or did before.
    ToChange { task: Option<TaskId>, back: bool },
    /// To a moment.
    To(Moment),
    /// Shows what there is.
    Help,
    /// Ends.
    Quit,
}

impl Go {
    fn parse(typed: &str) -> Result<Self, String> {
        let typed = typed.trim();
        let (word, rest) = typed.split_once(char::is_whitespace).unwrap_or((typed, ""));
        let count = || {
            if rest.is_empty() {
                Ok(1)
            } else {
                rest.trim().parse::<i64>().map_err(|_| format!("`{rest}` is no count"))
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
                    let id =
                        id.trim_start_matches('-').parse().map_err(|_| "tasks have numbers, such as #7".to_owned())?;
                    Self::ToChange { task: Some(TaskId(id)), back }
                }
                None => Self::To(typed.parse().map_err(|error| format!("{error}; ? says what else there is"))?),
            },
        })
    }
}

impl Walk<'_> {
    /// Steps through the run until the person has seen enough.
    pub(super) fn step_through(&self, context: &Context) -> CliResult<Answer> {
        let cannot = |error: &dyn std::fmt::Display| CliError::refused(format!("cannot use the terminal: {error}"));
        let config = Config::builder().auto_add_history(true).build();
        let mut lines: Editor<(), MemHistory> =
            Editor::with_history(config, MemHistory::new()).map_err(|error| cannot(&error))?;
        let mut at = self.back_to_task(self.beginning());
        let mut before = String::new();
        let mut said = "Enter: the next event; ?: what else there is; q: end".to_owned();
        loop {
            self.show(context, at, &said).map_err(|error| cannot(&error))?;
            said.clear();
            let typed = match lines.readline(&format!("{}/{}> ", self.run.events[at].seq, self.run.span().1)) {
                Ok(typed) => typed,
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => break,
                Err(error) => return Err(cannot(&error)),
            };
            // Enter does again what moved before.
            let typed = if typed.trim().is_empty() { before.clone() } else { typed };
            match Go::parse(&typed) {
                Ok(Go::Quit) => break,
                Ok(Go::Help) => HELP.clone_into(&mut said),
                Ok(go) => match self.go(at, go) {
                    Ok(next) => {
                        before = if matches!(go, Go::By(_) | Go::ToChange { .. }) { typed } else { String::new() };
                        if !matches!(go, Go::By(1) | Go::To(_)) {
                            said = format!("Enter: `{}` again", before.trim());
                        }
                        at = next;
                    }
                    Err(why) => said = why,
                },
                Err(why) => said = why,
            }
        }
        Ok(Answer { text: String::new(), notes: Vec::new(), exit: Exit::Done })
    }

    /// The first event at which all of board and team is known; the first one where there is none.
    fn beginning(&self) -> usize {
        let mut state = State::default();
        let mut events = self.run.events.iter();
        let is_known = |event| {
            state.take(event);
            state.known == Known::Wholly && state.team_is_known
        };
        events.position(is_known).unwrap_or(0)
    }

    fn show(&self, context: &Context, at: usize, said: &str) -> std::io::Result<()> {
        let output = Output::new(false, if context.output.color == Color::Never { Color::Never } else { Color::Auto });
        let height = terminal_size::terminal_size().map_or(LINES_DEFAULT, |(_, height)| usize::from(height.0));
        let (before, after) = self.around(at);
        let room = height.saturating_sub(said.lines().count() + 2);
        let moment = render(&self.place(), &self.run.events[at], &before, &after, output.columns, room);
        let style = if said.contains('\n') { DIM } else { WARN };
        let said: String = said.lines().map(|line| paint(style, line) + "\n").collect();
        output.print(&format!("{CLEAR}{moment}{said}"))
    }

    /// The place behind `go`, or why there is none.
    fn go(&self, at: usize, go: Go) -> Result<usize, String> {
        let last = self.run.events.len() - 1;
        match go {
            Go::By(steps) => {
                let by = usize::try_from(steps.unsigned_abs()).unwrap_or(usize::MAX);
                match if steps < 0 { at.saturating_sub(by) } else { at.saturating_add(by).min(last) } {
                    same if same == at && steps != 0 => Err(self.end(steps < 0)),
                    next => Ok(next),
                }
            }
            Go::ToChange { task, back } => {
                let places = self.changes_of(task);
                let found = if back {
                    places.iter().rev().find(|place| **place < at)
                } else {
                    places.iter().find(|place| **place > at)
                };
                let what = task.map_or_else(|| "the board".to_owned(), |task| task.to_string());
                let whence = if back { "before" } else { "after" };
                found.copied().ok_or_else(|| format!("{what} does not change {whence} this event"))
            }
            Go::To(moment) => moment.place(self.run, self.now).map_err(|error| error.message),
            Go::Help | Go::Quit => Ok(at),
        }
    }

    fn end(&self, back: bool) -> String {
        if back {
            return "this is the first event that is kept".to_owned();
        }
        match self.run.events.last().map(|event| &event.fact) {
            Some(Fact::TeamStopped { .. }) => "this is the last event of the run".to_owned(),
            _ => "this is the last event there was when it was read: brigade replay reads anew".to_owned(),
        }
    }

    /// The places at which the board changed, or this task.
    fn changes_of(&self, task: Option<TaskId>) -> Vec<usize> {
        let mut state = State::default();
        let mut places = Vec::new();
        for (place, event) in self.run.events.iter().enumerate() {
            let before = task.and_then(|task| state.tasks.get(&task).cloned());
            state.take(event);
            let is_other = match task {
                Some(task) => before.as_ref() != state.tasks.get(&task),
                None => State::tells_of_board(&event.fact),
            };
            places.extend(is_other.then_some(place));
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_says_where_to_go() {
        assert_eq!(Go::parse(""), Ok(Go::By(1)));
        assert_eq!((Go::parse("n 5"), Go::parse(" p ")), (Ok(Go::By(5)), Ok(Go::By(-1))));
        assert_eq!(Go::parse("#7"), Ok(Go::ToChange { task: Some(TaskId(7)), back: false }));
        assert_eq!(Go::parse("#-7"), Ok(Go::ToChange { task: Some(TaskId(7)), back: true }));
        assert_eq!(
            (Go::parse("12"), Go::parse("latest")),
            (Ok(Go::To(Moment::Number(12))), Ok(Go::To(Moment::Latest)))
        );
        for bad in ["n x", "#x", "wohin"] {
            assert!(Go::parse(bad).is_err(), "{bad}");
        }
    }
}
