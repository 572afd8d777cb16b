//! Merges the worktree of a task and verifies the result.
//!
//! One task is merged at a time, and the result is verified before it is published. While another merge runs, the work is first
//! verified in its worktree, so that a failing task delays no other.
//!
//! The holder keeps its task until the merge. So "completed" means merged, and dependencies give the order of merges. A conflict or
//! a failed verify is the answer to the report: the author still has the task and its worktree.

use std::sync::Arc;

use tokio::sync::watch;

use super::ServiceError;
use super::setup::{self, SetupError};
use super::step::Step;
use super::verify::Verifier;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::git::worktree_state::WorkStep;
use crate::domain::log::event::{EventKind, MERGE_STEP, Notice};
use crate::domain::task::failure_summary;
use crate::domain::task::transition::{Action, Actor, permit};
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::phase::ClaimRef;
use crate::ports::{
    Board, CommitOutcome, Merge, MergeOutcome, MergeRequest, PublishOutcome, Repository, SetupPlace, Worktree,
};
use crate::process::CommandError;
use crate::process::command::{CommandOutcome, claim_end, claim_lost_text};

/// The number of tries to merge, if other commits reach the branch during each.
const PUBLISH_ATTEMPTS_MAX: u32 = 10;

/// Allows one merge at a time, in the order of requests.
pub type MergeQueue = tokio::sync::Mutex<()>;

/// The worktree of a claimed task.
pub struct TaskWorktree {
    /// The repository of the worktree.
    pub repository: Arc<dyn Repository>,
    /// The merge queue of the team.
    pub queue: Arc<MergeQueue>,
    /// The worktree and its branches.
    pub worktree: Worktree,
    /// The first of its ports.
    pub port_base: u16,
    /// The step of the work, for the worktree's state file.
    pub step: watch::Sender<WorkStep>,
}

/// The variables for git in a task's worktree: the teammate as author and committer, and settings.
pub fn git_variables(worktree: &Worktree) -> Vec<(&'static str, String)> {
    let [name, email] = worktree.assignment.signature();
    let above = worktree.root.parent().unwrap_or(&worktree.root);
    vec![
        // Without its git folder, the worktree would be a part of the person's checkout.
        ("GIT_CEILING_DIRECTORIES", above.to_string_lossy().into_owned()),
        ("GIT_AUTHOR_NAME", name.clone()),
        ("GIT_AUTHOR_EMAIL", email.clone()),
        ("GIT_COMMITTER_NAME", name),
        ("GIT_COMMITTER_EMAIL", email),
        // `git gc` in the background would be ended with its command. Commands cannot write git's settings, which would get the
        // upstream of a new branch.
        ("GIT_CONFIG_COUNT", "2".to_owned()),
        ("GIT_CONFIG_KEY_0", "gc.auto".to_owned()),
        ("GIT_CONFIG_VALUE_0", "0".to_owned()),
        ("GIT_CONFIG_KEY_1", "branch.autoSetupMerge".to_owned()),
        ("GIT_CONFIG_VALUE_1", "false".to_owned()),
        // A worktree starts with the branches that the person has then. If the person removes one and its commits, git only warns.
        ("GIT_REF_PARANOIA", "0".to_owned()),
    ]
}

impl TaskWorktree {
    /// The task.
    pub fn task(&self) -> TaskId {
        self.worktree.assignment.task
    }

    /// Starts a step. When the result is dropped, the step before it continues.
    fn start_step(&self, step: WorkStep) -> StepGuard<'_> {
        StepGuard { before: self.step.send_replace(step), worktree: self }
    }

    /// The variables of [`git_variables`].
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        git_variables(&self.worktree)
    }

    /// Commits all changes and returns the commit.
    pub(super) async fn commit(&self, message: &str) -> Result<CommitOutcome, ServiceError> {
        match self.repository.commit(&self.worktree, message).await {
            Err(error) if !error.is_general() => {
                Ok(CommitOutcome::Refused(format!("the worktree cannot be committed: {error}")))
            }
            committed => Ok(committed?),
        }
    }

    /// Moves the ignored files that the team keeps into the workspace, and returns all ignored files of the task. The error is a warning:
    /// the worktree stays then.
    pub(super) async fn move_ignored_files(&self) -> Result<IgnoredFiles, EventKind> {
        let kept = self.repository.move_ignored_files(&self.worktree).await;
        kept.map_err(|error| self.event(error.into()))
    }

    /// Tells a reviewer how to see the committed work.
    pub(super) fn location_text(&self) -> String {
        let Worktree { branch, into, .. } = &self.worktree;
        let workspace = self.worktree.workspace().display();
        let range = format!("{}...{}", into.full(), branch.full());
        format!("The work is on branch {branch}, not merged yet. In {workspace} run: git diff {range}")
    }

    /// Removes the worktree of a completed task. Returns a warning if it keeps something.
    pub(super) async fn clear(&self) -> Option<EventKind> {
        let kept_reason = self.repository.clean_up(&self.worktree).await;
        let notice = kept_reason.map_or_else(|error| Some(error.into()), |reason| reason.map(Notice::warning))?;
        Some(self.event(notice))
    }

    fn event(&self, notice: Notice) -> EventKind {
        EventKind::of_notice(self.worktree.assignment.identifier(), notice)
    }
}

