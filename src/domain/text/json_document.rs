//! A JSON object that keeps what it does not change: unknown fields stay byte for byte.
//!
//! Other programs store their own fields in Brigade's files, so every whole-file format is read and written as a [`Document`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json_place::{JsonPlace, string_end};

/// Maximum nesting depth. It is below the limits of common readers (serde_json: 128 levels, Python: about 1000).
pub const DEPTH_MAX: usize = 100;

/// A JSON object: its fields in file order, each value with its original text. Of duplicate keys the last value counts, as in common
/// readers.
#[derive(Clone, Default)]
pub struct Document {
    fields: IndexMap<String, Box<RawValue>>,
    /// The text that was parsed. Errors name places in it.
    text: Arc<str>,
}

/// Reasons why bytes are not a document or a field is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The bytes are not exactly one JSON object.
    #[error("not a JSON object: {0}")]
    Syntax(String),
    /// The object is nested too deeply for other readers.
    #[error("not a JSON object: it is nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    /// A known field has the wrong type or range.
    #[error("field `{field}`: {reason}")]
    Field {
        /// The keys of the value.
        field: String,
        /// The parser's message, with the line and the column.
        reason: String,
    },
}

/// The error at a place of a text that is not a document.
fn syntax_error(reason: &str, place: &JsonPlace) -> DocumentError {
    let key = if place.path.is_empty() { String::new() } else { format!(", in `{}`", place.path) };
    DocumentError::Syntax(format!("{reason} at {place}{key}"))
}

/// The error of a text that is valid UTF-8 up to the end of `valid`.
fn not_utf8(valid: &[u8]) -> DocumentError {
    let valid = String::from_utf8_lossy(valid);
    syntax_error("invalid UTF-8", &JsonPlace::of(&valid, valid.len()))
}

