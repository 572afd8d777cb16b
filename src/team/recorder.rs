//! The one writer of the event log: it turns what others tell it into numbered facts, says each once, and hands them to
//! front ends.
//!
//! It replays what it writes as a reader will ([`Replay`]), so it knows where the log leaves board or team otherwise than they are, and says
//! that too. Now and then it tells all of both anew: the oldest part of a log is removed when it has grown large.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, oneshot};

use crate::domain::event::{Event, Fact, SpoiledRow};
use crate::domain::facts::TaskBook;
use crate::domain::graph::TaskLookup;
use crate::domain::replay::Replay;
use crate::domain::row::{MemberRow, TaskRow};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::ports::{BoardView, Clock, Stores};

/// Events a slow front end may be behind before it misses some; the log has them all.
pub const EVENTS_BEHIND_MAX: usize = 4096;

/// Most facts that are written in one append.
const FACTS_PER_APPEND_MAX: usize = 256;

/// Notes that wait to be written at which agents begin no turn and no tool. A note is taken at once, because who makes it often
/// cannot wait; so at most this many wait, and the few each agent makes between two such beginnings.
const NOTES_WAITING_MAX: usize = 8192;

/// After so many facts board and team are told anew: some times in each part of the log. On a large board that is as rare as it is long.
const FACTS_PER_TELLING: usize = 10_000;

/// How long the end of a team waits for its last facts to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Something to be recorded.
pub enum Note {
    /// A fact.
    Fact(Fact),
    /// A task as somebody saw it.
    Task(Box<Task>),
    /// The board may have changed: look at it.
    Board,
    /// How members stand, as the lead reports it.
    Team(Vec<MemberRow>),
    /// Answer once all before this is written.
    Flush(oneshot::Sender<()>),
}

/// Where notes go. Cheap to clone; a recorder that is gone takes them silently.
#[derive(Clone)]
pub struct Notes {
    sender: mpsc::UnboundedSender<Note>,
    queue: Arc<Queue>,
}

/// How much waits to be written.
#[derive(Default)]
struct Queue {
    waiting: AtomicUsize,
    has_room: Notify,
    /// The board is to be looked at, and nothing that was noted since it was said so changes that.
    board_is_noted: AtomicBool,
}

impl Notes {
    fn send(&self, note: Note) -> bool {
        self.queue.waiting.fetch_add(1, Ordering::Relaxed);
        self.sender.send(note).is_ok()
    }

    /// Waits while too much waits to be written. A recorder that is gone holds nobody up.
    pub async fn room(&self) {
        while self.queue.waiting.load(Ordering::Relaxed) > NOTES_WAITING_MAX && !self.sender.is_closed() {
            let has_room = self.queue.has_room.notified();
            tokio::pin!(has_room);
            has_room.as_mut().enable();
            if self.queue.waiting.load(Ordering::Relaxed) > NOTES_WAITING_MAX {
                tokio::select! {
                    biased;
                    () = has_room => {}
                    () = self.sender.closed() => {}
                }
            }
        }
    }

    /// Records a fact.
    pub fn fact(&self, fact: Fact) {
        self.send(Note::Fact(fact));
    }

    /// Where tools put facts of their own.
    #[must_use]
    pub fn facts(&self) -> Arc<dyn Fn(Fact) + Send + Sync> {
        let notes = self.clone();
        Arc::new(move |fact| notes.fact(fact))
    }

    /// Records what is new about a task.
    pub fn task(&self, task: &Task) {
        self.send(Note::Task(Box::new(task.clone())));
    }

    /// Has the board looked at.
    pub fn board(&self) {
        if !self.queue.board_is_noted.swap(true, Ordering::AcqRel) {
            self.send(Note::Board);
        }
    }

    /// Records what the log does not say yet of how members stand.
    pub fn team(&self, members: Vec<MemberRow>) {
        if !members.is_empty() {
            self.send(Note::Team(members));
        }
    }

    /// Records a warning.
    pub fn warn(&self, about: impl Into<String>, text: impl Into<String>) {
        self.fact(Fact::Warning { about: about.into(), text: text.into() });
    }

    /// Waits until everything noted so far is written.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.send(Note::Flush(done)) {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
        }
    }
}

/// Starts the recorder on a board it has seen as `view`: what is there already is no news.
#[must_use]
pub fn start(
    stores: Stores,
    clock: Arc<dyn Clock>,
    view: Arc<BoardView>,
) -> (Notes, broadcast::Sender<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (events, first) = broadcast::channel(EVENTS_BEHIND_MAX);
    let mut book = TaskBook::default();
    view.tasks.values().for_each(|task| book.remember(task));
    let queue = Arc::new(Queue::default());
    let recorder = Recorder {
        stores,
        clock,
        book,
        spoiled: BTreeSet::new(),
        seen: view,
        replay: Replay::default(),
        facts_since_telling: 0,
        events: events.clone(),
        queue: Arc::clone(&queue),
    };
    tokio::spawn(recorder.run(receiver));
    (Notes { sender, queue }, events, first)
}

struct Recorder {
    stores: Stores,
    clock: Arc<dyn Clock>,
    book: TaskBook,
    spoiled: BTreeSet<String>,
    /// The board as it was last looked at: tasks that are the same there are no news.
    seen: Arc<BoardView>,
    /// Board and team as the log tells of them.
    replay: Replay,
    /// Facts that were written since all of both was told.
    facts_since_telling: usize,
    events: broadcast::Sender<Arc<Event>>,
    queue: Arc<Queue>,
}

