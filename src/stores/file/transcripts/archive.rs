//! What a compaction covers is moved out of a transcript that has grown large; one record stands in its place.
//!
//! That record carries what a resumed teammate needs of the others: the mail they delivered, which must not come again, and the
//! tokens they used; its field `archived` says how many they were. On disk `covers` counts from the very first record; to
//! readers all that was archived is the one record they see, and counts are turned into theirs. The archives are for
//! people: nothing reads them, and the oldest are removed beyond a bound.
//!
//! First the archive is written, under a name that says where it begins, then the transcript is replaced: a crash between
//! leaves an archive that the next attempt writes again.

use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::domain::document::Document;
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Entry, MessageRecord, Record, Role, Usage};
use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::file::replace::replace;

use super::Inner;

/// The most that all archives may hold together, in bytes.
pub const ARCHIVE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How many keys of delivered mail are kept: as many as an inbox may hold messages, so that none still there is delivered twice.
const DELIVERED_MAX: usize = 10_000;

/// The lines of a transcript.
pub(super) struct Lines<'a> {
    /// How many records the first one stands for; 0 where it is a record like the others.
    pub archived: u64,
    /// The records, each with its line.
    pub records: Vec<(&'a [u8], Record)>,
    /// How many lines are no records.
    pub torn: usize,
}

#[derive(Deserialize)]
struct Archived {
    #[serde(default)]
    archived: u64,
}

impl<'a> Lines<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        let mut lines = Self { archived: 0, records: Vec::new(), torn: 0 };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match Record::parse(line) {
                Ok(record) => lines.records.push((line, record)),
                Err(_) => lines.torn += 1,
            }
        }
        if let Some((line, _)) = lines.records.first() {
            lines.archived = serde_json::from_slice::<Archived>(line).map_or(0, |first| first.archived);
        }
        lines
    }

    /// How many more records there were from the start than there are to see.
    pub fn hidden(&self) -> u64 {
        self.archived.saturating_sub(1)
    }
}

impl Inner {
    /// Archives the first `covers` records, counted from the very first.
    pub(super) fn archive(&self, name: &str, path: &Path, covers: u64) -> StoreResult<()> {
        let bytes = self.read(name, path)?;
        let lines = Lines::parse(&bytes);
        let count = usize::try_from(covers.saturating_sub(lines.hidden())).unwrap_or(usize::MAX);
        let (gone, kept) = lines.records.split_at(count.min(lines.records.len()));
        let is_header = usize::from(lines.archived > 0);
        if gone.len() <= is_header {
            return Ok(());
        }
        let folder = self.folder.join(".archive");
        self.files.create_folder(&folder).map_err(failed("make", &folder))?;
        let old: Vec<u8> = gone[is_header..].iter().flat_map(|(line, _)| [line, &b"\n"[..]].concat()).collect();
        replace(&*self.files, &folder, &format!("{name}-{}.jsonl", lines.archived), &old, self.durability)?;
        let mut text = header(gone, lines.hidden() + gone.len() as u64).into_bytes();
        for (line, _) in kept {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        replace(&*self.files, &self.folder, &format!("{name}.jsonl"), &text, self.durability)?;
        self.prune(&folder)
    }

    /// Removes the oldest archives beyond [`ARCHIVE_BYTES_MAX`].
    fn prune(&self, folder: &Path) -> StoreResult<()> {
        let mut archives = Vec::new();
        for name in self.files.list(folder).map_err(failed("list", folder))? {
            let path = folder.join(name);
            match self.files.stamp(&path) {
                Ok(stamp) => archives.push((stamp.modified_ns, stamp.bytes, path)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("look at", &path)(error)),
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

/// The record that stands for `gone`.
fn header(gone: &[(&[u8], Record)], archived: u64) -> String {
    let mut delivered = Vec::new();
    let mut used = Usage::default();
    for (_, record) in gone {
        if let Entry::Message(message) = &record.entry {
            delivered.extend(message.delivered.iter().cloned());
            used = used.plus(message.usage.unwrap_or_default());
        }
    }
    delivered.drain(..delivered.len().saturating_sub(DELIVERED_MAX));
    let mut message = MessageRecord::new(Role::User, Vec::new());
    message.delivered = delivered;
    message.usage = (used != Usage::default()).then_some(used);
    let at = gone.last().map_or(UnixMs::default(), |(_, record)| record.at);
    let line = Record { at, entry: Entry::Message(message) }.to_line();
    // A line we just made is a document.
    let mut document = Document::parse(line.as_bytes()).unwrap_or_default();
    document.put("archived", &archived);
    document.to_line() + "\n"
}
