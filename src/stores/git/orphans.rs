//! Worktrees and branches of tasks that are no longer on the board. Only a user removes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{BRANCHES, DriverOptions, GitRepository, WORKTREES_FOLDER, find_checkout};
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
    pub branch: Option<String>,
}

impl GitRepository {
    /// The leftovers of all teams' tasks for which `is_there` returns `false`. It blocks.
    ///
    /// # Errors
    /// `workspace` is not in a repository, or git fails.
    pub fn leftovers(workspace: &Path, is_there: impl Fn(TaskId) -> bool) -> Result<Vec<Leftover>, RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        let mut leftovers: BTreeMap<(u64, String), Leftover> = BTreeMap::new();
        let mut record = |team: &str, end: &str, set: &mut dyn FnMut(&mut Leftover)| {
            let Some(task) = end.split('-').next().and_then(|id| id.parse().ok()) else { return };
            if !is_there(TaskId(task)) {
                let new = Leftover { task: TaskId(task), folder: None, branch: None };
                set(leftovers.entry((task, format!("{team}/{end}"))).or_insert(new));
            }
        };
        for entry in fs::read_dir(workspace.join(WORKTREES_FOLDER)).into_iter().flatten().flatten() {
            if let Some((team, end)) = entry.file_name().to_str().and_then(|name| name.rsplit_once("-task-")) {
                let folder = format!("{WORKTREES_FOLDER}/{team}-task-{end}");
                record(team, end, &mut |leftover| leftover.folder = Some(folder.clone()));
            }
        }
        let prefix = format!("refs/heads/{BRANCHES}/");
        let output = main.git(["for-each-ref", "--format=%(refname)", &prefix]).ok()?.line();
        for name in output.lines() {
            if let Some((team, end)) = name.strip_prefix(&prefix).and_then(|name| name.split_once("/task-")) {
                let branch = format!("{BRANCHES}/{team}/task-{end}");
                record(team, end, &mut |leftover| leftover.branch = Some(branch.clone()));
            }
        }
        Ok(leftovers.into_values().collect())
    }
}
