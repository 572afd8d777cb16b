//! The git repository of a team with isolation: a worktree for each task, and merges of its work.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::agent::access::PathRule;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::git::worktree_name::WorktreeName;
use crate::domain::git::worktree_state::WorktreeReport;
use crate::domain::log::event::Notice;
use crate::domain::task::failed_attempt::FailedAttempt;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::next::{Next, outside_text};

/// The reason why a repository call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepositoryError {
    /// `git` is missing or too old.
    #[error("{0}")]
    NoGit(String),
    /// The workspace cannot be used with worktrees.
    #[error("{}", with_hint(reason, next))]
    Unusable {
        /// The reason.
        reason: String,
        /// The next steps, if something is known that helps.
        next: Vec<Next>,
    },
    /// The disk is full or its quota is used up.
    #[error("cannot {action}: {reason}")]
    DiskFull {
        /// The attempted action.
        action: String,
        /// The message of git or the system.
        reason: String,
    },
    /// A step failed. A retry may succeed.
    #[error("cannot {action}: {reason}")]
    Failed {
        /// The attempted action.
        action: String,
        /// The reason.
        reason: String,
    },
}

impl RepositoryError {
    /// The workspace cannot be used with worktrees, and nothing is known that helps.
    pub fn unusable(reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into(), next: Vec::new() }
    }

    /// The workspace cannot be used with worktrees until the person takes this step.
    pub fn unusable_until(reason: impl Into<String>, step: impl Into<Next>) -> Self {
        Self::Unusable { reason: reason.into(), next: vec![step.into()] }
    }

    /// Returns true if the error concerns the repository or the machine, so that other tasks would fail as well.
    pub fn is_general(&self) -> bool {
        !matches!(self, Self::Failed { .. })
    }
}

/// The reason, with the steps outside of Brigade.
pub fn with_hint(reason: &str, next: &[Next]) -> String {
    match outside_text(next).as_str() {
        "" => reason.to_owned(),
        hint => format!("{reason}. hint: {hint}"),
    }
}

impl From<RepositoryError> for Notice {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::Unusable { reason, next } => Self::Warning { text: reason, next },
            error => Self::warning(error.to_string()),
        }
    }
}

/// A task and its holder. They determine the names of its branch, commits and worktree state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Name of the team.
    pub team: String,
    /// The task.
    pub task: TaskId,
    /// Its subject.
    pub subject: String,
    /// The attempt.
    pub attempt: u32,
    /// Name of the holder.
    pub teammate: String,
    /// The worker that must be alive for the claim to hold.
    pub worker: String,
    /// The last attempt that failed.
    pub failed: Option<FailedAttempt>,
}

/// A merge that the board records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedMerge {
    /// The completed task.
    pub task: TaskId,
    /// The commit with its work.
    pub commit: String,
}

impl RecordedMerge {
    /// Returns the merges that the board records, of all teams that worked on it.
    pub fn of_board<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> Vec<Self> {
        let merge = |task: &Task| {
            WorktreeName::of_folder(task.worktree.as_ref()?)?;
            let commit = task.completion()?.commit.clone()?;
            Some(Self { task: task.id, commit })
        };
        tasks.into_iter().filter_map(merge).collect()
    }
}

/// The domain of the email addresses in teammates' commits.
pub const TEAMMATES_DOMAIN: &str = "@brigade.invalid";

impl Assignment {
    /// Returns the owner of a worktree: `<team>/task-<id>`.
    pub fn identifier(&self) -> String {
        format!("{}/task-{}", self.team, self.task.0)
    }

    /// Returns the name and email address for its commits.
    pub fn signature(&self) -> [String; 2] {
        [format!("{} ({})", self.teammate, self.team), format!("{}{TEAMMATES_DOMAIN}", self.teammate)]
    }
}

/// A worktree that is ready for its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worktree {
    /// Its absolute path.
    pub root: PathBuf,
    /// Its path relative to the workspace, as in the task's file.
    pub name: String,
    /// Its branch.
    pub branch: BranchName,
    /// The team branch, which it is merged into.
    pub into: BranchName,
    /// The task and its holder.
    pub assignment: Assignment,
    /// The work that an earlier attempt left.
    pub leftover_work: Option<LeftoverWork>,
    /// The branch that keeps the work of a failed attempt, if this call moved it there.
    pub kept_branch: Option<BranchName>,
    /// Warnings about its creation, for people.
    pub warnings: Vec<String>,
}

impl Worktree {
    /// Returns the folder that has it in `.worktrees/`.
    pub fn workspace(&self) -> &Path {
        let parts = Path::new(&self.name).components().count();
        self.root.ancestors().nth(parts).unwrap_or(&self.root)
    }
}