impl Document {
    /// Parses one JSON object. Skips a leading UTF-8 byte order mark, which some editors write.
    ///
    /// # Errors
    /// [`DocumentError::Syntax`] if `bytes` is not exactly one JSON object, [`DocumentError::TooDeep`].
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        if is_too_deep(bytes) {
            return Err(DocumentError::TooDeep);
        }
        let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(&bytes[..error.valid_up_to()]))?;
        let fields = serde_json::from_str(text).map_err(|error| {
            let (place, reason) = JsonPlace::of_error(text, 0, text, &error);
            syntax_error(&reason, &place)
        })?;
        Ok(Self { fields, text: text.into() })
    }

    /// Returns the value of `field`, or `None` if it is missing or `null`.
    ///
    /// # Errors
    /// [`DocumentError::Field`] if the value is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>, DocumentError> {
        let Some(raw) = self.raw(field) else {
            return Ok(None);
        };
        serde_json::from_str(raw).map_err(|error| match self.start(field) {
            Some(start) => {
                let (place, reason) = JsonPlace::of_error(&self.text, start, raw, &error);
                DocumentError::Field { field: place.path.clone(), reason: format!("{reason} at {place}") }
            }
            None => DocumentError::Field { field: field.to_owned(), reason: error.to_string() },
        })
    }

    /// Returns the start of the value of `field` in the text that was parsed; `None` if the value was set later.
    fn start(&self, field: &str) -> Option<usize> {
        let parsed: HashMap<String, &RawValue> = serde_json::from_str(&self.text).ok()?;
        let value = parsed.get(field)?.get();
        if self.raw(field) == Some(value) { Some(value.as_ptr().addr() - self.text.as_ptr().addr()) } else { None }
    }

    /// Returns the line of the value of `field` in the text that was parsed.
    pub fn line_of(&self, field: &str) -> Option<usize> {
        Some(JsonPlace::of(&self.text, self.start(field)?).line)
    }

    /// Sets `field`. An existing field keeps its position, and its text if it already equals `value`.
    pub fn set<T: Serialize + DeserializeOwned + PartialEq>(&mut self, field: &str, value: &T) {
        if let Ok(Some(old)) = self.get::<T>(field)
            && old == *value
        {
            return;
        }
        self.put(field, value);
    }

    /// Sets `field` and replaces its text in any case.
    pub fn put<T: Serialize>(&mut self, field: &str, value: &T) {
        // Only maps with keys other than strings can fail, and no caller passes one.
        if let Ok(pretty) = serde_json::to_string_pretty(value)
            && let Ok(raw) = RawValue::from_string(pretty.replace('\n', "\n  "))
        {
            self.fields.insert(field.to_owned(), raw);
        }
    }

    /// Sets an optional field. `None` removes it, unless it is `null`, which means the same.
    pub fn set_optional<T: Serialize + DeserializeOwned + PartialEq>(&mut self, field: &str, value: Option<&T>) {
        match value {
            Some(value) => self.set(field, value),
            None if self.raw(field) == Some("null") => {}
            None => self.remove(field),
        }
    }

    /// Sets a field that is omitted while it has its default value, unless the file states the default.
    pub fn set_unless_default<T: Serialize + DeserializeOwned + PartialEq>(
        &mut self,
        field: &str,
        value: &T,
        default: &T,
    ) {
        if value == default && !self.contains(field) {
            return;
        }
        self.set(field, value);
    }

    /// Gives each value the layout that [`Self::put`] writes. Numbers and texts may be spelled differently then.
    pub fn lay_out(&mut self) {
        for (name, value) in self.fields.clone() {
            if let Ok(value) = serde_json::from_str::<Value>(value.get()) {
                self.put(&name, &value);
            }
        }
    }

    /// Removes `field`. The order of the others does not change.
    pub fn remove(&mut self, field: &str) {
        self.fields.shift_remove(field);
    }

    /// Returns true if `field` exists, also as `null`.
    pub fn contains(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// Returns the original text of the value of `field`.
    pub fn raw(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(|value| value.get())
    }

    /// Returns the names of all fields in file order.
    pub fn field_names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// Returns the document on one line without a newline, for `.jsonl` files.
    pub fn to_line(&self) -> String {
        // Names and valid values can always be serialized.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the document with two-space indent and a trailing newline, for whole files. A value that was not set keeps its own layout.
    pub fn to_pretty(&self) -> String {
        serde_json::to_string_pretty(&self.fields).unwrap_or_default() + "\n"
    }
}

impl Eq for Document {}

impl PartialEq for Document {
    /// Compares fields by their text, without regard to their order.
    fn eq(&self, other: &Self) -> bool {
        self.fields.len() == other.fields.len()
            && self.fields.iter().all(|(name, value)| other.raw(name) == Some(value.get()))
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields.fmt(f)
    }
}

impl Serialize for Document {
    /// Writes each value on one line, as `.jsonl` files need it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields.iter().map(|(name, value)| (name, one_line(value))))
    }
}

/// Returns the same tokens without spaces between them.
fn one_line(value: &RawValue) -> Box<RawValue> {
    let json = value.get();
    let (mut line, mut at) = (String::with_capacity(json.len()), 0);
    while at < json.len() {
        let end = if json.as_bytes()[at] == b'"' { string_end(json.as_bytes(), at) } else { at + 1 };
        line.push_str(json[at..end].trim_ascii());
        at = end;
    }
    RawValue::from_string(line).unwrap_or_else(|_| value.to_owned())
}

