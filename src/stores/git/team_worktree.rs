//! The worktree of the team branch. Its files follow the branch by `git switch`, which refuses to overwrite uncommitted changes. It
//! then stays on no branch at its earlier commit, until a later call succeeds.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::branch::is_commit;
use super::command::RepoPath;
use super::commits::list_files;
use super::files::{self, remove_file};
use super::team_branch::TeamBranch;
use super::worktree_list::CHECKOUT_WORKERS;
use super::worktree_list::is_marked;
use super::written_files::restore_written_files;
use crate::domain::dropped_lines::short_commit;
use crate::domain::event::Notice;
use crate::domain::worktree_name::{TASK_BRANCHES, team_folder};
use crate::ports::{Durability, RepositoryError, TeamWorktree};

/// A file in the worktree's git folder: the commit that a running `git switch` writes the files of.
const SWITCHING_FILE: &str = "brigade-switching";
/// The time that another git process may hold the index lock, and the polling interval.
pub(super) const INDEX_WAIT: Duration = Duration::from_secs(2);
pub(super) const INDEX_PAUSE: Duration = Duration::from_millis(10);
/// Parts of git's messages when it refuses to switch before it writes any file.
const REFUSALS: [&str; 4] = ["Aborting", "index.lock'", "cannot switch branch while", "resolve your current index"];

/// A move of the team branch.
#[derive(Clone, Copy)]
pub(super) struct BranchMove<'a> {
    /// Its commit before.
    pub(super) onto: &'a str,
    /// Its commit now.
    pub(super) commit: &'a str,
}

impl TeamBranch {
    pub(super) fn team_worktree(&self) -> TeamWorktree {
        let name = team_folder(&self.team);
        TeamWorktree { root: self.main.work_tree.join(&name), name, branch: self.name.clone() }
    }

    /// The worktree of the team branch. One that a person created counts if it has the branch or one of its commits checked out.
    pub(super) fn find_team_worktree(&self) -> Result<Option<RepoPath>, RepositoryError> {
        self.main.find_own_worktree(&team_folder(&self.team), |at| {
            Ok(is_marked(at)
                || match at.checked_out_branch()? {
                    Some(branch) => branch == self.name,
                    None => self.main.is_ancestor(&commit_of_head(at), &self.target_ref())?,
                })
        })
    }

    /// The commit of the team worktree, if it is on no branch.
    pub(super) fn detached_commit(&self) -> Result<Option<String>, RepositoryError> {
        let head = self.find_team_worktree()?.map(|at| commit_of_head(&at));
        Ok(head.filter(|head| is_commit(head)))
    }

    /// Creates the team worktree, unless it exists.
    pub(super) fn create_team_worktree(&self) -> Result<(), RepositoryError> {
        match self.find_team_worktree()? {
            Some(_) => Ok(()),
            None => self.main.create_own_worktree(&team_folder(&self.team), &[&self.name]),
        }
    }

    /// Puts the team worktree on no branch, at the commit `onto` of its files.
    pub(super) fn detach_team_worktree(&self, onto: &str) -> Result<(), RepositoryError> {
        let Some(at) = self.find_team_worktree()? else { return Ok(()) };
        if at.checked_out_branch()?.as_ref() != Some(&self.name) {
            return Ok(());
        }
        at.git(["update-ref", "--no-deref", "-m", "brigade: a merge follows", "HEAD", onto]).ok()?;
        if self.durability == Durability::Power { self.sync(&at.git_dir.join("HEAD")) } else { Ok(()) }
    }

    /// A notice if the files of the team worktree stay at an earlier commit. Each reason is reported once.
    pub(super) fn notice_of_team_worktree(&self, moved: Option<BranchMove<'_>>) -> Option<Notice> {
        let problem = self.update_team_worktree(moved).unwrap_or_else(|error| Some(error.to_string()));
        let mut reported = self.reported_problem.lock();
        if *reported == problem {
            return None;
        }
        reported.clone_from(&problem);
        problem.map(Notice::Warning)
    }

