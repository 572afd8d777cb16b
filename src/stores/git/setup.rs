//! The set-up of worktrees before commands run there: copied files, ports, and the record that the setup command succeeded.
//!
//! Git must ignore each copied file, so that `git add`, `git status` and `git clean` leave it alone. [`RepositoryInner::committed_copies`]
//! finds the commits of a teammate that have it all the same.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::command::{RepoPath, path_of, paths_ended_by, pathspec, text_of};
use super::commits::list_files;
use super::index_flags::REPOSITORY_MODE;
use super::removal::remove_file;
use super::worktrees::failed;
use super::{RepositoryInner, bounded_read};
use crate::domain::worktree_name::merge_folder;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{PORTS, PendingSetup, RepositoryError, Setup, SetupPlace};

/// The file in a worktree's git folder with the key of the setup that succeeded there.
pub(super) const SETUP_FILE: &str = "brigade-setup";
/// The file in a worktree's git folder with the first of its ports.
const PORT_FILE: &str = "brigade-port";
/// The first port that a worktree gets. All are below the ports that systems give to outgoing connections.
const PORT_MIN: u16 = 20_000;
/// The number of worktrees that can have ports.
const PORT_BLOCKS: u16 = 1_200;
/// The largest file that is copied, in bytes.
const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Fills in the submodules. `git submodule init` would write into the repository's settings.
const UPDATE_SUBMODULES: &str = "git -c submodule.active=. submodule --quiet update --recursive";
/// The mode of a folder in a tree.
const FOLDER_MODE: &str = "040000";

/// A file of the workspace that worktrees get.
struct CopiedFile<'a> {
    path: &'a Path,
    content: Vec<u8>,
    permissions: fs::Permissions,
}

impl RepositoryInner {
    /// The folder of a worktree that is set up.
    fn setup_root(&self, place: &SetupPlace) -> PathBuf {
        match place {
            SetupPlace::Task(worktree) => worktree.root.clone(),
            SetupPlace::Merge(_) => self.main.work_tree.join(merge_folder(&self.team)),
            SetupPlace::Team => self.team_worktree().root,
        }
    }

    fn setup_path(&self, place: &SetupPlace) -> Result<RepoPath, RepositoryError> {
        let root = self.setup_root(place);
        self.repo_path_of(&root).ok_or_else(|| failed("set up", &root, &"it is not a worktree any more"))
    }

    pub(super) fn prepare_setup(&self, place: &SetupPlace) -> Result<Setup, RepositoryError> {
        let at = self.setup_path(place)?;
        let port_base = self.port_base(&at)?;
        let files = self.copied_files()?;
        let submodules = self.setup.submodules.then_some(UPDATE_SUBMODULES);
        let parts: Vec<&str> = submodules.into_iter().chain(self.setup.command.as_deref()).collect();
        if parts.is_empty() && files.is_empty() {
            return Ok(Setup { port_base, pending: None });
        }
        let (inputs, is_changed_by_task) = match place {
            // Its teammate keeps it up to date with its own changes.
            SetupPlace::Task(_) => (Vec::new(), false),
            SetupPlace::Team => (self.setup_inputs(&at, "HEAD")?, false),
            SetupPlace::Merge(merge) => {
                let inputs = self.setup_inputs(&at, &merge.commit)?;
                let before = self.setup_inputs(&at, &merge.onto)?;
                let is_changed = inputs != before;
                (inputs, is_changed)
            }
        };
        let command = parts.join(" && ");
        let mut text = format!("{command}\0").into_bytes();
        for file in &files {
            text.extend(format!("{}\0{}\0", text_of(file.path), file.content.len()).as_bytes());
            text.extend(&file.content);
        }
        text.extend(inputs);
        let key = at.git(["hash-object", "--stdin"]).input(text).ok()?.line();
        let is_current = bounded_read::text(&at.git_dir.join(SETUP_FILE)).is_some_and(|recorded| recorded == key);
        write_copies(&at, &files, is_current)?;
        if is_current {
            return Ok(Setup { port_base, pending: None });
        }
        if command.is_empty() {
            write_record(&at, SETUP_FILE, &key)?;
            return Ok(Setup { port_base, pending: None });
        }
        let mut writable = Vec::new();
        if submodules.is_some() {
            let modules = at.git_dir.join("modules");
            fs::create_dir_all(&modules).map_err(|error| failed("create", &modules, &error))?;
            writable.push(modules.canonicalize().unwrap_or(modules));
        }
        let timeout = self.setup_timeout;
        Ok(Setup { port_base, pending: Some(PendingSetup { command, timeout, writable, key, is_changed_by_task }) })
    }

