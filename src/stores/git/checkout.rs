//! The person's checkout: brought along when a merge moves its branch. What the person has in it is never touched, whether git knows of it
//! or not. Where that is in the way the checkout is put on a branch of its own at the commit it is at, so that nothing that is committed
//! there undoes a merge; it comes back once nothing is in the way.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

use super::branch::is_commit;
use super::bring::{Brought, Left};
use super::removal::remove_file;
use super::run::{At, git, text_of};
use super::worktrees::{POINTER_FILE, failed};
use super::{CHECKOUT_REF, Inner, checked_out, small};
use crate::domain::merge::{FOLLOWS_AGAIN, short_commit, taken_out};
use crate::ports::{Durability, RepositoryError, TEAMMATES_DOMAIN};

/// What the branches begin with that the person's checkout is put on.
const YOURS: &str = "brigade-yours";
/// How many of them there may be.
const YOURS_MAX: u32 = 99;
/// What git has in a checkout's folder while a person is in the middle of something there.
const BUSY: [&str; 7] =
    ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "sequencer", "BISECT_LOG"];

/// Where the person's checkout stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stand {
    /// On the branch that is merged into.
    Here,
    /// On this branch, where it was put because it could not follow.
    Parted(String),
    /// Wherever the person had it go.
    Elsewhere,
}

impl Stand {
    /// Where the checkout `main` stands, of which merges go into `into`.
    pub(super) fn of(main: &At, into: &str) -> Result<Self, RepositoryError> {
        Ok(match checked_out(main)? {
            Some(branch) if branch == into => Self::Here,
            Some(branch) if parted_from(&branch) == Some(into) => Self::Parted(branch),
            _ => Self::Elsewhere,
        })
    }
}

/// The `number`-th branch that a checkout of `into` is put on.
fn yours(into: &str, number: u32) -> String {
    let end = if number > 1 { format!("-{number}") } else { String::new() };
    format!("{YOURS}{end}/{into}")
}

/// The branch that a checkout was on before it was put on `branch`.
pub(super) fn parted_from(branch: &str) -> Option<&str> {
    let (end, into) = branch.strip_prefix(YOURS)?.split_once('/')?;
    let is_number = end.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok());
    (end.is_empty() || is_number).then_some(into)
}

/// Why a branch is not to be moved by anybody else: a person is at work on it where a merge would be undone unsaid. The person's checkout in
/// `main` itself is brought along.
pub(super) fn barrier(main: &At, into: &str) -> Option<String> {
    let name = format!("refs/heads/{into}");
    let is_rebased = |git_dir: &Path| {
        ["rebase-merge", "rebase-apply"].into_iter().any(|folder| {
            small::text(&git_dir.join(folder).join("head-name")).is_some_and(|head| head.trim_end() == name)
        })
    };
    let rebase =
        |place: &str| format!("a rebase of {into} is under way {place}: git rebase --continue, or git rebase --abort");
    if is_rebased(&main.git_dir) {
        return Some(rebase("here"));
    }
    let linked = fs::read_dir(main.common_dir.join("worktrees")).into_iter().flatten().flatten();
    let head = format!("ref: {name}");
    for other in linked.map(|entry| entry.path()).chain([main.common_dir.clone()]) {
        let is_rebased = is_rebased(&other);
        let has_it = small::text(&other.join("HEAD")).is_some_and(|text| text.trim_end() == head);
        if other == main.git_dir || !(is_rebased || has_it) {
            continue;
        }
        let place = small::text(&other.join(POINTER_FILE)).unwrap_or_else(|| other.display().to_string());
        let place = place.trim_end().trim_end_matches("/.git");
        // One that was removed and is still listed is in nobody's way, nor is a repository without a checkout.
        if !Path::new(place).is_dir() || (other == main.common_dir && is_bare(&other)) {
            continue;
        }
        return Some(if is_rebased {
            rebase(&format!("in {place}"))
        } else {
            format!(
                "{into} is checked out in {place} too, where a commit would undo what is merged: have another branch there (git switch --detach)"
            )
        });
    }
    None
}

/// Whether a repository has no checkout of its own.
fn is_bare(git_dir: &Path) -> bool {
    let git_dir = text_of(git_dir);
    let said = git(["--git-dir", &git_dir, "rev-parse", "--is-bare-repository"]).run();
    said.is_ok_and(|said| said.line() == "true")
}

/// How a person has their checkout follow again, which is on `branch`, perhaps with commits of theirs.
pub(super) fn how_to_follow(branch: &str, into: &str, has_commits: bool) -> String {
    if has_commits {
        return format!("You have commits there: bring them home by git switch {into}, then git merge {branch}");
    }
    format!(
        "Stash or take back what is in the way, and the next merge or launch switches back to {into} by itself; what you commit on {branch} you bring home yourself: git switch {into}, then git merge {branch}"
    )
}

