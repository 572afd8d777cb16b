//! The only writer of the event log. It records each event once, and sends the numbered events to front ends.
//!
//! It folds its own output as a reader will ([`ReplayState`]). So it finds differences between the log and the actual board or team, and
//! records those too. It repeats full snapshots regularly, because a large log loses its oldest part.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, oneshot};

use crate::domain::dependencies::TaskLookup;
use crate::domain::event::{Event, EventKind, InvalidFileSnapshot};
use crate::domain::replay::ReplayState;
use crate::domain::snapshot::{MemberSnapshot, TaskSnapshot};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::task_diff::TaskDiffer;
use crate::ports::{BoardView, Clock, Stores};

/// The number of events by which a front end can be late before it misses some. The log has them all.
pub const EVENTS_BEHIND_MAX: usize = 4096;

/// Messages whose events are written in one append.
const MESSAGES_PER_APPEND_MAX: usize = 256;

/// Queued messages at which agents start no turn and no tool. A sender often cannot wait, so a message is always accepted.
/// The queue therefore holds at most this many, and the few that each agent sends between two such starts.
const MESSAGES_WAITING_MAX: usize = 8192;

/// Events between two full snapshots: each part of the log has several. A snapshot of a large board is large.
const EVENTS_PER_SNAPSHOT: usize = 10_000;

/// Texts that [`EventSink::warn_once`] remembers.
const WARNED_ONCE_MAX: usize = 100;
/// The time limit for writing the last events when the team ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the recorder.
pub enum RecorderMessage {
    /// An event.
    Event(EventKind),
    /// A task as a member saw it.
    Task(Box<Task>),
    /// The board may have changed.
    Board,
    /// The status of members in the lead's report.
    Team(Vec<MemberSnapshot>),
    /// Confirms when everything before it is written.
    Flush(oneshot::Sender<()>),
}

/// Sends messages to the recorder. Cheap to clone. After the recorder has ended, messages are dropped.
#[derive(Clone)]
pub struct EventSink {
    sender: mpsc::UnboundedSender<RecorderMessage>,
    queue: Arc<RecorderQueue>,
    /// The texts that [`EventSink::warn_once`] has recorded.
    warned_texts: Arc<Mutex<HashSet<String>>>,
}

/// The state of the recorder's queue.
#[derive(Default)]
struct RecorderQueue {
    waiting: AtomicUsize,
    has_capacity: Notify,
    /// True if a board message is queued that was not processed yet.
    is_board_queued: AtomicBool,
}

impl EventSink {
    fn send(&self, message: RecorderMessage) -> bool {
        self.queue.waiting.fetch_add(1, Ordering::Relaxed);
        self.sender.send(message).is_ok()
    }

    /// Waits while the queue is full. Returns at once if the recorder has ended.
    pub async fn wait_for_capacity(&self) {
        while self.queue.waiting.load(Ordering::Relaxed) > MESSAGES_WAITING_MAX && !self.sender.is_closed() {
            let has_capacity = self.queue.has_capacity.notified();
            tokio::pin!(has_capacity);
            has_capacity.as_mut().enable();
            if self.queue.waiting.load(Ordering::Relaxed) > MESSAGES_WAITING_MAX {
                tokio::select! {
                    biased;
                    () = has_capacity => {}
                    () = self.sender.closed() => {}
                }
            }
        }
    }

    /// Records an event. The event log numbers it.
    pub fn record(&self, kind: EventKind) {
        self.send(RecorderMessage::Event(kind));
    }

    /// Returns a function with which tools record events.
    #[must_use]
    pub fn facts(&self) -> Arc<dyn Fn(EventKind) + Send + Sync> {
        let sink = self.clone();
        Arc::new(move |kind| sink.record(kind))
    }

    /// Records the changes of a task.
    pub fn record_task(&self, task: &Task) {
        self.send(RecorderMessage::Task(Box::new(task.clone())));
    }

    /// Records a warning only once. Several members may meet the same error, such as a refused key.
    pub fn warn_once(&self, about: &str, text: &str) {
        let mut warned_texts = self.warned_texts.lock().unwrap_or_else(PoisonError::into_inner);
        if warned_texts.len() >= WARNED_ONCE_MAX {
            warned_texts.clear();
        }
        if warned_texts.insert(text.to_owned()) {
            self.warn(about, text.to_owned());
        }
    }

