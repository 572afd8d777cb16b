//! Takes the team branch over into the person's branch, when the person asks for it.

use std::path::{Path, PathBuf};

use super::branch::recorded_base;
use super::command::{RepoPath, path_of};
use super::commits::list_files;
use super::fetching::Fetch;
use super::lost_merges::find_lost_merges;
use super::merge_journal::CheckoutMove;
use super::merge_refusal::MergeRefusal;
use super::merges::{MergedTree, merge_trees};
use super::opening::{find_checkout, open_checked};
use super::person_merge::PersonMerge;
use super::places::is_marked;
use super::team_branch::{TeamBranch, check_person_branch, checked_target, resolve_steps};
use super::{DriverOptions, GitRepository};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::worktree_name::{team_branch, team_folder};
use crate::domain::log::event::Notice;
use crate::domain::task::TaskId;
use crate::domain::team::next::{Next, OrderForm};
use crate::ports::{Durability, RecordedMerge, RepositoryError};

/// The state of a team branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamBranchStatus {
    /// The team branch.
    pub branch: BranchName,
    /// Its name in a command: the full one if the short one is ambiguous here.
    pub name_in_commands: String,
    /// `true` if the person's git signs commits.
    pub signs_commits: bool,
    /// The number of its commits that the person's checkout lacks. 0 if it does not exist yet.
    pub commits_ahead: usize,
    /// Its problems: merges that it lacks, and a worktree with other files.
    pub problems: Vec<TeamBranchProblem>,
}

impl TeamBranchStatus {
    /// The steps that take the work over and end the problems.
    pub fn next(&self) -> Vec<Next> {
        let take_over = (self.commits_ahead > 0).then(|| OrderForm::Merge.into());
        take_over.into_iter().chain(self.problems.iter().flat_map(|problem| problem.next.clone())).collect()
    }
}

/// A problem with a team branch or its worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamBranchProblem {
    /// The reason.
    pub reason: String,
    /// The next steps.
    pub next: Vec<Next>,
}

impl From<TeamBranchProblem> for Notice {
    fn from(TeamBranchProblem { reason, next }: TeamBranchProblem) -> Self {
        Self::Warning { text: reason, next }
    }
}

