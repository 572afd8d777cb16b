//! What must hold of a worktree before git works there outside of any confinement: a teammate's commands write its git folder, and git
//! follows what it finds there. Nobody else's commands reach that folder, and the teammate's own have ended by then. And what a kill or a power
//! cut spoiled there is mended.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::branch::is_commit;
use super::removal::remove_file;
use super::run::At;
use super::worktrees::failed;
use super::{Inner, small};
use crate::ports::RepositoryError;

/// How old a branch's lock is that nobody holds any more: git holds one for milliseconds.
const LOCK_AGE: Duration = Duration::from_secs(2);
/// What git exits with when it cannot go on.
const SPOILED: i32 = 128;
/// The most entries of a worktree's git folder that are looked at.
const ENTRIES_MAX: usize = 10_000;

impl Inner {
    /// Why git is not to work there, for who can mend it.
    pub(super) fn unsound(&self, at: &At) -> Option<String> {
        let mut left = ENTRIES_MAX;
        if let Some(what) = link_in(&at.git_dir, &mut left) {
            return Some(format!("its git folder is not as git made it ({what})"));
        }
        if !self.has_the_settings_of_the_checkout(&at.git_dir.join("config.worktree")) {
            return Some("it has git settings of its own (config.worktree): remove them".to_owned());
        }
        let agent = at.work_tree.join(".agent");
        if agent.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
            return Some("its .agent is no folder".to_owned());
        }
        None
    }

    /// Whether a worktree's settings are those that git gave it: the person's checkout's, but for what says where that one lies.
    fn has_the_settings_of_the_checkout(&self, own: &Path) -> bool {
        if own.symlink_metadata().is_err() {
            return true;
        }
        let theirs = self.main.git_dir.join("config.worktree");
        let Some(text) = small::bytes(own) else { return false };
        if small::bytes(&theirs).is_some_and(|theirs| theirs == text) {
            return true;
        }
        let settings = |file: &Path| -> Option<HashSet<Vec<u8>>> {
            // A file that is named so is read without those that it includes.
            let options = ["config", "--list", "-z", "--file"].map(OsStr::new);
            let said = self.main.git(options.into_iter().chain([file.as_os_str()])).ok().ok()?;
            Some(said.fields().map(<[u8]>::to_vec).collect())
        };
        settings(own).zip(settings(&theirs)).is_some_and(|(own, theirs)| own.is_subset(&theirs))
    }

    /// Why a branch of the team's is not to be used: a ref that stands for another one, or a link, would have that one moved.
    pub(super) fn stands_for_another(&self, branch: &str) -> Option<String> {
        let mut path = self.main.common_dir.join("refs/heads");
        for part in branch.split('/') {
            path.push(part);
            let Ok(metadata) = path.symlink_metadata() else { break };
            if metadata.is_dir() {
                continue;
            }
            match small::text(&path) {
                Some(text) if is_commit(text.trim_end()) => {}
                Some(text) if !text.starts_with("ref:") => {
                    return Some(format!("what git has for its branch {branch} is no commit"));
                }
                _ => return Some(format!("its branch {branch} stands for another one")),
            }
        }
        // A folder that git left empty is in nobody's way.
        let is_in_the_way = |path: &Path| path.is_dir() && fs::remove_dir(path).is_err();
        is_in_the_way(&path).then(|| format!("where its branch {branch} would be there are branches below"))
    }

    /// Removes the locks of a git that was killed: of those in the worktree's own folder nobody else takes any, and who held the task
    /// before is gone, with all its commands. That of its branch is taken by others too, for an instant.
    pub(super) fn mend_locks(&self, at: &At, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
        let entries = fs::read_dir(&at.git_dir).into_iter().flatten().flatten().map(|entry| entry.path());
        for lock in entries.filter(|path| path.extension().is_some_and(|end| end == "lock")) {
            remove_lock(&lock, warnings)?;
        }
        self.mend_branch_lock(branch, warnings)
    }

    pub(super) fn mend_branch_lock(&self, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
        let lock = self.main.common_dir.join("refs/heads").join(format!("{branch}.lock"));
        let age = lock.metadata().ok().and_then(|metadata| metadata.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > LOCK_AGE) { remove_lock(&lock, warnings) } else { Ok(()) }
    }
}

fn remove_lock(lock: &Path, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    remove_file(lock)?;
    warnings.push(format!("{} was left by a git that was killed, and is removed", lock.display()));
    Ok(())
}

/// Has a worktree's HEAD be one again, where a power cut or a command left it empty or spoiled: on the worktree's own branch.
pub(super) fn mend_head(at: &At, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    let head = at.git_dir.join("HEAD");
    let is_head = |text: &str| text.starts_with("ref: refs/") || is_commit(text);
    if small::text(&head).is_some_and(|text| is_head(text.trim_end())) {
        return Ok(());
    }
    warnings.push(format!("{} was spoiled: {branch} is checked out again", head.display()));
    fs::write(&head, format!("ref: refs/heads/{branch}\n")).map_err(|error| failed("write", &head, &error))
}

/// The same of its index, which is made of what the branch has: files that were staged are changed files then.
pub(super) fn mend_index(at: &At, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    let index = at.git_dir.join("index");
    let is_empty = index.metadata().is_ok_and(|metadata| metadata.len() == 0);
    if !is_empty && at.git(["ls-files", "--error-unmatch", "--", ":(top)"]).run()?.code != SPOILED {
        return Ok(());
    }
    warnings.push(format!("{} was spoiled and is made anew from the branch", index.display()));
    fs::remove_file(&index).map_err(|error| failed("remove", &index, &error))?;
    at.git(["read-tree", "HEAD"]).ok().map(drop)
}

/// The first entry that is neither file nor folder, or that there are too many.
fn link_in(folder: &Path, left: &mut usize) -> Option<String> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let Some(fewer) = left.checked_sub(1) else { return Some("it has too many entries".to_owned()) };
        *left = fewer;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                if let Some(what) = link_in(&entry.path(), left) {
                    return Some(what);
                }
            }
            Ok(kind) if kind.is_file() => {}
            _ => return Some(format!("{name} is neither a file nor a folder")),
        }
    }
    None
}
