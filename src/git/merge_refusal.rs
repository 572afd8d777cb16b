//! The reasons why `brigade merge` changes nothing. Each has the next step of its own.

use std::path::PathBuf;

use super::command::RepoPath;
use super::commits::list_files;
use super::lost_merges::LostMerges;
use super::take_over::TeamBranchProblem;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::team_branch;
use crate::domain::team::next::{Launch, Next, OrderForm};
use crate::ports::RepositoryError;

/// The reason why a branch is not merged into that of the person's checkout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MergeRefusal {
    #[error("another merge of a team runs in this checkout")]
    Running,
    #[error("there is no such branch")]
    NoBranch { next: Vec<Next> },
    #[error("there is no such branch. Your branch has its work already, in another form")]
    BranchTaken { next: Vec<Next> },
    #[error("there is no such branch, and {merges}")]
    BranchLost { merges: String, next: Vec<Next> },
    #[error("your branch `{0}` has no commit")]
    Unborn(String),
    #[error("a git {0} is unfinished in your checkout")]
    Unfinished(&'static str),
    #[error("a git bisect is unfinished in your checkout")]
    Bisecting,
    #[error("no branch is checked out (detached HEAD)")]
    DetachedHead,
    #[error("it is checked out here")]
    CheckedOutHere,
    #[error("it conflicts with {into} in {}. Nothing was changed", list_files(files))]
    Conflict { into: BranchName, files: Vec<PathBuf> },
    #[error("{0} has no commit that it lacks, so it cannot have its work in another form")]
    NothingOfPerson(String),
    #[error("there is work of yours in {folder}: {work}")]
    WorkInTeamWorktree { folder: String, work: String },
    #[error("it is not a fast-forward, and your setting merge.ff allows nothing else")]
    NotFastForward,
    #[error("git does not know your name for the merge commit: {0}")]
    NoIdentity(String),
    #[error("cannot sign the merge: {0}")]
    NotSigned(String),
    #[error("another program has locked {}", .0.display())]
    Locked(PathBuf),
    #[error("your index has conflicts in {}", list_files(.0))]
    UnmergedIndex(Vec<PathBuf>),
    #[error("git cannot read your index: {reason}")]
    UnreadableIndex { index: PathBuf, reason: String },
    #[error("it would overwrite untracked or ignored files: {}", list_files(.0))]
    FilesInTheWay(Vec<PathBuf>),
    #[error("it would overwrite uncommitted changes: {}", list_files(.0))]
    UncommittedChanges(Vec<PathBuf>),
    /// Git refuses to write the files, and has written none.
    #[error("{0}")]
    Overwrites(String),
    #[error("git cannot write the files: {0}")]
    NotWritten(String),
    /// Git refuses, for this reason.
    #[error("{0}")]
    Git(String),
    #[error("your branch was moved meanwhile")]
    Moved,
    #[error("{0}. It is neither finished nor undone")]
    Unsettled(String),
}

impl MergeRefusal {
    /// The refusal for `branch`, the branch of `team`, which does not exist. `lost` are the merges that were on it.
    pub(super) fn of_missing_branch(lost: LostMerges, branch: &BranchName, team: &str) -> Self {
        // A launch creates only the team's own branch.
        let next = if *branch == team_branch(team) {
            vec!["a launch creates it from your branch".into(), Launch::Run { team: Some(team.to_owned()) }.into()]
        } else {
            vec![format!("`git branch {branch}` creates it from yours, or remove merge_into").into()]
        };
        match lost.problem {
            Some(TeamBranchProblem { reason: merges, next }) => Self::BranchLost { merges, next },
            None if !lost.taken.is_empty() => Self::BranchTaken { next },
            None => Self::NoBranch { next },
        }
    }

    /// The error for a merge of `branch`, the branch of `team`.
    pub(super) fn error(&self, main: &RepoPath, branch: &BranchName, team: &str) -> RepositoryError {
        self.error_of("merge", main, branch, team)
    }

    /// The error for another action on the branch.
    pub(super) fn error_of(&self, action: &str, main: &RepoPath, branch: &BranchName, team: &str) -> RepositoryError {
        match main.name_in_commands(branch) {
            Ok(name) => RepositoryError::Unusable {
                reason: format!("cannot {action} {branch}: {self}"),
                next: self.next(&name, team),
            },
            Err(error) => error,
        }
    }

    /// The next steps. `branch` is its name in commands.
    fn next(&self, branch: &str, team: &str) -> Vec<Next> {
        let words = match self {
            Self::Running => "wait until it has ended, then try again".to_owned(),
            Self::NoBranch { next } | Self::BranchTaken { next } | Self::BranchLost { next, .. } => {
                return next.clone();
            }
            Self::Unborn(_) | Self::DetachedHead | Self::CheckedOutHere => "`git switch BRANCH`".to_owned(),
            Self::Unfinished(operation) => format!("`git {operation} --continue`, or `git {operation} --abort`"),
            Self::Bisecting => "`git bisect reset`".to_owned(),
            Self::Conflict { .. } => {
                let merge = format!("`git merge {branch}`, resolve the conflicts, and commit");
                return vec![merge.into(), OrderForm::MergeTaken { team: team.to_owned() }.into()];
            }
            Self::NothingOfPerson(_) => return vec![OrderForm::Merge.into()],
            Self::WorkInTeamWorktree { folder, .. } => {
                format!("`git -C {folder} status` shows it. Commit it on a branch of yours, or undo it, then try again")
            }
            Self::NotFastForward => format!("`git -c merge.ff=true merge {branch}`"),
            Self::NoIdentity(_) => {
                "`git config --global user.name NAME` and `git config --global user.email ADDRESS`".to_owned()
            }
            Self::NotSigned(_) => format!("`git merge -S {branch}` in your terminal shows what your signing program needs"),
            Self::Locked(lock) => {
                format!("wait until it has ended. If no git runs, `rm {}`", lock.display())
            }
            Self::UnmergedIndex(_) => {
                "resolve them and `git add` the files, or `git restore --staged --worktree FILE` undoes them. Then try again".to_owned()
            }
            Self::UnreadableIndex { index, .. } => {
                let index = index.display();
                format!("if the file is damaged: `rm {index} && git reset` makes a new one, and keeps your files")
            }
            Self::FilesInTheWay(_) => "move the files, then try again".to_owned(),
            Self::UncommittedChanges(_) => "commit or `git stash` them, then try again".to_owned(),
            Self::Overwrites(_) => "commit, `git stash` or move the files, then try again".to_owned(),
            Self::NotWritten(_) => {
                "nothing was changed. Correct that, then try again".to_owned()
            }
            Self::Git(_) => format!("`git merge {branch}` shows what git reports"),
            Self::Moved => {
                "`git status` shows the files of this merge. Undo them, then try again".to_owned()
            }
            Self::Unsettled(_) => {
                "correct that, then try again, which finishes or undoes it".to_owned()
            }
        };
        vec![words.into()]
    }
}
