//! The stores in plain files of the workspace, over the file-system port. Stores do not know each other.
//!
//! Shared parts: [`atomic_write`] replaces whole files, [`exchange_file`] replaces files that other programs also write,
//! [`append_file`] appends to logs, and [`sync`] makes writes durable.

pub mod append_file;
pub mod atomic_write;
pub mod board;
pub mod events;
pub mod exchange_file;
pub mod format;
pub mod ledger;
pub mod links;
pub mod mailbox;
pub mod open;
pub mod roster;
pub mod stable_value;
pub mod state;
pub mod sync;
pub mod transcripts;
pub mod watch;
pub mod workers;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tokio::runtime::{Handle, RuntimeFlavor};

pub use crate::ports::Durability;
use crate::ports::{IoAction, StoreError, StoreResult};
use crate::stores::fs::{FileKind, FileStamp, FileSystem};

/// The folder of all files of Brigade in a workspace, except the tasks.
pub const TEAM_FOLDER: &str = ".team";

/// The lock files of a workspace, relative to it. Opening it as lead creates all of them.
pub const LOCK_FILES: [&str; 6] = [
    ".tasks/.lock",
    ".team/lead.lock",
    ".team/.agent_state.json.lock",
    ".team/.config.json.lock",
    ".team/inbox/.lock",
    ".team/requests.lock",
];

/// The paths that commands of agents do not need: the lock files, and the folder of the workers' records and locks.
pub const HIDDEN_PATHS: [&str; LOCK_FILES.len() + 1] = {
    let [board, lead, state, roster, inboxes, requests] = LOCK_FILES;
    [board, lead, state, roster, inboxes, requests, ".team/workers"]
};

/// The lock file of a worktree, relative to it.
pub const WORKTREE_LOCK_FILE: &str = ".agent/.state.lock";

/// Turns an I/O error into a [`StoreError`] with the action and the path: `map_err(failed("write", &path))`.
pub fn failed(action: impl Into<IoAction>, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let action = action.into();
    move |source| StoreError::Io { action, place: path.display().to_string(), source }
}

/// The value of an operation on `path`; `None` if nothing is there: `if_found("list", &folder, files.list(&folder))`.
///
/// # Errors
/// [`StoreError::Io`].
pub fn if_found<T>(action: &'static str, path: &Path, outcome: io::Result<T>) -> StoreResult<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(action, path)(error)),
    }
}

/// Moves `path` into `folder`, under the first of `names` that is free, and returns its new path.
///
/// # Errors
/// `AlreadyExists` if no name is free, and errors of the file system.
pub fn move_aside(
    files: &dyn FileSystem,
    path: &Path,
    folder: &Path,
    names: impl IntoIterator<Item = String>,
) -> io::Result<PathBuf> {
    files.create_folder(folder)?;
    for target in names.into_iter().map(|name| folder.join(name)) {
        match files.rename_new(path, &target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            moved => return moved.map(|()| target),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The bytes of a file from `offset`, at most `bytes_max`. A missing file has none.
///
/// # Errors
/// [`StoreError::Io`].
pub fn read_or_empty(files: &dyn FileSystem, path: &Path, offset: u64, bytes_max: u64) -> StoreResult<Vec<u8>> {
    let read = if_found("read", path, files.read(path, offset, bytes_max))?;
    Ok(read.map(|(bytes, _)| bytes).unwrap_or_default())
}

/// Returns true if Brigade cannot have written the entry with this stamp, whose reading failed with `error`. Then it is not a plain file,
/// or it is longer than Brigade's files of its kind.
pub fn is_foreign_entry(stamp: FileStamp, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::FileTooLarge || stamp.kind != FileKind::File
}

/// Runs `action`, which blocks, without blocking other tasks. Once begun it runs to its end, even if the caller is dropped.
///
/// It runs on the caller's thread. A runtime with several threads continues on the others. Passing the action to another thread
/// and its result back would wake two threads, and on a busy machine each waits for its turn.
///
/// A runtime with one thread stops during the action. It belongs to a command, which has nothing else to do, or to a simulation,
/// whose seed decides the order.
///
/// # Errors
/// The error of `action`; a panic in it as [`StoreError::Io`].
pub async fn blocking<R: Send>(action: impl FnOnce() -> StoreResult<R> + Send) -> StoreResult<R> {
    let io_error = |source| failed("finish work on", Path::new("the stores"))(source);
    // A panic becomes an error of the call, as on another thread, and does not end the caller.
    let run = || catch_unwind(AssertUnwindSafe(action));
    let outcome = if has_one_thread() {
        // Other tasks run first. After the action the caller must not be dropped before it knows the result.
        tokio::task::yield_now().await;
        run()
    } else {
        let outcome = tokio::task::block_in_place(run);
        // A runtime that has ended drops the task here, before the task uses a timer that is gone.
        tokio::task::yield_now().await;
        outcome
    };
    outcome.unwrap_or_else(|_| Err(io_error(io::Error::other("a call panicked"))))
}

/// Runs `action`, which blocks, on its own thread if the runtime has several. Concurrent calls then wait for the disk together.
/// Once begun it runs to its end, even if the caller is dropped.
///
/// # Errors
/// As [`blocking`].
pub async fn blocking_concurrent<R: Send + 'static>(
    action: impl FnOnce() -> StoreResult<R> + Send + 'static,
) -> StoreResult<R> {
    if has_one_thread() {
        return blocking(action).await;
    }
    let io_error = |source| failed("finish work on", Path::new("the stores"))(source);
    tokio::task::spawn_blocking(action).await.unwrap_or_else(|error| Err(io_error(io::Error::other(error))))
}

fn has_one_thread() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread
}
