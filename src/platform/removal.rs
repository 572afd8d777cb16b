//! Removes folders that others have filled, such as the commands of agents.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;

use super::{FileKind, Folder};

/// The most entries of a folder that are read at once.
const ENTRIES_AT_ONCE_MAX: usize = 10_000;
/// The most reads of folders. Another process that fills the folder meanwhile does not keep the removal going forever.
const READS_MAX: usize = 10_000_000;

/// Removes the folder at `path` with everything in it, as its owner can. It follows no link, and the depth and the modes of the folders in
/// it do not matter: memory and open files do not grow with the depth. A link or a file at `path` is removed itself. Blocks.
///
/// # Errors
/// Errors of the system. A part may be removed then.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    let (Some(name), parent) = (path.file_name(), path.parent()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = Folder::open(parent.filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    let top = match parent.open_own_folder(name) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => {
            return remove_entry(&parent, name, FileKind::Other);
        }
        opened => opened?,
    };
    let mut reads_left = READS_MAX;
    // Folders in folders move up into the top folder, so that none is ever deeper than two levels.
    while let entries @ [_, ..] = &*read(&top, &mut reads_left)? {
        for (name, kind) in entries {
            if *kind == FileKind::Folder {
                empty_into(&top, name, &mut reads_left)?;
            }
            remove_entry(&top, name, *kind)?;
        }
    }
    remove_entry(&parent, name, FileKind::Folder)
}

/// Removes the files of the folder `name` in `top`, and moves its folders into `top`.
fn empty_into(top: &Folder, name: &OsStr, reads_left: &mut usize) -> io::Result<()> {
    let folder = top.open_own_folder(name)?;
    while let entries @ [_, ..] = &*read(&folder, reads_left)? {
        for (name, kind) in entries {
            if *kind == FileKind::Folder {
                // Moving a folder writes into it.
                drop(folder.open_own_folder(name)?);
                renameat(folder.as_fd(), name, top.as_fd(), format!("{:032x}", fastrand::u128(..)))?;
            } else {
                remove_entry(&folder, name, *kind)?;
            }
        }
    }
    Ok(())
}

fn read(folder: &Folder, reads_left: &mut usize) -> io::Result<Vec<(OsString, FileKind)>> {
    *reads_left = reads_left.checked_sub(1).ok_or(io::ErrorKind::DirectoryNotEmpty)?;
    folder.entries(ENTRIES_AT_ONCE_MAX)
}

fn remove_entry(folder: &Folder, name: &OsStr, kind: FileKind) -> io::Result<()> {
    let flags = if kind == FileKind::Folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match unlinkat(folder.as_fd(), name, flags) {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn folder_of_any_depth_and_mode_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, path) = (folder.path().join("kept"), folder.path().join("removed"));
        fs::create_dir_all(path.join("a/closed/inner")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "").unwrap();
        for link in ["link", "a/link", "a/closed/link"] {
            symlink(&kept, path.join(link)).unwrap();
        }
        fs::write(path.join("a/closed/inner/file"), "").unwrap();
        assert!(Command::new("mkfifo").arg(path.join("pipe")).status().unwrap().success());
        // Deeper than a path can be long, or files can be open.
        let mut deepest = Folder::open(&path).unwrap();
        for _ in 0..10_000 {
            rustix::fs::mkdirat(&deepest, "deep", rustix::fs::Mode::RWXU).unwrap();
            deepest = deepest.open_folder("deep".as_ref()).unwrap();
        }
        for closed in ["a/closed/inner", "a/closed", "a"] {
            fs::set_permissions(path.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        remove_folder(&path).unwrap();
        assert!(!path.exists() && kept.join("file").exists());
        assert_eq!(remove_folder(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink(&kept, &path).unwrap();
        remove_folder(&path).unwrap();
        assert!(path.symlink_metadata().is_err() && kept.join("file").exists());
    }
}
