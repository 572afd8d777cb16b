//! Walks the files of the workspace for `glob` and `grep`, bounded and in the order of paths.
//!
//! It leaves out `.git`, Brigade's control files, the files that git ignores and those that the member may not read. It names symbolic links and never follows them. Each
//! folder is opened below its open parent, so this also holds for a folder that is exchanged for a link.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ToolError;
use super::ignored::{RULE_BYTES_MAX, RuleReader, Rules};
use super::workspace::OpenRoot;
use crate::domain::text::path_glob::PathGlob;
use crate::platform::{FileIdentity, FileKind, Folder, identity_of};

/// The most entries of a walk.
const ENTRIES_MAX: usize = 300_000;
/// The greatest depth of a walk, in folders. Each of them is held open.
const DEPTH_MAX: usize = 128;
/// The longest duration of a walk.
const TIME_MAX: Duration = Duration::from_secs(120);

/// The most files that are visited to find a file of the same name.
const SAME_NAME_FILES_MAX: usize = 20_000;

/// A file of the workspace.
pub(super) struct WalkedFile<'a> {
    /// Relative to the workspace.
    pub path: &'a Path,
    /// True for a symbolic link.
    pub is_link: bool,
    folder: &'a Folder,
    control_identities: &'a [FileIdentity],
}

impl WalkedFile<'_> {
    /// Opens the file for reading, below its open folder.
    ///
    /// # Errors
    /// It is not a plain file, it is a control file, or the system refuses.
    pub fn open(&self) -> io::Result<std::fs::File> {
        let file = self.folder.open_for_reading(self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?)?;
        if self.control_identities.contains(&identity_of(&file.metadata()?)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(file)
    }
}

/// The outcome of a walk.
pub(super) struct WalkResult {
    /// False if a limit ended the walk.
    pub is_complete: bool,
    /// The ignore files that could not be read, with reasons, and a note about hidden files.
    pub notes: Vec<String>,
}

/// Calls `visit` for every file below `below`, until it returns false. `below` comes from [`OpenRoot::resolve`].
pub(super) fn walk(workspace: &OpenRoot, below: &Path, visit: impl FnMut(&WalkedFile<'_>) -> bool) -> WalkResult {
    let mut walk = Walk::new(workspace, visit);
    walk.run(below);
    let mut notes = walk.rules.notes;
    if walk.has_hidden {
        notes.push("(files that you may not read are left out)".to_owned());
    }
    WalkResult { is_complete: walk.is_complete, notes }
}

/// Returns true if a rule of the member hides a file below `path`, so that the search tool of another program could show it. Such a tool
/// may search files that git ignores. A walk that is not complete counts as one that found such a file.
pub(super) fn has_hidden_below(workspace: &OpenRoot, path: &str) -> bool {
    let Some(below) = workspace.searched_part(path).filter(|_| workspace.hides_files()) else { return false };
    let mut walk = Walk { is_for_hidden: true, ..Walk::new(workspace, |_: &WalkedFile<'_>| true) };
    walk.run(&below);
    walk.has_hidden || !walk.is_complete
}

/// Resolves the path of a file or folder to search, and checks that it exists.
pub(super) fn resolve_searched(workspace: &OpenRoot, path: &str) -> Result<PathBuf, ToolError> {
    let resolved = workspace.resolve(path)?;
    match workspace.dir.symlink_metadata(&resolved) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(missing_file(workspace, path, "; omit `path` to search all files"))
        }
        _ => Ok(resolved),
    }
}

/// Returns the error for a file that is not there. It names the file of the same name in another folder, if there is exactly one, and
/// otherwise ends with `advice`.
pub(super) fn missing_file(workspace: &OpenRoot, path: &str, advice: &str) -> ToolError {
    let advice = match file_with_same_name(workspace, path) {
        Some(file) => format!("; did you mean `{file}`?"),
        None => advice.to_owned(),
    };
    ToolError::Recoverable(format!("there is no `{path}` in the workspace{advice}"))
}

fn file_with_same_name(workspace: &OpenRoot, path: &str) -> Option<String> {
    let name = Path::new(path).file_name()?;
    let mut found = Vec::new();
    let mut visited = 0;
    walk(workspace, &workspace.resolve(".").ok()?, |file| {
        visited += 1;
        if file.path.file_name() == Some(name) {
            found.push(file.path.display().to_string());
        }
        found.len() < 2 && visited < SAME_NAME_FILES_MAX
    });
    if found.len() == 1 { found.pop() } else { None }
}

struct Walk<'a, V> {
    workspace: &'a OpenRoot,
    control_paths: Vec<PathBuf>,
    control_identities: Vec<FileIdentity>,
    rules: RuleReader<'a>,
    entries_left: usize,
    ends_at: Instant,
    is_complete: bool,
    /// True if a rule of the member hides a file.
    has_hidden: bool,
    /// True if the walk ends at the first hidden file, and visits the files that git ignores too.
    is_for_hidden: bool,
    visit: V,
}

