//! The interactive session: a person at a terminal types lines; what the team does appears above the line being typed.
//!
//! A line that begins with `/` is a command of `brigade` itself, run as in any other terminal; `@name` begins a message to
//! somebody; anything else goes to the lead. The session owns the terminal while it lasts. It knows of the team what its handle
//! and its events say, and nothing of how it works.

mod completion;
mod editor;
mod jobs;
pub(super) mod line;
pub mod screen;
mod speech;
mod talk;

use std::sync::{Arc, Mutex, PoisonError};

use super::context::Context;
use super::error::CliResult;
use super::headless::Report;
use super::output::{Color, Output};
use super::signals::{Signals, keep_terminal};
use crate::domain::state::Mode;
use crate::team::handle::{Outcome, TeamHandle};
use crate::ui::style::{DIM, paint};
use crate::ui::text::wrap;
use completion::Vocabulary;
use editor::Editor;
use screen::Screen;
use talk::Talk;

/// What a person who sits at the terminal is given.
#[derive(Debug)]
pub struct Session {
    context: Context,
    team: String,
}

impl Session {
    /// A session with this team, for commands given in `context`.
    #[must_use]
    pub fn new(context: Context, team: String) -> Self {
        Self { context, team }
    }

    /// Talks until the team has ended. The terminal is as it was afterwards.
    ///
    /// # Errors
    /// The lead broke down.
    pub async fn follow(self, team: &mut TeamHandle, report: &mut Report, signals: &mut Signals) -> CliResult<Outcome> {
        let vocabulary = Arc::new(Mutex::new(Vocabulary::default()));
        for member in team.live().members() {
            Vocabulary::of(&vocabulary).meet(member.as_str());
        }
        let desired = self.context.running().await?.desired;
        Vocabulary::of(&vocabulary).pause(desired == Some(Mode::Pause));
        let history = self.context.workspace()?.join(crate::stores::file::TEAM_FOLDER).join("history");
        keep_terminal();
        let (mut editor, screen) = Editor::start(&self.team, history, Arc::clone(&vocabulary), self.context.output)?;
        report.show_on(screen.clone());
        let talk = Talk::new(self.context, team, screen, vocabulary);
        let outcome = talk.until_the_end(team, report, signals, &mut editor).await;
        report.show_on_stdout();
        editor.end().await;
        outcome
    }
}

impl Vocabulary {
    fn of(shared: &Mutex<Self>) -> std::sync::MutexGuard<'_, Self> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How wide the terminal is now.
fn columns() -> usize {
    Output::new(false, Color::Auto).columns
}

impl Screen {
    /// Says something in passing.
    fn note(&self, text: &str) {
        self.print(&paint(DIM, &wrap(text, columns(), 2)));
    }
}
