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
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::ProcessId;
use crate::domain::team::records::LeadRecord;
use crate::platform::{self, processes};
use crate::ports::{
    CurrentLead, IoAction, LeadHolder, LeadObstacle, Leadership, LeadershipCheck, StoreError, StoreResult,
};
use crate::stores::file::atomic_write::StagedFile;
use crate::stores::file::{TEAM_FOLDER, blocking, failed};
use crate::stores::fs::{self, FileSystem, HeldLock};

/// The name of the lock in `.team`.
pub const LOCK_FILE: &str = "lead.lock";
const LEAD_FILE: &str = "lead.json";

/// The largest record that is read, in bytes. A few hundred are usual.
const LEAD_BYTES_MAX: u64 = 64 * 1024;

fn record_of(process: &ProcessId, team: &str) -> LeadRecord {
    let ProcessId { pid, started_ms } = *process;
    LeadRecord { team: team.to_owned(), pid, started_ms, boot: platform::boot_id() }
}

/// Returns true if the process of this record runs on this machine; `None` if that is unknown.
fn is_running(lead: &LeadRecord) -> Option<bool> {
    processes::is_running(lead.pid, lead.started_ms, &lead.boot)
}

fn holder(lead: LeadRecord) -> LeadHolder {
    LeadHolder { team: lead.team, process: format!("pid {}", lead.pid) }
}

/// Proof that this process leads the workspace, until it is dropped.
pub struct LeaderLock {
    files: Arc<dyn FileSystem>,
    workspace: PathBuf,
    /// The inode of the workspace folder when the lead was taken.
    inode: u64,
    own: LeadRecord,
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
    files.create_folder(&team_folder).map_err(failed("create", &team_folder))?;
    let inode = files.stamp(workspace).map_err(failed("inspect", workspace))?.inode;
    let own = record_of(process, team);
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
                Some(leader) if is_running(&leader).is_none() && fs::LockTimeout::in_error(&error).is_some() => {
                    StoreError::AlreadyLed(holder(leader))
                }
                _ => failed(IoAction::Lock, &path)(error),
            });
        }
    }
    // Another process may have taken the lead in between, and then lost its lock file.
    leadership.check_record()?;
    leadership.write_record()?;
    Ok(leadership)
}

/// The leadership in files. The lock is this process's own, if it leads.
pub struct FileLeadership {
    files: Arc<dyn FileSystem>,
    workspace: PathBuf,
    lock: Weak<LeaderLock>,
}

impl FileLeadership {
    /// The leadership of the workspace. `lock` excludes other leads, if this process leads.
    pub fn new(files: Arc<dyn FileSystem>, workspace: &Path, lock: Option<&Arc<LeaderLock>>) -> Self {
        Self { files, workspace: workspace.to_owned(), lock: lock.map(Arc::downgrade).unwrap_or_default() }
    }
}

#[async_trait]
impl Leadership for FileLeadership {
    async fn current(&self) -> StoreResult<CurrentLead> {
        blocking(|| current_lead(&*self.files, &self.workspace)).await
    }

    async fn check(&self) -> StoreResult<LeadershipCheck> {
        blocking(|| self.lock.upgrade().map_or(Ok(LeadershipCheck::Held), |lock| lock.check())).await
    }
}

/// The process that leads the workspace now. Takes no lock if the record decides. Blocks briefly.
///
/// # Errors
/// [`StoreError::Io`] if the lock cannot be checked.
pub fn current_lead(files: &dyn FileSystem, workspace: &Path) -> StoreResult<CurrentLead> {
    let team_folder = workspace.join(TEAM_FOLDER);
    let record = read_record(files, &team_folder);
    let lock = team_folder.join(LOCK_FILE);
    let leads = match record.as_ref().and_then(is_running) {
        Some(lives) => lives,
        None => files.stamp(&lock).is_ok() && is_held(files, &lock)?,
    };
    Ok(match record {
        record if !leads => CurrentLead::None(record),
        Some(record) => CurrentLead::Known(record),
        None => CurrentLead::Obstructed(obstacle(&lock)),
    })
}

