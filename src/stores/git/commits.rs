//! Commits in a worktree: what a teammate did not commit is committed for it, and every commit of its branch names its task.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::branch::{Attached, in_the_middle};
use super::index::reveal;
use super::run::{At, path_of, pathspec, text_of};
use super::{Inner, identity, small};
use crate::domain::merge::{ATTEMPT_TRAILER, TASK_TRAILER, TEAMMATE_TRAILER};
use crate::platform::reading::{self, Accept};
use crate::ports::{Assignment, RepositoryError, Worktree};

/// The most commits of one branch.
const COMMITS_MAX: usize = 2_000;
/// Files that a text names; more are counted.
const NAMED_MAX: usize = 10;

impl Inner {
    pub(super) fn commit(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
    ) -> Result<Result<String, String>, RepositoryError> {
        let Some(at) = self.at(&worktree.root) else {
            return Ok(Err(format!("{} is no worktree any more: somebody removed it", worktree.name)));
        };
        if let Some(why) = self.unsound(&at).or_else(|| self.stands_for_another(&worktree.branch)) {
            return Ok(Err(format!("your worktree cannot be committed: {why}")));
        }
        if let Some(what) = in_the_middle(&at) {
            return Ok(Err(format!(
                "a {what} is in the middle: finish it (git {what} --continue) or git {what} --abort"
            )));
        }
        if let Attached::Not(why) = self.attach(&at, worktree)? {
            return Ok(Err(why));
        }
        let repositories = reveal(&at)?;
        let state = State::of(&at)?;
        if !state.unmerged.is_empty() {
            let files = named(&state.unmerged);
            return Ok(Err(format!("conflicts are not resolved in {files}: resolve each, then git add it")));
        }
        if let Some(why) = state.unreadable {
            return Ok(Err(format!("your worktree cannot be committed: {why}")));
        }
        let merged: Vec<String> = small::text(&at.git_dir.join("MERGE_HEAD"))
            .map(|heads| heads.lines().map(|head| head.trim().to_owned()).collect())
            .unwrap_or_default();
        let has_committed = (state.is_dirty || !merged.is_empty())
            && self.commit_all(&at, worktree, assignment, summary, &merged, &repositories)?;
        self.sign(&at, worktree, assignment, has_committed)
    }

    /// Commits all there is, with these merged; says whether there was anything. It is done step by step because `git commit` writes
    /// files in the git folder, and follows what a branch may stand for.
    fn commit_all(
        &self,
        at: &At,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
        merged: &[String],
        repositories: &[PathBuf],
    ) -> Result<bool, RepositoryError> {
        stage(at, repositories)?;
        let said = at.git(["rev-parse", "HEAD^{commit}", "HEAD^{tree}"]).ok()?.line();
        let (tip, before) = said.split_once('\n').unwrap_or((&said, ""));
        let tree = at.git(["write-tree"]).ok()?.line();
        if tree == before && merged.is_empty() {
            // What differs may be the same once filters have seen it.
            return Ok(false);
        }
        let parents = std::iter::once(tip).chain(merged.iter().map(String::as_str)).flat_map(|parent| ["-p", parent]);
        let call = at.git(["commit-tree", &tree].into_iter().chain(parents).chain(["-F", "-"]));
        let message = message(&assignment.subject, summary, assignment);
        let new = call.input(message).variables(identity(assignment)).ok()?.line();
        self.move_branch(worktree, &new, tip)?;
        for left in ["MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "AUTO_MERGE"] {
            // It may not be there.
            let _ = fs::remove_file(at.git_dir.join(left));
        }
        Ok(true)
    }

