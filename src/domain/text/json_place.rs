//! Places in a JSON text, for people who correct it by hand.

use std::fmt;

use crate::domain::text::shorten;

/// The most characters of a key that are shown, and of all keys of a value.
const KEY_CHARS_MAX: usize = 60;
const PATH_CHARS_MAX: usize = 200;

/// A place in a JSON text, which can be invalid after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPlace {
    /// Its line, from 1.
    pub line: usize,
    /// Its column in bytes, from 1.
    pub column: usize,
    /// The keys of the value there, such as `claim.worker` or `blockedBy[1]`. Empty outside of the first key.
    pub path: String,
}

/// An object or array around a place.
enum Level<'a> {
    Object { key: Option<&'a str>, is_value: bool },
    Array { index: usize },
}

impl JsonPlace {
    /// Returns the place of the byte at `offset`.
    pub fn of(text: &str, offset: usize) -> Self {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Self { line, column: before.len() - line_start + 1, path: path_before(text, before.len()) }
    }

    /// Returns the place and the text of an error about `piece`, which begins at `start` of `text`. It is the place of the last byte that
    /// the parser read.
    pub fn of_error(text: &str, start: usize, piece: &str, error: &serde_json::Error) -> (Self, String) {
        let lines_before = error.line().saturating_sub(1);
        let line_start = piece.split_inclusive('\n').take(lines_before).map(str::len).sum::<usize>();
        let end = (line_start + error.column()).min(piece.len());
        let mut place = Self::of(text, start + end.saturating_sub(1));
        if error.is_data() {
            // The parser has read the whole value.
            place.path = path_before(text, start + end);
        }
        let (reason, position) = (error.to_string(), format!(" at line {} column {}", error.line(), error.column()));
        let reason = reason.strip_suffix(&position).map(str::to_owned).unwrap_or(reason);
        (place, reason)
    }
}

impl fmt::Display for JsonPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}", self.line, self.column)
    }
}

/// Returns the keys of the value that the first bytes of a text end in.
fn path_before(text: &str, end: usize) -> String {
    let bytes = text.as_bytes();
    let mut levels: Vec<Level<'_>> = Vec::new();
    let mut at = 0;
    while at < end {
        match (bytes[at], levels.last_mut()) {
            (b'"', level) => {
                let string_end = string_end(bytes, at);
                if let Some(Level::Object { key, is_value: false }) = level {
                    *key = text.get(at + 1..string_end.saturating_sub(1));
                }
                at = string_end;
                continue;
            }
            (b'{', _) => levels.push(Level::Object { key: None, is_value: false }),
            (b'[', _) => levels.push(Level::Array { index: 0 }),
            (b'}' | b']', _) => drop(levels.pop()),
            (b':', Some(Level::Object { is_value, .. })) => *is_value = true,
            (b',', Some(Level::Object { is_value, .. })) => *is_value = false,
            (b',', Some(Level::Array { index })) => *index += 1,
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for level in levels {
        match level {
            Level::Object { key: Some(key), .. } => {
                let point = if path.is_empty() { "" } else { "." };
                path.push_str(&format!("{point}{}", shorten(key, KEY_CHARS_MAX)));
            }
            Level::Object { key: None, .. } => {}
            Level::Array { index } => path.push_str(&format!("[{index}]")),
        }
    }
    shorten(&path, PATH_CHARS_MAX)
}

/// Returns the end of the string that starts at `start`; the end of the text if it is not closed.
pub(super) fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_has_line_column_and_keys() {
        let text = "{\n  \"id\": 3,\n  \"claim\": {\n    \"at\": [1, {\"x\\\"\": true}]\n  }\n}\n";
        for (part, expected) in [
            ("\"id\"", "2:3:"),
            ("3", "2:9:id"),
            ("[1", "4:11:claim.at"),
            ("1,", "4:12:claim.at[0]"),
            ("true", "4:23:claim.at[1].x\\\""),
        ] {
            let JsonPlace { line, column, path } = JsonPlace::of(text, text.find(part).unwrap());
            assert_eq!(format!("{line}:{column}:{path}"), expected, "{part}");
        }
        let long = format!("{{\"{}\": 1}}", "a".repeat(900_000));
        assert_eq!(JsonPlace::of(&long, long.len() - 2).path.chars().count(), KEY_CHARS_MAX);
    }
}
