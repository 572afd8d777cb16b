//! Stores in memory, with the same rules as the file stores: for tests, and as the smallest example of a store. Their content ends
//! with the process.

pub mod board;
pub mod events;
pub mod mailbox;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast::Sender;

use crate::domain::agent::transcript::Record;
use crate::domain::team::budget::{LedgerRecord, LedgerTotals};
use crate::domain::team::records::{RosterMember, WorkerTeammate};
use crate::domain::team::state::{SharedState, StateUpdate};
use crate::ports::{
    Clock, CurrentLead, Leadership, LeadershipCheck, Ledger, Roster, StateStore, StoreChange, StoreError, StoreResult,
    Stores, Transcripts, WaitLimit, WorkerSurvey, Workers,
};
use crate::stores::file::transcripts::RECORD_BYTES_MAX;
use crate::stores::request_store::RequestStore;

/// Creates empty stores in memory.
pub fn stores(clock: Arc<dyn Clock>, changes: Sender<StoreChange>) -> Stores {
    Stores {
        board: Arc::new(board::MemoryBoard::new(Arc::clone(&clock), changes.clone())),
        mailbox: Arc::new(mailbox::MemoryMailbox::new(changes.clone())),
        transcripts: Arc::new(MemoryTranscripts::default()),
        requests: Arc::new(RequestStore::memory()),
        state: Arc::new(MemoryState::new(Arc::clone(&clock), changes.clone())),
        roster: Arc::new(MemoryRoster::default()),
        events: Arc::new(events::MemoryEventLog::new(clock)),
        ledger: Arc::new(MemoryLedger::default()),
        workers: Arc::new(MemoryWorkers::default()),
        leadership: Arc::new(MemoryLeadership),
        wait_limit: WaitLimit::default(),
        changes,
    }
}

/// The transcripts in memory.
#[derive(Default)]
pub struct MemoryTranscripts {
    records: Mutex<HashMap<String, Vec<Record>>>,
}

#[async_trait]
impl Transcripts for MemoryTranscripts {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        let all = self.records.lock();
        Ok(all.get(name).cloned().unwrap_or_default())
    }

    async fn append(&self, name: &str, records: &[Record], _sync: bool) -> StoreResult<()> {
        for record in records {
            let bytes = record.to_line().len();
            if bytes > RECORD_BYTES_MAX {
                let what = format!("a record of {name}'s transcript");
                return Err(StoreError::TooLarge { what, bytes, bytes_max: RECORD_BYTES_MAX });
            }
        }
        let mut all = self.records.lock();
        all.entry(name.to_owned()).or_default().extend_from_slice(records);
        Ok(())
    }
}

/// The shared state in memory.
pub struct MemoryState {
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    state: Mutex<Option<SharedState>>,
}

impl MemoryState {
    /// No state yet.
    pub fn new(clock: Arc<dyn Clock>, changes: Sender<StoreChange>) -> Self {
        Self { clock, changes, state: Mutex::new(None) }
    }
}

#[async_trait]
impl StateStore for MemoryState {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        Ok(self.state.lock().clone())
    }

    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let next = state.take().unwrap_or_else(|| SharedState::paused(now)).merge(&update, now);
        *state = Some(next.clone());
        drop(state);
        if update.desired.is_some() {
            // There may be no listener.
            let _ = self.changes.send(StoreChange::State);
        }
        Ok(next)
    }
}

/// The roster in memory.
#[derive(Default)]
pub struct MemoryRoster {
    members: Mutex<Vec<RosterMember>>,
}

#[async_trait]
impl Roster for MemoryRoster {
    async fn report(&self, _team: &str, members: &[RosterMember]) -> StoreResult<()> {
        let mut rows = self.members.lock();
        for member in members {
            match rows.iter_mut().find(|row| row.name.eq_ignore_ascii_case(&member.name)) {
                Some(row) => row.clone_from(member),
                None => rows.push(member.clone()),
            }
        }
        Ok(())
    }

    async fn remove(&self, _team: &str, names: &[String]) -> StoreResult<()> {
        let is_named = |row: &RosterMember| names.iter().any(|name| name.eq_ignore_ascii_case(&row.name));
        let mut rows = self.members.lock();
        rows.retain(|row| row.is_outside() || !is_named(row));
        Ok(())
    }

    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        Ok(self.members.lock().clone())
    }
}

/// The ledger in memory.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    totals: Mutex<LedgerTotals>,
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn read(&self) -> StoreResult<LedgerTotals> {
        Ok(self.totals.lock().clone())
    }

    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()> {
        let mut totals = self.totals.lock();
        lines.iter().for_each(|line| totals.apply(&line.entry));
        Ok(())
    }
}

/// The only worker.
pub struct MemoryWorkers {
    me: String,
}

impl Default for MemoryWorkers {
    fn default() -> Self {
        Self { me: format!("{}-memory-{:08x}", std::process::id(), fastrand::u32(..)) }
    }
}

#[async_trait]
impl Workers for MemoryWorkers {
    fn worker_id(&self) -> &str {
        &self.me
    }

    async fn renew(&self, _teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        Ok(())
    }

    async fn survey(&self, _claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey> {
        Ok(WorkerSurvey { live: BTreeMap::from([(self.me.clone(), None)]), dead: BTreeMap::new() })
    }

    async fn remove(&self, _worker: &str) -> StoreResult<()> {
        Ok(())
    }
}

/// The leadership of the only process.
pub struct MemoryLeadership;

#[async_trait]
impl Leadership for MemoryLeadership {
    async fn current(&self) -> StoreResult<CurrentLead> {
        Ok(CurrentLead::None(None))
    }

    async fn check(&self) -> StoreResult<LeadershipCheck> {
        Ok(LeadershipCheck::Held)
    }
}
