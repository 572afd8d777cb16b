//! The user's checkout: it follows when a merge moves its branch. Brigade never changes the user's own files there, tracked or not. If
//! they block the update, the checkout is switched to its own branch at its current commit. So a commit there cannot undo a
//! merge. It returns to the target branch when nothing blocks it any more.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

use super::branch::is_commit;
use super::checkout_update::{CheckoutUpdate, Residue};
use super::command::{RepoPath, git, text_of};
use super::removal::remove_file;
use super::worktrees::{POINTER_FILE, failed};
use super::{CHECKOUT_REF, RepositoryInner, bounded_read, checked_out_branch};
use crate::domain::dropped_lines::{removed_lines, short_commit};
use crate::domain::event::Notice;
use crate::ports::{Durability, RepositoryError, TEAMMATES_DOMAIN};

/// Prefix of the branches that a blocked checkout is switched to.
const DETACHED_PREFIX: &str = "brigade-yours";
/// The highest number of such a branch.
const DETACHED_NUMBER_MAX: u32 = 99;
/// Entries of a checkout's git folder that exist during an unfinished merge, rebase or similar operation of the user.
const UNFINISHED_OPERATION_FILES: [&str; 7] =
    ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "sequencer", "BISECT_LOG"];

/// The branch of the user's checkout, relative to the target branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckoutState {
    /// On the target branch.
    CheckedOut,
    /// On this branch, which Brigade switched it to because it could not follow.
    Detached(String),
    /// On another branch, or on none.
    Elsewhere,
}

impl CheckoutState {
    pub(super) fn of(main: &RepoPath, target: &str) -> Result<Self, RepositoryError> {
        Ok(match checked_out_branch(main)? {
            Some(branch) if branch == target => Self::CheckedOut,
            Some(branch) if target_of_detached(&branch) == Some(target) => Self::Detached(branch),
            _ => Self::Elsewhere,
        })
    }
}

/// The `number`-th branch for a blocked checkout of `target`.
fn detached_branch(target: &str, number: u32) -> String {
    let end = if number > 1 { format!("-{number}") } else { String::new() };
    format!("{DETACHED_PREFIX}{end}/{target}")
}

/// The target branch of a checkout that Brigade switched to `branch`.
pub(super) fn target_of_detached(branch: &str) -> Option<&str> {
    let (end, target) = branch.strip_prefix(DETACHED_PREFIX)?.split_once('/')?;
    let is_number = end.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok());
    (end.is_empty() || is_number).then_some(target)
}

/// The reason why a merge must not move a branch, and the next step.
pub(super) struct MergeObstacle {
    pub(super) reason: String,
    pub(super) hint: &'static str,
}

/// Returns the reason why a merge must not move a branch. A rebase of it may be unfinished, or another worktree may have it checked out: a commit
/// there would undo the merge. The user's checkout in `main` itself may have it checked out, because it follows.
pub(super) fn merge_obstacle(main: &RepoPath, target: &str) -> Option<MergeObstacle> {
    let name = format!("refs/heads/{target}");
    let is_rebased = |git_dir: &Path| {
        ["rebase-merge", "rebase-apply"].into_iter().any(|folder| {
            bounded_read::text(&git_dir.join(folder).join("head-name")).is_some_and(|head| head.trim_end() == name)
        })
    };
    let rebase = |place: &str| {
        let reason = format!("a rebase of {target} is unfinished {place}");
        MergeObstacle { reason, hint: "`git rebase --continue`, or `git rebase --abort`" }
    };
    if is_rebased(&main.git_dir) {
        return Some(rebase("here"));
    }
    let linked = fs::read_dir(main.common_dir.join("worktrees")).into_iter().flatten().flatten();
    let head = format!("ref: {name}");
    for other in linked.map(|entry| entry.path()).chain([main.common_dir.clone()]) {
        let is_rebased = is_rebased(&other);
        let is_checked_out = bounded_read::text(&other.join("HEAD")).is_some_and(|text| text.trim_end() == head);
        if other == main.git_dir || !(is_rebased || is_checked_out) {
            continue;
        }
        let place = bounded_read::text(&other.join(POINTER_FILE)).unwrap_or_else(|| other.display().to_string());
        let place = place.trim_end().trim_end_matches("/.git");
        // A removed worktree that git still lists does not count, nor does a bare repository.
        if !Path::new(place).is_dir() || (other == main.common_dir && is_bare(&other)) {
            continue;
        }
        return Some(if is_rebased {
            rebase(&format!("in {place}"))
        } else {
            let reason = format!("{target} is also checked out in {place}, where a commit would undo merges");
            MergeObstacle { reason, hint: "run `git switch --detach` there" }
        });
    }
    None
}

