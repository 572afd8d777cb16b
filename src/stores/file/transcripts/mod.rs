//! The transcripts: `.team/transcripts/<name>.jsonl`, one record a line. Turns and context windows are not known here.
//!
//! Appends make a transcript grow. Once the file is large, a compaction moves the records that it covers to `.archive/` and
//! leaves one record for them (`archive`). Only one process writes a transcript: the one that runs the teammate.

mod archive;
mod quarantine;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::name::Name;
use crate::domain::transcript::{Record, TranscriptEntry};
use crate::ports::{QuarantinedTranscript, StoreError, StoreResult, Transcripts};
use crate::stores::fs::FileSystem;

use super::append_file::{missing_bytes, unfinished_bytes};
use super::group_sync::{SyncQueue, SyncRequest};
use super::{Durability, blocking, failed};
use archive::Lines;

/// The longest record, in bytes of its line.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The largest transcript that is read, in bytes. Compactions keep transcripts near [`LIVE_BYTES`], which is far smaller.
pub const TRANSCRIPT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The size in bytes above which the next compaction archives the records that it covers.
pub const LIVE_BYTES: u64 = 4 * 1024 * 1024;

/// Transcripts in files.
pub struct FileTranscripts {
    inner: Arc<TranscriptsInner>,
}

struct TranscriptsInner {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    sync: SyncQueue,
    folder: PathBuf,
    live_bytes: u64,
    open: Mutex<HashMap<String, Arc<Mutex<OpenTranscript>>>>,
    /// If true, non-files in the place of transcripts are quarantined. False for read-only access.
    may_quarantine: bool,
    /// The entries quarantined since the last [`Transcripts::take_quarantined`].
    quarantined: Mutex<Vec<QuarantinedTranscript>>,
}

/// The attempts to create a missing folder for one append.
const FOLDER_ATTEMPTS_MAX: u32 = 5;

/// The cached facts about one transcript.
#[derive(Default)]
struct OpenTranscript {
    /// The length of the complete lines; `None` before the first read.
    valid_bytes: Option<u64>,
    /// True if an incomplete line may follow: the last append failed, or the previous process died.
    may_be_torn: bool,
    /// True if this process made the file's name durable.
    is_named: bool,
    /// The count of archived records that readers do not see; `None` before the first read.
    hidden: Option<u64>,
}

impl FileTranscripts {
    /// The transcripts below `team_folder`.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability, team_folder: &Path) -> Self {
        Self::with_live_bytes(files, durability, team_folder, LIVE_BYTES)
    }

    /// The transcripts below `team_folder`, archived above `live_bytes`.
    #[must_use]
    pub fn with_live_bytes(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        team_folder: &Path,
        live_bytes: u64,
    ) -> Self {
        let sync = SyncQueue::new(Arc::clone(&files), durability);
        let folder = team_folder.join("transcripts");
        let (open, quarantined) = (Mutex::default(), Mutex::default());
        let inner =
            TranscriptsInner { files, durability, sync, folder, live_bytes, open, may_quarantine: true, quarantined };
        Self { inner: Arc::new(inner) }
    }

    /// The transcripts for read-only access: nothing is quarantined.
    #[must_use]
    pub fn open_read_only(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        let mut transcripts = Self::new(files, Durability::Process, team_folder);
        if let Some(inner) = Arc::get_mut(&mut transcripts.inner) {
            inner.may_quarantine = false;
        }
        transcripts
    }

    /// Quarantines every non-file that has the name of a transcript. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`] if one cannot be moved. Its teammate could not work.
    pub fn quarantine_non_files(&self) -> StoreResult<()> {
        self.inner.quarantine_non_files()
    }
}

