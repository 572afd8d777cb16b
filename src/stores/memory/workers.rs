//! Workers in memory: this process is the only one. It leads, and it counts as live.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use crate::domain::records::WorkerTeammate;
use crate::ports::{CurrentLead, Leadership, LeadershipCheck, StoreResult, WorkerSurvey, Workers};

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
