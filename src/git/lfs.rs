//! The objects of Git LFS. A commit has only pointers to them, so they are copied together with the commits that Brigade fetches.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use super::command::RepoPath;
use super::files::{self, failed, remove_file};
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

/// The folder of the objects in a git folder; see git-lfs(1) and its specification: `<2 digits>/<2 digits>/<SHA-256>`.
const OBJECTS_FOLDER: &str = "lfs/objects";
/// The largest pointer, in bytes; see the specification of Git LFS.
pub(super) const POINTER_BYTES_MAX: usize = 1024;
/// The start of each pointer.
const POINTER_START: &str = "version https://git-lfs.github.com/spec/v1";

/// The object that a pointer names, relative to a git folder. `None` if the text is no pointer.
pub(super) fn object_of_pointer(text: &[u8]) -> Option<PathBuf> {
    let text = str::from_utf8(text).ok()?.strip_prefix(POINTER_START)?;
    let id = text.lines().find_map(|line| line.strip_prefix("oid sha256:"))?;
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| Path::new(OBJECTS_FOLDER).join(&id[..2]).join(&id[2..4]).join(id))
}

impl RepoPath {
    /// Copies the objects of Git LFS that a place has and this repository lacks. An object that does not match its name is left out.
    pub(super) fn copy_lfs_objects(&self, at: &RepoPath) -> Result<(), RepositoryError> {
        let (from, to) = (at.common_dir.join(OBJECTS_FOLDER), self.common_dir.join(OBJECTS_FOLDER));
        let below = files::entries(&from).flat_map(|folder| files::entries(&folder));
        for object in below.flat_map(|folder| files::entries(&folder)) {
            let Ok(path) = object.strip_prefix(&from) else { continue };
            let target = to.join(path);
            if !target.exists() {
                copy(&object, &target).map_err(|error| failed("copy", &object, &error))?;
            }
        }
        Ok(())
    }
}

/// Copies an object, unless its name is not the SHA-256 of its content.
fn copy(object: &Path, target: &Path) -> io::Result<()> {
    let Ok(mut file) = reading::open(object, AllowedKinds::FilesHere) else { return Ok(()) };
    let name = target.file_name().map(|name| name.to_string_lossy().into_owned());
    // First without a copy: it may be a very large file without content.
    if name != Some(copy_with_digest(&mut file, &mut io::sink())?) {
        return Ok(());
    }
    file.rewind()?;
    fs::create_dir_all(target.parent().unwrap_or(target))?;
    let new = target.with_extension("new");
    remove_file(&new).map_err(io::Error::other)?;
    let copied = File::create_new(&new).and_then(|mut copy| copy_with_digest(&mut file, &mut copy));
    if copied.as_ref().is_ok_and(|digest| name.as_ref() == Some(digest)) {
        return fs::rename(&new, target);
    }
    let _ = fs::remove_file(&new);
    copied.map(drop)
}

/// Returns the SHA-256 of what it copied, in hexadecimal digits.
fn copy_with_digest(from: &mut impl Read, to: &mut impl Write) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        context.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
    }
    to.flush()?;
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
