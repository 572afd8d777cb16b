//! Who leads a workspace: one process at a time, `.team/lead.lock`. What it says of itself stands in `.team/lead.json`.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ports::{StoreError, StoreResult};
use crate::stores::file::failed;
use crate::stores::file::replace::Staged;
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

/// Makes this process the one that leads the workspace, for as long as the result lives. Blocks for a moment.
///
/// # Errors
/// [`StoreError::Occupied`] while another does.
pub fn occupy(files: &dyn FileSystem, team_folder: &Path, team: &str) -> StoreResult<HeldLock> {
    files.create_folder(team_folder).map_err(failed("make", team_folder))?;
    let lock = team_folder.join(LOCK_FILE);
    for _ in 0..TRIES {
        if let Some(held) = files.hold(&lock).map_err(failed("lock", &lock))? {
            let leader = Leader { team: team.to_owned(), pid: std::process::id() };
            // It has no keys but strings, so writing it cannot fail.
            let text = serde_json::to_string_pretty(&leader).unwrap_or_default() + "\n";
            Staged::write(files, team_folder, LEAD_FILE, text.as_bytes())?.commit()?;
            return Ok(held);
        }
        std::thread::sleep(TRY_WAIT);
    }
    let leader = read(files, team_folder).unwrap_or(Leader { team: "unknown".to_owned(), pid: 0 });
    Err(StoreError::Occupied { team: leader.team, pid: leader.pid })
}

/// Who leads the workspace now, if anybody does.
///
/// # Errors
/// [`StoreError::Io`] when the lock cannot be looked at.
pub fn who_leads(files: &dyn FileSystem, team_folder: &Path) -> StoreResult<Option<Leader>> {
    let lock = team_folder.join(LOCK_FILE);
    if files.stamp(&lock).is_err() || files.hold(&lock).map_err(failed("lock", &lock))?.is_some() {
        return Ok(None);
    }
    Ok(read(files, team_folder))
}

fn read(files: &dyn FileSystem, team_folder: &Path) -> Option<Leader> {
    let (bytes, _) = files.read(&team_folder.join(LEAD_FILE), 0, LEAD_BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}
