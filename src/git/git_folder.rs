//! The git folder of a place: a clone of the person's repository with its own index, refs and HEAD, which borrows all objects.
//!
//! Git's own `clone --local` takes more time, and its hard links would let a command change the packs of the person's repository
//! through its own link. See gitrepository-layout(5) for the files, and git-config(1), Includes.
//!
//! Commands cannot write `config` and `commondir` there; see [`super::write_scope`]. `commondir` names the git folder itself: another
//! one would have settings that any git runs.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, OpenOptions};

use super::command::{RepoPath, path_of};
use super::files::{self, failed};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::TASK_BRANCHES;
use crate::platform::Folder;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

/// The file that names the git folder with the shared files, such as `config`.
pub(super) const COMMON_FILE: &str = "commondir";
/// Files of the person's checkout and of its repository that a place gets as they are, relative to the git folder.
const COPIED_FILES: [&str; 4] = ["info/sparse-checkout", "info/exclude", "info/attributes", "shallow"];
/// The largest file that is copied, in bytes. A shallow repository has a line for each of its oldest commits.
const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most object folders that are followed. Git itself follows only a few.
const ALTERNATES_MAX: usize = 100;
/// The refs of the person's repository that a place starts with.
const COPIED_REFS: [&str; 3] = ["refs/heads", "refs/tags", "refs/remotes"];

/// The checkout of a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Head<'a> {
    /// This branch, at the commit.
    Branch(&'a BranchName),
    /// The commit, on no branch.
    Detached,
}

/// The git folder of a place. Commands may have put links there, but none leads a change of Brigade out of the folder.
pub(super) struct GitFolder {
    path: PathBuf,
    folder: Dir,
}

impl GitFolder {
    pub(super) fn open(path: &Path) -> Result<Self, RepositoryError> {
        let folder = Folder::open(path).and_then(|folder| folder.to_dir());
        Ok(Self { path: path.to_owned(), folder: folder.map_err(|error| failed("open", path, &error))? })
    }

    /// Replaces a file as a whole, unless it has this content.
    pub(super) fn replace(&self, name: &str, content: &[u8]) -> Result<(), RepositoryError> {
        if files::bytes(&self.path.join(name)).is_some_and(|existing| existing == content) {
            return Ok(());
        }
        self.remove(&format!("{name}.new"))?;
        self.replace_by(name, ".new", content)
    }

    /// Sets a ref as git does: a new file with the name of its lock replaces it. So it fails while git changes the ref.
    pub(super) fn set_ref(&self, name: &str, commit: &str) -> Result<(), RepositoryError> {
        self.replace_by(name, ".lock", format!("{commit}\n").as_bytes())
    }

    /// Removes a file if it exists.
    pub(super) fn remove(&self, name: &str) -> Result<(), RepositoryError> {
        match self.folder.remove_file(name) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", &self.path.join(name), &error)),
            _ => Ok(()),
        }
    }

    /// Writes a file beside this one, whose name has the additional end, and renames it.
    fn replace_by(&self, name: &str, end: &str, content: &[u8]) -> Result<(), RepositoryError> {
        let new = format!("{name}{end}");
        let replace = || {
            if let Some(above) = Path::new(name).parent() {
                self.folder.create_dir_all(above)?;
            }
            let mut file = self.folder.open_with(&new, OpenOptions::new().write(true).create_new(true))?;
            let replaced = file.write_all(content).and_then(|()| self.folder.rename(&new, &self.folder, name));
            if replaced.is_err() {
                // A lock that stays would block git.
                let _ = self.folder.remove_file(&new);
            }
            replaced
        };
        replace().map_err(|error| failed("write", &self.path.join(name), &error))
    }
}

impl RepoPath {
    /// Writes the git folder of a new place, without an index.
    pub(super) fn write_git_folder(&self, git_dir: &Path, head: Head<'_>, commit: &str) -> Result<(), RepositoryError> {
        let refs = git_dir.join("refs/heads");
        std::fs::create_dir_all(&refs).map_err(|error| failed("create", &refs, &error))?;
        self.update_git_folder(git_dir)?;
        let refs = self.packed_refs()?;
        let of_tasks = format!(" refs/heads/{TASK_BRANCHES}/");
        let lines = refs.split_inclusive(|byte| *byte == b'\n');
        let is_of_task = |line: &[u8]| line.windows(of_tasks.len()).any(|part| part == of_tasks.as_bytes());
        let packed: Vec<u8> = lines.filter(|line| !is_of_task(line)).flatten().copied().collect();
        let folder = GitFolder::open(git_dir)?;
        folder.replace("packed-refs", &packed)?;
        let text = match head {
            Head::Branch(branch) => {
                folder.replace(&branch.full(), format!("{commit}\n").as_bytes())?;
                format!("ref: {}\n", branch.full())
            }
            Head::Detached => format!("{commit}\n"),
        };
        folder.replace("HEAD", text.as_bytes())
    }

    /// The refs of the person's repository, as the content of `packed-refs`.
    pub(super) fn packed_refs(&self) -> Result<Vec<u8>, RepositoryError> {
        let start = ["for-each-ref", "--format=%(objectname) %(refname)"];
        Ok(self.git(start.iter().chain(&COPIED_REFS)).ok()?.out)
    }