    pub(super) fn record_setup(&self, place: &SetupPlace, key: &str) -> Result<(), RepositoryError> {
        write_record(&self.setup_path(place)?, SETUP_FILE, key)
    }

    /// The files in the top folder of a commit, where package managers keep their lists, and its submodules.
    fn setup_inputs(&self, at: &RepoPath, commit: &str) -> Result<Vec<u8>, RepositoryError> {
        let depth: &[&str] = if self.setup.submodules { &["-r"] } else { &[] };
        let output = at.git(["ls-tree", "-z"].iter().chain(depth).chain(&[commit])).ok()?;
        let is_input = |entry: &&[u8]| {
            entry.starts_with(REPOSITORY_MODE.as_bytes())
                || !entry.starts_with(FOLDER_MODE.as_bytes()) && !entry.contains(&b'/')
        };
        Ok(output.fields().filter(is_input).flat_map(|entry| [entry, b"\0"].concat()).collect())
    }

    fn copied_files(&self) -> Result<Vec<CopiedFile<'_>>, RepositoryError> {
        let workspace = &self.main.work_tree;
        let read = |path: &PathBuf| -> std::io::Result<(Vec<u8>, fs::Permissions)> {
            let file = reading::open(&workspace.join(path), AllowedKinds::FilesWithin(workspace))?;
            let permissions = file.metadata()?.permissions();
            Ok((reading::read_all(file, COPY_BYTES_MAX)?, permissions))
        };
        let copied = |path| match read(path) {
            Ok((content, permissions)) => Ok(CopiedFile { path, content, permissions }),
            Err(error) => {
                let reason = format!("cannot copy {} into worktrees: {error}", path.display());
                Err(RepositoryError::unusable_until(reason, "create it, or remove it from `copy`"))
            }
        };
        self.setup.copy.iter().map(copied).collect()
    }

    /// Returns the reason if commits of a worktree's branch contain copied files, for the teammate to fix.
    pub(super) fn committed_copies(&self, at: &RepoPath) -> Result<Option<String>, RepositoryError> {
        if self.setup.copy.is_empty() {
            return Ok(None);
        }
        let target = &self.target_branch;
        let exclude = format!("^{}", self.target_ref());
        let options = ["log", "-z", "-m", "--full-history", "--no-renames", "--format=", "--name-only", "HEAD"];
        let start = options.into_iter().chain([exclude.as_str(), "--"]).map(Into::into);
        let output = at.git(start.chain(self.setup.copy.iter().map(|path| pathspec("", path)))).ok()?;
        let mut files: Vec<PathBuf> = output.fields().map(path_of).collect();
        files.sort_unstable();
        files.dedup();
        Ok((!files.is_empty()).then(|| {
            format!(
                "commits of the task branch contain {}, which Brigade copied into your worktree and which must not be committed. Run git reset --soft $(git merge-base HEAD {target}) in it, and complete the task again: your other changes are then committed",
                list_files(&files)
            )
        }))
    }

    /// Removes the copied files from an index, in case a teammate's rules do not ignore them.
    pub(super) fn unstage_copies(
        &self,
        at: &RepoPath,
        variables: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<(), RepositoryError> {
        if self.setup.copy.is_empty() {
            return Ok(());
        }
        let paths = paths_ended_by(0, &self.setup.copy);
        let call = at.git(["update-index", "--force-remove", "-z", "--stdin"]).input(paths);
        call.variables(variables).ok().map(drop)
    }

    /// The first port of a worktree. It gets ports at its first call, which no other worktree of the repository has and no program of
    /// this machine uses.
    fn port_base(&self, at: &RepoPath) -> Result<u16, RepositoryError> {
        let _worktree_list = self.lock_worktree_list();
        if let Some(port) = recorded_port(&at.git_dir) {
            return Ok(port);
        }
        let entries = fs::read_dir(self.main.common_dir.join("worktrees")).into_iter().flatten().flatten();
        let taken: HashSet<u16> = entries.filter_map(|entry| recorded_port(&entry.path())).collect();
        // Repositories do not know each other's worktrees, so they begin at different ports.
        let mut hasher = DefaultHasher::new();
        at.work_tree.hash(&mut hasher);
        let first = u16::try_from(hasher.finish() % u64::from(PORT_BLOCKS)).unwrap_or(0);
        let bases = (0..PORT_BLOCKS).map(|block| PORT_MIN + (first + block) % PORT_BLOCKS * PORTS);
        let is_free = |base: &u16| {
            let mut ports = *base..*base + PORTS;
            !taken.contains(base) && ports.all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        };
        let port = { bases }.find(is_free).ok_or_else(|| RepositoryError::Failed {
            action: format!("set up {}", at.work_tree.display()),
            reason: format!("no {PORTS} ports in a row are free"),
        })?;
        write_record(at, PORT_FILE, &port.to_string())?;
        Ok(port)
    }
}

