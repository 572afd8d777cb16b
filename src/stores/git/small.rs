//! Small files of git's own, which teammates' commands may have written: one that is a link, a pipe, or large is no such file.

use std::path::Path;

use crate::platform::reading::{self, Accept};

/// The most that is read of one, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// Its bytes, if it is there and what it should be.
pub(super) fn bytes(path: &Path) -> Option<Vec<u8>> {
    reading::read(path, Accept::FilesHere, BYTES_MAX).ok()
}

/// Its text.
pub(super) fn text(path: &Path) -> Option<String> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
