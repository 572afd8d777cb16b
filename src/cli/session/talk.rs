//! The loop of a session: what happens to the team is shown, what is typed is obeyed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::columns;
use super::completion::Vocabulary;
use super::editor::{Editor, Typed};
use super::jobs::{Done, Jobs, Look, Words};
use super::line::{self, Line, Own};
use super::screen::Screen;
use super::speech::Speech;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::headless::{Report, STOPPING_NOW, stopping};
use crate::cli::signals::{Kind, Signals, Suspensions, end_in_time};
use crate::domain::event::{Event as TeamEvent, Fact};
use crate::domain::name::{HUMAN, LEAD};
use crate::domain::state::Mode;
use crate::team::handle::{Command, Live, Outcome, TeamHandle};
use crate::team::words;
use crate::ui::text::one_line;

/// Two Ctrl-C within this time stop the team.
const TWICE_WITHIN: Duration = Duration::from_secs(3);
/// What takes longer than this is said to have begun.
const AT_ONCE: Duration = Duration::from_millis(300);
/// The editor may take so long from being told to read to reading.
const ONCE_MORE_AFTER: Duration = Duration::from_millis(20);
/// How often mail of other programs is looked for; that of the team is heard of at once.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What happens to a session.
enum Event {
    Team(Result<Arc<TeamEvent>, RecvError>),
    Words(Result<Arc<words::Words>, RecvError>),
    /// A command has not answered yet, and events are held back no longer.
    Late,
    Typed(Typed),
    /// Ctrl-Z.
    Suspend,
    /// SIGINT.
    Interrupted,
    Done(Done),
    Quiet,
    Tick,
}

/// What a session remembers from one thing that happens to the next.
pub struct Talk {
    /// Whether the lead has a model that answers what it is told.
    lead_thinks: bool,
    live: Arc<Live>,
    commands: mpsc::Sender<Command>,
    screen: Screen,
    vocabulary: Arc<Mutex<Vocabulary>>,
    jobs: Jobs,
    /// Whose words are shown as they come.
    speeches: BTreeMap<String, Speech>,
    /// Events are held back until then.
    holds_until: Option<Instant>,
    last_interrupt: Option<Instant>,
    stops_asked: u32,
}

impl Talk {
    /// A talk with this team that has not begun.
    #[must_use]
    pub fn new(context: Context, team: &TeamHandle, screen: Screen, vocabulary: Arc<Mutex<Vocabulary>>) -> Self {
        Self {
            lead_thinks: team.lead_thinks(),
            live: Arc::clone(team.live()),
            commands: team.commands(),
            jobs: Jobs::new(context, screen.clone(), Arc::clone(&vocabulary), team.lead_thinks()),
            screen,
            vocabulary,
            speeches: BTreeMap::from([(LEAD.to_owned(), Speech::of(LEAD))]),
            holds_until: None,
            last_interrupt: None,
            stops_asked: 0,
        }
    }

    /// Talks until the team has ended.
    ///
    /// # Errors
    /// The lead broke down.
    pub async fn until_the_end(
        mut self,
        team: &mut TeamHandle,
        report: &mut Report,
        signals: &mut Signals,
        editor: &mut Editor,
    ) -> CliResult<Outcome> {
        let (mut events, mut words) = (team.events(), team.words());
        let (mut ticks, mut suspensions) = (ticks(), Suspensions::listen()?);
        self.greet();
        self.jobs.look(Look::AtMail);
        let outcome = loop {
            let event = tokio::select! {
                event = events.recv(), if self.holds_until.is_none() => Event::Team(event),
                () = at(self.holds_until) => Event::Late,
                piece = words.recv() => Event::Words(piece),
                outcome = team.wait() => break outcome,
                () = suspensions.next() => Event::Suspend,
                kind = signals.next() => match kind {
                    Kind::Interrupt => Event::Interrupted,
                    Kind::End => Event::Typed(Typed::Signal),
                },
                typed = editor.next() => Event::Typed(typed),
                done = self.jobs.done() => Event::Done(done),
                () = report.quiet() => Event::Quiet,
                _ = ticks.tick() => Event::Tick,
            };
            self.handle(event, report, editor).await;
        };
        while let Ok(event) = events.try_recv() {
            self.show(Ok(event), report);
        }
        outcome.map_err(|error| CliError::refused(format!("the lead broke down: {error}")))
    }

