//! What a run without a screen of its own prints: the timeline and the closing, or JSON for programs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::output::Output;
use super::session::screen::Screen;
use super::signals::Signals;
use super::traces;
use crate::domain::event::{Event, Fact};
use crate::domain::name::HUMAN;
use crate::ports::BoardView;
use crate::team::handle::{Command, Outcome, TeamHandle};
use crate::ui::style::{DIM, paint};
use crate::ui::summary::{self, ForYou, Place, Summary};
use crate::ui::text::{with_flags, wrap};
use crate::ui::timeline::Timeline;
use crate::ui::why::Candidate;

/// After this long without an event, lines that were held back to be told together are shown.
const QUIET: Duration = Duration::from_millis(150);
/// What is said when the team is asked to stop, and when it is asked again.
pub(super) const STOPPING: &str = "stopping: running turns are finished; once more to stop now";
pub(super) const STOPPING_NOW: &str = "stopping now";

/// How mail for the person is read stands behind so many spaces, below what it is about.
const HOW_INDENT: usize = 7;

/// How a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// A line for each thing a person cares about, and a closing table
    Text,
    /// How it came out, in one JSON object at the end
    Json,
    /// The events, a JSON line each, as they happen
    StreamJson,
}

/// Shows a run as it goes on, and how it came out.
#[derive(Debug)]
pub struct Report {
    format: OutputFormat,
    output: Output,
    team: String,
    workspace: PathBuf,
    flags: String,
    timeline: Timeline,
    summary: Summary,
    /// Whether what it printed could not be written; it says no more then.
    is_mute: bool,
    /// Whether it said how mail for the person is read.
    has_told_of_mail: bool,
    /// Where a session shows it, instead of stdout.
    screen: Option<Screen>,
    /// Nothing is held back: there is nothing to show in a quiet moment, and nobody is woken for it.
    is_flushed: bool,
}

impl Report {
    /// A report of this team's run.
    #[must_use]
    pub fn new(format: OutputFormat, output: Output, team: String, workspace: PathBuf) -> Self {
        let timeline = Timeline::new(output.columns);
        Self {
            format,
            output,
            team,
            workspace,
            flags: String::new(),
            timeline,
            summary: Summary::default(),
            is_mute: false,
            has_told_of_mail: false,
            screen: None,
            is_flushed: false,
        }
    }

    /// The same, knowing who could do what, and the flags that name the workspace in hints.
    #[must_use]
    pub fn of(self, candidates: Vec<Candidate>, flags: String) -> Self {
        Self { summary: Summary::of(candidates), flags, ..self }
    }

    /// Learns what the tasks on the board are about, before the first event.
    pub fn begin(&mut self, view: &BoardView) {
        for task in view.tasks.values().map(Arc::as_ref) {
            self.timeline.learn(task.id, &task.subject);
        }
    }

    /// Shows an event.
    pub fn event(&mut self, event: &Event) {
        self.is_flushed = false;
        if self.screen.is_some() {
            self.look_at_width();
        }
        self.summary.observe(event);
        let text = match self.format {
            OutputFormat::Text => self.timeline.push(event),
            OutputFormat::Json => return,
            OutputFormat::StreamJson => event.to_line() + "\n",
        };
        self.print(&text);
        if matches!(&event.fact, Fact::MessageSent { to, .. } if to == HUMAN) && self.screen.is_none() {
            self.tell_of_mail();
        }
    }

    /// Says once, where nobody sits at the terminal, how mail for the person is read.
    fn tell_of_mail(&mut self) {
        if self.format == OutputFormat::Text && !std::mem::replace(&mut self.has_told_of_mail, true) {
            let how = "that is for you: brigade inbox --take shows it whole, brigade send NAME TEXT answers; brigade plan shows plans";
            let text = wrap(&with_flags(how, &self.flags), self.output.columns.saturating_sub(HOW_INDENT), 0);
            let text: String = text.lines().map(|line| format!("{}{line}\n", " ".repeat(HOW_INDENT))).collect();
            self.print(&paint(DIM, &text));
        }
    }

    /// Says what waits for the person from before, where nobody shows it.
    pub fn tell_what_waits(&mut self, for_you: &ForYou) {
        if self.format == OutputFormat::Text {
            for sentence in for_you.sentences() {
                self.note(&with_flags(&sentence, &self.flags));
            }
        }
    }

