//! The work of failed attempts. The next attempt starts in a new worktree, and a branch keeps what the failed one left.
//!
//! The steps, in this order:
//!
//! 1. A commit of everything in the worktree. It is made with an index of its own, so the worktree does not change.
//! 2. The branch `…/task-<id>-attempt-<n>` at this commit, in the person's repository.
//! 3. The removal of the worktree, and of the task's branch. If git ignores files that the attempt made, the worktree is renamed instead.
//! 4. A new worktree.
//!
//! After a kill between two steps, the next call finds what the earlier one kept and continues.

use std::fs;
use std::path::{Path, PathBuf};

use super::RepositoryInner;
use super::branch::recorded_base;
use super::command::{RepoPath, path_of};
use super::commits::{UncommittedChanges, message, stage};
use super::fetching::Fetch;
use super::files::{self, copy_file, remove_file};
use super::ignored_work::{WITH_IGNORED, split_ignored, summary};
use super::index_flags::{REPOSITORY_MODE, clear_skip_worktree, first_with_work};
use super::kept_files::kept_place;
use super::places::Found;
use super::removal::unsavable_content;
use super::worktrees::BranchTips;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::AttemptBranch;
use crate::domain::task::failed_attempt::FailedAttempt;
use crate::ports::{Assignment, Durability, RepositoryError, Worktree};

/// The file, in a worktree, with the last failed attempt and a digest of the files that it left.
const END_FILE: &str = ".agent/end";
/// The index for the commit of a failed attempt, in the worktree's git folder.
const INDEX_FILE: &str = "brigade-index";
/// Names that are tried for a branch.
const NAMES_MAX: u32 = 9;
/// Names that are tried for the place of a failed attempt.
const PLACES_MAX: u32 = 1_000;

/// The result of [`RepositoryInner::branch_off_failed`].
enum BranchedOff {
    /// There is no work to put on a branch.
    Nothing,
    /// The worktree is removed. The branch keeps its work, if there was any.
    Done(Option<BranchName>),
    /// The worktree changed since the attempt failed. The next one continues there.
    ChangedSince,
    /// A branch cannot keep all of the worktree, for this reason.
    Impossible(String),
}

/// A commit of a failed attempt.
struct KeptCommit {
    commit: String,
    tree: String,
    parents: Vec<String>,
}

/// The result of [`RepositoryInner::commit_everything`].
enum AttemptCommit {
    Created(KeptCommit),
    /// No commit can save a repository in the worktree.
    NestedRepository(PathBuf),
}

impl RepositoryInner {
    /// Records the state in which an attempt leaves its worktree. Later changes are those of a person.
    pub(super) fn record_attempt_end(&self, worktree: &Worktree) -> Result<(), RepositoryError> {
        let prepare_lock = self.preparations.lock_of(worktree.assignment.task);
        let _prepare_guard = prepare_lock.lock();
        if self.attempt_in(worktree) != Some(worktree.assignment.attempt) {
            return Ok(());
        }
        let Some(at) = self.main.place_at(&worktree.root).map(RepoPath::confined) else { return Ok(()) };
        at.remove_dead_locks()?;
        files::replace(&worktree.root.join(END_FILE), &format!("{} {}\n", worktree.assignment.attempt, digest(&at)?))
    }

