//! Who leads a workspace: one process at a time, by the lock on `.team/lead.lock` and one on the workspace's folder itself, which
//! nobody removes by mistake. What the lead says of itself stands in `.team/lead.json`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ports::{StoreError, StoreResult, Tenure};
use crate::stores::file::replace::Staged;
use crate::stores::file::{TEAM_FOLDER, failed};
use crate::stores::fs::{FileSystem, HeldLock};

const LOCK_FILE: &str = "lead.lock";
const LEAD_FILE: &str = "lead.json";

/// A few hundred bytes are usual.
const LEAD_BYTES_MAX: u64 = 64 * 1024;

/// Somebody who only asks who leads has the lock for a moment.
const TRIES: usize = 20;
const TRY_WAIT: Duration = Duration::from_millis(10);

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The team.
    pub team: String,
    /// Its lead's process.
    pub pid: u32,
}

/// This process leads the workspace as long as this lives.
pub struct Leadership {
    files: Arc<dyn FileSystem>,
    workspace: PathBuf,
    /// Which folder the workspace was when it was taken.
    inode: u64,
    own: Leader,
    _folder: HeldLock,
    /// The lock's file, and which one it is.
    file: Mutex<Option<(HeldLock, u64)>>,
}

/// Makes this process the one that leads the workspace, for as long as the result lives. Blocks for a moment.
///
/// # Errors
/// [`StoreError::Occupied`] while another does.
pub fn occupy(files: Arc<dyn FileSystem>, workspace: &Path, team: &str) -> StoreResult<Leadership> {
    let team_folder = workspace.join(TEAM_FOLDER);
    files.create_folder(&team_folder).map_err(failed("make", &team_folder))?;
    let inode = files.stamp(workspace).map_err(failed("look at", workspace))?.inode;
    let folder = tried(&*files, || files.hold_folder(workspace).map_err(failed("lock", workspace)))?;
    let Some(folder) = folder else {
        return Err(occupied(&*files, &team_folder));
    };
    let leadership = Leadership {
        own: Leader { team: team.to_owned(), pid: std::process::id() },
        workspace: workspace.to_owned(),
        inode,
        _folder: folder,
        file: Mutex::new(None),
        files,
    };
    match leadership.take_file()? {
        true => Ok(leadership),
        false => Err(occupied(&*leadership.files, &team_folder)),
    }
}

/// Who leads the workspace now, if anybody does.
///
/// # Errors
/// [`StoreError::Io`] when the lock cannot be looked at.
pub fn who_leads(files: &dyn FileSystem, workspace: &Path) -> StoreResult<Option<Leader>> {
    let team_folder = workspace.join(TEAM_FOLDER);
    let lock = team_folder.join(LOCK_FILE);
    let is_free = files.stamp(&lock).is_err() || files.hold(&lock).map_err(failed("lock", &lock))?.is_some();
    if is_free && !files.is_folder_held(workspace) {
        return Ok(None);
    }
    Ok(Some(read(files, &team_folder)))
}

/// Tries for a lock for a while.
fn tried(
    files: &dyn FileSystem,
    mut try_once: impl FnMut() -> StoreResult<Option<HeldLock>>,
) -> StoreResult<Option<HeldLock>> {
    for _ in 0..TRIES {
        if let Some(held) = try_once()? {
            return Ok(Some(held));
        }
        files.wait(TRY_WAIT);
    }
    Ok(None)
}

fn occupied(files: &dyn FileSystem, team_folder: &Path) -> StoreError {
    let leader = read(files, team_folder);
    StoreError::Occupied { team: leader.team, pid: leader.pid }
}

/// What a lead says of itself; its record may be gone, or not be written yet.
fn read(files: &dyn FileSystem, team_folder: &Path) -> Leader {
    let said = files.read(&team_folder.join(LEAD_FILE), 0, LEAD_BYTES_MAX).ok();
    said.and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok())
        .unwrap_or_else(|| Leader { team: "unknown".to_owned(), pid: 0 })
}

impl Leadership {
    /// Takes the lock's file and says who leads; `false` when another holds it.
    fn take_file(&self) -> StoreResult<bool> {
        let (files, team_folder) = (&*self.files, self.workspace.join(TEAM_FOLDER));
        let lock = team_folder.join(LOCK_FILE);
        let Some(held) = tried(files, || files.hold(&lock).map_err(failed("lock", &lock)))? else {
            return Ok(false);
        };
        let inode = files.stamp(&lock).map_err(failed("look at", &lock))?.inode;
        // What was held before keeps nobody out: its file is gone.
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some((held, inode));
        self.write_record()?;
        Ok(true)
    }

    fn write_record(&self) -> StoreResult<()> {
        // It has no keys but strings, so writing it cannot fail.
        let text = serde_json::to_string_pretty(&self.own).unwrap_or_default() + "\n";
        Staged::write(&*self.files, &self.workspace.join(TEAM_FOLDER), LEAD_FILE, text.as_bytes())?.commit()
    }

    /// Looks whether this process still leads, and makes anew what somebody removed. It takes nothing from another. Blocks for a
    /// moment.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn look(&self) -> StoreResult<Tenure> {
        let files = &*self.files;
        if files.stamp(&self.workspace).map_or(true, |stamp| stamp.inode != self.inode) {
            return Ok(Tenure::NoWorkspace);
        }
        let team_folder = self.workspace.join(TEAM_FOLDER);
        let held = self.file.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, inode)| *inode);
        let there = files.stamp(&team_folder.join(LOCK_FILE)).ok().map(|stamp| stamp.inode);
        if there.is_some() && there == held {
            if files.stamp(&team_folder.join(LEAD_FILE)).is_ok() {
                return Ok(Tenure::Held);
            }
            self.write_record()?;
            return Ok(Tenure::Renewed);
        }
        files.create_folder(&team_folder).map_err(failed("make", &team_folder))?;
        if self.take_file()? {
            return Ok(Tenure::Renewed);
        }
        let leader = read(files, &team_folder);
        Ok(Tenure::Lost { team: leader.team, pid: leader.pid })
    }
}
