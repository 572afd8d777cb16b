//! The commits of a task: commits the remaining changes in its worktree, and fetches its commits into the person's repository. Commits are
//! never rewritten.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::RepositoryInner;
use super::branch::{BranchStatus, is_commit, is_recorded, record_branch};
use super::command::{RepoPath, path_of, pathspec, text_of};
use super::fetching::{Fetch, UnfetchedRef};
use super::index_flags::clear_skip_worktree;
use super::queries::{identity, unread_folder};
use crate::domain::git::dropped_lines::{ATTEMPT_TRAILER, TASK_TRAILER, TEAMMATE_TRAILER, short_commit};
use crate::domain::text::units::join_up_to;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{Assignment, CommitOutcome, RepositoryError, Worktree};

/// Files or tasks that a text names. It gives only the number of the rest.
const NAMED_MAX: usize = 10;

impl RepositoryInner {
    pub(super) fn commit(&self, worktree: &Worktree, summary: &str) -> Result<CommitOutcome, RepositoryError> {
        let Some(at) = self.main.place_at(&worktree.root).map(RepoPath::confined) else {
            return Ok(CommitOutcome::Refused(format!("{} is not a worktree any more: it was removed", worktree.name)));
        };
        at.remove_dead_locks()?;
        if let Some(what) = at.unfinished_operation().filter(|what| *what != "merge") {
            return Ok(CommitOutcome::Refused(format!(
                "a {what} is unfinished in the worktree. Run git {what} --continue or git {what} --abort"
            )));
        }
        if let BranchStatus::OffBranch(why) = self.checkout_branch(&at, worktree)? {
            return Ok(CommitOutcome::Refused(why));
        }
        let repositories = clear_skip_worktree(&at)?;
        let state = UncommittedChanges::of(&at)?;
        if !state.unmerged.is_empty() {
            let files = list_files(&state.unmerged);
            return Ok(CommitOutcome::Refused(format!(
                "there are unresolved conflicts in {files}, of the unfinished merge in your worktree. Edit each file so that it keeps what both sides added, remove the conflict markers, then git add it"
            )));
        }
        if let Some(why) = state.unreadable {
            return Ok(CommitOutcome::Refused(format!("cannot commit in the worktree: {why}")));
        }
        let mut tip = state.head;
        if state.is_dirty || at.unfinished_operation() == Some("merge") {
            self.commit_all(&at, worktree, summary, &repositories)?;
            tip = None;
        }
        if let Some(reason) = self.setup.committed_copies(&at, &self.branch)? {
            return Ok(CommitOutcome::Refused(reason));
        }
        let tip = tip.map_or_else(|| at.head(), Ok)?;
        let before = self.main.branch_commit(&worktree.branch)?;
        if before.as_ref() != Some(&tip)
            && let Fetch::Refused(reason) = self.main.fetch_from(&at, &tip)?
        {
            return Ok(CommitOutcome::Refused(reason));
        }
        if let Some(left) = self.main.unfetched_refs(&at)?.first() {
            return Ok(CommitOutcome::Refused(left_behind(&at, left)?));
        }
        if let Some(before) = before.as_ref().filter(|before| **before != tip && !is_recorded(&worktree.root, before))
            && !self.main.is_ancestor(before, &tip)?
        {
            let branch = &worktree.branch;
            return Ok(CommitOutcome::Refused(format!(
                "a person committed on {branch} in the repository, and your work lacks that. Run git pull --no-rebase ../.. {} in the worktree, and complete the task again",
                branch.full()
            )));
        }
        let moves: Vec<&str> = before.iter().chain([&tip]).map(String::as_str).collect();
        record_branch(&worktree.root, &moves)?;
        self.set_branch(&worktree.branch, &tip)?;
        Ok(CommitOutcome::Committed(tip))
    }

    /// Commits all changes, and ends an unfinished merge.
    fn commit_all(
        &self,
        at: &RepoPath,
        worktree: &Worktree,
        summary: &str,
        repositories: &[PathBuf],
    ) -> Result<(), RepositoryError> {
        stage(at, repositories, [])?;
        self.setup.unstage_copies(at, [])?;
        let assignment = &worktree.assignment;
        let message = message(&assignment.subject, summary, assignment);
        let options = ["commit", "--quiet", "--no-verify", "--cleanup=verbatim", "-F", "-"];
        let committed = at.git(options).input(message).variables(identity(assignment.signature())).ok().map(drop);
        // Filters may have undone the difference.
        let is_unchanged = || at.git(["diff-index", "--cached", "--quiet", "HEAD", "--"]).exit_as_bool();
        if committed.is_err() && at.unfinished_operation().is_none() && is_unchanged()? { Ok(()) } else { committed }
    }
}

