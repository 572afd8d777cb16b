//! Merge commits on a task's branch. Their author resolved the conflicts. Inside a conflict hunk each token that a side added must
//! survive; outside of them, each line.

use std::collections::HashMap;
use std::ffi::OsString;

use super::RepositoryInner;
use super::command::text_of;
use super::merges::{LINES_NAMED_MAX, MergedTree, merge_trees_with};
use crate::domain::conflict::{
    ConflictHunk, DroppedLines, IncompleteLine, MergeChanges, ResolvedHunk, Side, resolved_hunks,
};
use crate::domain::dropped_lines::{ChangedLine, DROPS_TRAILER, changed_lines, short_commit};
use crate::ports::RepositoryError;

/// The lines that a merge commit drops, by file and side.
type Dropped = Vec<(String, Vec<String>)>;

impl RepositoryInner {
    /// Checks a merge commit on the branch with this tip. Returns the lines of its conflict hunks if it joined some of them, or the reason
    /// why it is refused. A trailer of the merge, or of a commit after it, accepts all that it drops.
    pub(super) fn check_branch_merge(
        &self,
        commit: &str,
        tip: &str,
    ) -> Result<Result<Vec<Vec<u8>>, String>, RepositoryError> {
        let parents = self.main.git(["rev-parse", &format!("{commit}^@")]).ok()?.line();
        let [first, second] = parents.lines().collect::<Vec<_>>()[..] else {
            return Ok(Err(format!("the merge {commit} has more than two parents: merge one branch at a time")));
        };
        let format = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        let since = [format!("^{first}"), format!("^{second}")];
        let trailers = self.main.git(["log", &format, tip, &since[0], &since[1]]).ok()?.line();
        if !trailers.trim().is_empty() || self.missing(second, first, commit)?.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let hunks = self.resolved_hunks(first, second, commit)?;
        let base = self.merge_base(first, second)?;
        let changes = MergeChanges {
            ours: self.diff(&base, first)?,
            theirs: self.diff(&base, second)?,
            merge: self.diff(first, commit)?,
        };
        let DroppedLines { outside, inside } = changes.dropped_lines(&hunks);
        let mut dropped = self.located(outside, &base, first, second)?;
        for (file, IncompleteLine { side, line, missing }) in inside {
            let line = match missing.is_empty() {
                true => line,
                false => format!("{line} (missing: {})", missing.join(" ")),
            };
            add(&mut dropped, heading(&file, side), line);
        }
        if dropped.is_empty() {
            return Ok(Ok(hunks.into_iter().flat_map(|resolved| lines_of(resolved.hunk)).collect()));
        }
        Ok(Err(format!(
            "the merge {} drops lines that one side added, or words of them:\n{}\nPut them back. You may join lines, but keep each word that a side added. If they must go, give the reason in a commit's message: git commit --amend --no-edit --trailer '{DROPS_TRAILER}: WHY'",
            short_commit(commit),
            list(&dropped)
        )))
    }

    /// The conflict hunks of a merge of two commits, and their resolution in `commit`.
    fn resolved_hunks(&self, first: &str, second: &str, commit: &str) -> Result<Vec<ResolvedHunk>, RepositoryError> {
        let merged = merge_trees_with(&self.main, "merge.conflictStyle=diff3", first, second)?;
        let MergedTree::Conflict { tree, files } = merged else { return Ok(Vec::new()) };
        let mut resolved = Vec::new();
        for file in files {
            let mut name = OsString::from(format!("{tree}:"));
            name.push(&file);
            // A conflict may leave no file, such as one of two renames.
            let marked = self.main.git(["cat-file".into(), "blob".into(), name]).run()?;
            if marked.code == 0 {
                let diff = self.raw_diff(&tree, commit, std::slice::from_ref(&file))?;
                resolved.extend(resolved_hunks(&text_of(&file), &marked.out, [first, second], &diff));
            }
        }
        Ok(resolved)
    }

    /// Finds the files and sides that added these lines.
    fn located(&self, lost: Vec<Vec<u8>>, base: &str, first: &str, second: &str) -> Result<Dropped, RepositoryError> {
        let mut dropped = Dropped::new();
        if lost.is_empty() {
            return Ok(dropped);
        }
        let mut files: HashMap<Vec<u8>, (String, Side)> = HashMap::new();
        for (side, commit) in [(Side::Ours, first), (Side::Theirs, second)] {
            for line in changed_lines(&self.raw_diff(base, commit, &[])?) {
                if let ChangedLine::Added { file, text } = line {
                    files.insert(text.to_vec(), (String::from_utf8_lossy(file).into_owned(), side));
                }
            }
        }
        for line in lost {
            let place = files
                .get(&line)
                .map_or_else(|| "unchanged on both sides".to_owned(), |(file, side)| heading(file, *side));
            add(&mut dropped, place, String::from_utf8_lossy(&line).into_owned());
        }
        Ok(dropped)
    }
}

fn heading(file: &str, side: Side) -> String {
    let side = match side {
        Side::Ours => "the task branch",
        Side::Theirs => "the merged branch",
    };
    format!("{file}, added by {side}")
}

fn add(dropped: &mut Dropped, place: String, line: String) {
    match dropped.iter_mut().find(|(known, _)| *known == place) {
        Some((_, lines)) => lines.push(line),
        None => dropped.push((place, vec![line])),
    }
}

/// The dropped lines as text, at most [`LINES_NAMED_MAX`] of them.
fn list(dropped: &Dropped) -> String {
    let mut lines_left = LINES_NAMED_MAX;
    let mut text = Vec::new();
    for (place, lines) in dropped {
        let named = lines.len().min(lines_left);
        lines_left -= named;
        if named > 0 {
            text.push(format!("{place}:"));
            text.extend(lines.iter().take(named).map(|line| format!("  {line}")));
        }
    }
    let more = dropped.iter().map(|(_, lines)| lines.len()).sum::<usize>().saturating_sub(LINES_NAMED_MAX);
    if more > 0 {
        text.push(format!("  and {more} more"));
    }
    text.join("\n")
}

fn lines_of(hunk: ConflictHunk) -> impl Iterator<Item = Vec<u8>> {
    hunk.ours.into_iter().chain(hunk.theirs)
}
