//! `brigade watch`: a team in full screen, beside the terminal where it runs.
//!
//! Details are the answers to questions, and a key that changes something gives an order.

mod help;
mod keys;
mod model;
mod question;
mod screen;
mod snapshot;

use crate::front::text::commands::{Commands, hint, line};
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event as TerminalEvent};
use ratatui::crossterm::execute;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::api::Order;
use crate::api::run::{self, RunChoice};
use crate::front::cli::context::{Context, on_one_thread};
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::logging;
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;
use crate::front::cli::signals::Signals;
use crate::front::cli::surface::Surface;
use crate::platform::terminal;
use crate::ports::EventReader;
use keys::Effect;
use model::Model;
use question::Question;
use snapshot::Snapshot;

/// The shortest wait between two readings of the team.
const READ_WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest wait between two readings of the team. A reading can take long because other programs use the machine.
const READ_WAIT_MAX: Duration = Duration::from_secs(5);
/// A reading is followed by a wait of this many times its duration, within the limits, so that a large board uses little of a core.
const READ_WAIT_FACTOR: u32 = 50;
/// The interval at which details are read again without an event, because another program may have changed them.
const DETAILS_INTERVAL: Duration = Duration::from_secs(10);

/// Watch a team in full screen: board, members, transcripts, and what waits for you
///
/// It works beside a running team, from any terminal. Questions, plans and reviews are answered by keys. `?` shows the keys.
#[derive(Debug, clap::Args)]
pub struct Watch {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
}

/// The result of a job that ran in a thread of its own.
enum JobResult {
    /// The question for details, and its answer.
    Details(Question, Result<String, String>),
    /// The answer to the order of a key, or its error.
    Order(Result<String, String>),
}

impl Watch {
    /// Shows the team until the person quits or a signal arrives.
    ///
    /// # Errors
    /// There is no terminal, it cannot be used, or there is no such team.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let is_terminal = !context.output.json && io::stdin().is_terminal() && io::stdout().is_terminal();
        if !is_terminal || !terminal::can_draw() {
            let which = if is_terminal { " that can move its cursor: TERM is empty or `dumb`" } else { "" };
            return Err(CliError::usage(format!(
                "{} needs a terminal{which}",
                Commands::default().typed(line("watch"))
            ))
            .hint(hint![
                line("team --json"),
                ", ",
                line("log --follow"),
                ", or ",
                line("run --progress plain")
            ]));
        }
        let events = run::reader(&context.workspace, RunChoice::Nth(1)).await?;
        let mut signals = Signals::listen(true)?;
        let cannot_use = |error: io::Error| CliError::refused(format!("cannot use the terminal: {error}"));
        // The first reading reports errors before the screen changes.
        let size = terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0, height.0));
        let mut model = Model::new(size);
        let snapshot = Snapshot::read(context, self.team.as_ref(), model.columns(), model.list_columns()).await?;
        model.set_snapshot(snapshot);
        logging::show_on(Surface::Watch);
        let mut terminal = take_terminal().map_err(cannot_use)?;
        let team = self.team;
        let next_read = Instant::now();
        let mut watcher = Watcher { context, team, events, jobs: JoinSet::new(), next_read, details_read: None };
        let outcome = watcher.run(&mut model, &mut terminal, &mut signals).await;
        give_terminal_back();
        outcome.map_err(cannot_use)?;
        Ok(CommandAnswer::text(String::new()))
    }
}

enum WatchEvent {
    Terminal(TerminalEvent),
    /// The next reading of the team is due.
    ReadDue,
    JobEnded(Result<JobResult, JoinError>),
    /// A signal arrived, or the terminal is closed.
    Stopped,
}

struct Watcher<'a> {
    context: &'a Context,
    team: Option<String>,
    events: Box<dyn EventReader>,
    jobs: JoinSet<JobResult>,
    /// The time of the next reading of the team.
    next_read: Instant,
    /// The time of the last reading of details.
    details_read: Option<Instant>,
}

