//! A worktree's index: entries that git was told to ignore, and nested repositories.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::{RepoPath, path_of, paths_ended_by};
use super::setup::has_changed_since_setup;
use crate::ports::RepositoryError;

/// The mode of a nested repository.
pub(super) const REPOSITORY_MODE: &str = "160000";

/// An entry of the index.
struct TrackedEntry {
    /// Marked as "assume unchanged".
    is_assumed: bool,
    /// Marked as "skip worktree".
    is_skipped: bool,
    is_repository: bool,
    path: PathBuf,
}

/// Removes the "assume unchanged" and "skip worktree" flags of existing files, and returns the nested repositories.
///
/// Otherwise a commit would miss changes of flagged files, and they would be lost with the worktree. See git-ls-files(1) for the
/// letters: a lowercase one means "assume unchanged", an `S` means "skip worktree".
pub(super) fn clear_skip_worktree(at: &RepoPath) -> Result<Vec<PathBuf>, RepositoryError> {
    let output = at.git(["ls-files", "-v", "--stage", "-z"]).ok()?;
    let entries: Vec<TrackedEntry> = output.fields().filter_map(parse_entry).collect();
    let exists = |entry: &&TrackedEntry| at.work_tree.join(&entry.path).symlink_metadata().is_ok();
    for (option, flagged) in [
        ("--no-assume-unchanged", entries.iter().filter(|entry| entry.is_assumed).collect::<Vec<_>>()),
        ("--no-skip-worktree", entries.iter().filter(|entry| entry.is_skipped).filter(exists).collect()),
    ] {
        if !flagged.is_empty() {
            let paths = paths_ended_by(0, flagged.iter().map(|entry| &entry.path));
            at.git(["update-index", option, "-z", "--stdin"]).input(paths).ok()?;
        }
    }
    Ok(entries.into_iter().filter(|entry| entry.is_repository).map(|entry| entry.path).collect())
}

/// Parses `<letter> <mode> <object> <stage>`, a tab, and the path.
fn parse_entry(field: &[u8]) -> Option<TrackedEntry> {
    let tab = field.iter().position(|byte| *byte == b'\t')?;
    let (letter, mode) = std::str::from_utf8(&field[..tab]).ok()?.split_once(' ')?;
    let letter = letter.chars().next()?;
    Some(TrackedEntry {
        is_assumed: letter.is_ascii_lowercase(),
        is_skipped: letter.eq_ignore_ascii_case(&'s'),
        is_repository: mode.starts_with(REPOSITORY_MODE),
        path: path_of(&field[tab + 1..]),
    })
}

/// The first of these nested repositories that may have work in it: its folder is neither empty nor as the set-up left it.
pub(super) fn first_with_work<'a>(at: &RepoPath, repositories: &'a [PathBuf]) -> Option<&'a PathBuf> {
    repositories.iter().find(|path| {
        let folder = at.work_tree.join(path);
        is_non_empty_folder(&folder) && has_changed_since_setup(at, &folder)
    })
}

/// Returns true if the path is a folder that is not empty.
pub(super) fn is_non_empty_folder(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
