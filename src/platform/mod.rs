//! All differences between operating systems. Each function documents the behaviour on other systems.
//!
//! Linux is the main system. macOS shares its code through POSIX. On Windows the program compiles, but process groups, the guard and
//! atomic exchange are missing.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

mod locks;
pub mod processes;
pub mod reading;
pub mod terminal;
pub mod threads;
#[cfg(unix)]
pub mod unix_socket;
pub mod watch;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
use unix as system;
#[cfg(not(unix))]
mod other;
#[cfg(not(unix))]
use other as system;

pub use locks::{LockHolder, lock_holder, open_lock_file};
pub use reading::PlainFile;
pub use system::{
    Folder, free_bytes, has_same_owner, host_name, identity_of, is_media_error, is_shared, is_trusted_owner,
    process_lives, renames_after_bytes, stamp_of,
};

/// A file's version: files with the same stamp have the same bytes, except for a write within the clock's resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// The kind of file.
    pub kind: FileKind,
    /// The size in bytes.
    pub bytes: u64,
    /// The time of the last write, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// The inode number; 0 if the system does not tell.
    pub inode: u64,
}

/// A file's device and inode number, which identify it while it exists.
pub type FileIdentity = (u64, u64);

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A plain file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// Anything else, for example a pipe or a device.
    Other,
}

/// The wall clock in nanoseconds since 1970, to compare with [`FileStamp::modified_ns`].
#[must_use]
pub fn now_ns() -> i128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
}

/// The id of the machine's boot, or an empty text if the system does not tell.
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Swaps two files of one file system atomically.
///
/// # Errors
/// `Unsupported` if the system or the file system has no such call, and other errors of the system.
pub fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    system::exchange(a, b)
}

/// Renames a file atomically to a name that does not exist.
///
/// # Errors
/// `AlreadyExists` if the name exists, and errors of the system.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match system::rename_new(from, to) {
        // A second name followed by the removal of the first has the same result. A crash between leaves both.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        outcome => outcome,
    }
}

/// The network or user-space file system of `folder`, whose locks and file events are unreliable. `None` for
/// a local disk, and if the system does not tell.
#[must_use]
pub fn network_file_system(folder: &Path) -> Option<&'static str> {
    system::network_file_system(folder)
}

/// Makes the folder's entries durable. It has no effect on Windows, where folders cannot be synced.
///
/// # Errors
/// An error of the system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    system::sync_folder(folder)
}

/// Opens a plain file for reading. It never follows a symbolic link or waits for a pipe's writer.
///
/// # Errors
/// `InvalidInput` if it is not a plain file, and errors of the system.
pub fn open_for_reading(path: &Path) -> io::Result<File> {
    Ok(open_plain_file(path)?.file)
}

/// As [`open_for_reading`], with the metadata of the file when it was opened.
///
/// # Errors
/// As [`open_for_reading`].
pub fn open_plain_file(path: &Path) -> io::Result<PlainFile> {
    open_plain(path, OpenOptions::new().read(true))
}

/// Opens or creates a plain file for appending. It never follows a symbolic link or waits for a pipe's reader.
///
/// # Errors
/// As [`open_for_reading`].
pub fn open_for_appending(path: &Path) -> io::Result<File> {
    Ok(open_plain(path, OpenOptions::new().append(true).create(true))?.file)
}

/// Opens or creates a plain file and empties it. It never follows a symbolic link or waits for a pipe's reader.
///
/// # Errors
/// As [`open_for_reading`].
pub fn open_for_writing(path: &Path) -> io::Result<File> {
    Ok(open_plain(path, OpenOptions::new().write(true).create(true).truncate(true))?.file)
}

fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<PlainFile> {
    system::plain_only(options);
    PlainFile::check(options.open(path).map_err(system::describe_open_error)?)
}
