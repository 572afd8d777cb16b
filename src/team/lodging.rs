//! Where a teammate works: in the workspace, or, in a team with isolation, in the worktree of the task it holds. Who holds no task
//! there looks at the workspace and writes nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::agent::{Agent, AgentError};
use super::progress::Activity;
use crate::domain::access::{Access, PathRule};
use crate::domain::change::{Actor, Change};
use crate::domain::event::Fact;
use crate::domain::phase::Held;
use crate::domain::task::{Task, TaskId, TaskResult};
use crate::ports::{Assignment, Provision, Repository, RepositoryError, Worktree};
use crate::tools::deliver::MergeQueue;
use crate::tools::{Lodging, ReadOnly, answers};

/// The waits between the tries to make a worktree; there is one try more than waits.
const WAITS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// How long making a worktree may take at most.
const TIME_MAX: Duration = Duration::from_secs(1800);

/// What a model is told of isolation, besides how it works.
pub(super) const ABOUT_ISOLATION: &str = "Each task has a git worktree and a branch of its own; you are told where when you claim one. Your file tools and commands begin there, and you write nowhere else: no other branch, no tag, no stash. Commit as you go or not at all: what is left is committed in your name when you report the task completed. Then your branch is merged; if it conflicts, or the task's verify command is red on the merged result, your report is answered with what shows it, and you mend it in your worktree and report again. Keep what others added: a merge that drops their lines is refused.";

/// What a model is told that hands in its plan first.
pub(super) const ABOUT_PLAN_FIRST: &str = "You hand in a plan first. For each task you claim: look at what it is about, which needs no approval, then call plan_approval with what you will change, in which files, how you will show that it is right, and what could go wrong; then end your turn. Until the plan is approved your tools and commands write nothing in the workspace, and the task cannot be reported completed. A rejected plan comes back with what to change: hand in another one.";

/// What a team with isolation shares.
#[derive(Clone)]
pub struct Isolation {
    /// The repository.
    pub repository: Arc<dyn Repository>,
    /// The merges of the team.
    pub queue: Arc<MergeQueue>,
    /// The task that no worktree could be made for, where none was made for another one since.
    pub refused: Arc<Mutex<Option<TaskId>>>,
}

impl Isolation {
    /// Whether it is this task's trouble that it got no worktree: not where the one before it got none either.
    fn is_its_own(&self, task: TaskId) -> bool {
        let before = self.refused.lock().unwrap_or_else(PoisonError::into_inner).replace(task);
        before.is_none_or(|before| before == task)
    }

    fn is_well(&self) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What became of a claim before its work begins.
#[derive(Debug)]
pub(super) enum Arrival {
    /// It may begin.
    In,
    /// An earlier attempt had merged it; it is completed now.
    Completed,
    /// There is no place to work in, for this reason, which is not the task's; the claim is given back.
    Refused(String),
    /// None could be made for this task, for this reason: that counts against it, and others can be done.
    Failed(String),
}

impl Agent {
    /// What keeps this agent in worktrees. The lead works in the workspace itself.
    fn isolation(&self) -> Option<Isolation> {
        self.shared.isolation.clone().filter(|_| !self.context.is_lead)
    }

    /// Readies the place to work in for a task that was claimed just now.
    pub(super) async fn move_in(&mut self, task: &Task) -> Result<Arrival, AgentError> {
        let Some(isolation) = self.isolation() else { return Ok(Arrival::In) };
        let held = Held { task: task.id, attempt: task.attempt };
        // From here on the claim is known to be held, however long this takes.
        self.reins.hold(Some(held));
        let assignment = self.assignment(task);
        let provisioned = {
            let _busy = self.progress.busy(Activity::MakingWorktree, TIME_MAX);
            provision(&*isolation.repository, &assignment).await
        };
        if provisioned.is_ok() {
            isolation.is_well();
        }
        let arrival = match provisioned {
            Ok(Provision::Ready(worktree)) => self.settle_in(isolation, worktree, assignment).await?,
            Ok(Provision::Merged { commit, summary, worktree }) => {
                let evidence = format!("merged as {commit} by an attempt that was ended before it could say so");
                let result = TaskResult { commit: Some(commit), ..TaskResult::said(summary, evidence) };
                let by = Actor::holder(self.name(), held.attempt);
                let task = self.shared.stores.board.change(held.task, Change::Complete(result), &by).await?;
                self.shared.notes.task(&task);
                self.warn_of(&assignment, worktree.warnings.clone());
                let left = isolation.repository.clear(&worktree, &assignment).await;
                self.warn_of(&assignment, left.unwrap_or_else(|error| Some(error.to_string())));
                Arrival::Completed
            }
            Err(error) => {
                let reason = format!("no worktree for task {}: {error}", held.task);
                if !error.is_general() && isolation.is_its_own(held.task) {
                    Arrival::Failed(reason)
                } else {
                    Arrival::Refused(reason)
                }
            }
        };
        match &arrival {
            Arrival::Refused(reason) => self.give_back(held, reason, false).await?,
            Arrival::Failed(reason) => self.give_back(held, reason, true).await?,
            Arrival::In | Arrival::Completed => {}
        }
        if !matches!(arrival, Arrival::In) {
            self.reins.hold(None);
        }
        Ok(arrival)
    }

