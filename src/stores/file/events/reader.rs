//! Reads the event log for front ends: the newest run, or all kept runs, and then new events. Writes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::log::event::Event;
use crate::domain::log::event_id::EventId;
use crate::platform::FileKind;
use crate::ports::{EventReader, Runs, StoreResult};
use crate::stores::file::append_file::complete_bytes;
use crate::stores::file::{blocking, if_found};
use crate::stores::fs::FileSystem;

use super::{EVENTS_FILE, PARTS_MAX, part_name};

/// The largest part that is read, in bytes. One batch of events can make a part larger than [`super::EVENTS_BYTES_MAX`].
const PART_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A position in the log.
pub struct FileEventReader {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    runs: Runs,
    /// The inode of the file that was read last, and the offset to continue at.
    position: Option<(u64, u64)>,
    /// The run of the event that was read last, and its number.
    last: Option<EventId>,
}

impl FileEventReader {
    /// A reader of the log below `team_folder`.
    pub fn new(files: Arc<dyn FileSystem>, team_folder: &Path, runs: Runs) -> Self {
        Self { files, folder: team_folder.to_owned(), runs, position: None, last: None }
    }

    fn read_unread(&mut self) -> StoreResult<Vec<Event>> {
        let mut events = Vec::new();
        for (file, number, offset) in self.unread_parts()? {
            let Some((bytes, _)) = self.read(&file, offset)?.filter(|(_, inode)| *inode == number) else {
                // The file was renamed in the meantime. The next call finds it under its new name.
                break;
            };
            // An incomplete line is read once it is complete.
            let complete_bytes = complete_bytes(&bytes);
            let lines = bytes[..complete_bytes].split(|byte| *byte == b'\n');
            let read = lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok());
            events.extend(read.map(|event| self.with_id(event)));
            self.position = Some((number, offset + complete_bytes as u64));
        }
        Ok(events)
    }

    /// Returns the event with its id. An event of an older version gets it from the first event of its run that is stored.
    fn with_id(&mut self, event: Event) -> Event {
        let of_last_run = self.last.filter(|last| last.seq < event.seq).map(|last| last.began);
        let began = event.id.map(|id| id.began).or(of_last_run).unwrap_or(event.at);
        let event = event.in_run(began);
        self.last = event.id;
        event
    }

    /// The files to read, oldest first: name, inode and start offset.
    fn unread_parts(&self) -> StoreResult<Vec<(String, u64, u64)>> {
        let mut files = Vec::new();
        for file in std::iter::once(EVENTS_FILE.to_owned()).chain((1..=PARTS_MAX).map(part_name)) {
            let path = self.folder.join(&file);
            let stamp = if_found("inspect", &path, self.files.stamp(&path))?;
            let Some(stamp) = stamp.filter(|stamp| stamp.kind == FileKind::File) else { continue };
            match self.position {
                Some((inode, offset)) if inode == stamp.inode && offset <= stamp.bytes => {
                    files.push((file, stamp.inode, offset));
                    break;
                }
                // The last part is not found yet: this one is newer than it, or it is gone.
                Some(_) => files.push((file, stamp.inode, 0)),
                None => {
                    let begins_run = self.runs == Runs::Newest && self.first_seq(&file)? == Some(1);
                    files.push((file, stamp.inode, 0));
                    if begins_run {
                        break;
                    }
                }
            }
        }
        files.reverse();
        Ok(files)
    }

    fn first_seq(&self, file: &str) -> StoreResult<Option<u64>> {
        let Some((bytes, _)) = self.read(file, 0)? else {
            return Ok(None);
        };
        let first = bytes.split(|byte| *byte == b'\n').find_map(|line| serde_json::from_slice::<Event>(line).ok());
        Ok(first.map(|event| event.seq))
    }

    fn read(&self, file: &str, offset: u64) -> StoreResult<Option<(Vec<u8>, u64)>> {
        let path = self.folder.join(file);
        let read = if_found("read", &path, self.files.read(&path, offset, PART_BYTES_MAX))?;
        Ok(read.map(|(bytes, stamp)| (bytes, stamp.inode)))
    }
}

#[async_trait]
impl EventReader for FileEventReader {
    async fn read_new(&mut self) -> StoreResult<Vec<Event>> {
        blocking(|| self.read_unread()).await
    }
}
