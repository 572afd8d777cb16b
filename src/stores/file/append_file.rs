//! Repeats a failed append to a file that only one process appends to.
//!
//! A failed append can leave partial bytes. If they begin the new text, only the rest is appended. Otherwise a newline ends
//! them, and readers skip the incomplete line.

use std::io;
use std::path::Path;

use crate::ports::StoreResult;
use crate::stores::fs::FileSystem;

use super::failed;

/// The most unfinished bytes that are read: more than one append ever writes.
const UNFINISHED_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Returns the bytes after the first `valid_bytes` bytes of the file. A missing file has none.
///
/// # Errors
/// [`crate::ports::StoreError::Io`].
pub fn unfinished_bytes(files: &dyn FileSystem, path: &Path, valid_bytes: u64) -> StoreResult<Vec<u8>> {
    match files.read(path, valid_bytes, UNFINISHED_BYTES_MAX) {
        Ok((bytes, _)) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Returns the bytes to append so that the file continues with `text`, after `unfinished` was left by a failed append.
#[must_use]
pub fn missing_bytes(unfinished: &[u8], text: &[u8]) -> Vec<u8> {
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
