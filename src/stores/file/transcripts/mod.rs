//! The transcripts: `.team/transcripts/<name>.jsonl`, a line a record. It knows nothing of turns or contexts.
//!
//! A transcript only grows, but `.team/` must not: once the file is large, a compaction moves what it covers to `.archive/`
//! and leaves one record in its place (`archive`). One process writes a transcript: the one that runs the teammate.

mod archive;
mod odd;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::name::Name;
use crate::domain::transcript::{Entry, Record};
use crate::ports::{SetAside, StoreError, StoreResult, Transcripts};
use crate::stores::fs::FileSystem;

use super::append::{left_behind, rest_behind};
use super::sync::{SyncQueue, SyncRequest};
use super::{Durability, blocking, failed};
use archive::Lines;

/// The longest record, as a line, in bytes.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The largest transcript that is written to or read, in bytes; far above [`LIVE_BYTES`], which every compaction brings it under.
pub const TRANSCRIPT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// With more bytes, the next compaction archives what it covers.
pub const LIVE_BYTES: u64 = 4 * 1024 * 1024;

/// The transcripts in their files.
pub struct FileTranscripts {
    inner: Arc<Inner>,
}

struct Inner {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    sync: SyncQueue,
    folder: PathBuf,
    live_bytes: u64,
    open: Mutex<HashMap<String, Arc<Mutex<Open>>>>,
    /// Whether what is no transcript is moved beside; a process that only looks moves nothing.
    sets_aside: bool,
    /// What was moved beside, until it is asked for.
    aside: Mutex<Vec<SetAside>>,
}

/// How often a folder that is gone is made anew for one append.
const FOLDER_TRIES: u32 = 5;

/// What is known of one transcript.
#[derive(Default)]
struct Open {
    /// The bytes of the file that are sound; `None` before the first look.
    sound_bytes: Option<u64>,
    /// Whether there may be more behind them: the last append failed, or the process before died.
    may_be_torn: bool,
    /// Whether the file's name is durable, as far as this process saw to it.
    is_named: bool,
    /// How many more records there were from the start than the reader was shown; `None` before the first look.
    hidden: Option<u64>,
}

