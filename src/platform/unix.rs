//! Linux and macOS.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::reading::{PlainFile, describe_open_error};
use super::{FileIdentity, FileKind, FileStamp};

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

    /// As [`Self::open_folder`]. If it belongs to this user, they can read and write it then.
    ///
    /// # Errors
    /// An error of the system.
    pub fn open_own_folder(&self, name: &OsStr) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        {
            let folder = self.open_folder(name)?;
            // A handle of this kind need not be readable, and cannot change the mode itself.
            let path = format!("/proc/self/fd/{}", folder.0.as_raw_fd());
            let _ = rustix::fs::chmod(path, Mode::RWXU);
            Ok(folder)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = rustix::fs::chmodat(&self.0, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW);
            self.open_folder(name)
        }
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

    /// Creates a subfolder if nothing has its name.
    ///
    /// # Errors
    /// An error of the system.
    pub fn create_folder(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => Ok(()),
            created => Ok(created?),
        }
    }

    /// Returns true if the folder has an entry with this name, of any kind.
    ///
    /// # Errors
    /// An error of the system.
    pub fn exists(&self, name: &OsStr) -> io::Result<bool> {
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// As [`rename_new`], for an entry of this folder and a name in another one.
    ///
    /// # Errors
    /// As [`rename_new`].
    pub fn rename_new(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.0, name, &to.0, new_name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(&self.0, name, &to.0, new_name, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// The folder's identity.
    ///
    /// # Errors
    /// An error of the system.
    pub fn identity(&self) -> io::Result<FileIdentity> {
        Ok(identity_of(&File::from(self.0.try_clone()?).metadata()?))
    }

    /// This folder as a cap-std folder, through which the file tools write.
    ///
    /// # Errors
    /// An error of the system.
    pub fn to_dir(&self) -> io::Result<cap_std::fs::Dir> {
        Ok(cap_std::fs::Dir::from_std_file(File::from(self.0.try_clone()?)))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The identity of the file with this metadata.
pub fn identity_of(metadata: &Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino())
}

/// The stamp of the file with this metadata.
pub fn stamp_of(metadata: &Metadata) -> FileStamp {
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

/// Returns true if a file belongs to this user or to root. As root, only root's own files are trusted: git also trusts
/// files of `SUDO_UID`, but Brigade has `--config` for those.
pub fn is_trusted_owner(metadata: &Metadata) -> bool {
    [rustix::process::geteuid().as_raw(), 0].contains(&metadata.uid())
}

/// Returns true if both files belong to the same user.
pub fn has_same_owner(a: &Metadata, b: &Metadata) -> bool {
    a.uid() == b.uid()
}

/// The user ids of people, who each have a group with the same id and no other member; see login.defs(5), UID_MIN.
const PERSON_UIDS: std::ops::Range<u32> = 1_000..60_000;

/// Returns true if users other than its owner can write a file. A person's own group does not count: with the common umask 002 it can
/// write all files of that person.
pub fn is_shared(metadata: &Metadata) -> bool {
    let has_own_group = metadata.gid() == metadata.uid() && PERSON_UIDS.contains(&metadata.uid());
    let others = if has_own_group { 0o002 } else { 0o022 };
    metadata.mode() & others != 0
}

/// Swaps two files of one file system atomically.
///
/// # Errors
/// `Unsupported` if the file system has no such call, and other errors of the system.
pub fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    rename_with(a, b, RenameFlags::EXCHANGE)
}

/// Renames a file atomically to a name that does not exist.
///
/// # Errors
/// `AlreadyExists` if the name exists, and errors of the system.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rename_with(from, to, RenameFlags::NOREPLACE) {
        // A second name followed by the removal of the first has the same result. A crash between leaves both.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        outcome => outcome,
    }
}

fn rename_with(from: &Path, to: &Path, rename_flags: RenameFlags) -> io::Result<()> {
    rustix::fs::renameat_with(CWD, from, CWD, to, rename_flags).map_err(|error| match error {
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => io::Error::new(io::ErrorKind::Unsupported, error),
        other => other.into(),
    })
}

/// Makes the folder's entries durable.
///
/// # Errors
/// An error of the system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
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
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns true if a process with this id exists. Processes of other pid namespaces or machines are not visible.
pub fn process_lives(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// The number of a folder's type of file system, as statfs(2) has it. `None` if the system does not tell: only Linux does.
pub(super) fn file_system_type(folder: &Path) -> Option<i64> {
    #[cfg(target_os = "linux")]
    {
        // The field's type differs between machines.
        fn number<T: TryInto<i64>>(value: T) -> i64 {
            value.try_into().unwrap_or(0)
        }
        Some(number(rustix::fs::statfs(folder).ok()?.f_type) & 0xFFFF_FFFF)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        None
    }
}

/// Returns true if the file system of `folder` makes a rename over an existing file durable only after the renamed file's bytes. Then a
/// power cut leaves the old or the new file even without a sync. Ext4 (`auto_da_alloc`, its default), btrfs and zfs promise that. Others
/// may leave an empty file.
pub fn renames_after_bytes(folder: &Path) -> bool {
    const ORDERED_TYPES: [i64; 3] = [0xEF53, 0x9123_683E, 0x2FC1_2FC1];
    file_system_type(folder).is_some_and(|kind| ORDERED_TYPES.contains(&kind))
}

/// Returns true if the error is an I/O error of the disk (EIO).
pub fn is_media_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Returns true if the system had no file, process or memory left for the call.
pub fn is_resource_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM))
}

/// The network or user-space file system of `folder`, whose locks and file events are unreliable. `None` for
/// a local disk, and if the system does not tell. The numbers are from statfs(2) and the kernel's `magic.h`.
pub fn network_file_system(folder: &Path) -> Option<&'static str> {
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
    let kind = file_system_type(folder)?;
    NETWORK_TYPES.into_iter().find_map(|(number, name)| (number == kind).then_some(name))
}