/// The worktree of the team branch, which has the merged work of all tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamWorktree {
    /// Its absolute path.
    pub root: PathBuf,
    /// Its path relative to the workspace.
    pub name: String,
    /// The team branch: the branch that receives all verified merges.
    pub branch: BranchName,
}

/// The place where a member's commands run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandPlace<'a> {
    /// The worktree of its task. They can write its files and commit on its branch.
    Task(&'a Worktree),
    /// The team worktree, for the lead. They can write its files and cannot commit.
    Lead,
    /// The team worktree, for a teammate without a task. They write nothing.
    NoTask,
}

/// The unmerged work of an earlier attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftoverWork {
    /// Number of unmerged commits.
    pub commits: usize,
    /// Number of uncommitted files.
    pub files: usize,
    /// True if a merge is unfinished.
    pub is_merging: bool,
}

/// Work on a task that is not merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnmergedWork {
    /// The branches with its commits.
    pub branches: Vec<BranchName>,
    /// The worktree with commits that are on none of these branches.
    pub commits_in: Option<String>,
    /// The worktree with uncommitted changes.
    pub uncommitted_in: Option<String>,
}

impl fmt::Display for UnmergedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.branches.iter().map(BranchName::short).collect();
        let branches = (!names.is_empty()).then(|| format!("on {}", names.join(", ")));
        let commits = self.commits_in.as_ref().map(|folder| format!("in {folder} (commits)"));
        let worktree = self.uncommitted_in.as_ref().map(|folder| format!("in {folder} (uncommitted)"));
        let parts: Vec<String> = branches.into_iter().chain(commits).chain(worktree).collect();
        write!(f, "the work {} is not merged", parts.join(" and "))
    }
}

/// The result of [`Repository::provision`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorktreeOutcome {
    /// The worktree is ready.
    Ready(Worktree),
    /// An earlier attempt merged the task's work, but ended before it could report that.
    Merged {
        /// The merged work, with the merge commit.
        work: MergeRequest,
        /// Its worktree, if it still exists.
        worktree: Worktree,
    },
}

/// The result of [`Repository::commit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The branch is at this commit, with all changes.
    Committed(String),
    /// The worktree cannot be committed, for this reason. The teammate can fix it.
    Refused(String),
}

/// The work to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRequest {
    /// A commit of the worktree's branch.
    pub commit: String,
    /// The summary of the work, for the commit message.
    pub summary: String,
    /// True if the agent reported the work. The commit message says it, so that it is known after a crash.
    pub is_reported: bool,
    /// The reviewer that approved the work. The commit message names it too.
    pub reviewed_by: Option<String>,
}

/// A merge commit that no branch has yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The branch's commit before the merge.
    pub onto: String,
    /// The merge commit.
    pub commit: String,
}

/// The result of [`Repository::merge`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeOutcome {
    /// The branch at this commit already has everything.
    UpToDate(String),
    /// It cannot be merged, for this reason. The teammate can fix it.
    Refused(String),
    /// The merge commit was created.
    Created(Merge),
}

/// The result of [`Repository::publish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The team branch has the merge. The notice says why the files of the team worktree stay at an earlier commit, if they do.
    Done(Option<Notice>),
    /// The branch was moved by others meanwhile: merge again.
    Moved,
}

/// A worktree that is set up before commands run there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupPlace {
    /// The worktree of a task, with this absolute path.
    Task(PathBuf),
    /// The folder of [`Repository::check_out`], with this merge.
    Merge(Merge),
    /// The team worktree.
    Team,
}

/// The set-up of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The first of [`PORTS_PER_WORKTREE`] ports for its commands. It stays the same as long as the worktree exists.
    pub port_base: u16,
    /// The command that has to run. `None`: there is none, or it has succeeded and nothing that it depends on has changed.
    pub pending: Option<PendingSetup>,
}

/// A setup command that has to run in a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSetup {
    /// The command.
    pub command: String,
    /// Its time limit.
    pub timeout: Duration,
    /// The folders that it may write in addition to the worktree: those of git for its submodules.
    pub writable: Vec<PathBuf>,
    /// Everything that it depends on, as a digest.
    pub key: String,
    /// True if the work of the task changes something that it depends on, so that the task may be the reason of a failure.
    pub is_changed_by_task: bool,
}

/// The ports of a worktree.
pub const PORTS_PER_WORKTREE: u16 = 10;

/// The result of [`Repository::prepare_launch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchedRepository {
    /// The worktree of the team branch.
    pub team_worktree: TeamWorktree,
    /// Its first port.
    pub team_port_base: u16,
    /// Notices for people.
    pub notices: Vec<Notice>,
}

