//! Which inboxes surely have no mail: nothing was there when they were last looked at, and since then the system told of nothing
//! done to them. So a thousand idle teammates can look every few seconds and read nothing. It decides nothing else.
//!
//! The watch is drained at the moment somebody asks: the kernel queues an event before the call that caused it returns. Where there
//! is no watch nothing is ever sure.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::stores::fs::{Drained, FileSystem, FolderWatch};

use super::recipients::OPEN_FILE;
use super::taken::inbox_name;

/// See the module.
pub(super) struct Stillness {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watch: Option<Box<dyn FolderWatch>>,
    /// Names, in small letters, that have no mail.
    still: HashSet<String>,
    /// Whether nobody has any, and none that was taken lies about.
    is_all_still: bool,
    /// Counts up with each drain that told something.
    news: u64,
}

/// When a look at the inboxes began; what was told since then, it may have missed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since(Option<u64>);

impl Stillness {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default() }
    }

    /// Whether `name` surely has no mail.
    pub fn is_still(&self, name: &str) -> bool {
        let mut state = self.state();
        state.drain();
        state.watch.is_some() && state.still.contains(&name.to_ascii_lowercase())
    }

    /// Whether surely nobody has any.
    pub fn is_all_still(&self) -> bool {
        let mut state = self.state();
        state.drain();
        state.watch.is_some() && state.is_all_still
    }

    /// To be called before a look.
    pub fn begin(&self, files: &dyn FileSystem) -> Since {
        let mut state = self.state();
        state.drain();
        if state.watch.is_none() {
            state.watch = files.watch(&self.folder);
        }
        Since(state.watch.is_some().then_some(state.news))
    }

    /// Takes in that a look found no mail for `name`.
    pub fn note(&self, name: &str, since: Since) {
        let mut state = self.state();
        if since.0 == Some(state.news) {
            state.still.insert(name.to_ascii_lowercase());
        }
    }

    /// Takes in that a look found none for anybody.
    pub fn note_all(&self, since: Since) {
        let mut state = self.state();
        state.is_all_still |= since.0 == Some(state.news);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets what is not sure any more.
    fn drain(&mut self) {
        let Some(watch) = &mut self.watch else {
            return;
        };
        let (still, mut has_news, mut is_open_news) = (&mut self.still, false, false);
        let drained = watch.drain(&mut |name, _| {
            if name == OPEN_FILE {
                is_open_news = true;
            } else if let Some(inbox) = inbox_name(name) {
                still.remove(&inbox.to_ascii_lowercase());
                has_news = true;
            }
        });
        if drained != Drained::All || is_open_news {
            still.clear();
            has_news = true;
        }
        if drained == Drained::Ended {
            self.watch = None;
        }
        if has_news {
            self.is_all_still = false;
            self.news += 1;
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    #[test]
    fn what_was_found_empty_is_still_until_something_is_done_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (stillness, files) = (Stillness::new(folder.path()), RealFileSystem::default());
        let since = stillness.begin(&files);
        assert!(!stillness.is_still("bob"));
        stillness.note("bob", since);
        stillness.note("ann", since);
        stillness.note_all(since);
        assert!(stillness.is_still("Bob") && stillness.is_still("ann") && stillness.is_all_still());
        std::fs::write(folder.path().join(".lock"), "").unwrap();
        assert!(stillness.is_all_still(), "a lock is no mail");
        std::fs::write(folder.path().join("BOB.jsonl"), "x").unwrap();
        assert!(!stillness.is_all_still() && !stillness.is_still("bob") && stillness.is_still("ann"));
    }

    #[test]
    fn what_comes_during_a_look_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let (stillness, files) = (Stillness::new(folder.path()), RealFileSystem::default());
        let since = stillness.begin(&files);
        std::fs::write(folder.path().join("bob.jsonl"), "x").unwrap();
        assert!(!stillness.is_still("bob"), "this drains what the look does not know of");
        stillness.note("bob", since);
        stillness.note_all(since);
        assert!(!stillness.is_still("bob") && !stillness.is_all_still());
        let since = stillness.begin(&files);
        stillness.note("bob", since);
        std::fs::write(folder.path().join(".open"), "bob\n").unwrap();
        assert!(!stillness.is_still("bob"), "who can be written to has changed");
    }

    #[test]
    fn a_folder_that_goes_takes_all_certainty_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = folder.path().join("inbox");
        std::fs::create_dir(&inbox).unwrap();
        let (stillness, files) = (Stillness::new(&inbox), RealFileSystem::default());
        let since = stillness.begin(&files);
        stillness.note("bob", since);
        assert!(stillness.is_still("bob"));
        std::fs::rename(&inbox, folder.path().join("other")).unwrap();
        assert!(!stillness.is_still("bob"));
        let missing = Stillness::new(&inbox);
        let since = missing.begin(&files);
        missing.note("bob", since);
        assert!(!missing.is_still("bob"), "there is nothing to watch");
    }
}
