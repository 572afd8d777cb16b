//! The event log, `.team/events.jsonl`, and its older parts `events.1.jsonl` and up.
//!
//! A run begins when a lead opens the log. Its first append rotates the previous run's log. Within a run a large log is
//! rotated too, and the numbers continue. Events that arrive during a write are written together. On a full disk, events wait in
//! memory up to a limit. They are written in order once there is space, so numbers have no gaps.

mod reader;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::domain::event::{Event, NewEvent};
use crate::platform::FileKind;
use crate::ports::{Clock, EventLog, EventReader, Runs, StoreError, StoreResult};
use crate::stores::fs::FileSystem;

use super::append_file::{missing_bytes, unfinished_bytes};
use super::{blocking, failed};
pub use reader::FileEventReader;

/// The newest part, which appends go to.
pub const EVENTS_FILE: &str = "events.jsonl";

/// The size above which the log is rotated, in bytes.
pub const EVENTS_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The most older parts that are kept.
pub const PARTS_MAX: u32 = 5;

/// The most bytes of events that wait in memory while the log cannot be written. Further events are refused and get no numbers.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The name of the older part `number`; 1 is the newest of them.
fn part_name(number: u32) -> String {
    format!("events.{number}.jsonl")
}

/// The event log in files.
pub struct FileEventLog {
    inner: Arc<EventLogInner>,
}

struct EventLogInner {
    files: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    folder: PathBuf,
    part_bytes_max: u64,
    queue: Mutex<EventQueue>,
    /// Locked by the writer; never while `queue` is locked.
    file: Mutex<LogFile>,
    /// The number of times that this run rotated its log.
    parts_begun: AtomicU64,
}

/// Numbered events that are not written yet.
#[derive(Default)]
struct EventQueue {
    last_seq: u64,
    lines: VecDeque<String>,
    bytes: usize,
    /// True if the last write failed.
    has_failed: bool,
}

#[derive(Default)]
struct LogFile {
    /// True after the first append of this run, which rotates the previous run's log.
    has_begun: bool,
    bytes: u64,
    /// True if the last append failed and may have left partial bytes.
    may_be_torn: bool,
}

impl FileEventLog {
    /// The log below `team_folder`.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, team_folder: &Path) -> Self {
        Self::with_part_bytes_max(files, clock, team_folder, EVENTS_BYTES_MAX)
    }

    /// The log below `team_folder`, with parts of at most about `part_bytes_max` bytes.
    #[must_use]
    pub fn with_part_bytes_max(
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        part_bytes_max: u64,
    ) -> Self {
        Self {
            inner: Arc::new(EventLogInner {
                files,
                clock,
                folder: team_folder.to_owned(),
                part_bytes_max,
                queue: Mutex::default(),
                file: Mutex::default(),
                parts_begun: AtomicU64::new(0),
            }),
        }
    }
}

#[async_trait]
impl EventLog for FileEventLog {
    async fn append(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Event>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let events = self.inner.enqueue(events)?;
        let last = events.last().map_or(0, |event| event.seq);
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            inner.write_up_to(last);
            Ok(())
        })
        .await?;
        Ok(events)
    }

    fn reader(&self, runs: Runs) -> Box<dyn EventReader> {
        Box::new(FileEventReader::new(Arc::clone(&self.inner.files), &self.inner.folder, runs))
    }

    fn parts_begun(&self) -> u64 {
        self.inner.parts_begun.load(Ordering::Acquire)
    }
}

