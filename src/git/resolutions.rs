//! Merge commits on a task's branch. Their author resolved the conflicts. Inside a conflict hunk each token that a side added must
//! survive; outside of them, each line.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;

use super::command::{RepoPath, path_of, text_of};
use super::commits::list_files;
use super::merges::{LINES_NAMED_MAX, MergedTree, merge_trees_with};
use crate::domain::git::conflict::{DroppedLines, IncompleteLine, MergeChanges, ResolvedHunk, Side, resolved_hunks};
use crate::domain::git::dropped_lines::{ChangedLine, DROPS_TRAILER, changed_lines, short_commit};
use crate::ports::RepositoryError;

/// A line that a merge commit drops.
struct DroppedLine {
    /// Its file and side.
    place: String,
    line: String,
    /// The missing tokens. Empty if all of the line is missing.
    missing: Vec<String>,
}

/// The result of checking a merge commit of a teammate.
pub(super) enum MergeCheck {
    /// The lines of its conflict hunks whose tokens survive.
    Accepted(Vec<Vec<u8>>),
    /// It drops lines, for example.
    Refused(String),
}

impl RepoPath {
    /// Checks a merge commit on the branch with this tip. A later commit may put back what the merge drops, and join lines that it keeps. A
    /// trailer of the merge, or of a later commit, accepts all that it drops.
    pub(super) fn check_branch_merge(&self, commit: &str, tip: &str) -> Result<MergeCheck, RepositoryError> {
        let parents = self.git(["rev-parse", &format!("{commit}^@")]).ok()?.line();
        let [first, second] = parents.lines().collect::<Vec<_>>()[..] else {
            return Ok(MergeCheck::Refused(format!(
                "the merge {commit} has more than two parents: merge one branch at a time"
            )));
        };
        let at_tip = self.resolved_hunks(first, second, tip)?;
        let files = self.files_with_markers(first, second, tip, &at_tip)?;
        if !files.is_empty() {
            return Ok(MergeCheck::Refused(format!(
                "conflict markers are left in {}. Remove the lines <<<<<<<, ======= and >>>>>>>, and keep what both sides added",
                list_files(&files)
            )));
        }
        let format = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        let since = [format!("^{first}"), format!("^{second}")];
        let trailers = self.git(["log", &format, tip, &since[0], &since[1]]).ok()?.line();
        if !trailers.trim().is_empty() {
            return Ok(MergeCheck::Accepted(Vec::new()));
        }
        let mut at_merge = self.resolved_hunks(first, second, commit)?;
        let mut dropped = self.dropped_by(first, second, commit, &at_merge)?;
        if !dropped.is_empty() {
            let by_merge = dropped;
            dropped = self.dropped_by(first, second, tip, &at_tip)?;
            dropped
                .retain(|line| by_merge.iter().any(|other| (&other.place, &other.line) == (&line.place, &line.line)));
        }
        if dropped.is_empty() {
            // Lines that the merge joined may be elsewhere in the tip.
            let later = self.diff(commit, tip)?;
            at_merge.retain(|resolved| !later.removes_any(&resolved.resolution));
            let complete = at_merge.iter().chain(&at_tip).flat_map(ResolvedHunk::complete_lines);
            return Ok(MergeCheck::Accepted(complete.cloned().collect()));
        }
        Ok(MergeCheck::Refused(format!(
            "the merge {} drops lines that one side added, or words of them:\n{}\nPut them back. You may join lines, but keep each word that a side added. If they must go, give the reason in a commit's message: git commit --amend --no-edit --trailer '{DROPS_TRAILER}: WHY'",
            short_commit(commit),
            list(&dropped)
        )))
    }

    /// The files with conflict markers in `tip` that neither parent of a merge has. `hunks` are the conflicts of the merge.
    fn files_with_markers(
        &self,
        first: &str,
        second: &str,
        tip: &str,
        hunks: &[ResolvedHunk],
    ) -> Result<Vec<PathBuf>, RepositoryError> {
        let is_left = |file: &[u8], line: &[u8]| {
            let is_separator = |hunk: &ResolvedHunk| hunk.file.as_bytes() == file && hunk.has_separator(line);
            is_marker(line) || hunks.iter().any(is_separator)
        };
        let mut common: Option<BTreeSet<PathBuf>> = None;
        for parent in [first, second] {
            let diff = self.raw_diff(parent, tip, &[])?;
            let with_marker = changed_lines(&diff).filter_map(|line| match line {
                ChangedLine::Added { file, text } if is_left(file, text) => Some(path_of(file)),
                _ => None,
            });
            let files: BTreeSet<PathBuf> = with_marker.collect();
            common = Some(common.map_or_else(|| files.clone(), |other| &other & &files));
        }
        Ok(common.unwrap_or_default().into_iter().collect())
    }

