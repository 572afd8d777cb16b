//! The files that git tracks: those that came with a clone.

use std::path::{Path, PathBuf};

use super::GitRepository;
use super::run::{git, path_of, text_of};
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
        let place = text_of(folder);
        let specs = names.iter().map(|name| format!(":(icase,literal){name}"));
        let arguments = ["-C", &place, "ls-files", "-z", "--cached", "--"].map(str::to_owned);
        Ok(git(arguments.into_iter().chain(specs)).ok()?.fields().map(path_of).collect())
    }
}
