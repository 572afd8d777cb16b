//! Named pipes and terminals in place of files that git reads. Git waits until a process writes to one, and teammates' commands can create
//! one, or a link to one. Only calls that take long start a search.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::command::RepoPath;
use crate::domain::git::worktree_name::WORKTREES_FOLDER;

/// The most folder entries that a search visits.
const ENTRIES_MAX: usize = 200_000;

/// The first pipe that git may wait for in this checkout: in its git folders, or in place of a `.gitignore` or `.gitattributes`.
pub(super) fn find_pipe(at: &RepoPath) -> Option<PathBuf> {
    let mut entries_left = ENTRIES_MAX;
    let in_git_folders =
        [&at.git_dir, &at.common_dir].into_iter().find_map(|folder| pipe_in(folder, |_| true, &mut entries_left));
    in_git_folders
        .or_else(|| pipe_in(&at.work_tree, |name| name.as_encoded_bytes().starts_with(b".git"), &mut entries_left))
}

fn pipe_in(top: &Path, is_read: impl Fn(&OsStr) -> bool, entries_left: &mut usize) -> Option<PathBuf> {
    if is_pipe(top) {
        return Some(top.to_owned());
    }
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            *entries_left = entries_left.checked_sub(1)?;
            let (name, path) = (entry.file_name(), entry.path());
            if is_read(&name) && is_pipe(&path) {
                return Some(path);
            }
            // Git folders are searched separately, and git ignores the worktrees.
            let is_other = name == ".git" || name == WORKTREES_FOLDER;
            if !is_other && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            }
        }
    }
    None
}

/// Returns true if a program that reads the path may wait or never come to an end.
fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| {
        let kind = metadata.file_type();
        let is_null = || fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == metadata.rdev());
        kind.is_fifo() || kind.is_char_device() && !is_null()
    })
}
