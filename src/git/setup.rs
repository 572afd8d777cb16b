//! The set-up of worktrees before commands run there: copied files, ports, and the record that the setup command succeeded.
//!
//! Git must ignore each copied file, so that `git add`, `git status` and `git clean` leave it alone. A teammate can still commit one
//! with `git add --force`. [`SetupPlan::committed_copies`] finds such commits.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::RepositoryInner;
use super::command::{RepoPath, failure, path_of, paths_ended_by, pathspec, text_of};
use super::commits::list_files;
use super::files::{self, failed, remove_file};
use super::ignored_work::{add_setup_file, record_no_setup_files, record_setup_files};
use super::index_flags::REPOSITORY_MODE;
use super::team_branch::TeamBranch;
use crate::domain::git::worktree_name::{WORKTREES_FOLDER, merge_folder};
use crate::domain::team::team_spec::SetupSpec;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{PORTS_PER_WORKTREE, PendingSetup, RepositoryError, Setup, SetupPlace};

/// The file, in a worktree, with the key of the setup that succeeded there.
pub(super) const SETUP_FILE: &str = ".agent/setup";
/// The file, in a worktree, with the first of its ports.
pub(super) const PORT_FILE: &str = ".agent/port";
/// The first port that a worktree gets. All are below the ports that systems give to outgoing connections.
const PORT_MIN: u16 = 20_000;
/// The number of worktrees that can have ports.
const PORT_BLOCKS: u16 = 1_200;
/// The largest file that is copied, in bytes.
const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Checks out the submodules. `git submodule init` would write into the repository's settings.
const UPDATE_SUBMODULES: &str = "git -c submodule.active=. submodule --quiet update --recursive";
/// The mode of a folder in a tree.
const FOLDER_MODE: &str = "040000";

/// A file of the workspace that worktrees get.
struct CopiedFile<'a> {
    path: &'a PathBuf,
    content: Vec<u8>,
    permissions: fs::Permissions,
}

/// The files that worktrees get, and the commands that run there first.
pub(super) struct SetupPlan {
    /// The person's checkout.
    pub main: RepoPath,
    pub spec: SetupSpec,
    /// The time limit of the commands.
    pub timeout: Duration,
    /// Held while a worktree gets its ports.
    pub ports_lock: Mutex<()>,
}

impl RepositoryInner {
    /// Returns the worktree that is set up.
    fn setup_path(&self, place: &SetupPlace) -> Result<RepoPath, RepositoryError> {
        let (root, is_confined) = match place {
            SetupPlace::Task(root) => (root.clone(), true),
            SetupPlace::Merge(_) => (self.main.work_tree.join(merge_folder(&self.branch.team)), false),
            SetupPlace::Team => (self.branch.team_worktree().root, false),
        };
        let at = self.main.place_at(&root);
        let at = at.ok_or_else(|| failed("set up", &root, &"it is not a worktree any more"))?;
        Ok(RepoPath { is_confined, ..at })
    }

    pub(super) fn prepare_setup(&self, place: &SetupPlace) -> Result<Setup, RepositoryError> {
        self.setup.prepare(place, &self.setup_path(place)?, &self.keep)
    }

    pub(super) fn record_setup(&self, place: &SetupPlace, key: &str) -> Result<(), RepositoryError> {
        let at = self.setup_path(place)?;
        if matches!(place, SetupPlace::Task(_)) {
            record_setup_files(&self.main, &at, &self.keep)?;
        }
        files::replace(&at.work_tree.join(SETUP_FILE), key)
    }
}

impl SetupPlan {
    /// Prepares the worktree at this path for its first command.
    fn prepare(&self, place: &SetupPlace, at: &RepoPath, keep: &[String]) -> Result<Setup, RepositoryError> {
        let port_base = self.port_base(at)?;
        let pending = self.copy_files(place, at)?;
        if matches!(place, SetupPlace::Task(_)) && pending.is_none() {
            match at.work_tree.join(SETUP_FILE).symlink_metadata() {
                Ok(_) => record_setup_files(&self.main, at, keep)?,
                Err(_) => record_no_setup_files(&at.work_tree)?,
            }
        }
        Ok(Setup { port_base, pending })
    }

