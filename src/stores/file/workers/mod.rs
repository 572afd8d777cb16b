//! Workers: a record and a lock for each process that runs teammates, `.team/workers/<worker>.json` and `.lock`.
//!
//! A worker holds its lock for life, so it is gone when the lock can be taken; where locks are not to be trusted (network file
//! systems) a record that does not change for 30 s says so. Nothing here knows of tasks: whoever asks learns who lives,
//! after the commands of those who do not have been ended.

mod groups;
pub mod lead;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::domain::record::{WorkerRecord, WorkerTeammate};
use crate::platform::{self, processes};
use crate::ports::{Clock, StoreError, StoreResult, Survey, Tenure, Workers};
use crate::stores::fs::{self, FileSystem, HeldLock};

use super::replace::{Staged, sweep_temporaries};
use super::{blocking, failed};
use lead::Leadership;

/// How often a record is written though nothing but progress changed.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a record may stay as it is before its worker counts as gone, where locks are not to be trusted.
pub const LEASE: Duration = Duration::from_secs(30);

/// The largest record that is read, in bytes.
const RECORD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A process as others tell it from those that had or will have its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation {
    /// Its number.
    pub pid: u32,
    /// When it started, in milliseconds since boot.
    pub started_ms: u64,
}

impl Incarnation {
    /// This process.
    #[must_use]
    pub fn own() -> Self {
        Self { pid: std::process::id(), started_ms: processes::own_start_ms() }
    }
}

/// The workers in their files.
pub struct FileWorkers {
    inner: Arc<Inner>,
}

struct Inner {
    files: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    folder: PathBuf,
    /// This process's record, without its teammates; `None` for one that only looks.
    own: Option<WorkerRecord>,
    me: String,
    /// Whether records decide instead of locks.
    by_lease: bool,
    /// What keeps other leads out, in the process that leads.
    leadership: OnceLock<Weak<Leadership>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Vec<HeldLock>,
    lock_inode: u64,
    written: Option<(Instant, BTreeMap<String, WorkerTeammate>)>,
    /// Since when the others' records are as they are.
    seen: HashMap<String, (Vec<u8>, Instant)>,
    /// Workers whose files can be neither read nor locked, which was said.
    odd: HashSet<String>,
}

impl FileWorkers {
    /// Registers this process as a worker of `team`. It counts as living until the result is dropped or the process ends.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]. Blocks.
    pub fn register(
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        team: &str,
    ) -> StoreResult<Self> {
        Self::register_as(&Incarnation::own(), files, clock, team_folder, team)
    }

    /// As [`Self::register`], for a process that others know as `process`.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]. Blocks.
    pub fn register_as(
        process: &Incarnation,
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        team: &str,
    ) -> StoreResult<Self> {
        let me = format!("{}-{}-{:08x}", process.pid, process.started_ms, fastrand::u32(..));
        let now = clock.now();
        let own = WorkerRecord {
            v: 1,
            worker: me.clone(),
            team: team.to_owned(),
            host: platform::host_name(),
            pid: process.pid,
            boot: platform::boot_id(),
            started: now,
            heartbeat: now,
            uptime_ms: processes::uptime_ms(),
            teammates: BTreeMap::new(),
        };
        let workers = Self::new(files, clock, team_folder, me, Some(own));
        let inner = &workers.inner;
        inner.files.create_folder(&inner.folder).map_err(failed("make", &inner.folder))?;
        sweep_temporaries(&*inner.files, &inner.folder)?;
        inner.hold_lock()?;
        inner.report(BTreeMap::new())?;
        Ok(workers)
    }

    /// The same as the worker that leads, for as long as `leadership` lives.
    #[must_use]
    pub fn leading(self, leadership: &Arc<Leadership>) -> Self {
        // A worker is told once.
        let _ = self.inner.leadership.set(Arc::downgrade(leadership));
        self
    }

    /// Looks at the workers without being one.
    #[must_use]
    pub fn visit(files: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, team_folder: &Path) -> Self {
        let me = format!("{}-visitor", std::process::id());
        Self::new(files, clock, team_folder, me, None)
    }

    fn new(
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        me: String,
        own: Option<WorkerRecord>,
    ) -> Self {
        let by_lease = files.distrusts_locks(team_folder).is_some();
        let folder = team_folder.join("workers");
        let (leadership, state) = (OnceLock::new(), Mutex::default());
        Self { inner: Arc::new(Inner { files, clock, folder, own, me, by_lease, leadership, state }) }
    }

    /// The records of all workers, as they are; for display. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn records(&self) -> StoreResult<Vec<WorkerRecord>> {
        let ids = self.inner.ids()?;
        Ok(ids.iter().filter_map(|id| self.inner.record(id).ok().flatten()).collect())
    }

    /// The records of the workers that live; for display: nothing is ended or tidied, and no lock is needed of one whose process is seen
    /// to run. What cannot be read is passed over. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn living(&self) -> StoreResult<Vec<WorkerRecord>> {
        let ids = self.inner.ids()?;
        Ok(ids.iter().filter(|id| self.inner.seems_to_live(id)).filter_map(|id| self.inner.known_record(id)).collect())
    }
}

