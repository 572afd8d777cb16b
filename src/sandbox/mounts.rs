//! The mounts of a command's namespace: read-only control files, hidden lock files, read-only system settings, and own terminals.
//!
//! A mount stays with its file, even if another process renames it. In the namespace, a file or folder with its own mount can be neither
//! renamed nor removed; see rename(2), EBUSY.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access as Permission, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::domain::access::{Access, PathRule};

/// Kernel settings as files: through them a command could freeze or kill other processes, or name a program for the kernel to start.
/// See cgroups(7), proc_sys(5).
const SYSTEM_PATHS: [&str; 7] =
    ["/sys", "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"];

/// Types of the kernel's own file systems, wherever they are mounted.
const SYSTEM_TYPES: [&str; 9] =
    ["sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "efivarfs", "bpf"];

/// The most passes over the files to protect. Another process can rename files during a pass.
const PASSES_MAX: usize = 10;

/// An empty file. Writes to it have no effect.
const EMPTY_FILE: &str = "/dev/null";

/// The mounts of a namespace before the sandbox adds its own.
pub(super) struct Mounts(Vec<MountPoint>);

impl Mounts {
    fn read() -> Result<Self, String> {
        let text = fs::read("/proc/self/mountinfo").map_err(|error| format!("read /proc/self/mountinfo: {error}"))?;
        Ok(Self(text.split(|byte| *byte == b'\n').filter_map(MountPoint::parse).collect()))
    }
}

/// Makes the system's settings read-only, and gives the namespace its own terminals. Returns the previous mounts.
pub(super) fn protect_system() -> Result<Mounts, String> {
    let mounts = Mounts::read()?;
    for path in SYSTEM_PATHS.map(Path::new) {
        // /proc is newly mounted, so these are not mounts yet.
        if path.starts_with("/proc") && path.exists() || remount_read_only(path) == Err(Errno::INVAL) {
            mount_over_itself(path)?;
        }
    }
    let is_system = |mount: &&MountPoint| {
        SYSTEM_PATHS.iter().any(|path| mount.path.starts_with(path)) || SYSTEM_TYPES.contains(&mount.kind.as_str())
    };
    let system_mounts = mounts.0.iter().filter(is_system).map(|mount| mount.path.as_path());
    let paths: BTreeSet<&Path> = system_mounts.chain(SYSTEM_PATHS.map(Path::new)).collect();
    paths.into_iter().try_for_each(make_mount_read_only)?;
    mount_own_terminals()?;
    Ok(mounts)
}

/// Makes one mount read-only. If the system refuses that, hides it.
fn make_mount_read_only(path: &Path) -> Result<(), String> {
    match remount_read_only(path) {
        // Another mount covers it, or its folder may not be entered: no command can reach it.
        Ok(()) | Err(Errno::NOENT | Errno::ACCESS | Errno::INVAL) => Ok(()),
        Err(error) => hide(path).map_err(|_| format!("mount {} read-only: {error}", path.display())),
    }
}

/// One line of /proc/self/mountinfo; see proc_pid_mountinfo(5).
struct MountPoint {
    path: PathBuf,
    kind: String,
}

impl MountPoint {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let path = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Self { path, kind: String::from_utf8_lossy(kind).into_owned() })
    }
}

/// Replaces each backslash and three octal digits with their byte.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let digits = if *first == b'\\' { tail.get(..3) } else { None };
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// Mounts a new /dev/pts without the terminals outside, and hides the console. See devpts in the kernel's documentation.
fn mount_own_terminals() -> Result<(), String> {
    let (terminals, multiplexer) = (Path::new("/dev/pts"), Path::new("/dev/ptmx"));
    if terminals.is_dir() {
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options: &CStr = c"newinstance,mode=0620,ptmxmode=0666";
        match rustix::mount::mount("devpts", terminals, "devpts", flags, options) {
            // If /dev/ptmx is a link, it already points to the new one.
            Ok(()) if multiplexer.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_char_device()) => {
                bind(&terminals.join("ptmx"), multiplexer)?;
            }
            Ok(()) => {}
            // Commands without terminals are better than commands with the user's terminals.
            Err(_) => hide(terminals)?,
        }
    }
    hide(Path::new("/dev/console"))
}

/// Applies the rules. It skips a path that does not exist: the rules' author made sure that no command can create it.
///
/// # Errors
/// An existing path cannot be protected; the text names it.
pub(super) fn apply(rules: &[PathRule], mounts: &Mounts) -> Result<(), String> {
    let paths_with =
        |access: Access| rules.iter().filter(move |rule| rule.access == access).map(|rule| rule.path.as_path());
    let parents = renamable_parents(rules);
    parents.iter().try_for_each(|folder| mount_over_itself(folder))?;
    // A path with its own mount stays writable when its folder becomes read-only.
    for path in paths_with(Access::Writable) {
        if exists(path).map_err(|error| format!("keep {} writable: {error}", path.display()))? {
            mount_over_itself(path)?;
        }
    }
    reenter_current_folder()?;
    paths_with(Access::Hidden).try_for_each(hide)?;
    let (mut folders, files): (Vec<&Path>, Vec<&Path>) = paths_with(Access::ReadOnly).partition(|path| path.is_dir());
    let folders_of_files: Vec<&Path> = paths_with(Access::ReadOnlyFiles).collect();
    protect_files(&files, &folders_of_files)?;
    // Folders after their files, because a folder's mount would cover a file's. Outer folders before inner ones.
    folders.sort_by_key(|path| path.components().count());
    for folder in folders {
        if make_read_only(folder)? && !is_read_only(folder).unwrap_or(false) {
            return Err(format!("mount {} read-only: the system left it writable", folder.display()));
        }
        let is_writable =
            |path: &Path| paths_with(Access::Writable).any(|rule| path.starts_with(rule) && rule.starts_with(folder));
        let below = mounts.0.iter().map(|mount| mount.path.as_path());
        let below = below.filter(|path| path.starts_with(folder) && *path != folder && !is_writable(path));
        below.collect::<BTreeSet<_>>().into_iter().try_for_each(make_mount_read_only)?;
    }
    reenter_current_folder()
}