    /// Updates the files of the team worktree to the team branch's commit. Returns the reason if git cannot. `moved` is a move of the
    /// branch that was just made: it saves calls of git.
    pub(super) fn update_team_worktree(
        &self,
        moved: Option<BranchMove<'_>>,
    ) -> Result<Option<String>, RepositoryError> {
        let target = &self.name;
        let folder = self.team_worktree().name;
        let Some(at) = self.find_team_worktree()? else {
            return Ok(Some(format!("{folder} is missing: the next launch creates it")));
        };
        self.restore_interrupted_switch(&at)?;
        match at.checked_out_branch()? {
            Some(branch) if branch == *target => return Ok(None),
            Some(branch) if branch.starts_with(TASK_BRANCHES) => {
                let hint = format!("hint: `git -C {folder} switch {target}`");
                return Ok(Some(format!(
                    "{folder} is not updated: the task branch {branch} is checked out there. {hint}"
                )));
            }
            Some(_) => {}
            None => {
                let head = commit_of_head(&at);
                let is_before = moved.is_some_and(|moved| moved.onto == head);
                if !is_before && !self.main.is_ancestor(&head, &self.target_ref())? {
                    let head = short_commit(&head);
                    return Ok(Some(format!(
                        "{folder} is not updated: its commit {head} is on no branch. hint: the next launch merges it into {target}"
                    )));
                }
            }
        }
        let commit = match moved {
            Some(moved) => moved.commit.to_owned(),
            None => self.target_commit()?,
        };
        let problem = self.switch(&at, &commit)?;
        Ok(problem.map(|why| {
            format!(
                "{folder} is not updated to the last merge into {target}: {why}. hint: commit or undo the changes there; the next merge or launch tries again"
            )
        }))
    }

    /// Runs `git switch` to the team branch, which is at `commit`. Returns its reason if it fails; the files are then as before.
    fn switch(&self, at: &RepoPath, commit: &str) -> Result<Option<String>, RepositoryError> {
        let marker = at.git_dir.join(SWITCHING_FILE);
        files::write(&marker, commit)?;
        let started_at = Instant::now();
        let output = loop {
            let options = ["-c", CHECKOUT_WORKERS, "switch", "--quiet", "--no-guess", "--no-overwrite-ignore"];
            let output = at.git(options.iter().chain(&[self.name.as_str()])).run()?;
            // For example, an editor that runs `git status` holds it for an instant.
            let is_locked = output.code != 0 && output.err.contains("index.lock'");
            if !is_locked || started_at.elapsed() > INDEX_WAIT {
                break output;
            }
            thread::sleep(INDEX_PAUSE);
        };
        if output.code != 0 && !REFUSALS.iter().any(|part| output.err.contains(part)) {
            // Git writes the files first and its index last. On a full disk, only some of them may be written.
            self.restore_interrupted_switch(at)?;
        }
        remove_file(&marker)?;
        Ok((output.code != 0).then(|| describe_refusal(&output.err)))
    }

    /// Restores the files that a killed `git switch` wrote.
    fn restore_interrupted_switch(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let marker = at.git_dir.join(SWITCHING_FILE);
        if let Some(new) = files::text(&marker).filter(|text| is_commit(text)) {
            restore_written_files(at, &new)?;
        }
        remove_file(&marker)
    }
}

/// The commit of a worktree without a branch. This file has it then; see gitrepository-layout(5).
fn commit_of_head(at: &RepoPath) -> String {
    files::text(&at.git_dir.join("HEAD")).unwrap_or_default().trim_end().to_owned()
}

/// Git's refusal to switch or merge, shortened to the names of the files if it names any. They are on lines of their own.
pub(super) fn describe_refusal(error_text: &str) -> String {
    let names: Vec<PathBuf> =
        error_text.lines().filter_map(|line| line.strip_prefix('\t')).map(PathBuf::from).collect();
    if names.is_empty() {
        return error_text.trim().replace('\n', " ");
    }
    format!("it would overwrite uncommitted changes or untracked files: {}", list_files(&names))
}
