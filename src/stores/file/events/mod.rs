//! The event log, `.team/events.jsonl`, and its older parts `events.1.jsonl` and up. It knows nothing of what facts mean.
//!
//! A run is one opening of the log by the process that leads. Its first append puts the log of the run before aside; within a
//! run the log is put aside when it has grown large, and the numbers go on. Facts that come while others are written go
//! out together. On a full disk facts wait in memory, within bounds, and go out in their order once there is room: numbers
//! have no gaps.

mod reader;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::domain::event::{Event, Fact};
use crate::platform::FileKind;
use crate::ports::{Clock, EventLog, StoreError, StoreResult};
use crate::stores::fs::FileSystem;

use super::append::{left_behind, rest_behind};
use super::{blocking, failed};
pub use reader::EventReader;

/// The file that is written.
pub const EVENTS_FILE: &str = "events.jsonl";

/// How large a part of the log grows, in bytes.
pub const EVENTS_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How many older parts are kept.
pub const PARTS_MAX: u32 = 5;

/// The most that waits in memory when the disk takes nothing, in bytes. Facts beyond are refused, and take no number.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The name of the older part `number`; 1 is the youngest.
fn part_name(number: u32) -> String {
    format!("events.{number}.jsonl")
}

/// The event log in its files.
pub struct FileEventLog {
    inner: Arc<Inner>,
}

struct Inner {
    files: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    folder: PathBuf,
    part_bytes_max: u64,
    queue: Mutex<Queue>,
    /// Held by the one who writes; never while the queue is.
    file: Mutex<LogFile>,
}

/// Facts that are numbered and not written.
#[derive(Default)]
struct Queue {
    last_seq: u64,
    lines: VecDeque<String>,
    bytes: usize,
    has_failed: bool,
}

#[derive(Default)]
struct LogFile {
    has_begun: bool,
    bytes: u64,
    /// Whether the last append failed and may have left half of itself.
    may_be_torn: bool,
}

impl FileEventLog {
    /// The log below `team_folder`.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, team_folder: &Path) -> Self {
        Self::with_part_bytes(files, clock, team_folder, EVENTS_BYTES_MAX)
    }

    /// The same, with parts of at most about `part_bytes_max`.
    #[must_use]
    pub fn with_part_bytes(
        files: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        team_folder: &Path,
        part_bytes_max: u64,
    ) -> Self {
        let (queue, file) = (Mutex::default(), Mutex::default());
        Self { inner: Arc::new(Inner { files, clock, folder: team_folder.to_owned(), part_bytes_max, queue, file }) }
    }
}

#[async_trait]
impl EventLog for FileEventLog {
    async fn append(&self, facts: Vec<Fact>) -> StoreResult<Vec<Event>> {
        if facts.is_empty() {
            return Ok(Vec::new());
        }
        let events = self.inner.number(facts)?;
        let last = events.last().map_or(0, |event| event.seq);
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            inner.write_up_to(last);
            Ok(())
        })
        .await?;
        Ok(events)
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(EVENTS_FILE)
    }

    /// Numbers facts and queues their lines, all or none.
    fn number(&self, facts: Vec<Fact>) -> StoreResult<Vec<Event>> {
        let at = self.clock.now();
        let mut queue = self.queue();
        let mut seq = queue.last_seq;
        let events: Vec<Event> = facts
            .into_iter()
            .map(|fact| {
                seq += 1;
                Event { v: 1, seq, at, fact }
            })
            .collect();
        let lines: Vec<String> = events.iter().map(|event| event.to_line() + "\n").collect();
        let bytes: usize = lines.iter().map(String::len).sum();
        if queue.has_failed && queue.bytes + bytes > WAITING_BYTES_MAX {
            let error = io::Error::new(io::ErrorKind::StorageFull, "no room for more facts on the disk or in memory");
            return Err(failed("append to", &self.path())(error));
        }
        queue.last_seq = seq;
        queue.bytes += bytes;
        queue.lines.extend(lines);
        Ok(events)
    }

    /// Returns once the fact with this number is written, or cannot be.
    fn write_up_to(&self, seq: u64) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, text) = {
            let mut queue = self.queue();
            // Whoever wrote before has taken it along.
            if queue.lines.is_empty() || queue.last_seq - (queue.lines.len() as u64) >= seq {
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
                    tracing::warn!(%error, "the event log cannot be written; facts wait in memory");
                }
            }
        }
    }

    fn write(&self, file: &mut LogFile, text: &str) -> StoreResult<()> {
        let path = self.path();
        if !file.has_begun {
            self.files.create_folder(&self.folder).map_err(failed("make", &self.folder))?;
            self.put_aside()?;
            file.has_begun = true;
        } else if file.bytes > 0 && file.bytes + text.len() as u64 > self.part_bytes_max {
            self.put_aside()?;
            file.bytes = 0;
        }
        let left = if file.may_be_torn { left_behind(&*self.files, &path, file.bytes)? } else { Vec::new() };
        file.may_be_torn = true;
        let rest = rest_behind(&left, text.as_bytes());
        let before = match self.files.append(&path, &rest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.create_folder(&self.folder).map_err(failed("make", &self.folder))?;
                self.files.append(&path, &rest).map_err(failed("append to", &path))?
            }
            other => other.map_err(failed("append to", &path))?,
        };
        file.may_be_torn = false;
        file.bytes = before + rest.len() as u64;
        Ok(())
    }

    /// Gives each part the next older name, and the oldest up. A crash between leaves a hole, which readers pass over. What is no
    /// file is no part: it keeps its place, and the parts go past it.
    fn put_aside(&self) -> StoreResult<()> {
        let rename = |from: &str, to: &str| match self.files.rename(&self.folder.join(from), &self.folder.join(to)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err::<(), StoreError>(failed("rename", &self.folder.join(from))(error))
            }
            _ => Ok(()),
        };
        let kind = |name: &str| self.files.stamp(&self.folder.join(name)).ok().map(|stamp| stamp.kind);
        if kind(EVENTS_FILE).is_some_and(|kind| kind != FileKind::File) {
            let number = self.clock.now().0;
            return rename(EVENTS_FILE, &format!("events.no-file-{number}"));
        }
        let mut parts = Vec::from([EVENTS_FILE.to_owned()]);
        for part in (1..=PARTS_MAX).map(part_name) {
            match kind(&part) {
                Some(FileKind::File) => parts.push(part),
                // A hole takes the younger parts up; nothing older than it has to move.
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

impl Drop for Inner {
    fn drop(&mut self) {
        let last = self.queue().last_seq;
        if last > 0 {
            self.write_up_to(last);
        }
    }
}
