//! The front ends that run commands.

use std::io;

use super::output::Output;
use super::repl::screen::Printer;
use crate::ui::text::wrap;

/// Spaces before the further lines of a note.
const NOTE_INDENT: usize = 4;

/// The part of the program that runs a command and shows its answer.
#[derive(Debug, Clone)]
pub enum FrontEnd {
    /// A command of the shell: the answer goes to stdout.
    Shell,
    /// A command that was typed in an interactive session: it appears on this screen.
    Repl(Printer),
    /// `brigade watch`, which shows the answer in a part of the terminal.
    Watch,
}

impl FrontEnd {
    /// Prints a text immediately. A closed pipe is an error, because the text would be lost.
    ///
    /// # Errors
    /// Stdout or the terminal cannot be written, or the front end is `brigade watch`, which prints no such texts.
    pub fn print_required(&self, output: &Output, text: &str) -> io::Result<()> {
        match self {
            Self::Repl(screen) if screen.print_and_wait(text) => Ok(()),
            Self::Repl(_) | Self::Watch => Err(io::Error::other("the terminal does not accept output")),
            Self::Shell => output.print_required(text),
        }
    }

    /// Prints a line to stderr, or to the screen of the interactive session. `brigade watch` does not show it.
    pub fn note(&self, output: &Output, text: &str) {
        match self {
            Self::Repl(screen) => screen.print(text),
            Self::Shell => output.note(&wrap(text, output.on_stderr().columns, NOTE_INDENT)),
            Self::Watch => {}
        }
    }
}