fn is_bare(git_dir: &Path) -> bool {
    let git_dir = text_of(git_dir);
    let output = git(["--git-dir", &git_dir, "rev-parse", "--is-bare-repository"]).run();
    output.is_ok_and(|output| output.line() == "true")
}

/// Explains how the user's checkout on `branch` gets back to the target branch. `has_commits`: the user may have committed on `branch`.
pub(super) fn reattach_hint(branch: &str, target: &str, has_commits: bool) -> String {
    if has_commits {
        return format!("You have commits there. hint: `git switch {target}`, then `git merge {branch}`");
    }
    format!(
        "hint: stash or undo the changes (`git stash`); the next merge or launch then switches back to {target}. To merge your commits on {branch}: `git switch {target}`, then `git merge {branch}`"
    )
}

/// The latest merge by a team between two commits of its target branch.
pub(super) fn last_merge(main: &RepoPath, old: &str, new: &str) -> Result<Option<String>, RepositoryError> {
    let range = format!("{old}..{new}");
    let options = ["log", "--first-parent", "--min-parents=2", "--format=%H %ce"];
    let merges = main.git(options.iter().chain(&[range.as_str()])).ok()?.line();
    let is_by_team = |line: &&str| line.ends_with(TEAMMATES_DOMAIN);
    Ok(merges.lines().find(is_by_team).and_then(|line| line.split_once(' ')).map(|(merge, _)| merge.to_owned()))
}

/// The commit of the files in the checkout `main`, if its branch may be ahead of them.
pub(super) fn outdated_checkout_commit(main: &RepoPath) -> Option<String> {
    let text = bounded_read::text(&main.git_dir.join(CHECKOUT_REF))?;
    is_commit(text.trim_end()).then(|| text.trim_end().to_owned())
}

impl RepositoryInner {
    fn residue(&self) -> MutexGuard<'_, Residue> {
        self.residue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the user's checkout after a merge moved its branch. If the user's files block that, switches the checkout to its own branch
    /// and returns a message.
    pub(super) fn update_checkout(&self) -> Result<Option<Notice>, RepositoryError> {
        let outdated_commit = self.outdated_commit();
        if outdated_commit.is_some() && *self.residue() == Residue::Partial && self.is_index_locked() {
            // Partly written files can be repaired only while no git runs. Until then the lock also prevents commits.
            let lock = self.main.git_dir.join("index.lock");
            return Ok(Some(Notice::Warning(format!(
                "a merge moved {}, but the workspace's files cannot be updated while {} exists. hint: a git process is running or was killed. If none is running, remove that file. The next merge or launch then continues",
                self.target_branch,
                lock.display()
            ))));
        }
        match (CheckoutState::of(&self.main, &self.target_branch)?, outdated_commit) {
            (CheckoutState::CheckedOut, None) => Ok(None),
            (CheckoutState::CheckedOut, Some(old)) => {
                let new = self.commit_of(&self.target_ref())?;
                let Some(merge) = last_merge(&self.main, &old, &new)? else {
                    // The process was killed before it moved the branch.
                    self.clear_checkout_commit()?;
                    return Ok(None);
                };
                let undone = self.commits_undone_since(&old, &merge, &new)?;
                let residue = *self.residue();
                let update = self.fast_forward(&old, &new, residue)?;
                let warning = match update {
                    // The user updated it meanwhile.
                    CheckoutUpdate::Nothing(_) if self.has_caught_up(&old, &new)? => {
                        self.finish_update(&old, CheckoutUpdate::All)?
                    }
                    update => self.finish_update(&old, update)?,
                };
                let warning = undone.into_iter().chain(warning).reduce(|all, warning| format!("{all}. {warning}"));
                Ok(warning.map(Notice::Warning))
            }
            (CheckoutState::Detached(branch), outdated_commit) => self.try_reattach(&branch, outdated_commit.is_some()),
            (CheckoutState::Elsewhere, _) => {
                // A later checkout of the target branch gets its files then.
                self.clear_checkout_commit()?;
                Ok(None)
            }
        }
    }

