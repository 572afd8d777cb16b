//! The only writer of the event log. It records each event once, and sends the numbered events to front ends.
//!
//! An event that changes a task or a member has the row after the change. The recorder writes all rows at the start of a run, and again in
//! each further part of the log. The reason is that a large log loses its oldest parts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::broadcast;

use super::event_sink::{EventQueue, EventSink, RecorderMessage, event_queue};
use crate::domain::log::event::{Event, EventKind, InvalidFileSnapshot, NewEvent};
use crate::domain::log::replay::{
    INVALID_FILES_MAX, ROWS_PER_EVENT_MAX, ReplayState, changed_rows_events, whole_board_events,
};
use crate::domain::log::request_log::RequestLog;
use crate::domain::log::snapshot::MemberSnapshot;
use crate::domain::log::task_diff::{TaskChanges, TaskDiffer};
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::name::HUMAN;
use crate::ports::{BoardView, Clock, QuarantinedTask, Runs, StoreResult, Stores};

/// The number of events by which a front end can be late before it misses some. The log has them all.
pub const EVENTS_BEHIND_MAX: usize = 4096;

/// Messages whose events are written in one append.
const MESSAGES_PER_APPEND_MAX: usize = 256;

/// Starts the recorder. The tasks on the board are known, so they cause no events. The list of requests continues where the log of the
/// previous run ends.
///
/// # Errors
/// The board, the requests or that log cannot be read. Nothing was recorded.
pub async fn start(
    stores: Stores,
    clock: Arc<dyn Clock>,
) -> StoreResult<(EventSink, broadcast::Sender<Arc<Event>>, broadcast::Receiver<Arc<Event>>)> {
    let view = stores.board.view().await?;
    let stored = stores.requests.all().await?;
    let requests = RequestLog::resume(&stores.events.reader(Runs::Newest).read_new().await?, &stored);
    let (sink, queue) = event_queue();
    let (events, first) = broadcast::channel(EVENTS_BEHIND_MAX);
    let mut recorder = Recorder {
        stores,
        clock,
        invalid: InvalidFiles::default(),
        unwritten: Vec::new(),
        differ: TaskDiffer::new(view.tasks.clone()),
        replay: ReplayState::default(),
        requests,
        is_board_unread: false,
        are_requests_unread: false,
        parts_begun: 0,
        events_since_rows: 0,
        has_lost_events: false,
        events: events.clone(),
    };
    // They come first: after a crash during the first write, the next run finds them in what was written.
    recorder.record(recorder.requests.row_events());
    tokio::spawn(recorder.run(queue));
    Ok((sink, events, first))
}

struct Recorder {
    stores: Stores,
    clock: Arc<dyn Clock>,
    differ: TaskDiffer,
    invalid: InvalidFiles,
    /// The events of the messages since the last write.
    unwritten: Vec<NewEvent>,
    /// Board and team as the log describes them, with the unwritten events.
    replay: ReplayState,
    /// The requests as the log describes them, with the unwritten events.
    requests: RequestLog,
    /// True if the last read of the board failed. Its events come with the next message.
    is_board_unread: bool,
    /// True if the last read of the stored requests failed.
    are_requests_unread: bool,
    /// The parts of the log when all rows were written last.
    parts_begun: u64,
    /// The number of events after these rows.
    events_since_rows: usize,
    /// True if the log refused events, so a reader misses rows.
    has_lost_events: bool,
    events: broadcast::Sender<Arc<Event>>,
}

/// The invalid files of the board.
#[derive(Default)]
struct InvalidFiles {
    /// The revision of the board at which `tasks` was read.
    revision: Option<u64>,
    /// The tasks whose file is invalid.
    tasks: BTreeMap<TaskId, String>,
    /// The files in the quarantine; those of valid tasks too.
    quarantined: BTreeMap<TaskId, QuarantinedTask>,
    /// The files that were reported.
    reported: Vec<InvalidFileSnapshot>,
}

