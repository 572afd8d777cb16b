//! Workers: each process that runs teammates has a record and a lock, `.team/workers/<worker>.json` and `.lock`.
//!
//! A worker holds its lock while it lives, so it is dead if another process can take the lock. Where locks are unreliable (network
//! file systems), a worker is dead if its record is unchanged for 30 s.

pub mod leader_lock;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::team::records::{WorkerRecord, WorkerTeammate};
use crate::platform::{self, processes};
use crate::ports::{Clock, IoAction, StoreError, StoreResult, WorkerSurvey, Workers};
use crate::sandbox::orphans;
use crate::stores::fs::{self, FileSystem, HeldLock};

use super::atomic_write::{StagedFile, sweep_temporaries};
use super::stable_value::StableValue;
use super::{blocking, failed, if_found, read_or_empty};

/// The interval between writes of the record if only progress changed.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The time without a change of its record after which a worker counts as dead, where locks are unreliable.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest record that is read, in bytes.
const RECORD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The identity of a process. Its start time distinguishes it from other processes with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// The start time, in milliseconds since boot.
    pub started_ms: u64,
}

impl ProcessId {
    /// This process.
    pub fn own() -> Self {
        Self { pid: std::process::id(), started_ms: processes::own_start_ms() }
    }
}

/// The workers in files.
pub struct FileWorkers {
    files: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    folder: PathBuf,
    /// The record of this process, without its teammates; `None` for read-only access.
    own: Option<WorkerRecord>,
    own_id: String,
    /// True if locks are unreliable, so that the age of a record decides.
    uses_leases: bool,
    state: Mutex<WorkersState>,
}

/// The state of a worker.
enum Liveness {
    Live,
    /// The worker's lock is held while this value exists, if there is one.
    Dead(Option<HeldLock>),
}

#[derive(Default)]
struct WorkersState {
    locks: Vec<HeldLock>,
    lock_inode: u64,
    written: Option<(Instant, BTreeMap<String, WorkerTeammate>)>,
    /// The content of other workers' records.
    other_records: HashMap<String, StableValue<Vec<u8>>>,
    /// The workers whose files can be neither read nor locked, and that were logged.
    warned_ids: HashSet<String>,
}

impl FileWorkers {
    /// Registers `process` as a worker of `team`. It counts as live until the result is dropped or the process ends.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]. Blocks.
    pub fn register(
        process: &ProcessId,
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        team: &str,
    ) -> StoreResult<Self> {
        let own_id = format!("{}-{}-{:08x}", process.pid, process.started_ms, fastrand::u32(..));
        let now = clock.now();
        let own = WorkerRecord {
            v: 1,
            worker: own_id.clone(),
            team: team.to_owned(),
            host: platform::host_name(),
            pid: process.pid,
            boot: platform::boot_id(),
            started: now,
            heartbeat: now,
            uptime_ms: processes::uptime_ms(),
            teammates: BTreeMap::new(),
        };
        let workers = Self::new(files, clock, team_folder, own_id, Some(own));
        workers.files.create_folder(&workers.folder).map_err(failed("create", &workers.folder))?;
        sweep_temporaries(&*workers.files, &workers.folder)?;
        workers.hold_lock()?;
        workers.write_record(BTreeMap::new())?;
        Ok(workers)
    }

    /// The workers for read-only access, without registration.
    pub fn open_read_only(files: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, team_folder: &Path) -> Self {
        let own_id = format!("{}-visitor", std::process::id());
        Self::new(files, clock, team_folder, own_id, None)
    }

    fn new(
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        own_id: String,
        own: Option<WorkerRecord>,
    ) -> Self {
        let uses_leases = files.unreliable_lock_file_system(team_folder).is_some();
        let folder = team_folder.join("workers");
        Self { files, clock, folder, own, own_id, uses_leases, state: Mutex::default() }
    }

    fn lock_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.lock"))
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// Takes this worker's lock for its lifetime.
    fn hold_lock(&self) -> StoreResult<()> {
        let path = self.lock_path(&self.own_id);
        // A survey may hold it briefly.
        let lock = fs::hold(&*self.files, &path).map_err(failed(IoAction::Lock, &path))?;
        let stamp = self.files.stamp(&path).map_err(failed("inspect", &path))?;
        let mut state = self.state.lock();
        state.locks.push(lock);
        state.lock_inode = stamp.inode;
        Ok(())
    }