#[async_trait]
impl Workers for FileWorkers {
    fn me(&self) -> &str {
        &self.inner.me
    }

    async fn report(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.report(teammates)).await
    }

    async fn survey(&self) -> StoreResult<Survey> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.survey()).await
    }

    async fn unrecorded(&self, ids: Vec<String>) -> StoreResult<HashSet<String>> {
        let inner = Arc::clone(&self.inner);
        let lives = move |id: &String| !inner.has_file(id) && groups::id_lives(id);
        blocking(move || Ok(ids.into_iter().filter(lives).collect())).await
    }

    fn stop_waiting(&self) {
        self.inner.files.stop_waiting();
    }

    async fn tenure(&self) -> StoreResult<Tenure> {
        let inner = Arc::clone(&self.inner);
        let look = |leadership: Arc<Leadership>| leadership.look();
        blocking(move || inner.leadership.get().and_then(Weak::upgrade).map_or(Ok(Tenure::Held), look)).await
    }
}

impl Inner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.lock"))
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// Takes this worker's own lock, for life.
    fn hold_lock(&self) -> StoreResult<()> {
        let path = self.lock_path(&self.me);
        // A survey may have it for a moment.
        let held = fs::hold(&*self.files, &path).map_err(failed("lock", &path))?;
        let stamp = self.files.stamp(&path).map_err(failed("look at", &path))?;
        let mut state = self.state();
        state.held.push(held);
        state.lock_inode = stamp.inode;
        Ok(())
    }

    fn report(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        let Some(own) = &self.own else {
            return Ok(());
        };
        let lock = self.lock_path(&self.me);
        let inode = self.files.stamp(&lock).map_or(0, |stamp| stamp.inode);
        let was_removed = inode != self.state().lock_inode;
        if was_removed {
            tracing::warn!(lock = %lock.display(), "somebody removed this worker's lock; it is made anew");
            self.files.create_folder(&self.folder).map_err(failed("make", &self.folder))?;
            self.hold_lock()?;
        }
        let mut state = self.state();
        if was_removed || self.files.stamp(&self.record_path(&self.me)).is_err() {
            state.written = None;
        }
        let is_told = state
            .written
            .as_ref()
            .is_some_and(|(at, written)| at.elapsed() < HEARTBEAT_INTERVAL && says_the_same(written, &teammates));
        if is_told {
            return Ok(());
        }
        let record = WorkerRecord {
            heartbeat: self.clock.now(),
            uptime_ms: processes::uptime_ms(),
            teammates: teammates.clone(),
            ..own.clone()
        };
        // Nothing in a record has keys that are not strings, so writing it cannot fail.
        let text = serde_json::to_string_pretty(&record).unwrap_or_default() + "\n";
        Staged::write(&*self.files, &self.folder, &format!("{}.json", self.me), text.as_bytes())?.commit()?;
        state.written = Some((Instant::now(), teammates));
        Ok(())
    }

    /// Whether anything tells of this worker.
    fn has_file(&self, id: &str) -> bool {
        [self.record_path(id), self.lock_path(id)].iter().any(|path| self.files.stamp(path).is_ok())
    }

    /// Ids of all that have a record or a lock.
    fn ids(&self) -> StoreResult<BTreeSet<String>> {
        let names = match self.files.list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(failed("list", &self.folder))?,
        };
        let id = |name: &String| {
            let id = name.strip_suffix(".json").or_else(|| name.strip_suffix(".lock"))?;
            (!id.starts_with('.')).then(|| id.to_owned())
        };
        Ok(names.iter().filter_map(id).collect())
    }

    /// A worker's record; `None` where there is none, or the file is no record of this worker.
    fn record(&self, id: &str) -> StoreResult<Option<WorkerRecord>> {
        let path = self.record_path(id);
        match self.files.read(&path, 0, RECORD_BYTES_MAX) {
            Ok((bytes, _)) => {
                let record: Option<WorkerRecord> = serde_json::from_slice(&bytes).ok();
                Ok(record.filter(|record| record.worker == id))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    fn survey(&self) -> StoreResult<Survey> {
        let mut survey = Survey::default();
        let ids = self.ids()?;
        self.state().seen.retain(|id, _| ids.contains(id));
        for id in ids.into_iter().filter(|id| *id != self.me) {
            match self.end_if_dead(&id) {
                Ok(Some(record)) => survey.dead.extend(record),
                Ok(None) => {
                    survey.live.insert(id);
                }
                Err(error) if is_odd(&error) => {
                    self.warn_of(&id, &error);
                    if self.lives_by_record(&id) {
                        survey.live.insert(id);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if self.own.is_some() {
            survey.live.insert(self.me.clone());
        }
        Ok(survey)
    }

    /// Ends what a dead worker left, and returns its record, where there is one; `None` for a worker that lives.
    fn end_if_dead(&self, id: &str) -> StoreResult<Option<Option<WorkerRecord>>> {
        self.find_dead(id)?.map(|held| self.bury(id, held)).transpose()
    }

    /// Returns true if a worker lives, for display.
    fn seems_to_live(&self, id: &str) -> bool {
        if self.known_record(id).is_some_and(|record| groups::process_lives(&record)) {
            return true;
        }
        match self.find_dead(id) {
            Ok(dead) => dead.is_none(),
            Err(error) => {
                tracing::debug!(%error, "a worker's lock cannot be tried");
                self.lives_by_record(id)
            }
        }
    }

    /// Returns true if a worker lives by its id and its record alone, for a lock that cannot be tried: its process runs on this machine, or a
    /// worker of another machine gave a sign of life just now.
    fn lives_by_record(&self, id: &str) -> bool {
        let is_fresh = |record: WorkerRecord| {
            !groups::is_of_this_boot(&record) && self.clock.now().since(record.heartbeat) < LEASE
        };
        groups::id_lives(id) || self.known_record(id).is_some_and(is_fresh)
    }

    /// A worker's record, where it can be read.
    fn known_record(&self, id: &str) -> Option<WorkerRecord> {
        self.record(id).unwrap_or_else(|error| {
            self.warn_of(id, &error);
            None
        })
    }

    /// Says once that a worker's files are passed over.
    fn warn_of(&self, id: &str, error: &StoreError) {
        if self.state().odd.insert(id.to_owned()) {
            tracing::warn!("{error}; it is passed over, remove it if no team runs");
        }
    }

    /// Whether a worker is gone; its lock then, as far as there is one.
    fn find_dead(&self, id: &str) -> StoreResult<Option<Option<HeldLock>>> {
        if self.by_lease {
            return Ok(self.has_fallen_silent(id)?.then_some(None));
        }
        let path = self.lock_path(id);
        match self.files.stamp(&path) {
            Ok(_) => Ok(self.files.hold(&path).map_err(failed("lock", &path))?.map(Some)),
            // Somebody removed the lock: that says nothing about the worker.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let lives = self.record(id)?.is_some_and(|record| groups::process_lives(&record));
                Ok((!lives).then_some(None))
            }
            Err(error) => Err(failed("look at", &path)(error)),
        }
    }

    /// Whether a record has been the same for [`LEASE`], by a clock that does not jump and stands still in suspend.
    fn has_fallen_silent(&self, id: &str) -> StoreResult<bool> {
        let path = self.record_path(id);
        let bytes = match self.files.read(&path, 0, RECORD_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let mut state = self.state();
        let seen = state.seen.entry(id.to_owned()).or_insert_with(|| (bytes.clone(), Instant::now()));
        if seen.0 != bytes {
            *seen = (bytes, Instant::now());
        }
        Ok(seen.1.elapsed() >= LEASE)
    }

    /// Ends what a dead worker left running, then removes its record and its lock. The lock is held meanwhile, so that
    /// nobody else takes its claims before its commands have ended; its name is never used again.
    fn bury(&self, id: &str, held: Option<HeldLock>) -> StoreResult<Option<WorkerRecord>> {
        let record = self.record(id)?;
        if let Some(record) = &record {
            groups::end_groups(record);
        }
        for path in [self.record_path(id), self.lock_path(id)] {
            match self.files.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
                _ => {}
            }
        }
        drop(held);
        Ok(record)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let runs = |teammate: &WorkerTeammate| !teammate.process_groups.is_empty();
        let has_commands = state.written.as_ref().is_some_and(|(_, teammates)| teammates.values().any(runs));
        if self.own.is_some() && !has_commands {
            // A worker that ends in order leaves nothing; commands it left running are ended by the next survey of another.
            for path in [self.record_path(&self.me), self.lock_path(&self.me)] {
                let _ = self.files.remove(&path);
            }
        }
    }
}

/// Returns true if the reason is the file itself, which a retry does not change.
fn is_odd(error: &StoreError) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidInput, IsADirectory, NotADirectory, PermissionDenied};
    let StoreError::Io { source, .. } = error else { return false };
    [FileTooLarge, InvalidInput, IsADirectory, NotADirectory, PermissionDenied].contains(&source.kind())
}

/// Whether both say the same but for progress.
fn says_the_same(a: &BTreeMap<String, WorkerTeammate>, b: &BTreeMap<String, WorkerTeammate>) -> bool {
    let fixed = |teammate: &WorkerTeammate| WorkerTeammate { progress: Default::default(), ..teammate.clone() };
    a.len() == b.len() && a.iter().zip(b).all(|((a, x), (b, y))| a == b && fixed(x) == fixed(y))
}