impl InvalidFiles {
    /// Returns the invalid files, also those that were moved to quarantine before they were read here.
    fn snapshots(&self, view: &BoardView) -> Vec<InvalidFileSnapshot> {
        let in_place = view.invalid.iter().map(|entry| InvalidFileSnapshot {
            file: entry.name.clone(),
            reason: entry.reason.clone(),
            place: None,
        });
        let quarantined = self.tasks.iter().filter(|(id, _)| !view.is_invalid(**id)).map(|(id, place)| {
            let file = id.file_name();
            let reported = self.reported.iter().find(|reported| reported.file == file).cloned();
            let reason = self.quarantined.get(id).and_then(|task| task.reason.clone());
            reported.unwrap_or_else(|| InvalidFileSnapshot {
                file,
                reason: reason.unwrap_or_else(|| "its content was invalid".to_owned()),
                place: Some(place.clone()),
            })
        });
        in_place.chain(quarantined).collect()
    }
}

impl Recorder {
    async fn run(mut self, mut queue: EventQueue) {
        let mut batch = Vec::new();
        while queue.receive(&mut batch, MESSAGES_PER_APPEND_MAX).await {
            let mut waiting = Vec::new();
            let weight = batch.iter().map(RecorderMessage::weight).sum();
            if self.is_board_unread {
                self.record_board().await;
            }
            if self.are_requests_unread {
                self.record_requests().await;
            }
            for message in batch.drain(..) {
                match message {
                    RecorderMessage::Event(event) => self.record_event(*event).await,
                    RecorderMessage::Task(task, cause) => self.record_task(&task, cause).await,
                    RecorderMessage::Board => {
                        queue.begin_board_read();
                        self.record_board().await;
                    }
                    RecorderMessage::Requests => {
                        queue.begin_requests_read();
                        self.record_requests().await;
                    }
                    RecorderMessage::Team(members) => self.record_members(members),
                    RecorderMessage::Flush(done) => waiting.push(done),
                }
            }
            self.write().await;
            queue.release(weight);
            for done in waiting {
                let _ = done.send(());
            }
        }
    }

    /// Applies events to the replay, as a reader of the log will, and queues them for writing.
    fn record<T: Into<NewEvent>>(&mut self, events: impl IntoIterator<Item = T>) {
        let now = self.clock.now();
        for event in events {
            let event = event.into();
            self.replay.apply_new(&event, now);
            self.requests.apply(&event.kind);
            self.unwritten.push(event);
        }
    }

    async fn record_event(&mut self, event: NewEvent) {
        match &event.kind {
            // A read of the stored requests may have found it before this event came.
            EventKind::RequestMade(made) if self.requests.is_known(&made.request) => return,
            // The stored requests have it.
            EventKind::RequestAnswered { .. } => return self.record_requests().await,
            _ => {}
        }
        let kind = event.kind.clone();
        self.record([event]);
        match &kind {
            EventKind::TeamStarted { .. } => {
                self.record(whole_board_events(self.differ.rows(), Vec::new()));
                self.record_requests().await;
            }
            // A message that brings a request leaves the question open.
            EventKind::MessageSent { from, to, task: None, .. } if to == HUMAN => {
                self.record(self.requests.member_wrote(from));
            }
            EventKind::MessageSent { from, to, .. } | EventKind::MessageDelivered { from, to, .. } if from == HUMAN => {
                self.record(self.requests.person_wrote(to));
            }
            _ => {}
        }
    }

    /// Records the changes of the stored requests, also those that another process made.
    async fn record_requests(&mut self) {
        let stored = self.stores.requests.all().await;
        self.are_requests_unread = stored.is_err();
        if let Ok(stored) = stored {
            self.record(self.requests.missing_events(&stored));
        }
    }

    /// Records the changes of a task that a member saw. If the board shows more that happened before, it is read first.
    async fn record_task(&mut self, task: &Arc<Task>, cause: Option<EventKind>) {
        if !self.differ.contains(task.id) || self.differ.misses_end_before(task) {
            self.record_board().await;
        }
        if self.differ.contains(task.id) {
            let changes = self.differ.report(task, cause);
            self.record_changes(changes);
        } else {
            // It was deleted meanwhile.
            self.record(cause);
        }
    }

