//! Locks on files: the threads of one process take turns with each, and every wait has a bound.

use std::fs::{self, File};
use std::io;
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{LOCK_WAIT_MAX, LockTimeout};
use crate::platform;

type LockFile = fd_lock::RwLock<File>;

/// The pauses between the first tries for a lock, in microseconds. Most sections are shorter than these, and a thread for each wait would
/// cost more than they do.
const FIRST_PAUSES_US: [u64; 7] = [50, 100, 200, 400, 800, 1600, 3200];

/// The time for a lock that is tried and not waited for. A wait looks so often whether it may go on.
const TRY_TIME: Duration = Duration::from_millis(100);

/// A lock of this process. Its threads take turns with it; the file's lock keeps the processes apart.
#[derive(Debug)]
pub(super) struct OwnLock {
    /// `None` while a thread has it.
    file: Mutex<Option<FileOf>>,
    returned: Condvar,
}

/// The file of a lock, between two uses.
#[derive(Debug)]
enum FileOf {
    /// It has to be opened.
    Closed,
    /// It is open, and not locked.
    Open(LockFile),
    /// A thread waits for its lock and sends the file then. Such a thread ends no wait early, so at most one a lock is kept; where nobody
    /// receives any more it releases the lock at once and ends.
    Awaited(Receiver<LockFile>),
}

/// The file of a lock in the hands of one thread, until this is dropped.
struct Turn<'a> {
    file: FileOf,
    of: &'a OwnLock,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.of.file() = Some(mem::replace(&mut self.file, FileOf::Closed));
        self.of.returned.notify_one();
    }
}

impl OwnLock {
    pub(super) fn new() -> Self {
        Self { file: Mutex::new(Some(FileOf::Closed)), returned: Condvar::new() }
    }

    fn file(&self) -> MutexGuard<'_, Option<FileOf>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread's turn; `None` where others of this process had it for too long.
    fn turn(&self) -> Option<Turn<'_>> {
        let waited = self.returned.wait_timeout_while(self.file(), LOCK_WAIT_MAX, |file| file.is_none());
        let (mut file, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(Turn { file: file.take()?, of: self })
    }

    /// Runs `critical` under the lock of the file at `path`. It waits as long as `patience` allows.
    pub(super) fn run(&self, path: &Path, patience: &Patience, critical: &mut dyn FnMut()) -> io::Result<()> {
        let (began, mut pauses) = (Instant::now(), FIRST_PAUSES_US.into_iter().map(Duration::from_micros));
        let timeout = || {
            patience.note_refusal();
            LockTimeout::of(path)
        };
        let mut turn = self.turn().ok_or_else(timeout)?;
        loop {
            let left = patience.wait_max().checked_sub(began.elapsed()).ok_or_else(timeout)?;
            let mut lock = match mem::replace(&mut turn.file, FileOf::Closed) {
                FileOf::Closed => fd_lock::RwLock::new(platform::open_lock_file(path)?),
                FileOf::Open(lock) => lock,
                FileOf::Awaited(waiter) => match waiter.recv_timeout(left.min(TRY_TIME)) {
                    Ok(lock) => lock,
                    Err(RecvTimeoutError::Disconnected) => continue,
                    Err(RecvTimeoutError::Timeout) => {
                        turn.file = FileOf::Awaited(waiter);
                        continue;
                    }
                },
            };
            match try_to_run(&mut lock, path, critical)? {
                Try::Ran => {
                    turn.file = FileOf::Open(lock);
                    return Ok(());
                }
                // The lock of the file that lies there now is wanted.
                Try::Removed => continue,
                Try::Held => {}
            }
            turn.file = match pauses.next() {
                Some(pause) => {
                    std::thread::sleep(pause);
                    FileOf::Open(lock)
                }
                None => FileOf::Awaited(wait_aside(lock)?),
            };
        }
    }
}

/// The time that a process waits for locks: [`LOCK_WAIT_MAX`] for each, or for all of them together.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// True if no lock is waited for after the first refused one.
    is_limited: AtomicBool,
    is_over: AtomicBool,
}

impl Patience {
    /// The patience of one command: once a lock is refused, it waits for no other.
    pub(super) fn of_command() -> Self {
        Self { is_limited: AtomicBool::new(true), ..Self::default() }
    }

    /// From now on no lock is waited for.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn wait_max(&self) -> Duration {
        if self.is_over.load(Ordering::Relaxed) { TRY_TIME } else { LOCK_WAIT_MAX }
    }

    fn note_refusal(&self) {
        self.is_over.fetch_or(self.is_limited.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The outcome of one try for a lock.
enum Try {
    /// It was free, and the critical section ran.
    Ran,
    /// Another process holds it.
    Held,
    /// Its file is not the one at the path any more.
    Removed,
}

fn try_to_run(lock: &mut LockFile, path: &Path, critical: &mut dyn FnMut()) -> io::Result<Try> {
    match lock.try_write() {
        Ok(file) if is_still(&file, path) => {
            critical();
            Ok(Try::Ran)
        }
        Ok(_) => Ok(Try::Removed),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Try::Held),
        Err(error) => Err(error),
    }
}

/// Waits for the lock in a thread of its own: the system's queue is fair, and ends no wait after a time.
fn wait_aside(mut lock: LockFile) -> io::Result<Receiver<LockFile>> {
    // Sent only to one that receives at that moment; the lock goes with the file otherwise.
    let (sender, receiver) = mpsc::sync_channel(0);
    std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        // Forgetting the guard keeps the lock for the one that receives the file.
        let is_locked = lock.write().map(mem::forget).is_ok();
        if is_locked {
            let _ = sender.try_send(lock);
        }
    })?;
    Ok(receiver)
}

/// Returns true if `file` still lies at `path`: a lock on a removed file excludes no other process.
pub(super) fn is_still(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    platform::stamp_of(&open).inode == platform::stamp_of(&there).inode
}