/// Returns true if brackets outside strings nest deeper than [`DEPTH_MAX`].
fn is_too_deep(json: &[u8]) -> bool {
    if json.iter().filter(|byte| matches!(byte, b'{' | b'[')).count() <= DEPTH_MAX {
        return false;
    }
    let (mut depth, mut at) = (0_usize, 0);
    while at < json.len() {
        match json[at] {
            b'"' => {
                at = string_end(json, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_document_round_trip_keeps_every_byte() {
        let text = "{\n  \"id\": 7,\n  \"n\": 1.50e+3,\n  \"x\": {\n    \"keep\": [\n      \"every\",\n      \"b\\u0079te\"\n    ],\n    \"none\": [],\n    \"o\": {}\n  }\n}\n";
        assert_eq!(Document::parse(text.as_bytes()).unwrap().to_pretty(), text);
    }

    #[test]
    fn set_same_value_keeps_original_spelling() {
        let mut document = Document::parse(br#"{"at": 1763688000.250}"#).unwrap();
        document.set("at", &1_763_688_000.25_f64);
        assert_eq!(document.raw("at"), Some("1763688000.250"));
        document.set("at", &2.0_f64);
        assert_eq!(document.raw("at"), Some("2.0"));
    }

    #[test]
    fn invalid_utf8_error_names_line_and_column() {
        let error = Document::parse(b"{\n  \"a\": \"\xff\"}").unwrap_err();
        assert_eq!(error.to_string(), "not a JSON object: invalid UTF-8 at line 2 column 9, in `a`");
    }

    #[test]
    fn error_names_line_column_and_key() {
        for (text, expected) in [
            ("{\n  \"id\": 3,\n}", "not a JSON object: trailing comma at line 3 column 1, in `id`"),
            (
                "{\n  \"a\": \"x,\n  \"id\": 3\n}",
                "not a JSON object: control character (\\u0000-\\u001F) found while parsing a string at line 2 column 10, in `a`",
            ),
            (
                "{\n  \"a\": {\n    \"b\": [1 2]}}",
                "not a JSON object: expected `,` or `]` at line 3 column 13, in `a.b[0]`",
            ),
            ("{\"id\": 3", "not a JSON object: EOF while parsing an object at line 1 column 8, in `id`"),
        ] {
            assert_eq!(Document::parse(text.as_bytes()).unwrap_err().to_string(), expected, "{text}");
        }
        let document = Document::parse(b"{\n  \"id\": \"3\",\n  \"list\": [\n    1,\n    \"x\"\n  ]\n}").unwrap();
        let id = document.get::<u64>("id").unwrap_err().to_string();
        assert_eq!(id, "field `id`: invalid type: string \"3\", expected u64 at line 2 column 11");
        let list = document.get::<Vec<u64>>("list").unwrap_err().to_string();
        assert_eq!(list, "field `list[1]`: invalid type: string \"x\", expected u64 at line 5 column 7");
    }

    #[test]
    fn byte_order_mark_is_skipped_other_junk_is_refused() {
        assert!(Document::parse(b"\xef\xbb\xbf{\"a\":1}").is_ok());
        for bad in [&b"[1]"[..], b"{\"a\":1}x", b"", b"{\"a\":", b"\xff{}", b"null"] {
            assert!(Document::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn foreign_layout_stays_in_file_and_not_in_line() {
        let text = "{\n  \"id\": 7,\n  \"x\": {\"a\":\r\n [ 1,\n\t2 ], \"b\": \" \\n \"}\n}\n";
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(document.to_pretty(), text);
        assert_eq!(document.to_line(), r#"{"id":7,"x":{"a":[1,2],"b":" \n "}}"#);
    }

    #[test]
    fn json_documents_compare_by_text() {
        let parse = |text: &str| Document::parse(text.as_bytes()).unwrap();
        let document = parse(r#"{"a": 1.0, "b": {"c": [1, " "]}}"#);
        assert_eq!(document, parse("{\"b\":{\"c\": [1, \" \"]},\n\"a\":1.0}"));
        for other in [r#"{"a": 1, "b": {"c": [1, " "]}}"#, r#"{"a": 1.0, "b": {"c": [1, ""]}}"#, r#"{"a": 1.0}"#] {
            assert_ne!(document, parse(other), "{other}");
        }
    }

    #[test]
    fn json_nested_too_deep_is_refused() {
        let nested = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let document = Document::parse(nested(DEPTH_MAX).as_bytes()).unwrap();
        assert_eq!(document.to_line(), nested(DEPTH_MAX));
        assert!(serde_json::from_str::<serde_json::Value>(&document.to_pretty()).is_ok());
        for depth in [DEPTH_MAX + 1, 200_000] {
            assert_eq!(Document::parse(nested(depth).as_bytes()).unwrap_err(), DocumentError::TooDeep);
        }
        let in_strings = format!(r#"{{"x":"{}\"[[","y":1}}"#, "[".repeat(1000));
        assert!(Document::parse(in_strings.as_bytes()).is_ok());
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_output_matches_serde_json(value in json()) {
            let object = serde_json::json!({ "field": value });
            let mut document = Document::default();
            document.put("field", &value);
            let pretty = serde_json::to_string_pretty(&object).unwrap() + "\n";
            prop_assert_eq!(document.to_pretty(), &*pretty);
            prop_assert_eq!(document.to_line(), object.to_string());
            let document = Document::parse(pretty.as_bytes()).unwrap();
            prop_assert_eq!(document.to_pretty(), pretty);
        }
    }
}
