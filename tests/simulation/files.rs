//! The file system of one simulated process: the shared disk, with calls that may fail and that end with the process.
//! Each change is checked against the invariants at once.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use brigade::stores::fs::{FileStamp, FileSystem, FolderWatch, HeldLock, WatchEvents};

use super::host::{SimulatedHost, lock};
use super::plan::{Action, ActionFault, Failure};
use crate::testkit::simulated::SimulatedDisk;

/// The files of one process.
pub struct ProcessFiles {
    pub name: String,
    pub host: Arc<SimulatedHost>,
    disk: SimulatedDisk,
    is_dead: AtomicBool,
    scheduled_faults: Mutex<Vec<(u32, ActionFault)>>,
    failing: Mutex<(Option<Failure>, u32)>,
    /// Locks held for life. They end with the process, even if their tokens still exist.
    held_locks: Mutex<HashMap<u64, HeldLock>>,
    next_lock: AtomicU64,
    /// Increases when watches lose changes.
    losses: AtomicU64,
}

/// The kind of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Reads,
    Changes,
    Writes,
}

enum Verdict {
    Passes,
    /// Half of a write gets through, and this error is returned.
    Half(io::Error),
}

impl ProcessFiles {
    pub fn new(name: String, host: &Arc<SimulatedHost>) -> Arc<Self> {
        Arc::new(Self {
            name,
            host: Arc::clone(host),
            disk: host.disk(),
            is_dead: AtomicBool::new(false),
            scheduled_faults: Mutex::default(),
            failing: Mutex::new((None, 0)),
            held_locks: Mutex::default(),
            next_lock: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        })
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Ends the process: it changes nothing any more, and its locks are free.
    pub fn kill(&self) {
        if !self.is_dead.swap(true, Ordering::Relaxed) {
            self.host.note(|| format!("{} dies", self.name));
            lock(&self.held_locks).clear();
            self.host.died.notify_one();
        }
    }

    /// Schedules a fault of the process after this many calls.
    pub fn inject_fault(&self, after: u32, fault: ActionFault) {
        lock(&self.scheduled_faults).push((after, fault));
    }

    /// Cancels all faults.
    pub fn cancel_faults(&self) {
        lock(&self.scheduled_faults).clear();
        *lock(&self.failing) = (None, 0);
    }

    pub fn lose_watches(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }

    fn killed() -> io::Error {
        io::Error::other("killed")
    }

    /// Starts a call, with the faults that are due. Returns an error if the call fails.
    fn start_call(&self, kind: CallKind) -> io::Result<Verdict> {
        if self.is_dead() {
            return Err(Self::killed());
        }
        self.host.update_disk_clock();
        for fault in self.due_faults() {
            if let Some(verdict) = self.apply_fault(fault, kind)? {
                return Ok(verdict);
            }
        }
        let mut failing = lock(&self.failing);
        if failing.1 > 0 {
            failing.1 -= 1;
            return Err(failing.0.map_or_else(Self::killed, error_of));
        }
        Ok(Verdict::Passes)
    }

    /// The faults that are due.
    fn due_faults(&self) -> Vec<ActionFault> {
        let mut scheduled_faults = lock(&self.scheduled_faults);
        let mut due_faults = Vec::new();
        scheduled_faults.retain_mut(|(after, fault)| {
            // An action that needs a lock waits until none is held.
            let waits =
                matches!(fault, ActionFault::ConcurrentAction(action) if !is_lockless(action) && self.host.is_locked());
            let is_due = *after == 0 && !waits;
            *after = after.saturating_sub(1);
            if is_due {
                due_faults.push(fault.clone());
            }
            !is_due
        });
        due_faults
    }

    fn apply_fault(&self, fault: ActionFault, kind: CallKind) -> io::Result<Option<Verdict>> {
        self.host.note(|| format!("{} meets {fault:?}", self.name));
        match fault {
            ActionFault::Fail { how, times } => *lock(&self.failing) = (Some(how), times),
            ActionFault::Tear if kind == CallKind::Writes => return Ok(Some(Verdict::Half(error_of(Failure::Full)))),
            ActionFault::Tear => self.inject_fault(0, ActionFault::Tear),
            ActionFault::Die if kind == CallKind::Writes => return Ok(Some(Verdict::Half(Self::killed()))),
            ActionFault::Die => {
                self.kill();
                return Err(Self::killed());
            }
            ActionFault::PowerCut { seed } => {
                self.host.cut_power(seed);
                return Err(Self::killed());
            }
            // A process cannot act during its own call.
            ActionFault::ConcurrentAction(action) if self.name.starts_with(process_of(&action)) => {}
            ActionFault::ConcurrentAction(action) => self.host.act_concurrently(&action),
        }
        // The other action may have ended this process.
        if self.is_dead() { Err(Self::killed()) } else { Ok(None) }
    }

    fn query<R>(&self, call: impl FnOnce(&SimulatedDisk) -> io::Result<R>) -> io::Result<R> {
        self.start_call(CallKind::Reads)?;
        call(&self.disk)
    }

    fn change<R>(&self, paths: &[&Path], call: impl FnOnce(&SimulatedDisk) -> io::Result<R>) -> io::Result<R> {
        self.start_call(CallKind::Changes)?;
        self.call_and_check(paths, || call(&self.disk))
    }

    fn write_bytes<R>(&self, path: &Path, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<R>) -> io::Result<R> {
        match self.start_call(CallKind::Writes)? {
            Verdict::Passes => self.call_and_check(&[path], || write(bytes)),
            Verdict::Half(error) => {
                self.call_and_check(&[path], || write(&bytes[..bytes.len() / 2]))?;
                if error.kind() == io::ErrorKind::Other {
                    self.kill();
                }
                Err(error)
            }
        }
    }

    /// Performs the call and checks these paths against the invariants.
    fn call_and_check<R>(&self, paths: &[&Path], call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let outcome = call()?;
        for path in paths {
            self.host.handle_change(self, path);
        }
        Ok(outcome)
    }

    fn register_lock(self: &Arc<Self>, held_lock: Option<HeldLock>) -> Option<HeldLock> {
        let held_lock = held_lock?;
        let number = self.next_lock.fetch_add(1, Ordering::Relaxed);
        lock(&self.held_locks).insert(number, held_lock);
        Some(Box::new(LockToken { files: Arc::downgrade(self), number }))
    }
}

/// Returns true if the action takes none of our locks.
fn is_lockless(action: &Action) -> bool {
    matches!(action, Action::Click { .. } | Action::ForeignMail { .. } | Action::TornTask { .. })
}

/// The process of the action.
fn process_of(action: &Action) -> &'static str {
    match action {
        Action::WorkerClaims { .. } | Action::WorkerFinishes { .. } => "worker",
        action if is_lockless(action) => "foreign",
        _ => "person",
    }
}

