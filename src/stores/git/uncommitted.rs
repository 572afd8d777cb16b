//! What the person has in their checkout that is in no commit: merges may have to go round it.

use std::path::{Path, PathBuf};

use super::run::path_of;
use super::{EXCLUDED, GitRepository, usable};
use crate::ports::RepositoryError;

impl GitRepository {
    /// The files of `workspace` that were changed and not committed, and those git neither knows nor ignores; a folder of such files
    /// counts as one. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn uncommitted(workspace: &Path, into: Option<String>) -> Result<Vec<PathBuf>, RepositoryError> {
        let (main, _) = usable(workspace, into)?;
        // Nobody who looks should lock the index for that.
        let said = main.git(["--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames"]).ok()?;
        let paths = said.fields().filter_map(|field| field.get(3..)).filter(|path| !path.is_empty()).map(path_of);
        // Also where git was not told yet not to see it.
        let is_ours = |path: &PathBuf| EXCLUDED.iter().any(|ours| path.starts_with(ours.trim_matches('/')));
        Ok(paths.filter(|path| !is_ours(path)).collect())
    }
}
