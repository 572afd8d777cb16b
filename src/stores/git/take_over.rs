//! Takes the team branch over into the person's branch, when the person asks for it.

use std::path::Path;

use super::branch::recorded_base;
use super::command::RepoPath;
use super::commits::list_files;
use super::merge_journal::CheckoutMove;
use super::merges::{MergedTree, merge_trees};
use super::opening::open_checked;
use super::person_merge::PersonMerge;
use super::places::is_marked;
use super::team_branch::{check_person_branch, checked_target, find_lost_merges};
use super::{DriverOptions, GitRepository};
use crate::domain::branch_name::BranchName;
use crate::domain::dropped_lines::short_commit;
use crate::domain::worktree_name::{team_branch, team_folder};
use crate::ports::{RecordedMerge, RepositoryError};

/// The state of a team branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamBranchStatus {
    /// The team branch.
    pub branch: BranchName,
    /// Its name in a command: the full one if the short one is ambiguous here.
    pub name_in_commands: String,
    /// The number of its commits that the person's checkout lacks. 0 if it does not exist yet.
    pub commits_ahead: usize,
    /// Its problems: merges that it lacks, and a worktree with other files.
    pub problems: Vec<TeamBranchProblem>,
}

/// A problem with a team branch or its worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamBranchProblem {
    /// The reason.
    pub reason: String,
    /// The next step, with the command to run.
    pub hint: String,
}

/// The result of a merge into the person's branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeOver {
    /// The person's branch.
    pub into: BranchName,
    /// Its commit before the merge.
    pub before: String,
    /// Its commit after the merge; the same if it already had everything.
    pub after: String,
}

impl GitRepository {
    /// The state of the branch that a team's merges go into, if the team were launched in `workspace`. It should have the merges
    /// `recorded`. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn team_branch_status(
        workspace: &Path,
        team: &str,
        merge_into: Option<&BranchName>,
        recorded: &[RecordedMerge],
    ) -> Result<TeamBranchStatus, RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        let branch = checked_target(&main, team, merge_into)?;
        let commits_ahead = match main.branch_commit(&branch)? {
            Some(tip) => {
                let ahead = main.git(["rev-list", "--count", &tip, "^HEAD", "--"]).run()?;
                if ahead.code == 0 { ahead.line().parse().unwrap_or(0) } else { 0 }
            }
            None => 0,
        };
        let lost = find_lost_merges(&main, team, &branch, recorded)?;
        let problems = lost.into_iter().chain(worktree_problem(&main, &team_folder(team), &branch)?).collect();
        let name_in_commands = main.name_in_commands(&branch)?;
        Ok(TeamBranchStatus { branch, name_in_commands, commits_ahead, problems })
    }

    /// Checks that a launch can merge the person's branch into the team branch. Git stores the merged files as unreferenced objects. It
    /// blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`], a rebase is unfinished, or the branches conflict.
    pub fn check_launch(workspace: &Path, team: &str) -> Result<(), RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        let branch = team_branch(team);
        check_person_branch(&main, &branch, main.checked_out_branch()?.as_ref())?;
        let tips = (main.checked_branch_commit(&branch)?, main.checked_head()?);
        let (Some(ours), Some(theirs)) = tips else { return Ok(()) };
        match merge_trees(&main, &ours, &theirs)? {
            MergedTree::Conflict { files, .. } => Err(RepositoryError::unusable_until(
                format!("cannot merge your branch into {branch}: conflict in {}", list_files(&files)),
                format!("`git merge {}`, and resolve the conflict", main.name_in_commands(&branch)?),
            )),
            MergedTree::Clean(_) | MergedTree::Failed(_) => Ok(()),
        }
    }

    /// Merges `branch`, which the merges of `team` go into, into the branch of the person's checkout, as the person: a fast-forward, or a
    /// merge commit. It runs no hook.
    /// Filters and merge drivers run in the sandbox of `drivers`. If it fails, nothing is changed. After a kill, the next call finishes
    /// or undoes the merge. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`], or the merge is refused. The error names the files and the next step.
    pub fn take_over(
        workspace: &Path,
        team: &str,
        branch: &BranchName,
        drivers: DriverOptions,
    ) -> Result<TakeOver, RepositoryError> {
        let main = open_checked(workspace, drivers)?;
        let merge = PersonMerge::open(&main, branch)?;
        let finished = merge.settle_killed()?;
        take_commits_of_person(&main, team, branch)?;
        let Some(tip) = main.checked_branch_commit(branch)? else {
            return Err(merge.refused("there is no such branch", "`brigade run` creates it"));
        };
        if let Some(operation) = main.unfinished_operation() {
            let hint = format!("`git {operation} --continue`, or `git {operation} --abort`");
            return Err(merge.refused(format!("a {operation} is unfinished in your checkout"), hint));
        }
        let Some(into) = main.checked_out_branch()? else {
            return Err(merge.refused("no branch is checked out (detached HEAD)", "`git switch BRANCH`"));
        };
        if into == *branch {
            return Err(merge.refused("it is checked out here", "`git switch BRANCH`"));
        }
        let head = main.head()?;
        // For the person, a merge that is finished now is part of this one.
        let before = finished.map_or_else(|| head.clone(), |finished| finished.before);
        if main.is_ancestor(&tip, &head)? {
            return Ok(TakeOver { into, before, after: head });
        }
        let after = merge.create_commit(&into, &head, &tip)?;
        merge.apply(&CheckoutMove::new(&into, [head, after.clone()]))?;
        Ok(TakeOver { into, before, after })
    }
}

/// Moves a team branch to what the person committed on it in the team worktree. Commits that do not continue the branch wait for the next
/// launch, which merges them.
fn take_commits_of_person(main: &RepoPath, team: &str, branch: &BranchName) -> Result<(), RepositoryError> {
    let folder = main.work_tree.join(team_folder(team));
    let (Some(at), Some(tip)) = (main.place_at(&folder).filter(is_marked), main.branch_commit(branch)?) else {
        return Ok(());
    };
    if at.checked_out_branch()?.as_ref() != Some(branch) {
        return Ok(());
    }
    let head = at.head()?;
    let is_new = head != tip && recorded_base(&folder).as_ref() != Some(&head);
    if is_new && at.is_ancestor(&tip, &head)? && main.fetch_from(&at, &head)?.is_ok() {
        let name = branch.full();
        main.git(["update-ref", "-m", "brigade: commits of the person", &name, &head, &tip]).ok()?;
    }
    Ok(())
}

fn worktree_problem(
    main: &RepoPath,
    folder: &str,
    branch: &BranchName,
) -> Result<Option<TeamBranchProblem>, RepositoryError> {
    let Some(at) = main.place_at(&main.work_tree.join(folder)).filter(is_marked) else { return Ok(None) };
    // Without the branch, the next launch creates it.
    let Some(target) = main.checked_branch_commit(branch)? else { return Ok(None) };
    let head = at.head()?;
    if recorded_base(&at.work_tree).as_ref() != Some(&head) && !at.is_ancestor(&head, &target)? {
        return Ok(Some(TeamBranchProblem {
            reason: format!("the commit {} in {folder} is not on {branch}", short_commit(&head)),
            hint: format!("the next launch merges it into {branch}"),
        }));
    }
    Ok((head != target).then(|| TeamBranchProblem {
        reason: format!("{folder} has the files of {}, not those of {branch}", short_commit(&head)),
        hint: format!("`git -C {folder} status` shows changes; commit or undo them, and launch the team again"),
    }))
}
