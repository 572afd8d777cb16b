//! Workers in memory: this process alone, which lives as long as anybody can ask.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;

use crate::domain::record::WorkerTeammate;
use crate::ports::{StoreResult, Survey, Workers};

/// The one worker there is.
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
    fn me(&self) -> &str {
        &self.me
    }

    async fn report(&self, _teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        Ok(())
    }

    async fn survey(&self) -> StoreResult<Survey> {
        Ok(Survey { live: HashSet::from([self.me.clone()]), dead: Vec::new() })
    }
}
