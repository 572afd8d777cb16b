//! Windows, as far as it goes: files work; exchange is not to be had, so the shared state is merged by re-reading.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{FileKind, Identity, Stamp};

pub(super) fn plain_only(_: &mut OpenOptions) {}

pub(super) fn do_not_wait(_: &mut cap_std::fs::OpenOptions) {}

pub(super) fn no_follow(_: &mut OpenOptions) {}

pub(super) fn only_for_owner(_: &mut OpenOptions) {}

pub(super) fn keep_for_owner(_: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn device_and_inode(_: &Path) -> Option<(u32, u32, u64)> {
    None
}

/// Opens what lies at the end of any links.
pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The error of opening a file, as it is.
pub(super) fn named(error: io::Error) -> io::Error {
    error
}

pub(super) fn is_pipe(_: std::fs::FileType) -> bool {
    false
}

/// The name of what is neither a file nor a folder.
pub(super) fn name_of_special(kind: std::fs::FileType) -> &'static str {
    if kind.is_symlink() { "a symbolic link" } else { "a device" }
}

/// A folder, by its path: what is exchanged for a link meanwhile is followed here.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Takes its path.
    ///
    /// # Errors
    /// None.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(path.to_owned()))
    }

    /// Another handle of it.
    ///
    /// # Errors
    /// None.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self(self.0.clone()))
    }

    /// The folder that has this name in it, which is no link.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        let path = self.0.join(name);
        if path.symlink_metadata()?.is_dir() { Ok(Self(path)) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    /// The plain file that has this name in it, as [`super::open_for_reading`] opens it.
    ///
    /// # Errors
    /// As there.
    pub fn open_for_reading(&self, name: &OsStr) -> io::Result<File> {
        super::open_for_reading(&self.0.join(name))
    }

    /// What lies in it, unsorted: at most `entries_max` names.
    ///
    /// # Errors
    /// What the system says.
    pub fn entries(&self, entries_max: usize) -> io::Result<Vec<(OsString, FileKind)>> {
        let entries = std::fs::read_dir(&self.0)?.take(entries_max);
        entries.map(|entry| entry.and_then(|entry| Ok((entry.file_name(), kind_of(entry.file_type()?))))).collect()
    }

    /// Which folder it is: not known here.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        None
    }

    /// It, as the file tools write in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn to_dir(&self) -> io::Result<cap_std::fs::Dir> {
        cap_std::fs::Dir::open_ambient_dir(&self.0, cap_std::ambient_authority())
    }
}

/// Which file these metadata describe: not known here.
#[must_use]
pub fn identity_of(_: &std::fs::Metadata) -> Option<Identity> {
    None
}

fn kind_of(kind: std::fs::FileType) -> FileKind {
    match kind {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Folder,
        kind if kind.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    }
}

/// The stamp of what these metadata describe.
#[must_use]
pub fn stamp_of(metadata: &std::fs::Metadata) -> Stamp {
    let kind = kind_of(metadata.file_type());
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_ns = modified.map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0));
    Stamp { kind, bytes: metadata.len(), modified_ns, inode: 0 }
}

pub(super) fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn rename_new(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn network_file_system(_: &Path) -> Option<&'static str> {
    None
}

pub(super) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Bytes a user may still write: not known here.
///
/// # Errors
/// Always `Unsupported`.
pub fn free_bytes(_: &Path) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// This machine's name.
#[must_use]
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".to_owned())
}

/// Whether a process of this number lives: not known here, so every one is taken to.
#[must_use]
pub fn process_lives(_: u32) -> bool {
    true
}

/// Whether a rename over an existing file is durable only after the renamed file's bytes: not known here, so no.
#[must_use]
pub fn renames_after_bytes(_: &Path) -> bool {
    false
}

/// Returns true if both belong to the same user, which is not known here.
#[must_use]
pub fn has_same_owner(_: &std::fs::Metadata, _: &std::fs::Metadata) -> bool {
    false
}

/// Whether what these metadata describe belongs to this user: not known here, so everything is taken to.
#[must_use]
pub fn is_trusted_owner(_: &std::fs::Metadata) -> bool {
    true
}

/// Whether others than its owner can write what these metadata describe: not known here, so nobody is taken to.
#[must_use]
pub fn is_shared(_: &std::fs::Metadata) -> bool {
    false
}

/// Whether the disk could not give back what it holds, while all else works: not known here.
#[must_use]
pub fn is_media_error(_: &io::Error) -> bool {
    false
}
