//! The leader lock: one process at a time leads a workspace, by the lock `.team/lead.lock` and the record `.team/lead.json`.
//!
//! A process becomes lead once it holds the lock and the record names no other live process. Each of the two excludes other
//! leads, so if one is removed, the lead restores it at its next check. If both are removed (`rm -r .team`), another process can
//! take the lead before that check; the former lead then stops. Even then each task has one claim, because the board decides claims.
//!
//! A record names a live process if boot, pid and start time are those of a running process. The lock alone decides where the
//! system has no start times (all but Linux), and for a record of another machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::ProcessId;
use crate::platform::{self, processes};
use crate::ports::{LeaderStatus, StoreError, StoreResult};
use crate::stores::file::atomic_write::Staged;
use crate::stores::file::{TEAM_FOLDER, failed};
use crate::stores::fs::{self, FileSystem, HeldLock};

/// The name of the lock in `.team`.
pub const LOCK_FILE: &str = "lead.lock";
const LEAD_FILE: &str = "lead.json";

/// The largest record that is read, in bytes. A few hundred are usual.
const LEAD_BYTES_MAX: u64 = 64 * 1024;

/// The record of the process that leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderInfo {
    /// The team.
    pub team: String,
    /// The process id of the lead.
    pub pid: u32,
    /// The start time of that process, in milliseconds since boot; 0 if the system has none.
    #[serde(default)]
    pub started_ms: u64,
    /// The boot id of its machine.
    #[serde(default)]
    pub boot: String,
}

impl LeaderInfo {
    fn new(process: &ProcessId, team: &str) -> Self {
        let ProcessId { pid, started_ms } = *process;
        Self { team: team.to_owned(), pid, started_ms, boot: platform::boot_id() }
    }

    fn unknown() -> Self {
        Self { team: "unknown".to_owned(), pid: 0, started_ms: 0, boot: String::new() }
    }

    /// Returns true if the lock is held by an unknown process.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.pid == 0
    }

    /// The mark that commands of its team inherit; see [`crate::sandbox::WORKER_VARIABLE`].
    #[must_use]
    pub fn mark(&self) -> String {
        format!("{}-{}", self.pid, self.started_ms)
    }

    /// Returns true if this process runs on this machine; `None` if that is unknown.
    #[must_use]
    pub fn is_running(&self) -> Option<bool> {
        if processes::own_start_ms() == 0 || self.boot != platform::boot_id() {
            return None;
        }
        let process = i32::try_from(self.pid).ok().and_then(processes::process);
        Some(process.is_some_and(|process| !process.has_ended && process.started_ms == self.started_ms))
    }
}

/// Proof that this process leads the workspace, until it is dropped.
pub struct LeaderLock {
    files: Arc<dyn FileSystem>,
    workspace: PathBuf,
    /// The inode of the workspace folder when the lead was taken.
    inode: u64,
    own: LeaderInfo,
    /// The lock, and the inode of its file.
    lock: Mutex<Option<(HeldLock, u64)>>,
}

/// Makes `process` the lead of the workspace until the result is dropped. Blocks for at most [`fs::LOCK_WAIT_MAX`].
///
/// # Errors
/// [`StoreError::AlreadyLed`] if another process leads; [`StoreError::Io`] with the holder of the lock if that is not a lead.
pub fn acquire_leader_lock(
    files: Arc<dyn FileSystem>,
    workspace: &Path,
    process: &ProcessId,
    team: &str,
) -> StoreResult<LeaderLock> {
    let team_folder = workspace.join(TEAM_FOLDER);
    files.create_folder(&team_folder).map_err(failed("make", &team_folder))?;
    let inode = files.stamp(workspace).map_err(failed("inspect", workspace))?.inode;
    let own = LeaderInfo::new(process, team);
    let lock = Mutex::new(None);
    let leadership = LeaderLock { files, workspace: workspace.to_owned(), inode, own, lock };
    leadership.check_record()?;
    let path = leadership.lock_path();
    match fs::hold(&*leadership.files, &path) {
        Ok(lock) => leadership.keep_lock(lock)?,
        Err(error) => {
            // Its holder may have become the lead in the meantime.
            leadership.check_record()?;
            return Err(match read_record(&*leadership.files, &team_folder) {
                // The lock alone decides.
                Some(leader) if leader.is_running().is_none() && fs::LockTimeout::in_error(&error).is_some() => {
                    StoreError::AlreadyLed { team: leader.team, pid: leader.pid }
                }
                _ => failed("lock", &path)(error),
            });
        }
    }
    // Another process may have taken the lead in between, and then lost its lock file.
    leadership.check_record()?;
    leadership.write_record()?;
    Ok(leadership)
}

