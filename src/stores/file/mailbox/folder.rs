//! The folder of the inboxes: paths, the lock, and lists of files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::ports::{IoAction, StoreResult};
use crate::stores::file::{Durability, failed, if_found};
use crate::stores::fs::{FileStamp, FileSystem, locked};

use super::recipients::Recipients;
use super::taken_files::parse_name;

/// The folder of the inboxes.
pub(super) struct InboxFolder {
    pub files: Arc<dyn FileSystem>,
    pub durability: Durability,
    pub path: PathBuf,
    /// The folder of the inboxes that were taken.
    pub taken: PathBuf,
    pub recipients: Recipients,
    lock: PathBuf,
    is_prepared: OnceLock<()>,
}

impl InboxFolder {
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability, path: PathBuf) -> Self {
        Self {
            recipients: Recipients::new(&path),
            taken: path.join(".taken"),
            lock: path.join(".lock"),
            is_prepared: OnceLock::new(),
            files,
            durability,
            path,
        }
    }

    /// Returns the file of an inbox.
    pub fn inbox(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.jsonl"))
    }

    /// Creates the folders, and creates them again if they were removed.
    pub fn prepare(&self) -> StoreResult<()> {
        let is_missing = self.stamp(&self.taken)?.is_none();
        if self.is_prepared.get().is_some() && !is_missing {
            return Ok(());
        }
        self.files.create_folder(&self.taken).map_err(failed("create", &self.taken))?;
        if is_missing && self.durability == Durability::Power {
            // The inbox folder, the team folder, the workspace: a message is only as durable as its path.
            for folder in self.taken.ancestors().skip(1).take(3) {
                self.files.sync_folder(folder).map_err(failed(IoAction::Sync, folder))?;
            }
        }
        let was_prepared = self.is_prepared.set(()).is_err();
        if was_prepared && is_missing {
            self.recipients.restore(&*self.files)?;
        }
        Ok(())
    }

    pub fn locked<R>(&self, critical: impl FnOnce() -> StoreResult<R>) -> StoreResult<R> {
        self.prepare()?;
        locked(&*self.files, &self.lock, critical).map_err(failed(IoAction::Lock, &self.lock))?
    }

    pub fn stamp(&self, path: &Path) -> StoreResult<Option<FileStamp>> {
        if_found("inspect", path, self.files.stamp(path))
    }

    pub fn list(&self, folder: &Path) -> StoreResult<Vec<String>> {
        Ok(if_found("list", folder, self.files.list(folder))?.unwrap_or_default())
    }

    /// The taken files of `name`, in the order they were taken.
    pub fn taken_files_of(&self, name: &str) -> StoreResult<Vec<(u64, String)>> {
        let mut taken: Vec<(u64, String)> = self
            .list(&self.taken)?
            .into_iter()
            .filter_map(|file| {
                let (owner, number) = parse_name(&file)?;
                if owner == name { Some((number, file)) } else { None }
            })
            .collect();
        taken.sort_unstable();
        Ok(taken)
    }
}
