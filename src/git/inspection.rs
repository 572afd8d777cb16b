//! The state of a workspace and its worktrees, for commands: whether git can be used, tracked and uncommitted files, unmerged branches.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::command::{RepoPath, git, git_in, path_of};
use super::drivers::MissingDriver;
use super::opening::{is_in_no_repository, open_checked};
use super::{DriverOptions, GitRepository, on_blocking_thread};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::{AttemptBranch, TASK_BRANCHES};
use crate::domain::task::Task;
use crate::ports::{RepositoryError, UnmergedWork, WorkInspector};

/// Brigade's files in a workspace.
const RUN_TIME_PATHS: [&str; 4] = [".worktrees", ".tasks", ".team", "agent_state.json"];

/// The state of git in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspection {
    /// Git was not found.
    NoGit,
    /// The workspace is not in a repository. The text is git's version.
    NoRepository(String),
    /// Git does not ignore Brigade's run-time files. The text is git's version.
    NotIgnored(String),
    /// Git failed, for this reason.
    Failed(String),
    /// No problem was found. The text is git's version.
    Good(String),
}

/// Inspects git in `workspace`. Git should ignore `run_time_file`. Blocks.
pub fn inspect(workspace: &Path, run_time_file: &str) -> Inspection {
    let version = match git(["--version"]).ok() {
        Ok(output) => output.line(),
        Err(RepositoryError::NoGit(_)) => return Inspection::NoGit,
        Err(error) => return Inspection::Failed(error.to_string()),
    };
    match git_in(workspace, ["rev-parse", "--git-dir"]).run() {
        Err(error) => return Inspection::Failed(error.to_string()),
        Ok(output) if is_in_no_repository(&output) => return Inspection::NoRepository(version),
        Ok(output) if output.code != 0 => return Inspection::Failed(output.err.trim().to_owned()),
        Ok(_) => {}
    }
    match git_in(workspace, ["check-ignore", "-q", run_time_file]).exit_as_bool() {
        Err(error) => Inspection::Failed(error.to_string()),
        Ok(false) => Inspection::NotIgnored(version),
        Ok(true) => Inspection::Good(version),
    }
}

impl GitRepository {
    /// The tracked files in `folder` with one of these names, in any case, and those below folders with these names. Empty if `folder`
    /// is not in a repository. Blocks.
    ///
    /// # Errors
    /// Git fails in an existing repository.
    pub fn tracked(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>, RepositoryError> {
        if !folder.ancestors().any(|folder| folder.join(".git").symlink_metadata().is_ok()) {
            return Ok(Vec::new());
        }
        let specs = names.iter().map(|name| format!(":(icase,literal){name}"));
        let arguments = ["ls-files", "-z", "--cached", "--"].map(str::to_owned);
        Ok(git_in(folder, arguments.into_iter().chain(specs)).ok()?.fields().map(path_of).collect())
    }

    /// The drivers of tracked files whose programs are not there. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn missing_drivers(workspace: &Path) -> Result<Vec<MissingDriver>, RepositoryError> {
        open_checked(workspace, DriverOptions::default())?.missing_drivers()
    }

    /// The files of `workspace` with uncommitted changes, and those that are neither tracked nor ignored. A folder of such files counts
    /// as one. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn uncommitted(workspace: &Path, drivers: DriverOptions) -> Result<Vec<PathBuf>, RepositoryError> {
        let main = open_checked(workspace, drivers)?;
        // A query must not lock the index. In a submodule git would run what that submodule's settings name.
        let options = ["--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames"];
        let output = main.git(options.iter().chain(&["--ignore-submodules=dirty"])).ok()?;
        let paths = output.fields().filter_map(|field| field.get(3..)).filter(|path| !path.is_empty()).map(path_of);
        // Git may not ignore them yet.
        let is_ours = |path: &PathBuf| RUN_TIME_PATHS.iter().any(|ours| path.starts_with(ours));
        Ok(paths.filter(|path| !is_ours(path)).collect())
    }
}

/// Finds the work on a team's tasks, without a launch.
#[derive(Debug, Clone)]
pub struct GitWorkInspector {
    /// The workspace.
    pub workspace: PathBuf,
    /// The team's name.
    pub team: String,
    /// The branch that receives merges.
    pub target: BranchName,
    /// The sandbox of filters.
    pub drivers: DriverOptions,
}

#[async_trait]
impl WorkInspector for GitWorkInspector {
    async fn unmerged_work(&self, task: &Task) -> Result<UnmergedWork, RepositoryError> {
        let (Self { workspace, team, target, drivers }, task) = (self.clone(), task.clone());
        on_blocking_thread(move || open_checked(&workspace, drivers)?.unmerged_work(&team, &target, &task)).await
    }
}

impl RepoPath {
    /// As [`WorkInspector::unmerged_work`], for a team that merges into the branch `target`.
    pub(super) fn unmerged_work(
        &self,
        team: &str,
        target: &BranchName,
        task: &Task,
    ) -> Result<UnmergedWork, RepositoryError> {
        let branch = format!("refs/heads/{TASK_BRANCHES}/{team}/task-{}", task.id.0);
        let target = self.checked_branch_commit(target)?;
        // Without a target, all branches are unmerged.
        let not_merged = target.iter().map(|target| format!("--no-merged={target}"));
        let names = ["--format=%(refname)".to_owned(), branch.clone(), format!("{branch}-*")];
        let found = self.git(["for-each-ref".to_owned()].into_iter().chain(not_merged).chain(names)).ok()?.line();
        // A branch of a failed attempt is not the task's.
        let is_of_task = |branch: &BranchName| AttemptBranch::of_branch(branch).is_none();
        let of_task = found.lines().filter_map(BranchName::of_ref).filter(is_of_task);
        let mut work = UnmergedWork { branches: of_task.collect(), ..UnmergedWork::default() };
        if let Some(folder) = &task.worktree {
            let root = self.work_tree.join(folder);
            if self.has_uncommitted(&root)? {
                work.uncommitted_in = Some(folder.clone());
            }
            if work.branches.is_empty() && self.has_unmerged_commits(&root, target.as_deref())? {
                work.commits_in = Some(folder.clone());
            }
        }
        Ok(work)
    }

    /// Returns true if a worktree has commits that the commit `target` lacks.
    fn has_unmerged_commits(&self, worktree: &Path, target: Option<&str>) -> Result<bool, RepositoryError> {
        let (Some(at), Some(target)) = (self.place_at(worktree).map(Self::confined), target) else { return Ok(false) };
        Ok(at.commit("HEAD")?.is_some() && at.commits_beyond(target)? > 0)
    }

    /// Returns true if a folder has uncommitted changes, or is no worktree that git could show them of. Ignored files do not count.
    fn has_uncommitted(&self, worktree: &Path) -> Result<bool, RepositoryError> {
        if !worktree.is_dir() {
            return Ok(false);
        }
        let Some(at) = self.place_at(worktree).map(Self::confined) else { return Ok(true) };
        let options = ["--no-optional-locks", "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"];
        Ok(!at.git(options).ok()?.out.is_empty())
    }
}
