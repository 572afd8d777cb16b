//! What a run without a screen of its own prints: the timeline and the closing, or JSON for programs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::asks::Asks;
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::output::Output;
use super::session::line::as_typed;
use super::session::screen::Screen;
use super::signals::Signals;
use super::traces;
use super::waiting::Waiting;
use crate::domain::event::{Event, Fact};
use crate::domain::name::{HUMAN, LEAD};
use crate::ports::{BoardView, Stores};
use crate::team::handle::{Command, Live, Outcome, TeamHandle};
use crate::ui::style::{DIM, paint};
use crate::ui::summary::{self, ForYou, Place, Summary};
use crate::ui::text::{duration, one_line, with_flags, wrap};
use crate::ui::timeline::Timeline;
use crate::ui::why::Candidate;

/// After this long without an event, lines that were held back to be told together are shown.
const QUIET: Duration = Duration::from_millis(150);
/// What is said when the team is asked to stop again.
pub(super) const STOPPING_NOW: &str = "stopping now";

/// How often it is said again what waits for the person, while nothing else is.
const REMINDED_EVERY: Duration = Duration::from_secs(300);

/// How something is answered stands behind so many spaces, below what it is about.
const HOW_INDENT: usize = 7;

/// What is said when the team is asked to stop: whose turns it waits for, and how long at most.
pub(super) fn stopping(live: &Live) -> String {
    let (teammates, lead) = (live.teammates(), live.lead().map(|lead| (LEAD.to_owned(), lead)));
    let rows = teammates.iter().chain(lead.iter().map(|(name, report)| (name, report)));
    let at_work = rows.filter(|(_, report)| matches!(report.phase.as_str(), "work" | "stalled"));
    let named: Vec<String> = at_work
        .map(|(name, report)| match (&report.waiting_for, report.task) {
            (Some(what), _) => format!("{name} (waits for {})", one_line(&what.to_string())),
            (None, Some(task)) => format!("{name} ({task})"),
            (None, None) => name.clone(),
        })
        .collect();
    let more = if named.len() > NAMED_MAX { ", …" } else { "" };
    let who = if named.is_empty() { "" } else { ": " };
    let named = named[..named.len().min(NAMED_MAX)].join(", ");
    let at_most = duration(live.stop_timeout());
    format!("stopping: running turns are finished, for at most {at_most}{who}{named}{more}; once more to stop now")
}

/// Members that are named; of more, the others are not.
const NAMED_MAX: usize = 5;

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
    /// What it said of what waits for the person.
    asks: Asks,
    /// Where a session shows it, instead of stdout.
    screen: Option<Screen>,
    /// Nothing is held back: there is nothing to show in a quiet moment, and nobody is woken for it.
    is_flushed: bool,
    /// When it last said something.
    spoke_at: Instant,
    /// What is said behind the first lines.
    behind: Vec<String>,
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
            asks: Asks::default(),
            screen: None,
            is_flushed: false,
            spoke_at: Instant::now(),
            behind: Vec::new(),
        }
    }

    /// The same, knowing who could do what, the flags that name the workspace in hints, and whether there is a goal.
    #[must_use]
    pub fn of(self, candidates: Vec<Candidate>, flags: String, has_goal: bool) -> Self {
        Self { summary: Summary::of(candidates).with_goal(has_goal), flags, ..self }
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
    }

    /// Says, where nobody sits at the terminal, what the person is asked by now, and how each thing is answered: what is new, or, now and
    /// then, all of it.
    async fn tell_what_is_asked(&mut self, stores: &Stores, is_reminder: bool) {
        let waiting = match Waiting::of(stores).await {
            Ok(waiting) => waiting,
            Err(error) => return tracing::warn!("cannot look at what waits for you: {}", error.message),
        };
        let lines = if is_reminder { self.asks.all(&waiting) } else { self.asks.news(&waiting) };
        for line in lines {
            let text = wrap(&with_flags(&line, &self.flags), self.output.columns.saturating_sub(HOW_INDENT), 0);
            let text: String = text.lines().map(|line| format!("{}{line}\n", " ".repeat(HOW_INDENT))).collect();
            self.print(&paint(DIM, &text));
        }
        self.spoke_at = Instant::now();
    }

    /// Says that the lead said this, and it was shown as it came.
    pub fn heard(&mut self, text: &str) {
        self.timeline.heard(text);
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

    /// Says something that is no event as soon as all that the launch brings has been said.
    pub fn note_behind(&mut self, text: Option<String>) {
        self.behind.extend(text);
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
    pub async fn follow(
        &mut self,
        team: &mut TeamHandle,
        signals: &mut Signals,
        stores: &Stores,
    ) -> CliResult<Outcome> {
        let mut events = team.events();
        let live = Arc::clone(team.live());
        let is_text = self.format == OutputFormat::Text;
        let commands = team.commands();
        let mut asked = false;
        let outcome = loop {
            tokio::select! {
                event = events.recv() => {
                    let is_mail = |event: &Event| matches!(&event.fact, Fact::MessageSent { to, .. } if to == HUMAN);
                    let is_mail = is_text && event.as_ref().is_ok_and(|event| is_mail(event));
                    self.show(event);
                    if is_mail {
                        self.flush();
                        self.tell_what_is_asked(stores, false).await;
                    }
                }
                outcome = team.wait() => break outcome,
                _ = signals.next() => {
                    let command = if asked { Command::StopNow } else { Command::Stop };
                    let text = if asked { STOPPING_NOW.to_owned() } else { stopping(&live) };
                    self.note(&text);
                    if asked {
                        // The lead may wait for a lock itself, and hear of it only then.
                        stores.workers.stop_waiting();
                    }
                    asked = true;
                    // A team that is gone needs no commands.
                    let _ = commands.send(command).await;
                }
                () = self.quiet() => self.flush(),
                () = tokio::time::sleep_until(self.spoke_at + REMINDED_EVERY), if is_text => {
                    self.tell_what_is_asked(stores, true).await;
                }
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
        for text in std::mem::take(&mut self.behind) {
            let text = if self.screen.is_some() { as_typed(&text) } else { with_flags(&text, &self.flags) };
            self.note(&wrap(&text, self.output.columns, 2));
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
        self.spoke_at = Instant::now();
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
