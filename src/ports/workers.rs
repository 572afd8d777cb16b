//! The workers of a workspace.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::records::{WorkerRecord, WorkerTeammate};

/// The workers that a survey found.
#[derive(Debug, Clone, Default)]
pub struct WorkerSurvey {
    /// The live workers with their records, this one included. A record that cannot be read is `None`.
    pub live: BTreeMap<String, Option<WorkerRecord>>,
    /// The dead workers that were not removed yet.
    pub dead: BTreeMap<String, Option<WorkerRecord>>,
}

/// The workers of the workspace: processes that run teammates.
///
/// A worker is registered when its workspace is opened, and released when that is dropped. It is live as long as it renews its
/// registration, or as long as its process provably runs. A worker id is never used again.
///
/// The claims of a dead worker are reclaimed only after its commands have ended: [`crate::service::workers`] ends the commands,
/// removes the worker, and then reclaims. After a crash between these steps the next survey finds the dead worker again.
#[async_trait]
pub trait Workers: Send + Sync {
    /// Returns this process's worker id.
    fn worker_id(&self) -> &str;

    /// Renews this worker's registration and replaces its record. Does nothing for a process that is no worker.
    async fn renew(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()>;

    /// Returns the live and the dead workers, and changes nothing. `claimants` are workers that have claims. One of them can be
    /// live although it is not registered any more.
    async fn survey(&self, claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey>;

    /// Removes a dead worker. A worker that lives again stays, and a missing one is no error.
    async fn remove(&self, worker: &str) -> StoreResult<()>;
}