    /// Records the changes of the board. It is read here, after all earlier messages, so that a task they call new is on it.
    async fn record_board(&mut self) {
        self.is_board_unread = self.read_board().await.is_err();
    }

    async fn read_board(&mut self) -> StoreResult<()> {
        let view = self.stores.board.view().await?;
        if self.invalid.revision != Some(view.revision) {
            let tasks = self.stores.board.invalid_tasks(&view).await?;
            if !tasks.is_empty() {
                self.invalid.quarantined = self.stores.board.quarantined_tasks().await.unwrap_or_default();
            }
            self.invalid.tasks = tasks;
            self.invalid.revision = Some(view.revision);
        }
        let missing = self.differ.missing(&view.tasks);
        let deleted = if missing.is_empty() {
            BTreeSet::new()
        } else {
            self.stores.board.deleted(&missing).await.unwrap_or_default()
        };
        let is_invalid = |id: TaskId| self.invalid.tasks.contains_key(&id);
        let changes = self.differ.read(&view.tasks, is_invalid, |id| deleted.contains(&id));
        self.record_changes(changes);
        let invalid_files = self.invalid.snapshots(&view);
        if invalid_files == self.invalid.reported {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.invalid.reported, invalid_files);
        let is_new = |invalid: &&InvalidFileSnapshot| !before.iter().any(|known| known.file == invalid.file);
        let new = self.invalid.reported.iter().filter(is_new).cloned();
        let events: Vec<EventKind> = new.map(EventKind::InvalidTaskFileFound).collect();
        self.record(events);
        let invalid_files = Some(self.invalid.reported.iter().take(INVALID_FILES_MAX).cloned().collect());
        let list = EventKind::Board { tasks: Vec::new(), invalid_files, is_full_board: false, tasks_to_follow: 0 };
        self.record([list]);
        Ok(())
    }

    fn record_changes(&mut self, TaskChanges { events, rows }: TaskChanges) {
        self.record(events);
        self.record(changed_rows_events(&rows));
    }

    /// Records the rows that differ. A row from before the last change of phase is late.
    fn record_members(&mut self, members: Vec<MemberSnapshot>) {
        let is_news = |row: &MemberSnapshot| {
            self.replay.members.get(&row.name).is_none_or(|known| **known != *row && known.since <= row.since)
        };
        let rows: Vec<Arc<MemberSnapshot>> = members.into_iter().filter(is_news).map(Arc::new).collect();
        let event = |rows: &[Arc<MemberSnapshot>]| EventKind::Team { members: rows.to_vec(), full_team: None };
        self.record(rows.chunks(ROWS_PER_EVENT_MAX).map(event));
    }

    async fn write(&mut self) {
        let unwritten = std::mem::take(&mut self.unwritten);
        if unwritten.is_empty() {
            return;
        }
        self.events_since_rows += unwritten.len();
        self.append(unwritten).await;
        // The rows of a board that is larger than a part of the log must not begin the next part.
        let is_due = self.events_since_rows > self.replay.tasks.len();
        if self.has_lost_events || (is_due && self.parts_begun != self.stores.events.parts_begun()) {
            self.has_lost_events = false;
            let rows = self.replay.row_events().into_iter().chain(self.requests.row_events());
            self.append(rows.map(NewEvent::from).collect()).await;
            self.parts_begun = self.stores.events.parts_begun();
            self.events_since_rows = 0;
        }
    }

    async fn append(&mut self, events: Vec<NewEvent>) {
        match self.stores.events.append(events).await {
            Ok(events) => {
                for event in events {
                    // There may be no receiver.
                    let _ = self.events.send(Arc::new(event));
                }
            }
            Err(error) => {
                tracing::warn!("cannot write the event log: {error}");
                self.has_lost_events = true;
            }
        }
    }
}
