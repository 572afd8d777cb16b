//! The repository of a workspace, driven by the `git` program: one worktree and one branch for each task, and merges into one branch.
//!
//! Worktrees are in `.worktrees/`, each with a git folder of its own; see `places.rs` and `git_folder.rs`. Brigade fetches the commit of a
//! task into the person's repository, and all else happens there: commands cannot write it; see `write_scope.rs`.
//!
//! The team branch is `brigade/<team>`, task branches are `brigade-tasks/<team>/task-<id>`, and
//! `brigade-tasks/<team>/task-<id>-attempt-<n>` keeps the work of a failed attempt. `refs/brigade/<team>/trial/task-<id>` is the merge
//! commit of a task that is being verified, `refs/brigade/<team>/merged/task-<id>` the last verified one: if the team branch has that, and
//! the board does not record it yet, the next claim does. `refs/brigade/<team>/taken/<commit>` keeps what the person took over in another
//! form.
//!
//! Brigade writes nothing in the person's checkout, except when the person runs `brigade merge`; see [`take_over`].
//!
//! This module does not know boards, models or verify commands.

mod adoption;
mod branch;
mod command;
mod commits;
pub mod drivers;
mod failed_attempts;
mod fetching;
mod files;
mod git_folder;
mod ignore_rules;
mod ignored_work;
mod index_flags;
pub mod inspection;
mod kept_files;
pub mod leftovers;
mod lfs;
mod links;
mod locks;
mod lost_merges;
mod merge_journal;
mod merge_refusal;
mod merges;
mod opening;
mod person_merge;
mod pipes;
mod places;
mod queries;
mod removal;
mod repair;
mod resolutions;
mod review_diff;
mod running;
pub mod set_aside;
mod settings;
mod setup;
mod signing;
pub mod take_over;
mod taken;
mod team_branch;
mod team_worktree;
pub mod worktree_store;
mod worktrees;
mod write_scope;
mod written_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::agent::access::PathRule;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::git::worktree_state::{WorktreeReport, WorktreeState};
use crate::domain::log::event::Notice;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::team_spec::SetupSpec;
use crate::git::worktree_store::WorktreeStore;
use crate::ports::{
    Assignment, Clock, CommandPlace, CommitOutcome, Durability, LaunchedRepository, Merge, MergeOutcome, MergeRequest,
    PublishOutcome, RecordedMerge, Repository, RepositoryError, Setup, SetupPlace, UnmergedWork, WorkInspector,
    Worktree, WorktreeOutcome,
};
use crate::sandbox::Sandbox;
use crate::stores::fs::FileSystem;
use command::RepoPath;
use lost_merges::find_lost_merges;
use opening::open_checked;
pub use settings::DriverOptions;
use setup::SetupPlan;
use team_branch::{TeamBranch, checked_target};
use worktrees::Preparations;

/// A file in the checkout's git folder. It is locked while one of our git processes runs.
const RUNNING_LOCK_FILE: &str = "brigade-at-work";

/// The text for a person whose git signs commits.
pub const UNSIGNED_WORK: &str = "Brigade signs only the merge into your branch; commit.gpgSign is on";

/// A repository that teams with isolation work on. Clones share its state.
#[derive(Clone)]
pub struct GitRepository(Arc<RepositoryInner>);

struct RepositoryInner {
    /// The person's checkout.
    main: RepoPath,
    branch: TeamBranch,
    /// Control files, which no task branch may change, relative to the workspace.
    control_files: Vec<PathBuf>,
    setup: SetupPlan,
    /// Patterns of ignored files that completed tasks move into the workspace.
    keep: Vec<String>,
    states: WorktreeStore,
    clock: Arc<dyn Clock>,
    /// Held during each step of a merge. A step whose caller was dropped runs to its end, and the next step waits for it.
    merge_lock: Mutex<()>,
    preparations: Preparations,
}

/// Options for [`GitRepository::open`].
pub struct GitOptions {
    /// The team's name.
    pub team: String,
    /// The branch that receives merges. `None` selects `brigade/<team>`.
    pub merge_into: Option<BranchName>,
    /// Control files, which no task branch may change, relative to the workspace.
    pub control_files: Vec<PathBuf>,
    /// The set-up of worktrees.
    pub setup: SetupSpec,
    /// Patterns of ignored files that completed tasks move into the workspace; see [`crate::domain::agent::path_pattern`].
    pub keep: Vec<String>,
    /// The time limit of the setup command.
    pub setup_timeout: Duration,
    /// The file system for the worktrees' state files.
    pub files: Arc<dyn FileSystem>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The durability of published merges.
    pub durability: Durability,
    /// A program that calls [`crate::sandbox::run_if_guard`]: it confines filters and merge drivers.
    pub program: Option<PathBuf>,
    /// The sandbox of the launch.
    pub sandbox: Sandbox,
}

