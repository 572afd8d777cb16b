//! Inbox files that were taken: their names, and the lines in them. It acts on nothing.
//!
//! A taken file is called `<name>-<number>.jsonl`; the number grows and is never used twice, so that file and offset name a
//! foreign line, which has no id, for ever.

use std::collections::HashSet;

use crate::domain::message::{MESSAGE_BYTES_MAX, Message};
use crate::domain::time::UnixMs;
use crate::stores::fs::Stamp;

const SUFFIX: &str = ".jsonl";

/// The number of a file taken at `now`, greater than `last`. The low digits are chance, so that a clock that was set back
/// does not bring an old number again.
pub(super) fn next_number(now: UnixMs, last: Option<u64>) -> u64 {
    let now_ms = u64::try_from(now.0).unwrap_or(0);
    let by_time = now_ms.saturating_mul(1_000_000).saturating_add(fastrand::u64(0..1_000_000));
    last.map_or(by_time, |last| by_time.max(last.saturating_add(1)))
}

/// When a file with this number was taken, in milliseconds since 1970.
pub(super) fn taken_at_ms(number: u64) -> u64 {
    number / 1_000_000
}

/// The name of a taken file.
pub(super) fn file_name(name: &str, number: u64) -> String {
    format!("{name}-{number}{SUFFIX}")
}

/// Whose taken file this is, and its number.
pub(super) fn parse_name(file: &str) -> Option<(&str, u64)> {
    let (name, number) = file.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    Some((name, number.parse().ok()?))
}

/// The inbox this file is, if it is one.
pub(super) fn inbox_name(file: &str) -> Option<&str> {
    file.strip_suffix(SUFFIX).filter(|name| !name.starts_with('.'))
}

/// What is in a file of mail.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The messages, each with its key.
    pub messages: Vec<(String, Message)>,
    /// Lines that are no messages.
    pub spoiled: Vec<SpoiledLine>,
    /// Whether the last line is without an end and no message yet: somebody may be writing it.
    pub has_open_end: bool,
    /// The file's stamp from before the reading.
    pub stamp: Option<Stamp>,
}

/// A line that is no message.
#[derive(Debug)]
pub(super) struct SpoiledLine {
    /// File and offset.
    pub key: String,
    /// What is wrong with it.
    pub reason: String,
    /// The line.
    pub line: Vec<u8>,
}

impl Scan {
    /// Reads the lines of `file`. With `is_settled` nobody writes it any more: an open end is taken for what it is.
    pub fn read(file: &str, bytes: &[u8], is_settled: bool) -> Self {
        let stem = file.strip_suffix(SUFFIX).unwrap_or(file);
        let mut scan = Self::default();
        let mut offset = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            scan.line(format!("{stem}@{offset}"), line, is_settled);
            offset += line.len();
        }
        scan
    }

    fn line(&mut self, key: String, line: &[u8], is_settled: bool) {
        let is_whole = line.ends_with(b"\n");
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let parsed = if line.len() > MESSAGE_BYTES_MAX {
            Err(format!("{} bytes, at most {MESSAGE_BYTES_MAX} are a message", line.len()))
        } else {
            Message::parse(line).map_err(|error| error.to_string())
        };
        match parsed {
            Ok(message) => {
                let id = message.id.clone().filter(|id| !id.is_empty());
                self.messages.push((id.unwrap_or(key), message));
            }
            Err(_) if !is_whole && !is_settled => self.has_open_end = true,
            Err(reason) => self.spoiled.push(SpoiledLine { key, reason, line: line.to_vec() }),
        }
    }

    /// Whether all messages are among `carried`, and no more can be expected of an open end.
    pub fn is_carried(&self, carried: &HashSet<String>) -> bool {
        !self.has_open_end && self.messages.iter().all(|(key, _)| carried.contains(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_whatever_the_clock_does() {
        let first = next_number(UnixMs(1_763_688_000_000), None);
        assert!(first >= 1_763_688_000_000_000_000);
        assert_eq!(next_number(UnixMs(5), Some(first)), first + 1);
        assert_eq!(parse_name(&file_name("a-1", first)), Some(("a-1", first)));
        for other in ["alice.jsonl", "alice-x.jsonl", ".lock", "alice-1.txt"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn lines_are_told_by_id_or_place_and_bad_ones_block_no_others() {
        let text = b"{\"content\":\"a\"}\n\n{\"content\":7}\n\xff\xfe\n{\"id\":\"m-1\",\"content\":\"b\"}\n{\"content\":\"c\"}";
        let scan = Scan::read("bob-5.jsonl", text, false);
        let keys: Vec<&str> = scan.messages.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["bob-5@0", "m-1", "bob-5@61"]);
        let spoiled: Vec<&str> = scan.spoiled.iter().map(|line| line.key.as_str()).collect();
        assert_eq!(spoiled, ["bob-5@17", "bob-5@31"]);
        assert!(!scan.has_open_end);
    }

    #[test]
    fn an_open_end_waits_until_nobody_writes_it() {
        let text = b"{\"content\":\"a\"}\n{\"conte";
        let scan = Scan::read("bob-5.jsonl", text, false);
        assert!(scan.has_open_end && scan.spoiled.is_empty());
        assert!(!scan.is_carried(&HashSet::from(["bob-5@0".to_owned()])));
        let scan = Scan::read("bob-5.jsonl", text, true);
        assert!(!scan.has_open_end && scan.spoiled.len() == 1);
        assert!(scan.is_carried(&HashSet::from(["bob-5@0".to_owned()])));
    }

    #[test]
    fn a_line_that_is_too_long_is_no_message() {
        let text = format!("{{\"content\":\"{}\"}}\n", "x".repeat(MESSAGE_BYTES_MAX));
        assert_eq!(Scan::read("bob-5.jsonl", text.as_bytes(), false).spoiled.len(), 1);
    }
}
