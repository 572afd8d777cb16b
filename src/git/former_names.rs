//! The names of version 0.1.0. Its task branches were `brigade/<team>/task-<id>`, which git cannot hold next to `brigade/<team>`.

use super::files;
use super::team_branch::{TeamBranch, unusable_name};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::{TEAM_BRANCHES, WorktreeName};
use crate::ports::RepositoryError;

impl TeamBranch {
    /// Renames the task branches of version 0.1.0, also where a worktree has one checked out. After a kill the next call continues.
    pub(super) fn rename_former_branches(&self) -> Result<(), RepositoryError> {
        let pattern = format!("refs/heads/{TEAM_BRANCHES}/{}/", self.team);
        let mut ref_commands = String::new();
        for (name, commit) in self.main.refs(&[pattern])? {
            let Some(branch) = BranchName::of_ref(&name) else { continue };
            let Some(new) = WorktreeName::of_former_branch(&branch).map(|name| name.branch()) else {
                return Err(unusable_name(&format!("{TEAM_BRANCHES}/{}", self.team), branch.short()));
            };
            ref_commands.push_str(&format!("option no-deref\ncreate {} {commit}\n", new.full()));
            ref_commands.push_str(&format!("option no-deref\ndelete {name} {commit}\n"));
        }
        if !ref_commands.is_empty() {
            self.main.git(["update-ref", "--stdin"]).input(ref_commands).ok()?;
        }
        self.rename_former_heads()
    }

    /// Puts the worktrees whose branch was renamed on the new name.
    fn rename_former_heads(&self) -> Result<(), RepositoryError> {
        let prefix = format!("ref: refs/heads/{TEAM_BRANCHES}/{}/", self.team);
        let git_dirs = self.main.linked_git_dirs().chain([self.main.git_dir.clone()]);
        for head in git_dirs.map(|git_dir| git_dir.join("HEAD")) {
            let Some(text) = files::text(&head).filter(|text| text.starts_with(&prefix)) else { continue };
            let branch = text.trim_end().strip_prefix("ref: ").and_then(BranchName::of_ref);
            if let Some(name) = branch.and_then(|branch| WorktreeName::of_former_branch(&branch)) {
                files::replace(&head, &format!("ref: {}\n", name.branch().full()))?;
            }
        }
        Ok(())
    }
}
