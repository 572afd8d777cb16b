//! Moves ignored files of a task into the workspace, as the setting `keep` says, and keeps the place of a task that has others.
//!
//! A file moves by one rename to a name that does not exist, so a kill leaves it in the place or in the workspace. Before each move its
//! new path goes into a journal in the place. So a report after a kill still names the files that were moved.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::RepositoryInner;
use super::command::{RepoPath, failure, path_of, paths_ended_by, text_of};
use super::files::{self, failed, remove_file};
use super::ignored_work::{IgnoredWalk, WITH_IGNORED, WorkFile, split_ignored, summary};
use super::merges::is_invalid_component;
use super::setup::PORT_FILE;
use crate::domain::git::ignored_files::{FileList, FileSize, IgnoredFiles, NAMED_MAX, NotMovedFile};
use crate::domain::task::TaskId;
use crate::domain::text::units::bytes;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::{Folder, open_for_appending};
use crate::ports::{Durability, RepositoryError, Worktree};

/// The file, in a place, with the files that were moved out of it.
const MOVED_FILE: &str = ".agent/moved";
/// The file, in a place, that says that it is kept for ignored files.
const KEPT_FILE: &str = ".agent/kept";
/// The most bytes of a task that are moved.
const KEEP_BYTES_MAX: u64 = 100 * 1024 * 1024;
/// The name of a copy that is being made of a file.
const COPY_NAME: &str = ".brigade-copy";
/// The largest journal that is read, in bytes.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Names that are tried for a file.
const NAMES_MAX: u32 = 1_000;

/// The content of [`KEPT_FILE`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KeptPlace {
    /// The patterns of the setting `keep`: files that they name are no caches.
    pub keep: Vec<String>,
    /// The digest of a failed attempt's place whose uncommitted files are in a commit of Brigade's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct MovedFile {
    /// The path in the workspace.
    path: PathBuf,
    inode: u64,
    bytes: u64,
}

impl RepositoryInner {
    /// Moves the ignored files that `keep` names, and lists the others.
    pub(super) fn move_ignored_files(&self, worktree: &Worktree) -> Result<IgnoredFiles, RepositoryError> {
        let Some(at) = self.main.place_at(&worktree.root).map(RepoPath::confined) else {
            return Ok(IgnoredFiles::default());
        };
        at.remove_dead_locks()?;
        let (ignored, _) = split_ignored(&at.changes(&[WITH_IGNORED])?);
        self.move_ignored(&at, worktree.assignment.task, ignored)
    }

    /// The files of the task among these ignored entries.
    pub(super) fn task_files(&self, at: &RepoPath, ignored: Vec<PathBuf>) -> Result<Vec<WorkFile>, RepositoryError> {
        IgnoredWalk::new(&self.main, at, &self.keep).task_files(ignored, |path| self.is_control_file(path))
    }

    /// As [`Self::move_ignored_files`], for these ignored entries.
    pub(super) fn move_ignored(
        &self,
        at: &RepoPath,
        task: TaskId,
        ignored: Vec<PathBuf>,
    ) -> Result<IgnoredFiles, RepositoryError> {
        let journal = at.work_tree.join(MOVED_FILE);
        let mut moved = self.moved_files(&journal);
        let mut bytes_left = moved.iter().fold(KEEP_BYTES_MAX, |left, file| left.saturating_sub(file.bytes));
        let (mut left, mut not_moved) = (Vec::new(), Vec::new());
        let files = self.task_files(at, ignored)?;
        let ignored_here = self.ignored_here(files.iter().filter(|file| file.is_kept).map(|file| &file.path))?;
        for file in files {
            if !file.is_kept {
                left.push(file);
                continue;
            }
            let result = match bytes_left.checked_sub(file.bytes) {
                Some(_) if self.is_below_link(&file.path) => {
                    Err("a folder above it is a link in the workspace".to_owned())
                }
                Some(_) if !ignored_here.contains(&file.path) => Err(not_ignored(&file.path)),
                Some(rest) => self.move_file(at, &journal, &file, task).map(|to| (to, rest)),
                None => Err(format!("the files that `keep` moves have more than {}", bytes(KEEP_BYTES_MAX))),
            };
            match result {
                Ok((to, rest)) => {
                    bytes_left = rest;
                    moved.push(FileSize { path: text_of(&to), bytes: file.bytes });
                }
                Err(reason) => {
                    if not_moved.len() < NAMED_MAX {
                        not_moved.push(NotMovedFile { path: text_of(&file.path), reason });
                    }
                    left.push(file);
                }
            }
        }
        Ok(IgnoredFiles { moved: FileList::of(moved), left: summary(&left), not_moved })
    }

    fn is_below_link(&self, path: &Path) -> bool {
        path.ancestors()
            .skip(1)
            .any(|above| !above.as_os_str().is_empty() && self.main.work_tree.join(above).is_symlink())
    }