fn error_of(failure: Failure) -> io::Error {
    match failure {
        Failure::Io => io::Error::from_raw_os_error(5),
        Failure::Full => io::ErrorKind::StorageFull.into(),
        Failure::Denied => io::ErrorKind::PermissionDenied.into(),
    }
}

/// A token of a lock that the process holds for life.
struct LockToken {
    files: Weak<ProcessFiles>,
    number: u64,
}

impl Drop for LockToken {
    fn drop(&mut self) {
        if let Some(files) = self.files.upgrade() {
            let held_lock = lock(&files.held_locks).remove(&self.number);
            drop(held_lock);
        }
    }
}

/// Watches that may lose changes.
struct LossyWatch {
    inner: Box<dyn FolderWatch>,
    files: Weak<ProcessFiles>,
    seen: u64,
}

impl FolderWatch for LossyWatch {
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> WatchEvents {
        let losses = self.files.upgrade().map_or(0, |files| files.losses.load(Ordering::Relaxed));
        if std::mem::replace(&mut self.seen, losses) == losses {
            return self.inner.drain(each);
        }
        match self.inner.drain(&mut |_, _| ()) {
            WatchEvents::All => WatchEvents::SomeLost,
            other => other,
        }
    }
}

/// [`ProcessFiles`] as a file system of the stores.
pub struct Files(pub Arc<ProcessFiles>);

impl FileSystem for Files {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.0.query(|disk| disk.list(folder))
    }
    fn stamp(&self, path: &Path) -> io::Result<FileStamp> {
        self.0.query(|disk| disk.stamp(path))
    }
    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, FileStamp)> {
        self.0.query(|disk| disk.read(path, offset, bytes_max))
    }
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.change(&[], |disk| disk.create_folder(folder))
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.write_bytes(path, bytes, |bytes| self.0.disk.write(path, bytes))
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        self.0.write_bytes(path, bytes, |bytes| self.0.disk.append(path, bytes))
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.0.change(&[], |disk| disk.sync_file(path))
    }
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.change(&[], |disk| disk.sync_folder(folder))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.host.check_rename(&self.0, from, Some(to));
        self.0.change(&[from, to], |disk| disk.rename(from, to))
    }
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.change(&[from, to], |disk| disk.rename_new(from, to))
    }
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        self.0.change(&[a, b], |disk| disk.exchange(a, b))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.host.check_rename(&self.0, path, None);
        self.0.change(&[path], |disk| disk.remove(path))
    }
    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        self.0.start_call(CallKind::Changes)?;
        let _section = self.0.host.begin_section(path);
        self.0.disk.locked(path, critical)
    }
    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>> {
        let held_lock = self.0.change(&[], |disk| disk.hold(path))?;
        Ok(self.0.register_lock(held_lock))
    }
    fn wait(&self, time: std::time::Duration) {
        self.0.disk.wait(time);
    }
    fn now_ns(&self) -> i128 {
        self.0.host.update_disk_clock();
        self.0.disk.now_ns()
    }
    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        if !self.0.host.setup.has_watches {
            return None;
        }
        let inner = self.0.query(|disk| Ok(disk.watch(folder))).ok().flatten()?;
        let seen = self.0.losses.load(Ordering::Relaxed);
        Some(Box::new(LossyWatch { inner, files: Arc::downgrade(&self.0), seen }))
    }
    fn unreliable_lock_file_system(&self, _folder: &Path) -> Option<&'static str> {
        self.0.host.setup.by_lease.then_some("NFS")
    }
    fn renames_after_bytes(&self, folder: &Path) -> bool {
        self.0.disk.renames_after_bytes(folder)
    }
}
