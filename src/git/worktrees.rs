//! The worktrees of tasks: made for a task, and found again for its next attempt. A dirty worktree, or one that is not the task's, is
//! neither changed nor removed.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::RepositoryInner;
use super::branch::{BranchStatus, record_base, record_branch, recorded_base};
use super::command::RepoPath;
use super::files::{self, failed, remove_file};
use super::git_folder::Head;
use super::index_flags::clear_skip_worktree;
use super::places::Found;
use super::setup::SETUP_FILE;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::{REPORT_TRAILER, REVIEW_TRAILER};
use crate::domain::git::worktree_name::WorktreeName;
use crate::domain::git::worktree_state::{WorkStep, WorktreeState};
use crate::domain::task::TaskId;
use crate::git::worktree_store::WorktreeError;
use crate::ports::{Assignment, LeftoverWork, MergeRequest, RepositoryError, Worktree, WorktreeOutcome};

/// Names that are tried for a task's worktree. Something else may use the first ones.
const NAMES_MAX: u32 = 9;
/// Failed preparations of a worktree after which the next name is used.
const FAILURES_MAX: u32 = 3;
/// A marker in a worktree without own changes. It exists while git moves the worktree to the target branch's commit.
pub(super) const UPDATING_FILE: &str = ".agent/updating";

/// The commits of a task's refs, read by one call.
pub(super) struct BranchTips {
    /// The task branch, if it exists.
    pub own: Option<String>,
    /// The target branch.
    pub target: String,
    /// A verified merge that the board does not record yet, if the target branch has it.
    merged: Option<String>,
    /// A branch whose name begins with the task branch's and `/`: git cannot hold both.
    below: Option<BranchName>,
}

/// The preparations of task worktrees that run or failed in this process.
#[derive(Default)]
pub(super) struct Preparations {
    /// One lock for each task, held while its worktree is prepared: the previous holder's preparation may still run.
    locks: Mutex<HashMap<TaskId, Arc<Mutex<()>>>>,
    /// Failures in a row, by worktree name.
    failures: Mutex<HashMap<String, u32>>,
}

impl Preparations {
    pub(super) fn lock_of(&self, task: TaskId) -> Arc<Mutex<()>> {
        Arc::clone(self.locks.lock().entry(task).or_default())
    }

    /// Counts a failure. Returns whether the limit for this worktree is reached.
    pub(super) fn has_failed_often(&self, worktree: &str) -> bool {
        let mut failures = self.failures.lock();
        let count = failures.entry(worktree.to_owned()).or_default();
        *count += 1;
        *count >= FAILURES_MAX
    }

    /// Records a success: only failures in a row count.
    pub(super) fn record_success(&self, worktree: &str) {
        self.failures.lock().remove(worktree);
    }
}

impl RepositoryInner {
    fn candidate(&self, assignment: &Assignment, number: u32) -> Worktree {
        let worktree_name = WorktreeName { task: assignment.task, team: self.branch.team.clone(), number };
        let name = worktree_name.folder();
        Worktree {
            root: self.main.work_tree.join(&name),
            name,
            branch: worktree_name.branch(),
            into: self.branch.name.clone(),
            assignment: assignment.clone(),
            leftover_work: None,
            kept_branch: None,
            warnings: Vec::new(),
        }
    }

    pub(super) fn provision(&self, assignment: &Assignment) -> Result<WorktreeOutcome, RepositoryError> {
        let prepare_lock = self.preparations.lock_of(assignment.task);
        let _prepare_guard = prepare_lock.lock();
        let mut warnings = Vec::new();
        for number in 1..=NAMES_MAX {
            let worktree = self.candidate(assignment, number);
            let existed = worktree.root.symlink_metadata().is_ok();
            match self.provision_at(&worktree, &mut warnings) {
                Ok(outcome) => {
                    self.preparations.record_success(&worktree.name);
                    if let Some(outcome) = outcome {
                        return Ok(outcome);
                    }
                }
                // An unknown and lasting problem. Its files are kept.
                Err(error) if existed && !error.is_general() && self.preparations.has_failed_often(&worktree.name) => {
                    warnings.push(format!("{} stays unchanged ({error}); another worktree is used", worktree.name));
                }
                Err(error) => return Err(error),
            }
        }
        let action = format!("create a worktree for task {}", assignment.task);
        let folders = format!("{}*", self.candidate(assignment, 1).name);
        let reason = format!(
            "none of its {NAMES_MAX} names can be used. {}. hint: remove some of {folders}",
            warnings.join(". ")
        );
        Err(RepositoryError::Failed { action, reason })
    }

