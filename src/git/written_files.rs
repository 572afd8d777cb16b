//! Restores the files of a checkout that a killed git had begun to update.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::command::{OUTPUT_BYTES_MAX, RepoPath, path_of};
use super::files::remove_file;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

/// The most paths that one call of git gets.
const PATHS_MAX: usize = 500;

/// A path that differs between the checked out commit and the new one.
struct ChangedPath {
    path: PathBuf,
    is_tracked: bool,
    /// Git has written, or removed, the file.
    is_written: bool,
}

/// Restores the files that a killed git wrote to move `at` from its commit to `new`, and that nothing has changed since. Git checked that
/// these files had no changes, and writes its index after them, so the index has what they contained.
pub(super) fn restore_written_files(at: &RepoPath, new: &str) -> Result<(), RepositoryError> {
    let changed = changed_paths(at, new)?;
    let (tracked, added): (Vec<_>, Vec<_>) = changed.iter().partition(|changed| changed.is_tracked);
    for ChangedPath { path, .. } in added.into_iter().filter(|changed| changed.is_written) {
        remove_file(&at.work_tree.join(path))?;
        // It may be in place of a file that is restored below.
        let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let _ = above.map(|above| fs::remove_dir(at.work_tree.join(above))).take_while(Result::is_ok).count();
    }
    let is_lost =
        |changed: &&ChangedPath| changed.is_written || at.work_tree.join(&changed.path).symlink_metadata().is_err();
    let lost: Vec<&ChangedPath> = tracked.into_iter().filter(is_lost).collect();
    for lost in lost.chunks(PATHS_MAX) {
        let options = ["checkout-index", "--force", "--"].map(OsString::from);
        let paths = lost.iter().map(|changed| changed.path.clone().into_os_string());
        at.git(options.into_iter().chain(paths)).ok()?;
    }
    Ok(())
}

/// The paths that differ, except those that a sparse checkout leaves out.
fn changed_paths(at: &RepoPath, new: &str) -> Result<Vec<ChangedPath>, RepositoryError> {
    let index = at.git(["ls-files", "-t", "-z"]).ok()?;
    // A letter, a space and the path; see git-ls-files(1).
    let letters: HashMap<PathBuf, u8> =
        index.fields().filter(|field| field.len() > 2).map(|field| (path_of(&field[2..]), field[0])).collect();
    let output = at.git(["diff-tree", "-r", "-z", "--name-only", "--no-renames", "HEAD", new]).ok()?;
    let mut changed = Vec::new();
    for path in output.fields().map(path_of) {
        let letter = letters.get(&path);
        let has_link = path.ancestors().skip(1).any(|above| at.work_tree.join(above).is_symlink());
        if letter == Some(&b'S') || has_link {
            continue;
        }
        let is_tracked = letter.is_some();
        let file = at.work_tree.join(&path);
        let is_written = match file.symlink_metadata() {
            Err(_) => is_tracked,
            Ok(_) => is_part_of(at, &file, new, &path)?,
        };
        changed.push(ChangedPath { path, is_tracked, is_written });
    }
    Ok(changed)
}

/// Returns true if the file has the content of `path` in `commit`, or a beginning of it.
fn is_part_of(at: &RepoPath, file: &Path, commit: &str, path: &Path) -> Result<bool, RepositoryError> {
    let content = match fs::read_link(file) {
        Ok(target) => target.into_os_string().into_encoded_bytes(),
        Err(_) => match reading::read(file, AllowedKinds::FilesHere, OUTPUT_BYTES_MAX) {
            Ok(content) => content,
            Err(_) => return Ok(false),
        },
    };
    let mut name = OsString::from(format!("{commit}:"));
    name.push(path);
    // As a checkout writes it, with the line ends and filters of this path.
    let output = at.git(["cat-file".into(), "--filters".into(), name]).run()?;
    Ok(output.code == 0 && output.out.starts_with(&content))
}
