//! The worktrees of a team with isolation: prepares that of a claimed task, and records how an attempt leaves it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::AgentError;
use super::host::AgentHost;
use super::isolation::WorktreeService;
use super::turn_control::StopLevel;
use super::worktree_reporter::WorktreeReporter;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::git::worktree_state::WorkStep;
use crate::domain::log::event::EventKind;
use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{Task, TaskId};
use crate::domain::team::budget::CapReached;
use crate::domain::team::phase::ClaimRef;
use crate::ports::{
    Assignment, LeftoverWork, MergeRequest, Repository, RepositoryError, SetupPlace, StoreError, StoreResult, Worktree,
    WorktreeOutcome,
};
use crate::process::CommandError;
use crate::run::progress::Activity;
use crate::service::completion::complete_merged;
use crate::service::merge::TaskWorktree;
use crate::service::setup::{self, SetupError};

/// The waits between the tries to create a worktree. There is one try more than waits.
const RETRY_WAITS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// The time limit for creating a worktree, without the setup command of the team.
const CREATION_TIMEOUT: Duration = Duration::from_secs(1800);
/// The time for the end of a setup command after its timeout.
const SETUP_GRACE: Duration = Duration::from_secs(60);
/// The reason of a release during the set-up of a worktree.
const INTERRUPTED: &str = "the set-up of its worktree was interrupted";

/// The result of preparing a worktree after a claim.
#[derive(Debug)]
pub(crate) enum WorktreeSetup {
    /// The work may start.
    Ready,
    /// The teammate must stop or lost the claim, so the set-up was ended. The claim was released.
    Interrupted,
    /// An earlier attempt was merged, so the task is completed now.
    AlreadyMerged,
    /// No worktree could be created, for a reason outside this task. The claim was released.
    Unavailable(String),
    /// No worktree could be created for this task. The attempt has failed, and the lead knows; other tasks can be done.
    Failed(String),
}

impl AgentHost {
    /// Prepares the worktree of a task that was just claimed. With [`WorktreeSetup::Ready`], the tools are in it. Otherwise the claim
    /// has ended.
    pub(crate) async fn prepare_worktree(&mut self, task: &Task) -> Result<WorktreeSetup, AgentError> {
        let Some(isolation) = self.services.isolation.clone() else { return Ok(WorktreeSetup::Ready) };
        // With isolation, the lead works on no task.
        if self.context.caller.is_lead {
            return Ok(WorktreeSetup::Ready);
        }
        let claim = ClaimRef::of(task);
        // From here on the claim counts as held, however long this takes.
        self.turn_control.set_claim(Some(claim));
        let progress = Arc::clone(&self.progress);
        let _busy = progress.start_activity(Activity::CreatingWorktree, CREATION_TIMEOUT);
        let setup = self.provision_worktree(&isolation, task).await?;
        let (reason, is_failure) = match &setup {
            WorktreeSetup::Ready => return Ok(setup),
            WorktreeSetup::AlreadyMerged => (None, false),
            WorktreeSetup::Interrupted => (Some(INTERRUPTED), false),
            WorktreeSetup::Unavailable(reason) => (Some(reason.as_str()), false),
            WorktreeSetup::Failed(reason) => (Some(reason.as_str()), true),
        };
        if let Some(reason) = reason {
            self.release_claim(claim, reason, is_failure).await?;
        }
        self.turn_control.set_claim(None);
        self.move_tools();
        Ok(setup)
    }

    async fn provision_worktree(
        &mut self,
        isolation: &WorktreeService,
        task: &Task,
    ) -> Result<WorktreeSetup, AgentError> {
        let provisioned = provision_with_retries(&*isolation.repository, &self.assignment(task)).await;
        if provisioned.is_ok() {
            isolation.record_success();
        }
        match provisioned {
            Ok(WorktreeOutcome::Ready(worktree)) => {
                let turn_control = Arc::clone(&self.turn_control);
                // A stop ends the claim, and the end of the claim ends the setup command.
                let end_claim = async {
                    turn_control.wait_for_level(StopLevel::FinishTurn).await;
                    turn_control.set_claim(None);
                    std::future::pending().await
                };
                tokio::select! {
                    biased;
                    setup = self.use_worktree(isolation, worktree) => setup,
                    setup = end_claim => setup,
                }
            }
            Ok(WorktreeOutcome::Merged { work, worktree }) => {
                self.complete_merged_task(isolation, task, work, &worktree).await?;
                Ok(WorktreeSetup::AlreadyMerged)
            }
            Err(error) => {
                let reason = format!("cannot create a worktree for task {}: {error}", task.id);
                let is_of_task = !error.is_general() && isolation.record_failure(task.id);
                Ok(if is_of_task { WorktreeSetup::Failed(reason) } else { WorktreeSetup::Unavailable(reason) })
            }
        }
    }

