//! Takes the team branch over into the person's branch, when the person asks for it.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::{GitOutput, RepoPath, failure, last_bytes_of, no_git, path_of, pathspec, program};
use super::commits::list_files;
use super::merges::{MergedTree, merge_trees};
use super::opening::open_checked;
use super::team_branch::{check_person_branch, checked_target, find_lost_merges};
use super::team_worktree::describe_refusal;
use super::worktree_list::is_marked;
use super::{DriverOptions, GitRepository};
use crate::domain::dropped_lines::short_commit;
use crate::domain::worktree_name::{team_branch, team_folder};
use crate::platform::terminal::with_stops_blocked;
use crate::ports::{RecordedMerge, RepositoryError};

/// The state of a team branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamBranchStatus {
    /// The team branch.
    pub branch: String,
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
    pub into: String,
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
        merge_into: Option<&str>,
        recorded: &[RecordedMerge],
    ) -> Result<TeamBranchStatus, RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        let branch = checked_target(&main, team, merge_into)?;
        let range = format!("HEAD..refs/heads/{branch}");
        let ahead = main.git(["rev-list", "--count", &range, "--"]).run()?;
        let commits_ahead = if ahead.code == 0 { ahead.line().parse().unwrap_or(0) } else { 0 };
        let lost = find_lost_merges(&main, team, &branch, recorded)?;
        let problems = lost.into_iter().chain(worktree_problem(&main, &team_folder(team), &branch)?).collect();
        Ok(TeamBranchStatus { branch, commits_ahead, problems })
    }

    /// Checks that a launch can merge the person's branch into the team branch. Git stores the merged files as unreferenced objects. It
    /// blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`], a rebase is unfinished, or the branches conflict.
    pub fn check_launch(workspace: &Path, team: &str) -> Result<(), RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        let branch = team_branch(team);
        check_person_branch(&main, &branch, main.checked_out_branch()?.as_deref())?;
        let tips = (main.commit_of_ref(&format!("refs/heads/{branch}"))?, main.commit_of_ref("HEAD")?);
        let (Some(ours), Some(theirs)) = tips else { return Ok(()) };
        match merge_trees(&main, &ours, &theirs)? {
            MergedTree::Conflict { files, .. } => Err(RepositoryError::unusable_until(
                format!("cannot merge your branch into {branch}: conflict in {}", list_files(&files)),
                format!("`git merge {branch}`, and resolve the conflict"),
            )),
            MergedTree::Clean(_) | MergedTree::Failed(_) => Ok(()),
        }
    }

    /// Runs `git merge` for the team branch in the person's checkout, with the person's settings and hooks. If it fails, nothing is
    /// changed. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`], or git cannot merge. The error names the files and the next step.
    pub fn take_over(workspace: &Path, branch: &str) -> Result<TakeOver, RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        let refused = |why: &str, hint: String| {
            Err(RepositoryError::unusable_until(format!("cannot merge {branch}: {why}"), hint))
        };
        let Some(tip) = main.commit_of_ref(&format!("refs/heads/{branch}"))? else {
            return refused("there is no such branch", "`brigade run` creates it".to_owned());
        };
        if let Some(operation) = main.unfinished_operation() {
            let hint = format!("`git {operation} --continue`, or `git {operation} --abort`");
            return refused(&format!("a {operation} is unfinished in your checkout"), hint);
        }
        let Some(into) = main.checked_out_branch()? else {
            return refused("no branch is checked out (detached HEAD)", "`git switch BRANCH`".to_owned());
        };
        if into == branch {
            return refused("it is checked out here", "`git switch BRANCH`".to_owned());
        }
        let before = main.head()?;
        if main.is_ancestor(&tip, &before)? {
            return Ok(TakeOver { into, after: before.clone(), before });
        }
        let overwritten = overwritten_files(&main, &before, &tip)?;
        if !overwritten.is_empty() {
            let why = format!(
                "it would overwrite untracked or ignored files: {}",
                list_files(&overwritten.into_iter().collect::<Vec<_>>())
            );
            return refused(&why, "move the files, then `brigade merge` again".to_owned());
        }
        let merged = git_of_person(workspace, &["merge", "--no-edit", branch])?;
        if merged.code == 0 {
            return Ok(TakeOver { into, before, after: main.head()? });
        }
        if !main.git_dir.join("MERGE_HEAD").exists() {
            let hint = "commit, `git stash` or move the files, then `brigade merge` again".to_owned();
            return refused(&describe_refusal(&merged.err), hint);
        }
        let unmerged = main.git(["diff", "--name-only", "--diff-filter=U", "-z"]).ok()?;
        let files: Vec<PathBuf> = unmerged.fields().map(path_of).collect();
        let aborted = git_of_person(workspace, &["merge", "--abort"])?;
        let (why, hint) = if files.is_empty() {
            let why = merged.err.trim().trim_end_matches('.').replace('\n', " ");
            (why, format!("`git merge {branch}` shows what git and your hooks report"))
        } else {
            let why = format!("it conflicts with {into} in {}", list_files(&files));
            (why, format!("`git merge {branch}`, resolve the conflicts, and commit"))
        };
        if aborted.code != 0 {
            let hint = "`git merge --abort`".to_owned();
            return refused(&format!("{why}; git cannot abort the merge: {}", aborted.err.trim()), hint);
        }
        refused(&format!("{why}. Nothing was changed"), hint)
    }
}

