//! Walks the files of the workspace for glob and grep: bounded, in the order of paths, without what nobody searches.
//!
//! Left out are `.git`, Brigade's control files and what git ignores. Symbolic links are named, never followed.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkBuilder;

use super::ToolError;
use super::workspace::Workspace;

/// The most entries that are looked at.
const ENTRIES_MAX: usize = 300_000;

/// A file found below the workspace.
pub(super) struct Found {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// Whether it is a symbolic link.
    pub is_link: bool,
}

/// Calls `visit` with every file below `below`, until it says false; returns whether the walk saw everything it was to see.
pub(super) fn walk(
    workspace: &Workspace,
    below: &Path,
    mut visit: impl FnMut(&Found) -> Result<bool, ToolError>,
) -> Result<bool, ToolError> {
    let start = workspace.root().join(below);
    let mut builder = WalkBuilder::new(&start);
    // What git would leave out is left out, but only by the rules of the searched folder itself: a worktree may lie in a
    // folder that the repository around it ignores.
    builder.hidden(false).parents(false).git_global(false).require_git(false).follow_links(false);
    let controls = control_files(workspace);
    builder.sort_by_file_path(Ord::cmp);
    builder.filter_entry(move |entry| entry.file_name() != ".git" && !controls.iter().any(|path| path == entry.path()));
    for (entries, entry) in builder.build().enumerate() {
        if entries >= ENTRIES_MAX || workspace.is_stopped() {
            return Ok(false);
        }
        // Folders that cannot be read are passed over, as git does.
        let Ok(entry) = entry else { continue };
        let Some(kind) = entry.file_type() else { continue };
        let path = entry.path().strip_prefix(workspace.root()).unwrap_or(entry.path());
        if !kind.is_dir() && !visit(&Found { path: path.to_owned(), is_link: kind.is_symlink() })? {
            return Ok(true);
        }
    }
    Ok(true)
}

/// The control files as a walk meets them: those at the top of the workspace under whatever spelling, others by their own.
fn control_files(workspace: &Workspace) -> Vec<PathBuf> {
    let names = workspace.dir.entries().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    names
        .filter(|name| workspace.control_file_at(Path::new(name)).is_some())
        .map(|name| workspace.root().join(name))
        .chain(workspace.control_files().map(|control| workspace.root().join(control)))
        .collect()
}

/// A matcher of paths relative to the workspace: `*` stays within a folder, `**` crosses folders, `{a,b}` is either. A pattern
/// without `/` matches names at any depth.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let pattern = pattern.trim_start_matches("./");
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    GlobBuilder::new(&anywhere)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| ToolError::Mendable(format!("`{pattern}` is no glob pattern: {}", error.kind())))
}
