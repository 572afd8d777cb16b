//! The worktrees of a repository as git lists them, and Brigade's own ones: that of the team branch, and the one where merges are
//! verified. A folder that Brigade did not create is neither changed nor removed.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::{RepoPath, path_of, text_of};
use super::files::{self, failed, remove_file, remove_folder};
use super::integrity::{UNFINISHED, is_unfinished};
use crate::ports::RepositoryError;

/// The file in a worktree's git folder that contains the worktree's path; see gitrepository-layout(5).
pub(super) const POINTER_FILE: &str = "gitdir";
/// Lets several processes write a checkout of many files; see git-config(1), checkout.workers.
pub(super) const CHECKOUT_WORKERS: &str = "checkout.workers=4";
/// Prefix of folders, next to the worktrees, that are being removed.
pub(super) const GONE_PREFIX: &str = ".gone-";
/// The file in a worktree's git folder that marks a worktree of Brigade.
const MARK_FILE: &str = "brigade-created";
/// The file in a worktree's git folder that locks it; see gitrepository-layout(5).
const LOCKED_FILE: &str = "locked";

impl RepoPath {
    /// The paths of the worktree in `root`. They come from git's own list, not from the `.git` file there, which any command may change.
    pub(super) fn repo_path_of(&self, root: &Path) -> Option<RepoPath> {
        let git_dir = self.git_dir_of(&root.canonicalize().ok()?)?;
        Some(RepoPath { git_dir, work_tree: root.to_owned(), ..self.clone() })
    }

    /// The folder that git keeps for a worktree at `root`. The worktree itself may be missing.
    pub(super) fn git_dir_of(&self, root: &Path) -> Option<PathBuf> {
        let expected = root.join(".git");
        let mut found = self.linked_git_dirs().filter(|folder| {
            files::text(&folder.join(POINTER_FILE)).is_some_and(|to| is_same(&folder.join(to.trim_end()), &expected))
        });
        // If two name this path, one was changed: neither can be trusted.
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Returns true if a branch is checked out in an existing worktree.
    pub(super) fn is_checked_out(&self, branch: &str) -> Result<bool, RepositoryError> {
        let output = {
            let _worktree_list = self.worktree_list.lock();
            self.git(["worktree", "list", "--porcelain", "-z"]).ok()?
        };
        let expected = format!("branch refs/heads/{branch}");
        let mut folder = PathBuf::new();
        Ok(output.fields().any(|field| {
            if let Some(path) = field.strip_prefix(b"worktree ") {
                folder = path_of(path);
            }
            field == expected.as_bytes() && folder.is_dir()
        }))
    }

    /// Removes a worktree without uncommitted work, in any state. The rename decides: a kill in the middle of a removal would leave a folder
    /// that is no worktree any more.
    pub(super) fn remove_worktree(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let name = at.work_tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let gone = at.work_tree.with_file_name(format!("{GONE_PREFIX}{name}"));
        let _worktree_list = self.worktree_list.lock();
        // An earlier removal was interrupted.
        remove_folder(&gone)?;
        fs::rename(&at.work_tree, &gone).map_err(|error| failed("rename", &at.work_tree, &error))?;
        remove_folder(&at.git_dir)?;
        remove_folder(&gone)
    }

    /// The worktree in the folder `name`, or `None` if nothing is there. An unfinished one is removed.
    ///
    /// # Errors
    /// Something else is there: a link, another folder, or a worktree for which `is_own` returns `false`.
    pub(super) fn find_own_worktree(
        &self,
        name: &str,
        is_own: impl FnOnce(&RepoPath) -> Result<bool, RepositoryError>,
    ) -> Result<Option<RepoPath>, RepositoryError> {
        let root = self.work_tree.join(name);
        let Ok(metadata) = root.symlink_metadata() else { return Ok(None) };
        let at = if metadata.is_dir() { self.repo_path_of(&root) } else { None };
        let Some(at) = at else {
            // A git that is killed in its first steps leaves an empty folder.
            if fs::remove_dir(&root).is_ok() {
                return Ok(None);
            }
            let reason = format!("cannot create the worktree {name}: something else is there");
            return Err(RepositoryError::unusable_until(reason, format!("`mv {name} ELSEWHERE`")));
        };
        if is_unfinished(&at) {
            self.remove_worktree(&at)?;
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
        let root = self.work_tree.join(name);
        {
            let _worktree_list = self.worktree_list.lock();
            // Forced because git may still list a removed worktree; twice because that entry may be locked. Locked, so that the worktree
            // counts as unfinished until it has the mark.
            let start = ["-c", CHECKOUT_WORKERS, "worktree", "add", "--quiet", "--force", "--force"];
            let lock = ["--lock", "--reason", UNFINISHED];
            let root = text_of(&root);
            self.git(start.iter().chain(&lock).chain(&[root.as_str()]).chain(commit)).ok()?;
        }
        let at = self.repo_path_of(&root).ok_or_else(|| RepositoryError::Failed {
            action: format!("create {name}"),
            reason: "git does not list it".to_owned(),
        })?;
        let mark = at.git_dir.join(MARK_FILE);
        files::write(&mark, "")?;
        remove_file(&at.git_dir.join(LOCKED_FILE))
    }
}

/// Returns true if Brigade created the worktree.
pub(super) fn is_marked(at: &RepoPath) -> bool {
    at.git_dir.join(MARK_FILE).is_file()
}

fn is_same(a: &Path, b: &Path) -> bool {
    let resolved = |path: &Path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    a == b || resolved(a).is_some_and(|a| a == b)
}
