//! Removes worktrees. The folder is first renamed to `.gone-<name>`, in one step. If a kill interrupts the removal, a later launch
//! finishes it: every folder with that prefix may be deleted. Git itself would delete file by file and leave an unusable worktree.

use std::path::{Path, PathBuf};

use super::RepositoryInner;
use super::command::RepoPath;
use super::files::{self, remove_folder};
use super::index_flags::{clear_skip_worktree, first_with_work};
use super::setup::SETUP_FILE;
use super::worktree_list::{GONE_PREFIX, POINTER_FILE};
use crate::domain::worktree_name::WORKTREES_FOLDER;
use crate::ports::{RepositoryError, Worktree};
use crate::sandbox::filter::SCRATCH_PREFIX;

impl RepositoryInner {
    /// Removes a completed task's worktree and branch. If they hold anything unmerged, keeps them and returns the reason.
    pub(super) fn remove(&self, worktree: &Worktree) -> Result<Option<String>, RepositoryError> {
        let name = &worktree.name;
        let branch = format!("refs/heads/{}", worktree.branch);
        let tip = self.main.commit(&branch)?;
        if let Some(tip) = &tip
            && !self.main.is_ancestor(tip, &self.branch.target_ref())?
        {
            let branch = &worktree.branch;
            return Ok(Some(format!("{name} stays: its branch {branch} has unmerged commits")));
        }
        if worktree.root.symlink_metadata().is_ok() {
            if self.states.read_expect(&worktree.root, &worktree.assignment.identifier()).is_err() {
                return Ok(Some(format!("{name} stays: its state file does not name this task")));
            }
            let Some(at) = self.main.repo_path_of(&worktree.root) else {
                return Ok(Some(format!("{name} stays: git does not list it as a worktree")));
            };
            let tampering = self.main.tampering(&at).or_else(|| self.main.branch_tampering(&worktree.branch));
            let reason = match tampering {
                Some(reason) => Some(reason),
                None => unsaved_work(&at)?,
            };
            if let Some(reason) = reason {
                return Ok(Some(format!("{name} stays: {reason}")));
            }
            self.main.remove_worktree(&at)?;
        }
        // Git compares the old value: a branch that moved meanwhile stays.
        if let Some(tip) = tip
            && !self.main.is_checked_out(&worktree.branch)?
        {
            self.main.git(["update-ref", "--no-deref", "-d", &branch, &tip]).ok()?;
        }
        Ok(None)
    }

    /// Finishes removals that a kill interrupted, and deletes worktrees of this team whose creation was interrupted.
    /// It must run before any teammate works.
    pub(super) fn finish_removals(&self) -> Result<(), RepositoryError> {
        let _worktree_list = self.main.worktree_list.lock();
        let folder = self.main.work_tree.join(WORKTREES_FOLDER);
        for entry in files::entries(&folder) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(SCRATCH_PREFIX) {
                remove_folder(&entry)?;
            }
            let Some(name) = name.strip_prefix(GONE_PREFIX).filter(|name| self.is_of_team(name)) else { continue };
            let root = folder.join(name);
            // A new worktree may have the same name by now.
            if root.symlink_metadata().is_err()
                && let Some(git_dir) = self.main.git_dir_of(&root)
            {
                remove_folder(&git_dir)?;
            }
            remove_folder(&entry)?;
        }
        for git_dir in self.main.linked_git_dirs() {
            let is_of_team = self.is_of_team(&git_dir.file_name().unwrap_or_default().to_string_lossy());
            // Git writes the pointer file before any other file.
            let pointer = git_dir.join(POINTER_FILE);
            let is_empty =
                |file: &str| git_dir.join(file).symlink_metadata().map_or(true, |metadata| metadata.len() == 0);
            // Git was killed while it created the worktree, and the folder is gone. Such an entry makes `git worktree list` fail.
            let is_gone = || {
                let root = files::text(&pointer).unwrap_or_default();
                Path::new(root.trim_end()).symlink_metadata().is_err()
            };
            let is_broken = || is_empty(POINTER_FILE) || ((is_empty("commondir") || is_empty("HEAD")) && is_gone());
            if is_of_team && is_broken() {
                remove_folder(&git_dir)?;
            }
        }
        Ok(())
    }

    /// Returns true if a folder name is that of one of this team's worktrees.
    fn is_of_team(&self, name: &str) -> bool {
        name.strip_prefix(&self.branch.team)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("-task-") || rest.starts_with(".merge"))
    }
}

/// The reason why a removal of the worktree would lose work. Ignored files do not count.
fn unsaved_work(at: &RepoPath) -> Result<Option<String>, RepositoryError> {
    let repositories = clear_skip_worktree(at)?;
    if let Some(reason) = unsavable_content(at, &repositories) {
        return Ok(Some(reason));
    }
    let files = at.changes(&[])?.fields().count();
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