    /// Gives the trailers to all commits of the branch that have none; `is_last_named`: the last one has them. Only texts change: files and index stay as they are.
    fn sign(
        &self,
        at: &At,
        worktree: &Worktree,
        assignment: &Assignment,
        is_last_named: bool,
    ) -> Result<Result<String, String>, RepositoryError> {
        let exclude = format!("^{}", self.target_ref());
        let said = at.git(["rev-list", "--reverse", "--topo-order", "HEAD", &exclude]).ok()?.line();
        let commits: Vec<&str> = said.lines().collect();
        // In this order the branch's own tip is the last.
        let tip = match commits.last() {
            Some(tip) => (*tip).to_owned(),
            None => at.git(["rev-parse", "HEAD"]).ok()?.line(),
        };
        if commits.len() > COMMITS_MAX {
            return Ok(Err(format!("your branch has {} commits, at most {COMMITS_MAX} are merged", commits.len())));
        }
        let mut renamed: Vec<(String, String)> = Vec::new();
        for commit in commits {
            if is_last_named && commit == tip && renamed.is_empty() {
                break;
            }
            let object = at.git(["cat-file", "commit", commit]).ok()?.out;
            let Some(signed) = signed(&object, &renamed, assignment) else { continue };
            let new = at.git(["hash-object", "-t", "commit", "-w", "--stdin"]).input(signed).ok()?.line();
            renamed.push((commit.to_owned(), new));
        }
        let Some((_, new)) = renamed.iter().find(|(old, _)| *old == tip) else { return Ok(Ok(tip)) };
        self.move_branch(worktree, new, &tip)?;
        Ok(Ok(new.clone()))
    }
}

/// Stages all there is, but for repositories within: to see whether one is changed git would run what its settings name.
fn stage(at: &At, repositories: &[PathBuf]) -> Result<(), RepositoryError> {
    let without = repositories.iter().map(|path| pathspec(",exclude", path));
    let all = ["add", "--all", "--sparse", "--", ":(top)"].map(OsString::from);
    at.git(all.into_iter().chain(without)).ok().map(drop)
}

/// What is not committed in a worktree.
struct State {
    /// Whether there is anything.
    is_dirty: bool,
    /// The files in conflict.
    unmerged: Vec<PathBuf>,
    /// Why a file cannot be committed: it is a pipe, a socket or a device, or may not be read.
    unreadable: Option<String>,
}

impl State {
    fn of(at: &At) -> Result<Self, RepositoryError> {
        // `u <XY> <sub> <m1> <m2> <m3> <mW> <h1> <h2> <h3> <path>` and `1 <XY> <sub> <mH> <mI> <mW> <hH> <hI> <path>`; see git-status(1),
        // Porcelain Format Version 2.
        const FIELDS_BEFORE_PATH: [(&[u8], usize); 3] = [(b"u ", 10), (b"1 ", 8), (b"? ", 1)];
        let said = at.git(["status", "--porcelain=v2", "-z", "--no-renames", "--ignore-submodules=all"]).ok()?;
        let path = |entry: &[u8]| {
            let (_, count) = FIELDS_BEFORE_PATH.iter().find(|(start, _)| entry.starts_with(start))?;
            entry.splitn(count + 1, |byte| *byte == b' ').nth(*count).map(path_of)
        };
        let unmerged = said.fields().filter(|entry| entry.starts_with(b"u ")).filter_map(path).collect();
        let unreadable = said.fields().filter_map(path).find_map(|path| unreadable(&at.work_tree, &path));
        Ok(Self { is_dirty: said.fields().next().is_some(), unmerged, unreadable })
    }
}

/// Why a file cannot be committed, where it is there and is neither a folder nor a link.
fn unreadable(work_tree: &Path, path: &Path) -> Option<String> {
    let file = work_tree.join(path);
    let kind = file.symlink_metadata().ok()?.file_type();
    if kind.is_dir() || kind.is_symlink() {
        return None;
    }
    let error = reading::open(&file, Accept::FilesHere).err()?;
    Some(format!("{}: {error}", text_of(path)))
}

/// Files in a text.
pub(super) fn named(files: &[PathBuf]) -> String {
    let more = files.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let names = files.iter().take(NAMED_MAX).map(|file| text_of(file));
    format!("{}{more}", names.collect::<Vec<_>>().join(", "))
}

/// The message of a commit: a line, what was done, the trailers.
pub(super) fn message(subject: &str, summary: &str, assignment: &Assignment) -> String {
    let summary = summary.trim();
    let summary = if summary.is_empty() { String::new() } else { format!("{summary}\n\n") };
    format!("{}\n\n{summary}{}", subject.trim(), trailers(assignment))
}

fn trailers(assignment: &Assignment) -> String {
    format!(
        "{TASK_TRAILER}: {}\n{TEAMMATE_TRAILER}: {}\n{ATTEMPT_TRAILER}: {}\n",
        assignment.task.0, assignment.teammate, assignment.attempt
    )
}

