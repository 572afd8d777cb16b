//! The objects that a merge points to outside of the repository: commits of submodules, and objects of Git LFS. They are in the person's own
//! copies before the merge is made, so a person who has the merge can get them without the task's place.

use std::path::{Path, PathBuf};

use super::DriverOptions;
use super::RepositoryInner;
use super::command::{RepoPath, path_of, paths_ended_by, text_of};
use super::commits::list_files;
use super::fetching::Fetch;
use super::files::is_folder;
use super::index_flags::REPOSITORY_MODE;
use super::lfs::{POINTER_BYTES_MAX, object_of_pointer};
use super::merges::ChangedEntry;
use super::settings::Settings;
use crate::domain::git::dropped_lines::short_commit;
use crate::ports::{RepositoryError, Worktree};

/// The folder of the git folders of submodules; see gitrepository-layout(5).
const MODULES_FOLDER: &str = "modules";
/// The start of the mode of a file in a tree.
const FILE_MODE: &str = "100";

impl RepositoryInner {
    /// Takes the objects that the changed entries of a merge point to from the task's place. `tree` is the merged one. Returns a text for the
    /// author if one of them is nowhere.
    pub(super) fn take_linked_objects(
        &self,
        worktree: &Worktree,
        tree: &str,
        changed: &[ChangedEntry],
    ) -> Result<Option<String>, RepositoryError> {
        for link in changed.iter().filter(|entry| entry.after == REPOSITORY_MODE) {
            if let Some(refusal) = self.take_submodule_commit(worktree, tree, link)? {
                return Ok(Some(refusal));
            }
        }
        let missing = self.without_lfs_object(worktree, changed)?;
        Ok((!missing.is_empty()).then(|| {
            format!(
                "the task branch has pointers of Git LFS whose objects are missing: {}. Write the content of each file again, git add it and commit",
                list_files(&missing)
            )
        }))
    }

    fn take_submodule_commit(
        &self,
        worktree: &Worktree,
        tree: &str,
        link: &ChangedEntry,
    ) -> Result<Option<String>, RepositoryError> {
        let (path, commit) = (text_of(&link.path), link.object.as_str());
        let name = self.main.submodule_name(tree, &link.path)?;
        let Some(own) = self.main.submodule(name.as_deref(), &link.path) else {
            return Ok(Some(format!(
                "the task branch changes the submodule {path}, and the person's repository has no copy of it that could get the commit. Undo the change, or ask the person to run git submodule update --init {path}"
            )));
        };
        if !own.is_complete(commit)? {
            let source = submodule_of_place(&worktree.root, name.as_deref(), &link.path);
            let fetched = match &source {
                Some(source) => own.fetch_commit(source, commit)?,
                None => Fetch::Refused("your worktree has no copy of the submodule".to_owned()),
            };
            if let Fetch::Refused(reason) = fetched {
                return Ok(Some(format!(
                    "the task branch sets the submodule {path} to the commit {}, which no person could get after the merge: {reason}. Commit in {path} in your worktree, or set it to a commit that exists there",
                    short_commit(commit)
                )));
            }
        }
        own.set_ref(&format!("refs/brigade/{}/links/{commit}", self.branch.team), commit)?;
        Ok(None)
    }

    /// The changed files that are pointers of Git LFS without an object. The fetch of the task copied those of its place.
    fn without_lfs_object(
        &self,
        worktree: &Worktree,
        changed: &[ChangedEntry],
    ) -> Result<Vec<PathBuf>, RepositoryError> {
        let Some(at) = self.main.place_at(&worktree.root).map(RepoPath::confined) else { return Ok(Vec::new()) };
        if ![&at, &self.main].iter().any(|at| at.common_dir.join("lfs").exists()) {
            return Ok(Vec::new());
        }
        let files: Vec<&ChangedEntry> = changed.iter().filter(|entry| entry.after.starts_with(FILE_MODE)).collect();
        let ids: String = files.iter().map(|file| format!("{}\n", file.object)).collect();
        let sizes = self.main.git(["cat-file", "--batch-check=%(objectsize)"]).input(ids).ok()?.line();
        let mut missing = Vec::new();
        for (file, size) in files.into_iter().zip(sizes.lines()) {
            if size.parse().is_ok_and(|size: usize| size <= POINTER_BYTES_MAX) {
                let text = self.main.git(["cat-file", "blob", &file.object]).ok()?.out;
                if object_of_pointer(&text).is_some_and(|object| !self.main.common_dir.join(object).exists()) {
                    missing.push(file.path.clone());
                }
            }
        }
        if missing.is_empty() {
            return Ok(missing);
        }
        // A file that only looks like a pointer, such as an example in a document, has no filter.
        let call = at.git(["check-attr", "-z", "--stdin", "filter"]).input(paths_ended_by(0, &missing));
        let output = call.ok()?;
        let fields: Vec<&[u8]> = output.fields().collect();
        let of_lfs = fields.chunks_exact(3).filter(|fields| fields[2] == b"lfs");
        Ok(of_lfs.map(|fields| path_of(fields[0])).collect())
    }
}

impl RepoPath {
    /// The name of the submodule at this path, if `.gitmodules` of a tree names it.
    fn submodule_name(&self, tree: &str, path: &Path) -> Result<Option<PathBuf>, RepositoryError> {
        let file = format!("{tree}:.gitmodules");
        let output = self.git(["config", "--blob", &file, "-z", "--get-regexp", r"^submodule\..*\.path$"]).run()?;
        let name = output.fields().find_map(|setting| {
            let end = setting.iter().position(|byte| *byte == b'\n')?;
            let name = setting[..end].strip_prefix(b"submodule.")?.strip_suffix(b".path")?;
            (path_of(&setting[end + 1..]) == path).then(|| path_of(name))
        });
        // Such a name would lead out of the folder of all submodules.
        Ok(name.filter(|name| is_below(name)))
    }

    /// The git folder of the person's copy of a submodule.
    fn submodule(&self, name: Option<&Path>, path: &Path) -> Option<RepoPath> {
        let of_name = name
            .into_iter()
            .flat_map(|name| [&self.git_dir, &self.common_dir].map(|folder| folder.join(MODULES_FOLDER).join(name)));
        let git_dir = of_name.chain([self.work_tree.join(path).join(".git")]).find(|folder| is_folder(folder))?;
        let settings = Settings::new([&git_dir, &git_dir, &git_dir], DriverOptions::default());
        let (common_dir, work_tree) = (git_dir.clone(), git_dir.clone());
        Some(RepoPath { git_dir, common_dir, work_tree, settings, is_confined: false, ..self.clone() })
    }

    /// Returns true if this repository has a commit with all that it contains. A killed fetch may leave a part.
    fn is_complete(&self, commit: &str) -> Result<bool, RepositoryError> {
        let call = self.git(["rev-list", "--objects", "--quiet", commit, "--not", "--all"]);
        Ok(call.run()?.code == 0)
    }
}

/// The git folder of a submodule in the place of a task. Commands may have put links there, which are not followed.
fn submodule_of_place(root: &Path, name: Option<&Path>, path: &Path) -> Option<PathBuf> {
    let root = root.canonicalize().ok()?;
    let of_name = name.map(|name| root.join(".git").join(MODULES_FOLDER).join(name));
    let folders = of_name.into_iter().chain([root.join(path).join(".git")]);
    folders.into_iter().find(|folder| is_folder(folder) && folder.canonicalize().is_ok_and(|real| real == *folder))
}

/// Returns true if a path has only names: it leads to something below the folder that it is joined to.
fn is_below(path: &Path) -> bool {
    use std::path::Component;
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}
