//! What the person has in their checkout that is in no commit: merges may have to go round it.

use std::path::{Path, PathBuf};

use super::run::path_of;
use super::{DriverOptions, EXCLUDED, GitRepository, usable};
use crate::ports::RepositoryError;

impl GitRepository {
    /// The files of `workspace` that were changed and not committed, and those git neither knows nor ignores; a folder of such files
    /// counts as one. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn uncommitted(
        workspace: &Path,
        into: Option<String>,
        drivers: DriverOptions,
    ) -> Result<Vec<PathBuf>, RepositoryError> {
        let (main, _) = usable(workspace, into, drivers)?;
        // Nobody who looks should lock the index for that. Git looks into a submodule by another git, which runs what that one's settings name.
        let options = ["--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames"];
        let said = main.git(options.iter().chain(&["--ignore-submodules=dirty"])).ok()?;
        let paths = said.fields().filter_map(|field| field.get(3..)).filter(|path| !path.is_empty()).map(path_of);
        // Also where git was not told yet not to see it.
        let is_ours = |path: &PathBuf| EXCLUDED.iter().any(|ours| path.starts_with(ours.trim_matches('/')));
        Ok(paths.filter(|path| !is_ours(path)).collect())
    }
}