/// The process that leads the workspace now, if any. Takes no lock if the record decides.
///
/// # Errors
/// [`StoreError::Io`] if the lock cannot be checked.
pub fn current_leader(files: &dyn FileSystem, workspace: &Path) -> StoreResult<Option<LeaderInfo>> {
    let team_folder = workspace.join(TEAM_FOLDER);
    let leader = read_record(files, &team_folder).unwrap_or_else(LeaderInfo::unknown);
    let lock = team_folder.join(LOCK_FILE);
    let leads = match leader.is_running() {
        Some(lives) => lives,
        None => files.stamp(&lock).is_ok() && is_held(files, &lock)?,
    };
    Ok(leads.then_some(leader))
}

/// Returns true if the lock is held. For a user who may not open the file, the system's list of locks has the answer.
fn is_held(files: &dyn FileSystem, lock: &Path) -> StoreResult<bool> {
    match files.hold(lock) {
        Ok(own_lock) => Ok(own_lock.is_none()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(platform::lock_holder(lock).is_some()),
        Err(error) => Err(failed("lock", lock)(error)),
    }
}

/// The record of the lead; `None` if it is missing or invalid.
#[must_use]
pub fn read_record(files: &dyn FileSystem, team_folder: &Path) -> Option<LeaderInfo> {
    let (bytes, _) = files.read(&team_folder.join(LEAD_FILE), 0, LEAD_BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

impl LeaderLock {
    fn team_folder(&self) -> PathBuf {
        self.workspace.join(TEAM_FOLDER)
    }

    fn lock_path(&self) -> PathBuf {
        self.team_folder().join(LOCK_FILE)
    }

    fn record(&self) -> Option<LeaderInfo> {
        read_record(&*self.files, &self.team_folder())
    }

    /// Returns an error if the record names another live process.
    fn check_record(&self) -> StoreResult<()> {
        match self.record() {
            Some(leader) if leader.is_running() == Some(true) => {
                Err(StoreError::AlreadyLed { team: leader.team, pid: leader.pid })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the lock. A lock held before excludes no process, because its file is gone.
    fn keep_lock(&self, lock: HeldLock) -> StoreResult<()> {
        let path = self.lock_path();
        let inode = self.files.stamp(&path).map_err(failed("inspect", &path))?.inode;
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some((lock, inode));
        Ok(())
    }

    fn write_record(&self) -> StoreResult<()> {
        // All keys are strings, so this cannot fail.
        let text = serde_json::to_string_pretty(&self.own).unwrap_or_default() + "\n";
        Staged::write(&*self.files, &self.team_folder(), LEAD_FILE, text.as_bytes())?.commit()
    }

    /// Checks that this process still leads, and restores a removed lock or record. Never takes the lead from another process, and
    /// does not wait for a lock.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn check(&self) -> StoreResult<LeaderStatus> {
        let files = &*self.files;
        if files.stamp(&self.workspace).map_or(true, |stamp| stamp.inode != self.inode) {
            return Ok(LeaderStatus::NoWorkspace);
        }
        let path = self.lock_path();
        let locked_inode = self.lock.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, inode)| *inode);
        let inode = files.stamp(&path).ok().map(|stamp| stamp.inode);
        let record = self.record();
        let has_record = record.as_ref() == Some(&self.own);
        if inode.is_some() && inode == locked_inode {
            if has_record {
                return Ok(LeaderStatus::Held);
            }
            self.write_record()?;
            return Ok(LeaderStatus::Renewed);
        }
        if let Some(leader) = record.filter(|leader| !has_record && leader.is_running() == Some(true)) {
            return Ok(LeaderStatus::Lost { team: leader.team, pid: leader.pid });
        }
        let team_folder = self.team_folder();
        files.create_folder(&team_folder).map_err(failed("make", &team_folder))?;
        match files.hold(&path).map_err(failed("lock", &path))? {
            Some(lock) => {
                self.keep_lock(lock)?;
                self.write_record()?;
                Ok(LeaderStatus::Renewed)
            }
            // The record excludes other leads. The next check tries the lock again.
            None if has_record && self.own.is_running() == Some(true) => Ok(LeaderStatus::Held),
            None => {
                let leader = self.record().unwrap_or_else(LeaderInfo::unknown);
                Ok(LeaderStatus::Lost { team: leader.team, pid: leader.pid })
            }
        }
    }
}

impl Drop for LeaderLock {
    fn drop(&mut self) {
        // The record is removed before the lock is released. A record left by a kill names a dead process.
        if self.lock.get_mut().is_ok_and(|lock| lock.is_some()) && self.record().as_ref() == Some(&self.own) {
            let _ = self.files.remove(&self.team_folder().join(LEAD_FILE));
        }
    }
}
