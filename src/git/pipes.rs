//! Named pipes and terminals in place of files that git reads. Git waits until a process writes to one, and teammates' commands can create
//! one, or a link to one. Only calls that take long start a search.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::files;
use super::settings::user_file;
use crate::domain::git::worktree_name::WORKTREES_FOLDER;

/// The most folder entries that a search visits.
const ENTRIES_MAX: usize = 200_000;
/// The user's files that git reads, in the folder of the user's settings; see git-config(1), FILES.
const USER_FILES: [&str; 3] = ["config", "attributes", "ignore"];

/// The first pipe that git may wait for: among the user's files, in these git folders, or in place of a `.gitignore` or `.gitattributes`.
pub(super) fn find_pipe(git_folders: &[PathBuf], work_tree: Option<&Path>) -> Option<PathBuf> {
    let global = std::env::home_dir().map(|home| home.join(".gitconfig"));
    let persons: Vec<PathBuf> = global.into_iter().chain(USER_FILES.into_iter().filter_map(user_file)).collect();
    let configs = git_folders.iter().flat_map(|folder| ["config", "config.worktree"].map(|name| folder.join(name)));
    let included: Vec<PathBuf> = configs.chain(persons.clone()).flat_map(|config| included_by(&config)).collect();
    let mut entries_left = ENTRIES_MAX;
    persons
        .into_iter()
        .chain(included)
        .find(|path| is_pipe(path))
        .or_else(|| git_folders.iter().find_map(|folder| pipe_in(folder, |_| true, &mut entries_left)))
        .or_else(|| pipe_in(work_tree?, |name| name.as_encoded_bytes().starts_with(b".git"), &mut entries_left))
}

/// The git folder and the top folder of the repository that contains `folder`.
pub(super) fn folders_of(folder: &Path) -> (PathBuf, PathBuf) {
    let top = folder.ancestors().find(|top| top.join(".git").symlink_metadata().is_ok()).unwrap_or(folder);
    (top.join(".git"), top.to_owned())
}

/// The files that a settings file may include: all values of the key `path`; see git-config(1), Includes.
fn included_by(config: &Path) -> Vec<PathBuf> {
    let text = files::text(config).unwrap_or_default();
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let name = name.rsplit(']').next().unwrap_or(name).trim();
        name.eq_ignore_ascii_case("path").then(|| value.trim().trim_matches('"'))
    });
    let resolved = |value: &str| match value.strip_prefix("~/") {
        Some(rest) => std::env::home_dir().unwrap_or_default().join(rest),
        None => config.parent().unwrap_or(config).join(value),
    };
    values.map(resolved).collect()
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
