//! Git processes that survive their caller. Each one that writes by path holds a lock through its empty stdin, and a launch waits for that
//! lock.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::command::RepoPath;
use super::files::failed;
use crate::platform::open_lock_file;
use crate::ports::RepositoryError;

/// The longest wait for a git of an earlier process.
const ORPHAN_WAIT_MAX: Duration = Duration::from_secs(20);
/// The wait after which a warning is logged.
const ORPHAN_WAIT_UNLOGGED: Duration = Duration::from_secs(1);
/// The pause between checks whether a git of an earlier process has ended.
const ORPHAN_PAUSE: Duration = Duration::from_millis(10);

impl RepoPath {
    /// Waits for git processes that an earlier process started in this workspace. They survive their caller, and clean up by paths that
    /// the next launch may use.
    ///
    /// # Errors
    /// One still runs after [`ORPHAN_WAIT_MAX`], or the lock file cannot be used.
    pub(super) fn wait_for_orphan_git(&self) -> Result<(), RepositoryError> {
        let started_at = Instant::now();
        let file =
            open_lock_file(&self.running_lock_file).map_err(|error| failed("open", &self.running_lock_file, &error))?;
        let mut is_logged = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if started_at.elapsed() < ORPHAN_WAIT_MAX => {
                    if !is_logged && started_at.elapsed() > ORPHAN_WAIT_UNLOGGED {
                        tracing::warn!("waiting for a git process of an earlier run");
                        is_logged = true;
                    }
                    thread::sleep(ORPHAN_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    let reason = format!(
                        "a git process of an earlier run is still running. hint: launch again when it has ended. If no git runs, end the program that a filter or merge driver left running, or remove {}",
                        self.running_lock_file.display()
                    );
                    return Err(failed("work in", &self.work_tree, &reason));
                }
                Err(TryLockError::Error(error)) => return Err(failed("lock", &self.running_lock_file, &error)),
            }
        }
    }

    /// Takes the lock that git, and every process that git starts, holds through its empty stdin until it ends.
    pub(super) fn lock_as_running(&self) -> Option<File> {
        let file = open_lock_file(&self.running_lock_file).ok()?;
        file.lock_shared().ok()?;
        Some(file)
    }
}
