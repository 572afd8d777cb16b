//! The names of version 0.1.0. Its task branches were `brigade/<team>/task-<id>`, which git cannot hold next to `brigade/<team>`.

use std::fs;

use super::team_branch::unusable_name;
use super::worktrees::failed;
use super::{RepositoryInner, bounded_read};
use crate::domain::worktree_name::{TEAM_BRANCHES, WorktreeName};
use crate::ports::RepositoryError;

impl RepositoryInner {
    /// Renames the task branches of version 0.1.0, also where a worktree has one checked out. After a kill the next call continues.
    pub(super) fn rename_former_branches(&self) -> Result<(), RepositoryError> {
        let pattern = format!("refs/heads/{TEAM_BRANCHES}/{}/", self.team);
        let found = self.main.git(["for-each-ref", "--format=%(objectname) %(refname)", &pattern]).ok()?.line();
        let mut orders = String::new();
        for (commit, name) in found.lines().filter_map(|line| line.split_once(' ')) {
            let branch = name.trim_start_matches("refs/heads/");
            let Some(new) = WorktreeName::of_former_branch(branch).map(|name| name.branch()) else {
                return Err(unusable_name(&format!("{TEAM_BRANCHES}/{}", self.team), branch));
            };
            orders.push_str(&format!("option no-deref\ncreate refs/heads/{new} {commit}\n"));
            orders.push_str(&format!("option no-deref\ndelete {name} {commit}\n"));
        }
        if !orders.is_empty() {
            self.main.git(["update-ref", "--stdin"]).input(orders).ok()?;
        }
        self.rename_former_heads()
    }

    /// Puts the worktrees whose branch was renamed on the new name.
    fn rename_former_heads(&self) -> Result<(), RepositoryError> {
        let prefix = format!("ref: refs/heads/{TEAM_BRANCHES}/{}/", self.team);
        let linked = fs::read_dir(self.main.common_dir.join("worktrees")).into_iter().flatten().flatten();
        let git_dirs = linked.map(|entry| entry.path()).chain([self.main.git_dir.clone()]);
        for head in git_dirs.map(|git_dir| git_dir.join("HEAD")) {
            let Some(text) = bounded_read::text(&head).filter(|text| text.starts_with(&prefix)) else { continue };
            let branch = text.trim_end().trim_start_matches("ref: refs/heads/");
            if let Some(name) = WorktreeName::of_former_branch(branch) {
                let new = head.with_extension("new");
                fs::write(&new, format!("ref: refs/heads/{}\n", name.branch()))
                    .and_then(|()| fs::rename(&new, &head))
                    .map_err(|error| failed("write", &head, &error))?;
            }
        }
        Ok(())
    }
}
