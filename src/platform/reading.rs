//! Opens and reads files at paths where a repository, an agent or another user may have put something else. Pipes, devices, links
//! that leave the folder and endless files are refused, and no call waits for them.
//!
//! Brigade reads such files only through this module, or through the checked calls of [`super`]. A file is opened
//! first, without following links or waiting, and then checked by its handle, so that it cannot be exchanged in between.

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::{Component, Path};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};

use super::system;

/// The kinds of file that are accepted at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedKinds<'a> {
    /// A plain file or a pipe, through any link: for a path that the user typed.
    FilesAndPipes,
    /// A plain file, through any link: for a path that the user typed, or the user's own config.
    Files,
    /// A plain file, through links that stay in this folder. A path in another folder must stay in that folder.
    FilesWithin(&'a Path),
    /// A plain file at exactly this path: its last part is not a link.
    FilesHere,
}

impl<'a> AllowedKinds<'a> {
    /// A plain file, through links that stay in the folder of `path`.
    #[must_use]
    pub fn within_folder_of(path: &'a Path) -> Self {
        Self::FilesWithin(path.parent().unwrap_or(Path::new(".")))
    }
}

/// Opens the file at `path` if its kind is accepted.
///
/// # Errors
/// `InvalidInput` for another kind of file, which the text names, and errors of the system.
pub fn open(path: &Path, accept: AllowedKinds<'_>) -> io::Result<File> {
    match accept {
        AllowedKinds::FilesAndPipes => {
            let file = File::open(path)?;
            let kind = file.metadata()?.file_type();
            if kind.is_file() || system::is_pipe(kind) { Ok(file) } else { Err(not_plain_error(special_kind(kind))) }
        }
        AllowedKinds::Files => Ok(PlainFile::check(system::open_without_waiting(path)?)?.file),
        AllowedKinds::FilesWithin(folder) => open_within(folder, path),
        AllowedKinds::FilesHere => super::open_for_reading(path),
    }
}

/// Reads a whole file.
///
/// # Errors
/// As [`open`], and `FileTooLarge` if it has more than `bytes_max` bytes.
pub fn read(path: &Path, accept: AllowedKinds<'_>, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_all(open(path, accept)?, bytes_max)
}

/// Reads a whole text file.
///
/// # Errors
/// As [`read`], and `InvalidData` if it is not UTF-8.
pub fn read_text(path: &Path, accept: AllowedKinds<'_>, bytes_max: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text: save it as UTF-8");
    String::from_utf8(read(path, accept, bytes_max)?).map_err(not_text)
}

/// Reads an open file to its end.
///
/// # Errors
/// `FileTooLarge` if it has more than `bytes_max` bytes, and errors of the system.
pub fn read_all(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it has more than {bytes_max} bytes, which is the limit");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// An open file that is certainly a plain one.
#[derive(Debug)]
pub struct PlainFile {
    /// The open file.
    pub file: File,
    /// Its metadata when it was opened.
    pub metadata: Metadata,
}

impl PlainFile {
    /// Returns the open file if it is a plain one.
    ///
    /// # Errors
    /// `InvalidInput` for another kind of file, which the text names.
    pub(super) fn check(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let kind = metadata.file_type();
        if kind.is_file() { Ok(Self { file, metadata }) } else { Err(not_plain_error(special_kind(kind))) }
    }
}

/// A kind of entry that is not a plain file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(unix), allow(dead_code, reason = "only Unix tells these kinds apart"))]
pub(super) enum SpecialKind {
    Folder,
    Link,
    Pipe,
    Socket,
    Device,
    /// One of the three. The system does not tell which.
    PipeSocketOrDevice,
}

impl SpecialKind {
    fn name(self) -> &'static str {
        match self {
            Self::Folder => "a folder",
            Self::Link => "a symbolic link",
            Self::Pipe => "a pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::PipeSocketOrDevice => "a pipe, a socket or a device",
        }
    }

    /// The command that fixes it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Folder => "name a file in it, or move it away (mv)",
            Self::Link => "replace it by the file it leads to (cp --remove-destination), or remove it (rm)",
            Self::Pipe | Self::Socket | Self::Device | Self::PipeSocketOrDevice => "remove it (rm)",
        }
    }
}

/// The error for a path that has no plain file.
pub(super) fn not_plain_error(kind: SpecialKind) -> io::Error {
    let text = format!("it is {}, not a plain file: {}", kind.name(), kind.remedy());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn special_kind(kind: FileType) -> SpecialKind {
    if kind.is_dir() { SpecialKind::Folder } else { system::special_kind(kind) }
}

fn open_within(folder: &Path, path: &Path) -> io::Result<File> {
    let (folder, inside) = match path.strip_prefix(folder).ok().filter(|inside| stays_below(inside)) {
        Some(inside) => (folder, inside),
        None => (path.parent().unwrap_or(folder), Path::new(path.file_name().ok_or(io::ErrorKind::InvalidInput)?)),
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut options = OpenOptions::new();
    system::set_nonblocking(options.read(true));
    let opened = Dir::open_ambient_dir(folder, ambient_authority())?.open_with(inside, &options);
    let file = opened.map_err(|error| match error.kind() {
        // Refusals by cap-std itself have no system error.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
            let folder = folder.display();
            let text = format!(
                "a symbolic link in its path leads out of {folder} or is absolute: make it relative and inside, or copy the file there (cp --remove-destination)"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        }
        _ => system::describe_open_error(error),
    })?;
    Ok(PlainFile::check(file.into_std())?.file)
}

/// Returns `true` if a relative path, as written, never leaves the folder that it starts in.
fn stays_below(path: &Path) -> bool {
    let mut depth = 0_usize;
    path.components().all(|part| match part {
        Component::Normal(_) => {
            depth += 1;
            true
        }
        Component::ParentDir => depth.checked_sub(1).map(|above| depth = above).is_some(),
        Component::CurDir => true,
        Component::RootDir | Component::Prefix(_) => false,
    })
}
