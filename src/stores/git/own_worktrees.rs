//! Brigade's own worktrees: the one of the team branch, and the one where merges are verified. A folder that Brigade did not create is
//! neither changed nor removed.

use std::fs;

use super::RepositoryInner;
use super::command::{RepoPath, text_of};
use super::integrity::{UNFINISHED, is_unfinished};
use super::removal::remove_file;
use super::worktrees::{CHECKOUT_WORKERS, failed};
use crate::ports::RepositoryError;

/// The file in a worktree's git folder that marks a worktree of Brigade.
const MARK_FILE: &str = "brigade-created";
/// The file in a worktree's git folder that locks it; see gitrepository-layout(5).
const LOCKED_FILE: &str = "locked";

impl RepositoryInner {
    /// The worktree in the folder `name`, or `None` if nothing is there. An unfinished one is removed.
    ///
    /// # Errors
    /// Something else is there: a link, another folder, or a worktree for which `is_own` returns `false`.
    pub(super) fn find_own_worktree(
        &self,
        name: &str,
        is_own: impl FnOnce(&RepoPath) -> Result<bool, RepositoryError>,
    ) -> Result<Option<RepoPath>, RepositoryError> {
        let root = self.main.work_tree.join(name);
        let Ok(metadata) = root.symlink_metadata() else { return Ok(None) };
        let Some(at) = self.repo_path_of(&root).filter(|_| metadata.is_dir()) else {
            // A git that is killed in its first steps leaves an empty folder.
            if fs::remove_dir(&root).is_ok() {
                return Ok(None);
            }
            let reason = format!("cannot create the worktree {name}: something else is there");
            return Err(RepositoryError::unusable_until(reason, format!("`mv {name} ELSEWHERE`")));
        };
        if is_unfinished(&at) {
            self.discard_worktree(&at)?;
            return Ok(None);
        }
        if is_own(&at)? {
            return Ok(Some(at));
        }
        let reason =
            format!("cannot create the worktree {name}: another worktree is there, which Brigade did not create");
        Err(RepositoryError::unusable_until(reason, format!("`git worktree move {name} ELSEWHERE`")))
    }

    /// Creates a worktree of Brigade in the folder `name`. `commit` names a branch or, after options, a commit.
    pub(super) fn create_own_worktree(&self, name: &str, commit: &[&str]) -> Result<(), RepositoryError> {
        let root = self.main.work_tree.join(name);
        {
            let _worktree_list = self.lock_worktree_list();
            // Forced because git may still list a removed worktree; twice because that entry may be locked. Locked, so that the worktree
            // counts as unfinished until it has the mark.
            let start = ["-c", CHECKOUT_WORKERS, "worktree", "add", "--quiet", "--force", "--force"];
            let lock = ["--lock", "--reason", UNFINISHED];
            let root = text_of(&root);
            self.main.git(start.iter().chain(&lock).chain(&[root.as_str()]).chain(commit)).ok()?;
        }
        let at = self.repo_path_of(&root).ok_or_else(|| RepositoryError::Failed {
            action: format!("create {name}"),
            reason: "git does not list it".to_owned(),
        })?;
        let mark = at.git_dir.join(MARK_FILE);
        fs::write(&mark, "").map_err(|error| failed("write", &mark, &error))?;
        remove_file(&at.git_dir.join(LOCKED_FILE))
    }
}

/// Returns `true` if Brigade created the worktree.
pub(super) fn is_marked(at: &RepoPath) -> bool {
    at.git_dir.join(MARK_FILE).is_file()
}
