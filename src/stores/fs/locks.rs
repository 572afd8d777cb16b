//! Locks on files. The threads of one process take turns with a lock, and every wait is limited.

use std::fs::{self, File};
use std::io;
use std::mem;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{LOCK_WAIT_MAX, LockTimeout};
use crate::platform;
use crate::ports::WaitLimit;

/// An open lock file.
#[derive(Debug)]
struct LockFile {
    lock: fd_lock::RwLock<File>,
    inode: u64,
}

impl LockFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = platform::open_lock_file(path)?;
        let inode = platform::stamp_of(&file.metadata()?).inode;
        Ok(Self { lock: fd_lock::RwLock::new(file), inode })
    }
}

/// The pauses between the first tries for a lock, in microseconds. Most critical sections are shorter, and a thread for each wait
/// would cost more.
const FIRST_PAUSES_US: [u64; 7] = [50, 100, 200, 400, 800, 1600, 3200];

/// The time for a try without waiting, and the interval at which a wait checks its limit.
const TRY_TIME: Duration = Duration::from_millis(100);

/// A lock that the threads of this process share. The file's lock excludes other processes.
#[derive(Debug)]
pub(super) struct OwnLock {
    /// `None` while a thread uses it.
    file: Mutex<Option<LockFileState>>,
    returned: Condvar,
}

/// The file of a lock between two uses.
#[derive(Debug)]
enum LockFileState {
    /// It is not open.
    Closed,
    /// It is open, and not locked.
    Open(LockFile),
    /// A thread waits for its lock and then sends the file. The thread cannot stop early, so there is at most one for each
    /// lock. If no receiver is left, it releases the lock at once and ends.
    Waiting(Receiver<LockFile>),
}

/// One thread's use of a lock's file, until this is dropped.
struct Turn<'a> {
    file: LockFileState,
    lock: &'a OwnLock,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.lock.file.lock() = Some(mem::replace(&mut self.file, LockFileState::Closed));
        self.lock.returned.notify_one();
    }
}

impl OwnLock {
    pub(super) fn new() -> Self {
        Self { file: Mutex::new(Some(LockFileState::Closed)), returned: Condvar::new() }
    }

    /// Waits for this thread's turn; `None` after [`LOCK_WAIT_MAX`].
    fn turn(&self) -> Option<Turn<'_>> {
        let mut file = self.file.lock();
        self.returned.wait_while_for(&mut file, |file| file.is_none(), LOCK_WAIT_MAX);
        Some(Turn { file: file.take()?, lock: self })
    }

    /// Runs `critical` under the lock of the file at `path`. Waits as long as `wait_limit` allows. Calls `prepare` before each try.
    pub(super) fn run(
        &self,
        path: &Path,
        wait_limit: &WaitLimit,
        prepare: &mut dyn FnMut(),
        critical: &mut dyn FnMut(),
    ) -> io::Result<()> {
        let started_at = Instant::now();
        let mut pauses = FIRST_PAUSES_US.into_iter().map(Duration::from_micros);
        let timeout = || {
            wait_limit.record_timeout();
            LockTimeout::of(path)
        };
        let wait_max = || if wait_limit.is_over() { TRY_TIME } else { LOCK_WAIT_MAX };
        let mut turn = self.turn().ok_or_else(timeout)?;
        loop {
            let time_left = wait_max().checked_sub(started_at.elapsed()).ok_or_else(timeout)?;
            let mut lock = match mem::replace(&mut turn.file, LockFileState::Closed) {
                LockFileState::Closed => {
                    prepare();
                    LockFile::open(path)?
                }
                LockFileState::Open(lock) => {
                    prepare();
                    lock
                }
                LockFileState::Waiting(waiter) => match waiter.recv_timeout(time_left.min(TRY_TIME)) {
                    Ok(lock) => lock,
                    Err(RecvTimeoutError::Disconnected) => continue,
                    Err(RecvTimeoutError::Timeout) => {
                        turn.file = LockFileState::Waiting(waiter);
                        continue;
                    }
                },
            };
            match try_to_run(&mut lock, path, critical)? {
                TryOutcome::Ran => {
                    turn.file = LockFileState::Open(lock);
                    return Ok(());
                }
                // The lock must be on the file that is at the path now.
                TryOutcome::Removed => continue,
                TryOutcome::Held => {}
            }
            turn.file = match pauses.next() {
                Some(pause) => {
                    std::thread::sleep(pause);
                    LockFileState::Open(lock)
                }
                None => LockFileState::Waiting(wait_in_thread(lock)?),
            };
        }
    }
}

/// The outcome of one try for a lock.
enum TryOutcome {
    /// It was free, and the critical section ran.
    Ran,
    /// Another process holds it.
    Held,
    /// The file at the path is another one.
    Removed,
}

fn try_to_run(lock: &mut LockFile, path: &Path, critical: &mut dyn FnMut()) -> io::Result<TryOutcome> {
    let inode = lock.inode;
    match lock.lock.try_write() {
        // A lock on a removed file excludes no other process.
        Ok(_guard) if inode_at(path) == Some(inode) => {
            critical();
            Ok(TryOutcome::Ran)
        }
        Ok(_) => Ok(TryOutcome::Removed),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(TryOutcome::Held),
        Err(error) => Err(error),
    }
}

/// Waits for the lock in another thread: the system's queue is fair but has no timeout.
fn wait_in_thread(mut lock: LockFile) -> io::Result<Receiver<LockFile>> {
    // The file is only sent to a waiting receiver. Without one it is closed, which releases the lock.
    let (sender, receiver) = mpsc::sync_channel(0);
    std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        // Forgetting the guard keeps the lock for the receiver of the file.
        let is_locked = lock.lock.write().map(mem::forget).is_ok();
        if is_locked {
            let _ = sender.try_send(lock);
        }
    })?;
    Ok(receiver)
}

fn inode_at(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|metadata| platform::stamp_of(&metadata).inode)
}

/// Returns true if `file` is still at `path`.
pub(super) fn is_current_file(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|open| inode_at(path) == Some(platform::stamp_of(&open).inode))
}