    /// Writes the files of a place's git folder that follow the person's repository: another path after a move, new settings, a new
    /// boundary of a shallow clone.
    pub(super) fn update_git_folder(&self, git_dir: &Path) -> Result<(), RepositoryError> {
        let folder = GitFolder::open(git_dir)?;
        // Git follows the relative path after a move of the workspace. Git LFS finds its objects beside the absolute one only.
        let objects = [relative_to(self, "../../../..", "objects"), self.common_dir.join("objects")];
        let lines = objects.into_iter().chain(alternates(&self.common_dir)).flat_map(|folder| alternates_line(&folder));
        folder.replace("objects/info/alternates", &lines.collect::<Vec<u8>>())?;
        for name in COPIED_FILES {
            // Linked checkouts have their own sparse patterns.
            let own = self.git_dir.join(name);
            let from = if own.exists() { own } else { self.common_dir.join(name) };
            if let Ok(content) = reading::read(&from, AllowedKinds::FilesHere, COPY_BYTES_MAX) {
                folder.replace(name, &content)?;
            }
        }
        folder.replace("config", &self.place_config()?)?;
        folder.replace(COMMON_FILE, b".\n")
    }

    /// The settings of a place: those of the person's repository, and the hooks of it.
    fn place_config(&self) -> Result<Vec<u8>, RepositoryError> {
        let format = self.git(["rev-parse", "--show-object-format"]).ok()?.line();
        let version = if format == "sha1" { 0 } else { 1 };
        let mut text = format!(
            "# Brigade writes this file.\n[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n\tlogAllRefUpdates = true\n"
        )
        .into_bytes();
        let mut set = |key: &str, value: &Path| {
            text.extend(format!("\t{key} = ").as_bytes());
            text.extend(quoted(value));
            text.push(b'\n');
        };
        set("hooksPath", &relative_to(self, "../..", "hooks"));
        if format != "sha1" {
            text.extend(format!("[extensions]\n\tobjectFormat = {format}\n").as_bytes());
        }
        let mut include = |path: &Path| {
            text.extend(b"[include]\n\tpath = ");
            text.extend(quoted(path));
            text.push(b'\n');
        };
        include(&relative_to(self, "../../..", "config"));
        let own = self.git_dir.join("config.worktree");
        if own.exists() {
            include(&own);
        }
        Ok(text)
    }
}

/// The path of a file in the repository's git folder: relative to a folder of a place, so that it survives a move of the workspace, if the
/// git folder is in the workspace. `up` leads from there to the workspace.
fn relative_to(main: &RepoPath, up: &str, name: &str) -> PathBuf {
    let is_inside = main.common_dir == main.work_tree.join(".git");
    if is_inside { Path::new(up).join(".git").join(name) } else { main.common_dir.join(name) }
}

/// A value for a settings file; see git-config(1), Syntax.
fn quoted(path: &Path) -> Vec<u8> {
    let escaped = path.as_os_str().as_encoded_bytes().iter().flat_map(|byte| match byte {
        b'"' | b'\\' => vec![b'\\', *byte],
        b'\n' => b"\\n".to_vec(),
        b'\t' => b"\\t".to_vec(),
        _ => vec![*byte],
    });
    [b'"'].into_iter().chain(escaped).chain([b'"']).collect()
}

/// A line for a file with alternates. Git takes octal escapes in quotes; see gitrepository-layout(5).
fn alternates_line(folder: &Path) -> Vec<u8> {
    let bytes = folder.as_os_str().as_encoded_bytes();
    let is_plain = !bytes.contains(&b'\n') && !bytes.starts_with(b"\"") && !bytes.starts_with(b"#");
    if is_plain {
        return [bytes, b"\n"].concat();
    }
    let escaped = bytes.iter().flat_map(|byte| match byte {
        b'"' | b'\\' | b'\n' => format!("\\{byte:03o}").into_bytes(),
        _ => vec![*byte],
    });
    [b'"'].into_iter().chain(escaped).chain(*b"\"\n").collect()
}

/// The object folders of other repositories that git also reads; see gitrepository-layout(5), objects/info/alternates.
pub(super) fn alternates(common_dir: &Path) -> Vec<PathBuf> {
    let mut folders = vec![common_dir.join("objects")];
    let mut next = 0;
    while next < folders.len().min(ALTERNATES_MAX) {
        let text = files::bytes(&folders[next].join("info/alternates")).unwrap_or_default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#")) {
            // Relative paths are relative to the folder that names them.
            let folder = folders[next].join(unquoted(line));
            if folder.is_dir() && !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        next += 1;
    }
    folders.split_off(1)
}

/// Parses a line, which may be a quoted path.
fn unquoted(line: &[u8]) -> PathBuf {
    let inner = line.strip_prefix(b"\"").and_then(|line| line.strip_suffix(b"\""));
    let Some(inner) = inner else { return path_of(line) };
    let mut bytes = Vec::new();
    let mut rest = inner.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap_or(b'\\') {
                b'n' => b'\n',
                b't' => b'\t',
                digit @ b'0'..=b'3' => {
                    let mut octal =
                        || rest.next_if(|digit| (b'0'..=b'7').contains(digit)).map_or(0, |digit| digit - b'0');
                    let (middle, last) = (octal(), octal());
                    ((digit - b'0') << 6) | (middle << 3) | last
                }
                other => other,
            },
            other => other,
        });
    }
    path_of(&bytes)
}