fn recorded_port(git_dir: &Path) -> Option<u16> {
    bounded_read::text(&git_dir.join(PORT_FILE))?.parse().ok()
}

/// Replaces a file in a worktree's git folder.
fn write_record(at: &RepoPath, name: &str, text: &str) -> Result<(), RepositoryError> {
    let path = at.git_dir.join(name);
    let new = path.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(|error| failed("write", &path, &error))
}

/// Writes the files, or those that are missing if the worktree is set up already.
fn write_copies(at: &RepoPath, files: &[CopiedFile<'_>], only_missing: bool) -> Result<(), RepositoryError> {
    if files.is_empty() {
        return Ok(());
    }
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path.to_owned()).collect();
    let ignored = at.git(["check-ignore", "-z", "--stdin"]).input(paths_ended_by(0, &paths)).run()?;
    if let Some(path) = paths.iter().find(|path| !ignored.fields().any(|field| path_of(field) == **path)) {
        let reason = format!("cannot copy {} into worktrees: git does not ignore it there", path.display());
        let hint = "add it to .gitignore, commit that and launch again. A file that git tracks needs no copy";
        return Err(RepositoryError::unusable_until(reason, hint));
    }
    for file in files {
        let to = at.work_tree.join(file.path);
        if only_missing && to.symlink_metadata().is_ok() {
            continue;
        }
        // A teammate may have put a link there.
        let above = file.path.ancestors().skip(1);
        if let Some(link) = { above }.find(|above| at.work_tree.join(above).is_symlink()) {
            let reason = format!("{} is a link in it", link.display());
            return Err(failed("copy files into", &at.work_tree, &reason));
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|error| failed("create", folder, &error))?;
        }
        remove_file(&to)?;
        let written = OpenOptions::new().write(true).create_new(true).open(&to).and_then(|mut copy| {
            copy.set_permissions(file.permissions.clone())?;
            copy.write_all(&file.content)
        });
        written.map_err(|error| failed("write", &to, &error))?;
    }
    Ok(())
}

/// Returns `true` if a folder or something below it changed since the worktree was set up. If it was not, or if a folder cannot be read,
/// that counts as a change.
pub(super) fn has_changed_since_setup(at: &RepoPath, folder: &Path) -> bool {
    let set_up_at = at.git_dir.join(SETUP_FILE).metadata().and_then(|metadata| metadata.modified());
    set_up_at.map_or(true, |time| has_newer_entry(folder, time))
}

fn has_newer_entry(path: &Path, time: SystemTime) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return true };
    if changed_at(&metadata).is_none_or(|changed| changed >= time) {
        return true;
    }
    let is_newer =
        |entry: std::io::Result<fs::DirEntry>| entry.map_or(true, |entry| has_newer_entry(&entry.path(), time));
    metadata.is_dir() && fs::read_dir(path).map_or(true, |mut entries| entries.any(is_newer))
}

/// The time of the last change of a file's content, name or permissions. A program cannot set it.
#[cfg(unix)]
fn changed_at(metadata: &fs::Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt;
    let (seconds, nanoseconds) = (u64::try_from(metadata.ctime()).ok()?, u32::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

#[cfg(not(unix))]
fn changed_at(metadata: &fs::Metadata) -> Option<SystemTime> {
    metadata.modified().ok()
}
