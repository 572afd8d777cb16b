//! Windows: files work. Atomic exchange is missing, so shared state is merged by reading it again.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::reading::SpecialKind;
use super::{FileIdentity, FileKind, FileStamp};

pub(super) fn plain_only(_: &mut OpenOptions) {}

pub(super) fn set_nonblocking(_: &mut cap_std::fs::OpenOptions) {}

pub(super) fn no_follow(_: &mut OpenOptions) {}

pub(super) fn only_for_owner(_: &mut OpenOptions) {}

pub(super) fn restrict_to_owner(_: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn device_and_inode(_: &Path) -> Option<(u32, u32, u64)> {
    None
}

/// Opens a file through any links.
pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Returns the error unchanged.
pub(super) fn describe_open_error(error: io::Error) -> io::Error {
    error
}

pub(super) fn is_pipe(_: std::fs::FileType) -> bool {
    false
}

/// The kind of an entry that is neither a file nor a folder.
pub(super) fn special_kind(kind: std::fs::FileType) -> SpecialKind {
    if kind.is_symlink() { SpecialKind::Link } else { SpecialKind::Device }
}

/// A folder by its path. If it is replaced by a link meanwhile, the link is followed.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Stores the path.
    ///
    /// # Errors
    /// None.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(path.to_owned()))
    }

    /// Another handle of this folder.
    ///
    /// # Errors
    /// None.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.clone()))
    }

    /// Opens the subfolder with this name, which must not be a link.
    ///
    /// # Errors
    /// An error of the system.
    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        let path = self.0.join(name);
        if path.symlink_metadata()?.is_dir() { Ok(Self(path)) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    /// Opens the plain file with this name, as [`super::open_for_reading`] does.
    ///
    /// # Errors
    /// As [`super::open_for_reading`].
    pub fn open_for_reading(&self, name: &OsStr) -> io::Result<File> {
        super::open_for_reading(&self.0.join(name))
    }

    /// As [`Self::open_for_reading`], with the metadata of the file when it was opened.
    ///
    /// # Errors
    /// As [`super::open_for_reading`].
    pub fn open_plain_file(&self, name: &OsStr) -> io::Result<super::PlainFile> {
        super::open_plain_file(&self.0.join(name))
    }

    /// The folder's entries, unsorted, at most `entries_max` of them.
    ///
    /// # Errors
    /// An error of the system.
    pub fn entries(&self, entries_max: usize) -> io::Result<Vec<(OsString, FileKind)>> {
        let entries = std::fs::read_dir(&self.0)?.take(entries_max);
        entries.map(|entry| entry.and_then(|entry| Ok((entry.file_name(), kind_of(entry.file_type()?))))).collect()
    }

    /// Always `None`: unknown on this system.
    #[must_use]
    pub fn identity(&self) -> Option<FileIdentity> {
        None
    }

    /// This folder as a cap-std folder, through which the file tools write.
    ///
    /// # Errors
    /// An error of the system.
    pub fn to_dir(&self) -> io::Result<cap_std::fs::Dir> {
        cap_std::fs::Dir::open_ambient_dir(&self.0, cap_std::ambient_authority())
    }
}

/// Always `None`: unknown on this system.
#[must_use]
pub fn identity_of(_: &std::fs::Metadata) -> Option<FileIdentity> {
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

/// The stamp of the file with this metadata.
#[must_use]
pub fn stamp_of(metadata: &std::fs::Metadata) -> FileStamp {
    let kind = kind_of(metadata.file_type());
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_ns = modified.map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0));
    FileStamp { kind, bytes: metadata.len(), modified_ns, inode: 0 }
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

/// The free bytes for a user: unknown on this system.
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

/// Always `true`: unknown on this system.
#[must_use]
pub fn process_lives(_: u32) -> bool {
    true
}

/// Always `false`: unknown on this system.
#[must_use]
pub fn renames_after_bytes(_: &Path) -> bool {
    false
}

/// Always `false`: unknown on this system.
#[must_use]
pub fn has_same_owner(_: &std::fs::Metadata, _: &std::fs::Metadata) -> bool {
    false
}

/// Always `true`: unknown on this system.
#[must_use]
pub fn is_trusted_owner(_: &std::fs::Metadata) -> bool {
    true
}

/// Always `false`: unknown on this system.
#[must_use]
pub fn is_shared(_: &std::fs::Metadata) -> bool {
    false
}

/// Always `false`: unknown on this system.
#[must_use]
pub fn is_media_error(_: &io::Error) -> bool {
    false
}
