//! Linux and macOS.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::reading::{PlainFile, SpecialKind, not_plain_error};
use super::{FileIdentity, FileKind, FileStamp};

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}

pub(super) fn no_follow(options: &mut OpenOptions) {
    options.custom_flags(flags(OFlags::NOFOLLOW));
}

/// Opens only plain files for use: follows no link, waits for no pipe, takes no controlling terminal.
pub(super) fn plain_only(options: &mut OpenOptions) {
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY));
}

/// Gives a new file mode 0600.
pub(super) fn only_for_owner(options: &mut OpenOptions) {
    options.mode(0o600);
}

/// Restricts a file of this user to its owner.
pub(super) fn restrict_to_owner(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if is_own && metadata.is_file() && metadata.mode() & 0o077 != 0 {
        rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(())
}

/// The device, as major and minor number, and the inode at `path`.
pub(super) fn device_and_inode(path: &Path) -> Option<(u32, u32, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()), metadata.ino()))
}

/// Makes opening not wait for a pipe's writer.
pub(super) fn set_nonblocking(options: &mut cap_std::fs::OpenOptions) {
    cap_std::fs::OpenOptionsExt::custom_flags(options, flags(OFlags::NONBLOCK | OFlags::NOCTTY));
}

/// Opens a file through any links, without waiting for a pipe's writer.
pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = flags(OFlags::NONBLOCK | OFlags::NOCTTY);
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(describe_open_error)
}

/// Replaces an error of opening by one that names the kind of file, if that is the reason.
pub(super) fn describe_open_error(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => not_plain_error(SpecialKind::Link),
        Some(Errno::NXIO) => not_plain_error(SpecialKind::PipeSocketOrDevice),
        _ => error,
    }
}

pub(super) fn is_pipe(kind: std::fs::FileType) -> bool {
    kind.is_fifo()
}

/// The kind of an entry that is neither a file nor a folder.
pub(super) fn special_kind(kind: std::fs::FileType) -> SpecialKind {
    match kind {
        kind if kind.is_fifo() => SpecialKind::Pipe,
        kind if kind.is_socket() => SpecialKind::Socket,
        kind if kind.is_symlink() => SpecialKind::Link,
        _ => SpecialKind::Device,
    }
}

/// An open folder. It stays the same folder after a rename, and access through it follows no symbolic link.
#[derive(Debug)]
pub struct Folder(OwnedFd);

/// The flags that a [`Folder`] is opened with. On Linux it need not be readable.
#[cfg(target_os = "linux")]
const FOLDER_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens a folder. The path may contain links.
    ///
    /// # Errors
    /// An error of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, FOLDER_FLAGS, Mode::empty())?))
    }

    /// Another handle of this folder.
    ///
    /// # Errors
    /// An error of the system.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Opens the subfolder with this name, which must not be a link.
    ///
    /// # Errors
    /// An error of the system.
    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, name, FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty())?))
    }

    /// Opens the plain file with this name, as [`super::open_for_reading`] does.
    ///
    /// # Errors
    /// As [`super::open_for_reading`].
    pub fn open_for_reading(&self, name: &OsStr) -> io::Result<File> {
        Ok(self.open_plain_file(name)?.file)
    }

    /// As [`Self::open_for_reading`], with the metadata of the file when it was opened.
    ///
    /// # Errors
    /// As [`super::open_for_reading`].
    pub fn open_plain_file(&self, name: &OsStr) -> io::Result<PlainFile> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())
            .map_err(|error| describe_open_error(error.into()))?;
        PlainFile::check(file.into())
    }

    /// The folder's entries, unsorted, at most `entries_max` of them.
    ///
    /// # Errors
    /// An error of the system.
    pub fn entries(&self, entries_max: usize) -> io::Result<Vec<(OsString, FileKind)>> {
        let mut entries = Vec::new();
        let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for entry in rustix::fs::Dir::new(rustix::fs::openat(&self.0, ".", readable, Mode::empty())?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() >= entries_max {
                break;
            }
            let kind = match entry.file_type() {
                // The file system does not tell the kind. An entry that is gone by now is skipped.
                FileType::Unknown => match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                kind => kind,
            };
            let kind = match kind {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Folder,
                FileType::Symlink => FileKind::Link,
                _ => FileKind::Other,
            };
            entries.push((name.to_owned(), kind));
        }
        Ok(entries)
    }

    /// The folder's identity.
    #[must_use]
    pub fn identity(&self) -> Option<FileIdentity> {
        identity_of(&File::from(self.0.try_clone().ok()?).metadata().ok()?)
    }

    /// This folder as a cap-std folder, through which the file tools write.
    ///
    /// # Errors
    /// An error of the system.
    pub fn to_dir(&self) -> io::Result<cap_std::fs::Dir> {
        Ok(cap_std::fs::Dir::from_std_file(File::from(self.0.try_clone()?)))
    }
}

