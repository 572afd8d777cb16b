//! Stores in memory, with the same rules as the file stores: for tests and rehearsals. Their content ends with the process.

pub mod board;
pub mod events;
pub mod ledger;
pub mod mailbox;
pub mod roster;
pub mod state;
pub mod transcripts;
pub mod workers;

use std::sync::Arc;

use tokio::sync::broadcast::Sender;

use crate::ports::{Clock, StoreChange, Stores, WaitLimit};

/// Creates empty stores in memory.
#[must_use]
pub fn stores(clock: Arc<dyn Clock>, changes: Sender<StoreChange>) -> Stores {
    Stores {
        board: Arc::new(board::MemoryBoard::new(Arc::clone(&clock), changes.clone())),
        mailbox: Arc::new(mailbox::MemoryMailbox::new(changes.clone())),
        transcripts: Arc::new(transcripts::MemoryTranscripts::default()),
        requests: Arc::new(super::approvals::MemoryRequests::default()),
        state: Arc::new(state::MemoryState::new(Arc::clone(&clock), changes.clone())),
        roster: Arc::new(roster::MemoryRoster::default()),
        events: Arc::new(events::MemoryEventLog::new(clock)),
        ledger: Arc::new(ledger::MemoryLedger::default()),
        workers: Arc::new(workers::MemoryWorkers::default()),
        leadership: Arc::new(workers::MemoryLeadership),
        waits: WaitLimit::default(),
        changes,
    }
}
