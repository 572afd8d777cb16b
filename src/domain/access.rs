//! Rules about what a command may do with a path.

use std::path::{Path, PathBuf};

/// A rule for one path, as a command under it sees that path. The nearest rule above a file decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRule {
    /// An absolute path without symbolic links. A path that does not exist needs no protection.
    pub path: PathBuf,
    /// What a command may do there.
    pub access: Access,
}

/// What a command may do with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read each file of this folder, also after the file was renamed to another folder.
    ReadOnlyFiles,
    /// Read and write, inside a folder that is read-only.
    Writable,
    /// Nothing: a file looks empty, a folder has no entries.
    Hidden,
}

impl PathRule {
    /// A rule that makes `path` read-only.
    #[must_use]
    pub fn read_only(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::ReadOnly }
    }

    /// A rule that makes each file of the folder `path` read-only wherever it is renamed to.
    #[must_use]
    pub fn read_only_files(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::ReadOnlyFiles }
    }

    /// A rule that keeps `path` writable inside a read-only folder.
    #[must_use]
    pub fn writable(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::Writable }
    }

    /// A rule that hides `path`.
    #[must_use]
    pub fn hidden(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::Hidden }
    }

    /// The path of a rule that protects it from being written or replaced; `None` for a writable one.
    #[must_use]
    pub fn protected(&self) -> Option<&Path> {
        (self.access != Access::Writable).then_some(self.path.as_path())
    }
}
