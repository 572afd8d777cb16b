//! The event log.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::event::{Event, EventKind};

/// The event log of the run. Only the log numbers events.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Appends events in this order and returns them numbered. They are stored when this returns, unless there is no room.
    /// Then they wait in memory, up to a limit, and are stored before later ones. A refused event takes no number. The first append
    /// starts a run. Only the leading process appends.
    async fn append(&self, kinds: Vec<EventKind>) -> StoreResult<Vec<Event>>;
}
