//! The files that git tracks.

use std::path::{Path, PathBuf};

use super::GitRepository;
use super::command::{git_in, path_of};
use crate::ports::RepositoryError;

impl GitRepository {
    /// The tracked files in `folder` with one of these names, in any case, and those below folders with these names. Empty if `folder`
    /// is not in a repository. It blocks.
    ///
    /// # Errors
    /// Git fails in an existing repository.
    pub fn tracked(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>, RepositoryError> {
        if !folder.ancestors().any(|folder| folder.join(".git").symlink_metadata().is_ok()) {
            return Ok(Vec::new());
        }
        let specs = names.iter().map(|name| format!(":(icase,literal){name}"));
        let arguments = ["ls-files", "-z", "--cached", "--"].map(str::to_owned);
        Ok(git_in(folder, arguments.into_iter().chain(specs)).ok()?.fields().map(path_of).collect())
    }
}
