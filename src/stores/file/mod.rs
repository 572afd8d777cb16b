//! The stores that keep everything in plain files of the workspace, over the file-system port.
//!
//! What several of them need stands in [`replace`] (whole files, temporaries), [`shared`] (files others write too), [`append`]
//! (logs) and [`sync`] (durability, many waiters in one sync). A store knows nothing of the others.

pub mod append;
pub mod board;
pub mod events;
pub mod format;
pub mod ledger;
pub mod links;
pub mod mailbox;
pub mod replace;
pub mod roster;
pub mod shared;
pub mod state;
pub mod sync;
pub mod transcripts;
pub mod watch;
pub mod workers;
pub mod worktree;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokio::runtime::{Handle, RuntimeFlavor};

pub use crate::ports::Durability;
use crate::ports::{StoreError, StoreResult};

/// The folder of all our files in a workspace that are not tasks.
pub const TEAM_FOLDER: &str = ".team";

/// The lock files of a workspace, relative to it. All are there once a process has opened it to lead. Commands need none of them.
pub const LOCK_FILES: [&str; 6] = [
    ".tasks/.lock",
    ".team/lead.lock",
    ".team/.agent_state.json.lock",
    ".team/.config.json.lock",
    ".team/inbox/.lock",
    ".team/requests.lock",
];

/// The folder of the workers' records and locks, relative to the workspace: one of each for every process that runs teammates. Commands
/// need none of them.
pub const WORKERS_FOLDER: &str = ".team/workers";

/// The lock file of a worktree, relative to it.
pub const WORKTREE_LOCK_FILE: &str = ".agent/.state.lock";

/// Turns what the system said into a [`StoreError`] that names the path and what was tried: `map_err(failed("write", &path))`.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { action, path: path.display().to_string(), source }
}

/// Runs `action`, which blocks, where it holds up no other task. Once begun it runs to its end, also when nobody waits any more.
///
/// It runs on the thread that calls. A runtime of several threads goes on without that one: handing the action to another and its
/// answer back would wake two, and on a busy machine each of them waits for its turn. A runtime of one thread stands still
/// meanwhile; it is a command's, which has nothing else to do, or a simulation's, whose seed decides what comes after what.
///
/// # Errors
/// What `action` says; a panic in it as [`StoreError::Io`].
pub async fn blocking<R: Send + 'static>(action: impl FnOnce() -> StoreResult<R> + Send + 'static) -> StoreResult<R> {
    let broken = |source| failed("finish work on", Path::new("the stores"))(source);
    // A call that panics is an error of the call, as on a thread of its own, and not the end of who made it.
    let caught = || catch_unwind(AssertUnwindSafe(action));
    let outcome = if is_alone() {
        // Others have their turn first: after the action nobody may be let go of who does not know yet what was done.
        tokio::task::yield_now().await;
        caught()
    } else {
        let outcome = tokio::task::block_in_place(caught);
        // A runtime that ended meanwhile lets go of the task here; it must not go on to a timer that is gone.
        tokio::task::yield_now().await;
        outcome
    };
    outcome.unwrap_or_else(|_| Err(broken(io::Error::other("a call panicked"))))
}

/// Runs `action`, which blocks, beside others of its kind, where the runtime has threads for that: calls that wait for the disk at once
/// wait together. Once begun it runs to its end, also when nobody waits any more.
///
/// # Errors
/// As [`blocking`].
pub async fn blocking_beside<R: Send + 'static>(
    action: impl FnOnce() -> StoreResult<R> + Send + 'static,
) -> StoreResult<R> {
    if is_alone() {
        return blocking(action).await;
    }
    let broken = |source| failed("finish work on", Path::new("the stores"))(source);
    tokio::task::spawn_blocking(action).await.unwrap_or_else(|error| Err(broken(io::Error::other(error))))
}

/// Whether the runtime has no thread but the one that calls.
fn is_alone() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread
}
