//! Quarantines invalid lines and files of inboxes, each with one log line, up to a size limit.
//!
//! Lines go to `.spoiled.jsonl` with their position, so that a later run does not log them again. Files that cannot be read as mail
//! go to `.spoiled/`.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::FileSystem;

use super::taken_files::InvalidLine;

/// The size of each of the two files for invalid lines, in bytes.
const LINES_BYTES_MAX: u64 = 1024 * 1024;

/// The longest part of one line that is quarantined, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The most quarantined files; the oldest are removed above it.
const FILES_MAX: usize = 100;

#[derive(Serialize, Deserialize)]
struct QuarantinedLine {
    /// The taken file and the offset in it.
    #[serde(rename = "place")]
    position: String,
    reason: String,
    /// The beginning of the line, with invalid UTF-8 replaced.
    #[serde(default)]
    line: String,
}

/// The quarantine of all inboxes.
pub(super) struct Quarantine {
    lines_file: PathBuf,
    older_lines_file: PathBuf,
    folder: PathBuf,
    /// The positions of the lines that were logged; read from the files at the first use.
    logged: Mutex<Option<HashSet<String>>>,
}

impl Quarantine {
    pub fn new(inbox_folder: &Path) -> Self {
        Self {
            lines_file: inbox_folder.join(".spoiled.jsonl"),
            older_lines_file: inbox_folder.join(".spoiled.1.jsonl"),
            folder: inbox_folder.join(".spoiled"),
            logged: Mutex::new(None),
        }
    }

    /// Quarantines and logs a line, unless that was done before.
    pub fn quarantine_line(&self, files: &dyn FileSystem, invalid: &InvalidLine) -> StoreResult<()> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let logged = match &mut *logged {
            Some(logged) => logged,
            none => none.insert(self.read_logged(files)?),
        };
        if logged.contains(&invalid.key) {
            return Ok(());
        }
        tracing::warn!(position = invalid.key, reason = invalid.reason, quarantine = %self.lines_file.display(), "quarantined an invalid line of an inbox");
        let line = &invalid.line[..invalid.line.len().min(LINE_BYTES_MAX)];
        let record = QuarantinedLine {
            position: invalid.key.clone(),
            reason: invalid.reason.clone(),
            line: String::from_utf8_lossy(line).into_owned(),
        };
        // All keys are strings, so this cannot fail.
        let text = serde_json::to_string(&record).unwrap_or_default() + "\n";
        let bytes = files.append(&self.lines_file, text.as_bytes()).map_err(failed("append to", &self.lines_file))?;
        logged.insert(record.position);
        if bytes > LINES_BYTES_MAX {
            files.rename(&self.lines_file, &self.older_lines_file).map_err(failed("rename", &self.lines_file))?;
            *logged = self.read_logged(files)?;
        }
        Ok(())
    }

    fn read_logged(&self, files: &dyn FileSystem) -> StoreResult<HashSet<String>> {
        let mut logged = HashSet::new();
        for path in [&self.older_lines_file, &self.lines_file] {
            match files.read(path, 0, 2 * LINES_BYTES_MAX) {
                Ok((bytes, _)) => logged.extend(
                    bytes
                        .split(|byte| *byte == b'\n')
                        .filter_map(|line| serde_json::from_slice::<QuarantinedLine>(line).ok())
                        .map(|record| record.position),
                ),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("read", path)(error)),
            }
        }
        Ok(logged)
    }

    /// Quarantines a file that cannot be read as mail.
    pub fn quarantine_file(
        &self,
        files: &dyn FileSystem,
        path: &Path,
        name: &str,
        error: &io::Error,
    ) -> StoreResult<()> {
        files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
        let target = self.folder.join(name);
        tracing::warn!(reason = %error, quarantine = %target.display(), "quarantining a file that cannot be read as mail");
        files.rename(path, &target).map_err(failed("rename", path))?;
        let mut names = files.list(&self.folder).map_err(failed("list", &self.folder))?;
        names.sort_by_key(|name| super::taken_files::parse_name(name).map(|(_, number)| number));
        for old in names.iter().rev().skip(FILES_MAX) {
            // If this fails, the next call tries again.
            let _ = files.remove(&self.folder.join(old));
        }
        Ok(())
    }
}
