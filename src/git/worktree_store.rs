//! `<worktree>/.agent/state.json`: the task that a worktree is used for. It allows recovery after a crash, and prevents use of the
//! worktree by another task. Other programs read and write the file too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::domain::git::worktree_state::{WorktreeReport, WorktreeState};
use crate::ports::{Clock, IoAction, StoreError};
use crate::stores::fs::{self, FileSystem, HeldLock};

use crate::stores::file::atomic_write::{StagedFile, sweep_temporaries};
use crate::stores::file::{Durability, WORKTREE_LOCK_FILE, failed};

const FOLDER: &str = ".agent";
const FILE: &str = "state.json";
const HEARTBEAT_FILE: &str = "heartbeat.json";
const TODOS_FILE: &str = "todos.json";

/// The largest file that is read, in bytes.
const STATE_BYTES_MAX: u64 = 1024 * 1024;

/// The reason why a worktree's state was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    /// The file does not exist: the worktree is new.
    #[error("cannot read {path}: there is no worktree state")]
    NotFound {
        /// The file.
        path: String,
    },
    /// The file is not a worktree state. It may be overwritten.
    #[error("cannot read {path}: invalid worktree state: {reason}")]
    Malformed {
        /// The file.
        path: String,
        /// The parse error.
        reason: String,
    },
    /// The worktree belongs to another task. It must be cleaned before use.
    #[error("cannot use {path}: the worktree belongs to `{}`, not to `{expected}`", .loaded.issue_identifier)]
    IdentifierMismatch {
        /// The file.
        path: String,
        /// The task that was expected.
        expected: String,
        /// The state that was found, for messages.
        loaded: Box<WorktreeState>,
    },
    /// The closure given to [`WorktreeStore::update`] failed; nothing was written.
    #[error("cannot change the worktree state: {0}")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An I/O error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The states of worktrees. After a crash each file is the old or the new version.
#[derive(Clone)]
pub struct WorktreeStore {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    clock: Arc<dyn Clock>,
}

impl WorktreeStore {
    /// A store for all worktrees. All its calls block.
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability, clock: Arc<dyn Clock>) -> Self {
        Self { files, durability, clock }
    }

    /// The path of the state file of `worktree`.
    pub fn path(worktree: &Path) -> PathBuf {
        worktree.join(FOLDER).join(FILE)
    }

    /// Reads the state of `worktree`.
    ///
    /// # Errors
    /// [`WorktreeError::NotFound`], [`WorktreeError::Malformed`].
    pub fn read(&self, worktree: &Path) -> Result<WorktreeState, WorktreeError> {
        let path = Self::path(worktree);
        let path_text = path.display().to_string();
        let malformed = |reason: String| WorktreeError::Malformed { path: path.display().to_string(), reason };
        match self.files.read(&path, 0, STATE_BYTES_MAX) {
            Ok((bytes, _)) => WorktreeState::parse(&bytes).map_err(|error| malformed(error.to_string())),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => Err(WorktreeError::NotFound { path: path_text }),
                io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput => Err(malformed(error.to_string())),
                _ => Err(failed("read", &path)(error).into()),
            },
        }
    }

    /// Reads the state of `worktree` if it belongs to `expected`. An empty identifier, expected or in the file, accepts the other.
    ///
    /// # Errors
    /// As [`WorktreeStore::read`], and [`WorktreeError::IdentifierMismatch`] with the state that was found.
    pub fn read_expect(&self, worktree: &Path, expected: &str) -> Result<WorktreeState, WorktreeError> {
        let loaded = self.read(worktree)?;
        let found = &loaded.issue_identifier;
        if expected.is_empty() || found.is_empty() || found == expected {
            return Ok(loaded);
        }
        let path = Self::path(worktree).display().to_string();
        Err(WorktreeError::IdentifierMismatch { path, expected: expected.to_owned(), loaded: Box::new(loaded) })
    }

    /// Overwrites the state, and returns it with its time of writing.
    ///
    /// # Errors
    /// [`WorktreeError::Store`].
    pub fn write(&self, worktree: &Path, state: WorktreeState) -> Result<WorktreeState, WorktreeError> {
        let _lock = self.lock(worktree)?;
        self.write_locked(worktree, state)
    }

    /// Changes the state: calls `change` with the current or an empty state, and writes the result. Concurrent updates of Brigade's
    /// threads and processes run one after another; none is lost.
    ///
    /// # Errors
    /// [`WorktreeError::Refused`] if `change` fails, [`WorktreeError::Malformed`]. Nothing is written then.
    pub fn update<E>(
        &self,
        worktree: &Path,
        change: impl FnOnce(&mut WorktreeState) -> Result<(), E>,
    ) -> Result<WorktreeState, WorktreeError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let _lock = self.lock(worktree)?;
        let mut state = match self.read(worktree) {
            Err(WorktreeError::NotFound { .. }) => WorktreeState::default(),
            other => other?,
        };
        change(&mut state).map_err(|error| WorktreeError::Refused(error.into()))?;
        self.write_locked(worktree, state)
    }

    /// Writes the report into the three files of `worktree`, if its state belongs to the same task as `fresh`. A missing or invalid
    /// state is replaced by `fresh`. It creates no folder, so that a worktree that was removed meanwhile stays removed. `heartbeat.json`
    /// and `todos.json` are always whole, but not made durable.
    ///
    /// # Errors
    /// [`WorktreeError::IdentifierMismatch`], [`WorktreeError::Store`].
    pub fn report(&self, worktree: &Path, fresh: WorktreeState, report: &WorktreeReport) -> Result<(), WorktreeError> {
        let path = worktree.join(WORKTREE_LOCK_FILE);
        let _lock = fs::hold(&*self.files, &path).map_err(failed(IoAction::Lock, &path))?;
        let mut state = match self.read_expect(worktree, &fresh.issue_identifier) {
            Err(WorktreeError::NotFound { .. } | WorktreeError::Malformed { .. }) => fresh,
            read => read?,
        };
        let now = self.clock.now();
        report.apply_to(&mut state, now);
        self.write_locked(worktree, state)?;
        let folder = worktree.join(FOLDER);
        for (name, text) in [(HEARTBEAT_FILE, report.heartbeat_file(now)), (TODOS_FILE, report.todos_file(now))] {
            StagedFile::write(&*self.files, &folder, name, text.as_bytes())?.commit()?;
        }
        Ok(())
    }

    fn write_locked(&self, worktree: &Path, mut state: WorktreeState) -> Result<WorktreeState, WorktreeError> {
        let folder = worktree.join(FOLDER);
        state.last_updated_at = self.clock.now().0;
        let text = state.to_file();
        sweep_temporaries(&*self.files, &folder)?;
        let staged = StagedFile::write(&*self.files, &folder, FILE, text.as_bytes())?;
        if self.durability == Durability::Power {
            // Without this sync a power cut may leave an empty file, which is neither the old nor the new version.
            staged.sync()?;
        }
        staged.commit()?;
        Ok(state)
    }

    /// Takes the worktree's lock. It is polled, not waited for, so that no file stays open for a removed worktree.
    fn lock(&self, worktree: &Path) -> Result<HeldLock, WorktreeError> {
        let folder = worktree.join(FOLDER);
        self.files.create_folder(&folder).map_err(failed("create", &folder))?;
        let path = worktree.join(WORKTREE_LOCK_FILE);
        Ok(fs::hold(&*self.files, &path).map_err(failed(IoAction::Lock, &path))?)
    }
}
