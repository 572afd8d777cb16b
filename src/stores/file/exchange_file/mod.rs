//! A file that other programs also write, without Brigade's locks: the shared state, the roster. Its format belongs to the caller.
//!
//! Other writers either rename a new file into place, or truncate the existing file and write into it. No change is lost:
//!
//! 1. A merge reads the file and writes a new version beside it.
//! 2. An atomic exchange puts the new version in place and displaces the current one.
//! 3. If the displaced version is not the one that was read, another program wrote in between. Its change is merged next.
//! 4. A displaced file is kept for a second, because a writer may have opened it before the exchange and may still write into it.
//!
//! The last change by file time wins. Brigade's processes exclude each other with a lock, and never wait for other writers while
//! they hold it.

mod cached_read;
mod displaced;
mod quarantine;
mod retry;
mod spare_inodes;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::atomic_write::sweep_temporaries;
use super::stable_value::StableValue;
use super::{Durability, failed};
use crate::ports::{IoAction, StoreResult};
use crate::stores::fs::{FileStamp, FileSystem, locked};
use displaced::{DisplacedName, FileContent, fingerprint};
pub use quarantine::QUARANTINE_SUFFIX;
pub use retry::{merge_with_retry, read_or_repair};
use spare_inodes::SpareInodes;

/// The time during which unchanged invalid bytes count as a write in progress, and a displaced file is kept.
pub const SETTLE_TIME: Duration = Duration::from_secs(1);
/// The largest file that is read, in bytes. A larger one is invalid.
pub const EXCHANGE_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The most outside changes that one merge includes. After them, the merge ends, because another program writes without pause.
const MERGE_ROUNDS_MAX: usize = 64;

/// The content that a merge begins with.
#[derive(Debug, Clone, Copy)]
pub enum CurrentContent<'a> {
    /// There is no file.
    Missing,
    /// The file was invalid for [`SETTLE_TIME`]. It is kept under another name.
    Invalid {
        /// Its bytes, unless there are more than [`EXCHANGE_FILE_BYTES_MAX`].
        bytes: Option<&'a [u8]>,
        /// The name of the copy, in the file's folder.
        copy: &'a str,
    },
    /// The latest version, from any writer.
    Valid(&'a [u8]),
}

/// The result of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeResult {
    /// The file has these bytes.
    Content(Vec<u8>),
    /// There is no file, and the merge function created none.
    Missing,
    /// Another program is writing the file. Try again shortly.
    Unsettled,
}

