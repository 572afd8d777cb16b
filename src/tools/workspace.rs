//! The workspace as file tools see it: nothing outside it, and its control files neither read nor written.
//!
//! Confinement is structural: all paths are opened below one directory handle (cap-std), so neither `..` nor a symbolic
//! link leads out. Control files are known by where a path leads, and by what file it is: other spellings, links and case-blind
//! file systems do not help.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cap_std::fs::{Dir, Metadata};

use super::{ReadOnly, ToolContext, ToolError};
use crate::platform::{Folder, Identity, identity_of};

/// The most symbolic links a path may lead through, as in the kernel.
const LINKS_MAX: u32 = 40;

/// What a file tool needs of its context, to take along to another thread.
#[derive(Debug, Clone)]
pub(super) struct WorkspaceRoot {
    root: PathBuf,
    control_files: Arc<[PathBuf]>,
    read_only: Option<ReadOnly>,
    /// The most a tool hands back, in bytes.
    pub output_bytes_max: usize,
}

impl WorkspaceRoot {
    pub(super) fn of(context: &ToolContext) -> Self {
        Self {
            root: context.workspace.clone(),
            control_files: Arc::clone(&context.control_files),
            read_only: context.read_only,
            output_bytes_max: context.limits.output_bytes_max,
        }
    }

    /// Does file work off the runtime's threads. When the caller is dropped the work is told to stop.
    pub(super) async fn work<R: Send + 'static>(
        self,
        work: impl FnOnce(&Workspace) -> Result<R, ToolError> + Send + 'static,
    ) -> Result<R, ToolError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_on_drop = StopOnDrop(Arc::clone(&stop));
        let done = tokio::task::spawn_blocking(move || {
            let open = || {
                let folder = Folder::open(&self.root)?;
                Ok((folder.to_dir()?, folder))
            };
            let (dir, folder) = open().map_err(|error: io::Error| {
                ToolError::Fatal(format!("open workspace {}: {error}", self.root.display()))
            })?;
            work(&Workspace { root: self, folder, dir, stop })
        })
        .await;
        drop(stop_on_drop);
        done.unwrap_or_else(|error| Err(ToolError::Fatal(format!("a file tool broke off: {error}"))))
    }
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The open workspace.
pub(super) struct Workspace {
    root: WorkspaceRoot,
    /// Its folder, to open what lies in it step by step.
    folder: Folder,
    /// The same, by whole paths.
    pub dir: Dir,
    stop: Arc<AtomicBool>,
}

impl Workspace {
    /// Where the workspace is.
    pub(super) fn root(&self) -> &Path {
        &self.root.root
    }

    /// The control files as a walk meets them, relative to the workspace: those at its top under whatever spelling, others by
    /// their own.
    pub(super) fn control_paths(&self) -> Vec<PathBuf> {
        let names = self.dir.entries().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
        names
            .filter(|name| self.control_file_at(Path::new(name)).is_some())
            .map(PathBuf::from)
            .chain(self.root.control_files.iter().cloned())
            .collect()
    }

    /// Which files the control files are, whatever they are called.
    pub(super) fn control_identities(&self) -> Vec<Identity> {
        let controls = self.root.control_files.iter();
        controls.filter_map(|control| identity(self.dir.metadata(control).ok()?)).collect()
    }

    /// Opens a plain file to read it, by a path that [`Workspace::resolve`] returned.
    ///
    /// # Errors
    /// What lies there, or above it, became something else since: a link, a pipe, a control file.
    pub(super) fn open_file(&self, resolved: &Path) -> io::Result<File> {
        let name = resolved.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let file = self.open_folder(resolved.parent().unwrap_or(Path::new("")))?.open_for_reading(name)?;
        refuse_control(&self.control_identities(), identity_of(&file.metadata()?))?;
        Ok(file)
    }

    /// Opens a folder by a path that [`Workspace::resolve`] returned: one after the other from the workspace on, none of them a link.
    ///
    /// # Errors
    /// As [`Workspace::open_file`].
    pub(super) fn open_folder(&self, resolved: &Path) -> io::Result<Folder> {
        self.descend(resolved, |folder, name| folder.open_folder(name))
    }