    /// Prepares the worktree under this name. Returns `None` if the next name must be tried.
    fn provision_at(
        &self,
        worktree: &Worktree,
        warnings: &mut Vec<String>,
    ) -> Result<Option<WorktreeOutcome>, RepositoryError> {
        let mut worktree = worktree.clone();
        let mut tips = self.tips(&worktree)?;
        let merge = self.unrecorded_merge(&tips)?;
        if merge.is_none() && !self.renew(&mut worktree, &mut tips, warnings)? {
            return Ok(None);
        }
        let Some((at, is_new)) = self.find_or_create(&worktree, &tips, warnings)? else { return Ok(None) };
        if let Some(work) = merge {
            worktree.warnings = std::mem::take(warnings);
            return Ok(Some(WorktreeOutcome::Merged { work, worktree }));
        }
        if !is_new {
            self.continue_branch(&at, &mut worktree, &tips.target)?;
        }
        worktree.warnings = std::mem::take(warnings);
        Ok(Some(WorktreeOutcome::Ready(worktree)))
    }

    pub(super) fn tips(&self, worktree: &Worktree) -> Result<BranchTips, RepositoryError> {
        let (own, target) = (worktree.branch.full(), self.branch.target_ref());
        let merged = self.merged_ref(&worktree.assignment);
        let mut refs: HashMap<String, String> = self.main.refs(&[&own, &target, &merged])?.into_iter().collect();
        let target = refs.remove(&target).map_or_else(|| self.branch.target_commit(), Ok)?;
        let below = refs.keys().find(|name| name.starts_with(&format!("{own}/")));
        let below = below.and_then(|name| BranchName::of_ref(name));
        Ok(BranchTips { own: refs.remove(&own), target, merged: refs.remove(&merged), below })
    }

    /// Finds or creates the worktree on its branch. Returns its paths and whether it is new, or `None` if the next name must be tried.
    fn find_or_create(
        &self,
        worktree: &Worktree,
        tips: &BranchTips,
        warnings: &mut Vec<String>,
    ) -> Result<Option<(RepoPath, bool)>, RepositoryError> {
        let name = &worktree.name;
        if let Some(below) = &tips.below {
            warnings.push(format!("{name} is not used: there is a branch {below}"));
            return Ok(None);
        }
        match self.inspect(worktree, warnings)? {
            Found::Other(why) => {
                warnings.push(format!("{name} stays unchanged ({why}); another worktree is used"));
                Ok(None)
            }
            Found::Place(at) => {
                self.use_kept_place(&worktree.root)?;
                self.main.update_git_folder(&at.git_dir)?;
                at.restore(&worktree.branch, tips.own.as_deref().unwrap_or(&tips.target), warnings)?;
                self.branch.show_in(&at, &tips.target);
                match self.checkout_branch(&at, worktree)? {
                    BranchStatus::AlreadyOnBranch => {}
                    BranchStatus::Switched(how) => warnings.push(format!("{name}: {how}")),
                    BranchStatus::OffBranch(why) => warnings.push(format!("{name}: {why}")),
                }
                self.write_state(&worktree.root, &worktree.assignment)?;
                Ok(Some((at, false)))
            }
            Found::Missing => Ok(Some((self.create(worktree, tips)?, tips.own.is_none()))),
        }
    }