/// Returns the new content, or `None` to keep the current one. It is called again if another program changed the file in between.
pub type MergeFn<'a> = &'a mut dyn FnMut(CurrentContent<'_>) -> Option<String>;

/// A file that other programs also write.
pub struct ExchangeFile {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    folder: PathBuf,
    name: String,
    lock: PathBuf,
    is_valid: fn(&[u8]) -> bool,
    /// Fingerprints of valid versions, newest first, so that a version is parsed only once.
    valid_fingerprints: Mutex<VecDeque<u64>>,
    spare_inodes: Option<SpareInodes>,
    /// True for a process that only reads: it repairs nothing.
    is_read_only: bool,
    state: Mutex<MergeState>,
}

struct MergeState {
    /// The folder for displaced files: the file's own folder if the usual one is on another disk.
    displaced_folder: PathBuf,
    is_swept: bool,
    /// The fingerprint of the version that this process wrote or merged. Any other version is an outside change.
    known_fingerprint: Option<u64>,
    /// The time of the latest outside change in the known version, in nanoseconds since 1970.
    change_ns: i128,
    /// The file that the last exchange displaced, until it is checked.
    last_displaced_name: Option<String>,
    /// The fingerprint of the file's bytes if they are invalid.
    invalid_content: Option<StableValue<u64>>,
    /// The stamp of each displaced file.
    displaced_stamps: HashMap<String, StableValue<FileStamp>>,
}

/// A displaced version that is not merged.
struct UnmergedVersion {
    file_name: String,
    displaced: DisplacedName,
    content: FileContent,
}

struct LatestVersion {
    content: FileContent,
    change_ns: i128,
}

impl ExchangeFile {
    /// The exchange file `name` in `folder`. Displaced files and the lock are kept in `team_folder`. `is_valid` returns true
    /// for valid content.
    pub fn new(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        folder: &Path,
        name: &str,
        team_folder: &Path,
        is_valid: fn(&[u8]) -> bool,
    ) -> Self {
        let state = MergeState {
            displaced_folder: team_folder.join("aside"),
            is_swept: false,
            known_fingerprint: None,
            change_ns: 0,
            last_displaced_name: None,
            invalid_content: None,
            displaced_stamps: HashMap::new(),
        };
        Self {
            files,
            durability,
            folder: folder.to_owned(),
            name: name.to_owned(),
            lock: team_folder.join(format!(".{name}.lock")),
            is_valid,
            valid_fingerprints: Mutex::default(),
            spare_inodes: None,
            is_read_only: false,
            state: Mutex::new(state),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// The file's stamp; `None` if there is no file.
    pub fn stamp(&self) -> Option<FileStamp> {
        self.files.stamp(&self.path()).ok()
    }

    /// The file's stamp, or `None` during a merge of this process. Waits neither for the merge nor for the disk.
    pub fn cached_stamp(&self) -> Option<FileStamp> {
        self.state.try_lock().and_then(|_state| self.stamp())
    }

    /// Returns true if displaced files must be checked again, and always during a merge. Does not block.
    pub fn has_displaced(&self) -> bool {
        self.state.try_lock().is_none_or(|state| !state.displaced_stamps.is_empty())
    }

    /// The same file for a process that only reads.
    #[must_use]
    pub fn read_only(self, is_read_only: bool) -> Self {
        Self { is_read_only, ..self }
    }

    /// Returns true if this process only reads.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Reads the file. Waits for a merge of this process, so that no half-finished merge is read.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn read(&self) -> StoreResult<MergeResult> {
        let _state = self.state.lock();
        Ok(match self.content(&self.path())? {
            None => MergeResult::Missing,
            Some(content) if content.is_valid => MergeResult::Content(content.bytes),
            Some(_) => MergeResult::Unsettled,
        })
    }

    /// Reads the bytes of an invalid file; `None` if there are more than [`EXCHANGE_FILE_BYTES_MAX`], or no file.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn read_invalid(&self) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.content(&self.path())?.and_then(|content| content.known_bytes().map(<[u8]>::to_vec)))
    }

    /// Replaces the latest version by the content that `update` returns for it, again after each outside change in between.
    ///
    /// With `own_change_ns` the new content counts as a change of that time, in nanoseconds since 1970. An earlier change by
    /// another program that is found later is then ignored.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]. The file has the old or the new version then.
    pub fn merge(&self, own_change_ns: Option<i128>, update: MergeFn<'_>) -> StoreResult<MergeResult> {
        // The lock is in the team folder, like the displaced files in most cases.
        let team_folder = self.lock.parent().unwrap_or(&self.folder);
        self.files.create_folder(team_folder).map_err(failed("create", team_folder))?;
        let outcome = locked(&*self.files, &self.lock, || {
            // Taken after the file lock, so that a reader never waits for that lock.
            let mut state = self.state.lock();
            self.files.create_folder(&state.displaced_folder).map_err(failed("create", &state.displaced_folder))?;
            self.sweep(&mut state)?;
            for _ in 0..MERGE_ROUNDS_MAX {
                if let Some(merged) = self.try_merge(&mut state, own_change_ns, update)? {
                    self.remove_settled(&mut state)?;
                    return Ok(merged);
                }
            }
            self.remove_settled(&mut state)?;
            Ok(MergeResult::Unsettled)
        });
        outcome.map_err(failed(IoAction::Lock, &self.lock))?
    }

    /// Reads the file, and exchanges it at most once. Returns `None` if it must be read again.
    fn try_merge(
        &self,
        state: &mut MergeState,
        own_change_ns: Option<i128>,
        update: MergeFn<'_>,
    ) -> StoreResult<Option<MergeResult>> {
        let current = self.content(&self.path())?;
        if let Some(content) = current.as_ref().filter(|content| !content.is_valid) {
            return self.repair(state, content, update);
        }
        state.invalid_content = None;
        let unmerged = self.unmerged_versions(state)?;
        let current_fingerprint = current.as_ref().map(|content| content.fingerprint);
        let latest = self.latest_version(state, current, &unmerged)?;
        let new_text = match &latest {
            Some(version) => update(CurrentContent::Valid(&version.content.bytes)),
            None => update(CurrentContent::Missing),
        };
        let text = match (&latest, new_text) {
            (None, None) => return Ok(Some(MergeResult::Missing)),
            (_, Some(text)) => text.into_bytes(),
            (Some(version), None) => version.content.bytes.clone(),
        };
        let change_ns = latest.map_or(0, |version| version.change_ns).max(own_change_ns.unwrap_or(0));
        if current_fingerprint == Some(fingerprint(&text)) {
            state.known_fingerprint = current_fingerprint;
            state.change_ns = change_ns;
            self.mark_merged(state, &unmerged)?;
            return Ok(Some(MergeResult::Content(text)));
        }
        if self.swap(state, current_fingerprint, &text, change_ns)? {
            self.mark_merged(state, &unmerged)?;
        }
        Ok(None)
    }

    /// Returns the latest of the current version and the unmerged ones.
    ///
    /// The current version is later than the displaced one, and that one is later than the merged one. File times do not decide
    /// this, because a file system's clock may stand still for some milliseconds. They only decide for late writes into older files.
    fn latest_version(
        &self,
        state: &mut MergeState,
        current: Option<FileContent>,
        unmerged: &[UnmergedVersion],
    ) -> StoreResult<Option<LatestVersion>> {
        let last_displaced = state.last_displaced_name.take();
        let is_ours = current.as_ref().is_some_and(|content| Some(content.fingerprint) == state.known_fingerprint);
        let mut latest = match current {
            Some(content) => {
                let change_ns = self.change_time(state, &content)?;
                Some(LatestVersion { content, change_ns })
            }
            None => None,
        };
        for UnmergedVersion { file_name, content, .. } in unmerged {
            let change_ns = content.stamp.modified_ns;
            let is_later = latest.as_ref().is_none_or(|version| {
                change_ns > version.change_ns
                    || (is_ours && (change_ns == version.change_ns || last_displaced.as_ref() == Some(file_name)))
            });
            if is_later {
                latest = Some(LatestVersion { content: content.clone(), change_ns: change_ns.max(state.change_ns) });
            }
        }
        Ok(latest)
    }

    /// The time of the last outside change in this version. For a version that Brigade wrote, it is in a displaced file's name.
    fn change_time(&self, state: &MergeState, content: &FileContent) -> StoreResult<i128> {
        if state.known_fingerprint == Some(content.fingerprint) {
            return Ok(state.change_ns);
        }
        let by_us =
            self.displaced_files(state)?.into_iter().filter(|(_, entry)| entry.new_fingerprint == content.fingerprint);
        let recorded = by_us.max_by_key(|(_, entry)| entry.number).map(|(_, entry)| entry.change_ns);
        Ok(recorded.unwrap_or_else(|| content.stamp.modified_ns.max(state.change_ns)))
    }

    /// Replaces the version with the fingerprint `from` by `text`. Returns false if the file has another version.
    fn swap(&self, state: &mut MergeState, from: Option<u64>, text: &[u8], change_ns: i128) -> StoreResult<bool> {
        let number = self.displaced_files(state)?.iter().map(|(_, entry)| entry.number).max().unwrap_or(0) + 1;
        let entry = DisplacedName {
            number,
            change_ns,
            merged_fingerprint: from.unwrap_or(0),
            new_fingerprint: fingerprint(text),
        };
        self.remember_valid(entry.new_fingerprint);
        let name = entry.file_name(&self.name);
        let path = state.displaced_folder.join(&name);
        let staged = self.stage(&state.displaced_folder, &name, text)?;
        if self.durability == Durability::Power {
            staged.sync()?;
        }
        staged.commit()?;
        let outcome = match from {
            Some(_) => self.files.exchange(&path, &self.path()),
            None => self.files.rename_new(&path, &self.path()),
        };
        self.finish_swap(state, outcome, from, &path, &entry)
    }

    fn finish_swap(
        &self,
        state: &mut MergeState,
        outcome: io::Result<()>,
        from: Option<u64>,
        path: &Path,
        entry: &DisplacedName,
    ) -> StoreResult<bool> {
        let outcome = match outcome {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.replace_unless_changed(from, path),
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                state.displaced_folder.clone_from(&self.folder);
                Ok(false)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => Ok(false),
            other => other.map(|()| true),
        };
        if !matches!(outcome, Ok(true)) {
            // If this fails, the next merge removes it: its name shows that it was never exchanged.
            let _ = self.files.remove(path);
        }
        let is_swapped = outcome.map_err(failed("replace", &self.path()))?;
        if is_swapped {
            state.known_fingerprint = Some(entry.new_fingerprint);
            state.change_ns = entry.change_ns;
            state.last_displaced_name = Some(entry.file_name(&self.name));
        }
        Ok(is_swapped)
    }

    /// Replaces the file on systems without exchange: reads again and renames. Loses a change within the microseconds in between.
    fn replace_unless_changed(&self, from: Option<u64>, path: &Path) -> io::Result<bool> {
        let current = self.read_content(&self.path())?.map(|content| content.fingerprint);
        if current != from {
            return Ok(false);
        }
        self.files.rename(path, &self.path())?;
        Ok(true)
    }

    /// Leaves an invalid file alone for [`SETTLE_TIME`]. Then quarantines it (as `<name>.malformed-<n>`) and replaces it.
    fn repair(
        &self,
        state: &mut MergeState,
        file: &FileContent,
        update: MergeFn<'_>,
    ) -> StoreResult<Option<MergeResult>> {
        let invalid = state.invalid_content.get_or_insert_with(|| StableValue::new(file.fingerprint));
        if invalid.observe(file.fingerprint) < SETTLE_TIME {
            return Ok(Some(MergeResult::Unsettled));
        }
        let copy = self.next_quarantine_name()?;
        let Some(text) = update(CurrentContent::Invalid { bytes: file.known_bytes(), copy: &copy }) else {
            return Ok(Some(MergeResult::Unsettled));
        };
        let change_ns = file.stamp.modified_ns;
        if self.swap(state, Some(file.fingerprint), text.as_bytes(), change_ns)? {
            state.invalid_content = None;
            for (name, entry) in self.displaced_files(state)? {
                let path = state.displaced_folder.join(name);
                // A writer may have repaired it at the last moment; then it is a change to merge.
                if entry.merged_fingerprint == file.fingerprint
                    && self.content(&path)?.is_some_and(|late| late.fingerprint == file.fingerprint)
                {
                    self.quarantine(&path)?;
                }
            }
        }
        Ok(None)
    }

    /// The displaced files with a valid version that is not merged, in the order of their exchanges.
    fn unmerged_versions(&self, state: &MergeState) -> StoreResult<Vec<UnmergedVersion>> {
        let is_unmerged = |entry: &DisplacedName, content: &FileContent| {
            let known = [entry.merged_fingerprint, entry.new_fingerprint];
            content.is_valid && !known.contains(&content.fingerprint)
        };
        let mut unmerged = Vec::new();
        for (name, entry) in self.displaced_files(state)? {
            if let Some(content) = self.content(&state.displaced_folder.join(&name))?
                && is_unmerged(&entry, &content)
            {
                unmerged.push(UnmergedVersion { file_name: name, displaced: entry, content });
            }
        }
        unmerged.sort_by_key(|version| version.displaced.number);
        Ok(unmerged)
    }

    /// Renames displaced files to record that their versions are merged.
    fn mark_merged(&self, state: &MergeState, unmerged: &[UnmergedVersion]) -> StoreResult<()> {
        for UnmergedVersion { file_name, displaced, content } in unmerged {
            let merged = DisplacedName { merged_fingerprint: content.fingerprint, ..*displaced };
            let from = state.displaced_folder.join(file_name);
            let to = state.displaced_folder.join(merged.file_name(&self.name));
            self.files.rename(&from, &to).map_err(failed("rename", &from))?;
        }
        Ok(())
    }

    /// Removes the displaced files that are merged and unchanged for [`SETTLE_TIME`].
    fn remove_settled(&self, state: &mut MergeState) -> StoreResult<()> {
        let displaced = self.displaced_files(state)?;
        state.displaced_stamps.retain(|name, _| displaced.iter().any(|(other, _)| other == name));
        for (name, entry) in displaced {
            let path = state.displaced_folder.join(&name);
            let Some(content) = self.content(&path)? else {
                continue;
            };
            let was_never_exchanged =
                content.fingerprint == entry.new_fingerprint && content.fingerprint != entry.merged_fingerprint;
            let stamp = state.displaced_stamps.entry(name.clone()).or_insert_with(|| StableValue::new(content.stamp));
            let is_settled = stamp.observe(content.stamp) >= SETTLE_TIME;
            if was_never_exchanged || (is_settled && content.fingerprint == entry.merged_fingerprint) {
                self.recycle(&path)?;
                state.displaced_stamps.remove(&name);
            } else if is_settled && !content.is_valid {
                self.quarantine(&path)?;
                state.displaced_stamps.remove(&name);
            }
        }
        Ok(())
    }

    /// Removes the temporaries of killed processes and fills the spare inodes, once.
    fn sweep(&self, state: &mut MergeState) -> StoreResult<()> {
        if !state.is_swept {
            sweep_temporaries(&*self.files, &state.displaced_folder)?;
            self.spare_inodes.as_ref().map_or(Ok(()), |spares| spares.fill(&*self.files))?;
            state.is_swept = true;
        }
        Ok(())
    }
}
