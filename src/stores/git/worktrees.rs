//! Worktrees: made for a task, found again for its next attempt. One that is dirty, or somebody else's, is never removed nor changed.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use super::branch::Attached;
use super::index::reveal;
use super::removal::{remove_file, remove_folder};
use super::run::{At, path_of, text_of};
use super::sound::{mend_head, mend_index};
use super::{Inner, WORKTREES_FOLDER, small};
use crate::domain::record::WorktreeState;
use crate::ports::{Assignment, Provision, RepositoryError, Worktree};
use crate::stores::file::worktree::{WorktreeError, WorktreeStore};

/// How many names are tried for a task whose first ones are taken by something else.
const NAMES_MAX: u32 = 9;
/// Failures to ready a worktree at which another one is used.
const FAILURES_MAX: u32 = 3;
/// Beside a worktree, before its name: it is being made, and until it has a state nobody has worked in it.
const MAKING: &str = ".making-";
/// What a worktree's state says.
const STEP: &str = "working";
/// In a worktree, while it is brought to where the branch is that is merged into: then nobody works in it.
const UPDATING_FILE: &str = ".agent/updating";
/// How many processes write a checkout of many files; see git-config(1), checkout.workers.
const CHECKOUT_WORKERS: &str = "checkout.workers=4";
/// Where a worktree is, in the folder that git keeps for it; see gitrepository-layout(5).
pub(super) const POINTER_FILE: &str = "gitdir";

/// Where a task's refs are, at one moment.
struct Tips {
    /// Its branch, where it is there.
    own: Option<String>,
    /// The branch that is merged into.
    target: String,
    /// The merge that the board does not know of.
    merged: Option<String>,
}

/// What lies where a worktree is wanted.
enum Found {
    /// Nothing.
    Nothing,
    /// The task's worktree.
    Own(At),
    /// What a git that was killed left of one: nobody has worked in it. Git may not know of it any more.
    Unfinished(Option<At>),
    /// Something else, in words.
    Foreign(String),
}

impl Inner {
    /// The `number`-th name of a task's worktree.
    fn candidate(&self, assignment: &Assignment, number: u32) -> Worktree {
        let end = if number > 1 { format!("-{number}") } else { String::new() };
        let (team, task) = (&self.team, assignment.task.0);
        let name = format!("{WORKTREES_FOLDER}/{team}-task-{task}{end}");
        Worktree {
            root: self.main.work_tree.join(&name),
            name,
            branch: format!("brigade/{team}/task-{task}{end}"),
            into: self.into.clone(),
            left: None,
            warnings: Vec::new(),
        }
    }

