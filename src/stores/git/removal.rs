//! Removing worktrees, so that one that was begun is finished after a kill: the folder gets another name first, at once and whole,
//! and whatever has that name is to be removed. Git itself empties the folder file by file, and what is left of it then is nobody's.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::index::{occupied, reveal};
use super::run::{At, text_of};
use super::worktrees::{POINTER_FILE, failed};
use super::{Inner, WORKTREES_FOLDER, small};
use crate::ports::{Assignment, RepositoryError, Worktree};
use crate::sandbox::filter::SCRATCH_PREFIX;

/// Folders beside the worktrees that begin like this are being removed.
const GONE_PREFIX: &str = ".gone-";

impl Inner {
    /// Removes a completed task's worktree and branch. Says why it is left where it holds anything more.
    pub(super) fn remove(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
    ) -> Result<Option<String>, RepositoryError> {
        let name = &worktree.name;
        let branch = format!("refs/heads/{}", worktree.branch);
        let tip = self.ref_at(&branch)?;
        if let Some(tip) = &tip
            && !self.is_ancestor(tip, &self.target_ref())?
        {
            let branch = &worktree.branch;
            return Ok(Some(format!("{name} stays: its branch {branch} has commits that are not merged")));
        }
        if worktree.root.symlink_metadata().is_ok() {
            if self.states.read_expect(&worktree.root, &assignment.identifier()).is_err() {
                return Ok(Some(format!("{name} stays: its state does not say that it is this task's")));
            }
            let Some(at) = self.at(&worktree.root) else {
                return Ok(Some(format!("{name} stays: git does not know of it")));
            };
            let unsound = self.unsound(&at).or_else(|| self.stands_for_another(&worktree.branch));
            if let Some(why) = unsound.map_or_else(|| what_holds(&at), |why| Ok(Some(why)))? {
                return Ok(Some(format!("{name} stays: {why}")));
            }
            self.take_away(&at)?;
        }
        // One that was moved meanwhile stays: git compares.
        if let Some(tip) = tip
            && !self.is_taken(&worktree.branch)?
        {
            self.main.git(["update-ref", "--no-deref", "-d", &branch, &tip]).ok()?;
        }
        Ok(None)
    }

    /// Removes a worktree that holds nothing more, whatever its state is.
    fn take_away(&self, at: &At) -> Result<(), RepositoryError> {
        let name = at.work_tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let gone = at.work_tree.with_file_name(format!("{GONE_PREFIX}{name}"));
        let _listing = self.listing();
        // Left by a removal that was not finished.
        remove_folder(&gone)?;
        fs::rename(&at.work_tree, &gone).map_err(|error| failed("rename", &at.work_tree, &error))?;
        remove_folder(&at.git_dir)?;
        remove_folder(&gone)
    }

    /// Finishes removals that a kill broke off, and removes what a git that was killed at its first steps left of worktrees of this
    /// team. Call it before anybody works.
    pub(super) fn finish_removals(&self) -> Result<(), RepositoryError> {
        let _listing = self.listing();
        let folder = self.main.work_tree.join(WORKTREES_FOLDER);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(SCRATCH_PREFIX) {
                remove_folder(&entry.path())?;
            }
            let Some(name) = name.strip_prefix(GONE_PREFIX).filter(|name| self.is_of_team(name)) else { continue };
            let root = folder.join(name);
            // Another one may have been made under the name since.
            if root.symlink_metadata().is_err()
                && let Some(git_dir) = self.git_dir_of(&root)
            {
                remove_folder(&git_dir)?;
            }
            remove_folder(&entry.path())?;
        }
        for entry in fs::read_dir(self.main.common_dir.join("worktrees")).into_iter().flatten().flatten() {
            let is_of_team = self.is_of_team(&entry.file_name().to_string_lossy());
            // Git writes where the worktree is before all else, and until then keeps nothing there.
            let pointer = entry.path().join(POINTER_FILE);
            let is_empty =
                |file: &str| entry.path().join(file).symlink_metadata().map_or(true, |metadata| metadata.len() == 0);
            // One that git was killed in the middle of making, whose folder is gone: with such a one git lists none at all.
            let is_gone = || {
                let place = small::text(&pointer).unwrap_or_default();
                Path::new(place.trim_end()).symlink_metadata().is_err()
            };
            let leads_nowhere = || is_empty(POINTER_FILE) || ((is_empty("commondir") || is_empty("HEAD")) && is_gone());
            if is_of_team && leads_nowhere() {
                remove_folder(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Whether a folder's name is one of this team's worktrees'.
    fn is_of_team(&self, name: &str) -> bool {
        name.strip_prefix(&self.team).is_some_and(|rest| rest.starts_with("-task-") || rest.starts_with("-merge"))
    }

    /// Removes a worktree in which nobody has worked, whatever state it is in.
    pub(super) fn discard(&self, at: &At) -> Result<(), RepositoryError> {
        let _listing = self.listing();
        if self.main.git(["worktree", "remove", "--force", "--force", &text_of(&at.work_tree)]).ok().is_ok() {
            return Ok(());
        }
        // Git removes none that is only half there.
        remove_folder(&at.work_tree)?;
        remove_folder(&at.git_dir)
    }
}

/// What a worktree holds that would be lost with it; what git ignores is not meant to be kept.
fn what_holds(at: &At) -> Result<Option<String>, RepositoryError> {
    if at.git_dir.join("locked").exists() {
        return Ok(Some("it is locked (git worktree unlock)".to_owned()));
    }
    if at.git_dir.join("modules").exists() {
        return Ok(Some("it has submodules".to_owned()));
    }
    let repositories = reveal(at)?;
    if let Some(repository) = occupied(at, &repositories) {
        return Ok(Some(format!("there is something in {}, which is a repository of its own", repository.display())));
    }
    let files = at.git(["status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"]).ok()?;
    let files = files.fields().count();
    Ok((files > 0).then(|| format!("it has {files} files that are changed and not committed")))
}

/// Removes a file that may not be there.
pub(super) fn remove_file(file: &Path) -> Result<(), RepositoryError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", file, &error)),
        _ => Ok(()),
    }
}

/// Removes a folder that may not be there, with all that is in it.
pub(super) fn remove_folder(folder: &Path) -> Result<(), RepositoryError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", folder, &error)),
        _ => Ok(()),
    }
}