/// A commit with its task's trailers, and with parents that were renamed; `None` when it can stay as it is. What was signed before is not
/// any more once it says something else.
fn signed(object: &[u8], renamed: &[(String, String)], assignment: &Assignment) -> Option<Vec<u8>> {
    let end = object.windows(2).position(|window| window == b"\n\n")?;
    let (head, text) = (&object[..end], &object[end + 2..]);
    let mut has_changed = false;
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut is_signature = false;
    for line in head.split(|byte| *byte == b'\n') {
        is_signature = if line.starts_with(b" ") { is_signature } else { line.starts_with(b"gpgsig") };
        let parent = line.strip_prefix(b"parent ").and_then(|parent| {
            renamed
                .iter()
                .find(|(old, _)| old.as_bytes() == parent)
                .map(|(_, new)| format!("parent {new}").into_bytes())
        });
        has_changed |= parent.is_some();
        lines.push(if is_signature { Vec::new() } else { parent.unwrap_or_else(|| line.to_vec()) });
    }
    let trailer = format!("{TASK_TRAILER}: {}", assignment.task.0);
    let is_trailer = |line: &[u8]| line.trim_ascii_end() == trailer.as_bytes();
    let is_named = text.split(|byte| *byte == b'\n').any(is_trailer);
    if is_named && !has_changed {
        return None;
    }
    lines.retain(|line| !line.is_empty());
    let mut signed = lines.join(&b'\n');
    signed.extend(b"\n\n");
    signed.extend(text.trim_ascii_end());
    if !is_named {
        signed.extend(if ends_with_trailers(text) { b"\n".as_slice() } else { b"\n\n" });
        signed.extend(trailers(assignment).trim_end().as_bytes());
    }
    signed.push(b'\n');
    Some(signed)
}

/// Whether a message's last paragraph, behind another one, is trailers already.
fn ends_with_trailers(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let Some((_, last)) = text.trim_end().rsplit_once("\n\n") else { return false };
    let is_trailer = |line: &str| {
        line.split_once(": ").is_some_and(|(key, _)| {
            !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
        })
    };
    last.lines().all(is_trailer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;

    fn assignment() -> Assignment {
        Assignment {
            team: "crew".into(),
            task: TaskId(3),
            subject: "Do it".into(),
            attempt: 2,
            teammate: "alice".into(),
            worker: "w".into(),
        }
    }

    fn sign(text: &str, renamed: &[(String, String)]) -> Option<String> {
        signed(text.as_bytes(), renamed, &assignment()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_commit_without_trailers_gets_them_behind_its_text() {
        let text = sign("tree t\nparent p\nauthor a\n\nLine\n\nMore.\n", &[]).unwrap();
        let end = "\n\nLine\n\nMore.\n\nBrigade-Task: 3\nBrigade-Teammate: alice\nBrigade-Attempt: 2\n";
        assert_eq!(text, format!("tree t\nparent p\nauthor a{end}"));
        assert_eq!(sign(&text, &[]), None, "it is named now");
    }

    #[test]
    fn other_trailers_stay_together_with_ours() {
        let text = sign("tree t\n\nLine\n\nSigned-off-by: b\n", &[]).unwrap();
        assert!(text.ends_with("\n\nSigned-off-by: b\nBrigade-Task: 3\nBrigade-Teammate: alice\nBrigade-Attempt: 2\n"));
    }

    #[test]
    fn a_parent_that_was_renamed_is_named_anew_and_a_signature_that_holds_no_more_goes() {
        let object = "tree t\nparent p\ngpgsig -----BEGIN\n abc\n -----END\nauthor a\n\nLine\n\nBrigade-Task: 3\n";
        let text = sign(object, &[("p".into(), "q".into())]).unwrap();
        assert_eq!(text, "tree t\nparent q\nauthor a\n\nLine\n\nBrigade-Task: 3\n");
        let foreign = sign("tree t\n\nLine\n\nBrigade-Task: 9\n", &[]).unwrap();
        assert!(foreign.contains("Brigade-Task: 3\nBrigade-Teammate: alice\n"), "another task's does not count");
    }
}
