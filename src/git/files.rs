//! Small files and folders of git and of worktrees. Teammates' commands may have written them, so links, pipes and large files are not
//! read.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::command::failure;
use crate::platform;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::{open_for_reading, open_for_writing};
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

/// Writes a plain file. A link in its place is an error: a repository may contain one that leads anywhere.
pub(super) fn write(path: &Path, text: &str) -> Result<(), RepositoryError> {
    write_bytes(path, text.as_bytes())
}

fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), RepositoryError> {
    let written = open_for_writing(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| failed("write", path, &error))
}

/// Replaces a file as a whole.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), RepositoryError> {
    replace_bytes(path, text.as_bytes())
}

/// The same with bytes.
pub(super) fn replace_bytes(path: &Path, bytes: &[u8]) -> Result<(), RepositoryError> {
    let new = path.with_extension("new");
    write_bytes(&new, bytes)?;
    fs::rename(&new, path).map_err(|error| failed("write", path, &error))
}

/// Copies a file of git, such as an index. The copy gets the time of the original: git reads a file that is as new as its index again,
/// because it may have changed since without a difference in size and time.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<(), RepositoryError> {
    remove_file(to)?;
    let copy = || {
        let mut original = open_for_reading(from)?;
        let mut copy = File::options().write(true).create_new(true).open(to)?;
        io::copy(&mut original, &mut copy)?;
        copy.set_modified(original.metadata()?.modified()?)
    };
    copy().map_err(|error| failed("copy", from, &error))
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
    match platform::remove_folder(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", folder, &error)),
        _ => Ok(()),
    }
}

/// Returns true if the path is a folder, and no link to one.
pub(super) fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// The entries of a folder. A folder that cannot be read has none.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The files in a folder and below it. Links are not followed: one may lead out of the folder.
pub(super) fn below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut paths) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(path) = paths.pop() {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => paths.extend(entries(&path)),
            Ok(_) => files.push(path),
            Err(_) => {}
        }
    }
    files
}

/// The error of an action on a path.
pub(super) fn failed(action: &str, path: &Path, error: &dyn Display) -> RepositoryError {
    failure(format!("{action} {}", path.display()), &error.to_string())
}
