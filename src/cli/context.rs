//! The context of a command: its location, its output and its stores.

use std::io;
use std::sync::{Arc, OnceLock};

use super::Global;
use super::commands::SHARED_COMMANDS;
use super::consent;
use super::error::CliResult;
use super::location::Location;
use super::output::Output;
use super::repl::screen::Printer;
use super::surface::Surface;
use crate::config::Durability;
use crate::domain::time::UnixMs;
use crate::embed::{STORE, SystemClock};
use crate::ports::{Board, Clock, Stores, WaitLimit};
use crate::service::messages::Outbox;
use crate::stores::workspace::{OpenMode, OpenOptions, OpenStores};
use crate::ui::command_form::CommandForm;
use crate::ui::text::wrap;

/// Spaces before the further lines of a note.
const NOTE_INDENT: usize = 4;

/// The location, the output and the stores of one command.
#[derive(Debug, Clone)]
pub struct Context {
    /// The folder, the config and the workspace of the command.
    pub location: Location,
    /// The output of the command.
    pub output: Output,
    surface: Surface,
    wait_limit: WaitLimit,
    durability: OnceLock<Durability>,
}

impl Context {
    /// Returns the context of the first command.
    ///
    /// # Errors
    /// The current folder does not exist.
    pub fn new(global: Global, output: Output) -> CliResult<Self> {
        Ok(Self {
            location: Location::new(global.config, global.workspace)?,
            output,
            surface: Surface::Streams,
            wait_limit: WaitLimit::for_command(),
            durability: OnceLock::new(),
        })
    }

    /// Returns a context for a command in an interactive session. It uses the current width of the terminal, and hints show slash commands.
    pub fn in_repl(&self, screen: &Printer) -> Self {
        let output = Output::new(false, self.output.color);
        let surface = Surface::Repl(screen.clone());
        Self { output, surface, wait_limit: WaitLimit::default(), durability: OnceLock::new(), ..self.clone() }
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
        Self { output, wait_limit: WaitLimit::for_command(), durability: OnceLock::new(), ..self.clone() }
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

    /// The current time.
    pub fn now(&self) -> UnixMs {
        SystemClock.now()
    }

    /// The outbox of the person's messages.
    pub fn outbox<'a>(&self, stores: &'a Stores) -> Outbox<'a> {
        Outbox { stores, now: self.now(), events: None }
    }

    /// The form of the commands in hints.
    pub fn command_form(&self) -> CommandForm {
        match &self.surface {
            Surface::Repl(_) => CommandForm::Repl(&SHARED_COMMANDS),
            _ => CommandForm::Shell(self.location.flags()),
        }
    }

    /// Returns a hint with its commands in this form.
    pub fn hint(&self, text: &str) -> String {
        self.command_form().render(text)
    }

    /// Opens the workspace. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn open(&self, mode: OpenMode) -> CliResult<OpenStores> {
        let wait_limit = self.wait_limit.clone();
        let folder = self.location.workspace()?;
        if mode == OpenMode::Write {
            consent::record_if_new(&folder);
        }
        let options = OpenOptions { mode, durability: self.durability(), clock: Arc::new(SystemClock), wait_limit };
        Ok(STORE.open(&folder, options).await?)
    }

    /// Opens all stores of the workspace. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn stores(&self, mode: OpenMode) -> CliResult<Stores> {
        Ok(self.open(mode).await?.stores)
    }

    /// Opens the board. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn board(&self, mode: OpenMode) -> CliResult<Arc<dyn Board>> {
        Ok(self.stores(mode).await?.board)
    }

    /// The durability from the config, or the stronger one if the config is missing or invalid. The config is read once.
    fn durability(&self) -> Durability {
        let of_config = || self.location.config_if_valid().map_or(Durability::Power, |config| config.durability());
        *self.durability.get_or_init(of_config)
    }
}
