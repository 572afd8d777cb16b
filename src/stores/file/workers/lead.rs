//! The process that leads a workspace: one at a time, by the lock on `.team/lead.lock` and the record `.team/lead.json`.
//!
//! A process takes the lead once it holds the lock and the record names no other living process. Each of the two keeps others out
//! by itself, so that either can be removed under a lead, which restores it at its next look. When both are removed (`rm -r .team`) another
//! process can take the lead before that look; the former lead then stops. Claims stay single meanwhile: they are the board's.
//!
//! A record names a living process when the boot, the number and the start time are those of one that runs. Where the system tells no
//! start times (all but Linux) and for a record of another machine, the lock alone decides.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::Incarnation;
use crate::platform::{self, processes};
use crate::ports::{StoreError, StoreResult, Tenure};
use crate::stores::file::replace::Staged;
use crate::stores::file::{TEAM_FOLDER, failed};
use crate::stores::fs::{self, FileSystem, HeldLock};

/// The name of the lock in `.team`.
pub const LOCK_FILE: &str = "lead.lock";
const LEAD_FILE: &str = "lead.json";

/// A few hundred bytes are usual.
const LEAD_BYTES_MAX: u64 = 64 * 1024;

/// The process that leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The team.
    pub team: String,
    /// Its lead's process.
    pub pid: u32,
    /// The start of that process, in milliseconds since boot; 0 where the system does not tell it.
    #[serde(default)]
    pub started_ms: u64,
    /// The boot of its machine.
    #[serde(default)]
    pub boot: String,
}

impl Leader {
    fn new(process: &Incarnation, team: &str) -> Self {
        let Incarnation { pid, started_ms } = *process;
        Self { team: team.to_owned(), pid, started_ms, boot: platform::boot_id() }
    }

    /// A leader of which nothing is known.
    fn unknown() -> Self {
        Self { team: "unknown".to_owned(), pid: 0, started_ms: 0, boot: String::new() }
    }

    /// Returns true if the record names no process: the lock is held, and the leader is unknown.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.pid == 0
    }

    /// The mark that commands of its team inherit; see [`crate::sandbox::WORKER_VARIABLE`].
    #[must_use]
    pub fn mark(&self) -> String {
        format!("{}-{}", self.pid, self.started_ms)
    }

    /// Whether this process runs on this machine; `None` where that cannot be told.
    #[must_use]
    pub fn lives(&self) -> Option<bool> {
        if processes::own_start_ms() == 0 || self.boot != platform::boot_id() {
            return None;
        }
        let process = i32::try_from(self.pid).ok().and_then(processes::process);
        Some(process.is_some_and(|process| !process.has_ended && process.started_ms == self.started_ms))
    }
}

/// This process leads the workspace as long as this lives.
pub struct Leadership {
    files: Arc<dyn FileSystem>,
    workspace: PathBuf,
    /// The workspace's folder as it was when the lead was taken.
    inode: u64,
    own: Leader,
    /// The lock, and the inode of its file.
    lock: Mutex<Option<(HeldLock, u64)>>,
}

/// Makes `process` the one that leads the workspace, for as long as the result lives. Blocks for at most
/// [`fs::LOCK_WAIT_MAX`].
///
/// # Errors
/// [`StoreError::Occupied`] while another does; [`StoreError::Io`], with the holder of the lock where that does not lead.
pub fn occupy(
    files: Arc<dyn FileSystem>,
    workspace: &Path,
    process: &Incarnation,
    team: &str,
) -> StoreResult<Leadership> {
    let team_folder = workspace.join(TEAM_FOLDER);
    files.create_folder(&team_folder).map_err(failed("make", &team_folder))?;
    let inode = files.stamp(workspace).map_err(failed("look at", workspace))?.inode;
    let own = Leader::new(process, team);
    let lock = Mutex::new(None);
    let leadership = Leadership { files, workspace: workspace.to_owned(), inode, own, lock };
    leadership.check_record()?;
    let path = leadership.lock_path();
    match fs::hold(&*leadership.files, &path) {
        Ok(held) => leadership.keep(held)?,
        Err(error) => {
            // Its holder may have become the lead meanwhile.
            leadership.check_record()?;
            return Err(match read_record(&*leadership.files, &team_folder) {
                // The lock alone decides.
                Some(leader) if leader.lives().is_none() && fs::LockTimeout::in_error(&error).is_some() => {
                    StoreError::Occupied { team: leader.team, pid: leader.pid }
                }
                _ => failed("lock", &path)(error),
            });
        }
    }
    // Another may have taken the lead, and lost its lock's file, in between.
    leadership.check_record()?;
    leadership.write_record()?;
    Ok(leadership)
}

