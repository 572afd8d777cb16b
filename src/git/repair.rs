//! Repairs the place of a task that a kill or a power cut left. No command works there at that time.

use std::fs;

use super::branch::is_commit;
use super::command::RepoPath;
use super::files::{self, failed, remove_file};
use super::git_folder::GitFolder;
use super::worktrees::UPDATING_FILE;
use crate::domain::git::branch_name::BranchName;
use crate::ports::RepositoryError;

/// Git's exit code for a fatal error.
const FATAL_EXIT_CODE: i32 = 128;

impl RepoPath {
    /// Repairs a place, and undoes an interrupted update. `commit` is the last commit of its branch that the person's repository has.
    pub(super) fn restore(
        &self,
        branch: &BranchName,
        commit: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), RepositoryError> {
        let locks = self.remove_dead_locks()?;
        warnings.extend(locks.iter().map(|lock| format!("{} was left by a killed git and is removed", lock.display())));
        self.repair_head(branch, commit, warnings)?;
        self.repair_index(warnings)?;
        self.undo_update()
    }

    /// Repairs a damaged HEAD, or a damaged branch that it names: it then continues at `commit`.
    fn repair_head(
        &self,
        branch: &BranchName,
        commit: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), RepositoryError> {
        let head = self.git_dir.join("HEAD");
        let text = files::text(&head).unwrap_or_default();
        if !text.starts_with("ref: refs/") && !is_commit(text.trim_end()) {
            warnings.push(format!("{} was damaged: {branch} is checked out again", head.display()));
            remove_file(&head)?;
            files::write(&head, &format!("ref: {}\n", branch.full()))?;
        }
        if self.checked_out_branch()?.as_ref() != Some(branch) || self.commit("HEAD")?.is_some() {
            return Ok(());
        }
        warnings.push(format!("{branch} was missing or damaged in {}", self.work_tree.display()));
        let name = branch.full();
        if !self.git_dir.join(&name).is_dir() {
            GitFolder::open(&self.git_dir)?.remove(&name)?;
        }
        self.git(["update-ref", &name, commit]).ok().map(drop)
    }

    /// Rebuilds a damaged index from the branch. Staged changes become unstaged ones.
    fn repair_index(&self, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
        let index = self.git_dir.join("index");
        let is_empty = index.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if !is_empty && self.git(["ls-files", "--error-unmatch", "--", ":(top)"]).run()?.code != FATAL_EXIT_CODE {
            return Ok(());
        }
        warnings.push(format!("{} was damaged and is rebuilt from the branch", index.display()));
        remove_file(&index)?;
        self.git(["read-tree", "HEAD"]).ok().map(drop)
    }

    /// Undoes an interrupted update of a place that had no changes.
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
