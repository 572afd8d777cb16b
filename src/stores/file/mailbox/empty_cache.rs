//! A cache of inboxes that certainly have no mail: none was found, and no file event followed. With it, a thousand idle teammates
//! can check every few seconds without reading files.
//!
//! The watch is drained at each query: the kernel queues an event before the call that caused it returns. Without a watch no inbox
//! counts as empty.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::stores::fs::{FileSystem, FolderWatch, WatchEvents};

use super::recipients::OPEN_FILE;
use super::taken_files::inbox_name;

pub(super) struct EmptyInboxCache {
    folder: PathBuf,
    state: Mutex<EmptyCacheState>,
}

#[derive(Default)]
struct EmptyCacheState {
    watch: Option<Box<dyn FolderWatch>>,
    /// The lower-case names without mail.
    empty: HashSet<String>,
    /// Increases with each drain that found changes.
    generation: u64,
}

/// The beginning of a read of the inboxes. The read may have missed later events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor(Option<u64>);

impl EmptyInboxCache {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default() }
    }

    /// Returns true if `name` certainly has no mail.
    pub fn is_empty(&self, name: &str) -> bool {
        let mut state = self.state.lock();
        state.drain();
        state.watch.is_some() && state.empty.contains(&name.to_ascii_lowercase())
    }

    /// Must be called before the inboxes are read.
    pub fn begin(&self, files: &dyn FileSystem) -> Cursor {
        let mut state = self.state.lock();
        state.drain();
        if state.watch.is_none() {
            state.watch = files.watch(&self.folder);
        }
        Cursor(state.watch.is_some().then_some(state.generation))
    }

    /// Records that a read found no mail for `name`.
    pub fn mark_empty(&self, name: &str, since: Cursor) {
        let mut state = self.state.lock();
        if since.0 == Some(state.generation) {
            state.empty.insert(name.to_ascii_lowercase());
        }
    }
}

impl EmptyCacheState {
    /// Removes inboxes with new events from the cache.
    fn drain(&mut self) {
        let Some(watch) = &mut self.watch else {
            return;
        };
        let empty = &mut self.empty;
        let mut has_changes = false;
        let mut has_new_recipients = false;
        let drained = watch.drain(&mut |name, _| {
            if name == OPEN_FILE {
                has_new_recipients = true;
            } else if let Some(inbox) = inbox_name(name) {
                empty.remove(&inbox.to_ascii_lowercase());
                has_changes = true;
            }
        });
        if drained != WatchEvents::All || has_new_recipients {
            empty.clear();
            has_changes = true;
        }
        if drained == WatchEvents::Ended {
            self.watch = None;
        }
        if has_changes {
            self.generation += 1;
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    #[test]
    fn empty_inbox_cache_holds_until_inbox_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, files) = (EmptyInboxCache::new(folder.path()), RealFileSystem::default());
        let since = cache.begin(&files);
        assert!(!cache.is_empty("bob"));
        cache.mark_empty("bob", since);
        cache.mark_empty("ann", since);
        assert!(cache.is_empty("Bob") && cache.is_empty("ann"));
        std::fs::write(folder.path().join(".lock"), "").unwrap();
        assert!(cache.is_empty("bob"), "a lock file is not mail");
        std::fs::write(folder.path().join("BOB.jsonl"), "x").unwrap();
        assert!(!cache.is_empty("bob") && cache.is_empty("ann"));
    }

    #[test]
    fn mail_arriving_during_read_is_not_cached_empty() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, files) = (EmptyInboxCache::new(folder.path()), RealFileSystem::default());
        let since = cache.begin(&files);
        std::fs::write(folder.path().join("bob.jsonl"), "x").unwrap();
        assert!(!cache.is_empty("bob"), "the drain covers an event that the read missed");
        cache.mark_empty("bob", since);
        assert!(!cache.is_empty("bob"));
        let since = cache.begin(&files);
        cache.mark_empty("bob", since);
        std::fs::write(folder.path().join(".open"), "bob\n").unwrap();
        assert!(!cache.is_empty("bob"), "the recipients have changed");
    }

    #[test]
    fn removed_inbox_folder_clears_empty_cache() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = folder.path().join("inbox");
        std::fs::create_dir(&inbox).unwrap();
        let (cache, files) = (EmptyInboxCache::new(&inbox), RealFileSystem::default());
        let since = cache.begin(&files);
        cache.mark_empty("bob", since);
        assert!(cache.is_empty("bob"));
        std::fs::rename(&inbox, folder.path().join("other")).unwrap();
        assert!(!cache.is_empty("bob"));
        let missing = EmptyInboxCache::new(&inbox);
        let since = missing.begin(&files);
        missing.mark_empty("bob", since);
        assert!(!missing.is_empty("bob"), "there is nothing to watch");
    }
}
