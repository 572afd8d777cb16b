//! The queue of events to the recorder: members and the lead send, [`super::recorder`] receives.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::domain::log::event::{EventKind, NewEvent};
use crate::domain::log::snapshot::MemberSnapshot;
use crate::domain::task::Task;

/// Queued messages at which agents start no turn and no tool. A sender often cannot wait, so a message is always accepted.
/// The queue therefore holds at most this many, and the few that each agent sends between two such starts. A message with a long text
/// counts as several.
const MESSAGES_WAITING_MAX: usize = 8192;
/// The bytes of text that count as one message.
const BYTES_PER_MESSAGE: usize = 4096;

/// Texts that [`EventSink::warn_once`] remembers.
const WARNED_ONCE_MAX: usize = 100;
/// The time limit for writing the last events when the team ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the recorder.
pub(super) enum RecorderMessage {
    /// An event.
    Event(Box<NewEvent>),
    /// A task that a member changed, and the event of that change, if the task does not show it.
    Task(Arc<Task>, Option<EventKind>),
    /// The board may have changed.
    Board,
    /// Requests may have changed.
    Requests,
    /// The status of members in the lead's report.
    Team(Vec<MemberSnapshot>),
    /// Confirms when everything before it is written.
    Flush(oneshot::Sender<()>),
}

impl RecorderMessage {
    /// Returns the number of messages as which it counts.
    pub fn weight(&self) -> usize {
        let text_bytes = match self {
            Self::Event(event) => match &event.kind {
                EventKind::Said { text, .. } | EventKind::Warning { text, .. } => text.len(),
                _ => 0,
            },
            Self::Task(task, _) => task.description.len(),
            Self::Board | Self::Requests | Self::Team(_) | Self::Flush(_) => 0,
        };
        1 + text_bytes / BYTES_PER_MESSAGE
    }
}

/// Sends messages to the recorder. Cheap to clone. After the recorder has ended, messages are dropped.
#[derive(Clone)]
pub struct EventSink {
    sender: mpsc::UnboundedSender<RecorderMessage>,
    state: Arc<QueueState>,
    /// The texts that [`EventSink::warn_once`] has recorded.
    warned_texts: Arc<Mutex<HashSet<String>>>,
}

/// Receives the messages of all sinks.
pub(super) struct EventQueue {
    receiver: mpsc::UnboundedReceiver<RecorderMessage>,
    state: Arc<QueueState>,
}

#[derive(Default)]
struct QueueState {
    waiting: AtomicUsize,
    has_capacity: Notify,
    /// True if a board message is queued that was not processed yet.
    is_board_queued: AtomicBool,
    /// As for the board.
    is_requests_read_queued: AtomicBool,
}

/// Creates the queue and its first sink.
pub(super) fn event_queue() -> (EventSink, EventQueue) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let state = Arc::new(QueueState::default());
    let sink = EventSink { sender, state: Arc::clone(&state), warned_texts: Arc::default() };
    (sink, EventQueue { receiver, state })
}

impl EventQueue {
    /// Waits for messages and puts up to `messages_max` into `batch`. Returns false after all sinks were dropped.
    pub async fn receive(&mut self, batch: &mut Vec<RecorderMessage>, messages_max: usize) -> bool {
        self.receiver.recv_many(batch, messages_max).await > 0
    }

    /// Lets sinks request another read of the board. The read that follows may miss later changes.
    pub fn begin_board_read(&self) {
        self.state.is_board_queued.store(false, Ordering::Release);
    }

    /// Lets sinks request another read of the requests, as of the board.
    pub fn begin_requests_read(&self) {
        self.state.is_requests_read_queued.store(false, Ordering::Release);
    }

    /// Makes room for as many messages as were processed, by their weight.
    pub fn release(&self, messages: usize) {
        self.state.waiting.fetch_sub(messages, Ordering::Relaxed);
        self.state.has_capacity.notify_waiters();
    }
}

impl EventSink {
    fn send(&self, message: RecorderMessage) -> bool {
        self.state.waiting.fetch_add(message.weight(), Ordering::Relaxed);
        self.sender.send(message).is_ok()
    }

    /// Waits while the queue is full. Returns at once if the recorder has ended.
    pub async fn wait_for_capacity(&self) {
        loop {
            let has_capacity = self.state.has_capacity.notified();
            tokio::pin!(has_capacity);
            has_capacity.as_mut().enable();
            if self.state.waiting.load(Ordering::Relaxed) <= MESSAGES_WAITING_MAX {
                return;
            }
            tokio::select! {
                biased;
                () = has_capacity => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Records an event. The event log numbers it.
    pub fn record(&self, event: impl Into<NewEvent>) {
        self.send(RecorderMessage::Event(Box::new(event.into())));
    }

    /// Returns a function with which tools record events.
    pub fn facts(&self) -> Arc<dyn Fn(EventKind) + Send + Sync> {
        let sink = self.clone();
        Arc::new(move |kind| sink.record(kind))
    }

    /// Records the changes of a task.
    pub fn record_task(&self, task: &Task) {
        self.send(RecorderMessage::Task(Arc::new(task.clone()), None));
    }

    /// Records an event about a task, and the changes of that task.
    pub fn record_task_event(&self, kind: EventKind, task: &Task) {
        self.send(RecorderMessage::Task(Arc::new(task.clone()), Some(kind)));
    }

    /// Records a warning only once. Several members may meet the same error, such as a refused key.
    pub fn warn_once(&self, about: &str, text: &str) {
        let mut warned_texts = self.warned_texts.lock();
        if warned_texts.len() >= WARNED_ONCE_MAX {
            warned_texts.clear();
        }
        if warned_texts.insert(text.to_owned()) {
            self.warn(about, text.to_owned());
        }
    }

    /// Lets the recorder read the board.
    pub fn request_board_read(&self) {
        if !self.state.is_board_queued.swap(true, Ordering::AcqRel) {
            self.send(RecorderMessage::Board);
        }
    }

    /// Lets the recorder read the requests.
    pub fn request_requests_read(&self) {
        if !self.state.is_requests_read_queued.swap(true, Ordering::AcqRel) {
            self.send(RecorderMessage::Requests);
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
        self.record(EventKind::Warning { about: about.into(), text: text.into(), next: Vec::new() });
    }

    /// Waits until all messages so far are written, for a few seconds at most.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.send(RecorderMessage::Flush(done)) {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn long_texts_fill_queue() {
        let (sink, mut queue) = event_queue();
        let has_capacity = || tokio::time::timeout(Duration::from_secs(1), sink.wait_for_capacity());
        for _ in 0..32 {
            assert!(has_capacity().await.is_ok());
            sink.warn("alice", "x".repeat(1024 * 1024));
        }
        assert!(has_capacity().await.is_err(), "32 MiB wait");
        let mut batch = Vec::new();
        assert!(queue.receive(&mut batch, 256).await && batch.len() == 32);
        queue.release(batch.iter().map(RecorderMessage::weight).sum());
        assert!(has_capacity().await.is_ok());
    }
}