/// The identity of the file with this metadata.
#[must_use]
pub fn identity_of(metadata: &std::fs::Metadata) -> Option<FileIdentity> {
    Some((metadata.dev(), metadata.ino()))
}

/// The stamp of the file with this metadata.
#[must_use]
pub fn stamp_of(metadata: &std::fs::Metadata) -> FileStamp {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Folder,
        kind if kind.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    };
    FileStamp {
        kind,
        bytes: metadata.len(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        inode: metadata.ino(),
    }
}

/// Returns `true` if a file belongs to this user or to root. As root, only root's own files are trusted: git also trusts
/// files of `SUDO_UID`, but Brigade has `--config` for those.
#[must_use]
pub fn is_trusted_owner(metadata: &std::fs::Metadata) -> bool {
    [rustix::process::geteuid().as_raw(), 0].contains(&metadata.uid())
}

/// Returns `true` if both files belong to the same user.
#[must_use]
pub fn has_same_owner(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    a.uid() == b.uid()
}

/// The user ids of people, who each have a group with the same id and no other member; see login.defs(5), UID_MIN.
const PERSON_UIDS: std::ops::Range<u32> = 1_000..60_000;

/// Returns `true` if users other than its owner can write a file. A person's own group does not count: with the common umask 002 it can
/// write all files of that person.
#[must_use]
pub fn is_shared(metadata: &std::fs::Metadata) -> bool {
    let has_own_group = metadata.gid() == metadata.uid() && PERSON_UIDS.contains(&metadata.uid());
    let others = if has_own_group { 0o002 } else { 0o022 };
    metadata.mode() & others != 0
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
fn rename_with(from: &Path, to: &Path, rename_flags: rustix::fs::RenameFlags) -> io::Result<()> {
    use rustix::fs::CWD;
    rustix::fs::renameat_with(CWD, from, CWD, to, rename_flags).map_err(|error| match error {
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

/// The free bytes for a user on the disk of `folder`.
///
/// # Errors
/// An error of the system.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// This machine's name.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns `true` if a process with this id exists. Processes of other pid namespaces or machines are not visible.
#[must_use]
pub fn process_lives(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return false;
    };
    !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

#[cfg(target_os = "linux")]
pub(super) fn file_system_type(metadata: &rustix::fs::StatFs) -> i64 {
    // The field's type differs between machines; the relevant numbers fit.
    fn number<T: TryInto<i64>>(value: T) -> i64 {
        value.try_into().unwrap_or(0)
    }
    number(metadata.f_type)
}

/// Returns `true` if the file system of `folder` makes a rename over an existing file durable only after the renamed file's bytes. Then a
/// power cut leaves the old or the new file even without a sync. Ext4 (`auto_da_alloc`, its default), btrfs and zfs promise that. Others
/// may leave an empty file.
#[cfg(target_os = "linux")]
#[must_use]
pub fn renames_after_bytes(folder: &Path) -> bool {
    const ORDERED_TYPES: [i64; 3] = [0xEF53, 0x9123_683E, 0x2FC1_2FC1];
    rustix::fs::statfs(folder).is_ok_and(|metadata| ORDERED_TYPES.contains(&file_system_type(&metadata)))
}

/// Always `false`: unknown on this system.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn renames_after_bytes(_: &Path) -> bool {
    false
}

/// Returns `true` if the error is an I/O error of the disk (EIO).
#[must_use]
pub fn is_media_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// The numbers are from statfs(2) and the kernel's `magic.h`.
#[cfg(target_os = "linux")]
pub(super) fn network_file_system(folder: &Path) -> Option<&'static str> {
    const NETWORK_TYPES: [(i64, &str); 12] = [
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
    NETWORK_TYPES.into_iter().find_map(|(number, name)| (number == kind).then_some(name))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn network_file_system(_: &Path) -> Option<&'static str> {
    None
}
