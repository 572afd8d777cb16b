//! Who has an inbox: `lead`, `human`, and those the team opened one for. It knows nothing of messages.
//!
//! The list is a file of its own (`.open`, a name a line): that an inbox file exists says nothing, because other programs make
//! one for any name they write to, and taking mail moves it away.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::name::{HUMAN, LEAD, Name};
use crate::ports::{StoreError, StoreResult};
use crate::stores::file::failed;
use crate::stores::file::replace::Staged;
use crate::stores::fs::{FileSystem, Stamp};

const OPEN_FILE: &str = ".open";

/// The largest list that is read, in bytes: some hundred thousand names.
const OPEN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The names that can be written to.
pub(super) struct Recipients {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stamp: Option<Stamp>,
    names: Vec<Name>,
    /// The names by their spelling in small letters.
    spellings: Arc<HashMap<String, String>>,
    /// Whether this process has said who is in the team; what an earlier run said is void then.
    is_declared: bool,
}

impl Recipients {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default() }
    }

    /// The name as its inbox spells it.
    pub fn find(&self, files: &dyn FileSystem, name: &str) -> StoreResult<String> {
        match self.spellings(files)?.get(&name.to_ascii_lowercase()) {
            Some(open) => Ok(open.clone()),
            None => Err(StoreError::UnknownRecipient {
                name: name.to_owned(),
                known: [LEAD, HUMAN]
                    .into_iter()
                    .chain(self.state().names.iter().map(Name::as_str))
                    .map(str::to_owned)
                    .collect(),
            }),
        }
    }

    /// All names as their inboxes spell them, by their spelling in small letters.
    pub fn spellings(&self, files: &dyn FileSystem) -> StoreResult<Arc<HashMap<String, String>>> {
        let mut state = self.state();
        self.refresh(files, &mut state)?;
        Ok(Arc::clone(&state.spellings))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refresh(&self, files: &dyn FileSystem, state: &mut State) -> StoreResult<()> {
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
            // Whoever said who is in the team knows it without the file that somebody removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && state.is_declared => {
                (std::mem::take(&mut state.names), None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let all = [LEAD, HUMAN].into_iter().chain(state.names.iter().map(Name::as_str));
        state.spellings = Arc::new(all.map(|name| (name.to_ascii_lowercase(), name.to_owned())).collect());
        Ok(())
    }

    /// Opens inboxes; the first time in place of those of an earlier run. Call it under the mailbox's lock.
    pub fn open(&self, files: &dyn FileSystem, names: &[Name]) -> StoreResult<()> {
        let mut state = self.state();
        self.refresh(files, &mut state)?;
        let mut open = if state.is_declared { state.names.clone() } else { Vec::new() };
        for name in names {
            if !open.iter().any(|open| open.is_same(name.as_str())) {
                open.push(name.clone());
            }
        }
        if open != state.names || (state.stamp.is_none() && !open.is_empty()) {
            let text: String = open.iter().map(|name| format!("{name}\n")).collect();
            let staged = Staged::write(files, &self.folder, OPEN_FILE, text.as_bytes())?;
            staged.sync()?;
            staged.commit()?;
        }
        state.is_declared = true;
        Ok(())
    }
}
