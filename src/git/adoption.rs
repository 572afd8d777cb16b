//! The worktrees of earlier versions, which were linked ones. A launch turns them into places, with index, unfinished operation and
//! submodules.
//!
//! The git folder of the place is a copy of the linked one. It is made under `.making-<name>`, and then replaces the file `.git`. The
//! linked git folder stays until the place is whole, so that after a kill the next launch continues.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use super::RepositoryInner;
use super::command::{RepoPath, path_of};
use super::files::{self, failed, is_folder, remove_file, remove_folder};
use super::places::{MAKING_PREFIX, MARK_FILE, POINTER_FILE, beside, create_agent_folder};
use crate::domain::git::worktree_name::{TASK_BRANCHES, TEAM_BRANCHES, WORKTREES_FOLDER};
use crate::git::worktree_store::WorktreeStore;
use crate::ports::RepositoryError;

/// Files of a linked git folder that the git folder of a place has not, or gets from the person's repository.
const LINK_FILES: [&str; 4] = [POINTER_FILE, "commondir", "locked", "config.worktree"];
/// The reason for which git locks a linked worktree until it has created it.
const UNFINISHED: &str = "initializing";
/// The folder in a git folder with those of the submodules.
const MODULES_FOLDER: &str = "modules";
/// The commits that a worktree may have, and no branch.
const OWN_COMMITS: [&str; 5] = ["HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REBASE_HEAD"];

impl RepositoryInner {
    /// Turns the linked worktrees of earlier versions into places. Returns the reasons why those of some tasks stay as they are.
    ///
    /// # Errors
    /// The team worktree cannot be changed.
    pub(super) fn adopt_linked_worktrees(&self) -> Result<Vec<RepositoryError>, RepositoryError> {
        let team = self.branch.team_worktree().root;
        let mut problems = Vec::new();
        for linked in self.main.linked_git_dirs() {
            let Some(root) = self.root_of_linked(&linked) else { continue };
            match self.main.adopt_linked(&root, &linked) {
                Err(error) if root == team => return Err(error),
                adopted => problems.extend(adopted.err()),
            }
        }
        Ok(problems)
    }

    /// The worktree of this team to which a linked git folder belongs. A git that is killed at once leaves no path in it.
    fn root_of_linked(&self, linked: &Path) -> Option<PathBuf> {
        let folder = self.main.work_tree.join(WORKTREES_FOLDER);
        let pointer = files::bytes(&linked.join(POINTER_FILE)).unwrap_or_default();
        let root = match pointer.trim_ascii_end() {
            [] => folder.join(linked.file_name()?),
            path => linked.join(path_of(path)).parent()?.to_owned(),
        };
        let is_here = root.parent()?.canonicalize().ok()? == folder.canonicalize().ok()?;
        let name = root.file_name()?;
        (is_here && self.is_of_team(&name.to_string_lossy())).then(|| folder.join(name))
    }
}

impl RepoPath {
    /// Gives Brigade's linked worktree in `root` a git folder of its own. One that git did not finish is removed, and so is a linked git
    /// folder without a worktree.
    fn adopt_linked(&self, root: &Path, linked: &Path) -> Result<(), RepositoryError> {
        let git_dir = root.join(".git");
        let has_path = files::bytes(&linked.join(POINTER_FILE)).is_some_and(|path| !path.trim_ascii().is_empty());
        if !has_path || root.symlink_metadata().is_err() {
            return remove_folder(linked);
        }
        if !is_folder(root) {
            return Ok(());
        }
        if !is_folder(&git_dir) {
            let has_state = WorktreeStore::path(root).exists();
            let is_unfinished = files::text(&linked.join("locked")).is_some_and(|reason| reason.trim() == UNFINISHED);
            if is_unfinished && !has_state {
                self.remove_place(root)?;
                return remove_folder(linked);
            }
            if !has_state && !is_of_brigade(linked) {
                return Ok(());
            }
            let new = self.copy_linked(root, linked)?;
            create_agent_folder(root)?;
            remove_file(&git_dir)?;
            fs::rename(&new, &git_dir).map_err(|error| failed("rename", &new, &error))?;
        }
        self.move_submodules(root, linked)?;
        remove_folder(linked)
    }

    /// Makes the git folder for a linked worktree, and returns its path.
    fn copy_linked(&self, root: &Path, linked: &Path) -> Result<PathBuf, RepositoryError> {
        let making = beside(root, MAKING_PREFIX);
        remove_folder(&making)?;
        let new = making.join(".git");
        copy_folder(linked, &new)?;
        self.update_git_folder(&new)?;
        fs::create_dir_all(new.join("refs")).map_err(|error| failed("create", &new, &error))?;
        files::write(&new.join(MARK_FILE), "")?;
        // With the branches of tasks: an unfinished rebase needs its own, and HEAD may name any.
        fs::write(new.join("packed-refs"), self.packed_refs()?).map_err(|error| failed("write", &new, &error))?;
        let at = self.place_at(&making).ok_or_else(|| failed("take over", root, &"it was removed meanwhile"))?;
        self.keep_objects(&at.confined())?;
        Ok(new)
    }

