//! The interactive session: a person at a terminal types lines; what the team does appears above the line being typed.
//!
//! A line that begins with `/` is a command of `brigade` itself, run as in any other terminal; `@name` begins a message to
//! somebody; anything else goes to the lead. The session owns the terminal while it lasts. It knows of the team what its handle
//! and its events say, and nothing of how it works.

mod completion;
mod editor;
mod line;
pub mod screen;
mod speech;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::headless::{Report, STOPPING, STOPPING_NOW};
use super::output::{Color, Output};
use super::signals::{Kind, Signals};
use crate::domain::event::{Event, Fact};
use crate::domain::name::{HUMAN, LEAD};
use crate::team::handle::{Command, Outcome, TeamHandle};
use crate::team::words::Words;
use crate::ui::style::{DIM, paint};
use crate::ui::text::{one_line, wrap};
use completion::Vocabulary;
use editor::{Editor, Typed};
use line::{Line, Own};
use screen::Screen;
use speech::Speech;

/// Two Ctrl-C within this time stop the team.
const TWICE_WITHIN: Duration = Duration::from_secs(3);

/// What a person who sits at the terminal is given.
#[derive(Debug)]
pub struct Session {
    context: Context,
    team: String,
}

/// What a session remembers from one thing that happens to the next.
struct Talk<'a> {
    context: &'a Context,
    /// Whether the lead has a model that answers what it is told.
    lead_thinks: bool,
    screen: Screen,
    vocabulary: Arc<Mutex<Vocabulary>>,
    speech: Speech,
    last_interrupt: Option<Instant>,
    stops_asked: u32,
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
        let history = self.context.workspace()?.join(crate::stores::file::TEAM_FOLDER).join("history");
        let (mut editor, screen) = Editor::start(&self.team, history, Arc::clone(&vocabulary), self.context.output)?;
        report.show_on(screen.clone());
        let talk = Talk {
            context: &self.context,
            lead_thinks: team.lead_thinks(),
            screen,
            vocabulary,
            speech: Speech::default(),
            last_interrupt: None,
            stops_asked: 0,
        };
        let outcome = talk.until_the_end(team, report, signals, &mut editor).await;
        report.show_on_stdout();
        editor.end().await;
        outcome
    }
}

