//! Refuses control files that are symbolic links.
//!
//! Control files are mounted read-only for commands. A mount on a symbolic link covers its target, so a command could replace the
//! link itself. Brigade therefore neither leads nor writes to a workspace with such a link.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use super::board::BOARD_FOLDER;
use super::state::STATE_FILE;
use super::{TEAM_FOLDER, failed};
use crate::ports::StoreResult;

/// The most entries that are checked. A run leaves some thousands.
const ENTRIES_MAX: usize = 1_000_000;
/// The depth of the deepest control file in `.team`. Below it are the private folders of agents (`.team/agents/<provider>/<name>/`). Their
/// commands can write there, so these files control nothing, and they are not looked at.
const DEPTH_MAX: usize = 3;

/// The error for a control file that is a symbolic link.
#[derive(Debug, thiserror::Error)]
#[error("it is a symbolic link to {target}, and a command of the team could change its target")]
pub struct SymbolicLinkError {
    target: String,
}

impl SymbolicLinkError {
    /// Returns true if `error` has a [`SymbolicLinkError`] as its source.
    pub fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|error| error.is::<Self>())
    }
}

/// Refuses links among the control files of the stores.
///
/// Links in the quarantine are accepted: no store opens a file there by name. Links in place of task files are accepted too,
/// because the board quarantines them.
///
/// # Errors
/// [`crate::ports::StoreError::Io`] with a [`SymbolicLinkError`] for the first link, or if a folder cannot be listed.
pub fn refuse_links(workspace: &Path) -> StoreResult<()> {
    for name in [STATE_FILE, BOARD_FOLDER, TEAM_FOLDER] {
        refuse_link(&workspace.join(name))?;
    }
    let mut entries_left = ENTRIES_MAX;
    let is_hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    refuse_links_in(&workspace.join(BOARD_FOLDER), &is_hidden, 1, &mut entries_left)?;
    refuse_links_in(&workspace.join(TEAM_FOLDER), &|_| true, DEPTH_MAX, &mut entries_left)
}

/// Refuses `path` if it is a symbolic link.
///
/// # Errors
/// [`crate::ports::StoreError::Io`] with a [`SymbolicLinkError`].
pub fn refuse_link(path: &Path) -> StoreResult<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_symlink() => {
            let target = fs::read_link(path).unwrap_or_default().display().to_string();
            Err(failed("use", path)(io::Error::other(SymbolicLinkError { target })))
        }
        _ => Ok(()),
    }
}

fn refuse_links_in(
    folder: &Path,
    is_control_file: &dyn Fn(&DirEntry) -> bool,
    depth: usize,
    entries_left: &mut usize,
) -> StoreResult<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(failed("list", folder)(error)),
    };
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("list", folder))?;
        *entries_left = entries_left.checked_sub(1).ok_or_else(|| {
            let reason = format!(
                "`{BOARD_FOLDER}` and `{TEAM_FOLDER}` have more than {ENTRIES_MAX} entries. hint: remove files that no run needs"
            );
            failed("list", folder)(io::Error::other(reason))
        })?;
        let kind = entry.file_type().map_err(failed("inspect", &entry.path()))?;
        if kind.is_symlink() && is_control_file(&entry) {
            refuse_link(&entry.path())?;
        }
        if kind.is_dir() && depth > 1 && entry.file_name() != super::board::QUARANTINE_FOLDER {
            folders.push(entry.path());
        }
    }
    folders.iter().try_for_each(|folder| refuse_links_in(folder, is_control_file, depth - 1, entries_left))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn link_in_place_of_control_file_is_refused() {
        for name in [
            "agent_state.json",
            ".tasks",
            ".tasks/.lock",
            ".tasks/.spoiled",
            ".tasks/.highwatermark",
            ".team",
            ".team/FORMAT",
            ".team/lead.lock",
            ".team/events.jsonl",
            ".team/ledger.jsonl",
            ".team/config.json",
            ".team/.requests.lock",
            ".team/history",
            ".team/spare",
            ".team/aside",
            ".team/workers",
            ".team/workers/w-1.lock",
            ".team/inbox",
            ".team/inbox/bob.jsonl",
            ".team/inbox/.spoiled",
            ".team/inbox/.taken",
            ".team/inbox/.taken/bob-1.jsonl",
            ".team/transcripts",
            ".team/transcripts/.archive",
            ".team/transcripts/.archive/bob.jsonl",
            ".team/agents",
            ".team/agents/claude-code",
            ".team/agents/claude-code/bob",
        ] {
            for target in ["elsewhere", "nowhere"] {
                let workspace = tempfile::tempdir().unwrap();
                let (link, leads_to) = (workspace.path().join(name), workspace.path().join(target));
                fs::create_dir(workspace.path().join("elsewhere")).unwrap();
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                refuse_links(workspace.path()).unwrap();
                symlink(&leads_to, &link).unwrap();
                let error = refuse_links(workspace.path()).unwrap_err();
                let expected =
                    format!("cannot use {}: it is a symbolic link to {}", link.display(), leads_to.display());
                assert!(error.to_string().starts_with(&expected), "{name}: {error}");
            }
        }
    }

    #[test]
    fn private_folder_of_agent_is_not_checked() {
        let workspace = tempfile::tempdir().unwrap();
        let home = workspace.path().join(".team/agents/claude-code/bob");
        fs::create_dir_all(home.join("projects")).unwrap();
        for link in ["link", "projects/link"] {
            symlink("/nowhere", home.join(link)).unwrap();
        }
        refuse_links(workspace.path()).unwrap();
    }

    #[test]
    fn links_in_quarantine_and_tasks_are_accepted() {
        let workspace = tempfile::tempdir().unwrap();
        for folder in [".tasks/.spoiled", ".team/inbox/.spoiled"] {
            fs::create_dir_all(workspace.path().join(folder)).unwrap();
            symlink("/nowhere", workspace.path().join(folder).join("1")).unwrap();
        }
        symlink("/nowhere", workspace.path().join(".tasks/task_1.json")).unwrap();
        symlink("/nowhere", workspace.path().join("notes")).unwrap();
        refuse_links(workspace.path()).unwrap();
    }
}