/// The text for a teammate that left work on another branch, or in a stash.
fn left_behind(at: &RepoPath, left: &UnfetchedRef) -> Result<String, RepositoryError> {
    let (take, drop) = match left.branch() {
        None => ("git stash pop".to_owned(), "git stash drop".to_owned()),
        Some(branch) => (format!("git merge {}", at.name_in_commands(&branch)?), format!("git branch -D {branch}")),
    };
    Ok(format!(
        "the worktree has {} at {}, which your work lacks: run {take} to take it, or {drop}, and complete the task again",
        left.shown(),
        short_commit(&left.commit)
    ))
}

/// Stages everything except nested repositories: to find changes in one, git would run programs that its settings name.
pub(super) fn stage(
    at: &RepoPath,
    repositories: &[PathBuf],
    variables: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<(), RepositoryError> {
    let without = repositories.iter().map(|path| pathspec(",exclude", path));
    let all = ["add", "--all", "--sparse", "--", ":(top)"].map(OsString::from).into_iter();
    at.git(all.chain(without)).variables(variables).ok().map(drop)
}

/// The uncommitted changes of a worktree.
pub(super) struct UncommittedChanges {
    /// `true` if there are any.
    is_dirty: bool,
    /// Files with conflicts.
    unmerged: Vec<PathBuf>,
    /// The reason why a file cannot be committed: it is a pipe, a socket or a device, or it or its folder is not readable.
    pub unreadable: Option<String>,
    /// The checked out commit.
    head: Option<String>,
}

impl UncommittedChanges {
    pub(super) fn of(at: &RepoPath) -> Result<Self, RepositoryError> {
        // `u <XY> <sub> <m1> <m2> <m3> <mW> <h1> <h2> <h3> <path>` and `1 <XY> <sub> <mH> <mI> <mW> <hH> <hI> <path>`; see git-status(1),
        // Porcelain Format Version 2.
        const FIELDS_BEFORE_PATH: [(&[u8], usize); 3] = [(b"u ", 10), (b"1 ", 8), (b"? ", 1)];
        let options = ["--porcelain=v2", "--branch", "-z", "--no-renames", "--ignore-submodules=all"];
        let output = at.git(["status"].iter().chain(&options)).ok()?;
        let (headers, entries): (Vec<_>, Vec<_>) = output.fields().partition(|entry| entry.starts_with(b"# "));
        let head = headers.iter().find_map(|header| header.strip_prefix(b"# branch.oid "));
        let head = head.map(|head| String::from_utf8_lossy(head).into_owned()).filter(|head| is_commit(head));
        let path = |entry: &[u8]| {
            let (_, count) = FIELDS_BEFORE_PATH.iter().find(|(start, _)| entry.starts_with(start))?;
            entry.splitn(count + 1, |byte| *byte == b' ').nth(*count).map(path_of)
        };
        let of = |entry: &&[u8]| path(entry);
        let unmerged = entries.iter().filter(|entry| entry.starts_with(b"u ")).filter_map(of).collect();
        let unreadable = entries.iter().filter_map(of).find_map(|path| unreadable(&at.work_tree, &path));
        let unreadable = unreadable.or_else(|| unread_folder(&output));
        Ok(Self { is_dirty: !entries.is_empty(), unmerged, unreadable, head })
    }
}

/// The reason why a path cannot be committed. Folders, links and missing files are fine.
fn unreadable(work_tree: &Path, path: &Path) -> Option<String> {
    let file = work_tree.join(path);
    let kind = file.symlink_metadata().ok()?.file_type();
    if kind.is_dir() || kind.is_symlink() {
        return None;
    }
    let error = reading::open(&file, AllowedKinds::FilesHere).err()?;
    Some(format!("{}: {error}", text_of(path)))
}

/// Names as text, at most [`NAMED_MAX`] of them.
pub(super) fn list_names(names: impl ExactSizeIterator<Item = String>) -> String {
    join_up_to(names, NAMED_MAX)
}

/// The names of files as text.
pub(super) fn list_files(files: &[PathBuf]) -> String {
    list_names(files.iter().map(|file| text_of(file)))
}

/// A commit message: the subject, the summary, the trailers.
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
