//! Sets the commits of a team branch aside, after the person took their work over in another form.
//!
//! A ref keeps the commits, and a file lists them. Then the team branch moves to the person's commit. After a kill between two steps, the
//! next launch repeats them.

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::command::RepoPath;
use super::commits::list_names;
use super::lost_merges::LostMerges;
use super::opening::find_checkout;
use super::team_branch::{PersonCommit, TeamBranch};
use super::{DriverOptions, GitRepository, files};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::worktree_name::{TASK_BRANCHES, WorktreeName};
use crate::domain::log::event::Notice;
use crate::domain::task::TaskId;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{Durability, RepositoryError};

/// The most commits that the file lists, the newest ones.
const LISTED_MAX: usize = 100_000;
/// The size of the longest line of the file, in bytes: an id of SHA-256.
const LINE_BYTES_MAX: u64 = 65;

/// The start of the names of the refs that keep what was set aside.
pub(super) fn taken_refs(team: &str) -> String {
    format!("refs/brigade/{team}/taken/")
}

/// Commits of a team branch that a ref keeps, after the person took their work over in another form.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TakenCommits {
    /// The full name of the ref.
    pub name: String,
    /// The last of the commits.
    pub commit: String,
}

impl GitRepository {
    /// The commits of all teams that refs keep, after the person took their work over in another form. Blocks.
    ///
    /// # Errors
    /// `workspace` is not in a repository, or git fails.
    pub fn taken_commits(workspace: &Path) -> Result<Vec<TakenCommits>, RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        let refs = main.refs(&[taken_refs("*") + "*"])?;
        Ok(refs.into_iter().map(|(name, commit)| TakenCommits { name, commit }).collect())
    }

    /// Removes the ref that keeps these commits, unless it moved. Blocks.
    ///
    /// # Errors
    /// The ref moved, or git fails.
    pub fn remove_taken_commits(workspace: &Path, taken: &TakenCommits) -> Result<(), RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        main.git(["update-ref", "--no-deref", "-d", &taken.name, &taken.commit]).ok().map(drop)
    }
}

impl TeamBranch {
    /// Moves the team branch from `onto` to the person's commit `theirs`, which has all of its work in another form. The commits up to
    /// `onto` are set aside. If tasks that are not completed are based on them, they stay in the history of the branch instead.
    pub(super) fn follow_taken(
        &self,
        onto: &str,
        theirs: &str,
        name: &str,
        completed: &[TaskId],
    ) -> Result<Vec<Notice>, RepositoryError> {
        let target = &self.name;
        let taken = format!("{name} has the work of {target} in another form");
        let open_tasks = self.open_tasks(theirs, completed)?;
        let (new, text) = if !open_tasks.is_empty() {
            let content = self.main.joined_with(theirs, onto)?;
            let commit = PersonCommit { commit: theirs, content: &content, name, is_in_team_worktree: false };
            let new = self.create_merge_of_person(onto, &commit)?;
            let tasks = list_names(open_tasks.iter().map(TaskId::to_string));
            let reason = format!("tasks that are not completed are based on them: {tasks}");
            (new, format!("{taken}. Its commits stay on {target}, because {reason}"))
        } else {
            let kept = self.keep_taken(onto, theirs)?;
            let at = short_commit(theirs);
            (
                theirs.to_owned(),
                format!("{taken}, so {target} starts from there ({at}). {kept} keeps its earlier commits"),
            )
        };
        let notice = self.move_to(onto, &new, name)?;
        Ok([Notice::Info(text)].into_iter().chain(notice).collect())
    }

    /// Keeps the commits up to `tip` by a ref, and lists those that `theirs` lacks. Returns the name of the ref.
    pub(super) fn keep_taken(&self, tip: &str, theirs: &str) -> Result<String, RepositoryError> {
        let name = format!("{}{}", taken_refs(&self.team), short_commit(tip));
        self.main.set_ref(&name, tip)?;
        if self.durability == Durability::Power {
            self.sync(&self.main.common_dir.join(&name))?;
        }
        let count_max = format!("--max-count={LISTED_MAX}");
        let commits = self.main.git(["rev-list", &count_max, tip, &format!("^{theirs}"), "--"]).ok()?.line();
        self.list_as_taken(&commits.lines().collect::<Vec<_>>())?;
        Ok(name)
    }