    /// See [`Workers::renew`].
    fn write_record(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        let Some(own) = &self.own else {
            return Ok(());
        };
        let lock = self.lock_path(&self.own_id);
        let inode = self.files.stamp(&lock).map_or(0, |stamp| stamp.inode);
        let was_removed = inode != self.state.lock().lock_inode;
        if was_removed {
            tracing::warn!(lock = %lock.display(), "this worker's lock was removed; creating it again");
            self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
            self.hold_lock()?;
        }
        let mut state = self.state.lock();
        if was_removed || self.files.stamp(&self.record_path(&self.own_id)).is_err() {
            state.written = None;
        }
        let is_written = state.written.as_ref().is_some_and(|(at, written)| {
            at.elapsed() < HEARTBEAT_INTERVAL && is_equal_but_progress(written, &teammates)
        });
        if is_written {
            return Ok(());
        }
        let record = WorkerRecord {
            heartbeat: self.clock.now(),
            uptime_ms: processes::uptime_ms(),
            teammates: teammates.clone(),
            ..own.clone()
        };
        // All keys of a record are strings, so this cannot fail.
        let text = serde_json::to_string_pretty(&record).unwrap_or_default() + "\n";
        StagedFile::write(&*self.files, &self.folder, &format!("{}.json", self.own_id), text.as_bytes())?.commit()?;
        state.written = Some((Instant::now(), teammates));
        Ok(())
    }

    /// Returns true if this worker has a record or a lock.
    fn has_file(&self, id: &str) -> bool {
        [self.record_path(id), self.lock_path(id)].iter().any(|path| self.files.stamp(path).is_ok())
    }

    /// The ids of all workers with a record or a lock.
    fn ids(&self) -> StoreResult<BTreeSet<String>> {
        let names = if_found("list", &self.folder, self.files.list(&self.folder))?.unwrap_or_default();
        let id = |name: &String| {
            let id = name.strip_suffix(".json").or_else(|| name.strip_suffix(".lock"))?;
            if id.starts_with('.') { None } else { Some(id.to_owned()) }
        };
        Ok(names.iter().filter_map(id).collect())
    }

    /// A worker's record; `None` if it is missing or names another worker.
    fn record(&self, id: &str) -> StoreResult<Option<WorkerRecord>> {
        let path = self.record_path(id);
        let record = serde_json::from_slice(&read_or_empty(&*self.files, &path, 0, RECORD_BYTES_MAX)?).ok();
        Ok(record.filter(|record: &WorkerRecord| record.worker == id))
    }