impl Recorder {
    async fn run(mut self, mut notes: mpsc::UnboundedReceiver<Note>) {
        let mut batch = Vec::new();
        while notes.recv_many(&mut batch, FACTS_PER_APPEND_MAX).await > 0 {
            let mut facts = Vec::new();
            let mut waiting = Vec::new();
            let mut look = false;
            let taken = batch.len();
            for note in batch.drain(..) {
                match note {
                    Note::Fact(fact) => self.note(fact, &mut facts).await,
                    Note::Task(task) if self.book.knows(task.id) => {
                        if task.status == TaskStatus::InProgress {
                            // It may have been waiting for what somebody completed and did not tell yet.
                            self.look_at_board(Scope::News, &mut facts).await;
                        }
                        let told = self.book.note(&task);
                        self.tell(told, &mut facts);
                    }
                    // It is new, or somebody saw it before it was deleted: the board says which.
                    Note::Task(_) => look = true,
                    Note::Board => {
                        // From here on a change may be missed by this look.
                        self.queue.board_is_noted.store(false, Ordering::Release);
                        look = true;
                    }
                    Note::Team(members) => {
                        let told = self.replay.team_corrections(members);
                        self.tell(told, &mut facts);
                    }
                    Note::Flush(done) => waiting.push(done),
                }
            }
            if look {
                self.look_at_board(Scope::News, &mut facts).await;
            }
            self.write(facts).await;
            self.queue.waiting.fetch_sub(taken, Ordering::Relaxed);
            self.queue.has_room.notify_waiters();
            for done in waiting {
                let _ = done.send(());
            }
        }
    }

    /// Takes facts in as a reader of the log will, and has them written.
    fn tell(&mut self, told: Vec<Fact>, facts: &mut Vec<Fact>) {
        let now = self.clock.now();
        told.iter().for_each(|fact| self.replay.take_fact(fact, now));
        facts.extend(told);
    }

    async fn note(&mut self, fact: Fact, facts: &mut Vec<Fact>) {
        match &fact {
            // The board as it was found is told once, the rest of the run as it happens.
            Fact::TeamStarted { .. } => {
                self.tell(vec![fact], facts);
                let rows = self.seen.tasks.values().map(|task| TaskRow::of(task));
                self.replay.set_board(rows, spoiled_rows(&self.seen));
                facts.extend(self.replay.board_told_anew());
            }
            Fact::TeamStopped { .. } => {
                self.look_at_board(Scope::Whole, facts).await;
                self.tell(vec![fact], facts);
            }
            _ => self.tell(vec![fact], facts),
        }
    }

    /// What is new on the board. It is read here, behind all notes before, so that a task noted as new is on it.
    async fn look_at_board(&mut self, scope: Scope, facts: &mut Vec<Fact>) {
        let Ok(view) = self.stores.board.view().await else { return };
        let is_news =
            |(id, task): &(&TaskId, &Arc<Task>)| self.seen.tasks.get(id).is_none_or(|seen| !Arc::ptr_eq(seen, task));
        let news: Vec<&Arc<Task>> = view.tasks.iter().filter(is_news).map(|(_, task)| task).collect();
        let told: Vec<Fact> = news.iter().flat_map(|task| self.book.note(task)).collect();
        self.tell(told, facts);
        // Every task there is remembered by now, so one more is one that is gone.
        if self.book.len() > view.tasks.len() {
            let gone = self.book.note_gone(|id| view.tasks.contains_key(&id) || view.is_spoiled(id));
            self.tell(gone, facts);
        }
        for spoiled in &view.spoiled {
            if self.spoiled.insert(spoiled.file.clone()) {
                facts.push(Fact::TaskSpoiled { file: spoiled.file.clone(), reason: spoiled.reason.clone() });
            }
        }
        self.spoiled.retain(|file| view.spoiled.iter().any(|spoiled| spoiled.file == *file));
        let rows: Vec<TaskRow> = match scope {
            Scope::News => news.into_iter().map(|task| TaskRow::of(task)).collect(),
            Scope::Whole => view.tasks.values().map(|task| TaskRow::of(task)).collect(),
        };
        let told = self.replay.corrections(rows, spoiled_rows(&view));
        self.tell(told, facts);
        self.seen = view;
    }

    async fn write(&mut self, mut facts: Vec<Fact>) {
        if facts.is_empty() {
            return;
        }
        if self.facts_since_telling > FACTS_PER_TELLING + self.replay.tasks.len() {
            self.look_at_board(Scope::Whole, &mut facts).await;
            facts.extend(self.replay.told_anew());
            self.facts_since_telling = 0;
        }
        self.facts_since_telling += facts.len();
        match self.stores.events.append(facts).await {
            Ok(events) => {
                for event in events {
                    // Nobody listening is no error.
                    let _ = self.events.send(Arc::new(event));
                }
            }
            Err(error) => {
                tracing::warn!("the event log cannot be written: {error}");
                // What was not written is not known to a reader: all is told anew with what is written next.
                self.facts_since_telling = usize::MAX / 2;
            }
        }
    }
}

/// How much of the board is compared with what the log says.
#[derive(Debug, Clone, Copy)]
enum Scope {
    /// What is other than it was at the look before.
    News,
    /// All of it.
    Whole,
}

fn spoiled_rows(view: &BoardView) -> Vec<SpoiledRow> {
    view.spoiled
        .iter()
        .map(|spoiled| SpoiledRow { file: spoiled.file.clone(), reason: spoiled.reason.clone() })
        .collect()
}