/// Ends a step when dropped.
struct StepGuard<'a> {
    worktree: &'a TaskWorktree,
    before: WorkStep,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.worktree.step.send_replace(self.before);
    }
}

/// The outcome of a merge, or of a verify command alone.
pub(super) enum MergeResult {
    /// The work is verified, and merged if the task has a worktree.
    Done {
        /// The evidence: the verify command and the merge.
        evidence: String,
        /// The commit with the work, if the task has a worktree and changed something.
        commit: Option<String>,
        /// The run of the verify command.
        verify: Option<VerifyRun>,
    },
    /// The merge was refused, for this reason.
    Refused(String),
    /// The verify command failed.
    VerifyFailed {
        /// The outcome of the command.
        outcome: CommandOutcome,
        /// The place of the run, such as " on the trial merge into main". Empty for the place of the work.
        location: String,
    },
}

/// The result of verifying a merge.
enum MergeVerification {
    /// The command succeeded; `None` if the task has none.
    Passed(Option<VerifyRun>),
    /// The command failed, or the setup command failed and the task changes something that it depends on.
    Failed(MergeResult),
}

/// Verifies a task in the place of its work, which may be a worktree.
pub(super) async fn verify_in_place(
    verifier: &Verifier,
    task: &Task,
    worktree: Option<&TaskWorktree>,
) -> Result<MergeResult, ServiceError> {
    let Some(command) = &task.verify else {
        return Ok(MergeResult::Done { evidence: String::new(), commit: None, verify: None });
    };
    let _verifying = worktree.map(|worktree| worktree.start_step(WorkStep::Verifying));
    let outcome = verifier.run(command).await?;
    if !outcome.is_success() {
        return Ok(MergeResult::VerifyFailed { outcome, location: String::new() });
    }
    let verify = Some(outcome.to_verify_run(command));
    Ok(MergeResult::Done { evidence: "verify exited 0".to_owned(), commit: None, verify })
}

/// The merge of one commit of a claimed task.
pub(super) struct TaskMerge<'a> {
    /// The board.
    pub board: &'a dyn Board,
    /// The holder; its attempt is the fence.
    pub by: &'a Actor,
    /// Runs the verify command.
    pub verifier: &'a Verifier,
    /// The task.
    pub task: &'a Task,
    /// Its worktree.
    pub worktree: &'a TaskWorktree,
    /// The work.
    pub work: MergeRequest,
}

