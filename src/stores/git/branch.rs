//! A task's branch: which commit it was begun at, and that it is the one its worktree is on.

use std::fs;

use super::run::At;
use super::worktrees::failed;
use super::{Inner, checked_out, small};
use crate::domain::merge::short_commit;
use crate::ports::{RepositoryError, TEAMMATES_DOMAIN, Worktree};

/// In a worktree: the commit its branch was begun at. It stands beside the state and not in it, where another runner may drop it.
const BASE_FILE: &str = ".agent/base";
/// As long as the number of a commit can be, in letters.
const COMMIT_LETTERS: std::ops::RangeInclusive<usize> = 40..=64;
/// What git keeps in a worktree's folder while it is in the middle of something, and what that is.
const IN_THE_MIDDLE: [(&str, &str); 3] =
    [("rebase-merge", "rebase"), ("rebase-apply", "rebase"), ("CHERRY_PICK_HEAD", "cherry-pick")];

/// Whether a worktree is on its own branch.
pub(super) enum Attached {
    /// It was.
    Was,
    /// It is now; the text says how that was come by.
    Now(String),
    /// It is not: for who can mend it.
    Not(String),
}

impl Inner {
    /// Notes that a branch has what this commit has, and nothing of its own.
    pub(super) fn note_base(&self, worktree: &Worktree, commit: &str) -> Result<(), RepositoryError> {
        let path = worktree.root.join(BASE_FILE);
        let new = path.with_extension("new");
        fs::write(&new, format!("{commit}\n"))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| failed("write", &path, &error))
    }

    /// The commit a branch was begun at, where that is known.
    pub(super) fn begun_at(&self, worktree: &Worktree) -> Option<String> {
        let text = small::text(&worktree.root.join(BASE_FILE))?;
        let commit = text.trim_end();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Has a worktree be on its own branch, also after a teammate switched to another one, renamed it or deleted it. The branch goes on from
    /// what is checked out where that has all its commits, and no others than were made for it; it is switched to where what is checked out
    /// has nothing of its own.
    pub(super) fn attach(&self, at: &At, worktree: &Worktree) -> Result<Attached, RepositoryError> {
        let branch = &worktree.branch;
        let on = checked_out(at)?;
        let own = self.ref_at(&format!("refs/heads/{branch}"))?;
        if on.as_ref() == Some(branch) && own.is_some() {
            return Ok(Attached::Was);
        }
        let is = on.as_ref().map_or_else(|| "no branch".to_owned(), |on| format!("the branch {on}"));
        let not = format!(
            "{is} is checked out in your worktree; your work belongs on {branch}: git switch {branch}, or git branch -M {branch}"
        );
        if in_the_middle(at).is_some() || (own.is_some() && self.is_taken(branch)?) {
            return Ok(Attached::Not(not));
        }
        let head = at.git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).run()?;
        let head = if head.code == 0 { Some(head.line()) } else { self.begun_at(worktree).filter(|_| own.is_none()) };
        let Some(head) = head else { return Ok(Attached::Not(not)) };
        let begun = own.clone().or_else(|| self.begun_at(worktree)).unwrap_or_else(|| self.target_ref());
        let has_more = !self.beyond(at, &head, &begun, &[])?.is_empty();
        let is_ahead = own.as_ref().map_or(Ok(true), |own| self.is_ancestor(own, &head))?;
        if is_ahead && (!has_more || self.is_made_for(at, worktree, on.as_deref(), &head, &begun)?) {
            self.move_branch(worktree, &head, own.as_deref().unwrap_or_default())?;
            at.git(["symbolic-ref", "HEAD", &format!("refs/heads/{branch}")]).ok()?;
            let was = if own.is_some() { "" } else { ", which was gone," };
            let from = short_commit(&head);
            return Ok(Attached::Now(format!(
                "{is} was checked out there: {branch}{was} goes on from its commit {from}"
            )));
        }
        let is_clean =
            || at.git(["status", "--porcelain", "-z", "--ignore-submodules=all"]).ok().map(|said| said.out.is_empty());
        if own.is_some() && !has_more && is_clean()? && at.git(["switch", "--quiet", branch]).run()?.code == 0 {
            return Ok(Attached::Now(format!("{is} was checked out there: it was switched back to {branch}")));
        }
        Ok(Attached::Not(not))
    }

    /// The committers of what `head` has beyond `begun`, the branch that is merged into, and what else is told.
    fn beyond(&self, at: &At, head: &str, begun: &str, others: &[String]) -> Result<Vec<String>, RepositoryError> {
        let start = ["log", "--format=%ce", head, "--not", begun, &self.target_ref()].map(str::to_owned);
        let said = at.git(start.iter().chain(others)).ok()?.line();
        Ok(said.lines().map(str::to_owned).collect())
    }

    /// Whether what `head` has beyond `begun` was committed by teammates, and is on no branch but the one that is checked out, which is not
    /// another task's: a person's work, or what is not verified yet, is not merged because somebody looked at it.
    fn is_made_for(
        &self,
        at: &At,
        worktree: &Worktree,
        on: Option<&str>,
        head: &str,
        begun: &str,
    ) -> Result<bool, RepositoryError> {
        let is_anothers = on.is_some_and(|on| on.starts_with(&format!("brigade/{}/task-", self.team)));
        let by = self.beyond(at, head, begun, &[])?;
        if is_anothers || !by.iter().all(|email| email.ends_with(TEAMMATES_DOMAIN)) {
            return Ok(false);
        }
        let of_this = [Some(worktree.branch.as_str()), on].into_iter().flatten();
        let excluded = of_this.map(|branch| format!("--exclude={branch}"));
        let others: Vec<String> = excluded.chain(["--branches".to_owned()]).collect();
        Ok(self.beyond(at, head, begun, &others)?.len() == by.len())
    }

    /// Moves a task's own branch, and nothing that it might stand for. `old`: where it is; empty where it is not there.
    pub(super) fn move_branch(&self, worktree: &Worktree, new: &str, old: &str) -> Result<(), RepositoryError> {
        let branch = format!("refs/heads/{}", worktree.branch);
        let no_log = ["-c", "core.logAllRefUpdates=false"];
        self.main.git(no_log.iter().chain(&["update-ref", "--no-deref", &branch, new, old])).ok().map(drop)
    }
}

/// Whether this is the number of a commit, by its form.
pub(super) fn is_commit(text: &str) -> bool {
    COMMIT_LETTERS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What git is in the middle of in a worktree.
pub(super) fn in_the_middle(at: &At) -> Option<&'static str> {
    IN_THE_MIDDLE.into_iter().find(|(file, _)| at.git_dir.join(file).exists()).map(|(_, what)| what)
}