impl Watcher<'_> {
    async fn run(
        &mut self,
        model: &mut Model,
        terminal: &mut DefaultTerminal,
        signals: &mut Signals,
    ) -> io::Result<()> {
        let mut terminal_events = read_terminal_events()?;
        let has_colors = self.context.output.has_colors();
        loop {
            self.request_details(model);
            if model.take_changed() {
                terminal.draw(|frame| screen::draw(frame, model, has_colors))?;
            }
            let event = tokio::select! {
                event = terminal_events.recv() => event.map_or(WatchEvent::Stopped, WatchEvent::Terminal),
                () = tokio::time::sleep_until(self.next_read) => WatchEvent::ReadDue,
                Some(result) = self.jobs.join_next() => WatchEvent::JobEnded(result),
                _ = signals.next() => WatchEvent::Stopped,
            };
            match self.handle(event, model).await {
                Effect::Quit => return Ok(()),
                Effect::Suspend => suspend(terminal, model)?,
                Effect::Redraw => terminal.clear()?,
                Effect::Give(order) => self.give(order),
                Effect::None => {}
            }
        }
    }

    async fn handle(&mut self, event: WatchEvent, model: &mut Model) -> Effect {
        match event {
            WatchEvent::Stopped => return Effect::Quit,
            WatchEvent::Terminal(TerminalEvent::Key(key)) => return keys::handle(model, key),
            WatchEvent::Terminal(TerminalEvent::Paste(text)) => keys::paste(model, &text),
            WatchEvent::Terminal(TerminalEvent::Resize(columns, rows)) => {
                model.resize((columns, rows));
                self.read(model).await;
            }
            WatchEvent::Terminal(_) => {}
            WatchEvent::ReadDue => self.read(model).await,
            WatchEvent::JobEnded(Ok(JobResult::Details(question, text))) => model.set_details(&question, text),
            WatchEvent::JobEnded(Ok(JobResult::Order(answer))) => {
                model.take_answer(&answer);
                self.read(model).await;
            }
            WatchEvent::JobEnded(Err(error)) => {
                model.end_request();
                model.take_answer(&Err(format!("a command failed: {error}")));
            }
        }
        Effect::None
    }

    /// Reads the team. If it has new events, the details are read again too.
    async fn read(&mut self, model: &mut Model) {
        let started_at = Instant::now();
        let context = self.context.in_watch(model.list_columns());
        match Snapshot::read(&context, self.team.as_ref(), model.columns(), model.list_columns()).await {
            Ok(snapshot) => model.set_snapshot(snapshot),
            Err(error) => model.set_message(&format!("error: {}", error.message)),
        }
        let has_events = self.events.read_new().await.is_ok_and(|events| !events.is_empty());
        if has_events || self.details_read.is_some_and(|read| read.elapsed() >= DETAILS_INTERVAL) {
            model.mark_details_stale();
        }
        self.next_read = Instant::now() + wait_after(started_at.elapsed());
    }

    /// Starts to read the details that the screen needs, unless others are being read.
    fn request_details(&mut self, model: &mut Model) {
        let Some(question) = model.next_question() else { return };
        self.details_read = Some(Instant::now());
        let context = self.context.in_watch(model.details_columns());
        self.jobs.spawn_blocking(move || {
            let answer = on_one_thread(question.clone().answer(&context));
            JobResult::Details(question, context.text_of(answer))
        });
    }

    fn give(&mut self, order: Order) {
        let context = self.context.in_watch(usize::MAX);
        self.jobs.spawn_blocking(move || {
            let answer = on_one_thread(order::give(&context, order));
            JobResult::Order(context.text_of(answer))
        });
    }
}

/// The wait after a reading of the team that took this long.
fn wait_after(reading: Duration) -> Duration {
    (reading * READ_WAIT_FACTOR).clamp(READ_WAIT_MIN, READ_WAIT_MAX)
}

/// Starts a thread that reads keys and changes of the terminal's size. It ends with the process.
fn read_terminal_events() -> io::Result<mpsc::UnboundedReceiver<TerminalEvent>> {
    let (events, received) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        while let Ok(event) = event::read() {
            if events.send(event).is_err() {
                break;
            }
        }
    })?;
    Ok(received)
}

/// Switches the terminal to full screen. Pasted text arrives as one event.
fn take_terminal() -> io::Result<DefaultTerminal> {
    let terminal = ratatui::try_init()?;
    execute!(io::stdout(), EnableBracketedPaste)?;
    Ok(terminal)
}

fn give_terminal_back() {
    // An error means that the terminal is closed.
    let _ = execute!(io::stdout(), DisableBracketedPaste);
    ratatui::restore();
}

/// Restores the terminal, suspends the process, and takes the terminal again when the process continues.
fn suspend(terminal: &mut DefaultTerminal, model: &mut Model) -> io::Result<()> {
    give_terminal_back();
    terminal::suspend();
    *terminal = take_terminal()?;
    if let Some((columns, rows)) = terminal_size::terminal_size() {
        model.resize((columns.0, rows.0));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reading_does_not_stop_the_watch() {
        for (reading_ms, wait_s) in [(1, 1), (60, 3), (8_000, 5)] {
            assert_eq!(wait_after(Duration::from_millis(reading_ms)), Duration::from_secs(wait_s), "{reading_ms} ms");
        }
    }
}
