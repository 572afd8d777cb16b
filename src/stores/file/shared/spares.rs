//! Files that wait to be the next version of a shared file, so that the same few go in and out by turns.
//!
//! A command sees control files through mounts that were made when it began, and a mount stays with the file it was made over,
//! whatever that is called later. So a version that goes in while a command runs is read-only for it only if its file was
//! there before: one of these. They are kept apart from what came out, which somebody may still write into.

use std::path::{Path, PathBuf};

use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::FileSystem;

/// Enough for the swaps of a second, which is how long one that came out is watched: four reports, and a handful of clicks.
const SPARES_MAX: usize = 16;

/// A folder of spare files. Callers hold the shared file's lock.
pub(super) struct Spares {
    folder: PathBuf,
}

impl Spares {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Makes as many as there are to be.
    pub fn fill(&self, files: &dyn FileSystem) -> StoreResult<()> {
        files.create_folder(&self.folder).map_err(failed("make", &self.folder))?;
        for _ in self.names(files).len()..SPARES_MAX {
            let path = self.new_path();
            files.write(&path, &[]).map_err(failed("write", &path))?;
        }
        Ok(())
    }

    /// One to use, if there is any.
    pub fn any(&self, files: &dyn FileSystem) -> Option<PathBuf> {
        self.names(files).first().map(|name| self.folder.join(name))
    }

    /// Takes in a file that is not needed any more; says whether it did.
    pub fn take_in(&self, files: &dyn FileSystem, path: &Path) -> bool {
        self.names(files).len() < SPARES_MAX && files.rename(path, &self.new_path()).is_ok()
    }

    fn names(&self, files: &dyn FileSystem) -> Vec<String> {
        files.list(&self.folder).unwrap_or_default()
    }

    fn new_path(&self) -> PathBuf {
        self.folder.join(format!("{:016x}", fastrand::u64(..)))
    }
}