    /// Counts the unmerged work of an earlier attempt. A worktree without any is moved to the target branch's current commit.
    fn continue_branch(&self, at: &RepoPath, worktree: &mut Worktree, target: &str) -> Result<(), RepositoryError> {
        worktree.leftover_work = self.count_leftovers(at, target)?;
        // A branch that a teammate checked out there must not move.
        let is_on_own_branch = at.checked_out_branch()?.as_ref() == Some(&worktree.branch);
        if worktree.leftover_work.is_none() && is_on_own_branch {
            let marker = worktree.root.join(UPDATING_FILE);
            files::write(&marker, target)?;
            // An ignored file is work too.
            at.git(["merge", "--quiet", "--ff-only", "--no-overwrite-ignore", target]).ok()?;
            if recorded_base(&worktree.root).as_deref() != Some(target) {
                remove_file(&worktree.root.join(SETUP_FILE))?;
            }
            record_base(&worktree.root, target)?;
            self.set_branch(&worktree.branch, target)?;
            return fs::remove_file(&marker).map_err(|error| failed("remove", &marker, &error));
        }
        let base = recorded_base(&worktree.root);
        let is_known = base.map_or(Ok(false), |base| Ok(at.commit(&base)?.is_some()))?;
        if !is_known {
            // The worktree's folder was created again, so its base file is missing. The merge base replaces it.
            record_base(&worktree.root, &at.merge_base(target, &at.head()?)?)?;
        }
        Ok(())
    }