    /// Says something that is no event, where it disturbs no program.
    pub fn note(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.print(text),
            None => self.output.note(text),
        }
    }

    /// Shows everything on this screen from now on.
    pub fn show_on(&mut self, screen: Screen) {
        traces::show_on(Some(screen.clone()));
        self.screen = Some(screen);
    }

    /// Shows everything on stdout from now on.
    pub fn show_on_stdout(&mut self) {
        traces::show_on(None);
        self.screen = None;
    }

    /// Shows the events of a team until it has ended and all are shown; signals ask it to stop.
    ///
    /// # Errors
    /// The lead broke down.
    pub async fn follow(&mut self, team: &mut TeamHandle, signals: &mut Signals) -> CliResult<Outcome> {
        let mut events = team.events();
        let commands = team.commands();
        let mut asked = false;
        let outcome = loop {
            tokio::select! {
                event = events.recv() => self.show(event),
                outcome = team.wait() => break outcome,
                _ = signals.next() => {
                    let command = if asked { Command::StopNow } else { Command::Stop };
                    self.note(if asked { STOPPING_NOW } else { STOPPING });
                    asked = true;
                    // A team that is gone needs no commands.
                    let _ = commands.send(command).await;
                }
                () = self.quiet() => self.flush(),
            }
        };
        while let Ok(event) = events.try_recv() {
            self.event(&event);
        }
        outcome.map_err(|error| CliError::refused(format!("the lead broke down: {error}")))
    }

    fn show(&mut self, event: Result<Arc<Event>, RecvError>) {
        match event {
            Ok(event) => self.event(&event),
            Err(RecvError::Lagged(missed)) => {
                self.note(&format!("{missed} events are not shown; brigade log has them"));
            }
            Err(RecvError::Closed) => {}
        }
    }

    /// Waits for a quiet moment in which something is to be shown: never, while nothing is held back.
    pub async fn quiet(&self) {
        if self.is_flushed {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(QUIET).await;
    }

    /// Shows lines that wait for more of their kind; for quiet moments.
    pub fn flush(&mut self) {
        self.is_flushed = true;
        self.look_at_width();
        let text = self.timeline.finish();
        if self.format == OutputFormat::Text {
            self.print(&text);
        }
    }

    /// The terminal may have another width by now.
    fn look_at_width(&mut self) {
        self.output = Output::new(self.output.json, self.output.color);
        self.timeline.set_columns(self.output.columns);
    }

    /// Prints; where that fails, nothing more. The team's work is worth more than what is said about it.
    fn print(&mut self, text: &str) {
        if text.is_empty() || self.is_mute {
            return;
        }
        if let Some(screen) = &self.screen {
            return screen.print(text);
        }
        if let Err(error) = self.output.print(text) {
            self.is_mute = true;
            self.note(&format!(
                "cannot write the output: {error}; the team goes on, and .team/events.jsonl tells of it"
            ));
        }
    }

    /// Shows how the run came out by what the board says now, what kept the team from its work, if anything did, and what waits for the
    /// person; says how the process ends unless something else decides.
    ///
    /// # Errors
    /// It cannot be put into words.
    pub fn close(&mut self, view: &BoardView, trouble: Option<&str>, for_you: ForYou) -> CliResult<Exit> {
        self.flush();
        let trouble = trouble.map(str::to_owned);
        let outcome = summary::Outcome { trouble, for_you, ..self.summary.outcome(&self.team, view) };
        let place = Place { workspace: &self.workspace, flags: &self.flags };
        let text = match self.format {
            OutputFormat::Text => summary::render(&outcome, &place, self.output.columns),
            OutputFormat::Json => {
                let output = Output { json: true, ..self.output };
                output.answer(&outcome, String::new)?.text
            }
            OutputFormat::StreamJson => String::new(),
        };
        self.print(&text);
        Ok(if self.is_mute { Exit::Unfinished } else { exit(&outcome) })
    }
}

/// Tasks other programs have in progress are not the run's to finish. A goal that is not met is not done.
fn exit(outcome: &summary::Outcome) -> Exit {
    let tally = &outcome.tally;
    let is_met = outcome.goal.as_ref().is_none_or(|goal| goal.met);
    if is_met && tally.failed + tally.blocked + tally.pending == 0 { Exit::Done } else { Exit::Unfinished }
}
