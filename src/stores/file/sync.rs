//! Makes the writes of a call durable, after it has released its store's lock.
//!
//! Each caller syncs on its own thread. The system lets concurrent syncs share one journal write or disk flush.

use std::io;
use std::path::PathBuf;

use crate::ports::{IoAction, StoreResult};
use crate::stores::fs::{FileKind, FileSystem};

use super::{Durability, failed};

/// The files and folders that must be durable before a call may return.
#[derive(Debug, Default, Clone)]
pub struct SyncRequest {
    /// Files whose bytes must be durable. A missing file is skipped: a later call replaced or removed it, and syncs for itself. So is
    /// anything else in its place, which another program put there.
    pub files: Vec<PathBuf>,
    /// Folders whose entries must be durable.
    pub folders: Vec<PathBuf>,
}

impl SyncRequest {
    /// Makes all of it durable; with [`Durability::Process`] does nothing. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`] if a file or folder cannot be synced.
    pub fn sync(&self, files: &dyn FileSystem, durability: Durability) -> StoreResult<()> {
        if durability == Durability::Process {
            return Ok(());
        }
        // Files come first: on a journaling disk their sync includes the folder's entries, and the folder's own sync is then cheap.
        for path in &self.files {
            match files.sync_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) if files.stamp(path).is_ok_and(|stamp| stamp.kind != FileKind::File) => {}
                synced => synced.map_err(failed(IoAction::Sync, path))?,
            }
        }
        for path in &self.folders {
            files.sync_folder(path).map_err(failed(IoAction::Sync, path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    #[test]
    fn sync_skips_missing_files_and_names_missing_folder() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let files = RealFileSystem::default();
        let not_a_file = folder.path().join("task_1.json");
        std::fs::create_dir(&not_a_file).unwrap();
        let request = SyncRequest { files: vec![missing.clone(), not_a_file], folders: vec![folder.path().to_owned()] };
        request.sync(&files, Durability::Power).unwrap();
        let request = SyncRequest { files: vec![], folders: vec![missing] };
        let error = request.sync(&files, Durability::Power).unwrap_err().to_string();
        assert!(error.starts_with("cannot sync ") && error.contains("missing"), "{error}");
        request.sync(&files, Durability::Process).unwrap();
    }
}