    fn survey_all(&self, claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey> {
        let mut survey = WorkerSurvey::default();
        let ids = self.ids()?;
        self.state.lock().other_records.retain(|id, _| ids.contains(id));
        for id in ids.into_iter().filter(|id| *id != self.own_id) {
            match self.survey_worker(&mut survey, &id) {
                Err(error) if is_permanent(&error) => {
                    self.warn_once(&id, &error);
                    if self.lives_by_record(&id) {
                        let record = self.readable_record(&id);
                        survey.live.insert(id, record);
                    }
                }
                result => result?,
            }
        }
        if self.own.is_some() {
            survey.live.insert(self.own_id.clone(), self.readable_record(&self.own_id));
        }
        // A worker whose files were removed is live if its process runs.
        for id in claimants.iter().filter(|id| !self.has_file(id) && orphans::is_id_live(id)) {
            survey.live.entry(id.clone()).or_default();
        }
        Ok(survey)
    }

    /// Returns true if a worker lives according to its id and record alone, for a lock that cannot be tried. Its process must run on
    /// this machine, or its record from another machine must have a recent heartbeat.
    fn lives_by_record(&self, id: &str) -> bool {
        let is_recent = |record: WorkerRecord| {
            !orphans::is_of_this_boot(&record) && self.clock.now().since(record.heartbeat) < HEARTBEAT_TIMEOUT
        };
        orphans::is_id_live(id) || self.readable_record(id).is_some_and(is_recent)
    }

    /// A worker's record, if it can be read.
    fn readable_record(&self, id: &str) -> Option<WorkerRecord> {
        self.record(id).unwrap_or_else(|error| {
            self.warn_once(id, &error);
            None
        })
    }

    /// Logs once that a worker's files are ignored. A process that only reads may lack rights that the team has.
    fn warn_once(&self, id: &str, error: &StoreError) {
        if self.own.is_some() && self.state.lock().warned_ids.insert(id.to_owned()) {
            tracing::warn!("{error}; ignoring it. Remove it if no team runs");
        }
    }

    /// Adds a worker to the live or to the dead ones.
    fn survey_worker(&self, survey: &mut WorkerSurvey, id: &str) -> StoreResult<()> {
        let is_process_live = || self.readable_record(id).is_some_and(|record| orphans::is_process_live(&record));
        // A process that only reads takes no lock of a worker that it sees running.
        if (self.own.is_none() && is_process_live()) || matches!(self.liveness(id)?, Liveness::Live) {
            survey.live.insert(id.to_owned(), self.readable_record(id));
        } else {
            survey.dead.insert(id.to_owned(), self.record(id)?);
        }
        Ok(())
    }

    /// Decides if a worker is live: by its lock, by its process if the lock was removed, or by its record if locks are unreliable.
    fn liveness(&self, id: &str) -> StoreResult<Liveness> {
        let path = self.lock_path(id);
        let is_live = if self.uses_leases {
            !self.is_silent(id)?
        } else {
            if if_found("inspect", &path, self.files.stamp(&path))?.is_some() {
                let lock = self.files.hold(&path).map_err(failed(IoAction::Lock, &path))?;
                return Ok(lock.map_or(Liveness::Live, |lock| Liveness::Dead(Some(lock))));
            }
            self.record(id)?.is_some_and(|record| orphans::is_process_live(&record))
        };
        Ok(if is_live { Liveness::Live } else { Liveness::Dead(None) })
    }

    /// Returns true if a record was unchanged for [`HEARTBEAT_TIMEOUT`].
    fn is_silent(&self, id: &str) -> StoreResult<bool> {
        let bytes = read_or_empty(&*self.files, &self.record_path(id), 0, RECORD_BYTES_MAX)?;
        let mut state = self.state.lock();
        let record = state.other_records.entry(id.to_owned()).or_insert_with(|| StableValue::new(bytes.clone()));
        Ok(record.observe(bytes) >= HEARTBEAT_TIMEOUT)
    }

    /// Removes the record and the lock of a worker that is still dead.
    fn remove_dead(&self, id: &str) -> StoreResult<()> {
        let Liveness::Dead(_lock) = self.liveness(id)? else { return Ok(()) };
        for path in [self.record_path(id), self.lock_path(id)] {
            if_found("remove", &path, self.files.remove(&path))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Workers for FileWorkers {
    fn worker_id(&self) -> &str {
        &self.own_id
    }

    async fn renew(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        blocking(|| self.write_record(teammates)).await
    }

    async fn survey(&self, claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey> {
        blocking(|| self.survey_all(claimants)).await
    }

    async fn remove(&self, worker: &str) -> StoreResult<()> {
        match blocking(|| self.remove_dead(worker)).await {
            Err(error) if is_permanent(&error) => {
                self.warn_once(worker, &error);
                Ok(())
            }
            result => result,
        }
    }
}

impl Drop for FileWorkers {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let runs_command = |teammate: &WorkerTeammate| !teammate.process_groups.is_empty();
        let has_commands = state.written.as_ref().is_some_and(|(_, teammates)| teammates.values().any(runs_command));
        if self.own.is_some() && !has_commands {
            // A worker that ends normally removes its files. If commands still run, the next survey of another worker ends them.
            for path in [self.record_path(&self.own_id), self.lock_path(&self.own_id)] {
                let _ = self.files.remove(&path);
            }
        }
    }
}

/// Returns true if a retry cannot help: the file itself is the reason.
fn is_permanent(error: &StoreError) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidInput, IsADirectory, NotADirectory, PermissionDenied};
    let StoreError::Io { source, .. } = error else { return false };
    [FileTooLarge, InvalidInput, IsADirectory, NotADirectory, PermissionDenied].contains(&source.kind())
}

/// Returns true if both are equal except for progress.
fn is_equal_but_progress(a: &BTreeMap<String, WorkerTeammate>, b: &BTreeMap<String, WorkerTeammate>) -> bool {
    let without_progress =
        |teammate: &WorkerTeammate| WorkerTeammate { progress: Default::default(), ..teammate.clone() };
    a.len() == b.len() && a.iter().zip(b).all(|((a, x), (b, y))| a == b && without_progress(x) == without_progress(y))
}
