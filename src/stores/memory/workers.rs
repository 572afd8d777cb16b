//! Workers in memory: this process is the only one, and it counts as live.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;

use crate::domain::records::WorkerTeammate;
use crate::ports::{StoreResult, WorkerSurvey, Workers};

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

    async fn report(&self, _teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        Ok(())
    }

    async fn reap_dead_workers(&self) -> StoreResult<WorkerSurvey> {
        Ok(WorkerSurvey { live: HashSet::from([self.me.clone()]), dead: Vec::new() })
    }
}
