//! Worktrees and branches of tasks that are no longer on the board, branches that keep the work of failed attempts, and worktrees that keep
//! ignored files. Only a person removes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::command::RepoPath;
use super::ignored_work::{IgnoredWalk, summary};
use super::kept_files::kept_place;
use super::merges::is_control_file;
use super::opening::find_checkout;
use super::removal::{PlaceWork, unsaved_work};
use super::{DriverOptions, GitRepository, files};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::ignored_files::FileList;
use crate::domain::git::worktree_name::{AttemptBranch, TASK_BRANCHES, WORKTREES_FOLDER, WorktreeName};
use crate::domain::task::TaskId;
use crate::ports::RepositoryError;

/// A worktree or branch, or both, of one attempt at a task that is no longer on the board.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Leftover {
    /// The task's id.
    pub task: TaskId,
    /// The worktree, relative to the workspace.
    pub folder: Option<String>,
    /// The branch.
    pub branch: Option<BranchName>,
}

/// A branch that keeps the work of a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct KeptAttempt {
    /// The task's id.
    pub task: TaskId,
    /// The failed attempt.
    pub attempt: u32,
    /// The branch.
    pub branch: BranchName,
    /// Its commit.
    pub commit: String,
}

/// A worktree of a task whose work is over.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct KeptWorktree {
    /// The task's id.
    pub task: TaskId,
    /// The failed attempt that left it. `None`: the task is completed.
    pub attempt: Option<u32>,
    /// The folder, relative to the workspace.
    pub folder: String,
    /// The ignored files for which it is kept. `None`: it is not kept for them.
    pub files: Option<FileList>,
    /// The reason why a removal would lose other work.
    pub other_work: Option<String>,
}

/// Options for [`GitRepository::kept_worktrees`].
#[derive(Debug, Clone, Default)]
pub struct KeptOptions {
    /// The sandbox for git in worktrees.
    pub drivers: DriverOptions,
    /// Files of Brigade, relative to the workspace. They are no work.
    pub control_files: Vec<PathBuf>,
}

impl GitRepository {
    /// The worktrees of all teams that keep ignored files, and the other ones of completed tasks. Blocks.
    ///
    /// # Errors
    /// `workspace` is not in a repository, or git fails.
    pub fn kept_worktrees(
        workspace: &Path,
        options: &KeptOptions,
        is_completed: impl Fn(TaskId) -> bool,
    ) -> Result<Vec<KeptWorktree>, RepositoryError> {
        let main = find_checkout(workspace, options.drivers.clone())?;
        let mut kept = Vec::new();
        for root in files::entries(&workspace.join(WORKTREES_FOLDER)) {
            let folder = format!("{WORKTREES_FOLDER}/{}", root.file_name().unwrap_or_default().to_string_lossy());
            let (task, attempt) = match (WorktreeName::of_folder(&folder), AttemptBranch::of_folder(&folder)) {
                (Some(name), _) if is_completed(name.task) => (name.task, None),
                (_, Some(name)) => (name.task, Some(name.attempt)),
                _ => continue,
            };
            let (files, other_work) = match ignored_files_of(&main, &root, &options.control_files) {
                Ok(PlaceWork::OnlyIgnored(files)) => (kept_place(&root).map(|_| files), None),
                Ok(PlaceWork::Other(reason)) => (None, Some(reason)),
                Err(error) => (None, Some(error.to_string())),
            };
            kept.push(KeptWorktree { task, attempt, folder, files, other_work });
        }
        kept.sort_by(|a, b| (a.task, &a.folder).cmp(&(b.task, &b.folder)));
        Ok(kept)
    }

    /// Removes a worktree that only keeps ignored files. Blocks.
    ///
    /// # Errors
    /// The worktree has other work, `workspace` is not in a repository, or the system fails.
    pub fn remove_kept_worktree(
        workspace: &Path,
        options: &KeptOptions,
        kept: &KeptWorktree,
    ) -> Result<(), RepositoryError> {
        let main = find_checkout(workspace, options.drivers.clone())?;
        let root = workspace.join(&kept.folder);
        match ignored_files_of(&main, &root, &options.control_files)? {
            PlaceWork::OnlyIgnored(_) => main.remove_place(&root),
            PlaceWork::Other(reason) => {
                Err(RepositoryError::Failed { action: format!("remove {}", kept.folder), reason })
            }
        }
    }

