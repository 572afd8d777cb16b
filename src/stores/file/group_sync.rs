//! Makes the writes of concurrent callers durable together.
//!
//! Each caller syncs its own files on its own thread: concurrent syncs share one journal write or disk flush. Shared folders are
//! synced once for a group. The first caller syncs for all callers so far; later callers form the next group. No caller holds a
//! store's lock here.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::ports::{IoAction, StoreResult};
use crate::stores::fs::FileSystem;

use super::{Durability, failed};

/// The files and folders that must be durable before a call may return.
#[derive(Debug, Default, Clone)]
pub struct SyncRequest {
    /// Files whose bytes must be durable. A missing file is skipped: a later call replaced or removed it, and syncs for itself.
    pub files: Vec<PathBuf>,
    /// Folders whose entries must be durable.
    pub folders: Vec<PathBuf>,
}

/// The queue of callers that wait for the disk.
pub struct SyncQueue {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    state: Mutex<SyncState>,
    finished: Condvar,
}

#[derive(Default)]
struct SyncState {
    next_ticket: u64,
    waiting: Vec<(u64, Vec<PathBuf>)>,
    is_syncing: bool,
    /// The outcomes that their waiters have not taken yet, by ticket.
    outcomes: HashMap<u64, Result<(), SyncFailure>>,
}

/// The failure of a group's sync. Every waiter of the group gets it.
#[derive(Clone)]
struct SyncFailure {
    kind: io::ErrorKind,
    text: String,
    path: PathBuf,
}

impl SyncQueue {
    /// A queue that syncs with `files`. With [`Durability::Process`] it never syncs.
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability) -> Self {
        Self { files, durability, state: Mutex::default(), finished: Condvar::new() }
    }

    /// Makes all of `request` durable. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`] if a file or folder cannot be synced. Every waiter of the group gets a folder's error.
    pub fn sync(&self, request: SyncRequest) -> StoreResult<()> {
        if self.durability == Durability::Process {
            return Ok(());
        }
        // Files come first: on a journaling disk their sync includes the folder's entries, and the folder's own sync is then cheap.
        for path in &request.files {
            match self.files.sync_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(IoAction::Sync, path)(error));
                }
                _ => {}
            }
        }
        if request.folders.is_empty() { Ok(()) } else { self.sync_folders(request.folders) }
    }

    fn sync_folders(&self, folders: Vec<PathBuf>) -> StoreResult<()> {
        let mut state = self.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push((ticket, folders));
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return outcome.map_err(|SyncFailure { kind, text, path }| {
                    failed(IoAction::Sync, &path)(io::Error::new(kind, text))
                });
            }
            if state.is_syncing {
                self.finished.wait(&mut state);
            } else {
                state = self.sync_group(state);
            }
        }
    }

    /// Syncs the folders of all current waiters.
    fn sync_group<'a>(&'a self, mut state: MutexGuard<'a, SyncState>) -> MutexGuard<'a, SyncState> {
        let (tickets, folders): (Vec<_>, Vec<_>) = std::mem::take(&mut state.waiting).into_iter().unzip();
        state.is_syncing = true;
        drop(state);
        let folders: BTreeSet<PathBuf> = folders.into_iter().flatten().collect();
        let outcome = folders.into_iter().try_for_each(|path| {
            let failure =
                |error: io::Error| SyncFailure { kind: error.kind(), text: error.to_string(), path: path.clone() };
            self.files.sync_folder(&path).map_err(failure)
        });
        let mut state = self.state.lock();
        state.is_syncing = false;
        state.outcomes.extend(tickets.into_iter().map(|ticket| (ticket, outcome.clone())));
        self.finished.notify_all();
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    #[test]
    fn group_sync_ignores_missing_files() {
        let folder = tempfile::tempdir().unwrap();
        let queue = SyncQueue::new(Arc::new(RealFileSystem::default()), Durability::Power);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (queue, path) = (&queue, folder.path().join(format!("{number}")));
                scope.spawn(move || {
                    if number % 2 == 0 {
                        std::fs::write(&path, "x").unwrap();
                    }
                    let folders = vec![path.parent().unwrap().to_owned()];
                    queue.sync(SyncRequest { files: vec![path], folders }).unwrap();
                });
            }
        });
        assert!(queue.state.lock().outcomes.is_empty() && queue.state.lock().waiting.is_empty());
    }

    #[test]
    fn group_sync_error_reaches_only_its_waiter() {
        let folder = tempfile::tempdir().unwrap();
        let queue = SyncQueue::new(Arc::new(RealFileSystem::default()), Durability::Power);
        let missing = SyncRequest { files: vec![], folders: vec![folder.path().join("missing")] };
        let error = queue.sync(missing.clone()).unwrap_err();
        assert!(error.to_string().starts_with("cannot sync ") && error.to_string().contains("missing"), "{error}");
        queue.sync(SyncRequest { files: vec![], folders: vec![folder.path().to_owned()] }).unwrap();
        let process = SyncQueue::new(Arc::new(RealFileSystem::default()), Durability::Process);
        process.sync(missing).unwrap();
    }
}