    /// Records merges that no branch has as taken over in another form. Returns the texts about it.
    pub(super) fn record_lost_as_taken(&self, lost: &LostMerges) -> Result<Vec<Notice>, RepositoryError> {
        self.list_as_taken(&lost.gone.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut notices = Vec::new();
        if !lost.gone.is_empty() {
            let text = format!("merges of {}, whose commits do not exist any more, count as taken over", self.name);
            notices.push(Notice::Info(text));
        }
        for tip in lost.tips.iter().chain(&lost.taken) {
            let kept = self.keep_taken(tip, "HEAD")?;
            notices.push(Notice::Info(format!(
                "merges that were on {} count as taken over. {kept} keeps them",
                self.name
            )));
        }
        Ok(notices)
    }

    /// Adds commits to the list of those that the person took over in another form.
    pub(super) fn list_as_taken(&self, commits: &[&str]) -> Result<(), RepositoryError> {
        let list = taken_list(&self.main, &self.team);
        let listed = read_list(&list)?;
        let known: HashSet<&str> = listed.lines().collect();
        let new = commits.iter().copied().filter(|commit| !known.contains(commit));
        let lines: Vec<&str> = new.chain(listed.lines()).take(LISTED_MAX).collect();
        files::replace(&list, &format!("{}\n", lines.join("\n")))
    }

    /// Returns true if a commit is on the team branch, or was and is set aside.
    pub(super) fn has_merged(&self, commit: &str) -> Result<bool, RepositoryError> {
        if self.main.is_ancestor(commit, &self.target_commit()?)? {
            return Ok(true);
        }
        let containing = format!("--contains={commit}");
        let refs = self.main.git(["for-each-ref", "--format=%(refname)", &containing, &taken_refs(&self.team)]).ok()?;
        Ok(!refs.out.is_empty())
    }

    /// The tasks that are not completed and have a branch, or a merge that the board does not record yet, which `theirs` lacks.
    fn open_tasks(&self, theirs: &str, completed: &[TaskId]) -> Result<BTreeSet<TaskId>, RepositoryError> {
        let merged = format!("refs/brigade/{}/merged/", self.team);
        let branches = format!("refs/heads/{TASK_BRANCHES}/{}/", self.team);
        let lacking = format!("--no-merged={theirs}");
        let output = self.main.git(["for-each-ref", "--format=%(refname)", &lacking, &branches, &merged]).ok()?.line();
        let task_of = |name: &str| match name.strip_prefix(&merged) {
            Some(task) => task.strip_prefix("task-")?.parse().ok().map(TaskId),
            // The branch of a failed attempt is not that of a task.
            None => WorktreeName::of_branch(&BranchName::of_ref(name)?).map(|name| name.task),
        };
        Ok(output.lines().filter_map(task_of).filter(|task| !completed.contains(task)).collect())
    }
}

/// The file in the repository with the commits of a team that the person took over in another form.
fn taken_list(main: &RepoPath, team: &str) -> PathBuf {
    main.common_dir.join(format!("brigade-taken-{team}"))
}

/// The commits of a team that the person took over in another form.
///
/// # Errors
/// Their list cannot be read.
pub(super) fn listed_as_taken(main: &RepoPath, team: &str) -> Result<HashSet<String>, RepositoryError> {
    Ok(read_list(&taken_list(main, team))?.lines().map(str::to_owned).collect())
}

/// The text of a list, which is empty without the file. One that cannot be read is an error: the next write would lose its commits.
fn read_list(list: &Path) -> Result<String, RepositoryError> {
    match reading::read(list, AllowedKinds::FilesHere, LINE_BYTES_MAX * LISTED_MAX as u64) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            let list = list.display();
            let reason = format!("cannot read {list}, which lists the commits that you took over: {error}");
            Err(RepositoryError::unusable_until(reason, format!("correct that, or `mv {list} ELSEWHERE`")))
        }
    }
}
