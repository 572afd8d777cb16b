//! The files that git tracks: those that came with a clone.

use std::path::{Path, PathBuf};

use super::GitRepository;
use super::run::{git_in, path_of};
use crate::ports::RepositoryError;

impl GitRepository {
    /// The files that git tracks in `folder` under one of these names, in capital or small letters, and below folders of these
    /// names; none where `folder` is in no repository. It blocks.
    ///
    /// # Errors
    /// There is a repository, and git does not say.
    pub fn tracked(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>, RepositoryError> {
        if !folder.ancestors().any(|folder| folder.join(".git").symlink_metadata().is_ok()) {
            return Ok(Vec::new());
        }
        let specs = names.iter().map(|name| format!(":(icase,literal){name}"));
        let arguments = ["ls-files", "-z", "--cached", "--"].map(str::to_owned);
        Ok(git_in(folder, arguments.into_iter().chain(specs)).ok()?.fields().map(path_of).collect())
    }
}
