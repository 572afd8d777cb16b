//! Quarantines invalid lines and files of inboxes, each with one log line, up to a size limit.
//!
//! Lines go to `.spoiled.jsonl` with their position, when their file is removed. Files that cannot be read as mail go to `.spoiled/`.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::ports::StoreResult;
use crate::stores::file::{failed, if_found};
use crate::stores::fs::FileSystem;

use super::taken_files::InvalidLine;

/// The size of each of the two files for invalid lines, in bytes.
const LINES_BYTES_MAX: u64 = 1024 * 1024;

/// The longest part of one line that is quarantined, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The most quarantined files; the oldest are removed above it.
const FILES_MAX: usize = 100;

/// The quarantine of all inboxes.
pub(super) struct Quarantine {
    lines_file: PathBuf,
    older_lines_file: PathBuf,
    folder: PathBuf,
}

impl Quarantine {
    pub fn new(inbox_folder: &Path) -> Self {
        Self {
            lines_file: inbox_folder.join(".spoiled.jsonl"),
            older_lines_file: inbox_folder.join(".spoiled.1.jsonl"),
            folder: inbox_folder.join(".spoiled"),
        }
    }

    /// Quarantines and logs a line.
    pub fn quarantine_line(&self, files: &dyn FileSystem, invalid: &InvalidLine) -> StoreResult<()> {
        tracing::warn!(position = invalid.key, reason = invalid.reason, quarantine = %self.lines_file.display(), "quarantined an invalid line of an inbox");
        let line = String::from_utf8_lossy(&invalid.line[..invalid.line.len().min(LINE_BYTES_MAX)]);
        let record = json!({ "place": invalid.key, "reason": invalid.reason, "line": line });
        let text = format!("{record}\n");
        let bytes = files.append(&self.lines_file, text.as_bytes()).map_err(failed("append to", &self.lines_file))?;
        if bytes > LINES_BYTES_MAX {
            files.rename(&self.lines_file, &self.older_lines_file).map_err(failed("rename", &self.lines_file))?;
        }
        Ok(())
    }

    /// Quarantines a file that cannot be read as mail.
    pub fn quarantine_file(&self, files: &dyn FileSystem, path: &Path, error: &io::Error) -> StoreResult<()> {
        files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
        let target = self.folder.join(path.file_name().unwrap_or_default());
        if if_found("rename", path, files.rename(path, &target))?.is_none() {
            // Another reader moved it first.
            return Ok(());
        }
        tracing::warn!(reason = %error, quarantine = %target.display(), "quarantined a file that cannot be read as mail");
        let mut names = files.list(&self.folder).map_err(failed("list", &self.folder))?;
        names.sort_by_key(|name| super::taken_files::parse_name(name).map(|(_, number)| number));
        for old in names.iter().rev().skip(FILES_MAX) {
            // If this fails, the next call tries again.
            let _ = files.remove(&self.folder.join(old));
        }
        Ok(())
    }
}
