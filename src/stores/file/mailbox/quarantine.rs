//! Quarantines invalid lines of inboxes, each with one log line, up to a size limit. They go to `.spoiled.jsonl` with their position, when
//! their file is removed.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::FileSystem;

use super::taken_files::InvalidLine;

/// The size of each of the two files for invalid lines, in bytes.
const LINES_BYTES_MAX: u64 = 1024 * 1024;

/// The longest part of one line that is quarantined, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The quarantine of all inboxes.
pub(super) struct Quarantine {
    lines_file: PathBuf,
    older_lines_file: PathBuf,
}

impl Quarantine {
    pub fn new(inbox_folder: &Path) -> Self {
        Self {
            lines_file: inbox_folder.join(".spoiled.jsonl"),
            older_lines_file: inbox_folder.join(".spoiled.1.jsonl"),
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
}