    /// Lets the recorder read the board.
    pub fn request_board_read(&self) {
        if !self.queue.is_board_queued.swap(true, Ordering::AcqRel) {
            self.send(RecorderMessage::Board);
        }
    }

    /// Records changes in the status of members.
    pub fn record_members(&self, members: Vec<MemberSnapshot>) {
        if !members.is_empty() {
            self.send(RecorderMessage::Team(members));
        }
    }

    /// Records a warning.
    pub fn warn(&self, about: impl Into<String>, text: impl Into<String>) {
        self.record(EventKind::Warning { about: about.into(), text: text.into() });
    }

    /// Waits until all messages so far are written, for a few seconds at most.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.send(RecorderMessage::Flush(done)) {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
        }
    }
}

/// Starts the recorder. The tasks in `view` are known, so they cause no events.
#[must_use]
pub fn start(
    stores: Stores,
    clock: Arc<dyn Clock>,
    view: Arc<BoardView>,
) -> (EventSink, broadcast::Sender<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (events, first) = broadcast::channel(EVENTS_BEHIND_MAX);
    let mut differ = TaskDiffer::default();
    view.tasks.values().for_each(|task| differ.remember(task));
    let queue = Arc::new(RecorderQueue::default());
    let recorder = Recorder {
        stores,
        clock,
        differ,
        reported_invalid_files: BTreeSet::new(),
        last_view: view,
        replay: ReplayState::default(),
        events_since_snapshot: 0,
        events: events.clone(),
        queue: Arc::clone(&queue),
    };
    tokio::spawn(recorder.run(receiver));
    (EventSink { sender, queue, warned_texts: Arc::default() }, events, first)
}

struct Recorder {
    stores: Stores,
    clock: Arc<dyn Clock>,
    differ: TaskDiffer,
    reported_invalid_files: BTreeSet<String>,
    /// The board at the last read: a task that is the same object has no changes.
    last_view: Arc<BoardView>,
    /// Board and team as the log describes them.
    replay: ReplayState,
    /// Events written since the last full snapshot.
    events_since_snapshot: usize,
    events: broadcast::Sender<Arc<Event>>,
    queue: Arc<RecorderQueue>,
}

