//! The places where output appears.

use std::io::{self, Write as _};

use super::footer;
use super::output::Output;
use crate::front::repl::screen::Printer;

/// The place where the output of a command or of a run appears.
#[derive(Debug, Clone, Default)]
pub enum Surface {
    /// Texts on stdout, notes and traces on stderr, all above the lines of the live view.
    #[default]
    Streams,
    /// The screen of an interactive session, for texts, notes and traces.
    Repl(Printer),
    /// `brigade watch`, which shows the answer of a command in a part of the terminal, and nothing else.
    Watch,
}

impl Surface {
    /// Prints a text, which ends with a newline.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn print(&self, output: &Output, text: &str) -> io::Result<()> {
        match self {
            Self::Streams => return output.print(text),
            Self::Repl(screen) => screen.print(text),
            Self::Watch => {}
        }
        Ok(())
    }

    /// Prints a text immediately. A closed pipe is an error, because the text would be lost.
    ///
    /// # Errors
    /// Stdout or the terminal cannot be written, or `brigade watch` runs the command.
    pub fn print_required(&self, output: &Output, text: &str) -> io::Result<()> {
        match self {
            Self::Repl(screen) if screen.print_and_wait(text) => Ok(()),
            Self::Repl(_) | Self::Watch => Err(io::Error::other("the terminal does not accept output")),
            Self::Streams => output.print_required(text),
        }
    }

    /// Prints a note and a newline. If stderr is closed, the note is lost.
    pub fn note(&self, output: &Output, text: &str) {
        match self {
            Self::Streams => output.print_note(text),
            Self::Repl(screen) => screen.print(text),
            Self::Watch => {}
        }
    }

    /// Prints a trace with its newline. If stderr is closed, the trace is lost.
    pub fn trace(&self, line: &[u8]) {
        match self {
            Self::Streams => footer::print_above(|| drop(io::stderr().write_all(line))),
            Self::Repl(screen) => screen.print(&String::from_utf8_lossy(line)),
            Self::Watch => {}
        }
    }
}
