//! The file system of one simulated process: the shared disk, seen through calls that may fail, and that end with the process.
//! Whatever it changes is shown to the laws at once.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use brigade::stores::fs::simulated::SimulatedDisk;
use brigade::stores::fs::{Drained, FileSystem, FolderWatch, HeldLock, Stamp};

use super::nature::{Nature, lock};
use super::plan::{Deed, Failure, Fate};

/// See the module.
pub struct ProcessFiles {
    pub name: String,
    pub nature: Arc<Nature>,
    disk: SimulatedDisk,
    is_dead: AtomicBool,
    fates: Mutex<Vec<(u32, Fate)>>,
    failing: Mutex<(Option<Failure>, u32)>,
    /// Locks for life: they end with the process, whoever still has what stands for them.
    held: Mutex<HashMap<u64, HeldLock>>,
    next_held: AtomicU64,
    /// Counts up when watches lose what they were to tell.
    losses: AtomicU64,
}

/// What kind of call it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Looks,
    Changes,
    Writes,
}

enum Verdict {
    Passes,
    /// Half of a write gets through, and this is what is said of it.
    Half(io::Error),
}

impl ProcessFiles {
    pub fn new(name: String, nature: &Arc<Nature>) -> Arc<Self> {
        Arc::new(Self {
            name,
            nature: Arc::clone(nature),
            disk: nature.disk(),
            is_dead: AtomicBool::new(false),
            fates: Mutex::default(),
            failing: Mutex::new((None, 0)),
            held: Mutex::default(),
            next_held: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        })
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// The process is gone from here on: it changes nothing any more, and its locks are free.
    pub fn kill(&self) {
        if !self.is_dead.swap(true, Ordering::Relaxed) {
            self.nature.note(|| format!("{} dies", self.name));
            lock(&self.held).clear();
            self.nature.died.notify_one();
        }
    }

    /// Something is to befall the process after so many calls.
    pub fn befall(&self, after: u32, fate: Fate) {
        lock(&self.fates).push((after, fate));
    }

    /// Nothing befalls it any more.
    pub fn calm(&self) {
        lock(&self.fates).clear();
        *lock(&self.failing) = (None, 0);
    }

    pub fn lose_watches(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }

    fn killed() -> io::Error {
        io::Error::other("killed")
    }

    fn count(&self, call: Call) -> io::Result<Verdict> {
        if self.is_dead() {
            return Err(Self::killed());
        }
        self.nature.tell_time();
        for fate in self.due() {
            if let Some(verdict) = self.meet(fate, call)? {
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

    /// The fates whose time has come.
    fn due(&self) -> Vec<Fate> {
        let mut fates = lock(&self.fates);
        let mut due = Vec::new();
        fates.retain_mut(|(after, fate)| {
            // Whoever needs a lock waits until none is held.
            let waits = matches!(fate, Fate::Meanwhile(deed) if !is_lockless(deed) && self.nature.is_locked());
            let is_due = *after == 0 && !waits;
            *after = after.saturating_sub(1);
            if is_due {
                due.push(fate.clone());
            }
            !is_due
        });
        due
    }

    fn meet(&self, fate: Fate, call: Call) -> io::Result<Option<Verdict>> {
        self.nature.note(|| format!("{} meets {fate:?}", self.name));
        match fate {
            Fate::Fail { how, times } => *lock(&self.failing) = (Some(how), times),
            Fate::Tear if call == Call::Writes => return Ok(Some(Verdict::Half(error_of(Failure::Full)))),
            Fate::Tear => self.befall(0, Fate::Tear),
            Fate::Die if call == Call::Writes => return Ok(Some(Verdict::Half(Self::killed()))),
            Fate::Die => {
                self.kill();
                return Err(Self::killed());
            }
            Fate::PowerCut { dice } => {
                self.nature.cut_power(dice);
                return Err(Self::killed());
            }
            // Nobody is in two places at once.
            Fate::Meanwhile(deed) if self.name.starts_with(whose(&deed)) => {}
            Fate::Meanwhile(deed) => self.nature.meanwhile(&deed),
        }
        // Whoever acted meanwhile may have ended this process.
        if self.is_dead() { Err(Self::killed()) } else { Ok(None) }
    }

    fn look<R>(&self, call: impl FnOnce(&SimulatedDisk) -> io::Result<R>) -> io::Result<R> {
        self.count(Call::Looks)?;
        call(&self.disk)
    }

    fn change<R>(&self, paths: &[&Path], call: impl FnOnce(&SimulatedDisk) -> io::Result<R>) -> io::Result<R> {
        self.count(Call::Changes)?;
        self.shown(paths, || call(&self.disk))
    }

    fn put<R>(&self, path: &Path, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<R>) -> io::Result<R> {
        match self.count(Call::Writes)? {
            Verdict::Passes => self.shown(&[path], || write(bytes)),
            Verdict::Half(error) => {
                self.shown(&[path], || write(&bytes[..bytes.len() / 2]))?;
                if error.kind() == io::ErrorKind::Other {
                    self.kill();
                }
                Err(error)
            }
        }
    }

    /// Does it, and shows the laws what became of these paths.
    fn shown<R>(&self, paths: &[&Path], act: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let outcome = act()?;
        for path in paths {
            self.nature.changed(self, path);
        }
        Ok(outcome)
    }

    fn keep(self: &Arc<Self>, held: Option<HeldLock>) -> Option<HeldLock> {
        let held = held?;
        let number = self.next_held.fetch_add(1, Ordering::Relaxed);
        lock(&self.held).insert(number, held);
        Some(Box::new(Token { files: Arc::downgrade(self), number }))
    }
}

/// Whether it gets by without our locks.
fn is_lockless(deed: &Deed) -> bool {
    matches!(deed, Deed::Click { .. } | Deed::ForeignMail { .. } | Deed::TornTask { .. })
}

/// Whose process does it.
fn whose(deed: &Deed) -> &'static str {
    match deed {
        Deed::WorkerClaims { .. } | Deed::WorkerFinishes { .. } => "worker",
        deed if is_lockless(deed) => "foreign",
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

/// Stands for a lock that the process holds for life.
struct Token {
    files: Weak<ProcessFiles>,
    number: u64,
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(files) = self.files.upgrade() {
            let held = lock(&files.held).remove(&self.number);
            drop(held);
        }
    }
}

/// Watches through which news may be lost.
struct LossyWatch {
    inner: Box<dyn FolderWatch>,
    files: Weak<ProcessFiles>,
    seen: u64,
}

impl FolderWatch for LossyWatch {
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> Drained {
        let losses = self.files.upgrade().map_or(0, |files| files.losses.load(Ordering::Relaxed));
        if std::mem::replace(&mut self.seen, losses) == losses {
            return self.inner.drain(each);
        }
        match self.inner.drain(&mut |_, _| ()) {
            Drained::All => Drained::SomeLost,
            other => other,
        }
    }
}

/// [`ProcessFiles`] as the stores take it.
pub struct Files(pub Arc<ProcessFiles>);

impl FileSystem for Files {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.0.look(|disk| disk.list(folder))
    }
    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        self.0.look(|disk| disk.stamp(path))
    }
    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)> {
        self.0.look(|disk| disk.read(path, offset, bytes_max))
    }
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.change(&[], |disk| disk.create_folder(folder))
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.put(path, bytes, |bytes| self.0.disk.write(path, bytes))
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        self.0.put(path, bytes, |bytes| self.0.disk.append(path, bytes))
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.0.change(&[], |disk| disk.sync_file(path))
    }
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.change(&[], |disk| disk.sync_folder(folder))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.nature.moves(&self.0, from, Some(to));
        self.0.change(&[from, to], |disk| disk.rename(from, to))
    }
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.change(&[from, to], |disk| disk.rename_new(from, to))
    }
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        self.0.change(&[a, b], |disk| disk.exchange(a, b))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.nature.moves(&self.0, path, None);
        self.0.change(&[path], |disk| disk.remove(path))
    }
    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        self.0.count(Call::Changes)?;
        let _section = self.0.nature.section(path);
        self.0.disk.locked(path, critical)
    }
    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>> {
        let held = self.0.change(&[], |disk| disk.hold(path))?;
        Ok(self.0.keep(held))
    }
    fn wait(&self, time: std::time::Duration) {
        self.0.disk.wait(time);
    }
    fn now_ns(&self) -> i128 {
        self.0.nature.tell_time();
        self.0.disk.now_ns()
    }
    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        self.0.look(|disk| disk.free_bytes(folder))
    }
    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        if !self.0.nature.setup.has_watches {
            return None;
        }
        let inner = self.0.look(|disk| Ok(disk.watch(folder))).ok().flatten()?;
        let seen = self.0.losses.load(Ordering::Relaxed);
        Some(Box::new(LossyWatch { inner, files: Arc::downgrade(&self.0), seen }))
    }
    fn distrusts_locks(&self, _folder: &Path) -> Option<&'static str> {
        self.0.nature.setup.by_lease.then_some("NFS")
    }
    fn renames_after_bytes(&self, folder: &Path) -> bool {
        self.0.disk.renames_after_bytes(folder)
    }
}
