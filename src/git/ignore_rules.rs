//! `.gitignore` files in Brigade's own folders. They keep its run-time files out of `git add -A`, and no file of the person changes.

use std::fs;
use std::path::Path;

use super::command::RepoPath;
use super::files::{self, failed};
use crate::domain::git::worktree_name::WORKTREES_FOLDER;
use crate::ports::RepositoryError;

/// The file with the rules of a folder.
const RULES_FILE: &str = ".gitignore";
/// The rule for all files of a folder, `.gitignore` itself too.
const IGNORE_ALL: &str = "*\n";
/// Brigade's folders in a workspace with run-time files.
const RUN_TIME_FOLDERS: [&str; 2] = [".team", ".tasks"];

impl RepoPath {
    /// Makes git ignore Brigade's folders in the workspace, except those with files that the person tracks.
    pub(super) fn ignore_run_time_folders(&self) -> Result<(), RepositoryError> {
        let worktrees = self.work_tree.join(WORKTREES_FOLDER);
        fs::create_dir_all(&worktrees).map_err(|error| failed("create", &worktrees, &error))?;
        ignore_contents(&worktrees)?;
        for name in RUN_TIME_FOLDERS {
            let folder = self.work_tree.join(name);
            if folder.is_dir() && self.git(["ls-files", "-z", "--", name]).ok()?.out.is_empty() {
                ignore_contents(&folder)?;
            }
        }
        Ok(())
    }
}

/// Makes git ignore all files of a folder, unless the folder has rules already.
pub(super) fn ignore_contents(folder: &Path) -> Result<(), RepositoryError> {
    let path = folder.join(RULES_FILE);
    // A kill during the first call may have left an empty file.
    if path.symlink_metadata().is_ok_and(|rules| !rules.is_file() || rules.len() > 0) {
        return Ok(());
    }
    files::write(&path, IGNORE_ALL)
}