impl Talk<'_> {
    async fn until_the_end(
        mut self,
        team: &mut TeamHandle,
        report: &mut Report,
        signals: &mut Signals,
        editor: &mut Editor,
    ) -> CliResult<Outcome> {
        let mut events = team.events();
        let mut words = team.words();
        let commands = team.commands();
        self.greet();
        let outcome = loop {
            let typed = tokio::select! {
                event = events.recv() => {
                    self.show(event, report).await;
                    continue;
                }
                piece = words.recv() => {
                    self.hear(piece);
                    continue;
                }
                outcome = team.wait() => break outcome,
                kind = signals.next() => match kind {
                    // A command runs, and the editor reads nothing meanwhile.
                    Kind::Interrupt => Typed::Interrupt,
                    Kind::End => Typed::Signal,
                },
                typed = editor.next() => typed,
                () = report.quiet() => {
                    report.flush();
                    continue;
                }
            };
            if let Some(command) = self.obey(typed).await {
                // A team that is gone needs no commands.
                let _ = commands.send(command).await;
            }
            editor.go_on();
        };
        while let Ok(event) = events.try_recv() {
            self.show(Ok(event), report).await;
        }
        outcome.map_err(|error| CliError::refused(format!("the lead broke down: {error}")))
    }

    fn greet(&self) {
        let to_lead = if self.lead_thinks { "; anything else goes to the lead" } else { "" };
        self.screen.note(&format!("@name TEXT writes to a teammate, /help shows the commands{to_lead}; Ctrl-D ends"));
    }

    /// What the lead says is shown while it says it, line by line; of teammates the timeline tells.
    fn hear(&mut self, piece: Result<Arc<Words>, RecvError>) {
        let Ok(piece) = piece else { return };
        if *piece.teammate == *LEAD {
            self.screen.print(&self.speech.hear(&piece.saying, columns()));
        }
    }

    async fn show(&mut self, event: Result<Arc<Event>, RecvError>, report: &mut Report) {
        let event = match event {
            Ok(event) => event,
            Err(RecvError::Lagged(missed)) => {
                return self.screen.note(&format!("{missed} events are not shown; /log has them"));
            }
            Err(RecvError::Closed) => return,
        };
        match &event.fact {
            Fact::TeammateSpawned { teammate, .. } => Vocabulary::of(&self.vocabulary).meet(teammate),
            Fact::TaskCreated { task, subject, .. } => Vocabulary::of(&self.vocabulary).learn(*task, subject),
            Fact::TaskDeleted { task, .. } => Vocabulary::of(&self.vocabulary).forget(*task),
            _ => {}
        }
        match &event.fact {
            Fact::Said { teammate, text, .. } if teammate == LEAD => {
                report.flush();
                self.screen.print(&self.speech.said(text, columns()));
            }
            _ => report.event(&event),
        }
        if matches!(&event.fact, Fact::MessageSent { to, .. } if to == HUMAN) {
            report.flush();
            self.run("inbox", &["--take".to_owned()]).await;
        }
    }

    /// Does what was typed, and says what the team is to be told.
    async fn obey(&mut self, typed: Typed) -> Option<Command> {
        match typed {
            Typed::Line(line) => self.obey_line(&line).await,
            Typed::Interrupt => {
                let now = Instant::now();
                let is_second = self.last_interrupt.replace(now).is_some_and(|last| now - last < TWICE_WITHIN);
                if !is_second && self.stops_asked == 0 {
                    self.screen.note("Ctrl-C once more stops the team; so does Ctrl-D");
                    return None;
                }
                Some(self.stop())
            }
            Typed::End | Typed::Signal => Some(self.stop()),
            Typed::Failed(reason) => {
                self.screen.note(&format!("the terminal cannot be read: {}", one_line(&reason)));
                Some(self.stop())
            }
        }
    }

    fn stop(&mut self) -> Command {
        self.stops_asked += 1;
        if self.stops_asked > 1 {
            self.screen.note(STOPPING_NOW);
            return Command::StopNow;
        }
        self.screen.note(STOPPING);
        Command::Stop
    }

    async fn obey_line(&mut self, typed: &str) -> Option<Command> {
        let line = match Line::parse(typed) {
            Ok(line) => line,
            Err(reason) => {
                self.screen.note(&reason);
                return None;
            }
        };
        match line {
            Line::Nothing => {}
            Line::To { names, text } => {
                for name in names {
                    self.run("send", &[name, "--".to_owned(), text.clone()]).await;
                }
            }
            Line::ToLead(_) if !self.lead_thinks => {
                self.screen.note("this lead works by rule and answers nothing: @name TEXT writes to a teammate, /help shows the commands");
            }
            Line::ToLead(text) => self.run("send", &[LEAD.to_owned(), "--".to_owned(), text]).await,
            Line::Brigade { name, arguments } => self.run(name, &arguments).await,
            Line::Own { own: Own::Help } => self.screen.print(&line::help()),
            Line::Own { own: Own::Quit } => return Some(self.stop()),
        }
        None
    }

    /// Runs a command of `brigade` and shows what it says.
    async fn run(&self, name: &'static str, arguments: &[String]) {
        let context = self.context.in_session();
        let words: Vec<String> =
            ["brigade", name].into_iter().map(str::to_owned).chain(arguments.iter().cloned()).collect();
        let answered = tokio::task::spawn_blocking(move || super::answer(&context, words)).await;
        match answered {
            Ok(text) => self.screen.print(&text),
            Err(error) => self.screen.note(&format!("/{name} broke down: {error}")),
        }
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
