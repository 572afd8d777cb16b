//! What is left of tasks that are not on the board any more: their worktrees and branches, which only a person removes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{BRANCHES, DriverOptions, GitRepository, WORKTREES_FOLDER, find};
use crate::domain::task::TaskId;
use crate::ports::RepositoryError;

/// What is left of one attempt at a task that is gone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Leftover {
    /// The task.
    pub task: TaskId,
    /// Its worktree, relative to the workspace.
    pub folder: Option<String>,
    /// Its branch.
    pub branch: Option<String>,
}

impl GitRepository {
    /// What is left of tasks of which `is_there` says that they are gone, whichever team's they were. It blocks.
    ///
    /// # Errors
    /// `workspace` is no repository, or git says no.
    pub fn leftovers(workspace: &Path, is_there: impl Fn(TaskId) -> bool) -> Result<Vec<Leftover>, RepositoryError> {
        let main = find(workspace, DriverOptions::default())?;
        let mut found: BTreeMap<(u64, String), Leftover> = BTreeMap::new();
        let mut note = |team: &str, end: &str, place: &mut dyn FnMut(&mut Leftover)| {
            let Some(task) = end.split('-').next().and_then(|id| id.parse().ok()) else { return };
            if !is_there(TaskId(task)) {
                let new = Leftover { task: TaskId(task), folder: None, branch: None };
                place(found.entry((task, format!("{team}/{end}"))).or_insert(new));
            }
        };
        for entry in fs::read_dir(workspace.join(WORKTREES_FOLDER)).into_iter().flatten().flatten() {
            if let Some((team, end)) = entry.file_name().to_str().and_then(|name| name.rsplit_once("-task-")) {
                let folder = format!("{WORKTREES_FOLDER}/{team}-task-{end}");
                note(team, end, &mut |left| left.folder = Some(folder.clone()));
            }
        }
        let prefix = format!("refs/heads/{BRANCHES}/");
        let said = main.git(["for-each-ref", "--format=%(refname)", &prefix]).ok()?.line();
        for name in said.lines() {
            if let Some((team, end)) = name.strip_prefix(&prefix).and_then(|name| name.split_once("/task-")) {
                let branch = format!("{BRANCHES}/{team}/task-{end}");
                note(team, end, &mut |left| left.branch = Some(branch.clone()));
            }
        }
        Ok(found.into_values().collect())
    }
}