/// Describes the process that holds the lead's lock without a record.
fn obstacle(lock: &Path) -> LeadObstacle {
    let path = lock.display();
    let (holder, step) = match platform::lock_holder(lock) {
        Some(holder) => (holder.to_string(), format!("end it (`kill {}`)", holder.pid)),
        None => ("a process".to_owned(), format!("find it with `lsof {path}` and end it")),
    };
    LeadObstacle {
        reason: format!("{holder} holds {path}, and no record names it as the lead of a team"),
        remedy: format!("{step}: no team can run until then"),
    }
}

/// Returns true if the lock is held. If its file cannot be opened for writing, the system's list of locks has the answer.
fn is_held(files: &dyn FileSystem, lock: &Path) -> StoreResult<bool> {
    match files.hold(lock) {
        Ok(own_lock) => Ok(own_lock.is_none()),
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            Ok(platform::lock_holder(lock).is_some())
        }
        Err(error) => Err(failed(IoAction::Lock, lock)(error)),
    }
}

/// The record of the lead; `None` if it is missing or invalid.
pub fn read_record(files: &dyn FileSystem, team_folder: &Path) -> Option<LeadRecord> {
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

    fn record(&self) -> Option<LeadRecord> {
        read_record(&*self.files, &self.team_folder())
    }

    /// Returns an error if the record names another live process.
    fn check_record(&self) -> StoreResult<()> {
        match self.record() {
            Some(leader) if is_running(&leader) == Some(true) => Err(StoreError::AlreadyLed(holder(leader))),
            _ => Ok(()),
        }
    }

    /// Keeps the lock. A lock held before excludes no process, because its file is gone.
    fn keep_lock(&self, lock: HeldLock) -> StoreResult<()> {
        let path = self.lock_path();
        let inode = self.files.stamp(&path).map_err(failed("inspect", &path))?.inode;
        *self.lock.lock() = Some((lock, inode));
        Ok(())
    }

    fn write_record(&self) -> StoreResult<()> {
        // All keys are strings, so this cannot fail.
        let text = serde_json::to_string_pretty(&self.own).unwrap_or_default() + "\n";
        StagedFile::write(&*self.files, &self.team_folder(), LEAD_FILE, text.as_bytes())?.commit()
    }

    /// Checks that this process still leads, and restores a removed lock or record. Never takes the lead from another process, and
    /// does not wait for a lock.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn check(&self) -> StoreResult<LeadershipCheck> {
        let files = &*self.files;
        if files.stamp(&self.workspace).map_or(true, |stamp| stamp.inode != self.inode) {
            return Ok(LeadershipCheck::NoWorkspace);
        }
        let path = self.lock_path();
        let locked_inode = self.lock.lock().as_ref().map(|(_, inode)| *inode);
        let inode = files.stamp(&path).ok().map(|stamp| stamp.inode);
        let record = self.record();
        let has_record = record.as_ref() == Some(&self.own);
        if inode.is_some() && inode == locked_inode {
            if has_record {
                return Ok(LeadershipCheck::Held);
            }
            self.write_record()?;
            return Ok(LeadershipCheck::Restored);
        }
        if let Some(leader) = record.filter(|leader| !has_record && is_running(leader) == Some(true)) {
            return Ok(LeadershipCheck::Lost(holder(leader)));
        }
        let team_folder = self.team_folder();
        files.create_folder(&team_folder).map_err(failed("create", &team_folder))?;
        match files.hold(&path).map_err(failed(IoAction::Lock, &path))? {
            Some(lock) => {
                self.keep_lock(lock)?;
                self.write_record()?;
                Ok(LeadershipCheck::Restored)
            }
            // The record excludes other leads. The next check tries the lock again.
            None if has_record && is_running(&self.own) == Some(true) => Ok(LeadershipCheck::Held),
            None => {
                let unknown = || LeadHolder { team: "unknown".to_owned(), process: "pid 0".to_owned() };
                Ok(LeadershipCheck::Lost(self.record().map_or_else(unknown, holder)))
            }
        }
    }
}

impl Drop for LeaderLock {
    fn drop(&mut self) {
        // The record is removed before the lock is released. A record left by a kill names a dead process.
        if self.lock.get_mut().is_some() && self.record().as_ref() == Some(&self.own) {
            let _ = self.files.remove(&self.team_folder().join(LEAD_FILE));
        }
    }
}
