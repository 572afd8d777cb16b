//! A store like a database on a server: leases in place of locks, and hints to all connections in place of file events. It shows
//! how to write one. It keeps its tables in memory, and a workspace's path stands for the address of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::team::records::{LeadRecord, WorkerRecord, WorkerTeammate};
use brigade::domain::time::UnixMs;
use brigade::ports::{
    Clock, CurrentLead, LeadHolder, Leadership, LeadershipCheck, StoreError, StoreResult, Stores, WorkerSurvey, Workers,
};
use brigade::stores::memory;
use brigade::stores::workspace::{CHANGES_MAX, OpenMode, OpenOptions, OpenStores, StoreKind};
use tokio::sync::broadcast;

use crate::testkit::lock;

/// The line that [`brigade::stores::workspace::STORES`] would have.
pub static DATABASE: StoreKind = StoreKind { name: "database", hidden_paths: &[], open };

/// A worker or lead that does not renew for this time counts as dead, by the server's clock.
pub const LEASE: Duration = Duration::from_secs(30);

/// The servers by their address.
static DATABASES: Mutex<BTreeMap<PathBuf, Arc<Database>>> = Mutex::new(BTreeMap::new());

/// The content of one server. Each call of a port is one transaction.
struct Database {
    /// The tables that need no lease, and the hints to all connections.
    tables: Stores,
    clock: Arc<dyn Clock>,
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    workers: BTreeMap<String, (WorkerRecord, UnixMs)>,
    lead: Option<(String, LeadRecord, UnixMs)>,
}

/// The connection of one process.
struct Connection {
    database: Arc<Database>,
    worker: String,
    mode: OpenMode,
}

fn open(address: &Path, options: &OpenOptions) -> StoreResult<OpenStores> {
    let mut databases = lock(&DATABASES);
    let database = databases.entry(address.to_owned()).or_insert_with(|| {
        let tables = memory::stores(Arc::clone(&options.clock), broadcast::channel(CHANGES_MAX).0);
        Arc::new(Database { tables, clock: Arc::clone(&options.clock), leases: Mutex::default() })
    });
    let worker = format!("worker-{:016x}", fastrand::u64(..));
    let connection = Arc::new(Connection { database: Arc::clone(database), worker, mode: options.mode.clone() });
    if let (OpenMode::Lead { .. }, Err(holder)) = (&options.mode, connection.renew_lead()) {
        return Err(StoreError::AlreadyLed(holder));
    }
    connection.renew_worker(BTreeMap::new());
    let stores = Stores {
        workers: Arc::clone(&connection) as Arc<dyn Workers>,
        leadership: Arc::clone(&connection) as Arc<dyn Leadership>,
        wait_limit: options.wait_limit.clone(),
        ..database.tables.clone()
    };
    Ok(OpenStores::new(stores, Vec::new(), Release(connection)))
}

impl Connection {
    fn renew_worker(&self, teammates: BTreeMap<String, WorkerTeammate>) {
        let (OpenMode::Lead { team } | OpenMode::Work { team }) = &self.mode else { return };
        let now = self.database.clock.now();
        let record = WorkerRecord {
            v: 1,
            worker: self.worker.clone(),
            team: team.clone(),
            host: "another-machine".to_owned(),
            pid: 1,
            boot: String::new(),
            started: now,
            heartbeat: now,
            uptime_ms: 0,
            teammates,
        };
        lock(&self.database.leases).workers.insert(self.worker.clone(), (record, now.plus(LEASE)));
    }

    /// Acquires or renews the leadership, unless another process has it.
    fn renew_lead(&self) -> Result<LeadershipCheck, LeadHolder> {
        let OpenMode::Lead { team } = &self.mode else { return Ok(LeadershipCheck::Held) };
        let now = self.database.clock.now();
        let lead = &mut lock(&self.database.leases).lead;
        let was_held = match lead {
            Some((worker, _, _)) if *worker == self.worker => true,
            Some((worker, record, expires)) if *expires > now => {
                return Err(LeadHolder { team: record.team.clone(), process: worker.clone() });
            }
            _ => false,
        };
        let record = LeadRecord { team: team.clone(), pid: 1, started_ms: 0, boot: String::new() };
        *lead = Some((self.worker.clone(), record, now.plus(LEASE)));
        Ok(if was_held { LeadershipCheck::Held } else { LeadershipCheck::Restored })
    }
}

#[async_trait]
impl Workers for Connection {
    fn worker_id(&self) -> &str {
        &self.worker
    }

    async fn renew(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        self.renew_worker(teammates);
        Ok(())
    }

    async fn survey(&self, _claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey> {
        let now = self.database.clock.now();
        let mut survey = WorkerSurvey::default();
        for (id, (record, expires)) in &lock(&self.database.leases).workers {
            let workers = if *expires > now { &mut survey.live } else { &mut survey.dead };
            workers.insert(id.clone(), Some(record.clone()));
        }
        Ok(survey)
    }

    async fn remove(&self, worker: &str) -> StoreResult<()> {
        let now = self.database.clock.now();
        lock(&self.database.leases).workers.retain(|id, (_, expires)| id != worker || *expires > now);
        Ok(())
    }
}

#[async_trait]
impl Leadership for Connection {
    async fn current(&self) -> StoreResult<CurrentLead> {
        let now = self.database.clock.now();
        Ok(match &lock(&self.database.leases).lead {
            Some((_, record, expires)) if *expires > now => CurrentLead::Known(record.clone()),
            last => CurrentLead::None(last.as_ref().map(|(_, record, _)| record.clone())),
        })
    }

    async fn check(&self) -> StoreResult<LeadershipCheck> {
        Ok(self.renew_lead().unwrap_or_else(LeadershipCheck::Lost))
    }
}

/// Releases the leases when the workspace is dropped, so that others need not wait for their end.
struct Release(Arc<Connection>);

impl Drop for Release {
    fn drop(&mut self) {
        let mut leases = lock(&self.0.database.leases);
        leases.workers.remove(&self.0.worker);
        if leases.lead.as_ref().is_some_and(|(worker, _, _)| *worker == self.0.worker) {
            leases.lead = None;
        }
    }
}
