//! Removes worktrees. The folder is first renamed to `.gone-<name>`, in one step. If a kill interrupts the removal, a later launch
//! finishes it: every folder with that prefix may be deleted. Git itself would delete file by file and leave an unusable worktree.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::command::{RepoPath, text_of};
use super::index_flags::{clear_skip_worktree, first_with_work};
use super::setup::SETUP_FILE;
use super::worktrees::{POINTER_FILE, failed};
use super::{RepositoryInner, bounded_read};
use crate::domain::worktree_name::WORKTREES_FOLDER;
use crate::ports::{Assignment, RepositoryError, Worktree};
use crate::sandbox::filter::SCRATCH_PREFIX;

/// Prefix of folders, next to the worktrees, that are being removed.
const GONE_PREFIX: &str = ".gone-";

impl RepositoryInner {
    /// Removes a completed task's worktree and branch. If they hold anything unmerged, keeps them and returns the reason.
    pub(super) fn remove(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
    ) -> Result<Option<String>, RepositoryError> {
        let name = &worktree.name;
        let branch = format!("refs/heads/{}", worktree.branch);
        let tip = self.ref_at(&branch)?;
        if let Some(tip) = &tip
            && !self.is_ancestor(tip, &self.target_ref())?
        {
            let branch = &worktree.branch;
            return Ok(Some(format!("{name} stays: its branch {branch} has unmerged commits")));
        }
        if worktree.root.symlink_metadata().is_ok() {
            if self.states.read_expect(&worktree.root, &assignment.identifier()).is_err() {
                return Ok(Some(format!("{name} stays: its state file does not name this task")));
            }
            let Some(at) = self.repo_path_of(&worktree.root) else {
                return Ok(Some(format!("{name} stays: git does not list it as a worktree")));
            };
            let tampering = self.tampering(&at).or_else(|| self.branch_tampering(&worktree.branch));
            let reason = match tampering {
                Some(reason) => Some(reason),
                None => unsaved_work(&at)?,
            };
            if let Some(reason) = reason {
                return Ok(Some(format!("{name} stays: {reason}")));
            }
            self.remove_worktree(&at)?;
        }
        // Git compares the old value: a branch that moved meanwhile stays.
        if let Some(tip) = tip
            && !self.is_checked_out(&worktree.branch)?
        {
            self.main.git(["update-ref", "--no-deref", "-d", &branch, &tip]).ok()?;
        }
        Ok(None)
    }

    /// Removes a worktree that holds nothing that is not committed, in any state.
    pub(super) fn remove_worktree(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let name = at.work_tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let gone = at.work_tree.with_file_name(format!("{GONE_PREFIX}{name}"));
        let _worktree_list = self.lock_worktree_list();
        // An earlier removal was interrupted.
        remove_folder(&gone)?;
        fs::rename(&at.work_tree, &gone).map_err(|error| failed("rename", &at.work_tree, &error))?;
        remove_folder(&at.git_dir)?;
        remove_folder(&gone)
    }

    /// Finishes removals that a kill interrupted, and deletes worktrees of this team whose creation was interrupted.
    /// It must run before any teammate works.
    pub(super) fn finish_removals(&self) -> Result<(), RepositoryError> {
        let _worktree_list = self.lock_worktree_list();
        let folder = self.main.work_tree.join(WORKTREES_FOLDER);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(SCRATCH_PREFIX) {
                remove_folder(&entry.path())?;
            }
            let Some(name) = name.strip_prefix(GONE_PREFIX).filter(|name| self.is_of_team(name)) else { continue };
            let root = folder.join(name);
            // A new worktree may have the same name by now.
            if root.symlink_metadata().is_err()
                && let Some(git_dir) = self.git_dir_of(&root)
            {
                remove_folder(&git_dir)?;
            }
            remove_folder(&entry.path())?;
        }
        for entry in fs::read_dir(self.main.common_dir.join("worktrees")).into_iter().flatten().flatten() {
            let is_of_team = self.is_of_team(&entry.file_name().to_string_lossy());
            // Git writes the pointer file before any other file.
            let pointer = entry.path().join(POINTER_FILE);
            let is_empty =
                |file: &str| entry.path().join(file).symlink_metadata().map_or(true, |metadata| metadata.len() == 0);
            // Git was killed while it created the worktree, and the folder is gone. Such an entry makes `git worktree list` fail.
            let is_gone = || {
                let root = bounded_read::text(&pointer).unwrap_or_default();
                Path::new(root.trim_end()).symlink_metadata().is_err()
            };
            let is_broken = || is_empty(POINTER_FILE) || ((is_empty("commondir") || is_empty("HEAD")) && is_gone());
            if is_of_team && is_broken() {
                remove_folder(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns `true` if a folder name is that of one of this team's worktrees.
    fn is_of_team(&self, name: &str) -> bool {
        name.strip_prefix(&self.team)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("-task-") || rest.starts_with(".merge"))
    }

    /// Removes a worktree without work in it, in any state.
    pub(super) fn discard_worktree(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let _worktree_list = self.lock_worktree_list();
        if self.main.git(["worktree", "remove", "--force", "--force", &text_of(&at.work_tree)]).ok().is_ok() {
            return Ok(());
        }
        // Git does not remove a half-made worktree.
        remove_folder(&at.work_tree)?;
        remove_folder(&at.git_dir)
    }
}

/// The reason why a removal of the worktree would lose work. Ignored files do not count.
fn unsaved_work(at: &RepoPath) -> Result<Option<String>, RepositoryError> {
    let repositories = clear_skip_worktree(at)?;
    if let Some(reason) = unsavable_content(at, &repositories) {
        return Ok(Some(reason));
    }
    let files = at.git(["status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"]).ok()?;
    let files = files.fields().count();
    Ok((files > 0).then(|| format!("it has {files} uncommitted files")))
}

/// The reason why a removal of the worktree would lose something that no commit can save.
pub(super) fn unsavable_content(at: &RepoPath, repositories: &[PathBuf]) -> Option<String> {
    if at.git_dir.join("locked").exists() {
        return Some("it is locked. hint: `git worktree unlock`".to_owned());
    }
    if at.git_dir.join("modules").exists() && !at.git_dir.join(SETUP_FILE).exists() {
        return Some("it has submodules".to_owned());
    }
    let repository = first_with_work(at, repositories)?;
    Some(format!("the nested repository {} is not empty", repository.display()))
}

/// Removes a file if it exists.
pub(super) fn remove_file(file: &Path) -> Result<(), RepositoryError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", file, &error)),
        _ => Ok(()),
    }
}

/// Removes a folder and its contents if it exists.
pub(super) fn remove_folder(folder: &Path) -> Result<(), RepositoryError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", folder, &error)),
        _ => Ok(()),
    }
}
