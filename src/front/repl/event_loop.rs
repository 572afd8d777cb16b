//! The event loop of an interactive session: it shows the events of the team and runs the typed lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::background::{JobResult, Jobs, PollKind, Work};
use super::columns;
use super::completion::EmptyLine;
use super::editor::{Editor, EditorEvent};
use super::line::{self, Input, SessionCommand};
use super::screen::Printer;
use super::stream_view::StreamView;
use crate::api::Order;
use crate::domain::log::event::{Event as TeamEvent, EventKind};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::state::Mode;
use crate::domain::text::one_line;
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::output::Output;
use crate::front::cli::run_output::{RunOutput, STOPPING_NOW, stop_text};
use crate::front::cli::signals::{Signals, StopSignal, Suspensions, start_exit_deadline};
use crate::front::text::commands::Commands;
use crate::run::stream;
use crate::team::handle::{LiveStatus, TeamCommand, TeamHandle, TeamOutcome};

/// The longest time between two Ctrl-C that stop the team.
const TWICE_WITHIN: Duration = Duration::from_secs(3);
/// An action that takes longer than this is announced.
const AT_ONCE: Duration = Duration::from_millis(300);
/// The longest time that the answer of a command is waited for, before what happens meanwhile is shown.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// The time that the editor may take from the request to read until it reads.
const ONCE_MORE_AFTER: Duration = Duration::from_millis(20);
/// The interval at which mail of other programs is polled. Mail of the team arrives with its events.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

enum ReplEvent {
    Team(Result<Arc<TeamEvent>, RecvError>),
    Words(Result<Arc<stream::StreamChunk>, RecvError>),
    /// A command has taken too long: events and words are shown before its answer.
    Late,
    Typed(EditorEvent),
    /// Ctrl-Z.
    Suspend,
    /// SIGINT.
    Interrupted,
    Done(JobResult),
    Flush,
    Tick,
}

/// The state of an interactive session between two events.
pub struct EventLoop {
    /// True if the lead has a model that answers.
    lead_has_model: bool,
    live: Arc<LiveStatus>,
    commands: mpsc::Sender<TeamCommand>,
    screen: Printer,
    empty_line: Arc<Mutex<EmptyLine>>,
    output: Output,
    jobs: Jobs,
    /// The members whose text is shown while their models write it.
    speeches: BTreeMap<String, StreamView>,
    /// The member of the last streamed lines, and the number of texts on the screen with them.
    streamed: Option<(Arc<str>, usize)>,
    /// The time until which events and words are held back, so that the answer of a command comes first.
    holds_until: Option<Instant>,
    last_interrupt: Option<Instant>,
    stops_asked: u32,
}

impl EventLoop {
    /// The loop of an interactive session with this team.
    pub fn new(context: Context, team: &TeamHandle, screen: Printer, empty_line: Arc<Mutex<EmptyLine>>) -> Self {
        Self {
            lead_has_model: team.lead_has_model(),
            output: context.output,
            live: Arc::clone(team.live()),
            commands: team.commands(),
            jobs: Jobs::new(context, screen.clone(), Arc::clone(&empty_line), team.lead_has_model()),
            speeches: BTreeMap::from([(LEAD.to_owned(), StreamView::of(LEAD, screen.has_colors()))]),
            screen,
            streamed: None,
            empty_line,
            holds_until: None,
            last_interrupt: None,
            stops_asked: 0,
        }
    }

    /// Runs until the team has ended.
    ///
    /// # Errors
    /// The lead's task panicked.
    pub async fn run(
        mut self,
        team: &mut TeamHandle,
        run_output: &mut RunOutput,
        signals: &mut Signals,
        editor: &mut Editor,
    ) -> CliResult<TeamOutcome> {
        let mut events = team.events();
        let mut words = team.subscribe_output();
        let mut ticks = ticks();
        let mut suspensions = Suspensions::listen()?;
        self.greet();
        self.jobs.poll(PollKind::AtMail);
        let outcome = loop {
            let event = tokio::select! {
                event = events.recv(), if self.holds_until.is_none() => ReplEvent::Team(event),
                () = at(self.holds_until) => ReplEvent::Late,
                piece = words.recv(), if self.holds_until.is_none() => ReplEvent::Words(piece),
                outcome = team.wait() => break outcome,
                () = suspensions.next() => ReplEvent::Suspend,
                signal = signals.next() => match signal {
                    StopSignal::Interrupt => ReplEvent::Interrupted,
                    StopSignal::HangUp if self.stops_asked > 0 => continue,
                    StopSignal::Terminate | StopSignal::HangUp => ReplEvent::Typed(EditorEvent::Signal),
                },
                typed = editor.next() => ReplEvent::Typed(typed),
                done = self.jobs.next_result() => ReplEvent::Done(done),
                () = run_output.wait_for_flush() => ReplEvent::Flush,
                _ = ticks.tick() => ReplEvent::Tick,
            };
            if matches!(event, ReplEvent::Team(_)) {
                self.show_waiting_stream(&mut words);
            }
            self.handle(event, run_output, editor).await;
        };
        self.show_waiting_stream(&mut words);
        while let Ok(event) = events.try_recv() {
            self.show(Ok(event), run_output);
        }
        outcome.map_err(|error| CliError::refused(format!("cannot go on: the lead failed: {error}")))
    }

