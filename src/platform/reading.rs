//! Opens and reads files that a repository, an agent or another user of the machine may have put at their paths: a pipe, a device, a link
//! out of its folder or an endless file is refused, and nothing waits for it.
//!
//! Everything in Brigade that reads such a file goes through here, or through the checked calls of [`super`] beneath it. A file is opened
//! first, without following or waiting, and then checked on its handle: nobody can exchange it in between.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::path::{Component, Path};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};

use super::system;

/// What may lie at a path that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept<'a> {
    /// A plain file or a pipe, through any link: a person typed the path.
    FilesAndPipes,
    /// A plain file, through any link: a person typed the path, or it is the person's own config.
    Files,
    /// A plain file, through links that stay in this folder. A path that names another folder counts as one of that folder.
    FilesWithin(&'a Path),
    /// A plain file at this very path: its last part is no link.
    FilesHere,
}

impl<'a> Accept<'a> {
    /// A plain file, through links that stay in the folder of `path`.
    #[must_use]
    pub fn within_folder_of(path: &'a Path) -> Self {
        Self::FilesWithin(path.parent().unwrap_or(Path::new(".")))
    }
}

/// Opens what lies at `path`, if it is what is accepted.
///
/// # Errors
/// `InvalidInput`, with what was found, for what is not accepted; else what the system says.
pub fn open(path: &Path, accept: Accept<'_>) -> io::Result<File> {
    match accept {
        Accept::FilesAndPipes => {
            let file = File::open(path)?;
            let kind = file.metadata()?.file_type();
            if kind.is_file() || system::is_pipe(kind) { Ok(file) } else { Err(refusal(what(kind))) }
        }
        Accept::Files => plain(system::open_without_waiting(path)?),
        Accept::FilesWithin(folder) => open_within(folder, path),
        Accept::FilesHere => super::open_for_reading(path),
    }
}

/// Reads a whole file.
///
/// # Errors
/// As [`open`]; `FileTooLarge` where it has more than `bytes_max` bytes.
pub fn read(path: &Path, accept: Accept<'_>, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_all(open(path, accept)?, bytes_max)
}

/// Reads a whole text file.
///
/// # Errors
/// As [`read`]; `InvalidData` where it is no UTF-8 text.
pub fn read_text(path: &Path, accept: Accept<'_>, bytes_max: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text: save it as UTF-8");
    String::from_utf8(read(path, accept, bytes_max)?).map_err(not_text)
}

/// Reads an open file to its end.
///
/// # Errors
/// `FileTooLarge` where it has more than `bytes_max` bytes; else what the system says.
pub fn read_all(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it has more than {bytes_max} bytes, and Brigade reads at most so many");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// The open file, if it is a plain one.
///
/// # Errors
/// `InvalidInput`, with what it is.
pub(super) fn plain(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(refusal(what(kind))) }
}

/// The error for what is no plain file.
pub(super) fn refusal(found: &str) -> io::Error {
    let text = format!("it is {found}, not a plain file: {}", remedy(found));
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The command that mends it.
fn remedy(found: &str) -> &'static str {
    match found {
        "a folder" => "move it away (mv)",
        "a symbolic link" => "replace it by the file it leads to (cp --remove-destination), or remove it (rm)",
        _ => "remove it (rm)",
    }
}

fn what(kind: FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { system::name_of_special(kind) }
}

fn open_within(folder: &Path, path: &Path) -> io::Result<File> {
    let (folder, inside) = match path.strip_prefix(folder).ok().filter(|inside| stays_below(inside)) {
        Some(inside) => (folder, inside),
        None => (path.parent().unwrap_or(folder), Path::new(path.file_name().ok_or(io::ErrorKind::InvalidInput)?)),
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut options = OpenOptions::new();
    system::do_not_wait(options.read(true));
    let opened = Dir::open_ambient_dir(folder, ambient_authority())?.open_with(inside, &options);
    let file = opened.map_err(|error| match error.kind() {
        // cap-std's own refusals carry no system error.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
            let folder = folder.display();
            let text = format!(
                "a symbolic link in its path leads out of {folder} or is absolute: make it relative and inside, or copy the file there (cp --remove-destination)"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        }
        _ => system::named(error),
    })?;
    plain(file.into_std())
}

/// Whether a relative path, as it is written, leads nowhere above where it begins.
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
