//! Windows, as far as it goes: files work; exchange is not to be had, so the shared state is merged by re-reading.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{FileKind, Stamp};

pub(super) fn no_follow(_: &mut OpenOptions) {}

pub(super) fn only_for_owner(_: &mut OpenOptions) {}

pub(super) fn keep_for_owner(_: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn device_and_inode(_: &Path) -> Option<(u32, u32, u64)> {
    None
}

/// Opens a file for reading.
///
/// # Errors
/// What the system says.
pub fn open_for_reading(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// A folder, by its path.
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

    /// [`open_for_reading`] of what has this name in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_for_reading(&self, name: &str) -> io::Result<File> {
        open_for_reading(&self.0.join(name))
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

/// Whether the disk could not give back what it holds, while all else works: not known here.
#[must_use]
pub fn is_media_error(_: &io::Error) -> bool {
    false
}
