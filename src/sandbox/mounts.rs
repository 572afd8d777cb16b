//! The mounts of a command's namespace: read-only kernel settings, a new instance of the terminals, and the path rules of the command.
//!
//! - A *bind mount* of a path over itself gives the path a mount of its own. In the namespace, it can then be neither renamed nor
//!   removed; see rename(2), EBUSY. The mount stays with its file, even if a process outside renames it.
//! - A *read-only* path has a bind mount over itself, which was remounted read-only.
//! - A *masked* path is covered: a file by `/dev/null`, a folder by an empty file system.
//!
//! `namespaces::enter` stops the propagation of these mounts to the outside.

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

use crate::domain::agent::access::{Access, PathRule};

/// Kernel settings as files: through them a command could freeze or kill other processes, or name a program for the kernel to start.
/// See cgroups(7), proc_sys(5).
const KERNEL_SETTINGS: [&str; 7] =
    ["/sys", "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"];

/// Types of the kernel's own file systems, wherever they are mounted.
const KERNEL_FS_TYPES: [&str; 9] =
    ["sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "efivarfs", "bpf"];

/// The most passes over the read-only files. Another process can rename files during a pass.
const PASSES_MAX: usize = 10;

/// The file that masks other files. It is empty, and writes to it have no effect.
const MASK_FILE: &str = "/dev/null";

/// Makes the kernel's settings read-only, and mounts new terminals. Returns the mount table from before.
pub(super) fn prepare_namespace() -> Result<MountTable, String> {
    let mount_table = MountTable::read()?;
    protect_kernel_settings(&mount_table)?;
    mount_new_devpts()?;
    Ok(mount_table)
}

fn protect_kernel_settings(mount_table: &MountTable) -> Result<(), String> {
    for path in KERNEL_SETTINGS.map(Path::new) {
        // /proc is newly mounted, so these are not mount points yet.
        if path.starts_with("/proc") && path.exists() || remount_read_only(path) == Err(Errno::INVAL) {
            bind_over_itself(path)?;
        }
    }
    let is_of_kernel = |mount: &&MountEntry| {
        KERNEL_SETTINGS.iter().any(|path| mount.mount_point.starts_with(path))
            || KERNEL_FS_TYPES.contains(&mount.fs_type.as_str())
    };
    let of_kernel = mount_table.0.iter().filter(is_of_kernel).map(|mount| mount.mount_point.as_path());
    let paths: BTreeSet<&Path> = of_kernel.chain(KERNEL_SETTINGS.map(Path::new)).collect();
    paths.into_iter().try_for_each(remount_read_only_or_mask)
}

/// Mounts a new instance of devpts, without the terminals outside, and masks the console. See devpts in the kernel's documentation.
fn mount_new_devpts() -> Result<(), String> {
    let (terminals, multiplexer) = (Path::new("/dev/pts"), Path::new("/dev/ptmx"));
    if terminals.is_dir() {
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options: &CStr = c"newinstance,mode=0620,ptmxmode=0666";
        match rustix::mount::mount("devpts", terminals, "devpts", flags, options) {
            // If /dev/ptmx is a link, it already points to the new one.
            Ok(()) if multiplexer.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_char_device()) => {
                bind_mount(&terminals.join("ptmx"), multiplexer)?;
            }
            Ok(()) => {}
            // Commands without terminals are better than commands with the user's terminals.
            Err(_) => mask(terminals)?,
        }
    }
    mask(Path::new("/dev/console"))
}

