//! The rules of git's ignore files and of `.ignore` files, read from open folders within bounds.
//!
//! As in ripgrep, `.ignore` overrides `.gitignore`, which overrides `.git/info/exclude`. Within one kind the nearest folder decides, and in
//! a file the last matching line. The `ignore` crate parses the lines. It opens no file here, because it would follow links and read
//! pipes and devices.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::platform::reading::{self, AllowedKinds};
use crate::platform::{FileKind, Folder};

/// The largest ignore file, in bytes.
const FILE_BYTES_MAX: u64 = 128 * 1024;
/// The most that one walk reads of all ignore files, in bytes.
const ALL_BYTES_MAX: u64 = 1024 * 1024;
/// The longest rule, in bytes, like the longest path. A longer one matches nothing, and its nesting could overflow the stack.
pub(super) const RULE_BYTES_MAX: usize = 4096;
/// The most ignore files that the notes name.
const NOTES_MAX: usize = 5;
/// The largest `.git` file of a worktree, in bytes.
const POINTER_BYTES_MAX: u64 = 8 * 1024;

/// Reads the ignore files of one walk.
pub(super) struct RuleReader<'a> {
    workspace: &'a Path,
    bytes_left: u64,
    /// The ignore files that could not be read, with reasons.
    pub notes: Vec<String>,
}

/// The rules of a folder and of the folders above it, up to the start of the walk.
pub(super) struct Rules<'a> {
    above: Option<&'a Rules<'a>>,
    /// From `.ignore`, `.gitignore` and `.git/info/exclude`, in this order.
    files: [Gitignore; 3],
}

impl Rules<'_> {
    /// Returns true if the file or folder is ignored. Its path is relative to the workspace.
    pub fn exclude(&self, path: &Path, is_folder: bool) -> bool {
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

    /// Reads the rules of a folder with these entries. `path` is relative to the workspace, and empty for the workspace itself.
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
            // A worktree: its repository is in another place. Only the `.git` file of the workspace itself can lead out of it.
            Some(FileKind::File) if path.as_os_str().is_empty() => open_exclude_of_worktree(self.workspace, folder),
            _ => None,
        };
        if let Some(exclude) = exclude {
            files[2] = self.read(path, ".git/info/exclude", exclude);
        }
        Rules { above, files }
    }

    /// Parses an ignore file in `folder`. If it cannot be read, there are no rules, and a note unless it is missing.
    fn read(&mut self, folder: &Path, name: &str, file: io::Result<File>) -> Gitignore {
        let bytes_max = FILE_BYTES_MAX.min(self.bytes_left);
        let bytes = match file.and_then(|file| reading::read_all(file, bytes_max)) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound && self.notes.len() < NOTES_MAX {
                    let path = folder.join(name);
                    self.notes.push(format!("(cannot use the rules in `{}`: {error})", path.display()));
                }
                return Gitignore::empty();
            }
        };
        self.bytes_left -= bytes.len() as u64;
        let mut builder = GitignoreBuilder::new(folder);
        let text = String::from_utf8_lossy(&bytes);
        for line in text.trim_start_matches('\u{feff}').lines().filter(|line| line.len() <= RULE_BYTES_MAX) {
            // An invalid line matches nothing, as in git.
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
    let common = reading::read(&git_dir.join("commondir"), AllowedKinds::FilesHere, POINTER_BYTES_MAX).ok()?;
    let common: PathBuf = git_dir.join(first_line(common)?);
    Some(reading::open(&common.join("info/exclude"), AllowedKinds::FilesHere))
}
