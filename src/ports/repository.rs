//! The repository a team with isolation works on: a worktree for each task, and the merges of what is done there.

use std::path::PathBuf;

use async_trait::async_trait;

use crate::domain::access::PathRule;
use crate::domain::task::TaskId;

/// Why the repository did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepositoryError {
    /// There is no `git`, or none that is new enough.
    #[error("{0}")]
    NoGit(String),
    /// The workspace cannot be used with worktrees.
    #[error("{0}")]
    Unusable(String),
    /// Something failed; it may come out otherwise the next time.
    #[error("cannot {action}: {reason}")]
    Failed {
        /// What was tried.
        action: String,
        /// What was said.
        reason: String,
    },
}

impl RepositoryError {
    /// Whether it is about the repository or the machine, so that no other task would fare better.
    #[must_use]
    pub fn is_general(&self) -> bool {
        match self {
            Self::NoGit(_) | Self::Unusable(_) => true,
            // As the system has it, ENOSPC and EDQUOT; git's messages end with it as well.
            Self::Failed { reason, .. } => {
                ["No space left on device", "Disk quota exceeded"].iter().any(|full| reason.contains(full))
            }
        }
    }
}

/// A task in the hands of a teammate: what its branch, its commits and its worktree's state are named by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The team.
    pub team: String,
    /// The task.
    pub task: TaskId,
    /// Its subject.
    pub subject: String,
    /// The attempt.
    pub attempt: u32,
    /// Who has it.
    pub teammate: String,
    /// The worker whose life carries the claim.
    pub worker: String,
}

/// What the addresses end with that teammates' commits are signed with.
pub const TEAMMATES_DOMAIN: &str = "@brigade.invalid";

impl Assignment {
    /// Whose a worktree is: `<team>/task-<id>`.
    #[must_use]
    pub fn identifier(&self) -> String {
        format!("{}/task-{}", self.team, self.task.0)
    }

    /// The name and the address its commits are signed with.
    #[must_use]
    pub fn signature(&self) -> [String; 2] {
        [format!("{} ({})", self.teammate, self.team), format!("{}{TEAMMATES_DOMAIN}", self.teammate)]
    }
}

/// A worktree that is ready for its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worktree {
    /// Its folder, absolute.
    pub root: PathBuf,
    /// Its folder, relative to the workspace, as a task's file names it.
    pub name: String,
    /// Its branch.
    pub branch: String,
    /// The branch that is merged into.
    pub into: String,
    /// What an earlier attempt left: commits, and files that are not committed.
    pub left: Option<(usize, usize)>,
    /// What people should know of how it came to be.
    pub warnings: Vec<String>,
}

/// What became of the wish for a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provision {
    /// It is there.
    Ready(Worktree),
    /// The task's work was merged by an attempt that was ended before it could say so.
    Merged {
        /// The merge.
        commit: String,
        /// What the attempt said it did.
        summary: String,
        /// Its worktree, where it is still there.
        worktree: Worktree,
    },
}

/// A merge that is made, and nowhere to be seen yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The commit the branch was at.
    pub onto: String,
    /// The merge.
    pub commit: String,
}

/// What became of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeTry {
    /// All of the branch is in already, as of this commit.
    Nothing(String),
    /// It cannot be merged; the text says why, for who can mend it.
    Refused(String),
    /// It is made.
    Made(Merge),
}

/// What became of the wish to have a merge seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publish {
    /// It is in. Where the person's checkout could not follow, the text says why.
    Done(Option<String>),
    /// Somebody else moved the branch meanwhile: merge anew.
    Moved,
}

/// The repository of a workspace. Its calls run to their end once begun, also when nobody waits any more.
///
/// After a kill at any point the branch that is merged into is as before or as after a merge, which is whole; what was merged and not
/// said is found again by [`Repository::provision`]; a worktree is there with its state, or made by the next call.
#[async_trait]
pub trait Repository: Send + Sync {
    /// Takes up what an earlier process left in the middle; of tasks that are completed nothing is to be kept. Returns what people
    /// should know.
    async fn take_up(&self, completed: Vec<Assignment>) -> Result<Vec<String>, RepositoryError>;

    /// Makes the worktree of a task, or finds the one that an earlier attempt left.
    async fn provision(&self, assignment: &Assignment) -> Result<Provision, RepositoryError>;

    /// Commits what is not committed in the worktree, and names the task in all commits of its branch. The inner error is for who can
    /// mend it.
    async fn commit(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
    ) -> Result<Result<String, String>, RepositoryError>;

    /// Makes the merge of a commit of the worktree's branch, without anybody seeing it. What the branch got since is not in it.
    async fn merge(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
        commit: &str,
    ) -> Result<MergeTry, RepositoryError>;

    /// A folder with what the merge comes to. There is one; the next call changes it.
    async fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError>;

    /// Moves the branch to the merge, and the person's checkout with it where that loses nothing.
    async fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<Publish, RepositoryError>;

    /// The task is completed: forgets its merge, and removes its worktree and branch where they hold nothing more. Says why it is left
    /// where it does.
    async fn clear(&self, worktree: &Worktree, assignment: &Assignment) -> Result<Option<String>, RepositoryError>;

    /// Rules for the paths of commands in this worktree, or of a member without a task.
    fn boundaries(&self, worktree: Option<&Worktree>) -> Vec<PathRule>;
}
