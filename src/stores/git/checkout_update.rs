//! Updates the files of the user's checkout from one commit to another, if none of the user's files block that. File contents tell
//! the partly written files of an interrupted git from the user's changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::RepositoryInner;
use super::command::{OUTPUT_BYTES_MAX, path_of, paths_ended_by, pathspec};
use super::commits::list_files;
use super::index_flags::{REPOSITORY_MODE, is_non_empty_folder};
use super::merges::parse_modes;
use super::worktrees::failed;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

/// The number of paths in one call of git.
const PATHS_MAX: usize = 500;
/// The time another git process may hold the index lock, and the polling interval.
const INDEX_WAIT: Duration = Duration::from_secs(2);
const INDEX_PAUSE: Duration = Duration::from_millis(10);

/// Files of an interrupted update that a checkout may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residue {
    /// Only complete files: no process was killed since.
    None,
    /// Also partly written files: a process was killed, or the disk was full.
    Partial,
}

/// The result of an update of the checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckoutUpdate {
    /// All files are updated.
    All,
    /// Nothing was changed; the text names what blocks the update.
    Nothing(String),
    /// Git failed during the update, for this reason. Files may be partly written.
    Part(String),
}

/// Git's error text, shortened to the names of the blocking files if it names any.
fn describe_refusal(error_text: &str) -> String {
    // For example "error: Entry 'f.txt' not uptodate. Cannot merge." Paths are relative to the top folder.
    let quoted = |line: &str| line.split('\'').nth(1).filter(|name| !name.starts_with('/')).map(PathBuf::from);
    let names: Vec<PathBuf> = error_text.lines().filter_map(quoted).collect();
    if names.is_empty() {
        return error_text.trim().replace('\n', " ");
    }
    format!("blocked by {}", list_files(&names))
}

impl RepositoryInner {
    /// Updates the user's files from `old` to `new`. It first restores files that an interrupted update wrote, if they block it.
    pub(super) fn fast_forward(
        &self,
        old: &str,
        new: &str,
        residue: Residue,
    ) -> Result<CheckoutUpdate, RepositoryError> {
        let mut why = self.blocking_paths(old, new)?;
        if why.is_some() && self.restore_files(old, new, residue)? {
            why = self.blocking_paths(old, new)?;
        }
        match why {
            Some(why) => Ok(CheckoutUpdate::Nothing(why)),
            None => self.fast_forward_clean(old, new),
        }
    }

    /// Updates the user's files from `old` to `new`, which nothing blocks.
    pub(super) fn fast_forward_clean(&self, old: &str, new: &str) -> Result<CheckoutUpdate, RepositoryError> {
        let why = match self.main.git(["read-tree", "-m", "-u", old, new]).run() {
            Ok(output) if output.code == 0 => return Ok(CheckoutUpdate::All),
            Ok(output) => describe_refusal(&output.err),
            Err(error) => error.to_string(),
        };
        // Git writes the files first and its index last, so written files must be restored. On a full disk that may fail.
        Ok(match self.restore_files(old, new, Residue::Partial) {
            Ok(true) if self.blocking_paths(old, new)?.is_none() => CheckoutUpdate::Nothing(why),
            _ => CheckoutUpdate::Part(why),
        })
    }

    /// The user's files that block an update from `old` to `new`, as text.
    pub(super) fn blocking_paths(&self, old: &str, new: &str) -> Result<Option<String>, RepositoryError> {
        // If the lock stays, the calls below fail and say so.
        self.is_index_locked();
        // It exits with 1 if files differ; the next call reports those that matter.
        self.main.git(["update-index", "-q", "--refresh"]).run()?;
        let output = self.main.git(["read-tree", "-m", "-u", "--dry-run", old, new]).run()?;
        if output.code != 0 {
            return Ok(Some(describe_refusal(&output.err)));
        }
        let untracked = self.blocking_untracked(old, new)?;
        Ok((!untracked.is_empty())
            .then(|| format!("the merge has files that are untracked in your checkout: {}", list_files(&untracked))))
    }

    /// Untracked files, ignored or not, that the update would overwrite or remove.
    fn blocking_untracked(&self, old: &str, new: &str) -> Result<Vec<PathBuf>, RepositoryError> {
        let options = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=ADT"];
        let output = self.main.git(options.iter().chain(&[old, new])).ok()?;
        let (mut untracked, mut existing) = (Vec::new(), BTreeSet::new());
        let mut fields = output.fields();
        while let (Some(head), Some(path)) = (fields.next(), fields.next()) {
            let ([before, _], path) = (parse_modes(head), path_of(path));
            if before == REPOSITORY_MODE {
                // All files in a submodule's folder are the user's: git checks none of them.
                untracked.extend(is_non_empty_folder(&self.main.work_tree.join(&path)).then_some(path));
            } else if !head.ends_with(b"D") {
                existing.extend(self.first_existing(&path));
            }
        }
        for paths in existing.into_iter().collect::<Vec<_>>().chunks(PATHS_MAX) {
            let options = ["ls-files", "--others", "-z", "--"].map(OsString::from);
            let paths = paths.iter().map(|path| pathspec("", path));
            untracked.extend(self.main.git(options.into_iter().chain(paths)).ok()?.fields().map(path_of));
        }
        Ok(untracked)
    }

