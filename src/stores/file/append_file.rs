//! Appends to a file that only one process appends to, and repeats failed appends.
//!
//! A failed append can leave partial bytes. If they begin the new text, only the rest is appended. Otherwise a newline ends
//! them, and readers skip the incomplete line.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::ports::StoreResult;
use crate::stores::fs::FileSystem;

use super::{failed, read_or_empty};

/// The most unfinished bytes that are read: more than one append ever writes.
const UNFINISHED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// The attempts to create a missing folder for one append. A program that is removing the parent folder may remove the new one at once.
const FOLDER_ATTEMPTS_MAX: u32 = 5;

/// The end of a file, as the process that appends to it knows it.
#[derive(Debug, Default)]
pub struct FileEnd {
    /// The length of the complete lines; `None` if it is unknown, which counts as 0.
    valid_bytes: Option<u64>,
    /// True if an incomplete line may follow: the last append failed, or the previous process died.
    may_be_torn: bool,
}

impl FileEnd {
    /// The end of a file that has these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let valid_bytes = complete_bytes(bytes);
        Self { valid_bytes: Some(valid_bytes as u64), may_be_torn: valid_bytes < bytes.len() }
    }

    /// Returns true if the length of the file is known.
    pub fn is_known(&self) -> bool {
        self.valid_bytes.is_some()
    }

    /// The length of the complete lines.
    pub fn bytes(&self) -> u64 {
        self.valid_bytes.unwrap_or(0)
    }

    /// Appends `text`, which is complete lines, and returns its place in the file. Creates a missing folder.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]. A repeated call with this text, or with more text after it, appends each line once.
    pub fn append(&mut self, files: &dyn FileSystem, path: &Path, text: &str) -> StoreResult<Range<u64>> {
        let unfinished =
            if self.may_be_torn { read_or_empty(files, path, self.bytes(), UNFINISHED_BYTES_MAX)? } else { Vec::new() };
        let missing = missing_bytes(&unfinished, text.as_bytes());
        self.may_be_torn = true;
        let mut appended = files.append(path, &missing);
        for _ in 0..FOLDER_ATTEMPTS_MAX {
            if !appended.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                break;
            }
            let folder = path.parent().unwrap_or(path);
            appended = files.create_folder(folder).and_then(|()| files.append(path, &missing));
        }
        let end = appended.map_err(failed("append to", path))? + missing.len() as u64;
        *self = Self { valid_bytes: Some(end), may_be_torn: false };
        Ok(end.saturating_sub(text.len() as u64)..end)
    }

    /// Records that these bytes are not durable, if they are the last ones. They count as torn, so that a retry does not append twice.
    pub fn lose(&mut self, appended: &Range<u64>) {
        if self.valid_bytes == Some(appended.end) {
            *self = Self { valid_bytes: Some(appended.start), may_be_torn: true };
        }
    }
}

/// The length of the complete lines in `bytes`.
pub fn complete_bytes(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)
}

/// Returns the bytes to append so that the file continues with `text`, after `unfinished` was left by a failed append.
fn missing_bytes(unfinished: &[u8], text: &[u8]) -> Vec<u8> {
    match text.strip_prefix(unfinished) {
        Some(rest) => rest.to_owned(),
        None if unfinished.ends_with(b"\n") => text.to_owned(),
        None => [b"\n", text].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_retry_writes_only_missing_bytes() {
        for (unfinished, expected) in [
            ("", "one\ntwo\n"),
            ("one\nt", "wo\n"),
            ("one\n", "two\n"),
            ("one\ntwo\n", ""),
            ("other", "\none\ntwo\n"),
            ("other\n", "one\ntwo\n"),
            ("one\ntwo\nthree", "\none\ntwo\n"),
        ] {
            assert_eq!(missing_bytes(unfinished.as_bytes(), b"one\ntwo\n"), expected.as_bytes(), "{unfinished:?}");
        }
    }
}