    /// Removes the worktree of a failed attempt, so that the next one starts in a new one. Returns false if the next name must be
    /// tried.
    pub(super) fn renew(
        &self,
        worktree: &mut Worktree,
        tips: &mut BranchTips,
        warnings: &mut Vec<String>,
    ) -> Result<bool, RepositoryError> {
        let name = &worktree.name;
        match self.branch_off_failed(worktree, tips, warnings)? {
            BranchedOff::Nothing => {}
            BranchedOff::Done(branch) => {
                worktree.kept_branch = branch;
                *tips = self.tips(worktree)?;
            }
            BranchedOff::ChangedSince => warnings.push(format!(
                "{name} was changed after the attempt failed, so the next attempt continues with its files"
            )),
            BranchedOff::Impossible(why) => {
                warnings.push(format!("{name} stays unchanged ({why}); another worktree is used"));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the work of a failed attempt to a branch of its own, and removes its worktree and branch.
    fn branch_off_failed(
        &self,
        worktree: &Worktree,
        tips: &BranchTips,
        warnings: &mut Vec<String>,
    ) -> Result<BranchedOff, RepositoryError> {
        let Some(failure) = &worktree.assignment.failed else { return Ok(BranchedOff::Nothing) };
        match self.inspect(worktree, &mut Vec::new())? {
            Found::Place(at) => {
                // Without a state, the worktree is that of the attempt before this one.
                let last = self.attempt_in(worktree).unwrap_or(worktree.assignment.attempt.saturating_sub(1));
                if last > failure.attempt {
                    return Ok(BranchedOff::Nothing);
                }
                self.main.update_git_folder(&at.git_dir)?;
                at.restore(&worktree.branch, tips.own.as_deref().unwrap_or(&tips.target), warnings)?;
                if self.has_changed_since(&at, worktree, last)? {
                    return Ok(BranchedOff::ChangedSince);
                }
                self.branch_off(&at, worktree, tips, failure, warnings)
            }
            Found::Missing => self.branch_off_missing(worktree, tips, failure),
            Found::Other(_) => Ok(BranchedOff::Nothing),
        }
    }

    /// The attempt that worked in a worktree last, if its state says so.
    fn attempt_in(&self, worktree: &Worktree) -> Option<u32> {
        let state = self.states.read_expect(&worktree.root, &worktree.assignment.identifier()).ok()?;
        u32::try_from(state.attempt_count).ok().filter(|attempt| *attempt > 0)
    }

    fn has_changed_since(&self, at: &RepoPath, worktree: &Worktree, attempt: u32) -> Result<bool, RepositoryError> {
        let Some(text) = files::text(&worktree.root.join(END_FILE)) else { return Ok(false) };
        match text.trim_end().split_once(' ') {
            Some((ended, recorded)) if ended == attempt.to_string() => Ok(recorded != digest(at)?),
            _ => Ok(false),
        }
    }

    fn branch_off(
        &self,
        at: &RepoPath,
        worktree: &Worktree,
        tips: &BranchTips,
        failure: &FailedAttempt,
        warnings: &mut Vec<String>,
    ) -> Result<BranchedOff, RepositoryError> {
        let repositories = clear_skip_worktree(at)?;
        if let Some(reason) = unsavable_content(at, &repositories) {
            return Ok(BranchedOff::Impossible(reason));
        }
        if let Some(reason) = UncommittedChanges::of(at)?.unreadable {
            return Ok(BranchedOff::Impossible(reason));
        }
        let ignored = match at.changes(&[WITH_IGNORED]) {
            Ok(status) => split_ignored(&status).0,
            Err(error) if error.is_general() => return Err(error),
            Err(error) => return Ok(BranchedOff::Impossible(error.to_string())),
        };
        let saved = digest(at)?;
        let kept = match self.commit_everything(at, worktree, tips, failure, &repositories)? {
            AttemptCommit::Created(kept) => kept,
            AttemptCommit::NestedRepository(nested) => {
                let reason = format!("the nested repository {} is not empty", nested.display());
                return Ok(BranchedOff::Impossible(reason));
            }
        };
        if let Fetch::Refused(reason) = self.main.fetch_from(at, &kept.commit)? {
            return Ok(BranchedOff::Impossible(reason));
        }
        let branch = match self.keep(&kept, &worktree.assignment, failure)? {
            BranchedOff::Done(branch) => branch,
            other => return Ok(other),
        };
        let work = self.task_files(at, ignored)?;
        if work.is_empty() {
            self.main.remove_place(&at.work_tree)?;
        } else {
            let folder = self.move_place_aside(at, &worktree.assignment, failure, saved)?;
            let name = &worktree.name;
            warnings.push(format!(
                "{name} of attempt {} is now {folder}: git ignores files that the attempt made: {}",
                failure.attempt,
                summary(&work)
            ));
        }
        self.delete_branch(worktree, tips.own.as_deref())?;
        Ok(BranchedOff::Done(branch))
    }

    /// Renames the place of a failed attempt, so that its ignored files stay. `saved` is its digest. Returns its new name.
    fn move_place_aside(
        &self,
        at: &RepoPath,
        assignment: &Assignment,
        failure: &FailedAttempt,
        saved: String,
    ) -> Result<String, RepositoryError> {
        self.keep_place(&at.work_tree, Some(saved))?;
        for number in 1..=PLACES_MAX {
            let folder = attempt_name(assignment, failure, number).folder();
            let aside = self.main.work_tree.join(&folder);
            if aside.symlink_metadata().is_err() {
                fs::rename(&at.work_tree, &aside).map_err(|error| files::failed("rename", &at.work_tree, &error))?;
                return Ok(folder);
            }
        }
        Err(files::failed("rename", &at.work_tree, &"all names are taken"))
    }

    /// Sets a branch aside whose worktree is missing: a kill interrupted an earlier call, or a person removed the worktree.
    fn branch_off_missing(
        &self,
        worktree: &Worktree,
        tips: &BranchTips,
        failure: &FailedAttempt,
    ) -> Result<BranchedOff, RepositoryError> {
        let assignment = &worktree.assignment;
        let Some(tip) = tips.own.clone() else { return Ok(BranchedOff::Nothing) };
        for number in 1..=NAMES_MAX {
            let branch = attempt_branch(assignment, failure, number);
            let Some(kept) = self.main.branch_commit(&branch)? else { break };
            if self.main.is_ancestor(&tip, &kept)? {
                self.delete_branch(worktree, Some(&tip))?;
                return Ok(BranchedOff::Done(Some(branch)));
            }
        }
        if failure.attempt + 1 != assignment.attempt {
            return Ok(BranchedOff::Nothing);
        }
        let kept = KeptCommit { commit: tip.clone(), tree: String::new(), parents: Vec::new() };
        let result = self.keep(&kept, assignment, failure)?;
        if let BranchedOff::Done(_) = &result {
            self.delete_branch(worktree, Some(&tip))?;
        }
        Ok(result)
    }

    /// Commits everything in a worktree, in any state, and moves no branch. The parents are its commit, the commits of an unfinished merge,
    /// those of its other branches and its stashes, and that of the task's branch in the repository.
    fn commit_everything(
        &self,
        at: &RepoPath,
        worktree: &Worktree,
        tips: &BranchTips,
        failure: &FailedAttempt,
        repositories: &[PathBuf],
    ) -> Result<AttemptCommit, RepositoryError> {
        let head = at.commit("HEAD")?.or_else(|| recorded_base(&worktree.root));
        let head = head.map_or_else(|| self.branch.target_commit(), Ok)?;
        let index = OwnIndex::create(at)?;
        stage(at, repositories, index.variables())?;
        self.setup.unstage_copies(at, index.variables())?;
        if let Some(repository) = index.nested_repository(at)? {
            return Ok(AttemptCommit::NestedRepository(repository));
        }
        let tree = at.git(["write-tree"]).variables(index.variables()).ok()?.line();
        let mut parents = vec![head.clone()];
        let other = self.main.unfetched_refs(at)?.into_iter().map(|unfetched| unfetched.commit);
        // A person may have committed on the branch in the repository.
        for commit in at.merge_heads().into_iter().chain(other).chain(tips.own.clone()) {
            if !parents.contains(&commit) && at.commit(&commit)?.is_some() && !at.is_ancestor(&commit, &head)? {
                parents.push(commit);
            }
        }
        let head_tree = at.git(["rev-parse", &format!("{head}^{{tree}}")]).ok()?.line();
        if parents.len() == 1 && tree == head_tree {
            return Ok(AttemptCommit::Created(KeptCommit { commit: head, tree, parents: Vec::new() }));
        }
        let assignment = &worktree.assignment;
        let author = if failure.owner.is_empty() { &assignment.teammate } else { &failure.owner };
        let author = Assignment { teammate: author.clone(), attempt: failure.attempt, ..assignment.clone() };
        let subject = format!("Attempt {} failed: {}", failure.attempt, assignment.subject);
        let text = message(&subject, &failure.reason, &author);
        let all: Vec<&str> = parents.iter().map(String::as_str).collect();
        let commit = at.commit_tree([&tree, &text], &all, author.signature())?;
        Ok(AttemptCommit::Created(KeptCommit { commit, tree, parents }))
    }

    /// Creates the branch that keeps a commit, unless the target branch has it. Returns the branch of an earlier call for equal work.
    fn keep(
        &self,
        kept: &KeptCommit,
        assignment: &Assignment,
        failure: &FailedAttempt,
    ) -> Result<BranchedOff, RepositoryError> {
        if self.main.is_ancestor(&kept.commit, &self.branch.target_ref())? {
            return Ok(BranchedOff::Done(None));
        }
        for number in 1..=NAMES_MAX {
            let branch = attempt_branch(assignment, failure, number);
            let name = branch.full();
            match self.main.branch_commit(&branch)? {
                Some(existing) if existing == kept.commit || self.equals(&existing, kept)? => {
                    return Ok(BranchedOff::Done(Some(branch)));
                }
                Some(_) => {}
                None => {
                    self.main.set_ref(&name, &kept.commit)?;
                    if self.branch.durability == Durability::Power {
                        self.branch.sync(&self.main.common_dir.join(&name))?;
                    }
                    return Ok(BranchedOff::Done(Some(branch)));
                }
            }
        }
        let last = attempt_branch(assignment, failure, NAMES_MAX);
        Ok(BranchedOff::Impossible(format!("all branches up to {last} keep other work")))
    }

    /// Returns true if a commit has the same files and parents.
    fn equals(&self, commit: &str, kept: &KeptCommit) -> Result<bool, RepositoryError> {
        let output = self.main.git(["log", "-1", "--format=%T %P", commit]).ok()?.line();
        Ok(!kept.parents.is_empty() && output == format!("{} {}", kept.tree, kept.parents.join(" ")))
    }

    /// Deletes a task's branch, unless it moved or is checked out.
    fn delete_branch(&self, worktree: &Worktree, tip: Option<&str>) -> Result<(), RepositoryError> {
        let Some(tip) = tip else { return Ok(()) };
        if self.main.checkout_of(&worktree.branch).is_some() {
            return Ok(());
        }
        let name = worktree.branch.full();
        self.main.git(["update-ref", "--no-deref", "-d", &name, tip]).ok().map(drop)
    }
}

/// A second index of a worktree, removed when this value is dropped.
struct OwnIndex(PathBuf);

impl OwnIndex {
    fn create(at: &RepoPath) -> Result<Self, RepositoryError> {
        let path = at.git_dir.join(INDEX_FILE);
        copy_file(&at.git_dir.join("index"), &path)?;
        Ok(Self(path))
    }

    fn variables(&self) -> [(&'static str, String); 1] {
        [("GIT_INDEX_FILE", self.0.to_string_lossy().into_owned())]
    }

    /// The first nested repository in it whose folder is not empty.
    fn nested_repository(&self, at: &RepoPath) -> Result<Option<PathBuf>, RepositoryError> {
        let output = at.git(["ls-files", "--stage", "-z"]).variables(self.variables()).ok()?;
        let is_repository = |field: &&[u8]| field.starts_with(REPOSITORY_MODE.as_bytes());
        let path = |field: &[u8]| Some(path_of(&field[field.iter().position(|byte| *byte == b'\t')? + 1..]));
        let nested: Vec<PathBuf> = output.fields().filter(is_repository).filter_map(path).collect();
        Ok(first_with_work(at, &nested).cloned())
    }
}

impl Drop for OwnIndex {
    fn drop(&mut self) {
        for path in [self.0.clone(), self.0.with_extension("lock")] {
            // The next call overwrites what stays.
            let _ = remove_file(&path);
        }
    }
}

fn attempt_branch(assignment: &Assignment, failure: &FailedAttempt, number: u32) -> BranchName {
    attempt_name(assignment, failure, number).branch()
}

fn attempt_name(assignment: &Assignment, failure: &FailedAttempt, number: u32) -> AttemptBranch {
    let (team, task) = (assignment.team.clone(), assignment.task);
    AttemptBranch { team, task, attempt: failure.attempt, number }
}

/// Returns true if this is the place of a failed attempt, and a commit of Brigade's has its uncommitted files as they are.
pub(super) fn is_saved_attempt(at: &RepoPath) -> Result<bool, RepositoryError> {
    match kept_place(&at.work_tree).and_then(|kept| kept.saved) {
        Some(saved) => Ok(saved == digest(at)?),
        None => Ok(false),
    }
}

/// A digest of a worktree: its commit, and the names, sizes and times of all changed files. It changes with every edit and every commit.
fn digest(at: &RepoPath) -> Result<String, RepositoryError> {
    clear_skip_worktree(at)?;
    let mut text = at.git(["rev-parse", "HEAD"]).run()?.out;
    let output = at.changes(&["--untracked-files=all"])?;
    // The two letters of an entry depend on the index, which a repair may rebuild.
    let mut paths: Vec<&[u8]> = output.fields().filter_map(|entry| entry.get(3..)).collect();
    paths.sort_unstable();
    for path in paths {
        text.extend_from_slice(path);
        text.extend_from_slice(stamp(&at.work_tree.join(path_of(path))).as_bytes());
    }
    Ok(at.git(["hash-object", "--stdin"]).input(text).ok()?.line())
}

/// The size, time and kind of a file. Empty if it does not exist.
fn stamp(file: &Path) -> String {
    let Ok(metadata) = file.symlink_metadata() else { return "\0\n".to_owned() };
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    format!("\0{} {:?} {:?}\n", metadata.len(), modified.unwrap_or_default(), metadata.permissions())
}