/// The process that leads the workspace now, if one does. It takes no lock where the record decides.
///
/// # Errors
/// [`StoreError::Io`] when the lock cannot be looked at.
pub fn who_leads(files: &dyn FileSystem, workspace: &Path) -> StoreResult<Option<Leader>> {
    let team_folder = workspace.join(TEAM_FOLDER);
    let leader = read_record(files, &team_folder).unwrap_or_else(Leader::unknown);
    let lock = team_folder.join(LOCK_FILE);
    let leads = match leader.lives() {
        Some(lives) => lives,
        None => files.stamp(&lock).is_ok() && is_held(files, &lock)?,
    };
    Ok(leads.then_some(leader))
}

/// Returns true if the lock is held. The system's list of locks answers for a user who may not open its file.
fn is_held(files: &dyn FileSystem, lock: &Path) -> StoreResult<bool> {
    match files.hold(lock) {
        Ok(held) => Ok(held.is_none()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(platform::lock_holder(lock).is_some()),
        Err(error) => Err(failed("lock", lock)(error)),
    }
}

/// The record of the lead; `None` where it is missing or no record.
#[must_use]
pub fn read_record(files: &dyn FileSystem, team_folder: &Path) -> Option<Leader> {
    let (bytes, _) = files.read(&team_folder.join(LEAD_FILE), 0, LEAD_BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

impl Leadership {
    fn team_folder(&self) -> PathBuf {
        self.workspace.join(TEAM_FOLDER)
    }

    fn lock_path(&self) -> PathBuf {
        self.team_folder().join(LOCK_FILE)
    }

    fn record(&self) -> Option<Leader> {
        read_record(&*self.files, &self.team_folder())
    }

    /// Refuses while the record names another living process.
    fn check_record(&self) -> StoreResult<()> {
        match self.record() {
            Some(leader) if leader.lives() == Some(true) => {
                Err(StoreError::Occupied { team: leader.team, pid: leader.pid })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the lock. One that was held before keeps nobody out: its file is gone.
    fn keep(&self, held: HeldLock) -> StoreResult<()> {
        let path = self.lock_path();
        let inode = self.files.stamp(&path).map_err(failed("look at", &path))?.inode;
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some((held, inode));
        Ok(())
    }

    fn write_record(&self) -> StoreResult<()> {
        // It has no keys but strings, so writing it cannot fail.
        let text = serde_json::to_string_pretty(&self.own).unwrap_or_default() + "\n";
        Staged::write(&*self.files, &self.team_folder(), LEAD_FILE, text.as_bytes())?.commit()
    }

    /// Looks whether this process still leads, and makes anew what somebody removed. It takes nothing from another, and waits
    /// for no lock.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn look(&self) -> StoreResult<Tenure> {
        let files = &*self.files;
        if files.stamp(&self.workspace).map_or(true, |stamp| stamp.inode != self.inode) {
            return Ok(Tenure::NoWorkspace);
        }
        let path = self.lock_path();
        let held = self.lock.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, inode)| *inode);
        let there = files.stamp(&path).ok().map(|stamp| stamp.inode);
        let record = self.record();
        let has_record = record.as_ref() == Some(&self.own);
        if there.is_some() && there == held {
            if has_record {
                return Ok(Tenure::Held);
            }
            self.write_record()?;
            return Ok(Tenure::Renewed);
        }
        if let Some(leader) = record.filter(|leader| !has_record && leader.lives() == Some(true)) {
            return Ok(Tenure::Lost { team: leader.team, pid: leader.pid });
        }
        let team_folder = self.team_folder();
        files.create_folder(&team_folder).map_err(failed("make", &team_folder))?;
        match files.hold(&path).map_err(failed("lock", &path))? {
            Some(lock) => {
                self.keep(lock)?;
                self.write_record()?;
                Ok(Tenure::Renewed)
            }
            // The record keeps other leads out; the lock is tried for again at the next look.
            None if has_record && self.own.lives() == Some(true) => Ok(Tenure::Held),
            None => {
                let leader = self.record().unwrap_or_else(Leader::unknown);
                Ok(Tenure::Lost { team: leader.team, pid: leader.pid })
            }
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // It goes before the lock does. A record that stays, as after a kill, names a process that is gone.
        if self.lock.get_mut().is_ok_and(|lock| lock.is_some()) && self.record().as_ref() == Some(&self.own) {
            let _ = self.files.remove(&self.team_folder().join(LEAD_FILE));
        }
    }
}
