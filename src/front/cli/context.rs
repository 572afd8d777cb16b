//! The context of a command: its workspace and its output.

use std::io;
use std::time::Duration;

use super::error::{CliError, CliResult};
use super::location::{self, Global};
use super::output::{CommandAnswer, Output};
use super::surface::Surface;
use crate::api::Workspace;
use crate::front::repl::screen::Printer;
use crate::front::text::commands::{Commands, Hint};
use crate::front::text::lines::wrap;
use crate::platform::threads;
use crate::ports::WaitLimit;

/// Spaces before the further lines of a note.
const NOTE_INDENT: usize = 4;

/// The workspace and the output of one command.
#[derive(Debug, Clone)]
pub struct Context {
    /// The workspace of the command, through which it asks and orders everything.
    pub workspace: Workspace,
    /// The output of the command.
    pub output: Output,
    surface: Surface,
}

impl Context {
    /// Returns the context of the first command.
    ///
    /// # Errors
    /// The current folder does not exist.
    pub fn new(global: Global, output: Output) -> CliResult<Self> {
        let workspace = Workspace::new(location::read(global)?, WaitLimit::for_command());
        Ok(Self { workspace, output, surface: Surface::Streams })
    }

    /// Returns a context for a command in an interactive session. It uses the current width of the terminal, and hints show slash commands.
    pub fn in_repl(&self, screen: &Printer) -> Self {
        let output = Output::new(false, self.output.color);
        let surface = Surface::Repl(screen.clone());
        Self { workspace: self.workspace.with_wait_limit(WaitLimit::default()), output, surface }
    }

    /// Returns a context for a command whose answer `brigade watch` shows in this many columns.
    pub fn in_watch(&self, columns: usize) -> Self {
        let output = Output { columns, json: false, ..self.output };
        Self { surface: Surface::Watch, ..self.for_next_command(output) }
    }

    /// The place where the output of the command appears.
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// Returns a context for the next command, with this output.
    pub fn for_next_command(&self, output: Output) -> Self {
        let workspace = self.workspace.with_wait_limit(WaitLimit::for_command());
        Self { workspace, output, surface: self.surface.clone() }
    }

    /// Returns true for a command in an interactive session.
    pub fn is_in_repl(&self) -> bool {
        matches!(self.surface, Surface::Repl(_))
    }

    /// Prints a text immediately. A closed pipe is an error, because the text would be lost.
    ///
    /// # Errors
    /// Stdout or the terminal cannot be written.
    pub fn print_required(&self, text: &str) -> io::Result<()> {
        self.surface.print_required(&self.output, text)
    }

    /// Prints a line to stderr, or to the screen of the interactive session. It is not part of the answer, and `brigade watch` does not
    /// show it.
    pub fn note(&self, text: &str) {
        self.surface.note(&self.output, &wrap(text, self.output.on_stderr().columns, NOTE_INDENT));
    }

    /// The commands as the reader of the output types them.
    pub fn commands(&self) -> Commands {
        match &self.surface {
            Surface::Repl(_) => Commands::Repl,
            _ => Commands::Shell(location::flags(&self.workspace.location)),
        }
    }

    /// Returns an answer as coloured text.
    ///
    /// # Errors
    /// It was an error, which is returned as coloured text.
    pub fn text_of(&self, answer: CliResult<CommandAnswer>) -> Result<String, String> {
        let (output, commands) = (&self.output, self.commands());
        answer.map(|answer| output.render(&answer, &commands)).map_err(|error| output.render_error(&error, &commands))
    }

    /// Returns the text of a hint.
    pub fn hint(&self, hint: impl Into<Hint>) -> String {
        self.commands().text(&hint.into())
    }
}

/// The longest time that a command waits at its end for its threads.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// Runs a future on one thread: commands need no parallel work and start faster this way.
pub fn on_one_thread<T>(command: impl Future<Output = CliResult<T>>) -> CliResult<T> {
    let runtime = threads::runtime_on_this_thread().map_err(|error| CliError::not_started(&error))?;
    let outcome = runtime.block_on(command);
    // `brigade watch` can end while it reads a long text.
    runtime.shutdown_timeout(END_TIME_MAX);
    outcome
}
