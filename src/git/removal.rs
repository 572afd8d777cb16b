//! Removes the worktrees of completed tasks, and at a launch what earlier processes left half-made or half-removed.

use std::path::PathBuf;

use super::RepositoryInner;
use super::command::RepoPath;
use super::failed_attempts::is_saved_attempt;
use super::files::{self, remove_folder};
use super::ignored_work::{WITH_IGNORED, split_ignored};
use super::index_flags::{clear_skip_worktree, first_with_work};
use super::kept_files::kept_place;
use super::places::{GONE_PREFIX, MAKING_PREFIX};
use super::setup::SETUP_FILE;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::worktree_name::WORKTREES_FOLDER;
use crate::ports::{RepositoryError, Worktree};
use crate::sandbox::filter::SCRATCH_PREFIX;

impl RepositoryInner {
    /// Removes a completed task's worktree and branch. If they hold anything unmerged, keeps them and returns the reason.
    pub(super) fn remove(&self, worktree: &Worktree) -> Result<Option<String>, RepositoryError> {
        let name = &worktree.name;
        let branch = worktree.branch.full();
        let tip = self.main.branch_commit(&worktree.branch)?;
        if let Some(tip) = &tip
            && !self.branch.has_merged(tip)?
        {
            let branch = &worktree.branch;
            return Ok(Some(format!("{name} stays: its branch {branch} has unmerged commits")));
        }
        let mut kept = None;
        if worktree.root.symlink_metadata().is_ok() {
            if self.states.read_expect(&worktree.root, &worktree.assignment.identifier()).is_err() {
                return Ok(Some(format!("{name} stays: its state file does not name this task")));
            }
            let Some(at) = self.main.place_at(&worktree.root).map(RepoPath::confined) else {
                return Ok(Some(format!("{name} stays: it has no git folder of its own")));
            };
            at.remove_dead_locks()?;
            let ignored = match unsaved_work(&self.main, &at)? {
                PlaceWork::Other(reason) => return Ok(Some(format!("{name} stays: {reason}"))),
                PlaceWork::OnlyIgnored(ignored) => ignored,
            };
            let files = self.move_ignored(&at, worktree.assignment.task, ignored)?;
            if files.left.is_empty() {
                self.main.remove_place(&worktree.root)?;
            } else {
                self.keep_place(&worktree.root, None)?;
                let problems: String = files.problems().map(|problem| format!("; {problem}")).collect();
                kept = Some(format!("{name} stays: git ignores files that the task made: {}{problems}", files.left));
            }
        }
        // Git compares the old value: a branch that moved meanwhile stays.
        if let Some(tip) = tip
            && self.main.checkout_of(&worktree.branch).is_none()
        {
            self.main.git(["update-ref", "--no-deref", "-d", &branch, &tip]).ok()?;
        }
        Ok(kept)
    }

    /// Deletes what a kill left of places of this team that were being made or removed. It must run before any teammate works.
    pub(super) fn finish_removals(&self) -> Result<(), RepositoryError> {
        for entry in files::entries(&self.main.work_tree.join(WORKTREES_FOLDER)) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let place = [MAKING_PREFIX, GONE_PREFIX].iter().find_map(|prefix| name.strip_prefix(prefix));
            if name.starts_with(SCRATCH_PREFIX) || place.is_some_and(|place| self.is_of_team(place)) {
                // Earlier versions marked a worktree that was being made by a file.
                remove_folder(&entry)?;
            }
        }
        Ok(())
    }

    /// Returns true if a folder name is that of one of this team's worktrees.
    pub(super) fn is_of_team(&self, name: &str) -> bool {
        name.strip_prefix(&self.branch.team)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("-task-") || rest.starts_with(".merge"))
    }

    /// Returns true if a completed task's worktree is kept for its ignored files, and holds no other work.
    pub(super) fn is_kept_for_ignored(&self, worktree: &Worktree) -> Result<bool, RepositoryError> {
        let Some(at) = self.main.place_at(&worktree.root).map(RepoPath::confined) else { return Ok(false) };
        Ok(kept_place(&worktree.root).is_some() && matches!(unsaved_work(&self.main, &at)?, PlaceWork::OnlyIgnored(_)))
    }
}

/// The work in a place that a removal would lose.
pub(super) enum PlaceWork<T> {
    /// Only these ignored files.
    OnlyIgnored(T),
    /// Other work, as this text says.
    Other(String),
}

/// Returns the work of a place that a removal would lose, with its ignored entries.
pub(super) fn unsaved_work(main: &RepoPath, at: &RepoPath) -> Result<PlaceWork<Vec<PathBuf>>, RepositoryError> {
    let repositories = clear_skip_worktree(at)?;
    if let Some(reason) = unsavable_content(at, &repositories) {
        return Ok(PlaceWork::Other(reason));
    }
    let (ignored, files) = split_ignored(&at.changes(&[WITH_IGNORED])?);
    if files > 0 && !is_saved_attempt(at)? {
        return Ok(PlaceWork::Other(format!("it has {files} uncommitted files")));
    }
    if let Some(first) = main.unfetched_refs(at)?.first() {
        let commit = short_commit(&first.commit);
        return Ok(PlaceWork::Other(format!(
            "{} in it has commits that are not merged, such as {commit}",
            first.shown()
        )));
    }
    // A checked out branch is one of these refs.
    if at.checked_out_branch()?.is_some() {
        return Ok(PlaceWork::OnlyIgnored(ignored));
    }
    match at.commit("HEAD")? {
        Some(head) if main.commit(&head)?.is_none() => {
            Ok(PlaceWork::Other(format!("commit {} is checked out in it and not merged", short_commit(&head))))
        }
        _ => Ok(PlaceWork::OnlyIgnored(ignored)),
    }
}

/// The reason why a removal of the worktree would lose something that no commit can save.
pub(super) fn unsavable_content(at: &RepoPath, repositories: &[PathBuf]) -> Option<String> {
    if at.git_dir.join("modules").exists() && !at.work_tree.join(SETUP_FILE).exists() {
        return Some("it has submodules".to_owned());
    }
    let repository = first_with_work(at, repositories)?;
    Some(format!("the nested repository {} is not empty", repository.display()))
}
