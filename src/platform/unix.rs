//! Linux and macOS.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{FileKind, Stamp};

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}

pub(super) fn no_follow(options: &mut OpenOptions) {
    options.custom_flags(flags(OFlags::NOFOLLOW));
}

/// Makes a new file readable and writable for its owner alone.
pub(super) fn only_for_owner(options: &mut OpenOptions) {
    options.mode(0o600);
}

/// Takes an own file's permissions from everybody but its owner.
pub(super) fn keep_for_owner(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    let is_own = about.uid() == rustix::process::geteuid().as_raw();
    if is_own && about.is_file() && about.mode() & 0o077 != 0 {
        rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(())
}

/// The device, as its two numbers, and the inode of what lies at `path`.
pub(super) fn device_and_inode(path: &Path) -> Option<(u32, u32, u64)> {
    let about = std::fs::symlink_metadata(path).ok()?;
    Some((rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()), about.ino()))
}

/// Opens a plain file for reading; never follows a symbolic link, never waits for a pipe's writer.
///
/// # Errors
/// What the system says; the caller checks the kind.
pub fn open_for_reading(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path)
}

/// An open folder.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// [`open_for_reading`] of what has this name in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_for_reading(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::empty())?.into())
    }
}

/// The stamp of what these metadata describe.
#[must_use]
pub fn stamp_of(metadata: &std::fs::Metadata) -> Stamp {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Folder,
        kind if kind.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    };
    Stamp {
        kind,
        bytes: metadata.len(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        inode: metadata.ino(),
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
pub(super) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    rename_with(a, b, rustix::fs::RenameFlags::EXCHANGE)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    rename_with(from, to, rustix::fs::RenameFlags::NOREPLACE)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename_with(from: &Path, to: &Path, how: rustix::fs::RenameFlags) -> io::Result<()> {
    use rustix::fs::CWD;
    rustix::fs::renameat_with(CWD, from, CWD, to, how).map_err(|error| match error {
        rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP => {
            io::Error::new(io::ErrorKind::Unsupported, error)
        }
        other => other.into(),
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(super) fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(super) fn rename_new(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Bytes a user may still write on the disk of `folder`.
///
/// # Errors
/// What the system says.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// This machine's name.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether a process of this number lives, as far as this one can see: not into other pid namespaces or machines.
#[must_use]
pub fn process_lives(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return false;
    };
    !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

#[cfg(target_os = "linux")]
pub(super) fn file_system_type(about: &rustix::fs::StatFs) -> i64 {
    // The field's type differs between machines; the numbers that matter fit.
    fn number<T: TryInto<i64>>(value: T) -> i64 {
        value.try_into().unwrap_or(0)
    }
    number(about.f_type)
}

/// Whether the file system of `folder` makes a rename over an existing file durable only after the renamed file's bytes,
/// so that a power cut leaves the old file or the new one though nothing was synced: ext4 (`auto_da_alloc`, its default), btrfs
/// and zfs promise that. Others may leave an empty file.
#[cfg(target_os = "linux")]
#[must_use]
pub fn renames_after_bytes(folder: &Path) -> bool {
    const ORDERED: [i64; 3] = [0xEF53, 0x9123_683E, 0x2FC1_2FC1];
    rustix::fs::statfs(folder).is_ok_and(|about| ORDERED.contains(&file_system_type(&about)))
}

/// Whether a rename over an existing file is durable only after the renamed file's bytes: not known here, so no.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn renames_after_bytes(_: &Path) -> bool {
    false
}

/// Whether the disk could not give back what it holds, while all else works.
#[must_use]
pub fn is_media_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// The numbers are those of statfs(2) and the kernel's `magic.h`.
#[cfg(target_os = "linux")]
pub(super) fn network_file_system(folder: &Path) -> Option<&'static str> {
    const KNOWN: [(i64, &str); 12] = [
        (0x6969, "NFS"),
        (0x517B, "SMB"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB2"),
        (0x6573_5546, "FUSE"),
        (0x0102_1997, "9P"),
        (0x00C3_6400, "Ceph"),
        (0x5346_414F, "AFS"),
        (0x7375_7245, "Coda"),
        (0x0BD0_0BD0, "Lustre"),
        (0x786F_4256, "VirtualBox shared folder"),
        (0x564C, "NCP"),
    ];
    let kind = file_system_type(&rustix::fs::statfs(folder).ok()?) & 0xFFFF_FFFF;
    KNOWN.into_iter().find_map(|(number, name)| (number == kind).then_some(name))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn network_file_system(_: &Path) -> Option<&'static str> {
    None
}
