//! Merges that the board records and that are no longer on the team branch: it was reset, renamed or deleted.

use std::collections::HashSet;

use super::branch::is_commit;
use super::command::RepoPath;
use super::commits::list_names;
use super::take_over::TeamBranchProblem;
use super::team_folder;
use crate::domain::dropped_lines::short_commit;
use crate::ports::{RecordedMerge, RepositoryError};

/// Returns the problem if the branch `target` and the user's branch both lack some of these merges.
pub(super) fn find_lost_merges(
    main: &RepoPath,
    team: &str,
    target: &str,
    merges: &[RecordedMerge],
) -> Result<Option<TeamBranchProblem>, RepositoryError> {
    let merges: Vec<&RecordedMerge> = merges.iter().filter(|merge| is_commit(&merge.commit)).collect();
    if merges.is_empty() {
        return Ok(None);
    }
    let target_ref = format!("refs/heads/{target}");
    let names = [target_ref.as_str()].into_iter().chain(merges.iter().map(|merge| merge.commit.as_str()));
    let input: String = names.map(|name| format!("{name}\n")).collect();
    let types = main.git(["cat-file", "--batch-check=%(objecttype)"]).input(input).ok()?.line();
    let mut exists = types.lines().map(|object_type| object_type == "commit");
    let has_target = exists.next().unwrap_or(false);
    let (present, gone): (Vec<_>, Vec<_>) = merges.into_iter().zip(exists).partition(|(_, exists)| *exists);
    let mut input: String = present.iter().map(|(merge, _)| format!("{}\n", merge.commit)).collect();
    input.push_str("^HEAD\n");
    if has_target {
        input.push_str(&format!("^{target_ref}\n"));
    }
    let beyond = main.git(["rev-list", "--stdin"]).input(input).ok()?.line();
    let beyond: HashSet<&str> = beyond.lines().collect();
    let lost: Vec<&RecordedMerge> =
        present.into_iter().map(|(merge, _)| merge).filter(|merge| beyond.contains(merge.commit.as_str())).collect();
    let gone: Vec<&RecordedMerge> = gone.into_iter().map(|(merge, _)| merge).collect();
    if lost.is_empty() && gone.is_empty() {
        return Ok(None);
    }
    let mut hints = Vec::new();
    if !lost.is_empty() {
        // The others are part of these.
        let commits = lost.iter().map(|merge| merge.commit.as_str());
        let tips = main.git(["merge-base", "--independent"].into_iter().chain(commits)).ok()?.line();
        let tips: Vec<&str> = tips.lines().map(short_commit).collect();
        let command = match has_target {
            true => format!("git -C {} merge {}", team_folder(team), tips.join(" ")),
            false => format!("git branch {target} {}", tips.first().unwrap_or(&"")),
        };
        hints.push(format!("`{command}` restores them, unless you took them over as other commits"));
    }
    if !gone.is_empty() {
        let ids: Vec<String> = gone.iter().map(|merge| merge.task.0.to_string()).collect();
        let ids = ids.join(" ");
        hints.push(format!("the commits of some do not exist any more: `brigade tasks reopen {ids}`"));
    }
    let missing: Vec<&RecordedMerge> = lost.into_iter().chain(gone).collect();
    let named = |merge: &&RecordedMerge| format!("{} ({})", merge.task, short_commit(&merge.commit));
    let reason = format!("merges of completed tasks are not on {target}: {}", list_names(missing.iter().map(named)));
    Ok(Some(TeamBranchProblem { reason, hint: hints.join("; ") }))
}
