//! A JSON object that keeps what it does not change: unknown fields stay byte for byte.
//!
//! Other programs store their own fields in Brigade's files, so every whole-file format is read and written as a [`Document`].

use std::fmt;

use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON object: its fields in file order, each value with its original text. Of duplicate keys the last value counts, as in common
/// readers.
#[derive(Clone, Default)]
pub struct Document {
    fields: IndexMap<String, Box<RawValue>>,
}

/// Reasons why bytes are not a document or a field is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The bytes are not exactly one JSON object.
    #[error("not a JSON object: {0}")]
    Syntax(String),
    /// A known field has the wrong type or range.
    #[error("field `{field}`: {reason}")]
    Field {
        /// The key of the value.
        field: String,
        /// The parser's message.
        reason: String,
    },
}

impl Document {
    /// Parses one JSON object. Skips a leading UTF-8 byte order mark, which some editors write.
    ///
    /// # Errors
    /// [`DocumentError::Syntax`] if `bytes` is not exactly one JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let fields = serde_json::from_slice(bytes).map_err(|error| DocumentError::Syntax(error.to_string()))?;
        Ok(Self { fields })
    }

    /// Returns the value of `field`, or `None` if it is missing or `null`.
    ///
    /// # Errors
    /// [`DocumentError::Field`] if the value is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>, DocumentError> {
        let Some(raw) = self.raw(field) else {
            return Ok(None);
        };
        serde_json::from_str(raw).map_err(|error| {
            // The place is one in the value.
            let place = format!(" at line {} column {}", error.line(), error.column());
            let reason = error.to_string();
            let reason = reason.strip_suffix(&place).unwrap_or(&reason).to_owned();
            DocumentError::Field { field: field.to_owned(), reason }
        })
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

/// Returns the end of the string that starts at `start`; the end of the text if it is not closed.
fn string_end(bytes: &[u8], start: usize) -> usize {
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
    fn json_of_any_depth_keeps_its_text() {
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        let document = Document::parse(deep.as_bytes()).unwrap();
        assert_eq!(document.to_line(), deep);
        assert!(document.get::<Value>("x").is_err(), "no parser recurses that deep");
    }

    #[test]
    fn error_names_line_or_field() {
        for (text, expected) in [
            (&b"{\n  \"id\": 3,\n}"[..], "not a JSON object: trailing comma at line 3 column 1"),
            (b"{\n  \"a\": \"\xff\"}", "not a JSON object: invalid unicode code point at line 2 column 9"),
        ] {
            assert_eq!(Document::parse(text).unwrap_err().to_string(), expected);
        }
        let document = Document::parse(b"{\n  \"id\": \"3\"}").unwrap();
        let id = document.get::<u64>("id").unwrap_err().to_string();
        assert_eq!(id, "field `id`: invalid type: string \"3\", expected u64");
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
