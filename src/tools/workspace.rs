//! The workspace for file tools: no path outside it, and no access to control files.
//!
//! All paths are opened below one directory handle (cap-std), so neither `..` nor a symbolic link leads out. Control files are
//! recognised by resolved path and by file identity. So other spellings, links and case-insensitive file systems do not hide them.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cap_std::fs::{Dir, MetadataExt as _};

use super::{ToolContext, ToolError};
use crate::domain::agent::permission::HiddenPaths;
use crate::domain::team::member_place::ReadOnly;
use crate::platform::{FileIdentity, Folder, identity_of};

/// The most symbolic links in a path, as in the kernel.
const LINKS_MAX: u32 = 40;

/// The root folder of file tools and its rules: control files, read-only access and output limit. A tool takes it to a blocking thread.
#[derive(Debug, Clone)]
pub(super) struct FileAccess {
    root: PathBuf,
    control_files: Arc<[PathBuf]>,
    read_only: Option<ReadOnly>,
    /// The files that searches leave out.
    hidden: HiddenPaths,
    /// The longest output of a tool, in bytes.
    pub output_bytes_max: usize,
}

impl FileAccess {
    /// The access of a tool that shows one file, and names others only in errors.
    pub(super) fn of(context: &ToolContext) -> Self {
        Self::of_search(context, "read_file")
    }

    /// The access of a tool that searches files.
    pub(super) fn of_search(context: &ToolContext, tool: &str) -> Self {
        let folder = context.working_dir.root.to_string_lossy();
        Self {
            hidden: context.caller.permissions.hidden_from(tool, &folder),
            root: context.working_dir.root.clone(),
            control_files: Arc::clone(&context.working_dir.control_files),
            read_only: context.working_dir.read_only,
            output_bytes_max: context.limits.output_bytes_max,
        }
    }

    /// Opens the root folder. `stop` becomes true if the caller is dropped.
    pub(super) fn open(self, stop: Arc<AtomicBool>) -> Result<OpenRoot, ToolError> {
        let open = || {
            let folder = Folder::open(&self.root)?;
            Ok((folder.to_dir()?, folder))
        };
        let (dir, folder) = open().map_err(|error: io::Error| {
            ToolError::Fatal(format!("cannot open workspace {}: {error}", self.root.display()))
        })?;
        Ok(OpenRoot { access: self, folder, dir, stop })
    }

    /// Runs `work` on a blocking thread. If the caller is dropped, [`OpenRoot::is_stopped`] becomes true.
    pub(super) async fn run_blocking<R: Send + 'static>(
        self,
        work: impl FnOnce(&OpenRoot) -> Result<R, ToolError> + Send + 'static,
    ) -> Result<R, ToolError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_on_drop = StopOnDrop(Arc::clone(&stop));
        let result = tokio::task::spawn_blocking(move || work(&self.open(stop)?)).await;
        drop(stop_on_drop);
        result.unwrap_or_else(|error| Err(ToolError::Fatal(format!("a file tool failed: {error}"))))
    }
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The opened root folder, for the work of one call on a blocking thread.
pub(super) struct OpenRoot {
    access: FileAccess,
    /// The workspace's folder, to open paths part by part.
    folder: Folder,
    /// The same folder, to open full paths.
    pub dir: Dir,
    stop: Arc<AtomicBool>,
}

impl OpenRoot {
    /// The path of the workspace.
    pub(super) fn root(&self) -> &Path {
        &self.access.root
    }

    /// The control files that a walk leaves out, relative to the workspace. Those in the root folder are in every spelling that
    /// exists there.
    pub(super) fn control_paths(&self) -> Vec<PathBuf> {
        let names = self.dir.entries().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
        names
            .filter(|name| self.control_file_at(Path::new(name)).is_some())
            .map(PathBuf::from)
            .chain(self.access.control_files.iter().cloned())
            .collect()
    }

    /// Returns true if rules of the member hide files.
    pub(super) fn hides_files(&self) -> bool {
        !self.access.hidden.is_empty()
    }

    /// Returns the part of the workspace that a search of `path` reaches; `None` if it reaches nothing of it.
    pub(super) fn searched_part(&self, path: &str) -> Option<PathBuf> {
        let is_above = || {
            let (root, above) = (self.root().canonicalize().ok()?, self.root().join(path).canonicalize().ok()?);
            root.starts_with(above).then(PathBuf::new)
        };
        self.real_path_for_rules(path).or_else(is_above)
    }

    /// Returns true if a rule of the member hides the file or folder at this path, which is relative to the workspace.
    pub(super) fn hides(&self, path: &Path) -> bool {
        self.hides_files() && self.access.hidden.rule_about(&path.to_string_lossy()).is_some()
    }