impl<'a, V: FnMut(&WalkedFile<'_>) -> bool> Walk<'a, V> {
    fn new(workspace: &'a OpenRoot, visit: V) -> Self {
        Self {
            workspace,
            control_paths: workspace.control_paths(),
            control_identities: workspace.control_identities(),
            rules: RuleReader::new(workspace.root()),
            entries_left: ENTRIES_MAX,
            ends_at: Instant::now() + TIME_MAX,
            is_complete: true,
            has_hidden: false,
            is_for_hidden: false,
            visit,
        }
    }

    fn run(&mut self, below: &Path) {
        let path: PathBuf = below.components().filter(|part| *part != std::path::Component::CurDir).collect();
        // A folder that is gone, or has become a link, has no files.
        let _ = self.start(&path);
    }

    fn start(&mut self, path: &Path) -> ControlFlow<()> {
        if self.workspace.hides(path) {
            self.has_hidden = true;
            return ControlFlow::Continue(());
        }
        // Only ignore files in the searched folder and below it count: a worktree can be in a folder that the repository around
        // it ignores.
        match self.workspace.open_folder(path) {
            Ok(folder) => self.folder(&folder, path, None, 0),
            Err(_) => self.file(path),
        }
    }

    /// Visits `path`, which is a file and not a folder.
    fn file(&mut self, path: &Path) -> ControlFlow<()> {
        let is_file = self.workspace.dir.symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
        match self.workspace.open_folder(path.parent().unwrap_or(Path::new(""))) {
            Ok(folder) if is_file => self.visit_file(&folder, path, FileKind::File),
            _ => ControlFlow::Continue(()),
        }
    }

    fn visit_file(&mut self, folder: &Folder, path: &Path, kind: FileKind) -> ControlFlow<()> {
        let file =
            WalkedFile { path, is_link: kind == FileKind::Link, folder, control_identities: &self.control_identities };
        if (self.visit)(&file) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn folder(&mut self, folder: &Folder, path: &Path, above: Option<&Rules<'_>>, depth: usize) -> ControlFlow<()> {
        // Skips folders that cannot be read, as git does.
        let Ok(mut entries) = folder.entries(self.entries_left.saturating_add(1)) else {
            return ControlFlow::Continue(());
        };
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let rules = self.rules.rules_of(folder, path, &entries, above);
        for (name, kind) in entries {
            if self.entries_left == 0 || self.workspace.is_stopped() || Instant::now() >= self.ends_at {
                self.is_complete = false;
                return ControlFlow::Break(());
            }
            self.entries_left -= 1;
            let path = path.join(&name);
            let is_folder = kind == FileKind::Folder;
            let is_link = kind == FileKind::Link;
            if self.workspace.hides(&path) || (is_link && self.workspace.hides_target(&path)) {
                self.has_hidden = true;
                if self.is_for_hidden {
                    return ControlFlow::Break(());
                }
                continue;
            }
            let is_ignored = !self.is_for_hidden && rules.exclude(&path, is_folder);
            if name == ".git" || self.control_paths.contains(&path) || is_ignored {
                continue;
            }
            if !is_folder {
                self.visit_file(folder, &path, kind)?;
                continue;
            }
            if depth >= DEPTH_MAX {
                self.is_complete = false;
                continue;
            }
            // It can be gone by now, or a link.
            let Ok(inner) = folder.open_folder(&name) else { continue };
            let Ok(identity) = inner.identity() else { continue };
            if !self.control_identities.contains(&identity) {
                self.folder(&inner, &path, Some(&rules), depth + 1)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// A pattern for paths relative to the workspace. Without `/` it matches names at any depth.
pub(super) struct FilePattern {
    /// As the model wrote it.
    pub text: String,
    glob: PathGlob,
}

impl FilePattern {
    /// # Errors
    /// The pattern is too long.
    pub fn new(text: &str) -> Result<Self, ToolError> {
        let pattern = text.trim_start_matches("./");
        if pattern.len() > RULE_BYTES_MAX {
            return Err(ToolError::Recoverable(format!(
                "the pattern has more than {RULE_BYTES_MAX} bytes; shorten it"
            )));
        }
        let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
        Ok(Self { text: text.to_owned(), glob: PathGlob::new(&anywhere) })
    }

    pub fn matches(&self, path: &Path) -> bool {
        self.glob.matches(path)
    }

    /// The error of a pattern that matched no file and is not valid.
    pub fn error(&self) -> Option<ToolError> {
        let reason = self.glob.error()?;
        Some(ToolError::Recoverable(format!(
            "no file is named `{0}`, and `{0}` is not a glob pattern: {reason}",
            self.text
        )))
    }
}
