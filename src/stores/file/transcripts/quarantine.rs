//! Sets aside pipes, links and folders in the place of transcripts. Their content is kept, and the teammate starts a new
//! transcript.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use crate::ports::{QuarantinedTranscript, StoreResult};
use crate::stores::file::failed;
use crate::stores::fs::FileKind;

use super::Inner;

/// The folder below the transcripts for entries set aside.
const FOLDER: &str = ".spoiled";
/// The most entries set aside for one teammate.
const KEPT_MAX: u32 = 100;

impl Inner {
    /// Sets aside every non-file that has the name of a transcript.
    pub(super) fn set_aside_non_files(&self) -> StoreResult<()> {
        let names = match self.files.list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names.map_err(failed("list", &self.folder))?,
        };
        for name in names.iter().filter_map(|name| name.strip_suffix(".jsonl")) {
            self.set_aside_non_file(name, &self.folder.join(format!("{name}.jsonl")))?;
        }
        Ok(())
    }

    /// Sets aside the entry at `path` unless it is a file. Returns true if it was another kind.
    pub(super) fn set_aside_non_file(&self, name: &str, path: &Path) -> StoreResult<bool> {
        let kind = match self.files.stamp(path).map(|stamp| stamp.kind) {
            Ok(FileKind::Folder) => "a folder",
            Ok(FileKind::Link) => "a symbolic link",
            Ok(FileKind::Other) => "a pipe or a device",
            Ok(FileKind::File) | Err(_) => return Ok(false),
        };
        match self.move_aside(name, path) {
            Ok(new_path) => {
                tracing::warn!(transcript = %path.display(), kind, kept = %new_path.display(), "quarantined a transcript that is not a file");
                let transcript = QuarantinedTranscript { teammate: name.to_owned(), kind, path: new_path };
                self.quarantined.lock().unwrap_or_else(PoisonError::into_inner).push(transcript);
                Ok(true)
            }
            // Another process moved it first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => {
                let reason = format!("it is {kind}, not a transcript file; remove it ({error})");
                let error = io::Error::new(error.kind(), reason);
                Err(failed("set aside", path)(error))
            }
        }
    }

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
        Err(io::Error::other(format!("{} already has {KEPT_MAX} entries of this teammate", folder.display())))
    }
}