    async fn handle(&mut self, event: ReplEvent, run_output: &mut RunOutput, editor: &mut Editor) {
        match event {
            ReplEvent::Team(event) => self.show(event, run_output),
            ReplEvent::Words(piece) => self.show_stream(piece),
            ReplEvent::Flush => {
                run_output.flush();
                self.show_wait();
            }
            ReplEvent::Late => self.holds_until = None,
            ReplEvent::Tick => {
                self.show_wait();
                self.jobs.poll(PollKind::ForMail);
            }
            ReplEvent::Suspend => editor.suspend(),
            // The signal was for the editor, which was not reading yet.
            ReplEvent::Interrupted if editor.is_leaving() => {
                tokio::time::sleep(ONCE_MORE_AFTER).await;
                editor.suspend();
            }
            // The editor reads nothing while a command runs.
            ReplEvent::Interrupted => {
                let _ = self.run_line(EditorEvent::Interrupt).await;
            }
            ReplEvent::Done(JobResult::Polled) => {}
            ReplEvent::Done(JobResult::Line) => {
                self.holds_until = None;
                self.read_next(editor);
            }
            ReplEvent::Typed(typed) => match self.run_line(typed).await {
                // The next line is read after the work of this one.
                Some(line) => {
                    // The effects of the line are shown after its answer.
                    self.holds_until = Some(Instant::now() + ANSWER_WAIT);
                    self.jobs.run(line);
                }
                None => self.read_next(editor),
            },
        }
    }

    /// Reads the next line, unless the person asked the team to stop: without a prompt the last lines stay in order. Ctrl-C then arrives
    /// as a signal.
    fn read_next(&self, editor: &mut Editor) {
        if self.stops_asked == 0 {
            editor.request_line();
        }
    }

    fn greet(&self) {
        let to_lead = if self.lead_has_model { "TEXT goes to the lead, " } else { "" };
        self.screen.note(&format!("{to_lead}`@NAME TEXT` to a teammate; `/help` shows the commands, Ctrl-D ends"));
    }

    /// Shows on the prompt what a team without a session waits for.
    fn show_wait(&self) {
        let reason = self.live.waiting_for();
        let before = std::mem::replace(&mut self.empty_line.lock().waiting_for, reason.clone());
        if before != reason {
            self.screen.redraw_prompt();
        }
    }

    /// Shows the pieces that have arrived. The event of a text is sent after its last piece: handled first, it would show the text twice.
    fn show_waiting_stream(&mut self, words: &mut broadcast::Receiver<Arc<stream::StreamChunk>>) {
        while let Ok(piece) = words.try_recv() {
            self.show_stream(Ok(piece));
        }
    }

    /// Shows the text of the lead and of watched teammates while their models write it.
    fn show_stream(&mut self, piece: Result<Arc<stream::StreamChunk>, RecvError>) {
        let Ok(piece) = piece else { return };
        let Some(speech) = self.speeches.get_mut(&*piece.teammate) else { return };
        if self.streamed != Some((Arc::clone(&piece.teammate), self.screen.texts_count())) {
            speech.interrupt();
        }
        let lines = speech.push(&piece.event, columns());
        if !lines.is_empty() {
            self.screen.print(&lines);
            self.streamed = Some((Arc::clone(&piece.teammate), self.screen.texts_count()));
        }
    }

    fn show(&mut self, event: Result<Arc<TeamEvent>, RecvError>, run_output: &mut RunOutput) {
        let event = match event {
            Ok(event) => event,
            Err(RecvError::Lagged(missed)) => {
                return self.screen.note(&format!("{missed} events are not shown; `/log` shows them"));
            }
            Err(RecvError::Closed) => return,
        };
        if let EventKind::ModeChanged { desired, .. } = &event.kind {
            self.empty_line.lock().is_paused = *desired == Mode::Pause;
        }
        match &event.kind {
            EventKind::Said { teammate, text, .. } if self.speeches.contains_key(teammate) => {
                run_output.flush();
                if teammate == LEAD {
                    run_output.record_shown_lead_text();
                }
                let said = self.speeches.get_mut(teammate).map(|speech| speech.text(text, columns()));
                self.screen.print(&said.unwrap_or_default());
            }
            // The mail itself is shown, in full.
            EventKind::MessageSent { to, .. } if to == HUMAN => {
                run_output.flush();
                self.jobs.poll(PollKind::ForMail);
            }
            // The message may answer a plan, or a question that another terminal answered.
            EventKind::MessageSent { .. } | EventKind::MessageDelivered { .. } | EventKind::RequestAnswered { .. } => {
                run_output.print_event(&event);
                self.jobs.poll(PollKind::Only);
            }
            _ => run_output.print_event(&event),
        }
    }