    /// Copies the objects that only the linked worktree kept from `git gc`: those of its index, and of commits on no branch.
    fn keep_objects(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let start = ["rev-list", "--no-walk", "--ignore-missing"];
        let own = at.git(start.iter().chain(&OWN_COMMITS).chain(&["--"])).run()?.line();
        let others = self.git(["for-each-ref", "--format=^%(objectname)"]).ok()?.line();
        let packs = at.git_dir.join("objects/pack");
        fs::create_dir_all(&packs).map_err(|error| failed("create", &packs, &error))?;
        let options = ["pack-objects", "--quiet", "--non-empty", "--revs", "--indexed-objects"].map(OsStr::new);
        let pack = packs.join("pack");
        let call = at.git(options.into_iter().chain([pack.as_os_str()]));
        let output = call.input(format!("{own}\n{others}\n")).run()?;
        if output.code != 0 {
            // For example, a partial clone lacks some of them.
            tracing::warn!("cannot copy the objects of {}: {}", at.work_tree.display(), output.err);
        }
        Ok(())
    }

    /// Moves the git folders of submodules into the place, and connects them with their checkouts.
    fn move_submodules(&self, root: &Path, linked: &Path) -> Result<(), RepositoryError> {
        let old = linked.join(MODULES_FOLDER);
        let new = root.join(".git").join(MODULES_FOLDER);
        if is_folder(&old) && !is_folder(&new) {
            fs::rename(&old, &new).map_err(|error| failed("move", &old, &error))?;
        }
        let [Ok(root), Ok(linked)] = [root, linked].map(Path::canonicalize) else { return Ok(()) };
        let mut folders = vec![PathBuf::from(MODULES_FOLDER)];
        while let Some(folder) = folders.pop() {
            for module in files::entries(&root.join(".git").join(&folder)).filter(|entry| is_folder(entry)) {
                let Some(name) = module.file_name().map(|name| folder.join(name)) else { continue };
                if module.join("HEAD").is_file() {
                    self.connect_submodule(&root, &linked, &name)?;
                    folders.push(name.join(MODULES_FOLDER));
                } else {
                    folders.push(name);
                }
            }
        }
        Ok(())
    }

    /// Changes the paths that connect a submodule's git folder `name` with its checkout, unless they are right. Links are not followed:
    /// a command could have made them.
    fn connect_submodule(&self, root: &Path, linked: &Path, name: &Path) -> Result<(), RepositoryError> {
        let own = Path::new(".git").join(name);
        let config = root.join(&own).join("config");
        if !config.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(());
        }
        let setting = [OsStr::new("config"), OsStr::new("--file"), config.as_os_str(), OsStr::new("core.worktree")];
        let output = self.git(setting).run()?.out;
        let checkout = normalized(&linked.join(name).join(path_of(output.trim_ascii_end())));
        let Ok(path) = checkout.strip_prefix(root) else { return Ok(()) };
        let pointer = checkout.join(".git");
        let is_its_own = checkout.canonicalize().is_ok_and(|real| real == checkout) && pointer.is_file();
        if !is_its_own {
            return Ok(());
        }
        let up = |path: &Path| path.components().map(|_| "..").collect::<PathBuf>();
        files::replace(&pointer, &format!("gitdir: {}\n", up(path).join(&own).display()))?;
        let value = up(&own).join(path);
        self.git(setting.into_iter().chain([value.as_os_str()])).ok().map(drop)
    }
}

/// Returns true if Brigade made the linked worktree, or its branch is one of Brigade's.
fn is_of_brigade(linked: &Path) -> bool {
    let head = files::text(&linked.join("HEAD")).unwrap_or_default();
    let is_on = |first: &&str| head.starts_with(&format!("ref: refs/heads/{first}/"));
    linked.join(MARK_FILE).exists() || [TEAM_BRANCHES, TASK_BRANCHES].iter().any(is_on)
}

/// Copies the plain files of a linked git folder, but no locks: their git has ended. Submodules are moved later.
fn copy_folder(from: &Path, to: &Path) -> Result<(), RepositoryError> {
    fs::create_dir_all(to).map_err(|error| failed("create", to, &error))?;
    for entry in files::entries(from) {
        let Some(name) = entry.file_name() else { continue };
        let target = to.join(name);
        let is_lock = entry.extension().is_some_and(|end| end == "lock");
        match entry.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() && name != MODULES_FOLDER => copy_folder(&entry, &target)?,
            Ok(metadata) if metadata.is_file() && !is_lock && !LINK_FILES.iter().any(|file| name == *file) => {
                files::copy_file(&entry, &target)?;
                // The original is removed soon.
                let synced = File::open(&target).and_then(|file| file.sync_all());
                synced.map_err(|error| failed("write", &target, &error))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The path without `..`, as if it had no links.
fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, component| {
        if component == Component::ParentDir {
            whole.pop();
        } else {
            whole.push(component);
        }
        whole
    })
}
