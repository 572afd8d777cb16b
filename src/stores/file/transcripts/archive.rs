//! Moves the records that a compaction covers out of a large transcript. One record, the header, replaces them.
//!
//! The header keeps the values that a resumed teammate needs: the keys of delivered mail, to prevent a second delivery, and the
//! used tokens. Its field `archived` is the count of archived records. On disk `covers` counts from the first record ever
//! written; readers see the header as one record, so their counts are converted. Archives are for people: nothing reads them,
//! and the oldest are removed above [`ARCHIVE_BYTES_MAX`].
//!
//! The archive is written first, with its start in its name, and then the transcript is replaced. After a crash in between, the
//! next attempt writes the same archive again.

use std::path::Path;

use serde::Deserialize;

use crate::domain::agent::transcript::{MessageRecord, Record, Role, TranscriptEntry, Usage};
use crate::domain::text::json_document::Document;
use crate::domain::time::UnixMs;
use crate::ports::StoreResult;
use crate::stores::file::atomic_write::replace;
use crate::stores::file::mailbox::INBOX_BYTES_MAX;
use crate::stores::file::{failed, if_found};

use super::FileTranscripts;

/// The size of all archives together, in bytes.
pub const ARCHIVE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The keys of delivered mail that are kept: as many as an inbox holds of our messages, so that none in it is delivered twice. A message
/// without content has more than 64 bytes.
const DELIVERED_MAX: usize = INBOX_BYTES_MAX as usize / 64;

/// The lines of a transcript.
pub(super) struct Lines<'a> {
    /// The count of records that the first record replaces; 0 if it is an ordinary record.
    pub archived: u64,
    /// The records, each with its line.
    pub records: Vec<(&'a [u8], Record)>,
    /// The count of invalid lines.
    pub invalid: usize,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    archived: u64,
}

impl<'a> Lines<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        let mut lines = Self { archived: 0, records: Vec::new(), invalid: 0 };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match Record::parse(line) {
                Ok(record) => lines.records.push((line, record)),
                Err(_) => lines.invalid += 1,
            }
        }
        if let Some((line, _)) = lines.records.first() {
            lines.archived = serde_json::from_slice::<Header>(line).map_or(0, |header| header.archived);
        }
        lines
    }

    /// The count of archived records that readers do not see.
    pub fn hidden(&self) -> u64 {
        self.archived.saturating_sub(1)
    }
}

impl FileTranscripts {
    /// Archives the first `covers` records, counted from the first record ever written.
    pub(super) fn archive(&self, name: &str, path: &Path, covers: u64) -> StoreResult<()> {
        let bytes = self.read(path)?;
        let lines = Lines::parse(&bytes);
        let count = usize::try_from(covers.saturating_sub(lines.hidden())).unwrap_or(usize::MAX);
        let (covered, rest) = lines.records.split_at(count.min(lines.records.len()));
        let header_count = usize::from(lines.archived > 0);
        if covered.len() <= header_count {
            return Ok(());
        }
        let folder = self.folder.join(".archive");
        self.files.create_folder(&folder).map_err(failed("create", &folder))?;
        let old: Vec<u8> = covered[header_count..].iter().flat_map(|(line, _)| [line, &b"\n"[..]].concat()).collect();
        replace(&*self.files, &folder, &format!("{name}-{}.jsonl", lines.archived), &old, self.durability)?;
        let mut text = header(covered, lines.hidden() + covered.len() as u64).into_bytes();
        for (line, _) in rest {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        replace(&*self.files, &self.folder, &format!("{name}.jsonl"), &text, self.durability)?;
        self.prune(&folder)
    }

    /// Removes the oldest archives above [`ARCHIVE_BYTES_MAX`].
    fn prune(&self, folder: &Path) -> StoreResult<()> {
        let mut archives = Vec::new();
        for name in self.files.list(folder).map_err(failed("list", folder))? {
            let path = folder.join(name);
            if let Some(stamp) = if_found("inspect", &path, self.files.stamp(&path))? {
                archives.push((stamp.modified_ns, stamp.bytes, path));
            }
        }
        archives.sort_unstable_by(|a, b| b.cmp(a));
        let mut bytes = 0;
        for (_, size, path) in archives {
            bytes += size;
            if bytes > ARCHIVE_BYTES_MAX {
                self.files.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// The record that replaces `covered`.
fn header(covered: &[(&[u8], Record)], archived: u64) -> String {
    let mut delivered = Vec::new();
    let mut used = Usage::default();
    for (_, record) in covered {
        if let TranscriptEntry::Message(message) = &record.entry {
            delivered.extend(message.delivered.iter().cloned());
            used = used.plus(message.usage.unwrap_or_default());
        }
    }
    delivered.drain(..delivered.len().saturating_sub(DELIVERED_MAX));
    let mut message = MessageRecord::new(Role::User, Vec::new());
    message.delivered = delivered;
    message.usage = (used != Usage::default()).then_some(used);
    let at = covered.last().map_or(UnixMs::default(), |(_, record)| record.at);
    let line = Record { at, entry: TranscriptEntry::Message(message) }.to_line();
    // A line that was just written is a valid document.
    let mut document = Document::parse(line.as_bytes()).unwrap_or_default();
    document.put("archived", &archived);
    document.to_line() + "\n"
}