/// Applies the rules. It skips a path that does not exist: the rules' author made sure that no command can create it.
///
/// # Errors
/// An existing path cannot be protected; the text names it.
pub(super) fn apply_rules(rules: &[PathRule], mount_table: &MountTable) -> Result<(), String> {
    let paths_with =
        |access: Access| rules.iter().filter(move |rule| rule.access == access).map(|rule| rule.path.as_path());
    renamable_ancestors(rules).iter().try_for_each(|folder| bind_over_itself(folder))?;
    // A path with its own mount stays writable when its folder becomes read-only.
    for path in paths_with(Access::Writable) {
        if target_exists(path).map_err(|error| format!("keep {} writable: {error}", path.display()))? {
            bind_over_itself(path)?;
        }
    }
    reenter_current_dir()?;
    paths_with(Access::Hidden).try_for_each(mask)?;
    let (mut folders, files): (Vec<&Path>, Vec<&Path>) = paths_with(Access::ReadOnly).partition(|path| path.is_dir());
    let folders_of_files: Vec<&Path> = paths_with(Access::ReadOnlyFiles).collect();
    bind_files_read_only(&files, &folders_of_files)?;
    // Folders after their files, because a folder's mount would cover a file's. Outer folders before inner ones.
    folders.sort_by_key(|path| path.components().count());
    let writable: Vec<&Path> = paths_with(Access::Writable).collect();
    folders.into_iter().try_for_each(|folder| bind_folder_read_only(folder, &writable, mount_table))?;
    reenter_current_dir()
}

/// Returns the folders above protected paths that a command could rename, outermost first. Another folder in the place of one could
/// have other files at the protected paths.
fn renamable_ancestors(rules: &[PathRule]) -> BTreeSet<PathBuf> {
    let paths: Vec<&Path> = rules.iter().filter_map(PathRule::protected_path).collect();
    // The owner of a folder can change its mode.
    let can_write = |folder: &Path| {
        let is_own = fs::metadata(folder).is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
        is_own || rustix::fs::access(folder, Permission::WRITE_OK).is_ok()
    };
    let folders: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    // A folder inside a protected one cannot be renamed.
    let is_writable = |folder: &Path| {
        let above = rules.iter().filter(|rule| folder.starts_with(&rule.path));
        let nearest = above.max_by_key(|rule| rule.path.components().count());
        nearest.is_none_or(|rule| rule.access == Access::Writable)
    };
    folders
        .into_iter()
        .filter(|folder| is_writable(folder))
        .filter(|folder| folder.is_dir() && folder.parent().is_some_and(can_write))
        .map(Path::to_owned)
        .collect()
}

/// Enters the current folder again: a process stays in the mount that it started in, below later mounts.
fn reenter_current_dir() -> Result<(), String> {
    let entered = std::env::current_dir().and_then(std::env::set_current_dir);
    entered.map_err(|error| format!("enter the folder of the command again: {error}"))
}

