//! What lies in the place of a transcript and is none: a pipe, a link, a folder. It is moved beside, nothing of it is lost, and the
//! teammate goes on with a fresh transcript.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use crate::ports::{SetAside, StoreResult};
use crate::stores::file::failed;
use crate::stores::fs::FileKind;

use super::Inner;

/// The folder for them, beside the transcripts.
const FOLDER: &str = ".spoiled";
/// How many are kept of one teammate.
const KEPT_MAX: u32 = 100;

impl Inner {
    /// Moves everything beside that is no transcript but has the name of one.
    pub(super) fn set_all_aside(&self) -> StoreResult<()> {
        let names = match self.files.list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names.map_err(failed("list", &self.folder))?,
        };
        for name in names.iter().filter_map(|name| name.strip_suffix(".jsonl")) {
            self.set_aside(name, &self.folder.join(format!("{name}.jsonl")))?;
        }
        Ok(())
    }

    /// Moves what lies at `path` beside if it is no plain file; says whether it was.
    pub(super) fn set_aside(&self, name: &str, path: &Path) -> StoreResult<bool> {
        let found = match self.files.stamp(path).map(|stamp| stamp.kind) {
            Ok(FileKind::Folder) => "a folder",
            Ok(FileKind::Link) => "a symbolic link",
            Ok(FileKind::Other) => "a pipe or a device",
            Ok(FileKind::File) | Err(_) => return Ok(false),
        };
        match self.move_aside(name, path) {
            Ok(kept) => {
                tracing::warn!(transcript = %path.display(), found, kept = %kept.display(), "this is no transcript; it is set aside");
                let aside = SetAside { teammate: name.to_owned(), found, kept };
                self.aside.lock().unwrap_or_else(PoisonError::into_inner).push(aside);
                Ok(true)
            }
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => {
                let error = io::Error::new(error.kind(), format!("it is {found}, no transcript; remove it ({error})"));
                Err(failed("set aside", path)(error))
            }
        }
    }

    /// Moves it to a name that nothing has.
    fn move_aside(&self, name: &str, path: &Path) -> io::Result<PathBuf> {
        let folder = self.folder.join(FOLDER);
        self.files.create_folder(&folder)?;
        for number in 1..=KEPT_MAX {
            let kept = folder.join(format!("{name}-{number}.jsonl"));
            match self.files.rename_new(path, &kept) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                moved => return moved.map(|()| kept),
            }
        }
        Err(io::Error::other(format!("{} has {KEPT_MAX} of it already", folder.display())))
    }
}
