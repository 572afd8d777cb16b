//! The transcripts: `.team/transcripts/<name>.jsonl`, one record a line. Turns and context windows are not known here.
//!
//! Appends make a transcript grow. Once the file is large, a compaction moves the records that it covers to `.archive/` and
//! leaves one record for them (`archive`). Only one process writes a transcript: the one that runs the teammate.

mod archive;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::agent::transcript::{Record, TranscriptEntry};
use crate::domain::team::name::Name;
use crate::ports::{StoreError, StoreResult, Transcripts};
use crate::stores::fs::FileSystem;

use super::append_file::FileEnd;
use super::sync::SyncRequest;
use super::{Durability, blocking, failed, read_or_empty};
use archive::Lines;

/// The longest record, in bytes of its line.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The largest transcript that is read, in bytes. Compactions keep transcripts near [`LIVE_BYTES`], which is far smaller.
pub const TRANSCRIPT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The size in bytes above which the next compaction archives the records that it covers.
pub const LIVE_BYTES: u64 = 4 * 1024 * 1024;

/// Transcripts in files.
pub struct FileTranscripts {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    folder: PathBuf,
    live_bytes: u64,
    open: Mutex<HashMap<String, Arc<Mutex<OpenTranscript>>>>,
}

/// The cached facts about one transcript.
#[derive(Default)]
struct OpenTranscript {
    end: FileEnd,
    /// True if this process made the file's name durable.
    is_named: bool,
    /// The count of archived records that readers do not see; `None` before the first read.
    hidden: Option<u64>,
}

impl FileTranscripts {
    /// The transcripts below `team_folder`.
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability, team_folder: &Path) -> Self {
        Self::with_live_bytes(files, durability, team_folder, LIVE_BYTES)
    }

    /// The transcripts below `team_folder`, archived above `live_bytes`.
    pub fn with_live_bytes(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        team_folder: &Path,
        live_bytes: u64,
    ) -> Self {
        Self { folder: team_folder.join("transcripts"), open: Mutex::default(), files, durability, live_bytes }
    }

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
        let mut open = self.open.lock();
        Arc::clone(open.entry(name.to_owned()).or_default())
    }

    fn read(&self, path: &Path) -> StoreResult<Vec<u8>> {
        read_or_empty(&*self.files, path, 0, TRANSCRIPT_BYTES_MAX)
    }

    fn load_records(&self, name: &str) -> StoreResult<Vec<Record>> {
        let path = self.path(name)?;
        let open = self.open(name);
        let mut open = open.lock();
        let bytes = self.read(&path)?;
        let lines = Lines::parse(&bytes);
        if lines.invalid > 0 {
            tracing::warn!(transcript = %path.display(), lines = lines.invalid, "skipped invalid lines of a transcript");
        }
        let hidden = lines.hidden();
        open.hidden = Some(hidden);
        open.end = FileEnd::of(&bytes);
        Ok(lines
            .records
            .into_iter()
            .map(|(_, record)| map_covers(record, |covers| covers.saturating_sub(hidden)))
            .collect())
    }

    fn append_records(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        if records.is_empty() && !sync {
            return Ok(());
        }
        let path = self.path(name)?;
        let open = self.open(name);
        let mut locked = open.lock();
        let appended =
            if records.is_empty() { None } else { Some(self.append_locked(name, &path, &mut locked, records)?) };
        let is_named = locked.is_named;
        drop(locked);
        if !sync {
            return Ok(());
        }
        let folders = if is_named { vec![] } else { vec![self.folder.clone()] };
        let synced = SyncRequest { files: vec![path], folders }.sync(&*self.files, self.durability);
        open.lock().finish_append(appended, synced.is_ok());
        synced
    }

    fn append_locked(
        &self,
        name: &str,
        path: &Path,
        open: &mut OpenTranscript,
        records: &[Record],
    ) -> StoreResult<Range<u64>> {
        let covers = records.iter().rev().find_map(|record| match record.entry {
            TranscriptEntry::Compaction { covers, .. } => Some(covers),
            TranscriptEntry::Message(_) | TranscriptEntry::Sent(_) => None,
        });
        if !open.end.is_known() || (open.hidden.is_none() && covers.is_some()) {
            let bytes = self.read(path)?;
            open.end = FileEnd::of(&bytes);
            open.hidden.get_or_insert_with(|| Lines::parse(&bytes).hidden());
        }
        let hidden = open.hidden.unwrap_or(0);
        let mut text = String::new();
        for record in records {
            let line = map_covers(record.clone(), |covers| covers.saturating_add(hidden)).to_line();
            if line.len() > RECORD_BYTES_MAX {
                let what = format!("a record of {name}'s transcript");
                return Err(StoreError::TooLarge { what, bytes: line.len(), bytes_max: RECORD_BYTES_MAX });
            }
            text.push_str(&line);
            text.push('\n');
        }
        let appended = open.append(&*self.files, path, &text)?;
        if let Some(covers) = covers
            && appended.start > self.live_bytes
        {
            // Archiving replaces the file.
            open.end = FileEnd::default();
            open.is_named = false;
            if let Err(error) = self.archive(name, path, covers.saturating_add(hidden)) {
                // The transcript is intact: either unchanged or replaced. The next compaction tries again.
                tracing::warn!(%error, teammate = name, "cannot archive the records before a compaction");
            }
        }
        Ok(appended)
    }
}

impl OpenTranscript {
    fn append(&mut self, files: &dyn FileSystem, path: &Path, text: &str) -> StoreResult<Range<u64>> {
        let appended = self.end.append(files, path, text)?;
        // A file that begins with this text is a new one.
        self.is_named &= appended.start > 0;
        Ok(appended)
    }

    fn finish_append(&mut self, appended: Option<Range<u64>>, is_durable: bool) {
        if is_durable {
            self.is_named |= self.end.is_known();
        } else if let Some(appended) = appended {
            self.end.lose(&appended);
        }
    }
}

#[async_trait]
impl Transcripts for FileTranscripts {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        blocking(|| self.load_records(name)).await
    }

    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        blocking(|| self.append_records(name, records, sync)).await
    }
}

/// Returns the record with `shift` applied to its `covers`.
fn map_covers(mut record: Record, shift: impl Fn(u64) -> u64) -> Record {
    if let TranscriptEntry::Compaction { covers, .. } = &mut record.entry {
        *covers = shift(*covers);
    }
    record
}