/// The untracked and ignored files of the person's checkout that a merge of `tip` into `head` would overwrite. Git refuses only the
/// untracked ones.
fn overwritten_files(main: &RepoPath, head: &str, tip: &str) -> Result<BTreeSet<PathBuf>, RepositoryError> {
    let result = match merge_trees(main, head, tip)? {
        MergedTree::Clean(tree) | MergedTree::Conflict { tree, .. } => tree,
        // A merge driver failed. The files of the branch are those that git may write.
        MergedTree::Failed(_) => tip.to_owned(),
    };
    let output = main.git(["diff-tree", "-r", "-z", "--name-status", "--no-renames", head, &result]).ok()?;
    let fields: Vec<&[u8]> = output.fields().collect();
    let with_status = |wanted: &'static [u8]| {
        let paths = fields.chunks_exact(2).filter(move |pair| pair[0] == wanted);
        paths.map(|pair| path_of(pair[1])).collect::<HashSet<PathBuf>>()
    };
    let (added, deleted) = (with_status(b"A"), with_status(b"D"));
    let mut overwritten = BTreeSet::new();
    for path in &added {
        // A file in place of a folder above is in the way too.
        let metadata_of = |path: &Path| main.work_tree.join(path).symlink_metadata().ok();
        let existing = path.ancestors().find_map(|above| Some((above, metadata_of(above)?)));
        let Some((obstacle, metadata)) = existing.filter(|(above, _)| !deleted.contains(*above)) else { continue };
        if !metadata.is_dir() {
            overwritten.insert(obstacle.to_owned());
        } else if obstacle == path {
            let others = ["ls-files", "-z", "--others", "--"].map(Into::into);
            let found = main.git(others.into_iter().chain([pathspec("", path)])).ok()?;
            overwritten.extend(found.fields().map(path_of));
        }
    }
    Ok(overwritten)
}

fn worktree_problem(main: &RepoPath, folder: &str, branch: &str) -> Result<Option<TeamBranchProblem>, RepositoryError> {
    let Some(at) = main.repo_path_of(&main.work_tree.join(folder)) else { return Ok(None) };
    Ok(match at.checked_out_branch()? {
        Some(current) if current == branch => None,
        Some(current) if !is_marked(&at) => Some(TeamBranchProblem {
            reason: format!("{folder} is on the branch {current}, and Brigade did not create it"),
            hint: format!("`git worktree move {folder} ELSEWHERE`"),
        }),
        Some(current) => Some(TeamBranchProblem {
            reason: format!("{folder} is on the branch {current}, not on {branch}"),
            hint: format!("`git -C {folder} switch {branch}`; the next launch does it too"),
        }),
        None => {
            let head = at.head()?;
            let tip = format!("refs/heads/{branch}");
            // Without the branch, the next launch creates it.
            if at.git(["merge-base", "--is-ancestor", &head, &tip]).run()?.code == 1 {
                return Ok(Some(TeamBranchProblem {
                    reason: format!("the commit {} in {folder} is on no branch", short_commit(&head)),
                    hint: format!("the next launch merges it into {branch}"),
                }));
            }
            Some(TeamBranchProblem {
                reason: format!("{folder} has the files of {}, not those of {branch}", short_commit(&head)),
                hint: format!("`git -C {folder} status` shows changes; commit or undo them, and launch the team again"),
            })
        }
    })
}

/// Runs git in `folder` as the person would, with their environment, settings and hooks. It asks nothing.
///
/// # Errors
/// Git cannot be started.
fn git_of_person(folder: &Path, arguments: &[&str]) -> Result<GitOutput, RepositoryError> {
    let program = program().ok_or_else(no_git)?;
    let mut command = Command::new(program);
    command.arg("-C").arg(folder).args(arguments).stdin(Stdio::null());
    command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0");
    // The folder alone selects the repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"] {
        command.env_remove(variable);
    }
    let output = with_stops_blocked(|| command.output())
        .map_err(|error| failure(format!("run git {}", arguments.join(" ")), &error.to_string()))?;
    let err = last_bytes_of(&output.stderr) + &last_bytes_of(&output.stdout);
    Ok(GitOutput { code: output.status.code().unwrap_or(-1), out: output.stdout, err })
}
