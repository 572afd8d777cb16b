//! The file-system port: every file operation of the stores, and nothing else.
//!
//! Small, so that a test can die at the n-th call ([`dying`]) and a simulated disk can drop unsynced writes
//! ([`simulated`]). It knows nothing of tasks or mail. All calls block; the stores call it off the runtime's threads.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::platform;
pub use crate::platform::watch::Drained;
pub use crate::platform::{FileKind, LockHolder, Stamp};

pub mod dying;
mod locks;
mod real;
pub mod simulated;

pub use real::RealFileSystem;

/// A lock held until this is dropped, or the process ends.
pub type HeldLock = Box<dyn Any + Send + Sync>;

/// The longest wait for a lock that others hold.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// The first and the longest pause between two tries for a lock that is held for life, or for a worktree: few want one at a time.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(2);

/// A lock that others held for all of [`LOCK_WAIT_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockTimeout {
    /// The process that holds it, where the system tells it.
    pub holder: Option<LockHolder>,
}

impl LockTimeout {
    /// The error of a wait for the lock on `path`.
    fn of(path: &Path) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, Self { holder: platform::lock_holder(path) })
    }

    /// The timeout that this error is, if it is one.
    #[must_use]
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

/// The growing pauses between tries for a lock; they end after [`LOCK_WAIT_MAX`].
struct Pauses {
    began: Instant,
    paused: Duration,
    next: Duration,
}

impl Pauses {
    fn new() -> Self {
        Self { began: Instant::now(), paused: Duration::ZERO, next: LOCK_PAUSE_MIN }
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        // A simulated wait takes no time: its pauses are counted.
        if self.paused.max(self.began.elapsed()) >= LOCK_WAIT_MAX {
            return None;
        }
        let pause = self.next;
        self.paused += pause;
        self.next = (pause * 2).min(LOCK_PAUSE_MAX);
        Some(pause)
    }
}

/// Notes what changes in one folder, by whomever.
pub trait FolderWatch: Send {
    /// Tells `each` the names that changed since the last drain, without waiting; for a renamed file also the name it had in
    /// this folder. All that was done in the folder before the drain began is told.
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> Drained;
}

/// What is handed each file of many: its place among them, its bytes and its stamp.
pub type ReadEach<'a> = &'a mut dyn FnMut(usize, io::Result<(&[u8], Stamp)>);

/// The operations stores use. Paths are absolute. Symbolic links are never followed at the last component.
pub trait FileSystem: Send + Sync {
    /// The names in a folder, unsorted; names that are not UTF-8 in a lossy form. `NotFound` where there is no such folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// What lies at `path`.
    fn stamp(&self, path: &Path) -> io::Result<Stamp>;

    /// A plain file's bytes from `offset`, and its stamp from before the reading. `FileTooLarge` when it has more than
    /// `bytes_max` bytes behind the offset, `InvalidInput` when it is no plain file.
    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)>;

    /// Reads many files of one folder, each as [`Self::read`] does from its beginning, and hands it to `each` with its place in `names`.
    fn read_each(&self, folder: &Path, names: &[String], bytes_max: u64, each: ReadEach<'_>) {
        for (place, name) in names.iter().enumerate() {
            match self.read(&folder.join(name), 0, bytes_max) {
                Ok((bytes, stamp)) => each(place, Ok((&bytes, stamp))),
                Err(error) => each(place, Err(error)),
            }
        }
    }

    /// Makes the folder and all above it.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;

    /// Makes or empties `path` and writes `bytes`: for temporaries, which get their name by a rename.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Appends `bytes` in one call, making the file where it is missing; returns the size before. Where that fails halfway
    /// and nobody else appended, what was written is taken back.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64>;

    /// Makes a file's bytes durable.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder's entries durable: renames, removals, new files.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Gives a file another name, replacing what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a name that nothing has; `AlreadyExists` where something has it.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.stamp(to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.rename(from, to),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) => Err(error),
        }
    }

    /// Swaps two files atomically; `Unsupported` where the system cannot.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;

    /// Removes a file; a missing one is an error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Runs `critical` while holding the exclusive lock on the sidecar file `path`. Waits for the lock for at most
    /// [`LOCK_WAIT_MAX`]; the error is a [`LockTimeout`] then, and `critical` did not run.
    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()>;

    /// Takes the exclusive lock on `path` for as long as the result lives; `None` when another holds it.
    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>>;

    /// From now on [`Self::locked`] tries for locks and does not wait for them: the process is to end.
    fn stop_waiting(&self) {}

    /// Lets time pass before a lock that somebody holds is tried for again.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// The clock that stamps go by, in nanoseconds since 1970: tells how old a file's last write is.
    fn now_ns(&self) -> i128 {
        platform::now_ns()
    }

    /// Bytes that can still be written on the disk of `folder`.
    fn free_bytes(&self, folder: &Path) -> io::Result<u64>;

    /// Watches `folder` from now on; `None` where that cannot be relied on, and stamps must be compared instead.
    fn watch(&self, _folder: &Path) -> Option<Box<dyn FolderWatch>> {
        None
    }

    /// What `folder` lies on, where that is a file system whose locks say nothing about other machines; `None` where they are to be
    /// trusted.
    fn distrusts_locks(&self, _folder: &Path) -> Option<&'static str> {
        None
    }

    /// Whether a rename over an existing file becomes durable only after the renamed file's bytes. Where it does not,
    /// a replacement that is not synced first can leave a torn file after a power cut.
    fn renames_after_bytes(&self, _folder: &Path) -> bool {
        false
    }
}

/// Takes the exclusive lock on `path` for as long as the result lives; waits for it for at most [`LOCK_WAIT_MAX`].
///
/// # Errors
/// A [`LockTimeout`], or the error of opening the lock file.
pub fn hold(files: &dyn FileSystem, path: &Path) -> io::Result<HeldLock> {
    let mut pauses = Pauses::new();
    loop {
        if let Some(held) = files.hold(path)? {
            return Ok(held);
        }
        files.wait(pauses.next().ok_or_else(|| LockTimeout::of(path))?);
    }
}

/// Runs `critical` under the lock and hands on what it returns.
///
/// # Errors
/// When the lock file cannot be opened or locked; `critical` did not run then.
pub fn locked<R>(files: &dyn FileSystem, path: &Path, critical: impl FnOnce() -> R) -> io::Result<R> {
    let mut critical = Some(critical);
    let mut outcome = None;
    files.locked(path, &mut || outcome = critical.take().map(|run| run()))?;
    outcome.ok_or_else(|| io::Error::other("the critical section did not run"))
}