    /// The branches of all teams that keep the work of failed attempts. Blocks.
    ///
    /// # Errors
    /// `workspace` is not in a repository, or git fails.
    pub fn kept_attempts(workspace: &Path) -> Result<Vec<KeptAttempt>, RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        let pattern = format!("refs/heads/{TASK_BRANCHES}/");
        let attempt_branch =
            |(name, commit): (String, String)| Some((AttemptBranch::of_branch(&BranchName::of_ref(&name)?)?, commit));
        let mut kept: Vec<_> = main.refs(&[pattern])?.into_iter().filter_map(attempt_branch).collect();
        kept.sort();
        let attempt = |(name, commit): (AttemptBranch, String)| {
            let branch = name.branch();
            KeptAttempt { task: name.task, attempt: name.attempt, branch, commit }
        };
        Ok(kept.into_iter().map(attempt).collect())
    }

    /// Removes a branch that keeps a failed attempt's work, unless it moved or is checked out. Blocks.
    ///
    /// # Errors
    /// The branch is checked out, or git fails.
    pub fn remove_kept_attempt(workspace: &Path, kept: &KeptAttempt) -> Result<(), RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        let name = kept.branch.full();
        let place = main.git(["for-each-ref", "--format=%(worktreepath)", &name]).ok()?.line();
        if !place.is_empty() {
            let reason = format!("it is checked out in {place}");
            return Err(RepositoryError::Failed { action: format!("remove the branch {}", kept.branch), reason });
        }
        main.git(["update-ref", "--no-deref", "-d", &name, &kept.commit]).ok().map(drop)
    }

    /// The leftovers of all teams' tasks that are not on the board: `is_on_board` returns `false` for them. Blocks.
    ///
    /// # Errors
    /// `workspace` is not in a repository, or git fails.
    pub fn leftovers(workspace: &Path, is_on_board: impl Fn(TaskId) -> bool) -> Result<Vec<Leftover>, RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        let mut leftovers: BTreeMap<WorktreeName, Leftover> = BTreeMap::new();
        let mut record = |name: WorktreeName, set: &dyn Fn(&mut Leftover)| {
            if !is_on_board(name.task) {
                let new = Leftover { task: name.task, folder: None, branch: None };
                set(leftovers.entry(name).or_insert(new));
            }
        };
        for entry in files::entries(&workspace.join(WORKTREES_FOLDER)) {
            let folder = format!("{WORKTREES_FOLDER}/{}", entry.file_name().unwrap_or_default().to_string_lossy());
            if let Some(name) = WorktreeName::of_folder(&folder) {
                record(name, &|leftover| leftover.folder = Some(folder.clone()));
            }
        }
        let pattern = format!("refs/heads/{TASK_BRANCHES}/");
        for (name, _) in main.refs(&[pattern])? {
            if let Some(branch) = BranchName::of_ref(&name)
                && let Some(name) = WorktreeName::of_branch(&branch)
            {
                record(name, &|leftover| leftover.branch = Some(branch.clone()));
            }
        }
        Ok(leftovers.into_values().collect())
    }
}

/// The work of a task in its place that a removal would lose.
fn ignored_files_of(
    main: &RepoPath,
    root: &Path,
    control_files: &[PathBuf],
) -> Result<PlaceWork<FileList>, RepositoryError> {
    let Some(at) = main.place_at(root).map(RepoPath::confined) else {
        return Ok(PlaceWork::Other("it has no git folder of its own".to_owned()));
    };
    Ok(match unsaved_work(main, &at)? {
        PlaceWork::OnlyIgnored(ignored) => {
            let keep = kept_place(root).map(|kept| kept.keep).unwrap_or_default();
            let is_ours = |path: &Path| is_control_file(control_files, path);
            PlaceWork::OnlyIgnored(summary(&IgnoredWalk::new(main, &at, &keep).task_files(ignored, is_ours)?))
        }
        PlaceWork::Other(reason) => PlaceWork::Other(reason),
    })
}
