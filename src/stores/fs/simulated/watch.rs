//! Who watches a folder of the simulated disk, and what it is told. It knows nothing of what lies there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::stores::fs::{Drained, FolderWatch};

/// The watches of one disk.
#[derive(Debug, Default, Clone)]
pub(super) struct Watches {
    all: Vec<(PathBuf, Weak<Mutex<News>>)>,
}

/// What happened in a folder since it was last drained.
#[derive(Debug, Default)]
struct News {
    /// Names, and for a renamed file the name it had there.
    names: Vec<(String, Option<String>)>,
    has_ended: bool,
}

struct Watch(Arc<Mutex<News>>);

impl Watches {
    /// Watches `folder` from now on.
    pub(super) fn start(&mut self, folder: &Path) -> Box<dyn FolderWatch> {
        let news = Arc::default();
        self.all.retain(|(_, watch)| watch.strong_count() > 0);
        self.all.push((folder.to_owned(), Arc::downgrade(&news)));
        Box::new(Watch(news))
    }

    /// Something was done to `path`, which may have been `from`.
    pub(super) fn tell(&self, path: &Path, from: Option<&Path>) {
        let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let (Some(folder), Some(name)) = (path.parent(), name_of(path)) else { return };
        for news in self.all.iter().filter(|(watched, _)| watched == folder).filter_map(|(_, watch)| watch.upgrade()) {
            let from = from.filter(|from| from.parent() == Some(folder)).and_then(name_of);
            news.lock().unwrap_or_else(PoisonError::into_inner).names.push((name.clone(), from));
        }
    }

    /// The disk is gone.
    pub(super) fn end(&self) {
        for news in self.all.iter().filter_map(|(_, watch)| watch.upgrade()) {
            news.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        }
    }
}

impl FolderWatch for Watch {
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> Drained {
        let mut news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, from) in news.names.drain(..) {
            each(&name, from.as_deref());
        }
        if news.has_ended { Drained::Ended } else { Drained::All }
    }
}