/// The result of a merge into the person's branch.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TakeOver {
    /// The person's branch.
    pub into: BranchName,
    /// Its commit before the merge.
    pub before: String,
    /// Its commit after the merge; the same if it already had everything.
    pub after: String,
    /// `true` if it already had everything, in another form.
    #[serde(rename = "taken")]
    pub is_taken: bool,
    /// The number of its new commits without a signature, if the person's git signs commits.
    pub unsigned_commits: usize,
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
        let commits_ahead = commits_ahead(&main, &branch)?;
        let lost = find_lost_merges(&main, team, &branch, recorded)?;
        let problems = lost.problem.into_iter().chain(worktree_problem(&main, &team_folder(team), &branch)?).collect();
        let name_in_commands = main.name_in_commands(&branch)?;
        let signs_commits = main.settings.signs_commits()?;
        Ok(TeamBranchStatus { branch, name_in_commands, signs_commits, commits_ahead, problems })
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
        let taken = main.find_taken(&ours, &theirs)?;
        let theirs = taken.map_or_else(|| Ok(theirs.clone()), |taken| main.joined_with(&theirs, &taken))?;
        match merge_trees(&main, &ours, &theirs)? {
            MergedTree::Conflict { files, .. } => Err(RepositoryError::Unusable {
                reason: format!("cannot merge your branch into {branch}: conflict in {}", list_files(&files)),
                next: resolve_steps(&main, team)?,
            }),
            MergedTree::Clean(_) | MergedTree::Failed(_) => Ok(()),
        }
    }

    /// Merges `branch`, which the merges of `team` go into, into the branch of the person's checkout, as the person: a fast-forward, or a
    /// merge commit. It runs no hook. Nothing is merged if the person's branch has the work already, also in another form.
    /// Filters and merge drivers run in the sandbox of `drivers`. If it fails, nothing is changed. After a kill, the next call finishes
    /// or undoes the merge. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`], or the merge is refused. The error names the cause and the next step. If the branch was deleted, it
    /// names the merges among `recorded` that were on it.
    pub fn take_over(
        workspace: &Path,
        team: &str,
        branch: &BranchName,
        recorded: &[RecordedMerge],
        drivers: DriverOptions,
    ) -> Result<TakeOver, RepositoryError> {
        let main = open_for_merge(workspace, team, branch, drivers)?;
        let merge = PersonMerge::open(&main, team, branch)?;
        let finished = merge.settle_killed()?;
        take_commits_of_person(&main, team, branch)?;
        let Some(tip) = main.checked_branch_commit(branch)? else {
            let lost = find_lost_merges(&main, team, branch, recorded)?;
            return Err(merge.refused(&MergeRefusal::of_missing_branch(lost, branch, team)));
        };
        let into = checked_out_for_merge(&main, branch, |refusal| merge.refused(refusal))?;
        merge.check_index()?;
        let head = main.head()?;
        // For the person, a merge that is finished now is part of this one.
        let before = finished.map_or_else(|| head.clone(), |finished| finished.before);
        let taken = main.find_taken(&tip, &head)?;
        let is_taken = taken.as_ref() == Some(&tip);
        if is_taken || main.is_ancestor(&tip, &head)? {
            return Ok(TakeOver { into, before, after: head, is_taken, unsigned_commits: 0 });
        }
        let content = taken.map_or_else(|| Ok(head.clone()), |taken| main.joined_with(&head, &taken))?;
        let after = merge.create_commit(&into, [&head, &content], &tip)?;
        merge.apply(&CheckoutMove::new(&into, [head, after.clone()]))?;
        let signs = main.settings.signs_commits()?;
        let unsigned_commits = if signs { main.unsigned_commits(&before, &after)? } else { 0 };
        Ok(TakeOver { into, before, after, is_taken: false, unsigned_commits })
    }

    /// Records that the person's branch has the work of the team branch in another form, as a launch does when it finds that. The merges
    /// among `recorded` that no branch has count as work of the team branch. `completed` are the team's completed tasks. No team may run
    /// meanwhile. Returns the texts about the change; none if there is nothing to record. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::take_over`], or the team worktree has work of the person.
    pub fn record_taken(
        workspace: &Path,
        team: &str,
        completed: &[TaskId],
        recorded: &[RecordedMerge],
        drivers: DriverOptions,
    ) -> Result<Vec<Notice>, RepositoryError> {
        let branch = team_branch(team);
        let main = open_for_merge(workspace, team, &branch, drivers)?;
        checked_target(&main, team, None)?;
        let refused = |refusal: &MergeRefusal| refusal.error_of("set aside", &main, &branch, team);
        let into = checked_out_for_merge(&main, &branch, refused)?;
        let head = main.head()?;
        let team_branch = TeamBranch::new(main.clone(), team.to_owned(), branch.clone(), Durability::Power);
        let lost = find_lost_merges(&main, team, &branch, recorded)?;
        let tip = main.checked_branch_commit(&branch)?;
        if tip.is_none() && lost.problem.is_none() && lost.taken.is_empty() {
            return Err(refused(&MergeRefusal::of_missing_branch(lost, &branch, team)));
        }
        let tip = tip.map_or(Ok(None), |tip| Ok(if main.is_ancestor(&tip, &head)? { None } else { Some(tip) }))?;
        if let Some(tip) = &tip {
            if main.is_ancestor(&head, tip)? {
                return Err(refused(&MergeRefusal::NothingOfPerson(into.to_string())));
            }
            if let Some(refusal) = work_in_team_worktree(&team_branch)? {
                return Err(refused(&refusal));
            }
        }
        let mut notices = team_branch.record_lost_as_taken(&lost)?;
        if let Some(tip) = &tip {
            notices.extend(team_branch.follow_taken(tip, &head, into.short(), completed)?);
        }
        Ok(notices)
    }
}