    /// The first existing file on the way to `path`: the path itself, or something in place of one of its parent folders.
    fn first_existing(&self, path: &Path) -> Option<PathBuf> {
        let above: Vec<&Path> = path.ancestors().filter(|above| !above.as_os_str().is_empty()).collect();
        for part in above.into_iter().rev() {
            let metadata = self.main.work_tree.join(part).symlink_metadata().ok()?;
            if part == path || !metadata.is_dir() {
                return Some(part.to_owned());
            }
        }
        None
    }

    /// Waits for the index lock. Returns whether it is still held, for example because its git was killed.
    pub(super) fn is_index_locked(&self) -> bool {
        let (lock, started_at) = (self.main.git_dir.join("index.lock"), Instant::now());
        while lock.symlink_metadata().is_ok() {
            if started_at.elapsed() > INDEX_WAIT {
                return true;
            }
            thread::sleep(INDEX_PAUSE);
        }
        false
    }

    /// Restores the files that have the content of a later merge, or a beginning of it. An interrupted git wrote them, but not its
    /// index. Returns whether there were any.
    fn restore_files(&self, old: &str, new: &str, residue: Residue) -> Result<bool, RepositoryError> {
        if self.is_index_locked() {
            return Ok(false);
        }
        let staged = self.main.git(["diff-index", "--cached", "--name-only", "--no-renames", "-z", old]).ok()?;
        let staged: HashSet<PathBuf> = staged.fields().map(path_of).collect();
        let mut written = self.written_between(old, new)?;
        written.retain(|path, _| {
            // A parent folder that is a link leads outside of the checkout.
            let is_file = self.first_existing(path).is_some_and(|first| {
                first == *path && self.main.work_tree.join(path).symlink_metadata().is_ok_and(|file| file.is_file())
            });
            // The next call of git reads one path per line.
            is_file && !staged.contains(path) && !path.as_os_str().as_encoded_bytes().contains(&b'\n')
        });
        let paths = paths_ended_by(b'\n', written.keys());
        let hashes = self.main.git(["hash-object", "--stdin-paths"]).input(paths).ok()?.line();
        let mut has_restored = false;
        for ((path, blobs), hash) in written.iter().zip(hashes.lines()) {
            let is_written_by_update = blobs.iter().any(|blob| blob == hash)
                || (residue == Residue::Partial && self.is_prefix_of(path, blobs)?);
            if is_written_by_update && !self.is_at(old, path, hash)? {
                self.restore(old, path)?;
                has_restored = true;
            }
        }
        Ok(has_restored)
    }

    /// The blobs that commits after `old`, up to `new`, wrote, by path.
    fn written_between(&self, old: &str, new: &str) -> Result<BTreeMap<PathBuf, Vec<String>>, RepositoryError> {
        let range = format!("{old}..{new}");
        let options = ["log", "--format=", "--raw", "-z", "--no-abbrev", "--no-renames", "-m", "--first-parent"];
        let output = self.main.git(options.iter().chain(&[range.as_str()])).ok()?;
        let (mut written, mut fields) = (BTreeMap::<PathBuf, Vec<String>>::new(), output.fields());
        while let Some(head) = fields.next() {
            // The format is `:<mode> <mode> <blob> <blob> <kind>`, then the path.
            let Some(head) = head.trim_ascii_start().strip_prefix(b":") else { continue };
            if let (Some(blob), Some(path)) = (head.split(|byte| *byte == b' ').nth(3), fields.next()) {
                written.entry(path_of(path)).or_default().push(String::from_utf8_lossy(blob).into_owned());
            }
        }
        Ok(written)
    }

    /// Returns `true` if the file is a prefix of one of these blobs, so that restoring it loses nothing.
    fn is_prefix_of(&self, path: &Path, blobs: &[String]) -> Result<bool, RepositoryError> {
        let file = self.main.work_tree.join(path);
        let Ok(content) = reading::read(&file, AllowedKinds::FilesHere, OUTPUT_BYTES_MAX) else { return Ok(false) };
        for blob in blobs {
            // As a checkout would write it, with the line ends and filters of this path.
            let mut path_option = OsString::from("--path=");
            path_option.push(path);
            let call = ["cat-file", "--filters"].map(OsString::from).into_iter().chain([path_option, blob.into()]);
            let output = self.main.git(call).run()?;
            if output.code == 0 && output.out.starts_with(&content) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns `true` if the commit has the blob `hash` at this path.
    fn is_at(&self, commit: &str, path: &Path, hash: &str) -> Result<bool, RepositoryError> {
        Ok(self.blob_at(commit, path)?.is_some_and(|blob| blob == hash))
    }

    /// The blob at a path in a commit.
    fn blob_at(&self, commit: &str, path: &Path) -> Result<Option<String>, RepositoryError> {
        let mut name = OsString::from(format!("{commit}:"));
        name.push(path);
        let options = ["rev-parse", "--verify", "--quiet"].map(OsString::from);
        let output = self.main.git(options.into_iter().chain([name])).run()?;
        Ok((output.code == 0).then(|| output.line()))
    }

    /// Restores a file to its version in `commit`, which is also that of the index.
    fn restore(&self, commit: &str, path: &Path) -> Result<(), RepositoryError> {
        if self.blob_at(commit, path)?.is_some() {
            let options = ["checkout-index", "--force", "--index", "--"].map(OsStr::new);
            return self.main.git(options.iter().copied().chain([path.as_os_str()])).ok().map(drop);
        }
        let file = self.main.work_tree.join(path);
        fs::remove_file(&file).map_err(|error| failed("remove", &file, &error))
    }
}
