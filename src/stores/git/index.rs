//! A worktree's index: which of its entries git was told not to look at, and which are repositories within.

use std::fs;
use std::path::{Path, PathBuf};

use super::run::{At, path_of, paths_ended_by};
use crate::ports::RepositoryError;

/// The mode of a repository within another one.
pub(super) const REPOSITORY_MODE: &str = "160000";

/// An entry of the index.
struct Entry {
    /// Whether git was told to take it for unchanged.
    is_assumed: bool,
    /// Whether git was told to leave it out of the worktree.
    is_skipped: bool,
    is_repository: bool,
    path: PathBuf,
}

/// Has git look at all that is in the worktree again, and returns the repositories within.
///
/// An entry that git was told to take for unchanged, or to leave out though it is there, would be missing from what is committed and be lost
/// with the worktree. See git-ls-files(1) for the letters: a small one is assumed to be unchanged, an `S` is left out.
pub(super) fn reveal(at: &At) -> Result<Vec<PathBuf>, RepositoryError> {
    let said = at.git(["ls-files", "-v", "--stage", "-z"]).ok()?;
    let entries: Vec<Entry> = said.fields().filter_map(entry).collect();
    let is_there = |entry: &&Entry| at.work_tree.join(&entry.path).symlink_metadata().is_ok();
    for (option, hidden) in [
        ("--no-assume-unchanged", entries.iter().filter(|entry| entry.is_assumed).collect::<Vec<_>>()),
        ("--no-skip-worktree", entries.iter().filter(|entry| entry.is_skipped).filter(is_there).collect()),
    ] {
        if !hidden.is_empty() {
            let paths = paths_ended_by(0, hidden.iter().map(|entry| &entry.path));
            at.git(["update-index", option, "-z", "--stdin"]).input(paths).ok()?;
        }
    }
    Ok(entries.into_iter().filter(|entry| entry.is_repository).map(|entry| entry.path).collect())
}

/// `<letter> <mode> <object> <stage>`, a tab, and the path.
fn entry(field: &[u8]) -> Option<Entry> {
    let tab = field.iter().position(|byte| *byte == b'\t')?;
    let (letter, mode) = std::str::from_utf8(&field[..tab]).ok()?.split_once(' ')?;
    let letter = letter.chars().next()?;
    Some(Entry {
        is_assumed: letter.is_ascii_lowercase(),
        is_skipped: letter.eq_ignore_ascii_case(&'s'),
        is_repository: mode.starts_with(REPOSITORY_MODE),
        path: path_of(&field[tab + 1..]),
    })
}

/// The first of these repositories within that has anything in its folder.
pub(super) fn occupied<'a>(at: &At, repositories: &'a [PathBuf]) -> Option<&'a PathBuf> {
    repositories.iter().find(|path| is_occupied(&at.work_tree.join(path)))
}

/// Whether this is a folder with anything in it.
pub(super) fn is_occupied(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