    /// The worktree of a completed task, if its folder or its merge record remains.
    pub(super) fn leftover_worktree(&self, assignment: &Assignment, is_named: bool) -> Option<Worktree> {
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

    /// Finds the worktree of a task. Another worktree counts as something else.
    pub(super) fn inspect(&self, worktree: &Worktree, warnings: &mut Vec<String>) -> Result<Found, RepositoryError> {
        let at = match self.main.find_place(&worktree.root) {
            Found::Missing => return Ok(Found::Missing),
            Found::Other(why) => return Ok(Found::Other(why)),
            Found::Place(at) => at.confined(),
        };
        match self.states.read_expect(&worktree.root, &worktree.assignment.identifier()) {
            Ok(_) => return Ok(Found::Place(at)),
            Err(WorktreeError::IdentifierMismatch { loaded, .. }) => {
                return Ok(Found::Other(format!("its state file names `{}`", loaded.issue_identifier)));
            }
            Err(WorktreeError::NotFound { .. }) => {}
            Err(WorktreeError::Malformed { reason, .. }) => {
                let name = &worktree.name;
                warnings.push(format!("the state file of {name} is invalid ({reason}); it is written again"));
            }
            Err(error) => return Err(failed("read the state of", &worktree.root, &error)),
        }
        // Without a state file the branch identifies the task.
        let branch = at.checked_out_branch()?;
        if branch.as_ref() == Some(&worktree.branch) {
            return Ok(Found::Place(at));
        }
        let branch = branch.map_or_else(|| "no branch".to_owned(), |branch| format!("`{branch}`"));
        Ok(Found::Other(format!("it has no state file, and {branch} is checked out in it")))
    }

    /// Creates a worktree. It continues the task's branch in the person's repository if there is one.
    fn create(&self, worktree: &Worktree, tips: &BranchTips) -> Result<RepoPath, RepositoryError> {
        let commit = tips.own.as_ref().unwrap_or(&tips.target);
        self.set_branch(&worktree.branch, commit)?;
        let finish = |root: &Path| {
            match &tips.own {
                Some(own) => record_branch(root, &[own.as_str()])?,
                None => record_base(root, &tips.target)?,
            }
            self.write_state(root, &worktree.assignment)
        };
        Ok(self.main.make_place(&worktree.root, Head::Branch(&worktree.branch), commit, finish)?.confined())
    }

    fn write_state(&self, root: &Path, assignment: &Assignment) -> Result<(), RepositoryError> {
        let now = self.clock.now().0;
        let change = |state: &mut WorktreeState| -> Result<(), std::convert::Infallible> {
            assign(state, assignment);
            WorkStep::Spawning.as_str().clone_into(&mut state.current_step);
            // No agent works yet.
            state.pid = 0;
            state.provider_session_id.clear();
            if state.started_at == 0 {
                state.started_at = now;
            }
            state.last_heartbeat = now;
            Ok(())
        };
        let written = match self.states.update(root, change) {
            Err(WorktreeError::Malformed { .. }) => {
                let mut fresh = WorktreeState::default();
                // `change` returns no error.
                let _ = change(&mut fresh);
                self.states.write(root, fresh)
            }
            written => written,
        };
        written.map(drop).map_err(|error| failed("write the state of", root, &error))
    }

    /// Counts an earlier attempt's unmerged commits and uncommitted files. `None` if there are none.
    fn count_leftovers(&self, at: &RepoPath, target: &str) -> Result<Option<LeftoverWork>, RepositoryError> {
        clear_skip_worktree(at)?;
        let files = at.changes(&[])?.fields().count();
        let commits = at.commits_beyond(target)?;
        let is_merging = at.git_dir.join("MERGE_HEAD").exists();
        let is_empty = commits == 0 && files == 0 && !is_merging;
        Ok(if is_empty { None } else { Some(LeftoverWork { commits, files, is_merging }) })
    }

    /// A task's merge that the board does not record yet, with the merge commit.
    fn unrecorded_merge(&self, tips: &BranchTips) -> Result<Option<MergeRequest>, RepositoryError> {
        let Some(commit) = tips.merged.clone() else { return Ok(None) };
        if !self.main.is_ancestor(&commit, &tips.target)? {
            return Ok(None);
        }
        let value_of = |trailer: &str| format!("%x00%(trailers:key={trailer},valueonly)");
        let format = format!("--format=%b%x00%(trailers){}{}", value_of(REPORT_TRAILER), value_of(REVIEW_TRAILER));
        let message = self.main.git(["log", "-1", &format, &commit]).ok()?.line();
        let mut parts = message.split('\0');
        let mut next_part = || parts.next().unwrap_or_default().trim();
        let (body, trailers, report, reviewer) = (next_part(), next_part(), next_part(), next_part());
        Ok(Some(MergeRequest {
            commit,
            summary: body.strip_suffix(trailers).unwrap_or(body).trim().to_owned(),
            is_reported: report.is_empty(),
            reviewed_by: if reviewer.is_empty() { None } else { Some(reviewer.to_owned()) },
        }))
    }

    pub(super) fn clear(&self, worktree: &Worktree) -> Result<Option<String>, RepositoryError> {
        let mut warnings_left = self.remove(worktree)?;
        for other in (1..=NAMES_MAX).map(|number| self.candidate(&worktree.assignment, number)) {
            if other.root == worktree.root || other.root.symlink_metadata().is_err() {
                continue;
            }
            // An earlier attempt could not use it. It stays if it holds anything, and the text says so.
            let warning = match self.inspect(&other, &mut Vec::new())? {
                Found::Place(_) => self.remove(&other)?,
                Found::Missing | Found::Other(_) => None,
            };
            warnings_left = warnings_left.into_iter().chain(warning).reduce(|all, warning| format!("{all}. {warning}"));
        }
        // The last step: while the last ref exists, the next launch repeats the others.
        self.main.delete_refs(&[self.trial_ref(&worktree.assignment), self.merged_ref(&worktree.assignment)])?;
        Ok(warnings_left)
    }
}

/// Changes the state of a worktree to one of this assignment.
pub(super) fn assign(state: &mut WorktreeState, assignment: &Assignment) {
    state.issue_id = assignment.task.0.to_string();
    state.issue_identifier = assignment.identifier();
    state.work_type = "development".to_owned();
    state.attempt_count = i64::from(assignment.attempt);
    state.worker_id.clone_from(&assignment.worker);
}