    /// Copies the files. Returns the commands that must run, unless they succeeded here with the same files before.
    fn copy_files(&self, place: &SetupPlace, at: &RepoPath) -> Result<Option<PendingSetup>, RepositoryError> {
        let files = self.copied_files()?;
        let submodules = self.spec.submodules.then_some(UPDATE_SUBMODULES);
        let commands: Vec<&str> = submodules.into_iter().chain(self.spec.command.as_deref()).collect();
        if commands.is_empty() && files.is_empty() {
            return Ok(None);
        }
        // The setup command can be a list of commands.
        let command = commands.join(" || exit; ");
        let mut is_changed_by_task = false;
        let inputs = match place {
            // The teammate updates its own worktree after its changes.
            SetupPlace::Task(_) => Vec::new(),
            SetupPlace::Team => self.inputs_of(at, "HEAD")?,
            SetupPlace::Merge(merge) => {
                let inputs = self.inputs_of(at, &merge.commit)?;
                is_changed_by_task = inputs != self.inputs_of(at, &merge.onto)?;
                inputs
            }
        };
        let key = setup_key(at, &command, &files, &inputs)?;
        let is_current = files::text(&at.work_tree.join(SETUP_FILE)).is_some_and(|recorded| recorded == key);
        check_ignored(at, &files)?;
        for file in &files {
            if !is_current || at.work_tree.join(file.path).symlink_metadata().is_err() {
                write_copy(at, file)?;
                add_setup_file(&at.work_tree, file.path)?;
            }
        }
        if is_current {
            return Ok(None);
        }
        if command.is_empty() {
            files::replace(&at.work_tree.join(SETUP_FILE), &key)?;
            return Ok(None);
        }
        let mut writable = Vec::new();
        if submodules.is_some() {
            // A command may have put a link there, which the sandbox refuses.
            let modules = at.git_dir.canonicalize().unwrap_or_else(|_| at.git_dir.clone()).join("modules");
            fs::create_dir_all(&modules).map_err(|error| failed("create", &modules, &error))?;
            writable.push(modules);
        }
        Ok(Some(PendingSetup { command, timeout: self.timeout, writable, key, is_changed_by_task }))
    }

    /// Returns the entries of a commit that a setup command may depend on. These are its submodules and the files in its top folder, such
    /// as lists of packages.
    fn inputs_of(&self, at: &RepoPath, commit: &str) -> Result<Vec<u8>, RepositoryError> {
        let depth: &[&str] = if self.spec.submodules { &["-r"] } else { &[] };
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
                Err(RepositoryError::unusable_until(reason, "`copy` names plain files: correct it, or create the file"))
            }
        };
        self.spec.copy.iter().map(copied).collect()
    }

    /// Returns a text for the teammate if commits of its task branch contain copied files. `branch` is the branch for its merge.
    pub(super) fn committed_copies(
        &self,
        at: &RepoPath,
        branch: &TeamBranch,
    ) -> Result<Option<String>, RepositoryError> {
        if self.spec.copy.is_empty() {
            return Ok(None);
        }
        if let Some(file) = self.spec.copy.iter().find(|file| !can_copy(at, file)) {
            return Ok(Some(format!(
                "your work keeps Brigade from copying {} into worktrees: git must ignore it (.gitignore), and its folders must stay folders. Undo that change, and complete the task again",
                file.display()
            )));
        }
        let target = self.main.name_in_commands(&branch.name)?;
        let exclude = format!("^{}", branch.target_commit()?);
        let options = ["log", "-z", "-m", "--full-history", "--no-renames", "--format=", "--name-only", "HEAD"];
        let start = options.into_iter().chain([exclude.as_str(), "--"]).map(Into::into);
        let output = at.git(start.chain(self.spec.copy.iter().map(|path| pathspec("", path)))).ok()?;
        let mut files: Vec<PathBuf> = output.fields().map(path_of).collect();
        files.sort_unstable();
        files.dedup();
        if files.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "commits of the task branch contain {}, which Brigade copied into your worktree and which must not be committed. Run git reset --soft $(git merge-base HEAD {target}) in it, and complete the task again: your other changes are then committed",
            list_files(&files)
        )))
    }

    /// Removes the copied files from an index. The teammate may have changed the rules that ignore them.
    pub(super) fn unstage_copies(
        &self,
        at: &RepoPath,
        variables: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<(), RepositoryError> {
        if self.spec.copy.is_empty() {
            return Ok(());
        }
        let paths = paths_ended_by(0, &self.spec.copy);
        let call = at.git(["update-index", "--force-remove", "-z", "--stdin"]).input(paths);
        call.variables(variables).ok().map(drop)
    }

    /// Returns the first port of a worktree. The first call reserves ports that no other worktree of the workspace has and no program
    /// of this machine uses.
    fn port_base(&self, at: &RepoPath) -> Result<u16, RepositoryError> {
        let _ports_guard = self.ports_lock.lock();
        if let Some(port) = recorded_port(&at.work_tree) {
            return Ok(port);
        }
        let places = files::entries(&self.main.work_tree.join(WORKTREES_FOLDER));
        let taken: HashSet<u16> = places.filter_map(|place| recorded_port(&place)).collect();
        // Repositories do not know the ports of each other, so their worktrees begin at different ones.
        let mut hasher = DefaultHasher::new();
        at.work_tree.hash(&mut hasher);
        let first = u16::try_from(hasher.finish() % u64::from(PORT_BLOCKS)).unwrap_or(0);
        let mut bases = (0..PORT_BLOCKS).map(|block| PORT_MIN + (first + block) % PORT_BLOCKS * PORTS_PER_WORKTREE);
        let is_free = |base: &u16| {
            let mut ports = *base..*base + PORTS_PER_WORKTREE;
            !taken.contains(base) && ports.all(is_port_free)
        };
        let port = bases.find(is_free).ok_or_else(|| RepositoryError::Failed {
            action: format!("set up {}", at.work_tree.display()),
            reason: format!("no {PORTS_PER_WORKTREE} ports in a row are free"),
        })?;
        files::replace(&at.work_tree.join(PORT_FILE), &port.to_string())?;
        Ok(port)
    }
}

