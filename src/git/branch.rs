//! A task's branch. Its place has it checked out, and the person's repository has the last commit of it that Brigade fetched.

use std::path::Path;

use super::command::RepoPath;
use super::{RepositoryInner, files};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::short_commit;
use crate::ports::{RepositoryError, TEAMMATES_DOMAIN, Worktree};

/// The file, in a worktree, with the base commit of its branch. It is not in the state file, because other programs that
/// write that file may drop unknown keys.
const BASE_FILE: &str = ".agent/base";
/// The file, in a worktree, with the commits of its branch that Brigade fetched last.
const BRANCH_FILE: &str = ".agent/branch";
/// The number of hex digits of a commit id: 40 with SHA-1, 64 with SHA-256.
const COMMIT_ID_DIGITS: std::ops::RangeInclusive<usize> = 40..=64;

/// The result of [`RepositoryInner::checkout_branch`].
pub(super) enum BranchStatus {
    /// The worktree already was on its branch.
    AlreadyOnBranch,
    /// It is on its branch now. The text describes the change.
    Switched(String),
    /// It is not on its branch. The text tells the teammate what to do.
    OffBranch(String),
}

/// Records the base commit of the branch in a worktree that has no own commits.
pub(super) fn record_base(root: &Path, commit: &str) -> Result<(), RepositoryError> {
    files::replace(&root.join(BASE_FILE), &format!("{commit}\n"))
}

/// Records the commits between which Brigade moves the branch in the person's repository. A kill may leave it at either.
pub(super) fn record_branch(root: &Path, commits: &[&str]) -> Result<(), RepositoryError> {
    files::replace(&root.join(BRANCH_FILE), &format!("{}\n", commits.join("\n")))
}

/// The commit that [`record_base`] recorded.
pub(super) fn recorded_base(root: &Path) -> Option<String> {
    let text = files::text(&root.join(BASE_FILE))?;
    let commit = text.trim_end();
    is_commit(commit).then(|| commit.to_owned())
}

/// Returns true if Brigade moved the branch in the person's repository to this commit. If not, a person did.
pub(super) fn is_recorded(root: &Path, commit: &str) -> bool {
    let texts = [BASE_FILE, BRANCH_FILE].iter().filter_map(|file| files::text(&root.join(file)));
    texts.into_iter().any(|text| text.lines().any(|line| line == commit))
}

impl RepositoryInner {
    /// Puts a worktree back on its own branch after a teammate switched to another branch, renamed the branch or deleted it.
    ///
    /// - If the checked out commit contains all of the branch, and beyond it only commits of teammates, the branch moves to it.
    /// - If it has no own commits, the worktree is switched to the branch.
    /// - Otherwise nothing changes.
    pub(super) fn checkout_branch(&self, at: &RepoPath, worktree: &Worktree) -> Result<BranchStatus, RepositoryError> {
        let branch = &worktree.branch;
        let name = branch.full();
        let current = at.checked_out_branch()?;
        let own = at.branch_commit(branch)?;
        if current.as_ref() == Some(branch) && own.is_some() {
            return Ok(BranchStatus::AlreadyOnBranch);
        }
        let current_text = current.as_ref().map_or_else(|| "no branch".to_owned(), |name| format!("the branch {name}"));
        let refusal = format!(
            "{current_text} is checked out in the worktree, but it lacks commits of {branch}, or has commits of others. The work belongs on {branch}: run git switch {branch} and merge your work there, or git switch -C {branch} to continue from what is checked out"
        );
        if at.unfinished_operation().is_some_and(|what| what != "merge") {
            return Ok(BranchStatus::OffBranch(refusal));
        }
        let last = own.clone().map_or_else(|| self.main.branch_commit(branch), |own| Ok(Some(own)))?;
        let Some(last) = last.or_else(|| recorded_base(&worktree.root)) else {
            return Ok(BranchStatus::OffBranch(refusal));
        };
        let head = at.commit("HEAD")?.unwrap_or_else(|| last.clone());
        let format = ["log", "--format=%ce", &head, "--not", &last, &self.branch.target_commit()?];
        let committers = at.git(format).ok()?.line();
        let is_of_teammates = committers.lines().all(|email| email.ends_with(TEAMMATES_DOMAIN));
        if is_of_teammates && at.is_ancestor(&last, &head)? {
            at.git(["update-ref", "--no-deref", &name, &head]).ok()?;
            at.git(["symbolic-ref", "HEAD", &name]).ok()?;
            let was_missing = if own.is_some() { "" } else { ", which was missing," };
            let commit = short_commit(&head);
            return Ok(BranchStatus::Switched(format!(
                "{current_text} was checked out, so {branch}{was_missing} continues from its commit {commit}"
            )));
        }
        // `-C` takes nothing but the name of a branch.
        if let Some(own) = &own
            && committers.is_empty()
            && at.changes(&[])?.out.is_empty()
            && at.git(["switch", "--quiet", "-C", branch.short(), own]).run()?.code == 0
        {
            return Ok(BranchStatus::Switched(format!(
                "{current_text} was checked out, so it was switched back to {branch}"
            )));
        }
        Ok(BranchStatus::OffBranch(refusal))
    }

    /// Sets a task's branch in the person's repository, unless the person has it checked out.
    pub(super) fn set_branch(&self, branch: &BranchName, commit: &str) -> Result<(), RepositoryError> {
        if self.main.checkout_of(branch).is_some() {
            return Ok(());
        }
        self.main.set_ref(&branch.full(), commit)
    }
}

/// Returns true if the text has the form of a commit id.
pub(super) fn is_commit(text: &str) -> bool {
    COMMIT_ID_DIGITS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
