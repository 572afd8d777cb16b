//! The only module that prints: data on stdout, notes and errors on stderr.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
pub use clap::ColorChoice as Color;
use serde::Serialize;

use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::footer;
use crate::domain::text::printable;
use crate::front::text::commands::{Commands, Hint};
use crate::front::text::lines::{WIDTH_UNBOUNDED, escape_json, wrap};
use crate::front::text::style::{BAD, BOLD, paint};

/// The smallest assumed width of a terminal, in columns.
const WIDTH_MIN: usize = 20;

/// The form of the output.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// True if the answer is JSON, for programs.
    pub json: bool,
    /// The choice of colours.
    pub color: Color,
    /// The most columns of a line on stdout.
    pub columns: usize,
}

/// The answer of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandAnswer {
    /// The text for stdout, or one line of JSON.
    pub text: String,
    /// Lines for stderr.
    pub notes: Vec<Hint>,
    /// The exit code.
    pub exit: Exit,
}

impl CommandAnswer {
    /// Returns an answer of this text, without notes.
    pub fn text(text: String) -> Self {
        Self { text, notes: Vec::new(), exit: Exit::Done }
    }

    /// Adds notes. With `--json` notes are not printed.
    pub fn notes(mut self, notes: impl IntoIterator<Item: Into<Hint>>) -> Self {
        self.notes.extend(notes.into_iter().map(Into::into));
        self
    }

    /// Adds a note.
    pub fn note(self, note: impl Into<Hint>) -> Self {
        self.notes([note])
    }

    /// Sets the exit code.
    pub fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }
}

#[derive(Serialize)]
struct Envelope<T> {
    schema_version: u32,
    data: T,
}

/// The width of a line: COLUMNS if it is set, else the terminal's width, else [`WIDTH_UNBOUNDED`].
fn columns() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let size = if io::stdout().is_terminal() { terminal_size::terminal_size() } else { None };
    let columns = match (set, size) {
        (Some(columns), _) if columns > 0 => columns,
        (_, Some((terminal_size::Width(columns), _))) => usize::from(columns),
        _ => WIDTH_UNBOUNDED,
    };
    columns.clamp(WIDTH_MIN, WIDTH_UNBOUNDED)
}

impl Output {
    /// The output for these flags.
    pub fn new(json: bool, color: Color) -> Self {
        Self { json, color, columns: columns() }
    }

    /// The same output, with lines for stderr: programs and files get whole lines.
    #[must_use]
    pub fn on_stderr(&self) -> Self {
        let columns = if io::stderr().is_terminal() { self.columns } else { WIDTH_UNBOUNDED };
        Self { columns, ..*self }
    }

    fn color_choice(&self) -> ColorChoice {
        match self.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        }
    }

    /// Returns true if stdout gets colours.
    pub fn has_colors(&self) -> bool {
        match self.color_choice() {
            ColorChoice::Auto => AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            choice => choice != ColorChoice::Never,
        }
    }

    /// Returns true if Markdown is rendered on stdout: on a terminal with colours. Otherwise texts are printed unchanged.
    pub fn renders_markdown(&self) -> bool {
        io::stdout().is_terminal() && self.has_colors()
    }

    /// Returns an answer: `data` as JSON for programs, `text` for people.
    ///
    /// # Errors
    /// The data cannot be written as JSON.
    pub fn answer<T: Serialize>(&self, data: &T, text: impl FnOnce() -> String) -> CliResult<CommandAnswer> {
        let text = if self.json {
            let line = serde_json::to_string(&Envelope { schema_version: 1, data });
            let line = line.map_err(|error| CliError::refused(format!("cannot write the answer as JSON: {error}")))?;
            escape_json(&line) + "\n"
        } else {
            text()
        };
        Ok(CommandAnswer::text(text))
    }

    /// Prints to stdout immediately. A closed pipe is not an error: the reader has read enough.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn print(&self, text: &str) -> io::Result<()> {
        match self.print_required(text) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    /// Prints to stdout immediately. A closed pipe is an error, because the text would be lost.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn print_required(&self, text: &str) -> io::Result<()> {
        // A stream that removes colours writes each line on its own.
        let text = if self.has_colors() { Cow::Borrowed(text) } else { Cow::Owned(strip_str(text).to_string()) };
        footer::print_above(|| {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        })
    }

    /// Prints a line to stderr.
    pub fn print_note(&self, text: &str) {
        // If stderr is closed, the note is lost.
        let _ = footer::print_above(|| writeln!(AutoStream::new(io::stderr().lock(), self.color_choice()), "{text}"));
    }

    /// Prints an answer and returns the exit code.
    pub fn print_answer(&self, answer: &CommandAnswer, commands: &Commands) -> Exit {
        if let Err(error) = self.print(&answer.text) {
            return self.print_error(&CliError::refused(format!("cannot write the output: {error}")), commands);
        }
        if !self.json {
            let columns = self.on_stderr().columns;
            answer.notes.iter().for_each(|note| self.print_note(&wrap(&commands.text(note), columns, 2)));
        }
        answer.exit
    }

    /// Prints an error and returns its exit code.
    pub fn print_error(&self, error: &CliError, commands: &Commands) -> Exit {
        self.print_note(self.on_stderr().render_error(error, commands).trim_end_matches('\n'));
        error.exit
    }

    /// Returns the answer and its notes as one text, for an interactive session.
    pub fn render(&self, answer: &CommandAnswer, commands: &Commands) -> String {
        let mut text = answer.text.clone();
        if !self.json {
            for note in &answer.notes {
                text += &wrap(&commands.text(note), self.columns, 2);
                text.push('\n');
            }
        }
        text
    }

    /// Returns the error as text: lines for people, JSON for programs.
    pub fn render_error(&self, error: &CliError, commands: &Commands) -> String {
        if self.json {
            return escape_json(&error.to_json(commands)) + "\n";
        }
        let render = |text: &str, hint: Option<&str>| {
            let report = labelled(BAD, "error:", text);
            // The other lines are what a command printed, or a part of a file. They must stay as they are.
            let (message, excerpt) = report.split_at(report.find('\n').unwrap_or(report.len()));
            format!("{}{excerpt}\n{}", wrap(message, self.columns, 2), self.hint_line(hint))
        };
        if error.problems.is_empty() {
            let hint = error.hint.as_ref().map(|hint| commands.text(hint));
            return render(&error.message, hint.as_deref());
        }
        error.problems.iter().map(|problem| render(&problem.report(), problem.hint.as_deref())).collect()
    }

    /// The hint of an error, with its newline. Empty if there is none.
    fn hint_line(&self, hint: Option<&str>) -> String {
        hint.map(|hint| wrap(&labelled(BOLD, "hint:", hint), self.columns, 2) + "\n").unwrap_or_default()
    }
}

fn labelled(style: Style, label: &str, text: &str) -> String {
    format!("{} {}", paint(style, label), printable(text))
}
