//! A file system that fails at a chosen call, or whose disk is full from a chosen write on: for crash tests.
//!
//! A crash is one of the process: from then on every call fails and changes nothing. Later cleanup by the program therefore leaves
//! no trace, as after `kill -9`.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brigade::stores::fs::{FileStamp, FileSystem, FolderWatch, HeldLock};

/// The injected fault and its time, counted from 1. Crashes count only calls that change the disk, including syncs: a crash before a
/// read equals a crash before the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// No fault; calls are only counted.
    None,
    /// No fault, but file events are unreliable.
    NoFileEvents,
    /// The process is killed just before this changing call.
    CrashBefore(u64),
    /// The process is killed during this changing call. A write or append has written half of its bytes; any other call has done
    /// nothing.
    CrashDuring(u64),
    /// From this write or append on, the disk is full: half of the bytes are written, and the call fails. Renames and removals work.
    DiskFullFrom(u64),
    /// This call fails without effect, counted over all calls. Later calls work.
    FailsAt(u64),
}

/// Forwards calls to another file system until its [`CallFault`].
pub struct FaultyFileSystem {
    inner: Arc<dyn FileSystem>,
    fault: CallFault,
    calls: AtomicU64,
    changes: AtomicU64,
    writes: AtomicU64,
    action: Option<(u64, Box<dyn Fn() + Send + Sync>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Reads,
    Changes,
    Writes,
}

enum WriteExtent {
    Full,
    Half,
}

impl FaultyFileSystem {
    /// Forwards calls to `inner` until `fault`.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, fault: CallFault) -> Self {
        let count = || AtomicU64::new(0);
        Self { inner, fault, calls: count(), changes: count(), writes: count(), action: None }
    }

    /// Forwards calls to `inner`, and runs `action` just before this call: another program acts.
    #[must_use]
    pub fn with_action(inner: Arc<dyn FileSystem>, call: u64, action: impl Fn() + Send + Sync + 'static) -> Self {
        Self { action: Some((call, Box::new(action))), ..Self::new(inner, CallFault::None) }
    }

    /// The count of all calls so far, including those after a crash.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The count of calls so far that change the disk.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// The count of writes and appends so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Returns true if the fault has occurred. A run without it was not disturbed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        match self.fault {
            CallFault::None | CallFault::NoFileEvents => false,
            CallFault::CrashBefore(n) | CallFault::CrashDuring(n) => self.changes() >= n,
            CallFault::FailsAt(n) => self.calls() >= n,
            CallFault::DiskFullFrom(n) => self.writes() >= n,
        }
    }

    fn count(&self, kind: CallKind) -> io::Result<WriteExtent> {
        let next = |counter: &AtomicU64, counts: bool| counter.fetch_add(u64::from(counts), Ordering::SeqCst) + 1;
        let call = next(&self.calls, true);
        if let Some((_, action)) = self.action.as_ref().filter(|(at, _)| *at == call) {
            action();
        }
        let change = next(&self.changes, kind != CallKind::Reads);
        let write = next(&self.writes, kind == CallKind::Writes);
        let changes = kind != CallKind::Reads;
        match self.fault {
            CallFault::CrashDuring(n) if change == n && kind == CallKind::Writes => Ok(WriteExtent::Half),
            // A read after the fatal change finds a larger counter.
            CallFault::CrashBefore(n) | CallFault::CrashDuring(n) if change > n || (changes && change == n) => {
                Err(io::Error::other("killed"))
            }
            CallFault::FailsAt(n) if call == n => Err(io::Error::other("injected fault")),
            CallFault::DiskFullFrom(n) if kind == CallKind::Writes && write >= n => Ok(WriteExtent::Half),
            _ => Ok(WriteExtent::Full),
        }
    }

    fn read_call<R>(&self, call: impl FnOnce(&dyn FileSystem) -> io::Result<R>) -> io::Result<R> {
        self.count(CallKind::Reads)?;
        call(self.inner.as_ref())
    }

    fn change_call<R>(&self, call: impl FnOnce(&dyn FileSystem) -> io::Result<R>) -> io::Result<R> {
        self.count(CallKind::Changes)?;
        call(self.inner.as_ref())
    }

    fn write_call<R>(&self, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<R>) -> io::Result<R> {
        match self.count(CallKind::Writes)? {
            WriteExtent::Full => write(bytes),
            WriteExtent::Half => {
                write(&bytes[..bytes.len() / 2])?;
                match self.fault {
                    CallFault::DiskFullFrom(_) => Err(io::ErrorKind::StorageFull.into()),
                    _ => Err(io::Error::other("killed")),
                }
            }
        }
    }
}

impl FileSystem for FaultyFileSystem {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.read_call(|files| files.list(folder))
    }

    fn stamp(&self, path: &Path) -> io::Result<FileStamp> {
        self.read_call(|files| files.stamp(path))
    }

    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, FileStamp)> {
        self.read_call(|files| files.read(path, offset, bytes_max))
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.change_call(|files| files.create_folder(folder))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.write_call(bytes, |bytes| self.inner.write(path, bytes))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        self.write_call(bytes, |bytes| self.inner.append(path, bytes))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.change_call(|files| files.sync_file(path))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.change_call(|files| files.sync_folder(folder))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change_call(|files| files.rename(from, to))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change_call(|files| files.rename_new(from, to))
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        self.change_call(|files| files.exchange(a, b))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change_call(|files| files.remove(path))
    }

    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        self.change_call(|files| files.locked(path, critical))
    }

    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>> {
        self.change_call(|files| files.hold(path))
    }

    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        self.read_call(|files| Ok(files.watch(folder))).ok().flatten().filter(|_| self.fault != CallFault::NoFileEvents)
    }

    fn unreliable_lock_file_system(&self, folder: &Path) -> Option<&'static str> {
        self.inner.unreliable_lock_file_system(folder)
    }

    fn renames_after_bytes(&self, folder: &Path) -> bool {
        self.inner.renames_after_bytes(folder)
    }
}
