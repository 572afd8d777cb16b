//! The output of a run: the timeline and the closing as text, or JSON for programs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::destination::Destination;
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::footer;
use super::output::Output;
use super::progress::{LiveProgress, Progress};
use super::reminders::Reminders;
use super::signals::{Signals, StopSignal, Suspensions};
use super::surface::Surface;
use crate::api::Question;
use crate::api::members::candidates;
use crate::api::run_summary::{RunSummary, RunView};
use crate::domain::agent::transcript::Usage;
use crate::domain::log::event::{Event, EventKind};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::run_verdict::TeamEnd;
use crate::domain::team::team_spec::{Isolation, TeamSpec};
use crate::domain::text::units::{duration, join_up_to};
use crate::embed::SystemClock;
use crate::front::repl::screen::Printer;
use crate::front::text::commands::{Commands, Hint, hint};
use crate::front::text::lines::indented;
use crate::front::text::markdown;
use crate::front::text::pending::PendingNotes;
use crate::front::text::style::{DIM, paint};
use crate::front::text::summary::{self, RunOutcome, WorkspaceView};
use crate::front::text::timeline::Timeline;
use crate::platform::terminal;
use crate::ports::{BoardView, Clock as _, Stores};
use crate::service::pending::PendingForPerson;
use crate::team::handle::{LiveStatus, TeamCommand, TeamHandle, TeamOutcome};

/// The time without an event after which held-back lines are printed. Lines are held back to be grouped.
const FLUSH_AFTER: Duration = Duration::from_millis(150);

/// The line for the second request to stop.
pub(in crate::front) const STOPPING_NOW: &str = "stopping now";

/// The interval at which the live view is drawn.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time that reading the state of the team for the live view may take.
const REFRESH_TIME_MAX: Duration = Duration::from_millis(500);

/// The time without other output after which the items that wait for the person's answer are printed again.
const REMINDER_INTERVAL: Duration = Duration::from_secs(300);

/// Spaces before a reminder, below the line of its event.
const REMINDER_INDENT: usize = 7;

/// The most members that [`stop_text`] names.
const NAMED_MAX: usize = 5;

/// The line for the first request to stop: the members whose turns the team waits for, and the longest time it waits.
pub(in crate::front) fn stop_text(live: &LiveStatus) -> String {
    let (teammates, lead) = (live.teammates(), live.lead().map(|lead| (LEAD.to_owned(), lead)));
    let rows = teammates.iter().chain(lead.iter().map(|(name, report)| (name, report)));
    let working = rows.filter(|(_, report)| matches!(report.phase, ReportedPhase::Work | ReportedPhase::Stalled));
    let names: Vec<String> = working
        .map(|(name, report)| match report.task {
            Some(task) => format!("{name} ({task})"),
            None => name.clone(),
        })
        .collect();
    if names.is_empty() {
        return "stopping the team; Ctrl-C stops it now".to_owned();
    }
    let wait = duration(live.stop_timeout());
    let named = join_up_to(names.iter(), NAMED_MAX);
    format!("stopping: waiting up to {wait} for {named}; Ctrl-C stops now")
}

/// The format of a run's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Progress lines and a closing table
    Text,
    /// One JSON object at the end
    Json,
    /// One JSON line for each event, as it happens
    StreamJson,
}

/// Prints the events and the outcome of a run.
#[derive(Debug)]
pub struct RunOutput {
    format: OutputFormat,
    destination: Destination,
    team: String,
    /// The folder with the results; `None` if they go to the team branch.
    results: Option<PathBuf>,
    timeline: Timeline,
    summary: RunSummary,
    reminders: Reminders,
    progress: Progress,
    live: Option<LiveProgress>,
    /// True if no line is held back. [`RunOutput::wait_for_flush`] then waits forever.
    is_flushed: bool,
    /// Notes to print after the first lines.
    notes: Vec<Hint>,
}

