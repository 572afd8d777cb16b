//! Quarantines pipes, links and folders that have the name of a transcript. They are kept, and the teammate starts a new transcript.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use crate::ports::{QuarantinedTranscript, StoreResult};
use crate::stores::file::failed;
use crate::stores::fs::FileKind;

use super::TranscriptsInner;

/// The folder for quarantined entries, below the folder of the transcripts.
const QUARANTINE_FOLDER: &str = ".spoiled";
/// The maximum number of quarantined entries of one teammate.
const QUARANTINED_MAX: u32 = 100;

impl TranscriptsInner {
    /// Quarantines every non-file that has the name of a transcript.
    pub(super) fn quarantine_non_files(&self) -> StoreResult<()> {
        let names = match self.files.list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names.map_err(failed("list", &self.folder))?,
        };
        for name in &names {
            if let Some(teammate) = name.strip_suffix(".jsonl") {
                self.quarantine_non_file(teammate, &self.folder.join(name))?;
            }
        }
        Ok(())
    }

    /// Quarantines the entry at `path` unless it is a file. Returns true if it was no file.
    pub(super) fn quarantine_non_file(&self, teammate: &str, path: &Path) -> StoreResult<bool> {
        let kind = match self.files.stamp(path).map(|stamp| stamp.kind) {
            Ok(FileKind::Folder) => "a folder",
            Ok(FileKind::Link) => "a symbolic link",
            Ok(FileKind::Other) => "a pipe or a device",
            Ok(FileKind::File) | Err(_) => return Ok(false),
        };
        match self.move_to_quarantine(teammate, path) {
            Ok(new_path) => {
                tracing::warn!(transcript = %path.display(), kind, kept = %new_path.display(), "quarantined a transcript that is not a file");
                let transcript = QuarantinedTranscript {
                    teammate: teammate.to_owned(),
                    kind,
                    moved_to: new_path.display().to_string(),
                };
                self.quarantined.lock().unwrap_or_else(PoisonError::into_inner).push(transcript);
                Ok(true)
            }
            // Another process moved it first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => {
                let reason = format!("it is {kind}, not a transcript file; remove it ({error})");
                Err(failed("quarantine", path)(io::Error::new(error.kind(), reason)))
            }
        }
    }

    fn move_to_quarantine(&self, teammate: &str, path: &Path) -> io::Result<PathBuf> {
        let folder = self.folder.join(QUARANTINE_FOLDER);
        self.files.create_folder(&folder)?;
        for number in 1..=QUARANTINED_MAX {
            let target = folder.join(format!("{teammate}-{number}.jsonl"));
            match self.files.rename_new(path, &target) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                moved => return moved.map(|()| target),
            }
        }
        Err(io::Error::other(format!("{} already has {QUARANTINED_MAX} entries of this teammate", folder.display())))
    }
}