    async fn settle_in(
        &mut self,
        isolation: Isolation,
        worktree: Worktree,
        assignment: Assignment,
    ) -> Result<Arrival, AgentError> {
        self.warn_of(&assignment, worktree.warnings.clone());
        let change = Change::Lodge(worktree.name.clone());
        let by = Actor::holder(self.name(), assignment.attempt);
        if let Err(error) = self.shared.stores.board.change(assignment.task, change, &by).await {
            return Ok(Arrival::Refused(format!("where its worktree is cannot be said: {error}")));
        }
        let Isolation { repository, queue, .. } = isolation;
        self.stand_in(Some(Arc::new(Lodging { repository, queue, worktree, assignment })));
        self.forget_identity();
        Ok(Arrival::In)
    }

    async fn give_back(&self, held: Held, reason: &str, counts: bool) -> Result<(), AgentError> {
        let change = Change::Release { reason: reason.to_owned(), counts };
        match self.shared.stores.board.change(held.task, change, &Actor::holder(self.name(), held.attempt)).await {
            Ok(task) => self.shared.notes.task(&task),
            // It is somebody else's by now.
            Err(crate::ports::StoreError::Refused(_) | crate::ports::StoreError::NoTask(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn warn_of(&self, assignment: &Assignment, texts: impl IntoIterator<Item = String>) {
        for text in texts {
            self.shared.notes.fact(Fact::of_worktrees(assignment.identifier(), text));
        }
    }

    fn assignment(&self, task: &Task) -> Assignment {
        Assignment {
            team: self.shared.team.to_string(),
            task: task.id,
            subject: task.subject.clone(),
            attempt: task.attempt,
            teammate: self.name().to_owned(),
            worker: self.shared.stores.workers.me().to_owned(),
        }
    }

    /// Has the tools work where what is held says: a worktree is left with its task.
    pub(super) async fn stand_where_due(&mut self) {
        let held = self.task();
        let lodging = self.context.lodging.clone().filter(|lodging| Some(lodging.assignment.task) == held);
        if lodging.is_none() || self.context.lodging.is_none() {
            self.stand_in(lodging);
        }
        if self.spec.plan_first {
            self.heed_plan().await;
        }
    }

    fn stand_in(&mut self, lodging: Option<Arc<Lodging>>) {
        let Some(isolation) = self.isolation() else { return };
        let worktree = lodging.as_ref().map(|lodging| &lodging.worktree);
        let (workspace, controls) = (&self.shared.workspace, &self.shared.control_files);
        let mut boundaries = isolation.repository.boundaries(worktree);
        self.context.control_files = Arc::clone(controls);
        if let Some(worktree) = worktree {
            // A link or a missing file is none of ours: no merge takes it.
            let is_plain = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| !metadata.is_symlink());
            let controls_there = controls.iter().map(|control| worktree.root.join(control)).filter(is_plain);
            boundaries.extend(controls_there.map(PathRule::read_only));
            let own = [".git", ".agent"].map(PathBuf::from);
            self.context.control_files = controls.iter().cloned().chain(own).collect();
        }
        self.context.workspace = worktree.map_or_else(|| workspace.clone(), |worktree| worktree.root.clone());
        self.context.boundaries = boundaries.into();
        self.context.read_only = lodging.is_none().then_some(ReadOnly::NoTask);
        self.context.lodging = lodging;
    }

    /// One that hands in its plan first writes nothing until the plan for what it holds is approved.
    async fn heed_plan(&mut self) {
        let held = self.reins.held();
        if self.approved.is_none() || self.approved != held {
            self.approved = match held {
                Some(held) if self.has_approved_plan(held).await => Some(held),
                _ => None,
            };
        }
        let is_shut = self.context.read_only == Some(ReadOnly::NoPlan);
        if self.approved.is_none() {
            self.shut();
        } else if is_shut && self.isolation().is_some() {
            self.stand_in(self.context.lodging.clone());
        } else if is_shut {
            (self.context.read_only, self.context.boundaries) = (None, Arc::default());
        }
    }

    /// Takes the right to write from tools and commands.
    fn shut(&mut self) {
        let workspace = PathRule::read_only(&self.context.workspace);
        let kept = self.context.boundaries.iter().filter(|rule| rule.access != Access::Writable && **rule != workspace);
        self.context.boundaries = kept.cloned().chain([workspace.clone()]).collect();
        self.context.read_only = Some(ReadOnly::NoPlan);
    }

    async fn has_approved_plan(&self, held: Held) -> bool {
        let stores = &self.shared.stores;
        let (Ok(book), Ok(task)) = (answers::recorded(stores, self.name()).await, stores.board.get(held.task).await)
        else {
            return false;
        };
        book.has_approved_plan(self.name(), held.task, task.failures)
    }

    /// Where the task it holds is worked on, for its model.
    pub(super) fn place(&self) -> Option<String> {
        let held = self.task()?;
        let lodging = self.context.lodging.as_ref().filter(|lodging| lodging.assignment.task == held)?;
        let Worktree { root, branch, into, left, .. } = &lodging.worktree;
        let mut text =
            format!("Your worktree for it is {} (branch {branch}, to be merged into {into}).", root.display());
        if let Some((commits, files)) = left {
            text.push_str(&format!(
                " An earlier attempt left {commits} commits that are not merged and {files} files that are not committed there: look at them first (git log {into}.., git status)."
            ));
        }
        Some(text)
    }
}

async fn provision(repository: &dyn Repository, assignment: &Assignment) -> Result<Provision, RepositoryError> {
    for wait in WAITS {
        match repository.provision(assignment).await {
            Ok(provision) => return Ok(provision),
            Err(error) => tracing::warn!("a worktree is not made yet: {error}"),
        }
        tokio::time::sleep(wait).await;
    }
    repository.provision(assignment).await
}