    pub(super) fn outdated_commit(&self) -> Option<String> {
        outdated_checkout_commit(&self.main)
    }

    /// Records that the checkout's files are those of `old`, and that none of them is partly written. Brigade alone writes this ref, so
    /// it is written without git.
    pub(super) fn record_checkout_commit(&self, old: &str) -> Result<(), RepositoryError> {
        *self.residue() = Residue::None;
        let path = self.main.git_dir.join(CHECKOUT_REF);
        // Not next to the ref: git would take it for a ref.
        let new = self.main.git_dir.join("brigade-checkout.new");
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = fs::File::create(&new)?;
            writeln!(file, "{old}")?;
            if self.durability == Durability::Power {
                file.sync_all()?;
            }
            fs::rename(&new, &path)
        };
        write().map_err(|error| failed("write", &path, &error))
    }

    pub(super) fn clear_checkout_commit(&self) -> Result<(), RepositoryError> {
        remove_file(&self.main.git_dir.join(CHECKOUT_REF))
    }

    /// Returns `true` if the index matches `new` in all files that changed since `old`.
    fn has_caught_up(&self, old: &str, new: &str) -> Result<bool, RepositoryError> {
        let names = ["--name-only", "--no-renames", "-z"];
        let changed_paths = self.main.git(["diff-tree", "-r"].iter().chain(&names).chain(&[old, new])).ok()?;
        let differs = self.main.git(["diff-index", "--cached"].iter().chain(&names).chain(&[new])).ok()?;
        let changed_paths: HashSet<&[u8]> = changed_paths.fields().collect();
        Ok(!differs.fields().any(|path| changed_paths.contains(path)))
    }

    /// A warning if commits after `merge`, made while the files were still those of `old`, removed lines that merges had added.
    fn commits_undone_since(&self, old: &str, merge: &str, new: &str) -> Result<Option<String>, RepositoryError> {
        let lost = removed_lines(&self.diff(old, merge)?, &self.diff(merge, new)?);
        let merge = short_commit(merge);
        Ok((!lost.is_empty()).then(|| {
            format!(
                "the commits on {} since {merge} remove {} merged lines, perhaps because the files here were out of date. hint: `git diff {merge} {}` shows them; `git checkout {merge} -- FILE` restores a file",
                self.target_branch,
                lost.len(),
                self.target_branch
            )
        }))
    }

    /// Records the result of an update from `old`. If the checkout was not updated, switches it to its own branch and returns a warning.
    pub(super) fn finish_update(&self, old: &str, update: CheckoutUpdate) -> Result<Option<String>, RepositoryError> {
        let (why, is_partial) = match update {
            CheckoutUpdate::All => {
                self.clear_checkout_commit()?;
                return Ok(None);
            }
            CheckoutUpdate::Nothing(why) => (why, false),
            CheckoutUpdate::Part(why) => (why, true),
        };
        if is_partial {
            *self.residue() = Residue::Partial;
        }
        let Some(warning) = self.detach_user_checkout(old, &why)? else {
            let (old, target) = (short_commit(old), &self.target_branch);
            return Ok(Some(format!(
                "a merge moved {target}, but the workspace's files are still those of {old} ({why}): a commit there now would undo the merge"
            )));
        };
        // Partly written files are restored when the checkout returns.
        if !is_partial {
            self.clear_checkout_commit()?;
        }
        Ok(Some(warning))
    }

    /// Switches the checkout to its own branch at `old` and keeps all its files. Returns a message, or `None` if no branch can be used.
    pub(super) fn detach_user_checkout(&self, old: &str, why: &str) -> Result<Option<String>, RepositoryError> {
        let target = &self.target_branch;
        for branch in (1..=DETACHED_NUMBER_MAX).map(|number| detached_branch(target, number)) {
            let name = format!("refs/heads/{branch}");
            let former = self.ref_at(&name)?;
            let is_free = match &former {
                None => true,
                // From an earlier time. It is used again if all its commits are merged.
                Some(former) => self.is_ancestor(former, old)? && !self.is_checked_out(&branch)?,
            };
            let former = former.unwrap_or_default();
            if !is_free || self.main.git(["update-ref", &name, old, &former]).run()?.code != 0 {
                continue;
            }
            let reason = format!("brigade: a merge moves {target}");
            if self.main.git(["symbolic-ref", "-m", &reason, "HEAD", &name]).run()?.code == 0 {
                let how = reattach_hint(&branch, target, false);
                return Ok(Some(format!(
                    "your checkout cannot follow a merge into {target}: {why}. It is on the branch {branch} now, with unchanged files. {how}"
                )));
            }
            self.main.git(["update-ref", "-d", &name, old]).ok()?;
            return Ok(None);
        }
        Ok(None)
    }

    /// Switches the checkout from `branch`, whose commit is `tip`, back to the target branch.
    pub(super) fn reattach(&self, branch: &str, tip: &str) -> Result<(), RepositoryError> {
        let reason = format!("brigade: back to {}", self.target_branch);
        self.main.git(["symbolic-ref", "-m", &reason, "HEAD", &self.target_ref()]).ok()?;
        // Git keeps the branch if a user committed on it meanwhile.
        self.main.git(["update-ref", "-d", &format!("refs/heads/{branch}"), tip]).run()?;
        self.clear_checkout_commit()
    }

    /// Returns a checkout on `branch` to the target branch and returns a message, if nothing blocks it and nothing was committed there.
    /// `was_started`: an earlier call started this and may have left partly written files.
    fn try_reattach(&self, branch: &str, was_started: bool) -> Result<Option<Notice>, RepositoryError> {
        let (old, new) = (self.commit_of(&format!("refs/heads/{branch}"))?, self.commit_of(&self.target_ref())?);
        let is_busy = UNFINISHED_OPERATION_FILES.into_iter().any(|file| self.main.git_dir.join(file).exists());
        if is_busy || !self.is_ancestor(&old, &new)? {
            return Ok(None);
        }
        if !was_started {
            if self.blocking_paths(&old, &new)?.is_some() {
                return Ok(None);
            }
            self.record_checkout_commit(&old)?;
        }
        let residue = *self.residue();
        match self.fast_forward(&old, &new, residue)? {
            CheckoutUpdate::All => {
                self.reattach(branch, &old)?;
                Ok(Some(Notice::Info(format!("your checkout is on {} again, with all merges", self.target_branch))))
            }
            CheckoutUpdate::Nothing(_) => {
                self.clear_checkout_commit()?;
                Ok(None)
            }
            CheckoutUpdate::Part(why) => {
                *self.residue() = Residue::Partial;
                Ok(Some(Notice::Warning(format!(
                    "your checkout cannot return to {} ({why}). The next merge or launch tries again",
                    self.target_branch
                ))))
            }
        }
    }
}
