//! The place where a run's output goes: the standard streams, the live view, or an interactive session.

use tokio::time::Instant;

use super::logging;
use super::output::Output;
use super::surface::Surface;
use crate::api::Question;
use crate::front::text::commands::{Commands, Hint, hint};
use crate::front::text::lines::wrap;

/// The place where a run's output goes.
#[derive(Debug)]
pub(super) struct Destination {
    /// The streams.
    pub output: Output,
    /// The commands as they are typed in the shell. In an interactive session they are slash commands instead.
    pub commands: Commands,
    /// The view on the terminal.
    pub surface: Surface,
    /// Set when the output could not be written: nothing more is printed.
    pub is_mute: bool,
    /// The time of the last output.
    pub printed_at: Instant,
}

impl Destination {
    /// Standard output, with these commands in hints.
    pub fn new(output: Output, commands: Commands) -> Self {
        Self { output, commands, surface: Surface::Streams, is_mute: false, printed_at: Instant::now() }
    }

    /// The commands as the reader at the present place types them.
    pub fn commands(&self) -> Commands {
        match &self.surface {
            Surface::Repl(_) => Commands::Repl,
            _ => self.commands.clone(),
        }
    }

    /// Prints a note beside the output.
    pub fn note(&self, note: impl Into<Hint>) {
        let text = wrap(&self.commands().text(&note.into()), self.output.columns, 2);
        self.surface.note(&self.output, &text);
    }

    /// Shows texts, notes and traces here from now on.
    pub fn set_surface(&mut self, surface: Surface) {
        logging::show_on(surface.clone());
        self.surface = surface;
    }

    /// Prints the text. After a write error it prints nothing more, and the team continues without output.
    pub fn print(&mut self, text: &str) {
        if text.is_empty() || self.is_mute {
            return;
        }
        self.printed_at = Instant::now();
        if let Err(error) = self.surface.print(&self.output, text) {
            self.is_mute = true;
            let cause = format!("cannot write the output: {error}; the team goes on, and ");
            self.note(hint![cause, Question::Log { task: None }, " shows its events"]);
        }
    }
}
