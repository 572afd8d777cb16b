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

use super::reading::{plain, refusal};
use super::{FileKind, Identity, Stamp};

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}

pub(super) fn no_follow(options: &mut OpenOptions) {
    options.custom_flags(flags(OFlags::NOFOLLOW));
}

/// Has nothing but a plain file be opened for good: no link is followed, nobody is waited for, no terminal becomes ours.
pub(super) fn plain_only(options: &mut OpenOptions) {
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY));
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

/// Has a pipe's writer not be waited for.
pub(super) fn do_not_wait(options: &mut cap_std::fs::OpenOptions) {
    cap_std::fs::OpenOptionsExt::custom_flags(options, flags(OFlags::NONBLOCK | OFlags::NOCTTY));
}

/// Opens what lies at the end of any links, without waiting for a pipe's writer.
pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = flags(OFlags::NONBLOCK | OFlags::NOCTTY);
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(named)
}

/// The error of opening a file, with what lies there where that is the reason.
pub(super) fn named(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => refusal("a symbolic link"),
        Some(Errno::NXIO) => refusal("a pipe, a socket or a device"),
        _ => error,
    }
}

pub(super) fn is_pipe(kind: std::fs::FileType) -> bool {
    kind.is_fifo()
}

/// The name of what is neither a file nor a folder.
pub(super) fn name_of_special(kind: std::fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_symlink() => "a symbolic link",
        _ => "a device",
    }
}

/// An open folder. Only what lies in it is reached through it, wherever it is moved to, and no symbolic link is followed.
#[derive(Debug)]
pub struct Folder(OwnedFd);

/// What a [`Folder`] is opened with; on Linux it need not be readable then.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens it. The path may lead through links.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, FOLDER, Mode::empty())?))
    }

    /// Another handle of it.
    ///
    /// # Errors
    /// What the system says.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// The folder that has this name in it, which is no link.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?))
    }

    /// The plain file that has this name in it, as [`super::open_for_reading`] opens it.
    ///
    /// # Errors
    /// As there.
    pub fn open_for_reading(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty()).map_err(|error| named(error.into()))?;
        plain(file.into())
    }

    /// What lies in it, unsorted: at most `entries_max` names.
    ///
    /// # Errors
    /// What the system says.
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
                // The file system does not say; what is gone by now is none of ours.
                FileType::Unknown => match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                known => known,
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

    /// Which folder it is.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        identity_of(&File::from(self.0.try_clone().ok()?).metadata().ok()?)
    }

    /// It, as the file tools write in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn to_dir(&self) -> io::Result<cap_std::fs::Dir> {
        Ok(cap_std::fs::Dir::from_std_file(File::from(self.0.try_clone()?)))
    }
}

/// Which file these metadata describe.
#[must_use]
pub fn identity_of(metadata: &std::fs::Metadata) -> Option<Identity> {
    Some((metadata.dev(), metadata.ino()))
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

/// Whether what these metadata describe belongs to this user or to root. To root only root's own does: unlike git, which obeys
/// the files of `SUDO_UID` too, it has `--config` for any other.
#[must_use]
pub fn is_trusted_owner(metadata: &std::fs::Metadata) -> bool {
    [rustix::process::geteuid().as_raw(), 0].contains(&metadata.uid())
}

/// Returns true if both belong to the same user.
#[must_use]
pub fn has_same_owner(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    a.uid() == b.uid()
}

/// The user ids that systems give to people, each with a group of the same number and no other member; see login.defs(5), UID_MIN.
const PEOPLE: std::ops::Range<u32> = 1_000..60_000;

/// Whether others than its owner can write what these metadata describe. A person's own group is not others: with the umask 002,
/// which is usual for these, it can write all that the person makes.
#[must_use]
pub fn is_shared(metadata: &std::fs::Metadata) -> bool {
    let has_own_group = metadata.gid() == metadata.uid() && PEOPLE.contains(&metadata.uid());
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