    /// Returns true if a rule hides the place to which a symbolic link leads.
    pub(super) fn hides_target(&self, link: &Path) -> bool {
        self.hides_files()
            && link.to_str().and_then(|link| self.real_path_for_rules(link)).is_some_and(|target| self.hides(&target))
    }

    /// Returns the path below the workspace to which `path` leads, without links; `None` if it leads out. The last parts need not exist.
    pub(super) fn real_path_for_rules(&self, path: &str) -> Option<PathBuf> {
        let path = if path.is_empty() { "." } else { path };
        let resolve = || self.canonical(&self.relative(path).ok()?, 0).ok();
        // An agent of another program can also come from outside through a link. A slash at the end changes nothing.
        let canonicalize = || {
            let plain: PathBuf = self.root().join(path).components().collect();
            Some(plain.canonicalize().ok()?.strip_prefix(self.root().canonicalize().ok()?).ok()?.to_owned())
        };
        resolve().or_else(canonicalize)
    }

    /// The identities of the control files, independent of their names.
    pub(super) fn control_identities(&self) -> Vec<FileIdentity> {
        let controls = self.access.control_files.iter();
        controls.filter_map(|control| self.identity(control)).collect()
    }

    /// Opens a plain file for reading. The path comes from [`OpenRoot::resolve`].
    ///
    /// # Errors
    /// The file or a folder above it was replaced since then: by a link, a pipe or a control file.
    pub(super) fn open_file(&self, resolved: &Path) -> io::Result<File> {
        let name = resolved.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let file = self.open_folder(resolved.parent().unwrap_or(Path::new("")))?.open_for_reading(name)?;
        refuse_control_identity(&self.control_identities(), identity_of(&file.metadata()?))?;
        Ok(file)
    }

    /// Opens a folder, part by part from the workspace on, and follows no link. The path comes from [`OpenRoot::resolve`].
    ///
    /// # Errors
    /// As [`OpenRoot::open_file`].
    pub(super) fn open_folder(&self, resolved: &Path) -> io::Result<Folder> {
        self.descend(resolved, |folder, name| folder.open_folder(name))
    }

