//! Durability for many at once: whoever waits for the disk waits together.
//!
//! Each caller's thread syncs its own files: calls that come at once keep the disk busy together, which makes one journal write, or one
//! flush, of many. The folder they share is then synced once for all: the first who asks does it for all who asked until then, and
//! those who come meanwhile are the next group. No store's lock is held while waiting here.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::ports::StoreResult;
use crate::stores::fs::FileSystem;

use super::{Durability, failed};

/// What has to be durable before a call may return.
#[derive(Debug, Default, Clone)]
pub struct SyncRequest {
    /// Files whose bytes count. One that is gone meanwhile was replaced or removed by a later call, which syncs for itself.
    pub files: Vec<PathBuf>,
    /// Folders whose entries count.
    pub folders: Vec<PathBuf>,
}

/// The queue of those who wait for the disk. One for each store, or one for all.
pub struct SyncQueue {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    next_ticket: u64,
    waiting: Vec<(u64, Vec<PathBuf>)>,
    is_syncing: bool,
    outcomes: HashMap<u64, Outcome>,
}

/// What a group's sync failed at, if it did: kind, message and path, for every waiter of the group.
type Outcome = Option<(io::ErrorKind, String, PathBuf)>;

impl SyncQueue {
    /// A queue that syncs with `files`; with [`Durability::Process`] it never does.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability) -> Self {
        Self { files, durability, state: Mutex::default(), finished: Condvar::new() }
    }

    /// Returns once all of `request` is durable. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`] when the system cannot; every waiter of the group is told then.
    pub fn sync(&self, request: SyncRequest) -> StoreResult<()> {
        if self.durability == Durability::Process {
            return Ok(());
        }
        // Files first: on a journaling disk their sync carries the folder's entries along, whose own sync is then cheap.
        for path in &request.files {
            match self.files.sync_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("sync", path)(error)),
                _ => {}
            }
        }
        if request.folders.is_empty() { Ok(()) } else { self.sync_folders(request.folders) }
    }

    fn sync_folders(&self, folders: Vec<PathBuf>) -> StoreResult<()> {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push((ticket, folders));
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return match outcome {
                    None => Ok(()),
                    Some((kind, text, path)) => Err(failed("sync", &path)(io::Error::new(kind, text))),
                };
            }
            state = if state.is_syncing {
                self.finished.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.sync_group(state)
            };
        }
    }

    /// Syncs for all who wait now.
    fn sync_group<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (tickets, folders): (Vec<_>, Vec<_>) = std::mem::take(&mut state.waiting).into_iter().unzip();
        state.is_syncing = true;
        drop(state);
        let folders: BTreeSet<PathBuf> = folders.into_iter().flatten().collect();
        let outcome = folders.into_iter().find_map(|path| {
            let error = self.files.sync_folder(&path).err()?;
            Some((error.kind(), error.to_string(), path))
        });
        let mut state = self.lock();
        state.is_syncing = false;
        state.outcomes.extend(tickets.into_iter().map(|ticket| (ticket, outcome.clone())));
        self.finished.notify_all();
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    #[test]
    fn every_waiter_returns_and_a_file_that_is_gone_is_no_error() {
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
        assert!(queue.lock().outcomes.is_empty() && queue.lock().waiting.is_empty());
    }

    #[test]
    fn a_sync_that_fails_is_told_to_who_waits_for_it_and_not_to_the_next() {
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