    /// Completes a task whose earlier attempt was merged, and removes its worktree.
    async fn complete_merged_task(
        &self,
        isolation: &WorktreeService,
        task: &Task,
        work: MergeRequest,
        worktree: &Worktree,
    ) -> StoreResult<()> {
        let by = Actor::holder(self.name(), task.attempt);
        let assignment = &worktree.assignment;
        let ignored = isolation.repository.move_ignored_files(worktree).await.unwrap_or_else(|error| {
            // The worktree stays, because it cannot be cleaned up either.
            self.record_warnings(assignment, [error.to_string()]);
            IgnoredFiles::default()
        });
        let task = complete_merged(&*self.services.stores.board, task, work, ignored, &by).await?;
        self.services.events.record_task(&task);
        self.record_warnings(assignment, worktree.warnings.clone());
        let kept_reason = isolation.repository.clean_up(worktree).await;
        self.record_warnings(assignment, kept_reason.unwrap_or_else(|error| Some(error.to_string())));
        Ok(())
    }

    async fn use_worktree(
        &mut self,
        isolation: &WorktreeService,
        worktree: Worktree,
    ) -> Result<WorktreeSetup, AgentError> {
        let assignment = &worktree.assignment;
        self.record_warnings(assignment, worktree.warnings.clone());
        if let Some(branch) = &worktree.kept_branch
            && let Some(failed) = &assignment.failed
        {
            let text = format!("the work of attempt {} is on {branch}", failed.attempt);
            self.services.events.record(EventKind::Note { about: assignment.identifier(), text });
        }
        let change = Change::SetWorktree(worktree.name.clone());
        let by = Actor::holder(self.name(), assignment.attempt);
        if let Err(error) = self.services.stores.board.change(assignment.task, change, &by).await {
            let is_lost = self.turn_control.claim().is_none();
            let reason = format!("cannot record the worktree: {error}");
            return Ok(if is_lost { WorktreeSetup::Interrupted } else { WorktreeSetup::Unavailable(reason) });
        }
        let task = assignment.task;
        match self.set_up_worktree(isolation, worktree).await {
            Ok(()) => {
                isolation.is_setup_failing.store(false, Ordering::Relaxed);
                Ok(WorktreeSetup::Ready)
            }
            Err(SetupError::Command(CommandError::ClaimLost(_))) => Ok(WorktreeSetup::Interrupted),
            Err(error) => {
                if !isolation.is_setup_failing.swap(true, Ordering::Relaxed) {
                    self.notify_lead_of_setup(task, &error).await;
                }
                Ok(WorktreeSetup::Unavailable(error.headline()))
            }
        }
    }

    /// Moves the tools into a worktree, and runs the setup command there if it is pending.
    async fn set_up_worktree(&mut self, isolation: &WorktreeService, worktree: Worktree) -> Result<(), SetupError> {
        let repository = &isolation.repository;
        let place = SetupPlace::Task(worktree.root.clone());
        let setup = repository.prepare_setup(&place).await?;
        let claim = ClaimRef { task: worktree.assignment.task, attempt: worktree.assignment.attempt };
        if self.turn_control.claim() != Some(claim) {
            return Err(CommandError::ClaimLost(INTERRUPTED.to_owned()).into());
        }
        let (step, steps) = watch::channel(WorkStep::Spawning);
        let reporter = WorktreeReporter::new(self, Arc::clone(repository), worktree.clone());
        tokio::spawn(reporter.run(steps));
        self.move_tools_for_setup(Arc::new(TaskWorktree {
            repository: Arc::clone(repository),
            queue: Arc::clone(&isolation.merge_queue),
            worktree,
            port_base: setup.port_base,
            step,
        }));
        let time_limit = setup.pending.as_ref().map(|pending| pending.timeout + SETUP_GRACE);
        let _busy = time_limit.map(|limit| self.progress.start_activity(Activity::SettingUpWorktree, limit));
        let context = self.context.command_context();
        let events = &self.context.events;
        Box::pin(setup::run_pending(&**repository, &place, setup, &context, events)).await
    }

    /// Tells the lead that a worktree was not set up.
    async fn notify_lead_of_setup(&self, task: TaskId, error: &SetupError) {
        let text = format!(
            "I cannot set up the worktree of task {task}. No attempt is counted: I released the task and will try again. Other tasks probably fail in the same way.\n{error}"
        );
        self.tell_lead(text).await;
    }

