//! A task's branch: its base commit, and the checks that keep its worktree on it.

use super::command::RepoPath;
use super::{RepositoryInner, files};
use crate::domain::dropped_lines::short_commit;
use crate::domain::worktree_name::TASK_BRANCHES;
use crate::ports::{RepositoryError, TEAMMATES_DOMAIN, Worktree};

/// The file, in a worktree, with the base commit of its branch. It is not in the state file, because other programs that
/// write that file may drop unknown keys.
const BASE_FILE: &str = ".agent/base";
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

impl RepositoryInner {
    /// Records the base commit of a branch that has no own commits.
    pub(super) fn record_base(&self, worktree: &Worktree, commit: &str) -> Result<(), RepositoryError> {
        files::replace(&worktree.root.join(BASE_FILE), &format!("{commit}\n"))
    }

    /// The base commit of a branch, if it is recorded.
    pub(super) fn base_commit(&self, worktree: &Worktree) -> Option<String> {
        let text = files::text(&worktree.root.join(BASE_FILE))?;
        let commit = text.trim_end();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Puts a worktree back on its own branch after a teammate switched to another branch, renamed the branch or deleted it.
    ///
    /// - If the checked out commit contains all of the branch, and only commits made for this task, the branch moves to it.
    /// - If it has no own commits, the worktree is switched to the branch.
    /// - Otherwise nothing changes.
    pub(super) fn checkout_branch(&self, at: &RepoPath, worktree: &Worktree) -> Result<BranchStatus, RepositoryError> {
        let branch = &worktree.branch;
        let current = at.checked_out_branch()?;
        let own = self.main.commit(&format!("refs/heads/{branch}"))?;
        if current.as_ref() == Some(branch) && own.is_some() {
            return Ok(BranchStatus::AlreadyOnBranch);
        }
        let current_text = current.as_ref().map_or_else(|| "no branch".to_owned(), |name| format!("the branch {name}"));
        let refusal = format!(
            "{current_text} is checked out in the worktree, but the work belongs on {branch}. Run git switch {branch}, or git branch -M {branch}"
        );
        if at.unfinished_operation().filter(|what| *what != "merge").is_some()
            || (own.is_some() && self.main.is_checked_out(branch)?)
        {
            return Ok(BranchStatus::OffBranch(refusal));
        }
        let mut head = at.commit("HEAD")?;
        if head.is_none() && own.is_none() {
            head = self.base_commit(worktree);
        }
        let Some(head) = head else { return Ok(BranchStatus::OffBranch(refusal)) };
        let base = own.clone().or_else(|| self.base_commit(worktree)).unwrap_or_else(|| self.branch.target_ref());
        let has_more = !self.committers_beyond(at, &head, &base, &[])?.is_empty();
        let is_ahead = own.as_ref().map_or(Ok(true), |own| self.main.is_ancestor(own, &head))?;
        if is_ahead && (!has_more || self.is_made_for(at, worktree, current.as_deref(), &head, &base)?) {
            self.move_branch(worktree, &head, own.as_deref().unwrap_or_default())?;
            at.git(["symbolic-ref", "HEAD", &format!("refs/heads/{branch}")]).ok()?;
            let was_missing = if own.is_some() { "" } else { ", which was missing," };
            let commit = short_commit(&head);
            return Ok(BranchStatus::Switched(format!(
                "{current_text} was checked out, so {branch}{was_missing} continues from its commit {commit}"
            )));
        }
        if own.is_some()
            && !has_more
            && at.changes(&[])?.out.is_empty()
            && at.git(["switch", "--quiet", branch]).run()?.code == 0
        {
            return Ok(BranchStatus::Switched(format!(
                "{current_text} was checked out, so it was switched back to {branch}"
            )));
        }
        Ok(BranchStatus::OffBranch(refusal))
    }

    /// The committers of all commits of `head` that are in none of `base`, the target branch and `others`.
    fn committers_beyond(
        &self,
        at: &RepoPath,
        head: &str,
        base: &str,
        others: &[String],
    ) -> Result<Vec<String>, RepositoryError> {
        let start = ["log", "--format=%ce", head, "--not", base, &self.branch.target_ref()].map(str::to_owned);
        let output = at.git(start.iter().chain(others)).ok()?.line();
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// Returns true if the commits of `head` beyond `base` were made for this task. Teammates must have committed them. They may be on
    /// no branch except the checked out one, which must not be another task's. This keeps a person's work and unverified work of other
    /// tasks from being merged.
    fn is_made_for(
        &self,
        at: &RepoPath,
        worktree: &Worktree,
        current: Option<&str>,
        head: &str,
        base: &str,
    ) -> Result<bool, RepositoryError> {
        let is_task_branch = current.is_some_and(|name| name.starts_with(TASK_BRANCHES));
        let committers = self.committers_beyond(at, head, base, &[])?;
        if is_task_branch || !committers.iter().all(|email| email.ends_with(TEAMMATES_DOMAIN)) {
            return Ok(false);
        }
        let allowed = [Some(worktree.branch.as_str()), current].into_iter().flatten();
        let excluded = allowed.map(|branch| format!("--exclude={branch}"));
        let others: Vec<String> = excluded.chain(["--branches".to_owned()]).collect();
        Ok(self.committers_beyond(at, head, base, &others)?.len() == committers.len())
    }

    /// Moves a task's branch itself, never a ref that it points to. `old` is its commit, or empty if it does not exist.
    pub(super) fn move_branch(&self, worktree: &Worktree, new: &str, old: &str) -> Result<(), RepositoryError> {
        let branch = format!("refs/heads/{}", worktree.branch);
        let no_log = ["-c", "core.logAllRefUpdates=false"];
        self.main.git(no_log.iter().chain(&["update-ref", "--no-deref", &branch, new, old])).ok().map(drop)
    }
}

/// Returns true if the text has the form of a commit id.
pub(super) fn is_commit(text: &str) -> bool {
    COMMIT_ID_DIGITS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
