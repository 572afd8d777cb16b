//! Reading the event log: from the first event of the newest run, or of all runs that are kept, then whatever comes. For front ends; it
//! writes nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::domain::event::Event;
use crate::platform::FileKind;
use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::FileSystem;

use super::{EVENTS_FILE, PARTS_MAX, part_name};

/// The largest part that is read, in bytes; one batch of facts may make a part larger than its bound.
const PART_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Goes through the log. Each call of [`EventReader::read_new`] goes on where the last one ended.
pub struct EventReader {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    /// Whether the runs before the newest are read too.
    all_runs: bool,
    /// The file that is being read, by its number on disk, and how far.
    at: Option<(u64, u64)>,
}

impl EventReader {
    /// A reader of the log below `team_folder`, from the first event of the newest run.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        Self { files, folder: team_folder.to_owned(), all_runs: false, at: None }
    }

    /// A reader of all that is kept, from the oldest run on. Of that the beginning may be gone.
    #[must_use]
    pub fn of_all_runs(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        Self { all_runs: true, ..Self::new(files, team_folder) }
    }

    /// The events that were written since the last call; a number that starts again at 1 begins a new run. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn read_new(&mut self) -> StoreResult<Vec<Event>> {
        let mut events = Vec::new();
        for (file, number, offset) in self.to_read()? {
            let Some((bytes, _)) = self.read(&file, offset)?.filter(|(_, inode)| *inode == number) else {
                // It was put aside meanwhile; the next call finds it under its other name.
                break;
            };
            // Half a line is read once it is whole.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let lines = bytes[..whole].split(|byte| *byte == b'\n');
            events.extend(lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok()));
            self.at = Some((number, offset + whole as u64));
        }
        Ok(events)
    }

    /// The files to read, oldest first: each with its number on disk, and from where.
    fn to_read(&self) -> StoreResult<Vec<(String, u64, u64)>> {
        let mut files = Vec::new();
        for file in std::iter::once(EVENTS_FILE.to_owned()).chain((1..=PARTS_MAX).map(part_name)) {
            let path = self.folder.join(&file);
            let stamp = match self.files.stamp(&path) {
                Ok(stamp) if stamp.kind != FileKind::File => continue,
                Ok(stamp) => stamp,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("look at", &path)(error)),
            };
            match self.at {
                Some((at, offset)) if at == stamp.inode && offset <= stamp.bytes => {
                    files.push((file, stamp.inode, offset));
                    break;
                }
                // The part that was read last is gone: what is left comes after it.
                Some(_) => files.push((file, stamp.inode, 0)),
                None => {
                    let begins_run = !self.all_runs && self.first_seq(&file)? == Some(1);
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
        match self.files.read(&path, offset, PART_BYTES_MAX) {
            Ok((bytes, stamp)) => Ok(Some((bytes, stamp.inode))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }
}