    /// Releases a claim, unless it is lost already. Tells the lead of a failed attempt.
    pub(crate) async fn release_claim(&self, claim: ClaimRef, reason: &str, is_failure: bool) -> StoreResult<()> {
        let change = Change::Release { reason: reason.to_owned(), is_failure };
        if let Some(task) = self.change_claimed_task(claim, change).await?
            && is_failure
            && let Err(error) = self.services.outbox().notify_lead_of_failure(&task, reason).await
        {
            self.services.events.warn(self.name(), format!("cannot send a message to the lead: {error}"));
        }
        Ok(())
    }

    /// Releases a claim because the task reached this cap, unless the claim is lost already. Tells the lead.
    pub(crate) async fn release_at_cap(&self, claim: ClaimRef, reason: &str, cap: CapReached) -> StoreResult<()> {
        let change = Change::ReleaseAtCap { reason: reason.to_owned(), cap };
        if self.change_claimed_task(claim, change).await?.is_some() {
            let text = format!("I released task {}: {reason}. Only a person can raise its cap.", claim.task);
            self.tell_lead(text).await;
        }
        Ok(())
    }

    /// Changes the task of a claim, and records it. Returns `None` if the claim is lost.
    async fn change_claimed_task(&self, claim: ClaimRef, change: Change) -> StoreResult<Option<Task>> {
        let by = Actor::holder(self.name(), claim.attempt);
        match self.services.stores.board.change(claim.task, change, &by).await {
            Ok(task) => {
                self.services.events.record_task(&task);
                Ok(Some(task))
            }
            Err(StoreError::Refused(_) | StoreError::NoTask(_) | StoreError::InvalidTask { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn record_warnings(&self, assignment: &Assignment, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.services.events.warn(assignment.identifier(), text));
    }

    fn assignment(&self, task: &Task) -> Assignment {
        Assignment {
            team: self.services.spec.name.to_string(),
            task: task.id,
            subject: task.subject.clone(),
            attempt: task.attempt,
            teammate: self.name().to_owned(),
            worker: self.services.stores.workers.worker_id().to_owned(),
            failed: task.failed_attempts.last().cloned(),
        }
    }

    /// Records the state in which the attempt of a claim left its worktree, if it failed. The next attempt starts in a new
    /// worktree, unless a person changes this one before.
    pub(crate) async fn record_attempt_end(&self, claim: ClaimRef) {
        let worktree = self.context.working_dir.task_worktree.clone();
        let is_of_claim =
            |assignment: &Assignment| assignment.task == claim.task && assignment.attempt == claim.attempt;
        let Some(worktree) = worktree.filter(|worktree| is_of_claim(&worktree.worktree.assignment)) else { return };
        let task = self.services.stores.board.get(claim.task).await;
        let last = task.ok().and_then(|task| task.failed_attempts.last().map(|failed| failed.attempt));
        if last != Some(claim.attempt) {
            return;
        }
        if let Err(error) = worktree.repository.record_attempt_end(&worktree.worktree).await {
            self.record_warnings(&worktree.worktree.assignment, [error.to_string()]);
        }
    }

    /// Returns a text for the member's model about the worktree of its task, if there is one.
    pub(crate) fn worktree_note(&self) -> Option<String> {
        let Worktree { root, branch, into, leftover_work, kept_branch, .. } = &self.task_worktree()?.worktree;
        let mut text =
            format!("Your worktree for it is {} (branch {branch}, to be merged into {into}).", root.display());
        if kept_branch.is_some() {
            text.push_str(&format!(" It starts at {into}, without the changes of the failed attempt."));
        }
        if let Some(LeftoverWork { commits, files, is_merging }) = leftover_work {
            text.push_str(&format!(
                " An earlier attempt left {commits} unmerged commits and {files} uncommitted files there. Look at them first (git log {}.., git status).",
                into.full()
            ));
            if *is_merging {
                text.push_str(" A merge is unfinished there: resolve the files that git status names, then git add and git commit.");
            }
        }
        Some(text)
    }
}

async fn provision_with_retries(
    repository: &dyn Repository,
    assignment: &Assignment,
) -> Result<WorktreeOutcome, RepositoryError> {
    for wait in RETRY_WAITS {
        match repository.provision(assignment).await {
            Ok(provision) => return Ok(provision),
            Err(error) => tracing::warn!("cannot create a worktree yet: {error}"),
        }
        tokio::time::sleep(wait).await;
    }
    repository.provision(assignment).await
}
