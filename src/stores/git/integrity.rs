//! Checks of a worktree before Brigade's unconfined git works there, and repairs. A teammate's commands can write the worktree's git
//! folder, and git follows what it finds in it. Only the teammate that holds the task writes there, and its commands have ended by then.
//! Damage by a kill or a power cut is repaired.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::branch::is_commit;
use super::command::RepoPath;
use super::files::{self, failed, remove_file};
use super::worktrees::UPDATING_FILE;
use crate::ports::RepositoryError;

/// The age above which the lock file of a ref is stale. Git holds one for milliseconds.
pub(super) const LOCK_AGE: Duration = Duration::from_secs(2);
/// Git's exit code for a fatal error.
const FATAL_EXIT_CODE: i32 = 128;
/// The most entries of a worktree's git folder that are checked.
const ENTRIES_MAX: usize = 10_000;
/// The reason for which git locks a worktree until it has created it.
pub(super) const UNFINISHED: &str = "initializing";

impl RepoPath {
    /// The reason why git must not work in a worktree, for the teammate to fix.
    pub(super) fn tampering(&self, at: &RepoPath) -> Option<String> {
        let mut entries_left = ENTRIES_MAX;
        if let Some(what) = unexpected_entry(&at.git_dir, &mut entries_left) {
            return Some(format!("its git folder was changed ({what})"));
        }
        if !self.has_inherited_settings(&at.git_dir.join("config.worktree")) {
            return Some("it has its own git settings (config.worktree): remove them".to_owned());
        }
        let agent = at.work_tree.join(".agent");
        if agent.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
            return Some("its .agent is not a folder".to_owned());
        }
        None
    }

    /// Returns true if all git settings of a worktree are also settings of the person's checkout. Git copies these to each new worktree,
    /// without the path of the checkout.
    fn has_inherited_settings(&self, own: &Path) -> bool {
        if own.symlink_metadata().is_err() {
            return true;
        }
        let of_checkout = self.git_dir.join("config.worktree");
        let Some(text) = files::bytes(own) else { return false };
        if files::bytes(&of_checkout).is_some_and(|settings| settings == text) {
            return true;
        }
        let settings = |file: &Path| -> Option<HashSet<Vec<u8>>> {
            // With `--file`, git does not read included files.
            let options = ["config", "--list", "-z", "--file"].map(OsStr::new);
            let output = self.git(options.into_iter().chain([file.as_os_str()])).ok().ok()?;
            Some(output.fields().map(<[u8]>::to_vec).collect())
        };
        settings(own).zip(settings(&of_checkout)).is_some_and(|(own, of_checkout)| own.is_subset(&of_checkout))
    }

    /// The reason why a team's branch must not be used: it is a symbolic ref or a link, so git would move another branch.
    pub(super) fn branch_tampering(&self, branch: &str) -> Option<String> {
        let mut path = self.common_dir.join("refs/heads");
        for part in branch.split('/') {
            path.push(part);
            let Ok(metadata) = path.symlink_metadata() else { break };
            if metadata.is_dir() {
                continue;
            }
            match files::text(&path) {
                Some(text) if is_commit(text.trim_end()) => {}
                Some(text) if !text.starts_with("ref:") => {
                    return Some(format!("its branch {branch} does not contain a commit id"));
                }
                _ => return Some(format!("its branch {branch} points to another branch")),
            }
        }
        // Git may leave an empty folder, which does not block the branch.
        let is_blocking = |path: &Path| path.is_dir() && fs::remove_dir(path).is_err();
        is_blocking(&path).then(|| format!("its branch {branch} cannot exist: there are branches below it"))
    }

    /// Repairs an existing worktree, and undoes an interrupted update.
    pub(super) fn restore(
        &self,
        at: &RepoPath,
        branch: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), RepositoryError> {
        repair_pointer(at, warnings)?;
        self.repair_locks(at, branch, warnings)?;
        repair_head(at, branch, warnings)?;
        repair_index(at, warnings)?;
        at.undo_update()
    }

    /// Removes the marks of an ended cherry-pick or revert; a rebase leaves them too. A command in a worktree cannot remove them: git
    /// locks the packed refs for that, which are read-only there.
    pub(super) fn remove_ended_picks(&self) -> Result<(), RepositoryError> {
        let marks = ["CHERRY_PICK_HEAD", "REVERT_HEAD"].map(|name| self.git_dir.join(name));
        let has_steps =
            ["rebase-merge", "rebase-apply", "sequencer"].iter().any(|name| self.git_dir.join(name).exists());
        if has_steps
            || !marks.iter().any(|mark| mark.exists())
            || !self.git(["ls-files", "--unmerged"]).ok()?.out.is_empty()
        {
            return Ok(());
        }
        marks.iter().try_for_each(|mark| remove_file(mark))
    }

    /// Removes locks that a killed git left. Only the previous holder's commands took locks in the worktree's git folder, and they have ended.
    /// Others may take the branch's lock for an instant, so only an old one is removed.
    fn repair_locks(&self, at: &RepoPath, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
        for lock in files::entries(&at.git_dir).filter(|path| path.extension().is_some_and(|end| end == "lock")) {
            remove_lock(&lock, warnings)?;
        }
        self.repair_branch_lock(branch, warnings)
    }

    pub(super) fn repair_branch_lock(&self, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
        let lock = self.common_dir.join("refs/heads").join(format!("{branch}.lock"));
        let age = lock.metadata().ok().and_then(|metadata| metadata.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > LOCK_AGE) { remove_lock(&lock, warnings) } else { Ok(()) }
    }

    /// Undoes an interrupted update of a worktree that had no changes.
    fn undo_update(&self) -> Result<(), RepositoryError> {
        let marker = self.work_tree.join(UPDATING_FILE);
        if marker.symlink_metadata().is_err() {
            return Ok(());
        }
        self.git(["reset", "--quiet", "--hard"]).ok()?;
        self.git(["clean", "-f", "-d", "-q"]).ok()?;
        fs::remove_file(&marker).map_err(|error| failed("remove", &marker, &error))
    }
}

