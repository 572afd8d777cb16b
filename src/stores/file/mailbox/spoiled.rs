//! Lines and files in an inbox that are no mail: kept aside, named once, within bounds.
//!
//! The lines go to `.spoiled.jsonl`, each with its place, from which a later run knows that it was named; files that cannot be
//! read as mail at all go to `.spoiled/`.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::FileSystem;

use super::taken::SpoiledLine;

/// The most that is kept of spoiled lines, in bytes, in each of two files.
const SPOILED_BYTES_MAX: u64 = 1024 * 1024;

/// The most that is kept of one line, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// How many files are kept that are no mail; with more, the oldest go.
const FILES_MAX: usize = 100;

#[derive(Serialize, Deserialize)]
struct Kept {
    /// The taken file and the offset in it.
    place: String,
    reason: String,
    /// The line, bytes that are no text replaced, the end of a long one left out.
    #[serde(default)]
    line: String,
}

/// What is kept aside.
pub(super) struct SpoiledMail {
    file: PathBuf,
    older: PathBuf,
    folder: PathBuf,
    /// The places that were named; read from the files at first use.
    named: Mutex<Option<HashSet<String>>>,
}

impl SpoiledMail {
    pub fn new(inbox_folder: &Path) -> Self {
        Self {
            file: inbox_folder.join(".spoiled.jsonl"),
            older: inbox_folder.join(".spoiled.1.jsonl"),
            folder: inbox_folder.join(".spoiled"),
            named: Mutex::new(None),
        }
    }

    /// Keeps a line and names it, unless that was done.
    pub fn keep(&self, files: &dyn FileSystem, spoiled: &SpoiledLine) -> StoreResult<()> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let named = match &mut *named {
            Some(named) => named,
            none => none.insert(self.read_named(files)?),
        };
        if named.contains(&spoiled.key) {
            return Ok(());
        }
        tracing::warn!(place = spoiled.key, reason = spoiled.reason, kept = %self.file.display(), "a line in an inbox is no message; it is kept aside");
        let line = &spoiled.line[..spoiled.line.len().min(LINE_BYTES_MAX)];
        let kept = Kept {
            place: spoiled.key.clone(),
            reason: spoiled.reason.clone(),
            line: String::from_utf8_lossy(line).into_owned(),
        };
        // All its keys are strings, so this cannot fail.
        let text = serde_json::to_string(&kept).unwrap_or_default() + "\n";
        let bytes = files.append(&self.file, text.as_bytes()).map_err(failed("append to", &self.file))?;
        named.insert(kept.place);
        if bytes > SPOILED_BYTES_MAX {
            files.rename(&self.file, &self.older).map_err(failed("rename", &self.file))?;
            *named = self.read_named(files)?;
        }
        Ok(())
    }

    fn read_named(&self, files: &dyn FileSystem) -> StoreResult<HashSet<String>> {
        let mut named = HashSet::new();
        for path in [&self.older, &self.file] {
            match files.read(path, 0, 2 * SPOILED_BYTES_MAX) {
                Ok((bytes, _)) => named.extend(
                    bytes
                        .split(|byte| *byte == b'\n')
                        .filter_map(|line| serde_json::from_slice::<Kept>(line).ok())
                        .map(|kept| kept.place),
                ),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("read", path)(error)),
            }
        }
        Ok(named)
    }

    /// Keeps a whole file that is no mail.
    pub fn keep_file(&self, files: &dyn FileSystem, path: &Path, name: &str, error: &io::Error) -> StoreResult<()> {
        files.create_folder(&self.folder).map_err(failed("make", &self.folder))?;
        let kept = self.folder.join(name);
        tracing::warn!(reason = %error, kept = %kept.display(), "an inbox cannot be read as mail; it is kept aside");
        files.rename(path, &kept).map_err(failed("rename", path))?;
        let mut names = files.list(&self.folder).map_err(failed("list", &self.folder))?;
        names.sort_by_key(|name| super::taken::parse_name(name).map(|(_, number)| number));
        for old in names.iter().rev().skip(FILES_MAX) {
            // One that cannot be removed is tried again with the next.
            let _ = files.remove(&self.folder.join(old));
        }
        Ok(())
    }
}