    pub(super) fn provision(&self, assignment: &Assignment) -> Result<Provision, RepositoryError> {
        let readying = self.readying(assignment.task);
        let _readying = readying.lock().unwrap_or_else(PoisonError::into_inner);
        self.exclude()?;
        let mut warnings = Vec::new();
        for number in 1..=NAMES_MAX {
            let worktree = self.candidate(assignment, number);
            let was_there = worktree.root.symlink_metadata().is_ok();
            let provisioned = self.provision_at(&worktree, assignment, &mut warnings);
            if provisioned.is_ok() {
                // Only failures one after the other say that it will not be.
                self.failures().remove(&worktree.name);
            }
            match provisioned {
                Ok(None) => {}
                Ok(Some(Provision::Ready(ready))) => return Ok(Provision::Ready(Worktree { warnings, ..ready })),
                Ok(Some(Provision::Merged { commit, summary, worktree })) => {
                    return Ok(Provision::Merged { commit, summary, worktree: Worktree { warnings, ..worktree } });
                }
                // Something is wrong with it that nobody foresaw, and that does not pass: whatever it holds stays.
                Err(error) if was_there && !error.is_general() && self.has_failed_often(&worktree) => {
                    warnings.push(format!("{} is left as it is ({error}); another one is used", worktree.name));
                }
                Err(error) => return Err(error),
            }
        }
        let action = format!("make a worktree for task {}", assignment.task);
        Err(RepositoryError::Failed { action, reason: format!("{}. Remove some", warnings.join(". ")) })
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure to ready this worktree, and says whether there were as many as whoever asks for it tries.
    fn has_failed_often(&self, worktree: &Worktree) -> bool {
        let mut failures = self.failures();
        let count = failures.entry(worktree.name.clone()).or_default();
        *count += 1;
        *count >= FAILURES_MAX
    }

    /// Readies a worktree of this name; `None` where the next name is to be tried.
    fn provision_at(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Provision>, RepositoryError> {
        let mut worktree = worktree.clone();
        let tips = self.tips(&worktree, assignment)?;
        let Some((at, is_new)) = self.stand(&worktree, assignment, &tips, warnings)? else { return Ok(None) };
        self.write_state(&worktree, assignment, warnings)?;
        remove_file(&mark_of_making(&worktree))?;
        if let Some((commit, summary)) = self.merged(&tips)? {
            return Ok(Some(Provision::Merged { commit, summary, worktree }));
        }
        if is_new {
            // Its branch has nothing of its own.
            self.note_base(&worktree, &tips.target)?;
        } else {
            self.take_up_branch(&at, &mut worktree, &tips.target)?;
        }
        Ok(Some(Provision::Ready(worktree)))
    }

    /// Where the refs are that decide what becomes of a worktree.
    fn tips(&self, worktree: &Worktree, assignment: &Assignment) -> Result<Tips, RepositoryError> {
        let (own, target) = (format!("refs/heads/{}", worktree.branch), self.target_ref());
        let merged = self.merged_ref(assignment);
        let mut refs = self.refs_at(&[&own, &target, &merged])?;
        let target = refs.remove(&target).ok_or_else(|| {
            RepositoryError::Unusable(format!(
                "there is no branch {} any more: make it again (git branch {}), or end the team and launch it on another one",
                self.into, self.into
            ))
        })?;
        Ok(Tips { own: refs.remove(&own), target, merged: refs.remove(&merged) })
    }

    /// Has a worktree stand, on its branch, and says whether that was made just now; `None` where the next name is to be tried.
    fn stand(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        tips: &Tips,
        warnings: &mut Vec<String>,
    ) -> Result<Option<(At, bool)>, RepositoryError> {
        let (name, is_new) = (&worktree.name, tips.own.is_none());
        if let Some(why) = self.stands_for_another(&worktree.branch) {
            warnings.push(format!("{name} is not used: {why}"));
            return Ok(None);
        }
        let made = match self.look(worktree, assignment, warnings)? {
            Found::Foreign(why) => Err(format!("{name} is left as it is ({why}); another one is used")),
            Found::Own(at) => match self.unsound(&at) {
                Some(why) => Err(format!("{name} is left as it is ({why}); another one is used")),
                None => {
                    self.mend(&at, &worktree.branch, warnings)?;
                    mend_head(&at, &worktree.branch, warnings)?;
                    mend_index(&at, warnings)?;
                    self.undo_update(&at)?;
                    match self.attach(&at, worktree)? {
                        Attached::Was => {}
                        Attached::Now(how) => warnings.push(format!("{name}: {how}")),
                        Attached::Not(why) => warnings.push(format!("{name}: {why}")),
                    }
                    Ok((at, false))
                }
            },
            Found::Unfinished(at) => {
                warnings.push(format!("{name} was not finished by a git that was killed, and is made anew"));
                match at {
                    Some(at) => self.discard(&at)?,
                    None => remove_folder(&worktree.root)?,
                }
                Ok((self.make(worktree, tips)?, is_new))
            }
            Found::Nothing if tips.own.is_some() && self.is_taken(&worktree.branch)? => {
                Err(format!("the branch {} is checked out elsewhere; another one is used", worktree.branch))
            }
            Found::Nothing => Ok((self.make(worktree, tips)?, is_new)),
        };
        Ok(made.map_err(|warning| warnings.push(warning)).ok())
    }

    /// Looks what an earlier attempt left on a branch. One on which nobody has anything goes on from where the branch is that is merged into.
    fn take_up_branch(&self, at: &At, worktree: &mut Worktree, target: &str) -> Result<(), RepositoryError> {
        worktree.left = self.left(at, target)?;
        // Another branch that is checked out there is not the team's to move.
        let is_on_its_own = super::checked_out(at)?.as_ref() == Some(&worktree.branch);
        if worktree.left.is_none() && is_on_its_own {
            let marker = worktree.root.join(UPDATING_FILE);
            fs::write(&marker, target).map_err(|error| failed("write", &marker, &error))?;
            at.git(["-c", "core.logAllRefUpdates=false", "merge", "--quiet", "--ff-only", target]).ok()?;
            self.note_base(worktree, target)?;
            return fs::remove_file(&marker).map_err(|error| failed("remove", &marker, &error));
        }
        let begun = self.begun_at(worktree);
        let is_known = begun.map_or(Ok(false), |begun| Ok(self.ref_at(&begun)?.is_some()))?;
        if !is_known {
            // Its folder was made anew: what is known is where the two parted.
            let head = at.git(["rev-parse", "HEAD"]).ok()?.line();
            self.note_base(worktree, &self.base(target, &head)?)?;
        }
        Ok(())
    }

    /// The worktree of a task that is completed, where anything is left of it.
    pub(super) fn left_of(&self, assignment: &Assignment, is_named: bool) -> Option<Worktree> {
        for number in 1..=NAMES_MAX {
            let worktree = self.candidate(assignment, number);
            if worktree.root.symlink_metadata().is_ok()
                && self.states.read_expect(&worktree.root, &assignment.identifier()).is_ok()
            {
                return Some(worktree);
            }
        }
        is_named.then(|| self.candidate(assignment, 1))
    }

    fn look(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        warnings: &mut Vec<String>,
    ) -> Result<Found, RepositoryError> {
        match worktree.root.symlink_metadata() {
            Err(_) => return Ok(Found::Nothing),
            Ok(metadata) if !metadata.is_dir() => return Ok(Found::Foreign("it is no folder".to_owned())),
            Ok(_) => {}
        }
        let is_begun = self
            .states
            .read(&worktree.root)
            .map_or_else(|error| !matches!(error, WorktreeError::NotFound { .. }), |_| true);
        if !is_begun && mark_of_making(worktree).exists() {
            let at = self.at(&worktree.root);
            if let Some(at) = &at
                && !is_unfinished(at)
                && self.has_been_worked_in(at)?
            {
                return Ok(Found::Foreign("somebody has worked in it before it was begun with".to_owned()));
            }
            return Ok(Found::Unfinished(at));
        }
        let Some(at) = self.at(&worktree.root) else {
            // A git that was killed at its first steps leaves the folder empty; so does anybody else who needs it no more.
            if fs::remove_dir(&worktree.root).is_ok() {
                return Ok(Found::Nothing);
            }
            return Ok(Found::Foreign("it is no worktree of this repository".to_owned()));
        };
        let wanted = assignment.identifier();
        match self.states.read_expect(&worktree.root, &wanted) {
            Ok(_) => return Ok(Found::Own(at)),
            Err(WorktreeError::IdentifierMismatch { loaded, .. }) => {
                return Ok(Found::Foreign(format!("its state says that it belongs to `{}`", loaded.issue_identifier)));
            }
            // Git says so itself until it has finished one.
            Err(WorktreeError::NotFound { .. }) if is_unfinished(&at) => return Ok(Found::Unfinished(Some(at))),
            Err(WorktreeError::NotFound { .. }) => {}
            Err(WorktreeError::Malformed { reason, .. }) => {
                let name = &worktree.name;
                warnings.push(format!("{name}: its state is malformed ({reason}) and is written anew"));
            }
            Err(error) => return Err(failed("read the state of", &worktree.root, &error)),
        }
        // Without a state its branch says whose it is.
        let branch = super::checked_out(&at)?;
        if branch.as_deref() == Some(&worktree.branch) {
            return Ok(Found::Own(at));
        }
        let branch = branch.map_or_else(|| "no branch".to_owned(), |branch| format!("`{branch}`"));
        Ok(Found::Foreign(format!("it has no state that says whose it is, and {branch} is checked out there")))
    }

    /// Whether there is more in a worktree than git put there when it made it; files may be missing.
    fn has_been_worked_in(&self, at: &At) -> Result<bool, RepositoryError> {
        let said = at.git(["status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"]).ok()?;
        let is_more = |entry: &[u8]| !entry.starts_with(b" D ") && !entry.starts_with(b"D  ");
        Ok(said.fields().any(is_more) || self.left(at, &self.target_ref())?.is_some_and(|(commits, _)| commits > 0))
    }

    /// Where git keeps what belongs to the worktree in `root`, by what git knows: not by the `.git` file there, which anybody may change.
    pub(super) fn at(&self, root: &Path) -> Option<At> {
        let git_dir = self.git_dir_of(&root.canonicalize().ok()?)?;
        Some(At { git_dir, work_tree: root.to_owned(), ..self.main.clone() })
    }

    /// The folder that git keeps for a worktree there, whether or not that is there.
    pub(super) fn git_dir_of(&self, root: &Path) -> Option<PathBuf> {
        let wanted = root.join(".git");
        let entries = fs::read_dir(self.main.common_dir.join("worktrees")).ok()?;
        let mut found = entries.flatten().map(|entry| entry.path()).filter(|folder| {
            small::text(&folder.join(POINTER_FILE)).is_some_and(|to| is_same(&folder.join(to.trim_end()), &wanted))
        });
        // Where two say so, one was led there.
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Whether a branch is checked out in a worktree that is there.
    pub(super) fn is_taken(&self, branch: &str) -> Result<bool, RepositoryError> {
        let said = {
            let _listing = self.listing();
            self.main.git(["worktree", "list", "--porcelain", "-z"]).ok()?
        };
        let wanted = format!("branch refs/heads/{branch}");
        let mut folder = PathBuf::new();
        Ok(said.fields().any(|field| {
            if let Some(path) = field.strip_prefix(b"worktree ") {
                folder = path_of(path);
            }
            field == wanted.as_bytes() && folder.is_dir()
        }))
    }

    /// Makes a worktree: of its branch, where an earlier attempt left one, else of a new one.
    fn make(&self, worktree: &Worktree, tips: &Tips) -> Result<At, RepositoryError> {
        let root = text_of(&worktree.root);
        let mark = mark_of_making(worktree);
        self.mend_branch_lock(&worktree.branch, &mut Vec::new())?;
        let marked = mark.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&mark, ""));
        marked.map_err(|error| failed("write", &mark, &error))?;
        // Forced, because git may still know of one that somebody removed; twice, because it may have locked it. A log of the branch
        // would be written by whoever moves it, wherever it leads. Where files are many, git writes them faster by several processes.
        let start = ["-c", "core.logAllRefUpdates=false", "-c", CHECKOUT_WORKERS, "worktree", "add", "--quiet"];
        let force = ["--force", "--force"];
        // By its number, so that a new branch does not follow the other one.
        let what = match tips.own {
            Some(_) => vec![root.as_str(), &worktree.branch],
            None => vec!["-b", &worktree.branch, &root, &tips.target],
        };
        {
            let _listing = self.listing();
            self.main.git(start.iter().chain(&force).chain(&what)).ok()?;
        }
        self.at(&worktree.root).ok_or_else(|| RepositoryError::Failed {
            action: format!("make {}", worktree.name),
            reason: "git does not know of it".to_owned(),
        })
    }

    /// Readies a worktree that was there: its way back to the repository, and locks that a killed git left.
    fn mend(&self, at: &At, branch: &str, warnings: &mut Vec<String>) -> Result<(), RepositoryError> {
        let pointer = format!("gitdir: {}\n", at.git_dir.display());
        let file = at.work_tree.join(".git");
        if small::text(&file).is_some_and(|text| text == pointer) {
            return self.mend_locks(at, branch, warnings);
        }
        let is_plain = file.symlink_metadata().map_or(true, |metadata| metadata.is_file());
        if !is_plain {
            let reason = "it is not the file that git keeps there".to_owned();
            return Err(RepositoryError::Failed { action: format!("use {}", file.display()), reason });
        }
        warnings.push(format!("{} led elsewhere and is written anew", file.display()));
        fs::write(&file, pointer).map_err(|error| failed("write", &file, &error))?;
        self.mend_locks(at, branch, warnings)
    }

    fn write_state(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        warnings: &mut Vec<String>,
    ) -> Result<(), RepositoryError> {
        let now = self.clock.now().0;
        let change = |state: &mut WorktreeState| -> Result<(), std::convert::Infallible> {
            state.issue_id = assignment.task.0.to_string();
            state.issue_identifier = assignment.identifier();
            state.work_type = "development".to_owned();
            STEP.clone_into(&mut state.current_step);
            state.attempt_count = i64::from(assignment.attempt);
            state.worker_id.clone_from(&assignment.worker);
            state.pid = i64::from(std::process::id());
            if state.started_at == 0 {
                state.started_at = now;
            }
            state.last_heartbeat = now;
            Ok(())
        };
        let written = match self.states.update(&worktree.root, change) {
            Err(WorktreeError::Malformed { .. }) => {
                let mut fresh = WorktreeState::default();
                // It cannot fail.
                let _ = change(&mut fresh);
                self.states.write(&worktree.root, fresh)
            }
            written => written,
        };
        if let Err(error) = written {
            let path = WorktreeStore::path(&worktree.root);
            warnings.push(format!("{} cannot be written: {error}", path.display()));
            return Err(failed("write the state of", &worktree.root, &error));
        }
        Ok(())
    }

    /// Undoes what a checkout that was broken off left in a worktree in which nobody had anything.
    fn undo_update(&self, at: &At) -> Result<(), RepositoryError> {
        let marker = at.work_tree.join(UPDATING_FILE);
        if marker.symlink_metadata().is_err() {
            return Ok(());
        }
        at.git(["reset", "--quiet", "--hard"]).ok()?;
        at.git(["clean", "-f", "-d", "-q"]).ok()?;
        fs::remove_file(&marker).map_err(|error| failed("remove", &marker, &error))
    }

    /// What an earlier attempt left: commits that are not merged, and files that are not committed. A branch without either goes on from
    /// where the branch that is merged into is now.
    fn left(&self, at: &At, target: &str) -> Result<Option<(usize, usize)>, RepositoryError> {
        reveal(at)?;
        let dirty =
            at.git(["status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"]).ok()?.fields().count();
        let commits = at.git(["rev-list", "--count", "HEAD", &format!("^{target}")]).ok()?.line();
        let commits: usize = commits.parse().unwrap_or(0);
        Ok((commits > 0 || dirty > 0).then_some((commits, dirty)))
    }

    /// The merge of a task's work that the board does not know of, and what it says was done.
    fn merged(&self, tips: &Tips) -> Result<Option<(String, String)>, RepositoryError> {
        let Some(commit) = tips.merged.clone() else { return Ok(None) };
        if !self.is_ancestor(&commit, &tips.target)? {
            return Ok(None);
        }
        let body = self.main.git(["log", "-1", "--format=%b", &commit]).ok()?.line();
        let summary = body.rsplit_once(&format!("\n{}: ", crate::domain::merge::TASK_TRAILER));
        Ok(Some((commit, summary.map_or("", |(summary, _)| summary).trim().to_owned())))
    }

    pub(super) fn clear(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
    ) -> Result<Option<String>, RepositoryError> {
        let mut left = self.remove(worktree, assignment)?;
        for other in (1..=NAMES_MAX).map(|number| self.candidate(assignment, number)) {
            if other.root == worktree.root || other.root.symlink_metadata().is_err() {
                continue;
            }
            // One that an attempt before had to leave. What it holds stays, and is told.
            let told = match self.look(&other, assignment, &mut Vec::new())? {
                Found::Unfinished(Some(at)) => self.discard(&at).map(|()| None)?,
                Found::Unfinished(None) => remove_folder(&other.root).map(|()| None)?,
                Found::Own(_) => self.remove(&other, assignment)?,
                Found::Nothing | Found::Foreign(_) => None,
            };
            left = left.into_iter().chain(told).reduce(|all, told| format!("{all}. {told}"));
        }
        // Last: as long as it stands, the next launch comes back to the rest.
        self.main.git(["update-ref", "--no-deref", "-d", &self.merged_ref(assignment)]).ok()?;
        Ok(left)
    }
}

/// Whether git was about to make it: it keeps it locked so long.
fn is_unfinished(at: &At) -> bool {
    small::text(&at.git_dir.join("locked")).is_some_and(|reason| reason.trim() == "initializing")
}

/// The file that is there while a worktree is made.
fn mark_of_making(worktree: &Worktree) -> PathBuf {
    let name = worktree.root.file_name().unwrap_or_default().to_string_lossy();
    worktree.root.with_file_name(format!("{MAKING}{name}"))
}

fn is_same(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    a == b || whole(a).is_some_and(|a| a == b)
}

pub(super) fn failed(action: &str, path: &Path, error: &dyn std::fmt::Display) -> RepositoryError {
    RepositoryError::Failed { action: format!("{action} {}", path.display()), reason: error.to_string() }
}
