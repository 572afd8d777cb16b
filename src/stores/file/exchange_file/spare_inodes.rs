//! A fixed set of files that an exchange file rotates through.
//!
//! A command sees control files through mounts that are made when it begins. A mount stays with its inode, also after a rename. A
//! new version that is put in place during a command is therefore read-only for it only if its inode existed before. Spare files
//! are separate from displaced files, because another program may still write into those.

use std::path::{Path, PathBuf};

use super::ExchangeFile;
use crate::ports::StoreResult;
use crate::stores::file::atomic_write::StagedFile;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::{FileKind, FileSystem};

/// Enough for the exchanges of one second, the time that a displaced file is watched: four reports and some clicks.
const SPARES_MAX: usize = 16;

/// A folder of spare files. Callers hold the exchange file's lock.
pub(super) struct SpareInodes {
    folder: PathBuf,
}

impl SpareInodes {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Creates files up to [`SPARES_MAX`].
    pub fn fill(&self, files: &dyn FileSystem) -> StoreResult<()> {
        files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
        for _ in self.names(files).len()..SPARES_MAX {
            let path = self.new_path();
            files.write(&path, &[]).map_err(failed("write", &path))?;
        }
        Ok(())
    }

    pub fn any(&self, files: &dyn FileSystem) -> Option<PathBuf> {
        self.names(files).first().map(|name| self.folder.join(name))
    }

    /// Moves a file that is no longer used into the set. Returns false if the set is full or the rename fails.
    pub fn add(&self, files: &dyn FileSystem, path: &Path) -> bool {
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

impl ExchangeFile {
    /// Returns the exchange file with spare files in `folder`. A program that opens each of them knows all future inodes.
    #[must_use]
    pub fn with_spare_inodes(self, folder: &Path) -> Self {
        Self { spare_inodes: Some(SpareInodes::new(folder.to_owned())), ..self }
    }

    /// Writes the next version, into a spare file if there is one.
    pub(super) fn stage(&self, folder: &Path, name: &str, text: &[u8]) -> StoreResult<StagedFile<'_>> {
        let spare = self.spare_inodes.as_ref().and_then(|spares| spares.any(&*self.files));
        let staged =
            spare.map(|spare| StagedFile::write_into_spare(&*self.files, &spare, folder, name, text)).transpose()?;
        match staged.flatten() {
            Some(staged) => Ok(staged),
            None => StagedFile::write(&*self.files, folder, name, text),
        }
    }

    /// Keeps a file as a spare, or removes it.
    pub(super) fn recycle(&self, path: &Path) -> StoreResult<()> {
        let is_spare = self.spare_inodes.as_ref().is_some_and(|spares| {
            // The exchange must be durable first: after a power cut the file must not be in place again with other bytes.
            let is_durable = self.durability == Durability::Process || self.files.sync_folder(&self.folder).is_ok();
            is_durable && spares.add(&*self.files, path)
        });
        if is_spare { Ok(()) } else { self.files.remove(path).map_err(failed("remove", path)) }
    }
}
