//! The event log.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::log::event::{Event, NewEvent};

/// The event log of the run. Only the log numbers events.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Appends events in this order and returns them numbered. They are stored when this returns, unless there is no room.
    /// Then they wait in memory, up to a limit, and are stored before later ones. A refused event takes no number. The first append
    /// starts a run. Only the leading process appends.
    async fn append(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Event>>;

    /// Returns the number of parts that this run began after its first one. The log removes its oldest parts, so each part needs the
    /// rows of all tasks and members.
    fn parts_begun(&self) -> u64;

    /// Returns a reader of the newest run, or of all stored runs from the oldest. The beginning of the oldest may be missing.
    fn reader(&self, runs: Runs) -> Box<dyn EventReader>;
}

/// The runs to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// The newest.
    Newest,
    /// All that are stored.
    All,
}

/// A position in the event log.
#[async_trait]
pub trait EventReader: Send {
    /// Returns the events that were stored since the last call, oldest first. The event with number 1 starts a new run.
    async fn read_new(&mut self) -> StoreResult<Vec<Event>>;
}
