//! The mounts of a command's namespace: control files read-only, lock files hidden, the system's settings read-only, terminals of its own.
//!
//! A mount stays with its file: it holds whatever another process renames. A file or folder that has a mount of its own can be neither
//! renamed nor removed in the namespace; see rename(2), EBUSY.

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

/// Folders and files through which the kernel is set: another process's group could be frozen or killed, or a program named that the
/// kernel starts. See cgroups(7), proc_sys(5).
const SYSTEM: [&str; 7] =
    ["/sys", "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"];

/// File systems of the kernel's own, wherever they are mounted.
const SYSTEM_TYPES: [&str; 9] =
    ["sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "efivarfs", "bpf"];

/// How often files that somebody renames meanwhile are looked for.
const PASSES_MAX: usize = 10;

/// An empty file that nothing can be written to.
const EMPTY_FILE: &str = "/dev/null";

/// The mounts of a namespace before the sandbox adds its own.
pub(super) struct Mounts(Vec<MountPoint>);

impl Mounts {
    fn read() -> Result<Self, String> {
        let text = fs::read("/proc/self/mountinfo").map_err(|error| format!("read /proc/self/mountinfo: {error}"))?;
        Ok(Self(text.split(|byte| *byte == b'\n').filter_map(MountPoint::parse).collect()))
    }
}

/// Makes the system's settings read-only, and gives the namespace terminals of its own. Returns the mounts that are there.
pub(super) fn protect_system() -> Result<Mounts, String> {
    let mounts = Mounts::read()?;
    for path in SYSTEM.map(Path::new) {
        // Those in /proc, which is new, are no mounts yet.
        if path.starts_with("/proc") && path.exists() || remount_read_only(path) == Err(Errno::INVAL) {
            mount_over_itself(path)?;
        }
    }
    let is_system = |mount: &&MountPoint| {
        SYSTEM.iter().any(|path| mount.path.starts_with(path)) || SYSTEM_TYPES.contains(&mount.kind.as_str())
    };
    let found = mounts.0.iter().filter(is_system).map(|mount| mount.path.as_path());
    let paths: BTreeSet<&Path> = found.chain(SYSTEM.map(Path::new)).collect();
    paths.into_iter().try_for_each(make_mount_read_only)?;
    own_terminals()?;
    Ok(mounts)
}

/// Makes one mount read-only, or hides it where the system refuses that.
fn make_mount_read_only(path: &Path) -> Result<(), String> {
    match remount_read_only(path) {
        // Another mount covers it, or its folder may not be entered: it is out of reach.
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

/// A field in which a backslash and three octal digits stand for a byte.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
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

/// Mounts a /dev/pts that has none of the terminals outside, and hides the console. See devpts in the kernel's documentation.
fn own_terminals() -> Result<(), String> {
    let (terminals, maker) = (Path::new("/dev/pts"), Path::new("/dev/ptmx"));
    if terminals.is_dir() {
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options: &CStr = c"newinstance,mode=0620,ptmxmode=0666";
        match rustix::mount::mount("devpts", terminals, "devpts", flags, options) {
            // Where it is a link it leads to the new one.
            Ok(()) if maker.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_char_device()) => {
                bind(&terminals.join("ptmx"), maker)?;
            }
            Ok(()) => {}
            // Commands without terminals are better than commands with the person's.
            Err(_) => hide(terminals)?,
        }
    }
    hide(Path::new("/dev/console"))
}

/// Applies the rules. A path that does not exist is passed over: whoever made the rules saw to it that no command can make it.
///
/// # Errors
/// A path exists and cannot be protected; the text names it.
pub(super) fn apply(rules: &[PathRule], mounts: &Mounts) -> Result<(), String> {
    let with = |access: Access| rules.iter().filter(move |rule| rule.access == access).map(|rule| rule.path.as_path());
    let above = folders_above(rules);
    above.iter().try_for_each(|folder| mount_over_itself(folder))?;
    // A mount of its own stays as it is when the folder it lies in becomes read-only.
    for path in with(Access::Writable) {
        if is_there(path).map_err(|error| format!("keep {} writable: {error}", path.display()))? {
            mount_over_itself(path)?;
        }
    }
    enter_folder_again()?;
    with(Access::Hidden).try_for_each(hide)?;
    let (mut folders, files): (Vec<&Path>, Vec<&Path>) = with(Access::ReadOnly).partition(|path| path.is_dir());
    let folders_of_files: Vec<&Path> = with(Access::ReadOnlyFiles).collect();
    protect_files(&files, &folders_of_files)?;
    // Folders after their files: a file's own mount would be covered otherwise. A folder before the folders in it.
    folders.sort_by_key(|path| path.components().count());
    for folder in folders {
        if make_read_only(folder)? && !is_read_only(folder).unwrap_or(false) {
            return Err(format!("mount {} read-only: the system left it writable", folder.display()));
        }
        let is_writable =
            |path: &Path| with(Access::Writable).any(|rule| path.starts_with(rule) && rule.starts_with(folder));
        let below = mounts.0.iter().map(|mount| mount.path.as_path());
        let below = below.filter(|path| path.starts_with(folder) && *path != folder && !is_writable(path));
        below.collect::<BTreeSet<_>>().into_iter().try_for_each(make_mount_read_only)?;
    }
    enter_folder_again()
}

/// Makes each file read-only, and each file of these folders wherever it is renamed to.
fn protect_files(files: &[&Path], folders: &[&Path]) -> Result<(), String> {
    for pass in 1..=PASSES_MAX {
        let mut is_done = true;
        let named = files.iter().map(|file| (*file).to_owned());
        for file in named.chain(folders.iter().flat_map(|folder| files_of(folder))) {
            match make_read_only(&file) {
                Ok(is_changed) => is_done &= !is_changed,
                // Two files may have exchanged their names between two steps; the next pass finds that.
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

/// The folders above protected paths that could be renamed, the highest first: with another folder in its place there would be
/// other files at the protected paths.
fn folders_above(rules: &[PathRule]) -> BTreeSet<PathBuf> {
    let paths: Vec<&Path> = rules.iter().filter_map(PathRule::protected).collect();
    // An owner who may not write a folder now can change its mode.
    let can_write = |folder: &Path| {
        let is_own = fs::metadata(folder).is_ok_and(|about| about.uid() == rustix::process::geteuid().as_raw());
        is_own || rustix::fs::access(folder, Permission::WRITE_OK).is_ok()
    };
    let folders: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    folders
        .into_iter()
        // A folder in a protected one cannot be renamed there.
        .filter(|folder| !paths.iter().any(|path| folder.starts_with(path)))
        .filter(|folder| folder.is_dir() && folder.parent().is_some_and(can_write))
        .map(Path::to_owned)
        .collect()
}

/// Enters the current folder as it is mounted now: a process stays in the mount it began in, below the mounts made since.
fn enter_folder_again() -> Result<(), String> {
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

/// Mounts `path` read-only over itself, unless it is read-only already or missing. Returns whether it did.
fn make_read_only(path: &Path) -> Result<bool, String> {
    let failed = |error: &dyn std::fmt::Display| format!("mount {} read-only: {error}", path.display());
    if !is_there(path).map_err(|error| failed(&error))? {
        return Ok(false);
    }
    let has = rustix::fs::statvfs(path).map_err(|error| failed(&error))?.f_flag;
    if has.contains(StatVfsMountFlags::RDONLY) {
        return Ok(false);
    }
    mount_over_itself(path)?;
    remount_with(path, has).map_err(|error| failed(&error))?;
    Ok(true)
}

/// Returns true if a file or folder exists.
///
/// # Errors
/// A symbolic link is there, or the system does not say. A path that cannot be reached could be reached once a folder's mode is changed.
fn is_there(path: &Path) -> io::Result<bool> {
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
    if !is_there(path).map_err(|error| failed(&error))? {
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

/// Remounts a mount read-only that has these flags.
fn remount_with(path: &Path, has: StatVfsMountFlags) -> Result<(), Errno> {
    let kept = kept_flags(has);
    rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | kept, c"")
}

/// A remount must name the flags the mount has: inside a user namespace, leaving one out is refused.
fn kept_flags(has: StatVfsMountFlags) -> MountFlags {
    [
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ]
    .into_iter()
    .filter(|(stat, _)| has.contains(*stat))
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
