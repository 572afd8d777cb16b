//! Appending to files that only one process appends to, after an append that failed halfway.
//!
//! What such an append left is either the beginning of what is appended now, and then only the rest is; or it is closed by a
//! newline, and readers pass over the torn line.

use std::io;
use std::path::Path;

use crate::ports::StoreResult;
use crate::stores::fs::FileSystem;

use super::failed;

/// The most that one append writes, in bytes, with room to spare.
const LEFT_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// What lies behind the first `sound_bytes` bytes of the file.
///
/// # Errors
/// [`crate::ports::StoreError::Io`].
pub fn left_behind(files: &dyn FileSystem, path: &Path, sound_bytes: u64) -> StoreResult<Vec<u8>> {
    match files.read(path, sound_bytes, LEFT_BYTES_MAX) {
        Ok((bytes, _)) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// What is still to be appended behind `left` so that `text` stands there.
#[must_use]
pub fn rest_behind(left: &[u8], text: &[u8]) -> Vec<u8> {
    match text.strip_prefix(left) {
        Some(rest) => rest.to_owned(),
        None if left.ends_with(b"\n") => text.to_owned(),
        None => [b"\n", text].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_appended() {
        for (left, expected) in [
            ("", "one\ntwo\n"),
            ("one\nt", "wo\n"),
            ("one\n", "two\n"),
            ("one\ntwo\n", ""),
            ("other", "\none\ntwo\n"),
            ("other\n", "one\ntwo\n"),
            ("one\ntwo\nthree", "\none\ntwo\n"),
        ] {
            assert_eq!(rest_behind(left.as_bytes(), b"one\ntwo\n"), expected.as_bytes(), "{left:?}");
        }
    }
}
