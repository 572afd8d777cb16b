//! The only place that prints: data on stdout, notes and errors on stderr, colours where they are wanted.

use std::io::{self, ErrorKind, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use serde::Serialize;

use super::error::{CliError, CliResult};
use super::exit::Exit;
use crate::ui::style::{BAD, BOLD, paint};
use crate::ui::text::{WIDTH_UNBOUNDED, harmless, harmless_json, wrap};

/// Terminals are never taken for narrower than this.
const WIDTH_MIN: usize = 20;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    /// On terminals, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    fn choice(self) -> ColorChoice {
        match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
    }

    /// The same choice for clap's own texts.
    #[must_use]
    pub fn for_clap(self) -> clap::ColorChoice {
        match self {
            Self::Auto => clap::ColorChoice::Auto,
            Self::Always => clap::ColorChoice::Always,
            Self::Never => clap::ColorChoice::Never,
        }
    }
}

/// How and where output goes.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Whether it is for programs.
    pub json: bool,
    /// When to use colours.
    pub color: Color,
    /// How wide a line of stdout may be.
    pub columns: usize,
}

/// What a command has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// For stdout: text, or one line of JSON.
    pub text: String,
    /// For stderr, a line each.
    pub notes: Vec<String>,
    /// How the command ends.
    pub exit: Exit,
}

impl Answer {
    /// The same, with something to note besides; programs are not told.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The same, ending otherwise.
    #[must_use]
    pub fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }
}

#[derive(Serialize)]
struct Envelope<T> {
    schema_version: u32,
    data: T,
}

/// The width lines may have: COLUMNS where it is set, the terminal's where there is one, else no real bound.
fn columns() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let terminal = || {
        let size = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
        size.map(|(terminal_size::Width(columns), _)| usize::from(columns))
    };
    set.filter(|columns| *columns > 0).or_else(terminal).unwrap_or(WIDTH_UNBOUNDED).clamp(WIDTH_MIN, WIDTH_UNBOUNDED)
}

impl Output {
    /// Output as the flags have it.
    #[must_use]
    pub fn new(json: bool, color: Color) -> Self {
        Self { json, color, columns: columns() }
    }

    /// An answer with this data for programs, this text for people.
    ///
    /// # Errors
    /// When the data cannot be written as JSON.
    pub fn answer<T: Serialize>(&self, data: &T, text: impl FnOnce() -> String) -> CliResult<Answer> {
        let text = if self.json {
            let line = serde_json::to_string(&Envelope { schema_version: 1, data });
            let line = line.map_err(|error| CliError::refused(format!("cannot write the answer as JSON: {error}")))?;
            harmless_json(&line) + "\n"
        } else {
            text()
        };
        Ok(Answer { text, notes: Vec::new(), exit: Exit::Done })
    }

    /// Prints to stdout at once. A reader that went away is no error: it has read what it wanted.
    ///
    /// # Errors
    /// What the system says otherwise.
    pub fn print(&self, text: &str) -> io::Result<()> {
        passed_over(self.print_whole(text))
    }

    /// Prints to stdout at once what has to be read: a reader that went away is an error too.
    ///
    /// # Errors
    /// What the system says.
    pub fn print_whole(&self, text: &str) -> io::Result<()> {
        let mut out = AutoStream::new(io::stdout().lock(), self.color.choice());
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }

    /// Prints a line to stderr.
    pub fn note(&self, text: &str) {
        let mut out = AutoStream::new(io::stderr().lock(), self.color.choice());
        // There is nobody left to tell when stderr is closed.
        let _ = writeln!(out, "{text}");
    }

    /// Prints an answer and says how to end.
    #[must_use]
    pub fn deliver(&self, answer: &Answer) -> Exit {
        if let Err(error) = self.print(&answer.text) {
            return self.fail(&CliError::refused(format!("cannot write the output: {error}")));
        }
        if !self.json {
            answer.notes.iter().for_each(|note| self.note(note));
        }
        answer.exit
    }

    /// Prints an error and says how to end.
    #[must_use]
    pub fn fail(&self, error: &CliError) -> Exit {
        self.note(self.render_error(error).trim_end_matches('\n'));
        error.exit
    }

    /// An answer as one text with its notes, for a screen.
    #[must_use]
    pub fn render(&self, answer: &Answer) -> String {
        let notes = answer.notes.iter().filter(|_| !self.json);
        notes.fold(answer.text.clone(), |text, note| text + &wrap(note, self.columns, 2) + "\n")
    }

    /// An error as a text: lines for people, JSON for programs.
    #[must_use]
    pub fn render_error(&self, error: &CliError) -> String {
        if self.json {
            return error.to_json() + "\n";
        }
        let hint = error.hint.as_ref().map(|hint| format!("{} {}\n", paint(BOLD, "hint:"), harmless(hint)));
        format!("{} {}\n{}", paint(BAD, "error:"), harmless(&error.message), hint.unwrap_or_default())
    }
}

/// The outcome, with a closed pipe taken for a success.
fn passed_over(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
