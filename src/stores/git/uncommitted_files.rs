//! Uncommitted files in the user's checkout. A team does not see them.

use std::path::{Path, PathBuf};

use super::command::path_of;
use super::opening::find_checkout;
use super::{DriverOptions, GitRepository, open_checked};
use crate::ports::RepositoryError;

/// Brigade's files in a workspace.
const RUN_TIME_PATHS: [&str; 4] = [".worktrees", ".tasks", ".team", "agent_state.json"];

impl GitRepository {
    /// The files of `workspace` with uncommitted changes, and those that are neither tracked nor ignored. A folder of such files counts
    /// as one. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn uncommitted(workspace: &Path, drivers: DriverOptions) -> Result<Vec<PathBuf>, RepositoryError> {
        let main = open_checked(workspace, drivers)?;
        // A query must not lock the index. In a submodule git would run what that submodule's settings name.
        let options = ["--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames"];
        let output = main.git(options.iter().chain(&["--ignore-submodules=dirty"])).ok()?;
        let paths = output.fields().filter_map(|field| field.get(3..)).filter(|path| !path.is_empty()).map(path_of);
        // Git may not ignore them yet.
        let is_ours = |path: &PathBuf| RUN_TIME_PATHS.iter().any(|ours| path.starts_with(ours));
        Ok(paths.filter(|path| !is_ours(path)).collect())
    }

    /// Returns true if a worktree has no uncommitted changes. Ignored files do not count. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn is_clean(worktree: &Path, drivers: DriverOptions) -> Result<bool, RepositoryError> {
        let at = find_checkout(worktree, drivers)?;
        let options = ["--no-optional-locks", "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"];
        Ok(at.git(options).ok()?.out.is_empty())
    }
}
