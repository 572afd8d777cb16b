//! The events of a workspace, from any position in its log on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::refusal::ApiResult;
use super::workspace::Workspace;
use crate::domain::log::event::Event;
pub use crate::domain::log::event_id::EventId;
use crate::ports::{EventReader, Runs};
use crate::stores::workspace::OpenMode;

/// The interval between two reads of the log in a process that does not run the team.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The events after a position.
pub enum Since {
    /// The position is in the log, and these events follow it.
    Events(EventStream),
    /// The position is not in the log: it was removed because the log grew, or it is of another workspace. A front end reads the state
    /// of the team again, and begins without a position.
    Gone,
}

/// The events from a position on: first the stored ones, then new ones as they happen. Each comes once, in the order of the log, and
/// has its [`EventId`].
pub struct EventStream {
    reader: Box<dyn EventReader>,
    live: Option<Receiver<Arc<Event>>>,
    unread: VecDeque<Arc<Event>>,
    /// The position of the last event that was put into `unread`.
    last: Option<EventId>,
}

/// Returns the events after `position`. Without one, they begin with the first stored event of the newest run. `live` is a receiver of
/// the team that this process runs ([`TeamHandle::events`](crate::team::handle::TeamHandle::events)). Without one the log is polled.
///
/// The log survives crashes and restarts, and with it each position that it has.
///
/// # Errors
/// The workspace does not exist, or the log cannot be read.
pub async fn since(
    workspace: &Workspace,
    live: Option<Receiver<Arc<Event>>>,
    position: Option<EventId>,
) -> ApiResult<Since> {
    let runs = if position.is_some() { Runs::All } else { Runs::Newest };
    let mut reader = workspace.stores(OpenMode::ReadOnly).await?.events.reader(runs);
    let mut stored = reader.read_new().await?;
    if let Some(position) = position {
        let Some(found) = stored.iter().position(|event| event.id == Some(position)) else { return Ok(Since::Gone) };
        stored.drain(..=found);
    }
    let mut stream = EventStream { reader, live, unread: VecDeque::new(), last: position };
    stored.into_iter().for_each(|event| stream.add(Arc::new(event)));
    Ok(Since::Events(stream))
}

impl EventStream {
    /// Waits for the next event. Returns `None` after the last event of a team that this process ran; the log of other teams has no end.
    ///
    /// # Errors
    /// The log cannot be read. The next call tries again.
    pub async fn next(&mut self) -> ApiResult<Option<Arc<Event>>> {
        loop {
            if let Some(event) = self.unread.pop_front() {
                return Ok(Some(event));
            }
            let Some(live) = &mut self.live else {
                self.read_log().await?;
                if self.unread.is_empty() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                continue;
            };
            match live.recv().await {
                Ok(event) => {
                    if self.misses_events_before(&event) {
                        self.read_log().await?;
                    }
                    self.add(event);
                }
                Err(RecvError::Lagged(_)) => self.read_log().await?,
                Err(RecvError::Closed) => {
                    self.read_log().await?;
                    return Ok(self.unread.pop_front());
                }
            }
        }
    }

    async fn read_log(&mut self) -> ApiResult<()> {
        let events = self.reader.read_new().await?;
        events.into_iter().for_each(|event| self.add(Arc::new(event)));
        Ok(())
    }

    fn misses_events_before(&self, event: &Event) -> bool {
        let Some(id) = event.id else { return true };
        self.last.map_or(id.seq > 1, |last| if last.began == id.began { id.seq > last.seq + 1 } else { id.seq > 1 })
    }

    /// Adds an event, unless it was added before: the log and the live events have the same ones.
    fn add(&mut self, event: Arc<Event>) {
        let Some(id) = event.id else { return };
        let is_known = self.last.is_some_and(|last| last.began == id.began && id.seq <= last.seq);
        if !is_known {
            self.last = Some(id);
            self.unread.push_back(event);
        }
    }
}
