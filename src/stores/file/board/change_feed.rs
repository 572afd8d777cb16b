//! The names that changed in the board's folder, by any program: from a watch, if the file system has one.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::stores::fs::{FileSystem, FolderWatch, WatchEvents};

use super::paths::{BoardFileKind, kind_of};

/// The changes of the board's folder since they were last checked.
pub(super) struct ChangeFeed {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    watch: Option<Box<dyn FolderWatch>>,
    /// The inode of the watched folder.
    watched_inode: Option<u64>,
    /// True if all files must be checked, even with a watch.
    needs_full_scan: bool,
    /// The names to check.
    changed: BTreeSet<String>,
    /// Temporaries that this board renames. The watch reports these renames, and they need no check.
    own_renames: HashSet<String>,
}

impl ChangeFeed {
    pub(super) fn new(files: Arc<dyn FileSystem>, folder: &Path) -> Self {
        Self {
            files,
            folder: folder.to_owned(),
            watch: None,
            watched_inode: None,
            needs_full_scan: true,
            changed: BTreeSet::new(),
            own_renames: HashSet::new(),
        }
    }

    /// Returns true if files may have to be read. It is exact only with a watch.
    pub(super) fn has_changes(&mut self) -> bool {
        self.drain();
        self.needs_scan() || !self.changed.is_empty()
    }

    /// Returns true if all files must be checked.
    pub(super) fn needs_scan(&self) -> bool {
        self.needs_full_scan || self.watch.is_none()
    }

    /// Returns true if it is worth to read changes before the lock is taken. Without a watch, the read under the lock checks all files
    /// anyway, so only the first scan is.
    pub(super) fn is_prefetch_useful(&self) -> bool {
        self.needs_full_scan || self.watch.is_some()
    }

    /// Starts the watch, if there is none. It must start before a scan, so that a change in between is not missed.
    pub(super) fn start(&mut self) {
        if self.watch.is_none() {
            self.watch = self.files.watch(&self.folder);
            self.watched_inode = self.inode();
        }
    }

    /// Records that all files were checked.
    pub(super) fn finish_scan(&mut self) {
        self.needs_full_scan = false;
    }

    pub(super) fn first_changed(&self) -> Option<String> {
        self.changed.first().cloned()
    }

    /// Records that a changed name was checked.
    pub(super) fn finish(&mut self, name: &str) {
        self.changed.remove(name);
    }

    fn inode(&self) -> Option<u64> {
        self.files.stamp(&self.folder).ok().map(|stamp| stamp.inode)
    }

    /// Takes the events of all changes that were made before the call.
    pub(super) fn drain(&mut self) {
        // A removed folder that is open or mounted stays watched, and a new folder in its place is not.
        if self.watch.is_some() && self.inode() != self.watched_inode {
            self.watch = None;
            self.needs_full_scan = true;
            self.own_renames.clear();
        }
        let Some(watch) = &mut self.watch else {
            return;
        };
        let (changed, own_renames) = (&mut self.changed, &mut self.own_renames);
        let drained = watch.drain(&mut |name, from| {
            let is_own = from.is_some_and(|from| own_renames.remove(from));
            if !is_own && kind_of(name) != BoardFileKind::Other && !changed.contains(name) {
                changed.insert(name.to_owned());
            }
        });
        if drained != WatchEvents::All {
            self.needs_full_scan = true;
            self.own_renames.clear();
        }
        if drained == WatchEvents::Ended {
            self.watch = None;
        }
    }

    /// Announces that this board is about to rename this temporary. The rename then needs no check.
    pub(super) fn expect_rename(&mut self, temporary: &str) {
        if self.watch.is_some() {
            self.own_renames.insert(temporary.to_owned());
        }
    }

    /// Cancels [`Self::expect_rename`] after a failed rename.
    pub(super) fn cancel_expected_rename(&mut self, temporary: &str) {
        self.own_renames.remove(temporary);
    }
}