impl GitRepository {
    /// Opens the repository of `workspace`, which must be its top folder. It changes nothing.
    ///
    /// # Errors
    /// [`RepositoryError`]: git is missing or too old, there is no repository or no commit, merges cannot move the branch, or the program of
    /// a filter is missing.
    pub async fn open(workspace: &Path, options: GitOptions) -> Result<Self, RepositoryError> {
        let (workspace, team, merge_into) = (workspace.to_owned(), options.team.clone(), options.merge_into);
        let drivers = DriverOptions { program: options.program, launch_sandbox: Some(options.sandbox) };
        let syncs_objects = options.durability == Durability::Power;
        let (main, target) = on_blocking_thread(move || {
            let main = RepoPath { syncs_objects, ..open_checked(&workspace, drivers)? };
            let target = checked_target(&main, &team, merge_into.as_ref())?;
            if let Some(missing) = main.missing_drivers()?.into_iter().find(|driver| driver.is_filter) {
                return Err(RepositoryError::unusable_until(
                    format!("cannot use isolation: {missing}"),
                    missing.hint(),
                ));
            }
            Ok((main, target))
        })
        .await?;
        // A state file that a power cut destroys is written again.
        let states = WorktreeStore::new(options.files, Durability::Process, Arc::clone(&options.clock));
        let inner = RepositoryInner {
            branch: TeamBranch::new(main.clone(), options.team, target, options.durability),
            setup: SetupPlan {
                main: main.clone(),
                spec: options.setup,
                timeout: options.setup_timeout,
                ports_lock: Mutex::default(),
            },
            main,
            control_files: options.control_files.into_iter().filter(|path| path.is_relative()).collect(),
            keep: options.keep,
            states,
            clock: options.clock,
            merge_lock: Mutex::new(()),
            preparations: Preparations::default(),
        };
        Ok(Self(Arc::new(inner)))
    }

    async fn blocking<R: Send + 'static>(
        &self,
        action: impl FnOnce(&RepositoryInner) -> Result<R, RepositoryError> + Send + 'static,
    ) -> Result<R, RepositoryError> {
        let inner = Arc::clone(&self.0);
        on_blocking_thread(move || {
            inner.remove_old_locks();
            action(&inner).map_err(|error| inner.branch.with_cause(error))
        })
        .await
    }
}

/// Runs `action` on a thread that may block. It runs to its end even if its caller is dropped.
async fn on_blocking_thread<R: Send + 'static>(
    action: impl FnOnce() -> Result<R, RepositoryError> + Send + 'static,
) -> Result<R, RepositoryError> {
    tokio::task::spawn_blocking(action).await.unwrap_or_else(|error| {
        Err(RepositoryError::Failed { action: "work on the repository".to_owned(), reason: error.to_string() })
    })
}

impl RepositoryInner {
    /// The ref with the merge commit of a task that is being verified.
    fn trial_ref(&self, assignment: &Assignment) -> String {
        format!("refs/brigade/{}/trial/task-{}", self.branch.team, assignment.task.0)
    }

    /// The ref with the last verified merge commit of a task, until the board records the merge. The task is merged if the target branch
    /// has it.
    fn merged_ref(&self, assignment: &Assignment) -> String {
        format!("refs/brigade/{}/merged/task-{}", self.branch.team, assignment.task.0)
    }

    /// Returns failures to clean up as warnings: they do not keep the team from starting.
    fn prepare_launch(&self, completed: &[Assignment]) -> Result<LaunchedRepository, RepositoryError> {
        self.main.wait_for_orphan_git()?;
        self.end_locks();
        let warning = Notice::from;
        let mut notices = Vec::new();
        {
            let _merge_lock = self.merge_lock.lock();
            notices.extend(self.main.ignore_run_time_folders().err().map(warning));
            notices.extend(self.adopt_linked_worktrees()?.into_iter().map(warning));
            notices.extend(self.finish_removals().err().map(warning));
            notices.extend(self.remove_scratch().err().map(warning));
            self.branch.create_team_branch()?;
            notices.extend(self.branch.create_team_worktree()?.map(Notice::warning));
            notices.extend(self.branch.merge_commits_of_person()?);
            notices.extend(self.branch.notice_of_team_worktree());
            let completed: Vec<TaskId> = completed.iter().map(|assignment| assignment.task).collect();
            notices.extend(self.branch.merge_person_branch(&completed)?);
        }
        if self.main.settings.signs_commits()? {
            notices.push(Notice::Info(UNSIGNED_WORK.to_owned()));
        }
        // A file that cannot be copied is found before any work starts.
        let Setup { port_base, .. } = self.prepare_setup(&SetupPlace::Team)?;
        let named = self.main.refs(&[format!("refs/brigade/{}/", self.branch.team)])?;
        let trials = named.iter().map(|(name, _)| name).filter(|name| name.contains("/trial/"));
        notices.extend(self.main.delete_refs(trials).err().map(warning));
        for assignment in completed {
            // The board records the merge, but its worktree was not removed.
            let is_named = named.iter().any(|(name, _)| *name == self.merged_ref(assignment));
            let Some(worktree) = self.leftover_worktree(assignment, is_named) else { continue };
            // A place that cannot be inspected gives the same error again.
            if !is_named && self.is_kept_for_ignored(&worktree).unwrap_or(false) {
                continue;
            }
            match self.clear(&worktree) {
                Ok(reason) => notices.extend(reason.map(Notice::warning)),
                Err(error) => notices.push(warning(error)),
            }
        }
        Ok(LaunchedRepository { team_worktree: self.branch.team_worktree(), team_port_base: port_base, notices })
    }
}

