//! Reads git's small files. Teammates' commands may have written them, so links, pipes and large files are rejected.

use std::path::Path;

use crate::platform::reading::{self, AllowedKinds};

/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// The bytes of a plain file within the limit.
pub(super) fn bytes(path: &Path) -> Option<Vec<u8>> {
    reading::read(path, AllowedKinds::FilesHere, BYTES_MAX).ok()
}

/// The same as text.
pub(super) fn text(path: &Path) -> Option<String> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