impl Recorder {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<RecorderMessage>) {
        let mut batch = Vec::new();
        while messages.recv_many(&mut batch, MESSAGES_PER_APPEND_MAX).await > 0 {
            let mut unwritten = Vec::new();
            let mut waiting = Vec::new();
            let mut board_changed = false;
            let batch_len = batch.len();
            for message in batch.drain(..) {
                match message {
                    RecorderMessage::Event(kind) => self.record_event(kind, &mut unwritten).await,
                    RecorderMessage::Task(task) if self.differ.contains(task.id) => {
                        if task.status == TaskStatus::InProgress {
                            // It may have waited for a completion that is not recorded yet.
                            self.record_board(SnapshotScope::Changes, &mut unwritten).await;
                        }
                        let events = self.differ.events_for(&task);
                        self.apply(events, &mut unwritten);
                    }
                    // It is new or was deleted meanwhile, which the board shows.
                    RecorderMessage::Task(_) => board_changed = true,
                    RecorderMessage::Board => {
                        // The coming read may miss later changes.
                        self.queue.is_board_queued.store(false, Ordering::Release);
                        board_changed = true;
                    }
                    RecorderMessage::Team(members) => {
                        let events = self.replay.team_repair_events(members);
                        self.apply(events, &mut unwritten);
                    }
                    RecorderMessage::Flush(done) => waiting.push(done),
                }
            }
            if board_changed {
                self.record_board(SnapshotScope::Changes, &mut unwritten).await;
            }
            self.write(unwritten).await;
            self.queue.waiting.fetch_sub(batch_len, Ordering::Relaxed);
            self.queue.has_capacity.notify_waiters();
            for done in waiting {
                let _ = done.send(());
            }
        }
    }

    /// Applies events to the replay, as a reader of the log will, and queues them for writing.
    fn apply(&mut self, events: Vec<EventKind>, unwritten: &mut Vec<EventKind>) {
        let now = self.clock.now();
        events.iter().for_each(|kind| self.replay.apply_event(kind, now));
        unwritten.extend(events);
    }

    async fn record_event(&mut self, kind: EventKind, unwritten: &mut Vec<EventKind>) {
        match &kind {
            // The board at the start is recorded once, later only its changes.
            EventKind::TeamStarted { .. } => {
                self.apply(vec![kind], unwritten);
                let rows = self.last_view.tasks.values().map(|task| TaskSnapshot::of(task));
                self.replay.set_board(rows, invalid_file_snapshots(&self.last_view));
                unwritten.extend(self.replay.board_snapshot_events());
            }
            EventKind::TeamStopped { .. } => {
                self.record_board(SnapshotScope::All, unwritten).await;
                self.apply(vec![kind], unwritten);
            }
            _ => self.apply(vec![kind], unwritten),
        }
    }

    /// Records the changes of the board. It is read here, after all earlier messages, so that a task they call new is on it.
    async fn record_board(&mut self, scope: SnapshotScope, unwritten: &mut Vec<EventKind>) {
        let Ok(view) = self.stores.board.view().await else { return };
        let is_changed = |(id, task): &(&TaskId, &Arc<Task>)| {
            self.last_view.tasks.get(id).is_none_or(|before| !Arc::ptr_eq(before, task))
        };
        let changed: Vec<&Arc<Task>> = view.tasks.iter().filter(is_changed).map(|(_, task)| task).collect();
        let events: Vec<EventKind> = changed.iter().flat_map(|task| self.differ.events_for(task)).collect();
        self.apply(events, unwritten);
        // The differ has all tasks of the board now, so any others were deleted.
        if self.differ.len() > view.tasks.len() {
            let deletions = self.differ.events_for_deleted(|id| view.tasks.contains_key(&id) || view.is_invalid(id));
            self.apply(deletions, unwritten);
        }
        for invalid in &view.invalid {
            if self.reported_invalid_files.insert(invalid.name.clone()) {
                unwritten.push(EventKind::TaskSpoiled { file: invalid.name.clone(), reason: invalid.reason.clone() });
            }
        }
        self.reported_invalid_files.retain(|file| view.invalid.iter().any(|invalid| invalid.name == *file));
        let rows: Vec<TaskSnapshot> = match scope {
            SnapshotScope::Changes => changed.into_iter().map(|task| TaskSnapshot::of(task)).collect(),
            SnapshotScope::All => view.tasks.values().map(|task| TaskSnapshot::of(task)).collect(),
        };
        let events = self.replay.board_repair_events(rows, invalid_file_snapshots(&view));
        self.apply(events, unwritten);
        self.last_view = view;
    }

    async fn write(&mut self, mut unwritten: Vec<EventKind>) {
        if unwritten.is_empty() {
            return;
        }
        if self.events_since_snapshot > EVENTS_PER_SNAPSHOT + self.replay.tasks.len() {
            self.record_board(SnapshotScope::All, &mut unwritten).await;
            unwritten.extend(self.replay.snapshot_events());
            self.events_since_snapshot = 0;
        }
        self.events_since_snapshot += unwritten.len();
        match self.stores.events.append(unwritten).await {
            Ok(events) => {
                for event in events {
                    // There may be no receiver.
                    let _ = self.events.send(Arc::new(event));
                }
            }
            Err(error) => {
                tracing::warn!("cannot write the event log: {error}");
                // A reader misses these events, so the next write has a full snapshot.
                self.events_since_snapshot = usize::MAX / 2;
            }
        }
    }
}

/// The part of the board that is compared with the log.
#[derive(Debug, Clone, Copy)]
enum SnapshotScope {
    /// Tasks that changed since the last read.
    Changes,
    /// All tasks.
    All,
}

fn invalid_file_snapshots(view: &BoardView) -> Vec<InvalidFileSnapshot> {
    view.invalid
        .iter()
        .map(|invalid| InvalidFileSnapshot { file: invalid.name.clone(), reason: invalid.reason.clone() })
        .collect()
}
