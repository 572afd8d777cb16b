//! Rules for the access of commands to paths.

use std::path::{Path, PathBuf};

/// A rule for one path as the command sees it. The nearest rule at or above a file applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRule {
    /// An absolute path without symbolic links. A path that does not exist needs no protection.
    pub path: PathBuf,
    /// The access of commands to the path.
    pub access: Access,
}

/// The access of commands to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Commands can read it.
    ReadOnly,
    /// Commands can read each file of this folder, and not write it, even after it was moved to another folder.
    ReadOnlyFiles,
    /// Commands can read and write it inside a read-only folder.
    Writable,
    /// Commands cannot read it: a file appears empty, and a folder has no entries.
    Hidden,
}

impl PathRule {
    /// Creates a rule that makes `path` read-only.
    pub fn read_only(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::ReadOnly }
    }

    /// Creates a rule that makes each file of the folder `path` read-only, even after it was moved.
    pub fn read_only_files(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::ReadOnlyFiles }
    }

    /// Creates a rule that makes `path` writable inside a read-only folder.
    pub fn writable(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::Writable }
    }

    /// Creates a rule that hides `path`.
    pub fn hidden(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: Access::Hidden }
    }

    /// Returns the path, if the rule protects it against writing and replacing.
    pub fn protected_path(&self) -> Option<&Path> {
        if self.access == Access::Writable { None } else { Some(self.path.as_path()) }
    }
}