/// An event of [`RunOutput::follow`].
enum RunEvent {
    /// An event of the team, or the number of missed ones.
    Team(Result<Arc<Event>, RecvError>),
    StopSignal,
    FlushDue,
    LiveTick,
    Suspension,
    ReminderDue,
}

/// The team of [`RunOutput::follow`].
struct FollowedTeam<'a> {
    live: Arc<LiveStatus>,
    commands: mpsc::Sender<TeamCommand>,
    stores: &'a Stores,
    is_stop_requested: bool,
}

impl FollowedTeam<'_> {
    /// Lets running turns finish. The second call stops the team at once.
    async fn request_stop(&mut self) {
        let is_second = std::mem::replace(&mut self.is_stop_requested, true);
        if is_second {
            // The lead may wait for a lock and would not see the command before it has it.
            self.stores.wait_limit.end();
        }
        // The send fails only if the team has ended.
        let _ = self.commands.send(if is_second { TeamCommand::Abort } else { TeamCommand::Stop }).await;
    }
}

impl RunOutput {
    /// The output of this team's run. `commands` is the form of the commands in hints. The live view begins with [`RunOutput::follow`].
    pub fn new(
        format: OutputFormat,
        progress: Progress,
        output: Output,
        team: &TeamSpec,
        workspace: PathBuf,
        commands: Commands,
        has_goal: bool,
    ) -> Self {
        Self {
            format,
            destination: Destination::new(output, commands),
            team: team.name.to_string(),
            results: (team.isolation != Isolation::Worktree).then_some(workspace),
            timeline: Timeline::new(output.columns, output.renders_markdown()),
            summary: RunSummary::new(candidates(team), has_goal),
            reminders: Reminders::default(),
            progress,
            live: None,
            is_flushed: false,
            notes: Vec::new(),
        }
    }

    /// Takes the state before the first event: the subjects of tasks, and old mail, which needs no reminder.
    pub fn add_initial_state(&mut self, view: &BoardView, waiting: &PendingForPerson) {
        self.reminders.skip_mail(waiting);
        for task in view.tasks.values().map(Arc::as_ref) {
            self.timeline.add_task(task.id, &task.subject);
        }
    }

    /// Prints an event.
    pub fn print_event(&mut self, event: &Event) {
        self.is_flushed = false;
        self.update_width();
        self.summary.observe(event);
        if let Some(live) = &mut self.live {
            live.observe(event);
        }
        let text = match self.format {
            OutputFormat::Text if !self.progress.shows(&event.kind) => return,
            OutputFormat::Text => self.timeline.push(event),
            OutputFormat::Json => return,
            OutputFormat::StreamJson => event.to_line() + "\n",
        };
        self.destination.print(&text);
    }

    /// Prints a text of a member in full.
    fn print_body(&mut self, text: &str) {
        let is_rendered = self.destination.output.renders_markdown();
        self.destination.print(&markdown::body(
            text,
            self.destination.output.columns,
            REMINDER_INDENT + 2,
            is_rendered,
        ));
    }

    /// Prints the new questions, plans, reviews and mail for the person, or all that still wait for an answer as a reminder.
    async fn print_reminders(&mut self, stores: &Stores, is_reminder: bool) {
        let waiting = match PendingForPerson::of(stores).await {
            Ok(waiting) => waiting,
            Err(error) => return tracing::warn!("cannot read your mail and approvals: {error}"),
        };
        let reminders =
            if is_reminder { self.reminders.open_items(&waiting) } else { self.reminders.new_items(&waiting) };
        for reminder in reminders {
            let line = self.destination.commands().text(&reminder.line);
            let line = indented(&line, self.destination.output.columns, REMINDER_INDENT);
            self.destination.print(&format!("{}\n", paint(DIM, line.trim_end())));
            if let Some(text) = &reminder.text {
                self.print_body(text);
            }
        }
        self.destination.printed_at = Instant::now();
    }

    /// Records that a text of the lead was shown while it was written.
    pub fn record_shown_lead_text(&mut self) {
        self.timeline.record_shown_lead_text();
    }

