//! The names of a team's branch and worktree, and of those of its tasks.

use super::branch_name::BranchName;
use crate::domain::task::TaskId;
use crate::domain::team::name::Name;

/// The folder of all worktrees, relative to the workspace.
pub const WORKTREES_FOLDER: &str = ".worktrees";
/// The first part of all team branches.
pub const TEAM_BRANCHES: &str = "brigade";
/// The first part of all task branches. It is not the one of team branches: git cannot hold `brigade/web` and `brigade/web/task-7`.
pub const TASK_BRANCHES: &str = "brigade-tasks";

/// Returns the branch that receives a team's verified merges by default: `brigade/web`.
pub fn team_branch(team: &str) -> BranchName {
    BranchName::new(format!("{TEAM_BRANCHES}/{team}"))
}

/// Returns the folder of a team branch's worktree, relative to the workspace: `.worktrees/web`.
pub fn team_folder(team: &str) -> String {
    format!("{WORKTREES_FOLDER}/{team}")
}

/// Returns the folder where a team's merges are verified, relative to the workspace: `.worktrees/web.merge`. No name of a team has a dot.
pub fn merge_folder(team: &str) -> String {
    format!("{WORKTREES_FOLDER}/{team}.merge")
}

/// The name of a task's worktree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorktreeName {
    /// The task.
    pub task: TaskId,
    /// The team.
    pub team: String,
    /// 1, or more if worktrees with lower numbers could not be used.
    pub number: u32,
}

impl WorktreeName {
    /// Returns the folder, relative to the workspace: `.worktrees/web-task-7`, or `.worktrees/web-task-7-2`.
    pub fn folder(&self) -> String {
        format!("{WORKTREES_FOLDER}/{}-task-{}", self.team, self.end())
    }

    /// Returns the branch: `brigade-tasks/web/task-7`, or `brigade-tasks/web/task-7-2`.
    pub fn branch(&self) -> BranchName {
        BranchName::new(format!("{TASK_BRANCHES}/{}/task-{}", self.team, self.end()))
    }

    /// Returns the name of a folder of exactly this form.
    pub fn of_folder(folder: &str) -> Option<Self> {
        let name = folder.strip_prefix(WORKTREES_FOLDER)?.strip_prefix('/')?;
        let (team, end) = name.rsplit_once("-task-")?;
        Self::parse(team, end).filter(|name| name.folder() == folder)
    }

    /// Returns the name of a branch of exactly this form.
    pub fn of_branch(branch: &BranchName) -> Option<Self> {
        let name = branch.short().strip_prefix(TASK_BRANCHES)?.strip_prefix('/')?;
        let (team, end) = name.rsplit_once("/task-")?;
        Self::parse(team, end).filter(|name| name.branch() == *branch)
    }

    fn parse(team: &str, end: &str) -> Option<Self> {
        let (task, number) = match end.split_once('-') {
            Some((task, number)) => (task, number.parse().ok().filter(|number| *number > 1)?),
            None => (end, 1),
        };
        Some(Self { task: TaskId(task.parse().ok()?), team: Name::new(team).ok()?.to_string(), number })
    }

    fn end(&self) -> String {
        let task = self.task.0;
        if self.number > 1 { format!("{task}-{}", self.number) } else { task.to_string() }
    }
}

/// The name of a branch that keeps the work of a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptBranch {
    /// The team.
    pub team: String,
    /// The task.
    pub task: TaskId,
    /// The failed attempt.
    pub attempt: u32,
    /// 1, or more if branches with lower numbers keep other work.
    pub number: u32,
}

impl AttemptBranch {
    /// Returns the branch: `brigade-tasks/web/task-7-attempt-2`, or `brigade-tasks/web/task-7-attempt-2-3`.
    pub fn branch(&self) -> BranchName {
        let number = if self.number > 1 { format!("-{}", self.number) } else { String::new() };
        BranchName::new(format!("{TASK_BRANCHES}/{}/task-{}-attempt-{}{number}", self.team, self.task.0, self.attempt))
    }

    /// Returns the folder that keeps ignored files of the attempt, relative to the workspace: `.worktrees/web-task-7-attempt-2`.
    pub fn folder(&self) -> String {
        let number = if self.number > 1 { format!("-{}", self.number) } else { String::new() };
        format!("{WORKTREES_FOLDER}/{}-task-{}-attempt-{}{number}", self.team, self.task.0, self.attempt)
    }

    /// Returns the name of a folder of exactly this form.
    pub fn of_folder(folder: &str) -> Option<Self> {
        let (team, end) = folder.strip_prefix(WORKTREES_FOLDER)?.strip_prefix('/')?.rsplit_once("-task-")?;
        Self::parse(team, end).filter(|name| name.folder() == folder)
    }

    /// Returns the name of a branch of exactly this form.
    pub fn of_branch(branch: &BranchName) -> Option<Self> {
        let (team, end) = branch.short().strip_prefix(TASK_BRANCHES)?.strip_prefix('/')?.rsplit_once("/task-")?;
        Self::parse(team, end).filter(|name| name.branch() == *branch)
    }

    fn parse(team: &str, end: &str) -> Option<Self> {
        let (task, end) = end.split_once("-attempt-")?;
        let (attempt, number) = end.split_once('-').unwrap_or((end, "1"));
        Some(Self {
            team: Name::new(team).ok()?.to_string(),
            task: TaskId(task.parse().ok()?),
            attempt: attempt.parse().ok()?,
            number: number.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn foreign_folder_is_no_worktree_name() {
        for folder in [
            "web-task-7",
            ".worktrees/web",
            ".worktrees/web-task-x",
            ".worktrees/a-task-7-1",
            ".worktrees/a-task-07",
            ".worktrees/a-task-+7",
            ".worktrees/x;id;-task-7",
        ] {
            assert_eq!(WorktreeName::of_folder(folder), None, "{folder}");
        }
        assert_eq!(WorktreeName::of_branch(&BranchName::new("main")), None);
        assert_eq!(WorktreeName::of_branch(&BranchName::new("brigade/web/task-7")), None);
        assert_eq!(
            WorktreeName::of_branch(&BranchName::new("brigade-tasks/web/task-7-attempt-2")),
            None,
            "it belongs to no worktree"
        );
    }

    proptest! {
        #[test]
        fn worktree_name_survives_folder_and_branch(task in 1_u64.., team in "[a-z][a-z0-9-]{0,20}", number in 1_u32..) {
            let name = WorktreeName { task: TaskId(task), team, number };
            prop_assert_eq!(WorktreeName::of_folder(&name.folder()), Some(name.clone()));
            prop_assert_eq!(AttemptBranch::of_branch(&name.branch()), None);
            prop_assert_eq!(WorktreeName::of_branch(&name.branch()), Some(name));
        }

        #[test]
        fn attempt_branch_name_round_trips(task in 1_u64.., team in "[a-z][a-z0-9-]{0,20}", attempt in 1_u32.., number in 1_u32..) {
            let name = AttemptBranch { team, task: TaskId(task), attempt, number };
            prop_assert_eq!(WorktreeName::of_folder(&name.folder()), None);
            prop_assert_eq!(AttemptBranch::of_folder(&name.folder()), Some(name.clone()));
            prop_assert_eq!(AttemptBranch::of_branch(&name.branch()), Some(name));
        }
    }
}
