//! The worktree of the team branch. Its files follow the branch by `git switch`, which refuses to overwrite uncommitted changes. It
//! then stays at its earlier commit, until a later call succeeds.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::branch::{is_commit, record_base, recorded_base};
use super::command::RepoPath;
use super::commits::list_files;
use super::files::{self, remove_file};
use super::git_folder::Head;
use super::places::{CHECKOUT_WORKERS, Found, is_marked};
use super::team_branch::TeamBranch;
use super::written_files::restore_written_files;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::worktree_name::team_folder;
use crate::domain::log::event::Notice;
use crate::domain::text::one_line;
use crate::ports::{RepositoryError, TeamWorktree};

/// A file in the worktree's git folder: the commit that a running `git switch` writes the files of.
const SWITCHING_FILE: &str = "brigade-switching";
/// The time that another git process may hold the index lock, and the polling interval.
pub(super) const INDEX_WAIT: Duration = Duration::from_secs(2);
pub(super) const INDEX_PAUSE: Duration = Duration::from_millis(10);
/// Parts of git's messages when it refuses to switch before it writes any file.
const REFUSALS: [&str; 4] = ["Aborting", "index.lock'", "cannot switch branch while", "resolve your current index"];

impl TeamBranch {
    pub(super) fn team_worktree(&self) -> TeamWorktree {
        let name = team_folder(&self.team);
        TeamWorktree { root: self.main.work_tree.join(&name), name, branch: self.name.clone() }
    }

    /// The worktree of the team branch, if Brigade made it.
    pub(super) fn find_team_worktree(&self) -> Option<RepoPath> {
        self.main.place_at(&self.team_worktree().root).filter(is_marked)
    }

    /// Creates the team worktree, unless it exists. Anything else there is moved aside, and the text says so.
    pub(super) fn create_team_worktree(&self) -> Result<Option<String>, RepositoryError> {
        let TeamWorktree { root, name, branch } = self.team_worktree();
        let aside = match self.main.find_place(&root) {
            Found::Place(at) if is_marked(&at) => {
                self.main.update_git_folder(&at.git_dir)?;
                return Ok(None);
            }
            Found::Missing => None,
            Found::Place(_) | Found::Other(_) => Some(self.main.move_aside(&root)?),
        };
        let commit = self.target_commit()?;
        self.main.make_place(&root, Head::Branch(&branch), &commit, |root| record_base(root, &commit))?;
        Ok(aside.map(|aside| {
            let aside = aside.strip_prefix(&self.main.work_tree).unwrap_or(&aside);
            format!("something else was in {name}; it is in {} now", aside.display())
        }))
    }

    /// The commits that the person made in the team worktree: those that it has checked out, or has on its team branch, and that the team
    /// branch lacks.
    pub(super) fn commits_of_person(&self, at: &RepoPath) -> Result<Vec<String>, RepositoryError> {
        let own = recorded_base(&at.work_tree);
        let branch = at.branch_commit(&self.name)?;
        let is_on_branch = at.checked_out_branch()?.as_ref() == Some(&self.name);
        let head = if is_on_branch { None } else { at.commit("HEAD")? };
        let mut commits = Vec::new();
        for commit in branch.into_iter().chain(head).filter(|commit| Some(commit) != own.as_ref()) {
            if !commits.contains(&commit) && !at.is_ancestor(&commit, &self.target_commit()?)? {
                commits.push(commit);
            }
        }
        Ok(commits)
    }

    /// A notice if the files of the team worktree stay at an earlier commit. Each reason is reported once.
    pub(super) fn notice_of_team_worktree(&self) -> Option<Notice> {
        let problem = self.update_team_worktree().unwrap_or_else(|error| Some(error.to_string()));
        let mut reported = self.reported_problem.lock();
        if *reported == problem {
            return None;
        }
        reported.clone_from(&problem);
        problem.map(Notice::warning)
    }

    /// Updates the files of the team worktree to the team branch's commit. Returns the reason if git cannot.
    pub(super) fn update_team_worktree(&self) -> Result<Option<String>, RepositoryError> {
        let target = &self.name;
        let folder = self.team_worktree().name;
        let Some(at) = self.find_team_worktree() else {
            return Ok(Some(format!("{folder} is missing: the next launch creates it")));
        };
        self.restore_interrupted_switch(&at)?;
        let commit = self.target_commit()?;
        let is_on_branch = at.checked_out_branch()?.as_ref() == Some(target);
        if is_on_branch && at.branch_commit(&self.name)?.as_ref() == Some(&commit) {
            return record_base(&at.work_tree, &commit).map(|()| None);
        }
        if let Some(theirs) = self.commits_of_person(&at)?.first() {
            let theirs = short_commit(theirs);
            return Ok(Some(format!(
                "{folder} is not updated: its commit {theirs} is not on {target}. hint: the next launch merges it into {target}"
            )));
        }
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
            // `-C` takes nothing but the name of a branch.
            let options = ["-c", CHECKOUT_WORKERS, "switch", "--quiet", "--no-guess", "--no-overwrite-ignore", "-C"];
            let output = at.git(options.iter().chain(&[self.name.short(), commit])).run()?;
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
        if output.code != 0 {
            return Ok(Some(describe_refusal(&output.err)));
        }
        record_base(&at.work_tree, commit).map(|()| None)
    }

    /// Restores the files that a killed `git switch` wrote.
    fn restore_interrupted_switch(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let marker = at.git_dir.join(SWITCHING_FILE);
        if let Some(new) = files::text(&marker).filter(|text| is_commit(text)) {
            remove_lock_of_switch(at, &marker)?;
            restore_written_files(at, &new)?;
        }
        remove_file(&marker)
    }
}

/// Removes the lock of the index if the interrupted switch took it. An older one is a person's.
fn remove_lock_of_switch(at: &RepoPath, marker: &Path) -> Result<(), RepositoryError> {
    let lock = at.git_dir.join("index.lock");
    let modified = |path: &Path| path.symlink_metadata().ok()?.modified().ok();
    let is_of_switch = modified(&lock).is_some_and(|time| modified(marker).is_some_and(|marked| time >= marked));
    if is_of_switch { remove_file(&lock) } else { Ok(()) }
}

/// Git's refusal to switch or merge, shortened to the names of the files if it names any. They are on lines of their own.
pub(super) fn describe_refusal(error_text: &str) -> String {
    let names: Vec<PathBuf> =
        error_text.lines().filter_map(|line| line.strip_prefix('\t')).map(PathBuf::from).collect();
    if names.is_empty() {
        return one_line(error_text);
    }
    format!("it would overwrite uncommitted changes or untracked files: {}", list_files(&names))
}
