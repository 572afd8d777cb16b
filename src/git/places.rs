//! Places: folders in `.worktrees/` with a git folder of their own. Each task has one, the team branch has one, and merges are verified in
//! one.
//!
//! A place is made under `.making-<name>` and renamed when it is whole. It is removed by a rename to `.gone-<name>`, and then deleted. A
//! launch deletes every folder of the team with one of these prefixes. So a folder with the name of a place always is a whole one.
//!
//! Those of earlier versions were linked worktrees; see `adoption.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::{RepoPath, text_of};
use super::files::{self, failed, is_folder, remove_folder};
use super::git_folder::Head;
use super::ignore_rules::ignore_contents;
use crate::ports::RepositoryError;

/// Lets several processes write a checkout of many files; see git-config(1), checkout.workers.
pub(super) const CHECKOUT_WORKERS: &str = "checkout.workers=4";
/// Prefix of places that are being made.
pub(super) const MAKING_PREFIX: &str = ".making-";
/// Prefix of places that are being removed.
pub(super) const GONE_PREFIX: &str = ".gone-";
/// Brigade's folder in each place.
pub(super) const AGENT_FOLDER: &str = ".agent";
/// The file in the git folder that marks a place of Brigade.
pub(super) const MARK_FILE: &str = "brigade-created";
/// The file in a linked git folder that contains the worktree's path; see gitrepository-layout(5).
pub(super) const POINTER_FILE: &str = "gitdir";
/// Names that are tried for a folder that is in the way.
const ASIDE_NAMES_MAX: u32 = 1_000;

/// The content of the path of a place.
pub(super) enum Found {
    Missing,
    Place(RepoPath),
    /// Something else: the reason why it is not used.
    Other(String),
}

impl RepoPath {
    /// The place in `root`, if its git folder is a folder in it. Git runs there without the sandbox; see [`RepoPath::confined`].
    pub(super) fn place_at(&self, root: &Path) -> Option<RepoPath> {
        let git_dir = root.join(".git");
        let is_place = is_folder(root) && is_folder(&git_dir);
        is_place.then(|| {
            let common_dir = git_dir.clone();
            RepoPath { git_dir, common_dir, work_tree: root.to_owned(), syncs_objects: false, ..self.clone() }
        })
    }

    /// The same place for a task, where commands can write the git folder: git runs in the sandbox.
    pub(super) fn confined(self) -> RepoPath {
        RepoPath { is_confined: true, ..self }
    }

    /// Finds what is at the path of a place. An empty folder counts as nothing.
    pub(super) fn find_place(&self, root: &Path) -> Found {
        match root.symlink_metadata() {
            Err(_) => return Found::Missing,
            Ok(metadata) if !metadata.is_dir() => return Found::Other("it is not a folder".to_owned()),
            Ok(_) => {}
        }
        match self.place_at(root) {
            Some(at) => Found::Place(at),
            None if fs::remove_dir(root).is_ok() => Found::Missing,
            None => Found::Other("it has no git folder of its own".to_owned()),
        }
    }

    /// Makes a place in `root`, with the files of `commit`. `finish` gets the folder before it has its name. After a kill nothing is
    /// in `root`.
    ///
    /// # Errors
    /// Git or the system fails, or something is in `root`.
    pub(super) fn make_place(
        &self,
        root: &Path,
        head: Head<'_>,
        commit: &str,
        finish: impl FnOnce(&Path) -> Result<(), RepositoryError>,
    ) -> Result<RepoPath, RepositoryError> {
        let making = beside(root, MAKING_PREFIX);
        remove_folder(&making)?;
        self.write_git_folder(&making.join(".git"), head, commit)?;
        let at = self.place_at(&making).ok_or_else(|| failed("create", &making, &"it was removed meanwhile"))?;
        at.git(["-c", CHECKOUT_WORKERS, "read-tree", "-m", "-u", "HEAD"]).ok()?;
        files::write(&at.git_dir.join(MARK_FILE), "")?;
        create_agent_folder(&making)?;
        finish(&making)?;
        fs::rename(&making, root).map_err(|error| failed("rename", &making, &error))?;
        self.place_at(root).ok_or_else(|| failed("create", root, &"it was removed meanwhile"))
    }

    /// Removes a place, in any state.
    pub(super) fn remove_place(&self, root: &Path) -> Result<(), RepositoryError> {
        let gone = beside(root, GONE_PREFIX);
        // An earlier removal was interrupted.
        remove_folder(&gone)?;
        fs::rename(root, &gone).map_err(|error| failed("rename", root, &error))?;
        remove_folder(&gone)
    }

    /// Renames what is in the place of a folder of Brigade, and returns its new name.
    ///
    /// # Errors
    /// It is a linked worktree of the person: git would not find it any more.
    pub(super) fn move_aside(&self, root: &Path) -> Result<PathBuf, RepositoryError> {
        if self.linked_git_dir(root).is_some() {
            let name = root.strip_prefix(&self.work_tree).unwrap_or(root).display();
            let reason =
                format!("cannot create the worktree {name}: another worktree is there, which Brigade did not create");
            return Err(RepositoryError::unusable_until(reason, format!("`git worktree move {name} ELSEWHERE`")));
        }
        let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for number in 1..=ASIDE_NAMES_MAX {
            let aside = root.with_file_name(format!("{name}.aside-{number}"));
            if aside.symlink_metadata().is_err() {
                fs::rename(root, &aside).map_err(|error| failed("rename", root, &error))?;
                return Ok(aside);
            }
        }
        Err(failed("rename", root, &"all names are taken"))
    }

    /// The folders that git keeps for linked worktrees.
    pub(super) fn linked_git_dirs(&self) -> impl Iterator<Item = PathBuf> + use<> {
        files::entries(&self.common_dir.join("worktrees"))
    }

    /// The folder that git keeps for a linked worktree in `root`.
    pub(super) fn linked_git_dir(&self, root: &Path) -> Option<PathBuf> {
        let expected = root.join(".git");
        self.linked_git_dirs().find(|folder| {
            files::text(&folder.join(POINTER_FILE)).is_some_and(|to| is_same(&folder.join(to.trim_end()), &expected))
        })
    }
}

/// Returns true if Brigade made the place.
pub(super) fn is_marked(at: &RepoPath) -> bool {
    at.git_dir.join(MARK_FILE).is_file()
}

pub(super) fn create_agent_folder(root: &Path) -> Result<(), RepositoryError> {
    let agent = root.join(AGENT_FOLDER);
    fs::create_dir_all(&agent).map_err(|error| failed("create", &agent, &error))?;
    ignore_contents(&agent)
}

/// The path next to a place with this prefix before its name.
pub(super) fn beside(root: &Path, prefix: &str) -> PathBuf {
    root.with_file_name(format!("{prefix}{}", text_of(Path::new(root.file_name().unwrap_or_default()))))
}

fn is_same(a: &Path, b: &Path) -> bool {
    let resolved = |path: &Path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    a == b || resolved(a).is_some_and(|a| a == b)
}
