//! Small files and folders of git and of worktrees. Teammates' commands may have written them, so links, pipes and large files are not
//! read.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::command::failure;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

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

/// Replaces a file as a whole.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), RepositoryError> {
    let new = path.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).map_err(|error| failed("write", path, &error))
}

/// Removes a file if it exists.
pub(super) fn remove_file(file: &Path) -> Result<(), RepositoryError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", file, &error)),
        _ => Ok(()),
    }
}

/// Removes a folder and its contents if it exists.
pub(super) fn remove_folder(folder: &Path) -> Result<(), RepositoryError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", folder, &error)),
        _ => Ok(()),
    }
}

/// The entries of a folder. A folder that cannot be read has none.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The error of an action on a path.
pub(super) fn failed(action: &str, path: &Path, error: &dyn Display) -> RepositoryError {
    failure(format!("{action} {}", path.display()), &error.to_string())
}
