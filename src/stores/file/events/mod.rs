//! The event log, `.team/events.jsonl`, and its older parts `events.1.jsonl` and up.
//!
//! A run begins when a lead opens the log. Its first append rotates the previous run's log. Within a run a large log is
//! rotated too, and the numbers continue. On a full disk, events wait in memory up to a limit. They are written in order once there is space, so numbers have no gaps.

mod reader;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::log::event::{Event, NewEvent};
use crate::domain::time::UnixMs;
use crate::ports::{Clock, EventLog, EventReader, Runs, StoreResult};
use crate::stores::fs::FileSystem;

use super::append_file::FileEnd;
use super::{blocking, failed, if_found};
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
    files: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    folder: PathBuf,
    part_bytes_max: u64,
    log: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    /// The time of the run's first event.
    began: Option<UnixMs>,
    last_seq: u64,
    /// The lines of numbered events that are not written yet.
    waiting: String,
    /// True if the last write failed.
    has_failed: bool,
    /// True after the first write of this run, which rotates the previous run's log.
    has_begun: bool,
    end: FileEnd,
    /// The number of times that this run rotated its log.
    parts_begun: u64,
}

impl FileEventLog {
    /// The log below `team_folder`.
    pub fn new(files: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, team_folder: &Path) -> Self {
        Self::with_part_bytes_max(files, clock, team_folder, EVENTS_BYTES_MAX)
    }

    /// The log below `team_folder`, with parts of at most about `part_bytes_max` bytes.
    pub fn with_part_bytes_max(
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        part_bytes_max: u64,
    ) -> Self {
        Self { files, clock, folder: team_folder.to_owned(), part_bytes_max, log: Mutex::default() }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(EVENTS_FILE)
    }

    /// Numbers the events and writes them, all or none. If the write fails, they wait for the next one.
    fn append_events(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Event>> {
        let at = self.clock.now();
        let mut log = self.log.lock();
        let began = log.began.unwrap_or(at);
        let numbered = (log.last_seq + 1..).zip(events);
        let events: Vec<Event> = numbered.map(|(seq, event)| event.number(seq, at).in_run(began)).collect();
        let text: String = events.iter().map(|event| event.to_line() + "\n").collect();
        if log.has_failed && log.waiting.len() + text.len() > WAITING_BYTES_MAX {
            let reason = "there is no space for more events on disk or in memory";
            return Err(failed("append to", &self.path())(io::Error::new(io::ErrorKind::StorageFull, reason)));
        }
        log.began = Some(began);
        log.last_seq += events.len() as u64;
        log.waiting.push_str(&text);
        self.write_waiting(&mut log);
        Ok(events)
    }

    fn write_waiting(&self, log: &mut LogState) {
        match self.write(log) {
            Ok(()) => {
                log.waiting.clear();
                log.has_failed = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut log.has_failed, true) {
                    tracing::warn!(%error, "cannot write the event log; events wait in memory");
                }
            }
        }
    }

    fn write(&self, log: &mut LogState) -> StoreResult<()> {
        if !log.has_begun {
            self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
            self.rotate()?;
            log.has_begun = true;
        } else if log.end.bytes() > 0 && log.end.bytes() + log.waiting.len() as u64 > self.part_bytes_max {
            self.rotate()?;
            log.end = FileEnd::default();
            log.parts_begun += 1;
        }
        log.end.append(&*self.files, &self.path(), &log.waiting).map(drop)
    }

    /// Renames each part to the next older name, and overwrites the oldest. A crash in between leaves a gap, which readers skip.
    fn rotate(&self) -> StoreResult<()> {
        let paths: Vec<PathBuf> =
            [self.path()].into_iter().chain((1..=PARTS_MAX).map(|part| self.folder.join(part_name(part)))).collect();
        // A gap ends the renaming: older parts need not move.
        let existing = paths.iter().take_while(|path| self.files.stamp(path).is_ok()).count();
        let pairs = paths[..paths.len().min(existing + 1)].windows(2).rev();
        pairs
            .into_iter()
            .try_for_each(|pair| if_found("rename", &pair[0], self.files.rename(&pair[0], &pair[1])).map(drop))
    }
}

#[async_trait]
impl EventLog for FileEventLog {
    async fn append(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Event>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        blocking(|| self.append_events(events)).await
    }

    fn reader(&self, runs: Runs) -> Box<dyn EventReader> {
        Box::new(FileEventReader::new(Arc::clone(&self.files), &self.folder, runs))
    }

    fn parts_begun(&self) -> u64 {
        self.log.lock().parts_begun
    }
}

impl Drop for FileEventLog {
    fn drop(&mut self) {
        let mut log = self.log.lock();
        if !log.waiting.is_empty() {
            self.write_waiting(&mut log);
        }
    }
}
