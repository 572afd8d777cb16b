//! The record of a merge into the person's checkout. After a kill at any step, the next merge finishes or undoes it.
//!
//! The index is locked as git locks it, by a file `index.lock`. It is a hard link to the record. So a lock that a killed merge left can
//! be told from one of another program, which is never removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::command::RepoPath;
use super::files::{self, failed, remove_file};
use crate::domain::git::branch_name::BranchName;
use crate::platform::open_lock_file;
use crate::ports::RepositoryError;

/// The record, in the git folder of the checkout. It is empty while no merge is unfinished, and locked while a merge runs.
const JOURNAL_FILE: &str = "brigade-merge";
/// The index that the merge prepares. It becomes the index of the checkout.
const NEW_INDEX_FILE: &str = "brigade-merge-index";

/// A move of the person's checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckoutMove {
    /// The short name of the checked out branch.
    branch: String,
    /// Its commit before.
    pub(super) before: String,
    /// Its commit afterwards.
    pub(super) after: String,
}

impl CheckoutMove {
    pub(super) fn new(branch: &BranchName, [before, after]: [String; 2]) -> Self {
        Self { branch: branch.short().to_owned(), before, after }
    }

    /// The checked out branch.
    pub(super) fn branch(&self) -> BranchName {
        BranchName::new(&self.branch)
    }
}

/// The record of one checkout, locked until this value is dropped.
pub(super) struct MergeJournal {
    file: File,
    path: PathBuf,
    index: PathBuf,
    index_lock: PathBuf,
    new_index: PathBuf,
}

impl MergeJournal {
    /// Opens and locks the record. Returns `None` if another process has locked it.
    ///
    /// # Errors
    /// It cannot be opened, or is not a plain file.
    pub(super) fn open(at: &RepoPath) -> Result<Option<Self>, RepositoryError> {
        let path = at.git_dir.join(JOURNAL_FILE);
        let file = open_lock_file(&path).map_err(|error| failed("open", &path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path, &error)),
        }
        let [index, index_lock, new_index] = ["index", "index.lock", NEW_INDEX_FILE].map(|name| at.git_dir.join(name));
        Ok(Some(Self { file, path, index, index_lock, new_index }))
    }

    /// The unfinished move, if a process was killed in one. A record that was not written to its end counts as none: the move had not
    /// begun.
    pub(super) fn unfinished(&self) -> Option<CheckoutMove> {
        serde_json::from_slice(&files::bytes(&self.path)?).ok()
    }

    /// Records a move before it begins.
    pub(super) fn record(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let text = serde_json::to_vec(change).unwrap_or_default();
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(&text, 0));
        written.and_then(|()| self.file.sync_data()).map_err(|error| failed("write", &self.path, &error))
    }

    /// Locks the index. Returns the lock file of another program if that one has locked it.
    pub(super) fn lock_index(&self) -> Result<Option<PathBuf>, RepositoryError> {
        match fs::hard_link(&self.path, &self.index_lock) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Some(self.index_lock.clone())),
            Err(error) => Err(failed("lock", &self.index, &error)),
        }
    }

    /// Starts the new index as a copy of the index.
    pub(super) fn copy_index(&self) -> Result<(), RepositoryError> {
        self.remove_new_index()?;
        files::copy_file(&self.index, &self.new_index)
    }

    /// The variable that makes git use the new index.
    pub(super) fn new_index(&self) -> [(&'static str, PathBuf); 1] {
        [("GIT_INDEX_FILE", self.new_index.clone())]
    }

    /// Makes the new index the index of the checkout.
    pub(super) fn publish_index(&self) -> Result<(), RepositoryError> {
        fs::rename(&self.new_index, &self.index).map_err(|error| failed("write", &self.index, &error))
    }

    /// Clears the record, and removes what is left of a move: the new index, and the lock of the index if it is this record's.
    pub(super) fn clear(&self) -> Result<(), RepositoryError> {
        self.file.set_len(0).map_err(|error| failed("write", &self.path, &error))?;
        self.remove_new_index()?;
        if self.has_locked_index()? { remove_file(&self.index_lock) } else { Ok(()) }
    }

    fn remove_new_index(&self) -> Result<(), RepositoryError> {
        [self.new_index.clone(), self.new_index.with_extension("lock")].iter().try_for_each(|path| remove_file(path))
    }

    fn has_locked_index(&self) -> Result<bool, RepositoryError> {
        let own = self.file.metadata().map_err(|error| failed("read", &self.path, &error))?;
        let lock = self.index_lock.symlink_metadata().ok();
        Ok(lock.is_some_and(|lock| (lock.dev(), lock.ino()) == (own.dev(), own.ino())))
    }
}
