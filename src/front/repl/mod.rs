//! The interactive session: a person at a terminal types lines, and the team's events appear above the line being typed.
//!
//! A line that begins with `/` is a command of `brigade`, run as in any other terminal. `@NAME` begins a message to a member. Any other
//! line goes to the lead. The interactive session owns the terminal while it lasts. It uses only the handle and the events of the team.

mod background;
mod completion;
mod editor;
mod event_loop;
pub(super) mod line;
pub mod screen;
mod stream_view;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::api::lead_status::LeadStatus;
use crate::domain::team::state::Mode;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::output::{Color, Output};
use crate::front::cli::run_output::RunOutput;
use crate::front::cli::signals::{Signals, save_terminal};
use crate::front::text::lines::wrap;
use crate::front::text::style::{DIM, paint};
use crate::team::handle::{TeamHandle, TeamOutcome};
use completion::EmptyLine;
use editor::Editor;
use event_loop::EventLoop;
use screen::Printer;

/// The interactive session of a team, before it starts.
#[derive(Debug)]
pub struct Repl {
    context: Context,
    team: String,
}

impl Repl {
    /// An interactive session with this team. Its commands run in `context`.
    pub fn new(context: Context, team: String) -> Self {
        Self { context, team }
    }

    /// Runs until the team has ended, then restores the terminal.
    ///
    /// # Errors
    /// The terminal cannot be used, or the lead's task panicked.
    pub async fn follow(
        self,
        team: &mut TeamHandle,
        run_output: &mut RunOutput,
        signals: &mut Signals,
    ) -> CliResult<TeamOutcome> {
        let desired = LeadStatus::with_state(&self.context.workspace).await?.desired();
        let is_paused = desired == Some(Mode::Pause);
        let empty_line = Arc::new(Mutex::new(EmptyLine { is_paused, ..EmptyLine::default() }));
        let history = self.context.workspace.folder()?.join(crate::stores::workspace::TEAM_FOLDER).join("history");
        save_terminal();
        let (mut editor, screen) = Editor::start(&self.team, history, Arc::clone(&empty_line), &self.context)?;
        run_output.show_on(screen.clone());
        let event_loop = EventLoop::new(self.context, team, screen, empty_line);
        let outcome = event_loop.run(team, run_output, signals, &mut editor).await;
        run_output.show_on_stdout();
        editor.end().await;
        outcome
    }
}

/// The present width of the terminal.
fn columns() -> usize {
    Output::new(false, Color::Auto).columns
}

impl Printer {
    /// Prints a note in a dim style.
    fn note(&self, text: &str) {
        self.print(&paint(DIM, &wrap(text, columns(), 2)));
    }
}
