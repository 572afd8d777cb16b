//! The changes that a task made, in a team with worktrees.

use std::path::PathBuf;

use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::{WorktreeName, team_branch};
use crate::domain::task::{Task, TaskStatus};
use crate::git::{DriverOptions, GitRepository};

/// The changes of a task, or the work under a review. Each read calls git again.
#[derive(Debug, Clone)]
pub struct Changes {
    workspace: PathBuf,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    /// The work was merged in this commit.
    Merge(String),
    /// The work under review is this commit.
    Review { target: Option<BranchName>, commit: String },
    /// The state of a worktree, with changes that are not committed yet.
    Worktree { folder: String, target: Option<BranchName>, drivers: Box<DriverOptions> },
}

impl Changes {
    /// Returns the changes of the task's commit, else of its worktree. `None` if a completed task changed no file.
    ///
    /// # Errors
    /// The task has neither, or the workspace cannot be used.
    pub fn of_task(workspace: &Workspace, task: &Task) -> ApiResult<Option<Self>> {
        let folder = workspace.folder()?;
        let of = |source| Some(Self { workspace: folder.clone(), source });
        if let Some(merge) = task.completion().and_then(|result| result.commit.clone()) {
            return Ok(of(Source::Merge(merge)));
        }
        // Another program may have written any path.
        let worktree = task.worktree.as_deref().and_then(WorktreeName::of_folder);
        let worktree = worktree.map(|name| (name.folder(), name.team));
        let Some((worktree, team)) = worktree.filter(|(worktree, _)| folder.join(worktree).is_dir()) else {
            if task.worktree.is_some() && task.status == TaskStatus::Completed {
                return Ok(None);
            }
            return Err(Refusal::refused(format!("{} has no diff: it has no worktree and no commit", task.id))
                .next("only tasks of a team with `isolation = \"worktree\"` have one, once they are worked on"));
        };
        let drivers = Box::new(DriverOptions::of_launch(workspace.location.sandbox(None)?));
        // The config may have other teams by now.
        let target = target_branch(workspace, Some(&team));
        Ok(of(Source::Worktree { folder: worktree, target, drivers }))
    }

    /// Returns the changes up to `commit`, the work under review in this team.
    ///
    /// # Errors
    /// The workspace cannot be used.
    pub fn of_review(workspace: &Workspace, team: Option<&str>, commit: String) -> ApiResult<Self> {
        let target = target_branch(workspace, team);
        Ok(Self { workspace: workspace.folder()?, source: Source::Review { target, commit } })
    }

    /// Returns the patch as git prints it. It is empty if no file was changed.
    ///
    /// # Errors
    /// Git fails.
    pub fn patch(&self) -> ApiResult<String> {
        self.read(None)
    }

    /// Returns the changed lines per file as git prints them, at most `columns` wide. It is empty if no file was changed.
    ///
    /// # Errors
    /// Git fails.
    pub fn summary(&self, columns: usize) -> ApiResult<String> {
        self.read(Some(columns))
    }

    fn read(&self, summary_columns: Option<usize>) -> ApiResult<String> {
        let workspace = &self.workspace;
        Ok(match &self.source {
            Source::Merge(commit) => GitRepository::merge_diff(workspace, commit, summary_columns)?,
            Source::Review { target, commit } => {
                GitRepository::review_diff(workspace, target.as_ref(), commit, summary_columns)?
            }
            Source::Worktree { folder, target, drivers } => {
                GitRepository::worktree_diff(workspace, folder, target.as_ref(), summary_columns, (**drivers).clone())?
            }
        })
    }

    /// Returns the files of the worktree that git does not track yet.
    ///
    /// # Errors
    /// Git fails.
    pub fn new_files(&self) -> ApiResult<Vec<String>> {
        match &self.source {
            Source::Worktree { folder, drivers, .. } => {
                Ok(GitRepository::untracked_files(&self.workspace, folder, (**drivers).clone())?)
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// The branch that the work of the team, or of the config's only team, goes into.
fn target_branch(workspace: &Workspace, team: Option<&str>) -> Option<BranchName> {
    match workspace.location.team_if_valid(team) {
        Some(spec) => Some(spec.target_branch()),
        None => team.map(team_branch),
    }
}