impl TaskMerge<'_> {
    /// Merges the commit. It is published only if the verify command exits 0 on the merged result.
    pub async fn run(&self) -> Result<MergeResult, ServiceError> {
        let _merging = self.worktree.start_step(WorkStep::Merging);
        let queue = &self.worktree.queue;
        let queue_guard = match queue.try_lock() {
            Ok(queue_guard) => queue_guard,
            Err(_) => {
                let outcome = verify_in_place(self.verifier, self.task, Some(self.worktree)).await?;
                if !matches!(outcome, MergeResult::Done { .. }) {
                    return Ok(outcome);
                }
                let mut claim = self.verifier.context.claim.clone();
                tokio::select! {
                    queue_guard = queue.lock() => queue_guard,
                    () = claim_end(&mut claim, Some(ClaimRef::of(self.task))) => return Err(self.claim_lost()),
                }
            }
        };
        let Worktree { branch, into, .. } = &self.worktree.worktree;
        let step = Step::new(&self.by.name, Some(self.task.id), MERGE_STEP, format!("{branch} into {into}"));
        let failure = |result: &Result<MergeResult, ServiceError>| match result {
            Ok(MergeResult::Done { .. }) => None,
            Ok(MergeResult::Refused(reason)) => Some(failure_summary::first_sentence(reason)),
            Ok(MergeResult::VerifyFailed { outcome, .. }) => Some(outcome.headline()),
            Err(error) => Some(error.headline()),
        };
        let outcome = step.run(&self.verifier.events, self.run_in_queue(), failure).await;
        drop(queue_guard);
        outcome
    }

    async fn run_in_queue(&self) -> Result<MergeResult, ServiceError> {
        let TaskWorktree { repository, worktree, .. } = self.worktree;
        for _ in 0..PUBLISH_ATTEMPTS_MAX {
            self.check_claim().await?;
            let merge = match repository.merge(worktree, self.work.clone()).await? {
                MergeOutcome::UpToDate(commit) => return self.nothing_to_merge(commit).await,
                MergeOutcome::Refused(reason) => return Ok(MergeResult::Refused(reason)),
                MergeOutcome::Created(merge) => merge,
            };
            let location = format!(" on the trial merge into {}", worktree.into);
            let verify = match self.verify(&merge, &location, "").await? {
                MergeVerification::Passed(verify) => verify,
                MergeVerification::Failed(result) => return Ok(result),
            };
            if verify.is_some() {
                self.check_claim().await?;
            }
            match repository.publish(&merge, &worktree.assignment).await? {
                PublishOutcome::Moved => {}
                PublishOutcome::Done(notice) => {
                    if let Some(notice) = notice {
                        (self.verifier.events)(self.worktree.event(notice));
                    }
                    let verify_text = if verify.is_some() { "verify exited 0 on the merged result; " } else { "" };
                    let evidence =
                        format!("{verify_text}merged into {} as {}", worktree.into, short_commit(&merge.commit));
                    return Ok(MergeResult::Done { evidence, commit: Some(merge.commit), verify });
                }
            }
        }
        Ok(MergeResult::Refused(format!(
            "others moved {} {PUBLISH_ATTEMPTS_MAX} times during the merge",
            worktree.into
        )))
    }

    /// Verifies a task whose commits are all in the branch already. The command runs on the branch and not in the worktree, so that
    /// files that git ignores do not count.
    async fn nothing_to_merge(&self, commit: String) -> Result<MergeResult, ServiceError> {
        let Worktree { into, .. } = &self.worktree.worktree;
        let merge = Merge { onto: commit.clone(), commit };
        let advice = ": the task has no changes that git sees (`git status --ignored` lists the others)";
        let verify = match self.verify(&merge, &format!(" on {into}"), advice).await? {
            MergeVerification::Passed(verify) => verify,
            MergeVerification::Failed(result) => return Ok(result),
        };
        let evidence = if verify.is_some() { format!("verify exited 0 on {into}") } else { String::new() };
        // The commit of the branch is the work of other tasks.
        Ok(MergeResult::Done { evidence, commit: None, verify })
    }

    /// Checks out the merge, sets it up and runs the verify command there, if the task has one. `location` names the merge, and
    /// `advice` follows it if the command fails.
    async fn verify(&self, merge: &Merge, location: &str, advice: &str) -> Result<MergeVerification, ServiceError> {
        let Some(command) = &self.task.verify else { return Ok(MergeVerification::Passed(None)) };
        let repository = &self.worktree.repository;
        let folder = repository.check_out(merge).await?;
        let _verifying = self.worktree.start_step(WorkStep::Verifying);
        let mut context = self.verifier.context_in(&folder);
        let place = SetupPlace::Merge(merge.clone());
        let outcome = match Box::pin(setup::set_up(&**repository, &place, &mut context, &self.verifier.events)).await {
            Ok(()) => self.verifier.run_as(command, &context).await?,
            Err(SetupError::Command(error)) => return Err(error.into()),
            Err(SetupError::Failed { command, outcome, is_changed_by_task: true }) => {
                let ending = outcome.ending_text();
                let reason = format!("setup `{command}` failed{location}: {ending}\n{}", outcome.output);
                return Ok(MergeVerification::Failed(MergeResult::Refused(reason)));
            }
            Err(error) => return Err(CommandError::Failed(error.headline()).into()),
        };
        if !outcome.is_success() {
            let location = format!("{location}{advice}");
            return Ok(MergeVerification::Failed(MergeResult::VerifyFailed { outcome, location }));
        }
        Ok(MergeVerification::Passed(Some(outcome.to_verify_run(command))))
    }

    /// Returns an error if the holder's claim is lost. Nothing is merged then.
    async fn check_claim(&self) -> Result<(), ServiceError> {
        if *self.verifier.context.claim.borrow() != Some(ClaimRef::of(self.task)) {
            return Err(self.claim_lost());
        }
        let current = self.board.get(self.task.id).await?;
        Ok(permit(&current, Action::Complete, self.by)?)
    }

    fn claim_lost(&self) -> ServiceError {
        CommandError::ClaimLost(claim_lost_text(Some(ClaimRef::of(self.task)))).into()
    }
}