/// The last merge that a team made between two commits of its branch.
pub(super) fn last_merge(main: &At, old: &str, new: &str) -> Result<Option<String>, RepositoryError> {
    let range = format!("{old}..{new}");
    let options = ["log", "--first-parent", "--min-parents=2", "--format=%H %ce"];
    let merges = main.git(options.iter().chain(&[range.as_str()])).ok()?.line();
    let of_team = |line: &&str| line.ends_with(TEAMMATES_DOMAIN);
    Ok(merges.lines().find(of_team).and_then(|line| line.split_once(' ')).map(|(merge, _)| merge.to_owned()))
}

/// The commit that the checkout `main` is still at, where its branch may be moved already.
pub(super) fn behind(main: &At) -> Option<String> {
    let text = small::text(&main.git_dir.join(CHECKOUT_REF))?;
    is_commit(text.trim_end()).then(|| text.trim_end().to_owned())
}

impl Inner {
    /// What may lie about in the checkout while it stands that it is behind.
    fn left_over(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the person's checkout to where its branch is, if it is behind because of a merge. Where something of the person's is in the
    /// way it is put on a branch of its own, and the text says so.
    pub(super) fn follow(&self) -> Result<Option<String>, RepositoryError> {
        let behind = self.behind();
        if behind.is_some() && *self.left_over() == Left::Torn && self.is_index_locked() {
            // What is half done can be mended only once no git is at work; until then nothing can be committed there.
            let lock = self.main.git_dir.join("index.lock");
            return Ok(Some(format!(
                "{} was moved by a merge, and the workspace's files cannot be brought along while {} is there: a git is at work, or was killed. Once none is, remove that file; the next merge or launch goes on",
                self.into,
                lock.display()
            )));
        }
        match (Stand::of(&self.main, &self.into)?, behind) {
            (Stand::Here, None) => Ok(None),
            (Stand::Here, Some(old)) => {
                let new = self.commit_of(&self.target_ref())?;
                let Some(merge) = last_merge(&self.main, &old, &new)? else {
                    // No merge came of it: the process was killed before the branch was moved.
                    self.forget_behind()?;
                    return Ok(None);
                };
                let undone = self.undone_since(&old, &merge, &new)?;
                let left = *self.left_over();
                let brought = self.bring(&old, &new, left)?;
                let told = match brought {
                    // A person brought it along meanwhile.
                    Brought::Nothing(_) if self.has_come_along(&old, &new)? => self.settle(&old, Brought::All)?,
                    brought => self.settle(&old, brought)?,
                };
                Ok(undone.into_iter().chain(told).reduce(|all, told| format!("{all}. {told}")))
            }
            (Stand::Parted(branch), behind) => self.come_back(&branch, behind.is_some()),
            (Stand::Elsewhere, _) => {
                // Whoever checks it out again has it as it is then.
                self.forget_behind()?;
                Ok(None)
            }
        }
    }

    /// The commit the checkout is still at, where its branch may be moved already.
    pub(super) fn behind(&self) -> Option<String> {
        behind(&self.main)
    }

    /// Notes that the checkout is at `old` whatever becomes of its branch, and that nothing of ours is half done in it. Nobody else writes
    /// this ref, so it is written without a call of git.
    pub(super) fn note_behind(&self, old: &str) -> Result<(), RepositoryError> {
        *self.left_over() = Left::Whole;
        let path = self.main.git_dir.join(CHECKOUT_REF);
        // Beside the refs: there it would be one.
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

    pub(super) fn forget_behind(&self) -> Result<(), RepositoryError> {
        remove_file(&self.main.git_dir.join(CHECKOUT_REF))
    }

    /// Whether the index has what `new` has of all that came since `old`.
    fn has_come_along(&self, old: &str, new: &str) -> Result<bool, RepositoryError> {
        let names = ["--name-only", "--no-renames", "-z"];
        let came = self.main.git(["diff-tree", "-r"].iter().chain(&names).chain(&[old, new])).ok()?;
        let differs = self.main.git(["diff-index", "--cached"].iter().chain(&names).chain(&[new])).ok()?;
        let came: HashSet<&[u8]> = came.fields().collect();
        Ok(!differs.fields().any(|path| came.contains(path)))
    }

    /// What a person committed on the branch behind `merge` while the files were still those of `old`, which takes out lines of merges.
    fn undone_since(&self, old: &str, merge: &str, new: &str) -> Result<Option<String>, RepositoryError> {
        let lost = taken_out(&self.diff(old, merge)?, &self.diff(merge, new)?);
        let merge = short_commit(merge);
        Ok((!lost.is_empty()).then(|| {
            format!(
                "what was committed on {} since {merge} takes out {} lines that the team had merged, perhaps because the files here were older then: see git diff {merge} {}; to have a file of the merge again: git checkout {merge} -- FILE",
                self.into,
                lost.len(),
                self.into
            )
        }))
    }

    /// Notes that the checkout was brought along from `old`; where that could not be, puts it on a branch of its own and says so.
    pub(super) fn settle(&self, old: &str, brought: Brought) -> Result<Option<String>, RepositoryError> {
        let (why, is_half_done) = match brought {
            Brought::All => {
                self.forget_behind()?;
                return Ok(None);
            }
            Brought::Nothing(why) => (why, false),
            Brought::Part(why) => (why, true),
        };
        if is_half_done {
            *self.left_over() = Left::Torn;
        }
        let Some(told) = self.part(old, &why)? else {
            let (old, into) = (short_commit(old), &self.into);
            return Ok(Some(format!(
                "{into} was moved by a merge, and the workspace's files are still those of {old} ({why}): a commit made there now would undo the merge"
            )));
        };
        // What is half done is put back when it comes back.
        if !is_half_done {
            self.forget_behind()?;
        }
        Ok(Some(told))
    }

    /// Puts the checkout on a branch of its own at `old`, with all that is in it, and says so; nothing where that cannot be.
    pub(super) fn part(&self, old: &str, why: &str) -> Result<Option<String>, RepositoryError> {
        let into = &self.into;
        for branch in (1..=YOURS_MAX).map(|number| yours(into, number)) {
            let name = format!("refs/heads/{branch}");
            let former = self.ref_at(&name)?;
            let is_free = match &former {
                None => true,
                // Of another time: taken again where the person committed nothing there that is not merged.
                Some(former) => self.is_ancestor(former, old)? && !self.is_taken(&branch)?,
            };
            let former = former.unwrap_or_default();
            if !is_free || self.main.git(["update-ref", &name, old, &former]).run()?.code != 0 {
                continue;
            }
            let reason = format!("brigade: {into} is moved by a merge");
            if self.main.git(["symbolic-ref", "-m", &reason, "HEAD", &name]).run()?.code == 0 {
                let how = how_to_follow(&branch, into, false);
                return Ok(Some(format!(
                    "{into} is moved by a merge that your checkout cannot follow ({why}). It stays as it is and is on the branch {branch} now, so that no commit of yours undoes the merge. {how}"
                )));
            }
            self.main.git(["update-ref", "-d", &name, old]).ok()?;
            return Ok(None);
        }
        Ok(None)
    }

    /// Puts the checkout from `branch`, which is at `tip`, back on the branch that is merged into.
    pub(super) fn rejoin(&self, branch: &str, tip: &str) -> Result<(), RepositoryError> {
        let reason = format!("brigade: back to {}", self.into);
        self.main.git(["symbolic-ref", "-m", &reason, "HEAD", &self.target_ref()]).ok()?;
        // What somebody committed there this moment stays.
        self.main.git(["update-ref", "-d", &format!("refs/heads/{branch}"), tip]).run()?;
        self.forget_behind()
    }

    /// Brings a checkout that was put on `branch` back to where it was, where nothing is in the way and nothing was committed there, and
    /// says so. `was_coming`: that was begun before, and may be half done.
    fn come_back(&self, branch: &str, was_coming: bool) -> Result<Option<String>, RepositoryError> {
        let (old, new) = (self.commit_of(&format!("refs/heads/{branch}"))?, self.commit_of(&self.target_ref())?);
        let is_busy = BUSY.into_iter().any(|file| self.main.git_dir.join(file).exists());
        if is_busy || !self.is_ancestor(&old, &new)? {
            return Ok(None);
        }
        if !was_coming {
            if self.in_the_way(&old, &new)?.is_some() {
                return Ok(None);
            }
            self.note_behind(&old)?;
        }
        let left = *self.left_over();
        match self.bring(&old, &new, left)? {
            Brought::All => {
                self.rejoin(branch, &old)?;
                Ok(Some(format!("your checkout is on {}{FOLLOWS_AGAIN}", self.into)))
            }
            Brought::Nothing(_) => {
                self.forget_behind()?;
                Ok(None)
            }
            Brought::Part(why) => {
                *self.left_over() = Left::Torn;
                Ok(Some(format!(
                    "your checkout could not be brought back to {} ({why}); the next merge or launch tries again",
                    self.into
                )))
            }
        }
    }
}