    /// The same, for one that is made where it is missing.
    ///
    /// # Errors
    /// As [`Workspace::open_file`].
    pub(super) fn make_folder(&self, resolved: &Path) -> io::Result<Folder> {
        self.descend(resolved, |folder, name| match folder.open_folder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match folder.to_dir()?.create_dir(name) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
                folder.open_folder(name)
            }
            opened => opened,
        })
    }

    fn descend(&self, resolved: &Path, step: impl Fn(&Folder, &OsStr) -> io::Result<Folder>) -> io::Result<Folder> {
        let controls = self.control_identities();
        let mut folder = self.folder.again()?;
        for part in resolved.components().filter(|part| *part != Component::CurDir) {
            folder = step(&folder, part.as_os_str())?;
            refuse_control(&controls, folder.identity())?;
        }
        Ok(folder)
    }

    /// The most a tool hands back, in bytes.
    pub(super) fn output_bytes_max(&self) -> usize {
        self.root.output_bytes_max
    }

    /// Whether nobody waits for the result any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Where `path` leads, relative to the workspace and without symbolic links; `.` is the workspace itself. The last parts
    /// may be missing.
    ///
    /// # Errors
    /// When it leads out of the workspace or to a control file.
    pub(super) fn resolve(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.relative(path)?;
        let resolved = self.canonical(&relative, 0).map_err(|error| describe("find", path, &error))?;
        match self.control_file_at(&resolved) {
            Some(control) => Err(refuse_control_file(path, control)),
            None => Ok(resolved),
        }
    }

    /// Where `path` leads, as [`Workspace::resolve`], for one that is to be written.
    ///
    /// # Errors
    /// Also where nothing may be written.
    pub(super) fn resolve_to_write(&self, path: &str) -> Result<PathBuf, ToolError> {
        if let Some(why) = self.root.read_only {
            return Err(ToolError::Mendable(why.words().to_owned()));
        }
        self.resolve(path)
    }

    fn relative(&self, path: &str) -> Result<PathBuf, ToolError> {
        let path_given = Path::new(path);
        if path.is_empty() || path.contains('\0') {
            return Err(ToolError::Mendable("argument `path` is empty or has a NUL character".to_owned()));
        }
        if !path_given.is_absolute() {
            return Ok(path_given.to_owned());
        }
        let root = self.root.root.canonicalize().unwrap_or_default();
        let inside = path_given.strip_prefix(self.root()).or_else(|_| path_given.strip_prefix(&root));
        match inside {
            Ok(inside) if inside.as_os_str().is_empty() => Ok(PathBuf::from(".")),
            Ok(inside) => Ok(inside.to_owned()),
            Err(_) => Err(outside(path)),
        }
    }

    /// `path` without links and `..`. Only folders are asked of cap-std: its answer for a file that somebody replaces at that
    /// moment is the name of a deleted one.
    fn canonical(&self, path: &Path, links: u32) -> io::Result<PathBuf> {
        let Some(name) = path.file_name() else {
            let canonical = self.dir.canonicalize(path)?;
            return Ok(if canonical.as_os_str().is_empty() { PathBuf::from(".") } else { canonical });
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = self.canonical(parent, links)?;
        let there = if parent == Path::new(".") { PathBuf::from(name) } else { parent.join(name) };
        match self.dir.symlink_metadata(&there) {
            Ok(metadata) if metadata.is_symlink() => {
                if links >= LINKS_MAX {
                    return Err(io::Error::other("too many symbolic links"));
                }
                let leads_to = self.dir.read_link(&there)?;
                self.canonical(&there.with_file_name(leads_to), links + 1)
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(there),
        }
    }

    /// The control file that a resolved path is or lies in.
    pub(super) fn control_file_at(&self, resolved: &Path) -> Option<&Path> {
        let parts: Vec<Component<'_>> = resolved.components().filter(|part| *part != Component::CurDir).collect();
        let controls = self.root.control_files.iter();
        let known: Vec<_> =
            controls.map(|control| (control.as_path(), self.dir.metadata(control).ok().and_then(identity))).collect();
        (1..=parts.len()).find_map(|count| {
            let prefix: PathBuf = parts[..count].iter().collect();
            let what = self.dir.metadata(&prefix).ok().and_then(identity);
            known
                .iter()
                .find(|(control, is)| is_same_spelling(control, &prefix) || (what.is_some() && what == *is))
                .map(|(control, _)| *control)
        })
    }
}

fn is_same_spelling(a: &Path, b: &Path) -> bool {
    a.as_os_str().eq_ignore_ascii_case(b.as_os_str())
}

/// What file it is, whatever it is called.
#[cfg(unix)]
fn identity(metadata: Metadata) -> Option<Identity> {
    use cap_std::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: Metadata) -> Option<Identity> {
    None
}

fn refuse_control(controls: &[Identity], found: Option<Identity>) -> io::Result<()> {
    match found {
        Some(found) if controls.contains(&found) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it became one of Brigade's control files just now"))
        }
        _ => Ok(()),
    }
}

fn outside(path: &str) -> ToolError {
    ToolError::Mendable(format!("`{path}` is outside the workspace; file tools reach nothing there"))
}

fn refuse_control_file(path: &str, control: &Path) -> ToolError {
    let instead = match control.to_str().unwrap_or_default() {
        ".tasks" => "use task_list, task_get, task_create and task_update for the board",
        ".team" => "use read_inbox and send_message for mail",
        "agent_state.json" => "it is the person's to steer the team with",
        ".git" | ".agent" => "git and Brigade keep there what they know of the worktree",
        "brigade.toml" => "the team's config is changed by a person only",
        _ => "file tools leave it alone",
    };
    ToolError::Mendable(format!("`{path}` is one of Brigade's control files: {instead}"))
}

/// An error about a path, as a model can use it.
pub(super) fn describe(action: &str, path: &str, error: &io::Error) -> ToolError {
    match error.kind() {
        // cap-std's own refusals carry no system error.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => outside(path),
        io::ErrorKind::NotFound => ToolError::Mendable(format!("there is no `{path}` in the workspace")),
        _ => ToolError::Mendable(format!("{action} `{path}`: {error}")),
    }
}