impl EventLogInner {
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(EVENTS_FILE)
    }

    /// Numbers the events and puts their lines into the queue, all or none.
    fn enqueue(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Event>> {
        let at = self.clock.now();
        let mut queue = self.queue();
        let mut seq = queue.last_seq;
        let events: Vec<Event> = events
            .into_iter()
            .map(|event| {
                seq += 1;
                event.number(seq, at)
            })
            .collect();
        let lines: Vec<String> = events.iter().map(|event| event.to_line() + "\n").collect();
        let bytes: usize = lines.iter().map(String::len).sum();
        if queue.has_failed && queue.bytes + bytes > WAITING_BYTES_MAX {
            let reason = "there is no space for more events on disk or in memory";
            let error = io::Error::new(io::ErrorKind::StorageFull, reason);
            return Err(failed("append to", &self.path())(error));
        }
        queue.last_seq = seq;
        queue.bytes += bytes;
        queue.lines.extend(lines);
        Ok(events)
    }

    /// Writes all queued events, unless the event `seq` is already written. If the write fails, the events stay in the queue.
    fn write_up_to(&self, seq: u64) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, text) = {
            let mut queue = self.queue();
            let written_seq = queue.last_seq - queue.lines.len() as u64;
            // The previous writer may have written the event.
            if queue.lines.is_empty() || written_seq >= seq {
                return;
            }
            let lines = std::mem::take(&mut queue.lines);
            let text: String = lines.iter().map(String::as_str).collect();
            (lines, text)
        };
        let outcome = self.write(&mut file, &text);
        let mut queue = self.queue();
        match outcome {
            Ok(()) => {
                queue.bytes -= text.len();
                queue.has_failed = false;
            }
            Err(error) => {
                let later = std::mem::replace(&mut queue.lines, lines);
                queue.lines.extend(later);
                if !std::mem::replace(&mut queue.has_failed, true) {
                    tracing::warn!(%error, "cannot write the event log; events wait in memory");
                }
            }
        }
    }

    fn write(&self, file: &mut LogFile, text: &str) -> StoreResult<()> {
        let path = self.path();
        if !file.has_begun {
            self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
            self.rotate()?;
            file.has_begun = true;
        } else if file.bytes > 0 && file.bytes + text.len() as u64 > self.part_bytes_max {
            self.rotate()?;
            file.bytes = 0;
            self.parts_begun.fetch_add(1, Ordering::AcqRel);
        }
        let unfinished = if file.may_be_torn { unfinished_bytes(&*self.files, &path, file.bytes)? } else { Vec::new() };
        file.may_be_torn = true;
        let missing = missing_bytes(&unfinished, text.as_bytes());
        let before = match self.files.append(&path, &missing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
                self.files.append(&path, &missing).map_err(failed("append to", &path))?
            }
            other => other.map_err(failed("append to", &path))?,
        };
        file.may_be_torn = false;
        file.bytes = before + missing.len() as u64;
        Ok(())
    }

    /// Renames each part to the next older name, and overwrites the oldest. A crash in between leaves a gap, which readers skip.
    ///
    /// An older part that is not a file keeps its name. A newest part that is not a file gets a name that no reader knows.
    fn rotate(&self) -> StoreResult<()> {
        let rename = |from: &str, to: &str| match self.files.rename(&self.folder.join(from), &self.folder.join(to)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err::<(), StoreError>(failed("rename", &self.folder.join(from))(error))
            }
            _ => Ok(()),
        };
        let kind = |name: &str| self.files.stamp(&self.folder.join(name)).ok().map(|stamp| stamp.kind);
        if kind(EVENTS_FILE).is_some_and(|kind| kind != FileKind::File) {
            let now_ms = self.clock.now().0;
            return rename(EVENTS_FILE, &format!("events.no-file-{now_ms}"));
        }
        let mut parts = Vec::from([EVENTS_FILE.to_owned()]);
        for part in (1..=PARTS_MAX).map(part_name) {
            match kind(&part) {
                Some(FileKind::File) => parts.push(part),
                // A gap ends the renaming: older parts need not move.
                None => {
                    parts.push(part);
                    break;
                }
                Some(_) => {}
            }
        }
        parts.windows(2).rev().try_for_each(|pair| rename(&pair[0], &pair[1]))
    }
}

impl Drop for EventLogInner {
    fn drop(&mut self) {
        let last = self.queue().last_seq;
        if last > 0 {
            self.write_up_to(last);
        }
    }
}