/// Finds the work on tasks in a repository, also without a launch. It changes nothing.
#[async_trait]
pub trait WorkInspector: Send + Sync {
    /// Returns the work on a task that is not merged. The branches of failed attempts do not count.
    async fn unmerged_work(&self, task: &Task) -> Result<UnmergedWork, RepositoryError>;
}

/// The repository of a workspace. A started call runs to its end, even if its caller stops waiting.
///
/// No call changes the person's checkout, its branch, or the repository's config, hooks and exclude file.
///
/// After a kill at any point, the team branch is as before or as after a complete merge. [`Repository::provision`] finds a
/// merge that was not reported. A worktree exists with its state, or the next call creates it.
#[async_trait]
pub trait Repository: WorkInspector {
    /// Prepares a launch. It must end before any other call.
    ///
    /// - Completes merges and removals that an earlier process started, and removes the worktrees of `completed` tasks.
    /// - Creates the team branch and its worktree, if they do not exist.
    /// - Merges the person's current branch into the team branch. A conflict is an error, which names the files.
    /// - Prepares the set-up of the team worktree. A file that cannot be copied is an error.
    async fn prepare_launch(&self, completed: Vec<Assignment>) -> Result<LaunchedRepository, RepositoryError>;

    /// Returns a warning if some of these merges are no longer on the team branch: it was reset, renamed or deleted.
    async fn lost_merges(&self, merges: Vec<RecordedMerge>) -> Result<Option<Notice>, RepositoryError>;

    /// Updates the files of the team worktree to the team branch's commit. Returns the reason if they stay at an earlier commit:
    /// uncommitted changes there are never overwritten.
    async fn update_team_worktree(&self) -> Result<Option<String>, RepositoryError>;

    /// Creates the worktree of a task, or returns the one of an earlier attempt.
    ///
    /// After a failed attempt the worktree is created again from the team branch. A branch keeps the work of the failed attempt, with
    /// its uncommitted files. If the worktree changed since [`Repository::record_attempt_end`], a person works there, and the next
    /// attempt continues there. After a crash at any point the next call completes this.
    async fn provision(&self, assignment: &Assignment) -> Result<WorktreeOutcome, RepositoryError>;

    /// Records the state in which a failed attempt leaves its worktree. Does nothing if a later attempt works there.
    async fn record_attempt_end(&self, worktree: &Worktree) -> Result<(), RepositoryError>;

    /// Commits all uncommitted files of the worktree, and adds the task to all commit messages of its branch.
    async fn commit(&self, worktree: &Worktree, summary: &str) -> Result<CommitOutcome, RepositoryError>;

    /// Creates a merge commit from a commit of the worktree's branch and moves no branch. Later commits of the branch are not in
    /// it.
    async fn merge(&self, worktree: &Worktree, request: MergeRequest) -> Result<MergeOutcome, RepositoryError>;

    /// Returns a folder with the content of the merge. There is only one, and the next call changes it.
    async fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError>;

    /// Copies files into a worktree, gives it ports, and returns the command that has to run there.
    async fn prepare_setup(&self, place: &SetupPlace) -> Result<Setup, RepositoryError>;

    /// Records that the setup command with this key succeeded. Without this call, for example after a crash, it runs again.
    async fn record_setup(&self, place: &SetupPlace, key: &str) -> Result<(), RepositoryError>;

    /// Moves the team branch to the merge, and then the files of the team worktree.
    async fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<PublishOutcome, RepositoryError>;

    /// Moves the ignored files of a task that `keep` names into the workspace, and returns them with the ignored files that stay in the
    /// worktree. Files of the set-up and caches do not count. No file is replaced. After a crash at any point each file is in the worktree or
    /// in the workspace, and the next call returns all of them.
    async fn move_ignored_files(&self, worktree: &Worktree) -> Result<IgnoredFiles, RepositoryError>;

    /// Removes the mark of a completed task's merge, and its worktree and branch. Returns the reason if they stay, because they
    /// have other changes. A worktree stays for ignored files too, as [`Repository::move_ignored_files`] returns them.
    async fn clean_up(&self, worktree: &Worktree) -> Result<Option<String>, RepositoryError>;

    /// Shows the state of the work in the files of the worktree. A worktree that was removed stays removed.
    async fn report(&self, worktree: &Worktree, report: WorktreeReport) -> Result<(), RepositoryError>;

    /// Returns the path rules for commands in this place.
    fn boundaries(&self, place: CommandPlace<'_>) -> Vec<PathRule>;
}
