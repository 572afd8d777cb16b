//! Files that wait to be the next version of a shared file, so that the same few go in and out by turns.
//!
//! A command sees control files through mounts that were made when it began, and a mount stays with the file it was made over,
//! whatever that is called later. So a version that goes in while a command runs is read-only for it only if its file was
//! there before: one of these. They are kept apart from what came out, which somebody may still write into.

use std::path::{Path, PathBuf};

use super::SharedFile;
use crate::ports::StoreResult;
use crate::stores::file::replace::Staged;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::{FileKind, FileSystem};

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
        let is_file =
            |name: &String| files.stamp(&self.folder.join(name)).is_ok_and(|stamp| stamp.kind == FileKind::File);
        files.list(&self.folder).unwrap_or_default().into_iter().filter(is_file).collect()
    }

    fn new_path(&self) -> PathBuf {
        self.folder.join(format!("{:016x}", fastrand::u64(..)))
    }
}

impl SharedFile {
    /// The same, with the files of `folder` going in and out by turns, so that whoever looks at them one by one has seen them all.
    #[must_use]
    pub fn by_turns(self, folder: &Path) -> Self {
        Self { spares: Some(Spares::new(folder.to_owned())), ..self }
    }

    /// Writes the next version, into a spare file where there is one.
    pub(super) fn stage(&self, folder: &Path, name: &str, text: &[u8]) -> StoreResult<Staged<'_>> {
        let spare = self.spares.as_ref().and_then(|spares| spares.any(&*self.files));
        let staged = spare.map(|spare| Staged::write_over(&*self.files, &spare, folder, name, text)).transpose()?;
        match staged.flatten() {
            Some(staged) => Ok(staged),
            None => Staged::write(&*self.files, folder, name, text),
        }
    }

    /// Keeps a file as a spare, or removes it.
    pub(super) fn put_away(&self, path: &Path) -> StoreResult<()> {
        let is_spare = self.spares.as_ref().is_some_and(|spares| {
            // A power cut must not find it in the shared file's place again once something else is written into it.
            let is_out = self.durability == Durability::Process || self.files.sync_folder(&self.folder).is_ok();
            is_out && spares.take_in(&*self.files, path)
        });
        if is_spare { Ok(()) } else { self.files.remove(path).map_err(failed("remove", path)) }
    }
}
