//! Texts in limited length. No character is split.

use std::fmt::Write;

/// The start of the line in place of an omitted middle.
pub(in crate::domain) const OMISSION_START: &str = "[... ";

/// Returns the text in about `bytes_max` bytes. A longer one keeps its start and its end, with a line that counts what is left out.
pub fn bound(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let (start, end) = (head(text, bytes_max / 2), tail(text, bytes_max / 2));
    join(start, end, (text.len() - start.len() - end.len()) as u64, bytes_max)
}

/// Returns the text in at most `chars_max` characters. A longer one is cut and ends with `…`.
pub fn shorten(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars_max - 1).chain(['…']).collect(),
    }
}

/// Returns the text in at most `chars_max` characters. A longer one keeps its start and its end.
pub fn shorten_middle(text: &str, chars_max: usize) -> String {
    let count = text.chars().count();
    if count <= chars_max {
        return text.to_owned();
    }
    let end_chars = chars_max / 3;
    let start: String = text.chars().take(chars_max - end_chars - 3).collect();
    let end: String = text.chars().skip(count - end_chars).collect();
    format!("{} … {}", start.trim_end(), end.trim_start())
}

/// The longest prefix of `text` within `bytes_max` that splits no character.
pub fn head(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// The longest suffix of `text` within `bytes_max` that splits no character.
pub fn tail(text: &str, bytes_max: usize) -> &str {
    let from = text.len().saturating_sub(bytes_max);
    let start = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}

/// Joins the start and the end of a longer text. A line between them counts the bytes that are left out.
pub(super) fn join(start: &str, end: &str, omitted_bytes: u64, bytes_max: usize) -> String {
    let (start_part, end_part) = (head(start, bytes_max / 2), tail(end, bytes_max / 2));
    let omitted_bytes = omitted_bytes + (start.len() - start_part.len() + end.len() - end_part.len()) as u64;
    let mut text = String::with_capacity(start_part.len() + end_part.len() + 64);
    text.push_str(start_part);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{OMISSION_START}{omitted_bytes} bytes left out ...]");
    text.push_str(end_part);
    text
}