    async fn handle(&mut self, event: Event, report: &mut Report, editor: &mut Editor) {
        match event {
            Event::Team(event) => self.show(event, report),
            Event::Words(piece) => self.hear(piece),
            Event::Quiet => report.flush(),
            Event::Late => self.holds_until = None,
            Event::Tick => self.jobs.look(Look::ForMail),
            Event::Suspend => editor.suspend(),
            // Meant for the editor, which was not reading yet.
            Event::Interrupted if editor.is_leaving() => {
                tokio::time::sleep(ONCE_MORE_AFTER).await;
                editor.suspend();
            }
            // A command runs, and the editor reads nothing meanwhile.
            Event::Interrupted => {
                let _ = self.obey(Typed::Interrupt).await;
            }
            Event::Done(Done::Learned(tasks)) => {
                let mut vocabulary = Vocabulary::of(&self.vocabulary);
                tasks.iter().for_each(|(task, subject)| vocabulary.learn(*task, subject));
            }
            Event::Done(Done::Looked) => {}
            Event::Done(Done::Commands) => {
                self.holds_until = None;
                editor.go_on();
            }
            Event::Typed(typed) => match self.obey(typed).await {
                // The line is done when they are.
                Some(commands) => {
                    // What it brings about is told behind its answer.
                    self.holds_until = Some(Instant::now() + AT_ONCE);
                    self.jobs.run(commands);
                }
                None => editor.go_on(),
            },
        }
    }

    fn greet(&mut self) {
        let to_lead = if self.lead_thinks { "TEXT goes to the lead, " } else { "" };
        self.screen.note(&format!("{to_lead}@NAME TEXT to a teammate; /help shows the commands, Ctrl-D ends"));
        self.jobs.learn();
    }

    /// What the lead says is shown while it says it, line by line; what others say where that is wanted.
    fn hear(&mut self, piece: Result<Arc<words::Words>, RecvError>) {
        let Ok(piece) = piece else { return };
        if let Some(speech) = self.speeches.get_mut(&*piece.teammate) {
            self.screen.print(&speech.hear(&piece.saying, columns()));
        }
    }