    /// Prints the things that wait for the person from earlier runs.
    pub fn print_pending(&mut self, pending: &PendingNotes) {
        if self.format == OutputFormat::Text {
            for sentence in pending.sentences() {
                self.note(sentence);
            }
        }
    }

    /// Prints a note to stderr, or to the screen of an interactive session.
    pub fn note(&self, note: impl Into<Hint>) {
        self.destination.note(note);
    }

    /// Prints a note after the lines of the launch.
    pub fn note_later(&mut self, text: Option<Hint>) {
        self.notes.extend(text);
    }

    /// Shows everything on this screen from now on.
    pub fn show_on(&mut self, screen: Printer) {
        self.destination.set_surface(Surface::Repl(screen));
    }

    /// Shows everything on stdout from now on.
    pub fn show_on_stdout(&mut self) {
        self.destination.set_surface(Surface::Streams);
    }

    /// Shows the live view from now on, if this run has one. Returns the requests to suspend the process then, because the view must be
    /// erased before.
    ///
    /// # Errors
    /// The system refuses to report these requests.
    fn start_live(&mut self) -> CliResult<Option<Suspensions>> {
        if self.progress != Progress::Live || self.format != OutputFormat::Text {
            return Ok(None);
        }
        self.live = Some(LiveProgress::default());
        Ok(Some(Suspensions::listen()?))
    }

