//! Quarantines pipes, links and folders that have the name of a transcript. They are kept, and the teammate starts a new transcript.

use std::io;
use std::path::Path;

use crate::ports::{QuarantinedTranscript, StoreResult};
use crate::stores::file::{failed, if_found, move_aside};
use crate::stores::fs::FileKind;

use super::FileTranscripts;

/// The folder for quarantined entries, below the folder of the transcripts.
const QUARANTINE_FOLDER: &str = ".spoiled";
/// The maximum number of quarantined entries of one teammate.
const QUARANTINED_MAX: u32 = 100;

impl FileTranscripts {
    /// Quarantines every non-file that has the name of a transcript. Blocks.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`] if one cannot be moved. Its teammate could not work.
    pub fn quarantine_non_files(&self) -> StoreResult<()> {
        for name in if_found("list", &self.folder, self.files.list(&self.folder))?.unwrap_or_default() {
            if let Some(teammate) = name.strip_suffix(".jsonl") {
                self.quarantine_non_file(teammate, &self.folder.join(&name))?;
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
        let names = (1..=QUARANTINED_MAX).map(|number| format!("{teammate}-{number}.jsonl"));
        match move_aside(&*self.files, path, &self.folder.join(QUARANTINE_FOLDER), names) {
            Ok(new_path) => {
                tracing::warn!(transcript = %path.display(), kind, kept = %new_path.display(), "quarantined a transcript that is not a file");
                let transcript = QuarantinedTranscript {
                    teammate: teammate.to_owned(),
                    kind,
                    moved_to: new_path.display().to_string(),
                };
                self.quarantined.lock().push(transcript);
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
}
