//! All differences between operating systems. Linux is the main system. macOS shares its code through POSIX; each function documents
//! what it does where Linux has more. Other systems are not supported.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

mod locks;
pub mod processes;
pub mod reading;
mod removal;
pub mod terminal;
pub mod threads;
mod unix;
pub mod unix_socket;
pub mod watch;

pub use locks::{LockHolder, lock_holder, open_lock_file};
pub use reading::PlainFile;
use reading::describe_open_error;
pub use removal::remove_folder;
pub use unix::{
    Folder, exchange, free_bytes, has_same_owner, host_name, identity_of, is_media_error, is_resource_shortage,
    is_shared, is_trusted_owner, network_file_system, process_lives, rename_new, renames_after_bytes, stamp_of,
    sync_folder,
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
    /// The inode number.
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
pub fn now_ns() -> i128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
}

/// The id of the machine's boot, or an empty text if the system does not tell.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
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

/// Opens only plain files for use: follows no link, waits for no pipe, takes no controlling terminal.
fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<PlainFile> {
    options.custom_flags(number_of(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY));
    PlainFile::check(options.open(path).map_err(describe_open_error)?)
}

/// Flags as [`OpenOptionsExt::custom_flags`] takes them.
fn number_of(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}