    /// As [`OpenRoot::open_folder`], but creates missing folders.
    ///
    /// # Errors
    /// As [`OpenRoot::open_file`].
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
        let mut folder = self.folder.try_clone()?;
        for part in resolved.components().filter(|part| *part != Component::CurDir) {
            folder = step(&folder, part.as_os_str())?;
            refuse_control_identity(&controls, folder.identity()?)?;
        }
        Ok(folder)
    }

    /// The longest output of a tool, in bytes.
    pub(super) fn output_bytes_max(&self) -> usize {
        self.access.output_bytes_max
    }

    /// Returns true if the caller was dropped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Resolves `path` to a path relative to the workspace, without symbolic links. `.` is the workspace itself. The last parts
    /// need not exist.
    ///
    /// # Errors
    /// The path leads out of the workspace or to a control file.
    pub(super) fn resolve(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.relative(path)?;
        let resolved = self.canonical(&relative, 0).map_err(|error| path_error("find", path, &error))?;
        self.check_control_files(path, resolved)
    }

    /// As [`OpenRoot::resolve`], for a path to write.
    ///
    /// # Errors
    /// As [`OpenRoot::resolve`], and if the caller may not write files.
    pub(super) fn resolve_to_write(&self, path: &str) -> Result<PathBuf, ToolError> {
        self.check_not_read_only()?;
        self.resolve(path)
    }

    /// As [`OpenRoot::resolve_to_write`], but does not follow a symbolic link at the end of `path`: the link itself is deleted.
    ///
    /// # Errors
    /// As [`OpenRoot::resolve_to_write`], and if `path` does not end with a name.
    pub(super) fn resolve_to_delete(&self, path: &str) -> Result<PathBuf, ToolError> {
        self.check_not_read_only()?;
        let relative = self.relative(path)?;
        let Some(name) = relative.file_name() else {
            return Err(ToolError::Recoverable(format!("`{path}` is not the name of a file")));
        };
        let folder = self.canonical_parent(&relative, 0).map_err(|error| path_error("find", path, &error))?;
        self.check_control_files(path, entry_of(&folder, name))
    }

    fn check_not_read_only(&self) -> Result<(), ToolError> {
        match self.access.read_only {
            Some(reason) => Err(ToolError::Recoverable(reason.explanation().to_owned())),
            None => Ok(()),
        }
    }

    fn check_control_files(&self, path: &str, resolved: PathBuf) -> Result<PathBuf, ToolError> {
        match self.control_file_at(&resolved) {
            Some(control) => Err(control_file_error(path, control)),
            None => Ok(resolved),
        }
    }

    fn relative(&self, path: &str) -> Result<PathBuf, ToolError> {
        let given_path = Path::new(path);
        if path.is_empty() || path.contains('\0') {
            return Err(ToolError::Recoverable("argument `path` is empty or contains a NUL character".to_owned()));
        }
        if !given_path.is_absolute() {
            return Ok(given_path.to_owned());
        }
        let root = self.access.root.canonicalize().unwrap_or_default();
        let relative = given_path.strip_prefix(self.root()).or_else(|_| given_path.strip_prefix(&root));
        match relative {
            Ok(relative) if relative.as_os_str().is_empty() => Ok(PathBuf::from(".")),
            Ok(relative) => Ok(relative.to_owned()),
            Err(_) => Err(self.outside_absolute(path)),
        }
    }

    /// The error for an absolute path outside. Small models write `/a.txt` for the file `a.txt` of the workspace.
    fn outside_absolute(&self, path: &str) -> ToolError {
        let relative = Path::new(path.trim_start_matches('/'));
        let is_in_folder = relative.parent().is_some_and(|folder| self.dir.is_dir(Path::new(".").join(folder)));
        match outside_error(path) {
            ToolError::Recoverable(text) if is_in_folder => {
                ToolError::Recoverable(format!("{text}. Give paths relative to it: `{}`", relative.display()))
            }
            error => error,
        }
    }

    /// `path` without links and `..`. Only folders are resolved by cap-std: for a file that is replaced at that moment, it returns the
    /// name of the deleted one.
    fn canonical(&self, path: &Path, links: u32) -> io::Result<PathBuf> {
        let Some(name) = path.file_name() else {
            let canonical = self.dir.canonicalize(path)?;
            return Ok(if canonical.as_os_str().is_empty() { PathBuf::from(".") } else { canonical });
        };
        let joined = entry_of(&self.canonical_parent(path, links)?, name);
        match self.dir.symlink_metadata(&joined) {
            Ok(metadata) if metadata.is_symlink() => {
                if links >= LINKS_MAX {
                    return Err(io::Error::other("too many symbolic links"));
                }
                let leads_to = self.dir.read_link(&joined)?;
                self.canonical(&joined.with_file_name(leads_to), links + 1)
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(joined),
        }
    }

    fn canonical_parent(&self, path: &Path, links: u32) -> io::Result<PathBuf> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.canonical(parent, links)
    }

    /// The control file or folder that contains a resolved path.
    pub(super) fn control_file_at(&self, resolved: &Path) -> Option<&Path> {
        let parts: Vec<Component<'_>> = resolved.components().filter(|part| *part != Component::CurDir).collect();
        let controls = self.access.control_files.iter();
        let controls: Vec<_> = controls.map(|control| (control.as_path(), self.identity(control))).collect();
        (1..=parts.len()).find_map(|count| {
            let prefix: PathBuf = parts[..count].iter().collect();
            let found_identity = self.identity(&prefix);
            controls
                .iter()
                .find(|(control, identity)| {
                    is_same_spelling(control, &prefix) || (found_identity.is_some() && found_identity == *identity)
                })
                .map(|(control, _)| *control)
        })
    }

    /// The identity of an existing file, independent of its name.
    fn identity(&self, path: &Path) -> Option<FileIdentity> {
        let metadata = self.dir.metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    }
}

fn entry_of(folder: &Path, name: &OsStr) -> PathBuf {
    if folder == Path::new(".") { PathBuf::from(name) } else { folder.join(name) }
}

fn is_same_spelling(a: &Path, b: &Path) -> bool {
    a.as_os_str().eq_ignore_ascii_case(b.as_os_str())
}

fn refuse_control_identity(controls: &[FileIdentity], found_identity: FileIdentity) -> io::Result<()> {
    if controls.contains(&found_identity) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has just become one of Brigade's control files"));
    }
    Ok(())
}

fn outside_error(path: &str) -> ToolError {
    ToolError::Recoverable(format!("`{path}` is outside the workspace: file tools cannot reach it"))
}

fn control_file_error(path: &str, control: &Path) -> ToolError {
    let hint = match control.to_str().unwrap_or_default() {
        ".tasks" => "for the board use `task_list`, `task_get`, `task_create` and `task_update`",
        ".team" => "for mail use `read_inbox` and `send_message`",
        "agent_state.json" => "only the person changes it",
        ".git" | ".agent" => "only git and Brigade use it",
        "brigade.toml" => "only the person changes the team's config",
        _ => "file tools cannot use it",
    };
    ToolError::Recoverable(format!("`{path}` is one of Brigade's control files: {hint}"))
}

/// Returns the error about a path, for the model.
pub(super) fn path_error(action: &str, path: &str, error: &io::Error) -> ToolError {
    match error.kind() {
        // If cap-std itself refuses a path, there is no system error.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => outside_error(path),
        io::ErrorKind::NotFound => ToolError::Recoverable(format!("there is no `{path}` in the workspace")),
        _ => ToolError::Recoverable(format!("cannot {action} `{path}`: {error}")),
    }
}