impl FileTranscripts {
    /// The transcripts below `team_folder`.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, durability: Durability, team_folder: &Path) -> Self {
        Self::with_live_bytes(files, durability, team_folder, LIVE_BYTES)
    }

    /// The same, archiving above `live_bytes`.
    #[must_use]
    pub fn with_live_bytes(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        team_folder: &Path,
        live_bytes: u64,
    ) -> Self {
        let sync = SyncQueue::new(Arc::clone(&files), durability);
        let folder = team_folder.join("transcripts");
        let (open, aside) = (Mutex::default(), Mutex::default());
        let inner = Inner { files, durability, sync, folder, live_bytes, open, sets_aside: true, aside };
        Self { inner: Arc::new(inner) }
    }

    /// The transcripts, to look at: nothing is moved beside.
    #[must_use]
    pub fn look(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        let mut transcripts = Self::new(files, Durability::Process, team_folder);
        if let Some(inner) = Arc::get_mut(&mut transcripts.inner) {
            inner.sets_aside = false;
        }
        transcripts
    }

    /// Moves beside what has the name of a transcript and is none. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`]: one cannot be moved, and whose it is could not work.
    pub fn set_all_aside(&self) -> StoreResult<()> {
        self.inner.set_all_aside()
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

    fn take_set_aside(&self) -> Vec<SetAside> {
        std::mem::take(&mut *self.inner.aside.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    fn path(&self, name: &str) -> StoreResult<PathBuf> {
        match Name::new(name) {
            Ok(name) => Ok(self.folder.join(format!("{name}.jsonl"))),
            Err(error) => {
                let error = io::Error::new(io::ErrorKind::InvalidInput, error);
                Err(failed("open the transcript of", Path::new(name))(error))
            }
        }
    }

    fn open(&self, name: &str) -> Arc<Mutex<Open>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(open.entry(name.to_owned()).or_default())
    }

    fn read(&self, name: &str, path: &Path) -> StoreResult<Vec<u8>> {
        match self.files.read(path, 0, TRANSCRIPT_BYTES_MAX) {
            Ok((bytes, _)) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(_) if self.sets_aside && self.set_aside(name, path)? => Ok(Vec::new()),
            Err(error) => Err(failed("read", path)(error)),
        }
    }

    fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        let path = self.path(name)?;
        let open = self.open(name);
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.read(name, &path)?;
        let lines = Lines::parse(&bytes);
        if lines.torn > 0 {
            tracing::warn!(transcript = %path.display(), lines = lines.torn, "lines of a transcript are torn; they are passed over");
        }
        let hidden = lines.hidden();
        open.hidden = Some(hidden);
        open.look_at(&bytes);
        Ok(lines
            .records
            .into_iter()
            .map(|(_, record)| shifted(record, |covers| covers.saturating_sub(hidden)))
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
            let is_told = !records.is_empty();
            let appended = is_told.then(|| self.append_locked(name, &path, &mut open, records)).transpose()?;
            (appended, open.is_named)
        };
        if !sync {
            return Ok(());
        }
        let folders = if is_named { vec![] } else { vec![self.folder.clone()] };
        let synced = self.sync.sync(SyncRequest { files: vec![path], folders });
        open.lock().unwrap_or_else(PoisonError::into_inner).take_in(appended, synced.is_ok());
        synced
    }

    fn append_locked(&self, name: &str, path: &Path, open: &mut Open, records: Vec<Record>) -> StoreResult<Range<u64>> {
        let covers = records.iter().rev().find_map(|record| match record.entry {
            Entry::Compaction { covers, .. } => Some(covers),
            Entry::Message(_) => None,
        });
        if open.sound_bytes.is_none() || (open.hidden.is_none() && covers.is_some()) {
            let bytes = self.read(name, path)?;
            open.look_at(&bytes);
            open.hidden.get_or_insert_with(|| Lines::parse(&bytes).hidden());
        }
        let hidden = open.hidden.unwrap_or(0);
        let mut text = String::new();
        for record in records {
            let line = shifted(record, |covers| covers.saturating_add(hidden)).to_line();
            if line.len() > RECORD_BYTES_MAX {
                let what = format!("a record of {name}'s transcript");
                return Err(StoreError::TooLarge { what, bytes: line.len(), bytes_max: RECORD_BYTES_MAX });
            }
            text.push_str(&line);
            text.push('\n');
        }
        let appended = match self.append_text(path, open, &text) {
            Err(_) if self.sets_aside && self.set_aside(name, path)? => {
                *open = Open { sound_bytes: Some(0), hidden: Some(0), ..Open::default() };
                self.append_text(path, open, &text)?
            }
            appended => appended?,
        };
        if let Some(covers) = covers.filter(|_| appended.start > self.live_bytes) {
            // The file becomes another one.
            (open.sound_bytes, open.is_named) = (None, false);
            if let Err(error) = self.archive(name, path, covers.saturating_add(hidden)) {
                // The transcript is whole as it is, or wholly replaced; the next compaction tries again.
                tracing::warn!(%error, teammate = name, "what a compaction covers cannot be archived");
            }
        }
        Ok(appended)
    }

    /// Appends behind what is sound, and returns where the text lies then.
    fn append_text(&self, path: &Path, open: &mut Open, text: &str) -> StoreResult<Range<u64>> {
        let sound = open.sound_bytes.unwrap_or(0);
        let left = if open.may_be_torn { left_behind(&*self.files, path, sound)? } else { Vec::new() };
        let rest = rest_behind(&left, text.as_bytes());
        open.may_be_torn = true;
        let before = match self.files.append(path, &rest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Somebody who is removing the folder above may take it away again at once.
                let again = || self.files.create_folder(&self.folder).and_then(|()| self.files.append(path, &rest));
                let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
                let tried = (1..FOLDER_TRIES).map(|_| again()).find(|tried| !tried.as_ref().is_err_and(gone));
                tried.unwrap_or_else(again).map_err(failed("append to", path))?
            }
            other => other.map_err(failed("append to", path))?,
        };
        let end = before + rest.len() as u64;
        open.may_be_torn = false;
        open.sound_bytes = Some(end);
        open.is_named &= before > 0;
        Ok(end.saturating_sub(text.len() as u64)..end)
    }
}

impl Open {
    /// Takes in whether what was appended is durable. What is not counts as torn: who tries again appends it no second time.
    fn take_in(&mut self, appended: Option<Range<u64>>, is_durable: bool) {
        if is_durable {
            self.is_named |= self.sound_bytes.is_some();
        } else if let Some(appended) = appended.filter(|appended| self.sound_bytes == Some(appended.end)) {
            (self.sound_bytes, self.may_be_torn) = (Some(appended.start), true);
        }
    }

    fn look_at(&mut self, bytes: &[u8]) {
        let sound = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.sound_bytes = Some(sound as u64);
        self.may_be_torn = sound < bytes.len();
    }
}

/// The record with another count of what it covers.
fn shifted(mut record: Record, shift: impl Fn(u64) -> u64) -> Record {
    if let Entry::Compaction { covers, .. } = &mut record.entry {
        *covers = shift(*covers);
    }
    record
}