/// The work of the person in the team worktree, which its next update would refuse to overwrite.
fn work_in_team_worktree(team_branch: &TeamBranch) -> Result<Option<MergeRefusal>, RepositoryError> {
    let Some(at) = team_branch.find_team_worktree() else { return Ok(None) };
    let folder = team_branch.team_worktree().name;
    if let Some(commit) = team_branch.commits_of_person(&at)?.first() {
        let work = format!("the commit {}", short_commit(commit));
        return Ok(Some(MergeRefusal::WorkInTeamWorktree { folder, work }));
    }
    let changes = at.changes(&[])?;
    let changed: Vec<PathBuf> = changes.fields().filter_map(|field| field.get(3..)).map(path_of).collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let work = format!("uncommitted changes in {}", list_files(&changed));
    Ok(Some(MergeRefusal::WorkInTeamWorktree { folder, work }))
}

/// The person's checkout, for a merge of `branch`, the branch of `team`.
fn open_for_merge(
    workspace: &Path,
    team: &str,
    branch: &BranchName,
    drivers: DriverOptions,
) -> Result<RepoPath, RepositoryError> {
    let checkout = find_checkout(workspace, drivers.clone())?;
    if checkout.checked_head()?.is_none() {
        let unborn = checkout.checked_out_branch()?.map_or_else(|| "HEAD".to_owned(), |unborn| unborn.to_string());
        return Err(MergeRefusal::Unborn(unborn).error(&checkout, branch, team));
    }
    open_checked(workspace, drivers)
}

/// The branch of the person's checkout that can get a merge of `branch`. `refused` makes the error if there is none.
fn checked_out_for_merge(
    main: &RepoPath,
    branch: &BranchName,
    refused: impl Fn(&MergeRefusal) -> RepositoryError,
) -> Result<BranchName, RepositoryError> {
    if let Some(operation) = main.unfinished_operation() {
        return Err(refused(&MergeRefusal::Unfinished(operation)));
    }
    match main.checked_out_branch()? {
        None if main.git_dir.join("BISECT_LOG").exists() => Err(refused(&MergeRefusal::Bisecting)),
        None => Err(refused(&MergeRefusal::DetachedHead)),
        Some(into) if into == *branch => Err(refused(&MergeRefusal::CheckedOutHere)),
        Some(into) => Ok(into),
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
    if is_new && at.is_ancestor(&tip, &head)? && main.fetch_from(&at, &head)? == Fetch::Done {
        let name = branch.full();
        main.git(["update-ref", "-m", "brigade: commits of the person", &name, &head, &tip]).ok()?;
    }
    Ok(())
}

/// The number of commits of the team branch whose work the person's checkout has in no form.
fn commits_ahead(main: &RepoPath, branch: &BranchName) -> Result<usize, RepositoryError> {
    let Some(tip) = main.branch_commit(branch)? else { return Ok(0) };
    let head = main.head()?;
    let taken = main.find_taken(&tip, &head)?.map(|taken| format!("^{taken}"));
    let not_head = format!("^{head}");
    let options = ["rev-list", "--count", &tip, &not_head].into_iter().chain(taken.as_deref());
    let ahead = main.git(options.chain(["--"])).ok()?;
    Ok(ahead.line().parse().unwrap_or(0))
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
            next: vec![format!("the next launch merges it into {branch}").into()],
        }));
    }
    if head == target {
        return Ok(None);
    }
    let hint = if at.changes(&[])?.out.is_empty() {
        "the next launch updates them".into()
    } else {
        format!("`git -C {folder} status` shows changes; commit or undo them, and launch the team again").into()
    };
    let reason = format!("{folder} has the files of {}, not those of {branch}", short_commit(&head));
    Ok(Some(TeamBranchProblem { reason, next: vec![hint] }))
}
