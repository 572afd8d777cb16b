//! The file-system port: every file operation of the stores.
//!
//! It is small, so that a test can fail at the n-th call (`tests/testkit/fault_injection.rs`) and a simulated disk can drop
//! unsynced writes (`tests/testkit/simulated/mod.rs`). All calls block.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::platform;
pub use crate::platform::watch::WatchEvents;
pub use crate::platform::{FileKind, FileStamp, LockHolder};

mod locks;
mod real;

pub use real::RealFileSystem;

/// A lock held until this is dropped, or the process ends.
pub type HeldLock = Box<dyn Any + Send + Sync>;

/// A file that stays open until this is dropped.
pub type OpenFile = Box<dyn Any + Send + Sync>;

/// The longest wait for a lock that another process holds.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// The first and the longest pause between two tries for a lifetime lock or a worktree's lock. Such locks have little contention.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(2);

/// The error for a lock that another process held for all of [`LOCK_WAIT_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockTimeout {
    /// The process that holds it, if the system names it.
    pub holder: Option<LockHolder>,
}

impl LockTimeout {
    /// The error of a wait for the lock on `path`.
    pub fn of(path: &Path) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, Self { holder: platform::lock_holder(path) })
    }

    /// Returns the timeout in this error, if it is one.
    pub fn in_error(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for LockTimeout {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = LOCK_WAIT_MAX.as_secs();
        match &self.holder {
            Some(holder) => write!(to, "{holder} holds it")?,
            None => write!(to, "a process that the system does not name holds it")?,
        }
        write!(to, " and did not release it within {seconds} s")
    }
}

impl std::error::Error for LockTimeout {}

/// The growing pauses between tries for a lock. They end after [`LOCK_WAIT_MAX`].
struct LockPauses {
    started_at: Instant,
    paused: Duration,
    next: Duration,
}

impl LockPauses {
    fn new() -> Self {
        Self { started_at: Instant::now(), paused: Duration::ZERO, next: LOCK_PAUSE_MIN }
    }
}

impl Iterator for LockPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        // A simulated wait takes no time, so its pauses are counted.
        if self.paused.max(self.started_at.elapsed()) >= LOCK_WAIT_MAX {
            return None;
        }
        let pause = self.next;
        self.paused += pause;
        self.next = (pause * 2).min(LOCK_PAUSE_MAX);
        Some(pause)
    }
}

/// A watch of all changes in one folder, by any process.
pub trait FolderWatch: Send {
    /// Calls `each` with the names that changed since the last drain; for a renamed file also with its old name in this folder. Does
    /// not wait. It reports everything that was done in the folder before the drain began.
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> WatchEvents;
}

/// The callback for each of many files: position, and bytes with stamp.
pub type ReadEach<'a> = &'a mut dyn FnMut(usize, io::Result<(&[u8], FileStamp)>);

/// The operations that stores use. Paths are absolute. Symbolic links are never followed at the last component.
pub trait FileSystem: Send + Sync {
    /// The names in a folder, unsorted; names that are not UTF-8 in a lossy form. `NotFound` if there is no such folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// The kind, size, time and inode of the entry at `path`.
    fn stamp(&self, path: &Path) -> io::Result<FileStamp>;