/// Repairs a worktree's `.git` file, which points to its git folder.
fn repair_pointer(at: &RepoPath, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    let pointer = format!("gitdir: {}\n", at.git_dir.display());
    let file = at.work_tree.join(".git");
    if files::text(&file).is_some_and(|text| text == pointer) {
        return Ok(());
    }
    let is_plain = file.symlink_metadata().map_or(true, |metadata| metadata.is_file());
    if !is_plain {
        let reason = "it is not a plain file".to_owned();
        return Err(RepositoryError::Failed { action: format!("use {}", file.display()), reason });
    }
    warnings.push(format!("{} pointed to another place and is written again", file.display()));
    files::write(&file, &pointer)
}

fn remove_lock(lock: &Path, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    remove_file(lock)?;
    warnings.push(format!("{} was left by a killed git and is removed", lock.display()));
    Ok(())
}

/// Repairs a worktree's HEAD that a power cut or a command damaged: it then names the worktree's own branch.
fn repair_head(at: &RepoPath, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    let head = at.git_dir.join("HEAD");
    let is_head = |text: &str| text.starts_with("ref: refs/") || is_commit(text);
    if files::text(&head).is_some_and(|text| is_head(text.trim_end())) {
        return Ok(());
    }
    warnings.push(format!("{} was damaged: {branch} is checked out again", head.display()));
    files::write(&head, &format!("ref: refs/heads/{branch}\n"))
}

/// Rebuilds a worktree's damaged index from its branch. Staged changes become unstaged ones.
fn repair_index(at: &RepoPath, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
    let index = at.git_dir.join("index");
    let is_empty = index.metadata().is_ok_and(|metadata| metadata.len() == 0);
    if !is_empty && at.git(["ls-files", "--error-unmatch", "--", ":(top)"]).run()?.code != FATAL_EXIT_CODE {
        return Ok(());
    }
    warnings.push(format!("{} was damaged and is rebuilt from the branch", index.display()));
    fs::remove_file(&index).map_err(|error| failed("remove", &index, &error))?;
    at.git(["read-tree", "HEAD"]).ok().map(drop)
}

/// Returns true if git was killed while it created the worktree: git keeps the worktree locked until then.
pub(super) fn is_unfinished(at: &RepoPath) -> bool {
    files::text(&at.git_dir.join("locked")).is_some_and(|reason| reason.trim() == UNFINISHED)
}

/// The first entry that is neither a file nor a folder, or a note that there are too many entries.
fn unexpected_entry(folder: &Path, entries_left: &mut usize) -> Option<String> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let Some(rest) = entries_left.checked_sub(1) else { return Some("it has too many entries".to_owned()) };
        *entries_left = rest;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                if let Some(what) = unexpected_entry(&entry.path(), entries_left) {
                    return Some(what);
                }
            }
            Ok(kind) if kind.is_file() => {}
            _ => return Some(format!("{name} is neither a file nor a folder")),
        }
    }
    None
}