    /// Returns the paths among these that git ignores in the workspace. The rules there can differ from those of the task.
    fn ignored_here<'a>(&self, paths: impl Iterator<Item = &'a PathBuf>) -> Result<HashSet<PathBuf>, RepositoryError> {
        // Git fails on the others.
        let input = paths_ended_by(0, paths.filter(|path| !self.is_below_link(path)));
        if input.is_empty() {
            return Ok(HashSet::new());
        }
        let output = self.main.git(["check-ignore", "-z", "--stdin"]).input(input).run()?;
        if output.code > 1 {
            return Err(failure("run git check-ignore".to_owned(), &output.err));
        }
        Ok(output.fields().map(path_of).collect())
    }

    /// The files that an earlier call moved, and that are still where it put them.
    fn moved_files(&self, journal: &Path) -> Vec<FileSize> {
        let text = reading::read(journal, AllowedKinds::FilesHere, JOURNAL_BYTES_MAX).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<MovedFile>(line).ok());
        let is_there = |file: &MovedFile| {
            let to = self.main.work_tree.join(&file.path).symlink_metadata();
            to.is_ok_and(|to| to.is_file() && to.ino() == file.inode)
        };
        lines.filter(is_there).map(|file| FileSize { path: text_of(&file.path), bytes: file.bytes }).collect()
    }

    /// Moves a file to the same path in the workspace, or to one beside it if that exists and git ignores the new one. Follows no link. The
    /// error is the reason, for people.
    fn move_file(&self, at: &RepoPath, journal: &Path, file: &WorkFile, task: TaskId) -> Result<PathBuf, String> {
        if !file.is_plain {
            return Err("it is not a plain file that can be read".to_owned());
        }
        let is_forbidden = text_of(&file.path).split('/').any(is_invalid_component);
        if is_forbidden || self.is_control_file(&file.path) {
            return Err("it is a file of git or of Brigade".to_owned());
        }
        let moved = || -> std::io::Result<PathBuf> {
            let above = file.path.parent().unwrap_or(Path::new(""));
            let name = file.path.file_name().unwrap_or_default();
            let from = open_below(&at.work_tree, above, false)?;
            let mut original = from.open_plain_file(name)?;
            if original.metadata.nlink() > 1 {
                end_other_names(&from, name)?;
                original = from.open_plain_file(name)?;
            }
            let to = open_below(&self.main.work_tree, above, true)?;
            if self.branch.durability == Durability::Power {
                original.file.sync_all()?;
            }
            for number in 0..NAMES_MAX {
                let mut new_name = name.to_owned();
                match number {
                    0 => {}
                    1 => new_name.push(format!(".task-{}", task.0)),
                    _ => new_name.push(format!(".task-{}.{number}", task.0)),
                }
                if to.exists(&new_name)? {
                    continue;
                }
                let path = above.join(&new_name);
                // A `git add` of the person would publish it.
                if number > 0 && self.ignored_here([&path].into_iter()).map_err(std::io::Error::other)?.is_empty() {
                    return Err(std::io::Error::other(format!("it exists there, and {}", not_ignored(&path))));
                }
                let (inode, bytes) = (original.metadata.ino(), original.metadata.len());
                append(journal, &MovedFile { path: path.clone(), inode, bytes })?;
                match from.rename_new(name, &to, &new_name) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                    Ok(()) => return Ok(path),
                }
            }
            Err(ErrorKind::AlreadyExists.into())
        };
        moved().map_err(|error| error.to_string())
    }

    /// Keeps the place for its ignored files, after its other work is merged or saved.
    /// `saved` is the digest of the place of a failed attempt.
    pub(super) fn keep_place(&self, root: &Path, saved: Option<String>) -> Result<(), RepositoryError> {
        let kept = KeptPlace { keep: self.keep.clone(), saved };
        let text = serde_json::to_vec(&kept).map_err(|error| failed("write", &root.join(KEPT_FILE), &error))?;
        files::replace_bytes(&root.join(KEPT_FILE), &text)?;
        // Another place can have its ports.
        remove_file(&root.join(PORT_FILE))
    }

    /// Forgets that the place was kept: its task is done again.
    pub(super) fn use_kept_place(&self, root: &Path) -> Result<(), RepositoryError> {
        if root.join(KEPT_FILE).symlink_metadata().is_err() {
            return Ok(());
        }
        remove_file(&root.join(MOVED_FILE))?;
        remove_file(&root.join(KEPT_FILE))
    }
}

/// The record of a place that is kept for ignored files; `None` for others.
pub(super) fn kept_place(root: &Path) -> Option<KeptPlace> {
    serde_json::from_slice(&files::bytes(&root.join(KEPT_FILE))?).ok()
}

fn not_ignored(path: &Path) -> String {
    format!("git does not ignore {} in the workspace", text_of(path))
}

/// Opens a folder below `top` through no link. Creates the folders that are missing if `creates` is true.
fn open_below(top: &Path, path: &Path, creates: bool) -> std::io::Result<Folder> {
    let mut folder = Folder::open(top)?;
    for name in path {
        if creates {
            folder.create_folder(name)?;
        }
        folder = folder.open_folder(name)?;
    }
    Ok(folder)
}

/// Replaces a file by a copy. Commands could change the file later through another name that it has in the place.
fn end_other_names(folder: &Folder, name: &OsStr) -> std::io::Result<()> {
    let folder = folder.to_dir()?;
    folder.copy(name, &folder, COPY_NAME)?;
    folder.rename(COPY_NAME, &folder, name)
}

fn append(journal: &Path, file: &MovedFile) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(file)?;
    line.push(b'\n');
    open_for_appending(journal)?.write_all(&line)
}
