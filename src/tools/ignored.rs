//! What git leaves out of a folder, and what `.ignore` files do: by their rules, read from open folders within bounds.
//!
//! As in ripgrep, `.ignore` counts before `.gitignore` and that before `.git/info/exclude`; of one kind the nearest folder's rules count, and in a file
//! the last line that matches. The `ignore` crate understands the lines. It is not let open files: it follows links and reads pipes and devices.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::platform::reading::{self, Accept};
use crate::platform::{FileKind, Folder};

/// The largest file of rules that is read, in bytes.
const FILE_BYTES_MAX: u64 = 128 * 1024;
/// The most that is read of all such files of one walk, in bytes.
const ALL_BYTES_MAX: u64 = 1024 * 1024;
/// The longest rule, in bytes: a path's length. Longer ones match nothing, and could be nested deeper than the stack.
pub(super) const RULE_BYTES_MAX: usize = 4096;
/// The most files of rules that are named because they could not be read.
const NOTES_MAX: usize = 5;
/// The largest file in which git says where a folder's repository lies, in bytes.
const POINTER_BYTES_MAX: u64 = 8 * 1024;

/// What is read of rules in one walk.
pub(super) struct RuleReader<'a> {
    workspace: &'a Path,
    bytes_left: u64,
    /// The files that could not be read, and why.
    pub notes: Vec<String>,
}

/// The rules of a folder and those of the folders above it, as far as the walk began there.
pub(super) struct Rules<'a> {
    above: Option<&'a Rules<'a>>,
    /// Of `.ignore`, `.gitignore` and `.git/info/exclude`, in this order.
    files: [Gitignore; 3],
}

impl Rules<'_> {
    /// Whether a file or folder is left out; its path is relative to the workspace.
    pub fn leave_out(&self, path: &Path, is_folder: bool) -> bool {
        for kind in 0..self.files.len() {
            let mut next = Some(self);
            while let Some(rules) = next {
                match rules.files[kind].matched(path, is_folder) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => next = rules.above,
                }
            }
        }
        false
    }
}

impl<'a> RuleReader<'a> {
    pub fn new(workspace: &'a Path) -> Self {
        Self { workspace, bytes_left: ALL_BYTES_MAX, notes: Vec::new() }
    }

    /// The rules of a folder that has these entries; `path` is relative to the workspace, and empty for the workspace itself.
    pub fn rules_of<'r>(
        &mut self,
        folder: &Folder,
        path: &Path,
        entries: &[(OsString, FileKind)],
        above: Option<&'r Rules<'r>>,
    ) -> Rules<'r> {
        let kind_of = |name: &str| entries.iter().find(|(entry, _)| entry == name).map(|(_, kind)| *kind);
        let mut files = [Gitignore::empty(), Gitignore::empty(), Gitignore::empty()];
        for (rules, name) in files.iter_mut().zip([".ignore", ".gitignore"]) {
            if kind_of(name).is_some() {
                *rules = self.read(path, name, folder.open_for_reading(name.as_ref()));
            }
        }
        let exclude = match kind_of(".git") {
            Some(FileKind::Folder) => Some(open_exclude(folder)),
            // A worktree's, whose repository lies elsewhere. Below the workspace nothing is to lead out of it.
            Some(FileKind::File) if path.as_os_str().is_empty() => open_exclude_of_worktree(self.workspace, folder),
            _ => None,
        };
        if let Some(exclude) = exclude {
            files[2] = self.read(path, ".git/info/exclude", exclude);
        }
        Rules { above, files }
    }

    /// The rules of a file in `folder`; none where it cannot be read, which is noted unless it is just not there.
    fn read(&mut self, folder: &Path, name: &str, file: io::Result<File>) -> Gitignore {
        let bytes_max = FILE_BYTES_MAX.min(self.bytes_left);
        let bytes = match file.and_then(|file| reading::read_all(file, bytes_max)) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound && self.notes.len() < NOTES_MAX {
                    let path = folder.join(name);
                    self.notes.push(format!("(the rules in `{}` do not count: {error})", path.display()));
                }
                return Gitignore::empty();
            }
        };
        self.bytes_left -= bytes.len() as u64;
        let mut builder = GitignoreBuilder::new(folder);
        let text = String::from_utf8_lossy(&bytes);
        for line in text.trim_start_matches('\u{feff}').lines().filter(|line| line.len() <= RULE_BYTES_MAX) {
            // A line that is no rule matches nothing, as in git.
            let _ = builder.add_line(None, line);
        }
        builder.build().unwrap_or_else(|_| Gitignore::empty())
    }
}

fn open_exclude(folder: &Folder) -> io::Result<File> {
    folder.open_folder(".git".as_ref())?.open_folder("info".as_ref())?.open_for_reading("exclude".as_ref())
}

/// The exclude file of the repository that a worktree belongs to; see gitrepository-layout(5).
fn open_exclude_of_worktree(workspace: &Path, folder: &Folder) -> Option<io::Result<File>> {
    let first_line = |bytes: Vec<u8>| String::from_utf8(bytes).ok()?.lines().next().map(str::to_owned);
    let pointer = reading::read_all(folder.open_for_reading(".git".as_ref()).ok()?, POINTER_BYTES_MAX).ok()?;
    let git_dir = workspace.join(first_line(pointer)?.strip_prefix("gitdir: ")?);
    let common = reading::read(&git_dir.join("commondir"), Accept::FilesHere, POINTER_BYTES_MAX).ok()?;
    let common: PathBuf = git_dir.join(first_line(common)?);
    Some(reading::open(&common.join("info/exclude"), Accept::FilesHere))
}
