//! Walks the files of the workspace for glob and grep: bounded, in the order of paths, without what nobody searches.
//!
//! Left out are `.git`, Brigade's control files and what git ignores. Symbolic links are named, never followed: each folder is opened
//! below the open folder that it was found in, so that exchanging it for a link leads nowhere.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};

use super::ToolError;
use super::ignored::{RULE_BYTES_MAX, RuleReader, Rules};
use super::workspace::Workspace;
use crate::platform::{FileKind, Folder, Identity, identity_of};

/// The most entries that are looked at.
const ENTRIES_MAX: usize = 300_000;
/// How many folders deep a walk goes; each is held open.
const DEPTH_MAX: usize = 128;
/// How long a walk may take.
const TIME_MAX: Duration = Duration::from_secs(120);

/// A file found below the workspace.
pub(super) struct Found<'a> {
    /// Relative to the workspace.
    pub path: &'a Path,
    /// Whether it is a symbolic link.
    pub is_link: bool,
    folder: &'a Folder,
    controls: &'a [Identity],
}

impl Found<'_> {
    /// Opens it to read it, in the folder that it was found in.
    ///
    /// # Errors
    /// It is no plain file, a control file, or the system would not.
    pub fn open(&self) -> io::Result<std::fs::File> {
        let file = self.folder.open_for_reading(self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?)?;
        match identity_of(&file.metadata()?) {
            Some(identity) if self.controls.contains(&identity) => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(file),
        }
    }
}

/// How a walk ended.
pub(super) struct Walked {
    /// Whether it saw everything it was to see.
    pub is_complete: bool,
    /// The files of rules that could not be read, and why.
    pub notes: Vec<String>,
}

/// Why a walk ends before its end.
enum End {
    /// The visitor has enough.
    Enough,
    /// There is too much.
    TooMuch,
}

/// Calls `visit` with every file below `below`, which is a path as [`Workspace::resolve`] returns it, until it says false.
pub(super) fn walk(workspace: &Workspace, below: &Path, visit: impl FnMut(&Found<'_>) -> bool) -> Walked {
    let path: PathBuf = below.components().filter(|part| *part != std::path::Component::CurDir).collect();
    let mut walk = Walk {
        workspace,
        control_paths: workspace.control_paths(),
        controls: workspace.control_identities(),
        rules: RuleReader::new(workspace.root()),
        entries_left: ENTRIES_MAX,
        ends_at: Instant::now() + TIME_MAX,
        is_complete: true,
        visit,
    };
    // What is gone, or became a link, has no files to be found.
    if let ControlFlow::Break(End::TooMuch) = walk.start(&path) {
        walk.is_complete = false;
    }
    Walked { is_complete: walk.is_complete, notes: walk.rules.notes }
}

struct Walk<'a, V> {
    workspace: &'a Workspace,
    control_paths: Vec<PathBuf>,
    controls: Vec<Identity>,
    rules: RuleReader<'a>,
    entries_left: usize,
    ends_at: Instant,
    is_complete: bool,
    visit: V,
}

impl<V: FnMut(&Found<'_>) -> bool> Walk<'_, V> {
    fn start(&mut self, path: &Path) -> ControlFlow<End> {
        // What git would leave out is left out, but only by the rules of the searched folder itself: a worktree may lie in a
        // folder that the repository around it ignores.
        match self.workspace.open_folder(path) {
            Ok(folder) => self.folder(&folder, path, None, 0),
            Err(_) => self.file(path),
        }
    }

    /// The one file that was named in place of a folder.
    fn file(&mut self, path: &Path) -> ControlFlow<End> {
        let is_file = self.workspace.dir.symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
        match self.workspace.open_folder(path.parent().unwrap_or(Path::new(""))) {
            Ok(folder) if is_file => self.tell(&folder, path, FileKind::File),
            _ => ControlFlow::Continue(()),
        }
    }

    fn tell(&mut self, folder: &Folder, path: &Path, kind: FileKind) -> ControlFlow<End> {
        let found = Found { path, is_link: kind == FileKind::Link, folder, controls: &self.controls };
        if (self.visit)(&found) { ControlFlow::Continue(()) } else { ControlFlow::Break(End::Enough) }
    }

    fn folder(&mut self, folder: &Folder, path: &Path, above: Option<&Rules<'_>>, depth: usize) -> ControlFlow<End> {
        // Folders that cannot be read are passed over, as git does.
        let Ok(mut entries) = folder.entries(self.entries_left.saturating_add(1)) else {
            return ControlFlow::Continue(());
        };
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let rules = self.rules.rules_of(folder, path, &entries, above);
        for (name, kind) in entries {
            if self.entries_left == 0 || self.workspace.is_stopped() || Instant::now() >= self.ends_at {
                return ControlFlow::Break(End::TooMuch);
            }
            self.entries_left -= 1;
            let (path, is_folder) = (path.join(&name), kind == FileKind::Folder);
            if name == ".git" || self.control_paths.contains(&path) || rules.leave_out(&path, is_folder) {
                continue;
            }
            if !is_folder {
                self.tell(folder, &path, kind)?;
                continue;
            }
            if depth >= DEPTH_MAX {
                self.is_complete = false;
                continue;
            }
            // By now it may be gone, or a link.
            let Ok(inner) = folder.open_folder(&name) else { continue };
            if !inner.identity().is_some_and(|identity| self.controls.contains(&identity)) {
                self.folder(&inner, &path, Some(&rules), depth + 1)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// A matcher of paths relative to the workspace: `*` stays within a folder, `**` crosses folders, `{a,b}` is either. A pattern
/// without `/` matches names at any depth.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let pattern = pattern.trim_start_matches("./");
    if pattern.len() > RULE_BYTES_MAX {
        return Err(ToolError::Mendable(format!("the pattern has more than {RULE_BYTES_MAX} bytes; shorten it")));
    }
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    GlobBuilder::new(&anywhere)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| ToolError::Mendable(format!("`{pattern}` is no glob pattern: {}", error.kind())))
}