    /// Draws the live view, if this run has one. A slow store delays no event, and an error leaves the previous view.
    async fn refresh_live(&mut self, status: &LiveStatus, stores: &Stores) {
        self.update_width();
        let Some(live) = &mut self.live else { return };
        let refresh = live.refresh(status, stores, SystemClock.now(), &self.destination.output);
        match tokio::time::timeout(REFRESH_TIME_MAX, refresh).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("cannot show the state of the team: {}", error.message),
            Err(_) => tracing::debug!("the state of the team is not shown: the stores are slow"),
        }
    }

    fn end_live(&mut self) {
        if self.live.take().is_some() {
            footer::erase();
        }
    }

    /// Prints the events of a team until it has ended. The first signal lets running turns finish, the second stops the team at once.
    ///
    /// # Errors
    /// The lead's task panicked, or the live view cannot listen to signals.
    pub async fn follow(
        &mut self,
        team: &mut TeamHandle,
        signals: &mut Signals,
        stores: &Stores,
    ) -> CliResult<TeamOutcome> {
        let mut events = team.events();
        let mut followed =
            FollowedTeam { live: Arc::clone(team.live()), commands: team.commands(), stores, is_stop_requested: false };
        let is_text = self.format == OutputFormat::Text;
        let mut suspensions = self.start_live()?;
        let mut live_ticks = tokio::time::interval(LIVE_INTERVAL);
        live_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let outcome = loop {
            let event = tokio::select! {
                event = events.recv() => RunEvent::Team(event),
                outcome = team.wait() => break outcome,
                signal = signals.next() => match signal {
                    StopSignal::HangUp if followed.is_stop_requested => continue,
                    _ => RunEvent::StopSignal,
                },
                () = self.wait_for_flush() => RunEvent::FlushDue,
                _ = live_ticks.tick(), if self.live.is_some() => RunEvent::LiveTick,
                () = next_suspension(&mut suspensions) => RunEvent::Suspension,
                () = tokio::time::sleep_until(self.destination.printed_at + REMINDER_INTERVAL), if is_text => {
                    RunEvent::ReminderDue
                }
            };
            self.handle(event, &mut followed).await;
        };
        while let Ok(event) = events.try_recv() {
            self.print_event(&event);
        }
        self.end_live();
        outcome.map_err(|error| CliError::refused(format!("cannot go on: the lead failed: {error}")))
    }

    async fn handle(&mut self, event: RunEvent, team: &mut FollowedTeam<'_>) {
        match event {
            RunEvent::Team(event) => {
                let is_mail =
                    |event: &Arc<Event>| matches!(&event.kind, EventKind::MessageSent { to, .. } if to == HUMAN);
                // Among events that were missed there may be mail.
                let may_be_mail = event.as_ref().map_or(true, is_mail);
                self.print_received(event);
                if may_be_mail && self.format == OutputFormat::Text {
                    self.flush();
                    self.print_reminders(team.stores, false).await;
                }
            }
            RunEvent::StopSignal => {
                self.note(if team.is_stop_requested { STOPPING_NOW.to_owned() } else { stop_text(&team.live) });
                if let Some(live) = &mut self.live {
                    live.set_stopping();
                }
                team.request_stop().await;
            }
            RunEvent::FlushDue => {
                self.flush();
                self.refresh_live(&team.live, team.stores).await;
            }
            RunEvent::LiveTick => self.refresh_live(&team.live, team.stores).await,
            RunEvent::Suspension => {
                footer::erase();
                terminal::suspend();
            }
            RunEvent::ReminderDue => self.print_reminders(team.stores, true).await,
        }
    }

    fn print_received(&mut self, event: Result<Arc<Event>, RecvError>) {
        match event {
            Ok(event) => self.print_event(&event),
            Err(RecvError::Lagged(missed)) => {
                let missed = format!("{missed} events are not shown; ");
                self.note(hint![missed, Question::Log { task: None }, " shows them"]);
            }
            Err(RecvError::Closed) => {}
        }
    }

    /// Waits for `FLUSH_AFTER` if a line is held back, otherwise forever.
    pub async fn wait_for_flush(&self) {
        if self.is_flushed {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(FLUSH_AFTER).await;
    }

    /// Prints the lines that are held back to be grouped, then the notes.
    pub fn flush(&mut self) {
        self.is_flushed = true;
        self.update_width();
        let text = self.timeline.finish();
        if self.format == OutputFormat::Text {
            self.destination.print(&text);
        }
        for text in std::mem::take(&mut self.notes) {
            self.note(text);
        }
    }

    fn update_width(&mut self) {
        self.destination.output = Output::new(self.destination.output.json, self.destination.output.color);
        self.timeline.set_columns(self.destination.output.columns);
    }

    /// Prints the closing table from the current board, with the usage of the run and the items that wait for the person. Returns the
    /// exit code of the process.
    ///
    /// # Errors
    /// The outcome cannot be written as JSON.
    pub fn close(
        &mut self,
        view: &BoardView,
        team: &TeamOutcome,
        usage: Usage,
        pending: PendingNotes,
    ) -> CliResult<Exit> {
        self.flush();
        let error = team.error.clone();
        let view = RunView { error, usage: usage.into(), ..self.summary.view(&self.team, view) };
        let outcome = RunOutcome::of(view, pending);
        let workspace_view = WorkspaceView { results: self.results.as_deref(), commands: &self.destination.commands };
        let text = match self.format {
            OutputFormat::Text => {
                let closing = summary::render(&outcome, &workspace_view, self.destination.output.columns);
                let is_wrong_setting = team.end == TeamEnd::WrongModelSetting;
                let hint = if is_wrong_setting { summary::setting_hint() } else { Hint::default() };
                closing + &workspace_view.commands.text(&hint)
            }
            OutputFormat::Json => {
                let output = Output { json: true, ..self.destination.output };
                output.answer(&outcome, String::new)?.text
            }
            OutputFormat::StreamJson => String::new(),
        };
        self.destination.print(&text);
        Ok(match outcome.view.facts().verdict(team.end).into() {
            Exit::Done if self.destination.is_mute => Exit::Unfinished,
            exit => exit,
        })
    }
}

/// Waits for the next request to suspend the process; forever if there is no live view.
async fn next_suspension(suspensions: &mut Option<Suspensions>) {
    match suspensions {
        Some(suspensions) => suspensions.next().await,
        None => std::future::pending().await,
    }
}
