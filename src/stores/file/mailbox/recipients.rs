//! The names with an inbox: `lead`, `human`, and those that the team opened one for.
//!
//! The list has its own file (`.open`, one name a line). The inbox files do not show who has an inbox: other programs create one
//! for any name, and taking mail moves it away.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::team::name::{HUMAN, LEAD, Name};
use crate::ports::{StoreError, StoreResult};
use crate::stores::file::atomic_write::StagedFile;
use crate::stores::file::failed;
use crate::stores::fs::{FileStamp, FileSystem};

/// The file name of the list.
pub(super) const OPEN_FILE: &str = ".open";

/// The largest list that is read, in bytes: some hundred thousand names.
const OPEN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The names that accept mail.
pub(super) struct Recipients {
    folder: PathBuf,
    state: Mutex<RecipientList>,
}

#[derive(Default)]
struct RecipientList {
    stamp: Option<FileStamp>,
    names: Vec<Name>,
    /// The names by their lower-case spelling.
    spellings: Arc<HashMap<String, String>>,
    /// The names that this process opened inboxes for. The first time, they replace the list of an earlier run.
    declared: Option<Vec<Name>>,
}

impl Recipients {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default() }
    }

    /// Returns the name in its inbox's spelling.
    pub fn find(&self, files: &dyn FileSystem, name: &str) -> StoreResult<String> {
        match self.spellings(files)?.get(&name.to_ascii_lowercase()) {
            Some(spelling) => Ok(spelling.clone()),
            None => Err(StoreError::UnknownRecipient {
                name: name.to_owned(),
                recipients: [LEAD, HUMAN]
                    .into_iter()
                    .chain(self.state.lock().names.iter().map(Name::as_str))
                    .map(str::to_owned)
                    .collect(),
            }),
        }
    }

    /// All names in their inboxes' spelling, by their lower-case spelling.
    pub fn spellings(&self, files: &dyn FileSystem) -> StoreResult<Arc<HashMap<String, String>>> {
        let mut state = self.state.lock();
        self.refresh(files, &mut state)?;
        Ok(Arc::clone(&state.spellings))
    }

    fn refresh(&self, files: &dyn FileSystem, state: &mut RecipientList) -> StoreResult<()> {
        let path = self.folder.join(OPEN_FILE);
        let stamp = files.stamp(&path).ok();
        if stamp == state.stamp && !state.spellings.is_empty() {
            return Ok(());
        }
        (state.names, state.stamp) = match files.read(&path, 0, OPEN_BYTES_MAX) {
            Ok((bytes, stamp)) => {
                let names = String::from_utf8_lossy(&bytes).lines().filter_map(|line| Name::new(line).ok()).collect();
                (names, Some(stamp))
            }
            // No inbox was opened yet, or the list was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (state.declared.clone().unwrap_or_default(), None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let all = [LEAD, HUMAN].into_iter().chain(state.names.iter().map(Name::as_str));
        state.spellings = Arc::new(all.map(|name| (name.to_ascii_lowercase(), name.to_owned())).collect());
        Ok(())
    }

    /// Opens inboxes. The first call replaces those of an earlier run. Must be called under the mailbox's lock.
    pub fn open(&self, files: &dyn FileSystem, names: &[Name]) -> StoreResult<()> {
        let mut state = self.state.lock();
        self.refresh(files, &mut state)?;
        let open = if state.declared.is_some() { state.names.clone() } else { Vec::new() };
        let open = with_names(open, names);
        if open != state.names {
            self.write(files, &open)?;
        }
        state.declared = Some(open);
        Ok(())
    }

    /// Opens inboxes next to those that are open. Must be called under the mailbox's lock.
    pub fn add(&self, files: &dyn FileSystem, names: &[Name]) -> StoreResult<()> {
        let mut state = self.state.lock();
        self.refresh(files, &mut state)?;
        let open = with_names(state.names.clone(), names);
        if open != state.names {
            self.write(files, &open)?;
        }
        if let Some(declared) = state.declared.take() {
            state.declared = Some(with_names(declared, names));
        }
        Ok(())
    }

    /// Writes a removed list again, so that other processes know the recipients.
    pub fn restore(&self, files: &dyn FileSystem) -> StoreResult<()> {
        let declared = self.state.lock().declared.clone();
        declared.map_or(Ok(()), |names| self.write(files, &names))
    }

    fn write(&self, files: &dyn FileSystem, names: &[Name]) -> StoreResult<()> {
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        let staged = StagedFile::write(files, &self.folder, OPEN_FILE, text.as_bytes())?;
        staged.sync()?;
        staged.commit()
    }
}

/// Adds the names that the list lacks.
fn with_names(mut list: Vec<Name>, names: &[Name]) -> Vec<Name> {
    for name in names {
        if !list.iter().any(|listed| listed.is_same(name.as_str())) {
            list.push(name.clone());
        }
    }
    list
}