/// Makes each file read-only, and each file in these folders, even if another process renames it.
fn protect_files(files: &[&Path], folders: &[&Path]) -> Result<(), String> {
    for pass in 1..=PASSES_MAX {
        let mut is_done = true;
        let listed_files = files.iter().map(|file| (*file).to_owned());
        for file in listed_files.chain(folders.iter().flat_map(|folder| files_of(folder))) {
            match make_read_only(&file) {
                Ok(is_changed) => is_done &= !is_changed,
                // Another process may have swapped two files between two steps. The next pass repairs that.
                Err(_) if pass < PASSES_MAX => is_done = false,
                Err(error) => return Err(error),
            }
        }
        if is_done {
            break;
        }
    }
    Ok(())
}

/// Returns the parent folders of protected paths that a command could rename, outermost first. Another folder in the place of one could
/// have other files at the protected paths.
fn renamable_parents(rules: &[PathRule]) -> BTreeSet<PathBuf> {
    let paths: Vec<&Path> = rules.iter().filter_map(PathRule::protected_path).collect();
    // The owner of a folder can change its mode.
    let can_write = |folder: &Path| {
        let is_own = fs::metadata(folder).is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
        is_own || rustix::fs::access(folder, Permission::WRITE_OK).is_ok()
    };
    let folders: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    folders
        .into_iter()
        // A folder inside a protected one cannot be renamed.
        .filter(|folder| !paths.iter().any(|path| folder.starts_with(path)))
        .filter(|folder| folder.is_dir() && folder.parent().is_some_and(can_write))
        .map(Path::to_owned)
        .collect()
}

/// Enters the current folder again: a process stays in the mount that it started in, below later mounts.
fn reenter_current_folder() -> Result<(), String> {
    let entered = std::env::current_dir().and_then(std::env::set_current_dir);
    entered.map_err(|error| format!("enter the folder of the command again: {error}"))
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).map(|entry| entry.path()).collect()
}

fn is_read_only(path: &Path) -> Result<bool, Errno> {
    Ok(rustix::fs::statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Mounts `path` read-only over itself, unless it is read-only or missing. Returns true after a mount.
fn make_read_only(path: &Path) -> Result<bool, String> {
    let failed = |error: &dyn std::fmt::Display| format!("mount {} read-only: {error}", path.display());
    if !exists(path).map_err(|error| failed(&error))? {
        return Ok(false);
    }
    let flags = rustix::fs::statvfs(path).map_err(|error| failed(&error))?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Ok(false);
    }
    mount_over_itself(path)?;
    remount_with(path, flags).map_err(|error| failed(&error))?;
    Ok(true)
}

/// Returns `true` if a file or folder exists.
///
/// # Errors
/// The path is a symbolic link, or it cannot be reached. A path that cannot be reached now may be reached after a change of mode.
fn exists(path: &Path) -> io::Result<bool> {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Err(io::Error::other("it was replaced by a symbolic link")),
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            NotFound | NotADirectory | InvalidFilename => Ok(false),
            _ => Err(error),
        },
    }
}

/// Covers a file with an empty file, a folder with an empty folder.
fn hide(path: &Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("hide {}: {error}", path.display());
    if !exists(path).map_err(|error| failed(&error))? {
        return Ok(());
    }
    if !path.is_dir() {
        return bind(Path::new(EMPTY_FILE), path);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    rustix::mount::mount("tmpfs", path, "tmpfs", flags, c"size=4k,mode=0555").map_err(|error| failed(&error))
}

fn bind(from: &Path, to: &Path) -> Result<(), String> {
    rustix::mount::mount_bind(from, to).map_err(|error| format!("mount {}: {error}", to.display()))
}

fn mount_over_itself(path: &Path) -> Result<(), String> {
    rustix::mount::mount_bind_recursive(path, path).map_err(|error| format!("mount {}: {error}", path.display()))
}

fn remount_read_only(path: &Path) -> Result<(), Errno> {
    remount_with(path, rustix::fs::statvfs(path)?.f_flag)
}

/// Remounts a mount read-only and keeps its other flags.
fn remount_with(path: &Path, flags: StatVfsMountFlags) -> Result<(), Errno> {
    rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | repeated_flags(flags), c"")
}

/// Returns the flags that a remount must repeat: inside a user namespace, the kernel refuses to drop one.
fn repeated_flags(flags: StatVfsMountFlags) -> MountFlags {
    [
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ]
    .into_iter()
    .filter(|(stat, _)| flags.contains(*stat))
    .fold(MountFlags::empty(), |flags, (_, mount)| flags | mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_with_escapes_is_parsed() {
        let line = b"36 35 98:0 /mnt1 /a\\040b\\134 rw,noatime master:1 shared:2 - cgroup2 /dev/root rw";
        let mount = MountPoint::parse(line).unwrap();
        assert_eq!((mount.path, mount.kind.as_str()), (PathBuf::from("/a b\\"), "cgroup2"));
        assert!(MountPoint::parse(b"").is_none());
    }
}