/// Returns true if no program listens on this port of the loopback addresses. Some development servers listen on `::1` alone.
fn is_port_free(port: u16) -> bool {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let is_used = |error: std::io::Error| error.kind() == ErrorKind::AddrInUse;
    !loopback.into_iter().any(|address| TcpListener::bind((address, port)).is_err_and(is_used))
}

fn recorded_port(worktree: &Path) -> Option<u16> {
    files::text(&worktree.join(PORT_FILE))?.parse().ok()
}

/// Returns a hash of everything that a set-up depends on.
fn setup_key(at: &RepoPath, command: &str, files: &[CopiedFile<'_>], inputs: &[u8]) -> Result<String, RepositoryError> {
    let mut text = format!("{command}\0").into_bytes();
    for file in files {
        text.extend(format!("{}\0{}\0", text_of(file.path), file.content.len()).as_bytes());
        text.extend(&file.content);
    }
    text.extend(inputs);
    Ok(at.git(["hash-object", "--stdin"]).input(text).ok()?.line())
}

/// Refuses copied files that git does not ignore in the worktree.
fn check_ignored(at: &RepoPath, files: &[CopiedFile<'_>]) -> Result<(), RepositoryError> {
    if files.is_empty() {
        return Ok(());
    }
    let paths = paths_ended_by(0, files.iter().map(|file| file.path));
    let ignored = at.git(["check-ignore", "-z", "--stdin"]).input(paths).run()?;
    if ignored.code > 1 {
        return Err(failure("run git check-ignore".to_owned(), &ignored.err));
    }
    let Some(file) = files.iter().find(|file| !ignored.fields().any(|field| path_of(field) == *file.path)) else {
        return Ok(());
    };
    let reason = format!("cannot copy {} into worktrees: git does not ignore it there", file.path.display());
    let hint = "add it to .gitignore, commit that and launch again. A file that git tracks needs no copy";
    Err(RepositoryError::unusable_until(reason, hint))
}

/// Returns true if git ignores this file in the worktree, and no file or link replaces one of its folders.
fn can_copy(at: &RepoPath, file: &PathBuf) -> bool {
    let is_folder_free =
        |folder: &Path| at.work_tree.join(folder).symlink_metadata().map_or(true, |metadata| metadata.is_dir());
    let ignored = at.git(["check-ignore", "--no-index", "-z", "--stdin"]).input(paths_ended_by(0, [file])).run();
    file.ancestors().skip(1).all(is_folder_free)
        && ignored.is_ok_and(|ignored| ignored.fields().any(|field| path_of(field) == *file))
}

/// Writes a copied file into a worktree, and follows no link there.
fn write_copy(at: &RepoPath, file: &CopiedFile<'_>) -> Result<(), RepositoryError> {
    let mut above = file.path.ancestors().skip(1);
    if let Some(link) = above.find(|above| at.work_tree.join(above).is_symlink()) {
        let reason = format!("{} is a link in it", link.display());
        return Err(failed("copy files into", &at.work_tree, &reason));
    }
    let to = at.work_tree.join(file.path);
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| failed("create", folder, &error))?;
    }
    remove_file(&to)?;
    let written = OpenOptions::new().write(true).create_new(true).open(&to).and_then(|mut copy| {
        copy.set_permissions(file.permissions.clone())?;
        copy.write_all(&file.content)
    });
    written.map_err(|error| failed("write", &to, &error))
}

/// Returns true if a folder or something below it changed since the worktree was set up. It also does if the worktree was never set up,
/// or if a folder cannot be read.
pub(super) fn has_changed_since_setup(at: &RepoPath, folder: &Path) -> bool {
    let set_up_at = at.work_tree.join(SETUP_FILE).metadata().and_then(|metadata| metadata.modified());
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

/// Returns the time of the last change of a file's content, name or permissions. Programs cannot set this time.
fn changed_at(metadata: &fs::Metadata) -> Option<SystemTime> {
    let (seconds, nanoseconds) = (u64::try_from(metadata.ctime()).ok()?, u32::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}
