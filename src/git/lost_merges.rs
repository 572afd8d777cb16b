//! Finds merges that the board records and that the team branch lacks: it was reset, renamed or deleted.

use std::collections::HashSet;

use super::branch::is_commit;
use super::command::RepoPath;
use super::commits::list_names;
use super::set_aside::{listed_as_taken, taken_refs};
use super::take_over::TeamBranchProblem;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::worktree_name::team_folder;
use crate::domain::team::next::{Next, OrderForm};
use crate::ports::{RecordedMerge, RepositoryError};

/// The most tips whose work is looked for in another form.
const TIPS_MAX: usize = 8;

/// Merges that are not on the team branch.
#[derive(Default)]
pub(super) struct LostMerges {
    /// The commits with merges whose work the person's branch or the team branch has in another form.
    pub(super) taken: Vec<String>,
    /// The other commits with merges.
    pub(super) tips: Vec<String>,
    /// The commits of merges that do not exist any more.
    pub(super) gone: Vec<String>,
    /// The reason and the next step, for `tips` and `gone`.
    pub(super) problem: Option<TeamBranchProblem>,
}

/// Finds those of these merges that neither the branch `target` nor the person's branch has, and that were not set aside.
pub(super) fn find_lost_merges(
    main: &RepoPath,
    team: &str,
    target: &BranchName,
    merges: &[RecordedMerge],
) -> Result<LostMerges, RepositoryError> {
    let merges: Vec<&RecordedMerge> = merges.iter().filter(|merge| is_commit(&merge.commit)).collect();
    if merges.is_empty() {
        return Ok(LostMerges::default());
    }
    let input: String = merges.iter().map(|merge| format!("{}\n", merge.commit)).collect();
    let types = main.git(["cat-file", "--batch-check=%(objecttype)"]).input(input).ok()?.line();
    let exists = types.lines().map(|object_type| object_type == "commit");
    let (present, gone): (Vec<_>, Vec<_>) = merges.into_iter().zip(exists).partition(|(_, exists)| *exists);
    let tip = main.checked_branch_commit(target)?;
    let kept = main.refs(&[taken_refs(team)])?;
    let known = ["HEAD"].into_iter().chain(tip.as_deref()).chain(kept.iter().map(|(_, commit)| commit.as_str()));
    let present: Vec<&RecordedMerge> = present.into_iter().map(|(merge, _)| merge).collect();
    let mut lost = main.beyond(&present, known)?;
    let mut gone: Vec<&RecordedMerge> = gone.into_iter().map(|(merge, _)| merge).collect();
    if lost.is_empty() && gone.is_empty() {
        return Ok(LostMerges::default());
    }
    let listed = listed_as_taken(main, team)?;
    lost.retain(|merge| !listed.contains(&merge.commit));
    gone.retain(|merge| !listed.contains(&merge.commit));
    let taken = main.taken_of_lost(&lost, tip.as_deref())?;
    let lost = main.beyond(&lost, taken.iter().map(String::as_str))?;
    let tips = main.tips_of(&lost)?;
    let commits_gone = gone.iter().map(|merge| merge.commit.clone()).collect();
    let problem = if lost.is_empty() && gone.is_empty() {
        None
    } else {
        let next = next_steps(main, team, target, tip.as_deref(), &tips, &gone)?;
        let missing: Vec<&RecordedMerge> = lost.into_iter().chain(gone).collect();
        let named = missing.iter().map(|merge| format!("{} ({})", merge.task, short_commit(&merge.commit)));
        let reason = format!("merges of completed tasks are not on {target}: {}", list_names(named));
        Some(TeamBranchProblem { reason, next })
    };
    Ok(LostMerges { taken, tips, gone: commits_gone, problem })
}

impl RepoPath {
    /// Those of these merges that none of the commits `known` has.
    fn beyond<'a, 'k>(
        &self,
        merges: &[&'a RecordedMerge],
        known: impl Iterator<Item = &'k str>,
    ) -> Result<Vec<&'a RecordedMerge>, RepositoryError> {
        let wanted = merges.iter().map(|merge| format!("{}\n", merge.commit));
        let input: String = wanted.chain(known.map(|known| format!("^{known}\n"))).collect();
        let beyond = self.git(["rev-list", "--stdin"]).input(input).ok()?.line();
        let beyond: HashSet<&str> = beyond.lines().collect();
        Ok(merges.iter().copied().filter(|merge| beyond.contains(merge.commit.as_str())).collect())
    }

    /// The merges that no other one of these contains.
    fn tips_of(&self, merges: &[&RecordedMerge]) -> Result<Vec<String>, RepositoryError> {
        if merges.is_empty() {
            return Ok(Vec::new());
        }
        let commits = merges.iter().map(|merge| merge.commit.as_str());
        let tips = self.git(["merge-base", "--independent"].into_iter().chain(commits)).ok()?.line();
        Ok(tips.lines().map(str::to_owned).collect())
    }

    /// The commits up to which the person's branch, or the team branch at `target`, has the work of lost merges in another form. A person
    /// may have rebased either.
    fn taken_of_lost(&self, lost: &[&RecordedMerge], target: Option<&str>) -> Result<Vec<String>, RepositoryError> {
        let head = self.head()?;
        let mut taken = Vec::new();
        for tip in self.tips_of(lost)?.iter().take(TIPS_MAX) {
            for holder in [head.as_str()].into_iter().chain(target) {
                taken.extend(self.find_taken(tip, holder)?);
            }
        }
        Ok(taken)
    }
}

/// The steps that restore lost merges, which are part of `lost`, and those whose commits are gone.
fn next_steps(
    main: &RepoPath,
    team: &str,
    target: &BranchName,
    tip: Option<&str>,
    lost: &[String],
    gone: &[&RecordedMerge],
) -> Result<Vec<Next>, RepositoryError> {
    let mut steps = Vec::new();
    if let Some(first) = lost.first() {
        let names: Vec<&str> = lost.iter().map(|tip| short_commit(tip)).collect();
        let name = short_commit(first);
        let command = match tip {
            None => format!("`git branch {target} {name}` adds them"),
            Some(tip) if lost.len() == 1 && main.is_ancestor(tip, first)? => {
                format!("`git branch -f {target} {name}` adds them")
            }
            Some(_) => format!("`git -C {} merge {}` and the next launch add them", team_folder(team), names.join(" ")),
        };
        steps.extend([command.into(), OrderForm::MergeTaken { team: team.to_owned() }.into()]);
    }
    if !gone.is_empty() {
        let tasks = gone.iter().map(|merge| merge.task).collect();
        steps.extend(["the commits of some do not exist any more".into(), OrderForm::Reopen { tasks }.into()]);
    }
    Ok(steps)
}
