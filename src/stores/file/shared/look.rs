//! Looking at a shared file and at what lies aside: what bytes there are, and whether they are whole. What was looked at once is not
//! read or parsed again while its stamp, or its print, vouches for it. It changes no file.

use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::Stamp;

use super::aside::{AsideName, Content, print};
use super::{SHARED_BYTES_MAX, SharedFile, State};

/// Prints of whole versions that are remembered: those of the file and of what lies aside for a second.
const WHOLE_KNOWN_MAX: usize = 16;

/// A write within this time after another may leave a file its stamp: clocks of file systems tick every 1 to 10 ms.
const STAMP_GRAIN: Duration = Duration::from_millis(50);

/// What tells the bytes of a file aside from others, without them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Glimpse {
    pub(super) print: u64,
    pub(super) is_whole: bool,
    pub(super) stamp: Stamp,
}

impl SharedFile {
    /// Whether a later write is sure to give a file with this stamp another one: the clock of the file system has moved on.
    #[must_use]
    pub fn is_telling(&self, stamp: Stamp) -> bool {
        let grain_ns = i128::try_from(STAMP_GRAIN.as_nanos()).unwrap_or(i128::MAX);
        stamp.modified_ns < self.files.now_ns() - grain_ns
    }

    /// What the file aside of this name holds. One whose stamp would tell of a later write is read once.
    pub(super) fn glimpse(&self, state: &mut State, name: &str) -> StoreResult<Option<Glimpse>> {
        let path = state.aside.join(name);
        if let Some(glimpse) = state.glimpses.get(name)
            && self.files.stamp(&path).is_ok_and(|stamp| stamp == glimpse.stamp)
        {
            return Ok(Some(*glimpse));
        }
        let Some(content) = self.content(&path)? else {
            return Ok(None);
        };
        let glimpse = Glimpse { print: content.print, is_whole: content.is_whole, stamp: content.stamp };
        if self.is_telling(content.stamp) {
            state.glimpses.insert(name.to_owned(), glimpse);
        }
        Ok(Some(glimpse))
    }

    pub(super) fn asides(&self, state: &State) -> StoreResult<Vec<(String, AsideName)>> {
        let names = match self.files.list(&state.aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(failed("list", &state.aside))?,
        };
        let named = |name: String| AsideName::parse(&self.name, &name).map(|aside| (name, aside));
        Ok(names.into_iter().filter_map(named).collect())
    }

    pub(super) fn content(&self, path: &Path) -> StoreResult<Option<Content>> {
        self.read_content(path).map_err(failed("read", path))
    }

    pub(super) fn read_content(&self, path: &Path) -> io::Result<Option<Content>> {
        match self.files.read(path, 0, SHARED_BYTES_MAX) {
            Ok((bytes, stamp)) => {
                let print = print(&bytes);
                Ok(Some(Content { print, is_whole: self.is_whole(print, &bytes), bytes, stamp }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let stamp = self.files.stamp(path)?;
                let told = format!("{} {} {}", stamp.bytes, stamp.modified_ns, stamp.inode);
                Ok(Some(Content { bytes: Vec::new(), print: print(told.as_bytes()), is_whole: false, stamp }))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether these bytes, with this print, are a whole file of their kind.
    fn is_whole(&self, print: u64, bytes: &[u8]) -> bool {
        if self.whole.lock().unwrap_or_else(PoisonError::into_inner).contains(&print) {
            return true;
        }
        let is_whole = (self.is_whole)(bytes);
        if is_whole {
            self.know_whole(print);
        }
        is_whole
    }

    /// Notes that the bytes with this print are whole.
    pub(super) fn know_whole(&self, print: u64) {
        let mut known = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        known.push_front(print);
        known.truncate(WHOLE_KNOWN_MAX);
    }
}
