//! All that differs between operating systems, in one place; each function says what the others do.
//!
//! Linux is first. macOS uses the same code where POSIX has it. On Windows the program compiles; what is missing there is
//! said by each function: no process groups, no guard, no atomic exchange.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

mod locks;
pub mod processes;
pub mod reading;
pub mod terminal;
pub mod threads;
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
pub use system::{
    Folder, free_bytes, has_same_owner, host_name, identity_of, is_media_error, is_shared, is_trusted_owner,
    process_lives, renames_after_bytes, stamp_of,
};

/// What tells one version of a file from another: same stamp, same bytes (but for a write within the clock's grain).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// What lies there.
    pub kind: FileKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// Which file it is; 0 where the system does not say.
    pub inode: u64,
}

/// What tells a file from all others while it is there: its device and its number on it.
pub type Identity = (u64, u64);

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A plain file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// Anything else: a pipe, a device.
    Other,
}

/// The wall clock in nanoseconds since 1970, as [`Stamp::modified_ns`] counts: to tell how old a file's last write is.
#[must_use]
pub fn now_ns() -> i128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
}

/// The machine's boot, or an empty text where the system does not say.
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Swaps two files of one file system atomically.
///
/// # Errors
/// `Unsupported` where the system or the file system has no such call.
pub fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    system::exchange(a, b)
}

/// Gives a file a name that nothing has, atomically.
///
/// # Errors
/// `AlreadyExists` where something has it; else what the system says.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match system::rename_new(from, to) {
        // A second name and the first one's removal come to the same; a crash between leaves both.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        outcome => outcome,
    }
}

/// The network or user-space file system that `folder` is on, whose locks and file events are not to be trusted; `None` for
/// a local disk, and where the system does not say.
#[must_use]
pub fn network_file_system(folder: &Path) -> Option<&'static str> {
    system::network_file_system(folder)
}

/// Makes the folder's entries durable. Does nothing where folders cannot be synced (Windows).
///
/// # Errors
/// What the system says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    system::sync_folder(folder)
}

/// Opens a plain file for reading. It never follows a symbolic link and never waits for a pipe's writer.
///
/// # Errors
/// `InvalidInput`, with what lies there, where it is no plain file; else what the system says.
pub fn open_for_reading(path: &Path) -> io::Result<File> {
    open_plain(path, OpenOptions::new().read(true))
}

/// Opens (and makes, where missing) a plain file to append to. It never follows a symbolic link and never waits for a pipe's reader.
///
/// # Errors
/// As [`open_for_reading`].
pub fn open_for_appending(path: &Path) -> io::Result<File> {
    open_plain(path, OpenOptions::new().append(true).create(true))
}

/// Opens (and makes, where missing) a plain file to write anew. It never follows a symbolic link and never waits for a pipe's reader.
///
/// # Errors
/// As [`open_for_reading`].
pub fn open_for_writing(path: &Path) -> io::Result<File> {
    open_plain(path, OpenOptions::new().write(true).create(true).truncate(true))
}

fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    system::plain_only(options);
    reading::plain(options.open(path).map_err(system::named)?)
}
