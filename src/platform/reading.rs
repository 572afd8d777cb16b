//! Opens and reads files at paths where a repository, an agent or another user may have put something else. Pipes, devices, links
//! that leave the folder and endless files are refused, and no call waits for them.
//!
//! Brigade reads such files only through this module, or through the checked calls of [`super`]. A file is opened
//! first, without following links or waiting, and then checked by its handle, so that it cannot be exchanged in between.

use std::fs::{self, DirEntry, File, FileType, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::number_of;

/// Opening with these flags does not wait for a pipe's writer.
const NO_WAIT: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

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
            if kind.is_file() || kind.is_fifo() { Ok(file) } else { Err(not_plain(kind)) }
        }
        AllowedKinds::Files => {
            let opened = OpenOptions::new().read(true).custom_flags(number_of(NO_WAIT)).open(path);
            Ok(PlainFile::check(opened.map_err(describe_open_error)?)?.file)
        }
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
    check_size(&file, bytes_max)?;
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large(bytes_max, "bytes"));
    }
    Ok(bytes)
}

/// The limits of a file that is read line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineLimits {
    /// The longest line, in bytes.
    pub line_bytes_max: u64,
    /// The most lines.
    pub lines_max: u64,
    /// The largest file, in bytes.
    pub file_bytes_max: u64,
}

/// Reads a file line by line until `visit` breaks, and returns its value; `None` at the end of the file. A line has no line end.
///
/// # Errors
/// As [`open`], and `FileTooLarge` at the first limit that the file passes. The text names the limit.
pub fn read_lines<B>(
    path: &Path,
    accept: AllowedKinds<'_>,
    limits: LineLimits,
    mut visit: impl FnMut(&[u8]) -> ControlFlow<B>,
) -> io::Result<Option<B>> {
    let file = open(path, accept)?;
    check_size(&file, limits.file_bytes_max)?;
    // A file that grows meanwhile is read up to the limit.
    let mut reader = BufReader::with_capacity(64 * 1024, file.take(limits.file_bytes_max));
    let mut line = Vec::new();
    let mut lines_left = limits.lines_max;
    loop {
        line.clear();
        if reader.by_ref().take(limits.line_bytes_max.saturating_add(1)).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        lines_left = lines_left.checked_sub(1).ok_or_else(|| too_large(limits.lines_max, "lines"))?;
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if text.len() as u64 > limits.line_bytes_max {
            return Err(too_large(limits.line_bytes_max, "bytes in one line"));
        }
        if let ControlFlow::Break(value) = visit(text) {
            return Ok(Some(value));
        }
    }
}

/// Returns the entries of a folder.
///
/// # Errors
/// `FileTooLarge` if it has more than `entries_max`, and errors of the system.
pub fn list(folder: &Path, entries_max: usize) -> io::Result<Vec<DirEntry>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        if found.len() == entries_max {
            return Err(too_large(entries_max as u64, "entries"));
        }
        found.push(entry?);
    }
    Ok(found)
}

/// Refuses a plain file by its size, before anything is read. The holes of a sparse file count.
fn check_size(file: &File, bytes_max: u64) -> io::Result<()> {
    if file.metadata()?.len() > bytes_max { Err(too_large(bytes_max, "bytes")) } else { Ok(()) }
}

fn too_large(limit: u64, unit: &str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} {unit}, which is the limit"))
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
        if kind.is_file() { Ok(Self { file, metadata }) } else { Err(not_plain(kind)) }
    }
}

/// The error for an entry of another kind than a plain file.
fn not_plain(kind: FileType) -> io::Error {
    match kind {
        kind if kind.is_dir() => not_plain_error("a folder", "name a file in it, or move it away (mv)"),
        kind if kind.is_symlink() => link_error(),
        kind if kind.is_fifo() => not_plain_error("a pipe", REMOVE),
        kind if kind.is_socket() => not_plain_error("a socket", REMOVE),
        _ => not_plain_error("a device", REMOVE),
    }
}

/// Replaces an error of opening by one that names the kind of file, if that is the reason.
pub(super) fn describe_open_error(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => link_error(),
        Some(Errno::NXIO) => not_plain_error("a pipe, a socket or a device", REMOVE),
        _ => error,
    }
}

const REMOVE: &str = "remove it (rm)";

fn link_error() -> io::Error {
    not_plain_error(
        "a symbolic link",
        "replace it by the file it leads to (cp --remove-destination), or remove it (rm)",
    )
}

fn not_plain_error(kind: &str, remedy: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a plain file: {remedy}"))
}

fn open_within(folder: &Path, path: &Path) -> io::Result<File> {
    let (folder, inside) = match path.strip_prefix(folder).ok().filter(|inside| stays_below(inside)) {
        Some(inside) => (folder, inside),
        None => (path.parent().unwrap_or(folder), Path::new(path.file_name().ok_or(io::ErrorKind::InvalidInput)?)),
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut options = cap_std::fs::OpenOptions::new();
    cap_std::fs::OpenOptionsExt::custom_flags(options.read(true), number_of(NO_WAIT));
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
        _ => describe_open_error(error),
    })?;
    Ok(PlainFile::check(file.into_std())?.file)
}

/// Returns true if a relative path, as written, never leaves the folder that it starts in.
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LineLimits = LineLimits { line_bytes_max: 4, lines_max: 3, file_bytes_max: 12 };

    /// Reads a file with this content, and returns its lines joined by `|`, or the error.
    fn lines_of(content: &[u8]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, content).unwrap();
        let mut lines = Vec::new();
        let read = read_lines(&path, AllowedKinds::FilesHere, LIMITS, |line| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            ControlFlow::<()>::Continue(())
        });
        read.map(|_| lines.join("|")).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_read_up_to_each_limit() {
        assert_eq!(lines_of(b"").unwrap(), "");
        assert_eq!(lines_of(b"abcd\n\nef").unwrap(), "abcd||ef");
        assert_eq!(lines_of(b"abcde\n").unwrap_err(), "it has more than 4 bytes in one line, which is the limit");
        assert_eq!(lines_of(b"a\nb\nc\nd\n").unwrap_err(), "it has more than 3 lines, which is the limit");
        assert_eq!(lines_of(b"abcd\nabcd\nabcd\n").unwrap_err(), "it has more than 12 bytes, which is the limit");
    }

    #[test]
    fn sparse_file_is_refused_before_reading() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        File::create(&path).unwrap().set_len(60 << 30).unwrap();
        let limits = LineLimits { line_bytes_max: 1 << 40, lines_max: u64::MAX, file_bytes_max: 1 << 30 };
        let visit = |_: &[u8]| ControlFlow::Break(());
        let refused = read_lines(&path, AllowedKinds::FilesHere, limits, visit).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(&path, AllowedKinds::FilesHere, 1 << 30).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn folder_is_listed_up_to_limit() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(list(folder.path(), 2).unwrap().len(), 2);
        assert_eq!(list(folder.path(), 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
