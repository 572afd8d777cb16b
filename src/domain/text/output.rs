//! Bounds tool output: keeps head and tail, and replaces the middle by a count of its bytes.
//!
//! Also removes terminal escapes and control characters, and replaces bytes that are not UTF-8.

use anstream::adapter::strip_str;

use super::length::{bound, join};

/// Collects a stream of any length in bounded memory.
#[derive(Debug)]
pub struct OutputBuffer {
    half_bytes_max: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// The number of bytes dropped between head and tail.
    dropped_bytes: u64,
}

impl OutputBuffer {
    /// A buffer that keeps about `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { half_bytes_max: bytes_max / 2, head: Vec::new(), tail: Vec::new(), dropped_bytes: 0 }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let space = self.half_bytes_max.saturating_sub(self.head.len());
        let (head, rest) = bytes.split_at(space.min(bytes.len()));
        self.head.extend_from_slice(head);
        self.tail.extend_from_slice(rest);
        // Shortening only at twice the size keeps the cost per byte constant.
        if self.tail.len() > 2 * self.half_bytes_max.max(1) {
            self.drop_tail();
        }
    }

    fn drop_tail(&mut self) {
        let excess = self.tail.len().saturating_sub(self.half_bytes_max);
        self.tail.drain(..excess);
        self.dropped_bytes += excess as u64;
    }

    /// The text without control characters, bounded. A line in the middle counts the bytes that were left out.
    pub fn into_text(mut self) -> String {
        self.drop_tail();
        if self.dropped_bytes == 0 {
            self.head.append(&mut self.tail);
            return bound(&without_control_characters(&self.head), 2 * self.half_bytes_max);
        }
        // The ends can be parts of characters.
        let [head, tail] = [&self.head, &self.tail].map(|bytes| without_control_characters(bytes));
        let (head, tail) =
            (head.trim_end_matches(char::REPLACEMENT_CHARACTER), tail.trim_start_matches(char::REPLACEMENT_CHARACTER));
        join(head, tail, self.dropped_bytes, 2 * self.half_bytes_max)
    }
}

/// The text without terminal escapes and control characters, except newline and tab. Invalid UTF-8 becomes U+FFFD.
pub fn without_control_characters(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut clean = String::with_capacity(text.len());
    let stripped = strip_str(&text).to_string();
    let mut characters = stripped.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\r' if characters.peek() == Some(&'\n') => {}
            // A progress bar returns to the start of its line. One line for each state stays readable.
            '\r' => clean.push('\n'),
            '\n' | '\t' => clean.push(character),
            control if control.is_control() => {}
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collected(bytes: &[u8], bytes_max: usize, chunk: usize) -> String {
        let mut collector = OutputBuffer::new(bytes_max);
        bytes.chunks(chunk).for_each(|chunk| collector.push(chunk));
        collector.into_text()
    }

    #[test]
    fn short_output_is_unchanged() {
        assert_eq!(collected(b"one\ntwo\n", 100, 3), "one\ntwo\n");
    }

    #[test]
    fn long_output_omits_middle_with_byte_count() {
        let text: String = (0..1000).map(|line| format!("line {line}\n")).collect();
        let cut = collected(text.as_bytes(), 200, 7);
        assert!(cut.starts_with("line 0\n") && cut.ends_with("line 999\n"), "{cut}");
        let left_out: usize = cut.split("[... ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let note = format!("[... {left_out} bytes left out ...]\n");
        let kept = cut.replace(&note, "");
        let missing_newline = usize::from(!text.starts_with(cut.split(&note).next().unwrap()));
        assert_eq!(kept.len() - missing_newline + left_out, text.len());
    }

    #[test]
    fn output_escapes_and_controls_are_removed() {
        let text = b"\x1b[31mred\x1b[0m \x1b]0;title\x07a\0b\x08c\r\nd\re\tf\xff\xc2\x9bg";
        assert_eq!(without_control_characters(text), "red abc\nd\ne\tf\u{FFFD}g");
    }

    proptest! {
        #[test]
        fn output_is_bounded_and_splits_no_character(
            text in "[a-zé€😀\n]{0,300}", bytes_max in 8_usize..200, chunk in 1_usize..50,
        ) {
            let cut = collected(text.as_bytes(), bytes_max, chunk);
            prop_assert!(cut.len() <= bytes_max + 48, "{} of {bytes_max}", cut.len());
            prop_assert!(!cut.contains('\u{FFFD}'), "a character was split: {cut}");
            if text.len() <= bytes_max / 2 * 2 {
                prop_assert_eq!(&cut, &text);
            }
        }

        #[test]
        fn output_of_any_bytes_is_bounded_text(bytes in prop::collection::vec(any::<u8>(), 0..600), bytes_max in 8_usize..200) {
            let cut = collected(&bytes, bytes_max, 64);
            prop_assert!(cut.len() <= bytes_max + 48);
            prop_assert!(!cut.chars().any(|character| character.is_control() && !"\n\t".contains(character)));
        }
    }
}