    /// A plain file's bytes from `offset`, and its stamp from before the read. `FileTooLarge` if it has more than `bytes_max` bytes
    /// after the offset, `InvalidInput` if it is not a plain file.
    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, FileStamp)>;

    /// Reads many files of one folder as [`Self::read`] does from offset 0. Calls `each` with the position in `names`.
    fn read_each(&self, folder: &Path, names: &[String], bytes_max: u64, each: ReadEach<'_>) {
        for (position, name) in names.iter().enumerate() {
            match self.read(&folder.join(name), 0, bytes_max) {
                Ok((bytes, stamp)) => each(position, Ok((&bytes, stamp))),
                Err(error) => each(position, Err(error)),
            }
        }
    }

    /// Creates the folder and its parents.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;

    /// Creates or truncates `path` and writes `bytes`. For temporaries, which are renamed afterwards.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Appends `bytes` in one call, creates the file if it is missing, and returns the size before. A failed append is undone, unless
    /// another process appended after it.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64>;

    /// Makes a file's bytes durable.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder's entries durable: renames, removals, new files.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Renames a file, and replaces the file at `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Opens the file at `path`, so that the disk frees it only when the result is dropped, even if it is replaced before. `None` if it
    /// cannot be opened.
    fn keep_open(&self, _path: &Path) -> Option<OpenFile> {
        None
    }

    /// Renames a file to an unused name; `AlreadyExists` if `to` exists.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.stamp(to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.rename(from, to),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) => Err(error),
        }
    }

    /// Exchanges two files atomically; `Unsupported` if the system cannot.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;

    /// Removes a file; a missing one is an error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Runs `critical` while holding the exclusive lock on the sidecar file `path`. Waits for the lock for at most
    /// [`LOCK_WAIT_MAX`]; then the error is a [`LockTimeout`], and `critical` did not run.
    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()>;

    /// As [`Self::locked`], but first calls `prepare` without the lock, and may call it again while it waits. Work that is already
    /// prepared keeps the lock for a shorter time.
    fn locked_prepared(&self, path: &Path, prepare: &mut dyn FnMut(), critical: &mut dyn FnMut()) -> io::Result<()> {
        prepare();
        self.locked(path, critical)
    }

    /// Takes the exclusive lock on `path` until the result is dropped; `None` if another process holds it.
    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>>;

    /// Waits before the next try for a held lock.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// The clock of stamps, in nanoseconds since 1970.
    fn now_ns(&self) -> i128 {
        platform::now_ns()
    }

    /// Watches `folder` from now on; `None` if events are unreliable there and stamps must be compared instead.
    fn watch(&self, _folder: &Path) -> Option<Box<dyn FolderWatch>> {
        None
    }

    /// The file system of `folder`, if its locks do not exclude other machines; `None` if locks are reliable.
    fn unreliable_lock_file_system(&self, _folder: &Path) -> Option<&'static str> {
        None
    }

    /// Returns true if a rename over an existing file becomes durable only after the renamed file's bytes. If not, a replacement
    /// without a sync can leave a torn file after a power cut.
    fn renames_after_bytes(&self, _folder: &Path) -> bool {
        false
    }
}

/// Takes the exclusive lock on `path` until the result is dropped. Waits for at most [`LOCK_WAIT_MAX`].
///
/// # Errors
/// A [`LockTimeout`], or the error of opening the lock file.
pub fn hold(files: &dyn FileSystem, path: &Path) -> io::Result<HeldLock> {
    let mut pauses = LockPauses::new();
    loop {
        if let Some(lock) = files.hold(path)? {
            return Ok(lock);
        }
        files.wait(pauses.next().ok_or_else(|| LockTimeout::of(path))?);
    }
}

/// Runs `critical` under the lock and returns its result.
///
/// # Errors
/// An error if the lock file cannot be opened or locked; `critical` did not run then.
pub fn locked<R>(files: &dyn FileSystem, path: &Path, critical: impl FnOnce() -> R) -> io::Result<R> {
    locked_prepared(files, path, || (), critical)
}

/// As [`locked`], with a preparation; see [`FileSystem::locked_prepared`].
///
/// # Errors
/// As [`locked`].
pub fn locked_prepared<R>(
    files: &dyn FileSystem,
    path: &Path,
    mut prepare: impl FnMut(),
    critical: impl FnOnce() -> R,
) -> io::Result<R> {
    let mut critical = Some(critical);
    let mut outcome = None;
    files.locked_prepared(path, &mut prepare, &mut || outcome = critical.take().map(|run| run()))?;
    outcome.ok_or_else(|| io::Error::other("the critical section did not run"))
}
