//! `.team/FORMAT`: the version of the file formats. It keeps an older Brigade from damaging the files of a newer one.

use std::io;
use std::path::Path;

use crate::ports::{StoreError, StoreResult};
use crate::stores::fs::FileSystem;

use super::atomic_write::replace;
use super::{Durability, failed, if_found};

/// The format that this Brigade writes, and the newest that it reads.
pub const FORMAT: u64 = 1;

/// The file's name in `.team`. Every launch creates it if it is missing.
pub const FORMAT_FILE: &str = "FORMAT";
const FORMAT_BYTES_MAX: u64 = 1024;

/// Refuses the files of a newer Brigade. Accepts a workspace without the file.
///
/// # Errors
/// [`StoreError::NewerFormat`]; [`StoreError::Io`] also if the file does not contain a number.
pub fn check_format(files: &dyn FileSystem, team_folder: &Path) -> StoreResult<()> {
    match read_format(files, team_folder)? {
        Some(version) if version > FORMAT => {
            let place = team_folder.join(FORMAT_FILE).display().to_string();
            Err(StoreError::NewerFormat { place, version, version_max: FORMAT })
        }
        _ => Ok(()),
    }
}

/// Writes the format if the file is missing.
///
/// # Errors
/// [`StoreError::Io`].
pub fn write_format(files: &dyn FileSystem, team_folder: &Path, durability: Durability) -> StoreResult<()> {
    if read_format(files, team_folder)?.is_none() {
        replace(files, team_folder, FORMAT_FILE, format!("{FORMAT}\n").as_bytes(), durability)?;
    }
    Ok(())
}

fn read_format(files: &dyn FileSystem, team_folder: &Path) -> StoreResult<Option<u64>> {
    let path = team_folder.join(FORMAT_FILE);
    let Some((bytes, _)) = if_found("read", &path, files.read(&path, 0, FORMAT_BYTES_MAX))? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let number = text.trim().parse().map_err(|_| {
        let reason = format!("`{}` is not a format number", text.trim().escape_debug());
        failed("read", &path)(io::Error::new(io::ErrorKind::InvalidData, reason))
    })?;
    Ok(Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    #[test]
    fn newer_format_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = RealFileSystem::default();
        let path = folder.path();
        check_format(&files, path).unwrap();
        write_format(&files, path, Durability::Power).unwrap();
        assert_eq!(std::fs::read_to_string(path.join(FORMAT_FILE)).unwrap(), "1\n");
        check_format(&files, path).unwrap();
        std::fs::write(path.join(FORMAT_FILE), "2\n").unwrap();
        let error = check_format(&files, path).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat { version: 2, version_max: 1, .. }), "{error}");
        std::fs::write(path.join(FORMAT_FILE), "new").unwrap();
        assert!(matches!(check_format(&files, path), Err(StoreError::Io { .. })));
    }
}