    /// The lines of two commits that `result` drops. `hunks` are the conflicts of their merge. They do not matter if all lines are there.
    fn dropped_by(
        &self,
        first: &str,
        second: &str,
        result: &str,
        hunks: &[ResolvedHunk],
    ) -> Result<Vec<DroppedLine>, RepositoryError> {
        if self.missing(second, first, result)?.is_empty() {
            return Ok(Vec::new());
        }
        let base = self.merge_base(first, second)?;
        let changes = MergeChanges {
            ours: self.diff(&base, first)?,
            theirs: self.diff(&base, second)?,
            merge: self.diff(first, result)?,
        };
        let DroppedLines { outside, inside } = changes.dropped_lines(hunks);
        let mut dropped = self.located(outside, &base, first, second)?;
        let of_hunk = |(file, IncompleteLine { side, line, missing }): (String, IncompleteLine)| DroppedLine {
            place: place(&file, side),
            line,
            missing,
        };
        dropped.extend(inside.into_iter().map(of_hunk));
        Ok(dropped)
    }

    /// The conflict hunks of a merge of two commits, and their resolution in `commit`.
    fn resolved_hunks(&self, first: &str, second: &str, commit: &str) -> Result<Vec<ResolvedHunk>, RepositoryError> {
        let merged = merge_trees_with(self, "merge.conflictStyle=diff3", first, second)?;
        let MergedTree::Conflict { tree, files } = merged else { return Ok(Vec::new()) };
        let mut resolved = Vec::new();
        for file in files {
            let mut name = OsString::from(format!("{tree}:"));
            name.push(&file);
            // A conflict may leave no file, such as one of two renames.
            let marked = self.git(["cat-file".into(), "blob".into(), name]).run()?;
            if marked.code == 0 {
                let diff = self.raw_diff(&tree, commit, std::slice::from_ref(&file))?;
                resolved.extend(resolved_hunks(&text_of(&file), &marked.out, [first, second], &diff));
            }
        }
        Ok(resolved)
    }

    /// Finds the files and sides that added these lines.
    fn located(
        &self,
        lost: Vec<Vec<u8>>,
        base: &str,
        first: &str,
        second: &str,
    ) -> Result<Vec<DroppedLine>, RepositoryError> {
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        let mut places: HashMap<Vec<u8>, String> = HashMap::new();
        for (side, commit) in [(Side::Ours, first), (Side::Theirs, second)] {
            for line in changed_lines(&self.raw_diff(base, commit, &[])?) {
                if let ChangedLine::Added { file, text } = line {
                    places.insert(text.to_vec(), place(&String::from_utf8_lossy(file), side));
                }
            }
        }
        let located = |line: Vec<u8>| {
            let place = places.get(&line).cloned().unwrap_or_else(|| "unchanged on both sides".to_owned());
            DroppedLine { place, line: String::from_utf8_lossy(&line).into_owned(), missing: Vec::new() }
        };
        Ok(lost.into_iter().map(located).collect())
    }
}

/// Returns true for the first or the last line of a conflict that git marked.
fn is_marker(line: &[u8]) -> bool {
    [b"<<<<<<< ", b">>>>>>> "].iter().any(|marker| line.starts_with(*marker))
}

fn place(file: &str, side: Side) -> String {
    let side = match side {
        Side::Ours => "the task branch",
        Side::Theirs => "the merged branch",
    };
    format!("{file}, added by {side}")
}

/// The dropped lines as text, at most [`LINES_NAMED_MAX`] of them.
fn list(dropped: &[DroppedLine]) -> String {
    let mut text = String::new();
    let mut last_place = None;
    for DroppedLine { place, line, missing } in dropped.iter().take(LINES_NAMED_MAX) {
        if last_place.replace(place) != Some(place) {
            text.push_str(&format!("{place}:\n"));
        }
        let missing = if missing.is_empty() { String::new() } else { format!(" (missing: {})", missing.join(" ")) };
        text.push_str(&format!("  {line}{missing}\n"));
    }
    if dropped.len() > LINES_NAMED_MAX {
        text.push_str(&format!("  and {} more\n", dropped.len() - LINES_NAMED_MAX));
    }
    text.trim_end().to_owned()
}
