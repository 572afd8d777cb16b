//! Taken inbox files: their names and their lines.
//!
//! A taken file is named `<name>-<number>.jsonl`. The number increases and is never used twice. File name and offset therefore
//! identify a line of another program, which has no id, forever.

use std::collections::HashSet;

use crate::domain::team::message::{MESSAGE_BYTES_MAX, Message};
use crate::domain::time::UnixMs;
use crate::stores::fs::FileStamp;

const SUFFIX: &str = ".jsonl";

/// The number of a file taken at `now`, greater than `last`. The low digits are random, so that a clock that is set back does not
/// repeat a number.
pub(super) fn next_number(now: UnixMs, last: Option<u64>) -> u64 {
    let now_ms = u64::try_from(now.0).unwrap_or(0);
    let by_time = now_ms.saturating_mul(1_000_000).saturating_add(fastrand::u64(0..1_000_000));
    last.map_or(by_time, |last| by_time.max(last.saturating_add(1)))
}

/// The time at which a file with this number was taken, in milliseconds since 1970.
pub(super) fn taken_at_ms(number: u64) -> u64 {
    number / 1_000_000
}

/// The name of a taken file.
pub(super) fn file_name(name: &str, number: u64) -> String {
    format!("{name}-{number}{SUFFIX}")
}

/// The inbox name and the number of a taken file.
pub(super) fn parse_name(file: &str) -> Option<(&str, u64)> {
    let (name, number) = file.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    Some((name, number.parse().ok()?))
}

/// The name of the inbox with this file name, if it is one.
pub(super) fn inbox_name(file: &str) -> Option<&str> {
    file.strip_suffix(SUFFIX).filter(|name| !name.starts_with('.'))
}

/// The content of a mail file.
#[derive(Debug, Default)]
pub(super) struct MailContent {
    /// The messages, each with its key.
    pub messages: Vec<(String, Message)>,
    /// The lines that are not messages.
    pub invalid_lines: Vec<InvalidLine>,
    /// True if the last line has no newline and is not a message yet: a program may be writing it.
    pub has_open_end: bool,
    /// The file's stamp from before the read.
    pub stamp: Option<FileStamp>,
}

/// A line that is not a message.
#[derive(Debug)]
pub(super) struct InvalidLine {
    /// File and offset.
    pub key: String,
    /// The error.
    pub reason: String,
    /// The line.
    pub line: Vec<u8>,
}

impl MailContent {
    /// Reads the lines of `file`. With `is_settled` no program writes the file any more, and an unfinished last line counts as
    /// complete.
    pub fn read(file: &str, bytes: &[u8], is_settled: bool) -> Self {
        let stem = file.strip_suffix(SUFFIX).unwrap_or(file);
        let mut content = Self::default();
        let mut offset = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            content.parse_line(format!("{stem}@{offset}"), line, is_settled);
            offset += line.len();
        }
        content
    }

    fn parse_line(&mut self, key: String, line: &[u8], is_settled: bool) {
        let is_complete = line.ends_with(b"\n");
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let parsed = if line.len() > MESSAGE_BYTES_MAX {
            Err(format!("the line has {} bytes, more than {MESSAGE_BYTES_MAX}", line.len()))
        } else {
            Message::parse(line).map_err(|error| error.to_string())
        };
        match parsed {
            Ok(message) => {
                let id = message.id.clone().filter(|id| !id.is_empty());
                self.messages.push((id.unwrap_or(key), message));
            }
            Err(_) if !is_complete && !is_settled => self.has_open_end = true,
            Err(reason) => self.invalid_lines.push(InvalidLine { key, reason, line: line.to_vec() }),
        }
    }

    /// Returns true if `delivered_keys` contains all messages, and no unfinished line can become another one.
    pub fn is_delivered(&self, delivered_keys: &HashSet<String>) -> bool {
        !self.has_open_end && self.messages.iter().all(|(key, _)| delivered_keys.contains(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_number_grows_when_clock_goes_back() {
        let first = next_number(UnixMs(1_763_688_000_000), None);
        assert!(first >= 1_763_688_000_000_000_000);
        assert_eq!(next_number(UnixMs(5), Some(first)), first + 1);
        assert_eq!(parse_name(&file_name("a-1", first)), Some(("a-1", first)));
        for other in ["alice.jsonl", "alice-x.jsonl", ".lock", "alice-1.txt"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn inbox_lines_are_keyed_by_id_or_offset() {
        let text = b"{\"content\":\"a\"}\n\n{\"content\":7}\n\xff\xfe\n{\"id\":\"m-1\",\"content\":\"b\"}\n{\"content\":\"c\"}";
        let content = MailContent::read("bob-5.jsonl", text, false);
        let keys: Vec<&str> = content.messages.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["bob-5@0", "m-1", "bob-5@61"]);
        let invalid_lines: Vec<&str> = content.invalid_lines.iter().map(|line| line.key.as_str()).collect();
        assert_eq!(invalid_lines, ["bob-5@17", "bob-5@31"]);
        assert!(!content.has_open_end);
    }

    #[test]
    fn unfinished_inbox_line_waits_for_its_writer() {
        let text = b"{\"content\":\"a\"}\n{\"conte";
        let content = MailContent::read("bob-5.jsonl", text, false);
        assert!(content.has_open_end && content.invalid_lines.is_empty());
        assert!(!content.is_delivered(&HashSet::from(["bob-5@0".to_owned()])));
        let content = MailContent::read("bob-5.jsonl", text, true);
        assert!(!content.has_open_end && content.invalid_lines.len() == 1);
        assert!(content.is_delivered(&HashSet::from(["bob-5@0".to_owned()])));
    }

    #[test]
    fn oversized_inbox_line_is_quarantined() {
        let text = format!("{{\"content\":\"{}\"}}\n", "x".repeat(MESSAGE_BYTES_MAX));
        assert_eq!(MailContent::read("bob-5.jsonl", text.as_bytes(), false).invalid_lines.len(), 1);
    }
}