/// Makes each file read-only, and each file in these folders, even if another process renames it.
fn bind_files_read_only(files: &[&Path], folders: &[&Path]) -> Result<(), String> {
    for pass in 1..=PASSES_MAX {
        let mut is_done = true;
        let listed_files = files.iter().map(|file| (*file).to_owned());
        for file in listed_files.chain(folders.iter().flat_map(|folder| plain_files_in(folder))) {
            match bind_read_only(&file) {
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

fn plain_files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).map(|entry| entry.path()).collect()
}

/// Makes a folder read-only with all mounts below it, except those at or below `writable` paths inside the folder.
fn bind_folder_read_only(folder: &Path, writable: &[&Path], mount_table: &MountTable) -> Result<(), String> {
    if bind_read_only(folder)? && !is_mounted_read_only(folder).unwrap_or(false) {
        return Err(format!("mount {} read-only: the system left it writable", folder.display()));
    }
    let is_writable = |path: &Path| writable.iter().any(|rule| path.starts_with(rule) && rule.starts_with(folder));
    let below = mount_table.0.iter().map(|mount| mount.mount_point.as_path());
    let below = below.filter(|path| path.starts_with(folder) && *path != folder && !is_writable(path));
    below.collect::<BTreeSet<_>>().into_iter().try_for_each(remount_read_only_or_mask)
}

/// Bind mounts a path read-only over itself, unless it is read-only or missing. Returns true after a mount.
fn bind_read_only(path: &Path) -> Result<bool, String> {
    let failed = |error: &dyn std::fmt::Display| format!("mount {} read-only: {error}", path.display());
    if !target_exists(path).map_err(|error| failed(&error))?
        || is_mounted_read_only(path).map_err(|error| failed(&error))?
    {
        return Ok(false);
    }
    bind_over_itself(path)?;
    remount_read_only(path).map_err(|error| failed(&error))?;
    Ok(true)
}

/// Remounts a mount point read-only. If the system refuses that, masks it.
fn remount_read_only_or_mask(mount_point: &Path) -> Result<(), String> {
    match remount_read_only(mount_point) {
        // Another mount covers it, or its folder may not be entered: no command can reach it.
        Ok(()) | Err(Errno::NOENT | Errno::ACCESS | Errno::INVAL) => Ok(()),
        Err(error) => mask(mount_point).map_err(|_| format!("mount {} read-only: {error}", mount_point.display())),
    }
}

/// Covers a file with an empty file, a folder with an empty folder.
fn mask(path: &Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("hide {}: {error}", path.display());
    if !target_exists(path).map_err(|error| failed(&error))? {
        return Ok(());
    }
    if !path.is_dir() {
        return bind_mount(Path::new(MASK_FILE), path);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    rustix::mount::mount("tmpfs", path, "tmpfs", flags, c"size=4k,mode=0555").map_err(|error| failed(&error))
}

/// Returns true if a file or folder exists, so that something can be mounted there.
///
/// # Errors
/// The path is a symbolic link, or it cannot be reached. A path that cannot be reached now may be reached after a change of mode.
fn target_exists(path: &Path) -> io::Result<bool> {
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

fn bind_mount(source: &Path, target: &Path) -> Result<(), String> {
    rustix::mount::mount_bind(source, target).map_err(|error| format!("mount {}: {error}", target.display()))
}

/// Bind mounts a path over itself, with all mounts below it.
fn bind_over_itself(path: &Path) -> Result<(), String> {
    rustix::mount::mount_bind_recursive(path, path).map_err(|error| format!("mount {}: {error}", path.display()))
}

fn is_mounted_read_only(path: &Path) -> Result<bool, Errno> {
    Ok(rustix::fs::statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Remounts a mount point read-only, and keeps its other flags. Mounts below it stay as they are.
fn remount_read_only(mount_point: &Path) -> Result<(), Errno> {
    let flags = mount_flags_of(rustix::fs::statvfs(mount_point)?.f_flag);
    rustix::mount::mount_remount(mount_point, MountFlags::BIND | MountFlags::RDONLY | flags, c"")
}

/// Returns the flags that a remount must repeat. In a user namespace they are locked; see mount_namespaces(7).
fn mount_flags_of(flags: StatVfsMountFlags) -> MountFlags {
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

/// The mount table of a namespace before the sandbox adds its own mounts.
pub(super) struct MountTable(Vec<MountEntry>);

impl MountTable {
    fn read() -> Result<Self, String> {
        let text = fs::read("/proc/self/mountinfo").map_err(|error| format!("read /proc/self/mountinfo: {error}"))?;
        Ok(Self(text.split(|byte| *byte == b'\n').filter_map(MountEntry::parse).collect()))
    }
}

/// One line of /proc/self/mountinfo; see proc_pid_mountinfo(5).
struct MountEntry {
    mount_point: PathBuf,
    fs_type: String,
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mount_point = PathBuf::from(OsString::from_vec(unescape_octal(fields.nth(4)?)));
        let fs_type = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Self { mount_point, fs_type: String::from_utf8_lossy(fs_type).into_owned() })
    }
}

/// Replaces each backslash and three octal digits with their byte.
fn unescape_octal(field: &[u8]) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_entry_with_escapes_is_parsed() {
        let line = b"36 35 98:0 /mnt1 /a\\040b\\134 rw,noatime master:1 shared:2 - cgroup2 /dev/root rw";
        let mount = MountEntry::parse(line).unwrap();
        assert_eq!((mount.mount_point, mount.fs_type.as_str()), (PathBuf::from("/a b\\"), "cgroup2"));
        assert!(MountEntry::parse(b"").is_none());
    }
}
