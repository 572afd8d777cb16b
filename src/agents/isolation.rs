//! Isolation: what the members of a team that works in worktrees share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::domain::agent::access::PathRule;
use crate::domain::task::TaskId;
use crate::ports::{CommandPlace, Repository, TeamWorktree};
use crate::service::merge::MergeQueue;

/// The worktrees of a team with isolation.
#[derive(Clone)]
pub struct WorktreeService {
    /// The repository.
    pub repository: Arc<dyn Repository>,
    /// The worktree of the team branch.
    pub team_worktree: TeamWorktree,
    /// The first port of the team worktree.
    pub team_port_base: u16,
    /// The queue of the team's merges.
    pub merge_queue: Arc<MergeQueue>,
    /// The task of the last failure to create a worktree; `None` after a success.
    pub last_failed_task: Arc<Mutex<Option<TaskId>>>,
    /// True if the last worktree could not be set up.
    pub is_setup_failing: Arc<AtomicBool>,
}

impl WorktreeService {
    /// Returns the folder where commands in this place run.
    pub(super) fn root_of<'a>(&'a self, place: CommandPlace<'a>) -> &'a Path {
        match place {
            CommandPlace::Task(worktree) => &worktree.root,
            CommandPlace::Lead | CommandPlace::NoTask => &self.team_worktree.root,
        }
    }

    /// Returns the path rules for commands in this place. `control_files` are relative to it.
    pub(crate) fn boundaries(&self, place: CommandPlace<'_>, control_files: &[PathBuf]) -> Vec<PathRule> {
        let mut boundaries = self.repository.boundaries(place);
        if place != CommandPlace::NoTask {
            // Links and missing files are not control files; no merge takes them.
            let is_file_or_folder =
                |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| !metadata.is_symlink());
            let root = self.root_of(place);
            let controls = control_files.iter().map(|control| root.join(control)).filter(is_file_or_folder);
            boundaries.extend(controls.map(PathRule::read_only));
        }
        boundaries
    }

    /// Records that no worktree could be created for this task. Returns true if the failure concerns this task only: since the last
    /// failure of another task, a worktree was created.
    pub(super) fn record_failure(&self, task: TaskId) -> bool {
        let before = self.last_failed_task.lock().replace(task);
        before.is_none_or(|before| before == task)
    }

    /// Records that a worktree was created.
    pub(super) fn record_success(&self) {
        *self.last_failed_task.lock() = None;
    }
}