#[async_trait]
impl WorkInspector for GitRepository {
    async fn unmerged_work(&self, task: &Task) -> Result<UnmergedWork, RepositoryError> {
        let task = task.clone();
        self.blocking(move |inner| inner.main.unmerged_work(&inner.branch.team, &inner.branch.name, &task)).await
    }
}

#[async_trait]
impl Repository for GitRepository {
    async fn prepare_launch(&self, completed: Vec<Assignment>) -> Result<LaunchedRepository, RepositoryError> {
        self.blocking(move |inner| inner.prepare_launch(&completed)).await
    }

    async fn lost_merges(&self, merges: Vec<RecordedMerge>) -> Result<Option<Notice>, RepositoryError> {
        self.blocking(move |inner| {
            let lost = find_lost_merges(&inner.main, &inner.branch.team, &inner.branch.name, &merges)?;
            for taken in &lost.taken {
                // The branch was deleted after a squash, for example, and a `git gc` of the person would remove the commits.
                inner.branch.keep_taken(taken, "HEAD")?;
            }
            Ok(lost.problem.map(Notice::from))
        })
        .await
    }

    async fn update_team_worktree(&self) -> Result<Option<String>, RepositoryError> {
        self.blocking(|inner| {
            let _merge_lock = inner.merge_lock.lock();
            inner.branch.update_team_worktree()
        })
        .await
    }

    async fn provision(&self, assignment: &Assignment) -> Result<WorktreeOutcome, RepositoryError> {
        let assignment = assignment.clone();
        self.blocking(move |inner| inner.provision(&assignment)).await
    }

    async fn record_attempt_end(&self, worktree: &Worktree) -> Result<(), RepositoryError> {
        let worktree = worktree.clone();
        self.blocking(move |inner| inner.record_attempt_end(&worktree)).await
    }

    async fn commit(&self, worktree: &Worktree, summary: &str) -> Result<CommitOutcome, RepositoryError> {
        let (worktree, summary) = (worktree.clone(), summary.to_owned());
        self.blocking(move |inner| inner.commit(&worktree, &summary)).await
    }

    async fn merge(&self, worktree: &Worktree, request: MergeRequest) -> Result<MergeOutcome, RepositoryError> {
        let worktree = worktree.clone();
        self.blocking(move |inner| inner.merge(&worktree, &request)).await
    }

    async fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError> {
        let merge = merge.clone();
        self.blocking(move |inner| inner.check_out(&merge)).await
    }

    async fn prepare_setup(&self, place: &SetupPlace) -> Result<Setup, RepositoryError> {
        let place = place.clone();
        self.blocking(move |inner| inner.prepare_setup(&place)).await
    }

    async fn record_setup(&self, place: &SetupPlace, key: &str) -> Result<(), RepositoryError> {
        let (place, key) = (place.clone(), key.to_owned());
        self.blocking(move |inner| inner.record_setup(&place, &key)).await
    }

    async fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<PublishOutcome, RepositoryError> {
        let (merge, assignment) = (merge.clone(), assignment.clone());
        self.blocking(move |inner| inner.publish(&merge, &assignment)).await
    }

    async fn move_ignored_files(&self, worktree: &Worktree) -> Result<IgnoredFiles, RepositoryError> {
        let worktree = worktree.clone();
        self.blocking(move |inner| inner.move_ignored_files(&worktree)).await
    }

    async fn clean_up(&self, worktree: &Worktree) -> Result<Option<String>, RepositoryError> {
        let worktree = worktree.clone();
        self.blocking(move |inner| inner.clear(&worktree)).await
    }

    async fn report(&self, worktree: &Worktree, report: WorktreeReport) -> Result<(), RepositoryError> {
        let root = worktree.root.clone();
        let mut fresh = WorktreeState::default();
        worktrees::assign(&mut fresh, &worktree.assignment);
        self.blocking(move |inner| {
            let written = inner.states.report(&root, fresh, &report);
            written.map_err(|error| files::failed("write the state of", &root, &error))
        })
        .await
    }

    fn boundaries(&self, place: CommandPlace<'_>) -> Vec<PathRule> {
        self.0.boundaries(place)
    }
}
