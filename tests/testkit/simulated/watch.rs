//! The watches of folders on the simulated disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use brigade::stores::fs::{FolderWatch, WatchEvents};

/// The watches of one disk.
#[derive(Debug, Default, Clone)]
pub(super) struct Watches {
    all: Vec<(PathBuf, Weak<Mutex<PendingChanges>>)>,
}

/// The changes in a folder since the last drain.
#[derive(Debug, Default)]
struct PendingChanges {
    /// The changed names, and for a renamed file its old name in the folder.
    names: Vec<(String, Option<String>)>,
    has_ended: bool,
}

struct Watch(Arc<Mutex<PendingChanges>>);

impl Watches {
    /// Starts a watch of `folder`.
    pub(super) fn start(&mut self, folder: &Path) -> Box<dyn FolderWatch> {
        let changes = Arc::default();
        self.all.retain(|(_, watch)| watch.strong_count() > 0);
        self.all.push((folder.to_owned(), Arc::downgrade(&changes)));
        Box::new(Watch(changes))
    }

    /// Records a change of `path`, renamed from `from` if given.
    pub(super) fn notify(&self, path: &Path, from: Option<&Path>) {
        let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let (Some(folder), Some(name)) = (path.parent(), name_of(path)) else { return };
        for changes in self.all.iter().filter(|(watched, _)| watched == folder).filter_map(|(_, watch)| watch.upgrade())
        {
            let from = from.filter(|from| from.parent() == Some(folder)).and_then(name_of);
            changes.lock().unwrap_or_else(PoisonError::into_inner).names.push((name.clone(), from));
        }
    }

    /// Ends all watches: the disk is gone.
    pub(super) fn end(&self) {
        for changes in self.all.iter().filter_map(|(_, watch)| watch.upgrade()) {
            changes.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        }
    }
}

impl FolderWatch for Watch {
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> WatchEvents {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, from) in changes.names.drain(..) {
            each(&name, from.as_deref());
        }
        if changes.has_ended { WatchEvents::Ended } else { WatchEvents::All }
    }
}