    fn show(&mut self, event: Result<Arc<TeamEvent>, RecvError>, report: &mut Report) {
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
            Fact::ModeChanged { desired, .. } => Vocabulary::of(&self.vocabulary).pause(*desired == Mode::Pause),
            _ => {}
        }
        match &event.fact {
            Fact::Said { teammate, text, .. } if self.speeches.contains_key(teammate) => {
                report.flush();
                if teammate == LEAD {
                    report.heard(text);
                }
                let said = self.speeches.get_mut(teammate).map(|speech| speech.said(text, columns()));
                self.screen.print(&said.unwrap_or_default());
            }
            // It is shown whole.
            Fact::MessageSent { to, .. } if to == HUMAN => {
                report.flush();
                self.jobs.look(Look::ForMail);
            }
            // It may answer a plan, or somebody else's terminal a question.
            Fact::MessageSent { .. } | Fact::MessageDelivered { .. } => {
                report.event(&event);
                self.jobs.look(Look::Only);
            }
            _ => report.event(&event),
        }
    }

    /// Does what was typed. Commands of `brigade` that are to be run are handed back.
    async fn obey(&mut self, typed: Typed) -> Option<Vec<Words>> {
        match typed {
            Typed::Line(line) => return self.obey_line(&line).await,
            Typed::Interrupt => {
                let now = Instant::now();
                let is_second = self.last_interrupt.replace(now).is_some_and(|last| now - last < TWICE_WITHIN);
                if !is_second && self.stops_asked == 0 {
                    self.screen.note("Ctrl-C once more stops the team; so does Ctrl-D");
                    return None;
                }
                self.stop().await;
            }
            Typed::Cleared => {}
            Typed::End | Typed::Signal => self.stop().await,
            Typed::Failed(reason) => {
                self.screen.note(&format!("the terminal cannot be read: {}", one_line(&reason)));
                self.stop().await;
            }
        }
        None
    }

    async fn stop(&mut self) {
        self.stops_asked += 1;
        let is_first = self.stops_asked == 1;
        let text = if is_first { stopping(&self.live) } else { STOPPING_NOW.to_owned() };
        self.screen.note(&text);
        if !is_first {
            end_in_time();
        }
        self.command(if is_first { Command::Stop } else { Command::StopNow }).await;
    }

    async fn command(&self, command: Command) {
        // A team that is gone needs no commands.
        let _ = self.commands.send(command).await;
    }

    async fn obey_line(&mut self, typed: &str) -> Option<Vec<Words>> {
        let line = match Line::parse(typed) {
            Ok(line) => line,
            Err(reason) => {
                self.screen.note(&reason);
                return None;
            }
        };
        let send = |to: String, text: String| vec!["send".to_owned(), to, "--".to_owned(), text];
        match line {
            Line::Nothing => {}
            Line::To { names, text } => return Some(names.into_iter().map(|name| send(name, text.clone())).collect()),
            Line::ToLead(_) if !self.lead_thinks => {
                self.screen.note("this lead works by rule and answers nothing: @name TEXT writes to a teammate, /help shows the commands");
            }
            Line::ToLead(text) => return Some(vec![send(LEAD.to_owned(), text)]),
            Line::Brigade { name, arguments } => {
                return Some(vec![[name.to_owned()].into_iter().chain(arguments).collect()]);
            }
            Line::Own { own, arguments } => self.do_own(own, &arguments).await,
        }
        None
    }

    async fn do_own(&mut self, own: Own, arguments: &[String]) {
        match (own, arguments) {
            (Own::Help, _) => self.screen.print(&line::help(columns())),
            (Own::Quit, []) => self.stop().await,
            (Own::Compact, []) => self.compact(LEAD).await,
            (Own::Compact, [name]) => self.compact(name.trim_start_matches('@')).await,
            (Own::Watch, names) => self.watch(names),
            (Own::Quit, _) => {
                self.screen.note("/quit stops the whole team and takes no name: /stop NAME stops a teammate")
            }
            (Own::Compact, _) => self.screen.note("/compact takes one name"),
        }
    }

    /// Has a context compacted. What came of it is shown when it has, as an event, or by who waits for the reply.
    async fn compact(&self, name: &str) {
        let (reply, mut done) = mpsc::channel(1);
        self.command(Command::Compact { name: name.to_owned(), reply }).await;
        let (screen, name) = (self.screen.clone(), one_line(name));
        tokio::spawn(async move {
            let done = match tokio::time::timeout(AT_ONCE, done.recv()).await {
                Ok(done) => done,
                Err(_) => {
                    screen.note(&format!("{name} compacts its context, once a turn it is in has ended"));
                    done.recv().await
                }
            };
            match done {
                Some(Ok(())) => {}
                Some(Err(reason)) => screen.note(&format!("/compact {name}: {reason}")),
                None => screen.note(&format!("/compact {name}: it ended before it came to that")),
            }
        });
    }

    /// Shows the words of these teammates as they come, or no more.
    fn watch(&mut self, names: &[String]) {
        let mut members = self.live.members();
        members.sort();
        for typed in names {
            let typed = typed.trim_start_matches('@');
            let Some(name) = members.iter().find(|name| name.is_same(typed)) else {
                let known: Vec<&str> = members.iter().map(AsRef::as_ref).collect();
                let text = match LEAD.eq_ignore_ascii_case(typed) {
                    true => "the lead's words are always shown".to_owned(),
                    false => format!("there is nobody called `{}`; there are: {}", one_line(typed), known.join(", ")),
                };
                self.screen.note(&text);
                continue;
            };
            let name = name.to_string();
            if self.speeches.remove(&name).is_none() {
                self.speeches.insert(name.clone(), Speech::of(&name));
            }
        }
        let watched: Vec<&str> = self.speeches.keys().map(String::as_str).filter(|name| *name != LEAD).collect();
        self.screen.note(&match watched.as_slice() {
            [] => "only the lead's words are shown as they come; /watch NAME shows a teammate's".to_owned(),
            names => format!("the words of {} are shown as they come; /watch NAME again: no more", names.join(", ")),
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