#[async_trait]
impl Transcripts for FileTranscripts {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        blocking(move || inner.load(&name)).await
    }

    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        let (inner, name, records) = (Arc::clone(&self.inner), name.to_owned(), records.to_owned());
        blocking(move || inner.append(&name, records, sync)).await
    }

    fn take_quarantined(&self) -> Vec<QuarantinedTranscript> {
        std::mem::take(&mut *self.inner.quarantined.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TranscriptsInner {
    fn path(&self, name: &str) -> StoreResult<PathBuf> {
        match Name::new(name) {
            Ok(name) => Ok(self.folder.join(format!("{name}.jsonl"))),
            Err(error) => {
                let error = io::Error::new(io::ErrorKind::InvalidInput, error);
                Err(failed("open the transcript of", Path::new(name))(error))
            }
        }
    }

    fn open(&self, name: &str) -> Arc<Mutex<OpenTranscript>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(open.entry(name.to_owned()).or_default())
    }

    fn read(&self, name: &str, path: &Path) -> StoreResult<Vec<u8>> {
        match self.files.read(path, 0, TRANSCRIPT_BYTES_MAX) {
            Ok((bytes, _)) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(_) if self.may_quarantine && self.quarantine_non_file(name, path)? => Ok(Vec::new()),
            Err(error) => Err(failed("read", path)(error)),
        }
    }

    fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        let path = self.path(name)?;
        let open = self.open(name);
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.read(name, &path)?;
        let lines = Lines::parse(&bytes);
        if lines.invalid > 0 {
            tracing::warn!(transcript = %path.display(), lines = lines.invalid, "skipped invalid lines of a transcript");
        }
        let hidden = lines.hidden();
        open.hidden = Some(hidden);
        open.measure(&bytes);
        Ok(lines
            .records
            .into_iter()
            .map(|(_, record)| map_covers(record, |covers| covers.saturating_sub(hidden)))
            .collect())
    }

    fn append(&self, name: &str, records: Vec<Record>, sync: bool) -> StoreResult<()> {
        if records.is_empty() && !sync {
            return Ok(());
        }
        let path = self.path(name)?;
        let open = self.open(name);
        let (appended, is_named) = {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            let appended =
                if records.is_empty() { None } else { Some(self.append_locked(name, &path, &mut open, records)?) };
            (appended, open.is_named)
        };
        if !sync {
            return Ok(());
        }
        let folders = if is_named { vec![] } else { vec![self.folder.clone()] };
        let synced = self.sync.sync(SyncRequest { files: vec![path], folders });
        open.lock().unwrap_or_else(PoisonError::into_inner).finish_append(appended, synced.is_ok());
        synced
    }

    fn append_locked(
        &self,
        name: &str,
        path: &Path,
        open: &mut OpenTranscript,
        records: Vec<Record>,
    ) -> StoreResult<Range<u64>> {
        let covers = records.iter().rev().find_map(|record| match record.entry {
            TranscriptEntry::Compaction { covers, .. } => Some(covers),
            TranscriptEntry::Message(_) | TranscriptEntry::Sent(_) => None,
        });
        if open.valid_bytes.is_none() || (open.hidden.is_none() && covers.is_some()) {
            let bytes = self.read(name, path)?;
            open.measure(&bytes);
            open.hidden.get_or_insert_with(|| Lines::parse(&bytes).hidden());
        }
        let hidden = open.hidden.unwrap_or(0);
        let mut text = String::new();
        for record in records {
            let line = map_covers(record, |covers| covers.saturating_add(hidden)).to_line();
            if line.len() > RECORD_BYTES_MAX {
                let what = format!("a record of {name}'s transcript");
                return Err(StoreError::TooLarge { what, bytes: line.len(), bytes_max: RECORD_BYTES_MAX });
            }
            text.push_str(&line);
            text.push('\n');
        }
        let appended = match self.append_text(path, open, &text) {
            Err(_) if self.may_quarantine && self.quarantine_non_file(name, path)? => {
                *open = OpenTranscript { valid_bytes: Some(0), hidden: Some(0), ..OpenTranscript::default() };
                self.append_text(path, open, &text)?
            }
            appended => appended?,
        };
        if let Some(covers) = covers
            && appended.start > self.live_bytes
        {
            // Archiving replaces the file.
            (open.valid_bytes, open.is_named) = (None, false);
            if let Err(error) = self.archive(name, path, covers.saturating_add(hidden)) {
                // The transcript is intact: either unchanged or replaced. The next compaction tries again.
                tracing::warn!(%error, teammate = name, "cannot archive the records before a compaction");
            }
        }
        Ok(appended)
    }

    /// Appends after the complete lines, and returns the range of `text` in the file.
    fn append_text(&self, path: &Path, open: &mut OpenTranscript, text: &str) -> StoreResult<Range<u64>> {
        let valid_bytes = open.valid_bytes.unwrap_or(0);
        let unfinished = if open.may_be_torn { unfinished_bytes(&*self.files, path, valid_bytes)? } else { Vec::new() };
        let rest = missing_bytes(&unfinished, text.as_bytes());
        open.may_be_torn = true;
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let mut appended = self.files.append(path, &rest);
        for _ in 0..FOLDER_ATTEMPTS_MAX {
            if !appended.as_ref().is_err_and(is_gone) {
                break;
            }
            // A program that is removing the parent folder may remove the new one at once.
            appended = self.files.create_folder(&self.folder).and_then(|()| self.files.append(path, &rest));
        }
        let before = appended.map_err(failed("append to", path))?;
        let end = before + rest.len() as u64;
        open.may_be_torn = false;
        open.valid_bytes = Some(end);
        open.is_named &= before > 0;
        Ok(end.saturating_sub(text.len() as u64)..end)
    }
}

impl OpenTranscript {
    /// Records if the appended bytes are durable. Bytes that are not durable count as torn, so that a retry does not append twice.
    fn finish_append(&mut self, appended: Option<Range<u64>>, is_durable: bool) {
        if is_durable {
            self.is_named |= self.valid_bytes.is_some();
        } else if let Some(appended) = appended.filter(|appended| self.valid_bytes == Some(appended.end)) {
            (self.valid_bytes, self.may_be_torn) = (Some(appended.start), true);
        }
    }

    fn measure(&mut self, bytes: &[u8]) {
        let valid_bytes = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.valid_bytes = Some(valid_bytes as u64);
        self.may_be_torn = valid_bytes < bytes.len();
    }
}

/// Returns the record with `shift` applied to its `covers`.
fn map_covers(mut record: Record, shift: impl Fn(u64) -> u64) -> Record {
    if let TranscriptEntry::Compaction { covers, .. } = &mut record.entry {
        *covers = shift(*covers);
    }
    record
}