    /// Runs a line of the interactive session itself. Returns the work that the line asks for.
    async fn run_line(&mut self, typed: EditorEvent) -> Option<Vec<Work>> {
        match typed {
            EditorEvent::Line(line) => return self.handle_line(&line).await,
            EditorEvent::Interrupt => {
                let now = Instant::now();
                let is_second = self.last_interrupt.replace(now).is_some_and(|last| now - last < TWICE_WITHIN);
                if !is_second && self.stops_asked == 0 {
                    self.screen.note("Ctrl-C once more stops the team; so do Ctrl-D and `/quit`");
                    return None;
                }
                self.stop().await;
            }
            EditorEvent::Cleared => {}
            EditorEvent::End | EditorEvent::Signal => self.stop().await,
            EditorEvent::Failed(reason) => {
                self.screen.note(&format!("cannot read the terminal: {}", one_line(&reason)));
                self.stop().await;
            }
        }
        None
    }

    async fn stop(&mut self) {
        self.stops_asked += 1;
        let is_first = self.stops_asked == 1;
        let text = if is_first { stop_text(&self.live) } else { STOPPING_NOW.to_owned() };
        self.screen.note(&text);
        if !is_first {
            start_exit_deadline();
        }
        self.command(if is_first { TeamCommand::Stop } else { TeamCommand::Abort }).await;
    }

    async fn command(&self, command: TeamCommand) {
        // The send fails only if the team has ended.
        let _ = self.commands.send(command).await;
    }

    async fn handle_line(&mut self, typed: &str) -> Option<Vec<Work>> {
        let line = match Input::parse(typed) {
            Ok(line) => line,
            Err(error) => {
                self.screen.print(&self.output.render_error(&error, &Commands::default()));
                return None;
            }
        };
        let send = |to: String, text: String| Work::Order(Order::Send { to, text });
        match line {
            Input::Nothing => {}
            Input::To { names, text } => return Some(names.into_iter().map(|name| send(name, text.clone())).collect()),
            Input::ToLead(_) if !self.lead_has_model => {
                self.screen.note("the lead has no model and cannot answer; `@NAME TEXT` writes to a teammate, `/help` shows the commands");
            }
            Input::ToLead(text) => return Some(vec![send(LEAD.to_owned(), text)]),
            Input::Brigade { name, arguments } => {
                return Some(vec![Work::Command([name.to_owned()].into_iter().chain(arguments).collect())]);
            }
            Input::Session { command, arguments } => self.run_session_command(command, &arguments).await,
        }
        None
    }

    async fn run_session_command(&mut self, command: SessionCommand, arguments: &[String]) {
        match (command, arguments) {
            (SessionCommand::Help, _) => self.screen.print(&line::help(columns())),
            (SessionCommand::Quit, []) => self.stop().await,
            (SessionCommand::Compact, []) => self.compact(LEAD).await,
            (SessionCommand::Compact, [name]) => self.compact(name.trim_start_matches('@')).await,
            (SessionCommand::Watch, names) => self.watch(names),
            (SessionCommand::Quit, _) => {
                self.screen.note("`/quit` takes no name: it stops the whole team. `/stop NAME` stops a teammate")
            }
            (SessionCommand::Compact, _) => self.screen.note("`/compact` takes one name"),
        }
    }

    /// Compacts the context of a member. An event shows the success, a note the failure.
    async fn compact(&self, name: &str) {
        let (reply, mut done) = mpsc::channel(1);
        self.command(TeamCommand::Compact { name: name.to_owned(), reply }).await;
        let screen = self.screen.clone();
        let name = one_line(name);
        tokio::spawn(async move {
            let done = match tokio::time::timeout(AT_ONCE, done.recv()).await {
                Ok(done) => done,
                Err(_) => {
                    screen.note(&format!("{name} compacts its context after its turn"));
                    done.recv().await
                }
            };
            match done {
                Some(Ok(())) => {}
                Some(Err(reason)) => screen.note(&format!("`/compact {name}`: {reason}")),
                None => screen.note(&format!("`/compact {name}`: {name} stopped before it compacted its context")),
            }
        });
    }

    /// Starts or stops showing the text of these teammates while their models write it.
    fn watch(&mut self, names: &[String]) {
        let mut members = self.live.members();
        members.sort();
        for typed in names {
            let typed = typed.trim_start_matches('@');
            let Some(name) = members.iter().find(|name| name.is_same(typed)) else {
                let known: Vec<&str> = members.iter().map(AsRef::as_ref).collect();
                let text = if LEAD.eq_ignore_ascii_case(typed) {
                    "the lead's text is always shown".to_owned()
                } else {
                    format!("there is no teammate `{}`; known: {}", one_line(typed), known.join(", "))
                };
                self.screen.note(&text);
                continue;
            };
            let name = name.to_string();
            if self.speeches.remove(&name).is_none() {
                self.speeches.insert(name.clone(), StreamView::of(&name, self.screen.has_colors()));
            }
        }
        let watched: Vec<&str> = self.speeches.keys().map(String::as_str).filter(|name| *name != LEAD).collect();
        self.screen.note(&match watched.as_slice() {
            [] => "only the lead's text is shown as it is written; `/watch NAME` shows a teammate's".to_owned(),
            names => {
                format!("the text of {} is shown as it is written; `/watch NAME` again ends that", names.join(", "))
            }
        });
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    ticks.reset();
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
