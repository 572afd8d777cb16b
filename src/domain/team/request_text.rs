//! The texts of a request for the person who answers it: on one line of limited length, or in full.
//!
//! Every view of a call uses these texts, so that a person approves the same text everywhere.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::digest::sha256;
use crate::domain::agent::permission::{PermissionCall, change_text};
use crate::domain::text::is_harmful;

/// The most characters of a text on one line. A longer text is cut.
pub const LINE_CHARS_MAX: usize = 160;

/// Stands for a line break.
const LINE_BREAK: char = '⏎';
/// Stands for a space that could be overlooked: after another space, or at an end of its line.
const SPACE: char = '␣';

/// The digits of a digest that a person copies. So many that no one finds two calls with the same one.
const DIGEST_DIGITS: usize = 32;

/// A text on one line, in which nothing can be overlooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    /// The text, or its start.
    pub text: String,
    /// The part that is left out, if any.
    pub hidden: Option<Hidden>,
}

impl RequestLine {
    /// Returns the text on one line, with `⏎` for its line breaks. It is cut after [`LINE_CHARS_MAX`] characters.
    pub fn of(text: &str) -> Self {
        let lines: Vec<&str> = text.trim_end_matches('\n').split('\n').collect();
        let mut shown = String::new();
        let mut chars_left = LINE_CHARS_MAX;
        for (index, line) in lines.iter().enumerate() {
            let characters = visible_characters(line);
            let head = match (index, characters.is_empty()) {
                (0, _) => String::new(),
                (_, true) => format!(" {LINE_BREAK}"),
                (_, false) => format!(" {LINE_BREAK} "),
            };
            chars_left = chars_left.saturating_sub(chars(&head));
            let mut is_cut = chars_left == 0 && index > 0;
            let mut shown_count = 0;
            let mut start = head;
            for character in &characters {
                is_cut = is_cut || chars(character) > chars_left;
                if is_cut {
                    break;
                }
                chars_left -= chars(character);
                shown_count += 1;
                start.push_str(character);
            }
            if shown_count > 0 || !is_cut {
                shown.push_str(&start);
            }
            if is_cut {
                let is_last = index + 1 == lines.len();
                let hidden_characters = Hidden::Characters(characters.len() - shown_count);
                let hidden = if is_last { hidden_characters } else { Hidden::Lines(lines.len() - index) };
                return Self { text: shown, hidden: Some(hidden) };
            }
        }
        Self { text: shown, hidden: None }
    }
}

/// The size of the part of a text that is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    /// Lines, with the one of which only the start is shown.
    Lines(usize),
    /// Characters of the last line.
    Characters(usize),
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, noun) = match self {
            Self::Lines(count) => (count, "line"),
            Self::Characters(count) => (count, "character"),
        };
        write!(f, "{count} more {noun}{}", if *count == 1 { "" } else { "s" })
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

/// The characters of a line, each as it is shown.
fn visible_characters(line: &str) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    let is_space = |index: Option<usize>| index.and_then(|index| characters.get(index)).is_none_or(|c| *c == ' ');
    let shown = |(index, c): (usize, &char)| match *c {
        ' ' if is_space(index.checked_sub(1)) || index + 1 == characters.len() => SPACE.to_string(),
        ' ' => ' '.to_string(),
        c if c.is_whitespace() || is_invisible(c) || [LINE_BREAK, SPACE].contains(&c) => c.escape_default().collect(),
        c => c.to_string(),
    };
    characters.iter().enumerate().map(shown).collect()
}

/// Returns the whole text. Characters that a terminal could execute or not show are escaped. Line breaks, tabs and spaces stay.
pub fn whole(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | ' ' => out.push(c),
            c if c.is_whitespace() || is_invisible(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Returns true if a person could overlook this character: it is harmful, or has no shape of its own. These are the characters with the
/// Unicode property `Default_Ignorable_Code_Point`, and the blank one of Braille.
fn is_invisible(c: char) -> bool {
    is_harmful(c)
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
                | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The lines that a call replaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallChange {
    /// The text that it removes.
    pub removed: String,
    /// The text that it adds.
    pub added: String,
}

/// The arguments of a call that its subject does not name, for the person.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CallArguments {
    /// The change that the call makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<CallChange>,
    /// The others, by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
}

impl CallArguments {
    /// Returns the change and the other arguments as text, one a line.
    pub fn text(&self) -> String {
        let mut text =
            self.change.as_ref().map(|change| change_text(&change.removed, &change.added)).unwrap_or_default();
        for (name, value) in &self.arguments {
            let value = value.as_str().map_or_else(|| value.to_string(), |text| text.replace('\n', "\n  "));
            text.push_str(&format!("{name}: {value}\n"));
        }
        text
    }
}

/// The details of a call: for the person, and for its digest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallDetails {
    /// The arguments that the subject does not name.
    pub arguments: CallArguments,
    /// The hash of the tool and all arguments.
    pub hash: String,
}

impl CallDetails {
    /// Returns the details of a call. `subject` is the argument that is its subject. `change` are the arguments with the lines that it
    /// removes and adds.
    pub fn of(tool: &str, input: &Value, subject: Option<&str>, change: Option<[&str; 2]>) -> Self {
        let is_shown = |field: &str| {
            subject == Some(field) || change.is_some_and(|change| change.contains(&field) && input[field].is_string())
        };
        let text = |field: &str| input[field].as_str().unwrap_or_default().to_owned();
        let others = input.as_object().into_iter().flatten().filter(|(field, _)| !is_shown(field));
        let arguments = CallArguments {
            change: change.map(|[removed, added]| CallChange { removed: text(removed), added: text(added) }),
            arguments: others.map(|(field, value)| (field.clone(), value.clone())).collect(),
        };
        Self { arguments, ..Self::of_whole_subject(tool, input) }
    }

    /// Returns the details of a call whose subject shows all arguments.
    pub fn of_whole_subject(tool: &str, input: &Value) -> Self {
        let hash = sha256(&[tool.as_bytes(), input.to_string().as_bytes()]);
        Self { arguments: CallArguments::default(), hash }
    }
}

/// A call about which the person is asked, as data. The text of its request has the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestedCall {
    /// The tool and the subject.
    #[serde(flatten)]
    pub call: PermissionCall,
    /// The other arguments.
    #[serde(flatten)]
    pub arguments: CallArguments,
}

impl RequestedCall {
    /// Returns the text of its request, without the member.
    pub fn text(&self) -> String {
        let text = format!("{}: {}\n{}", self.call.tool, self.call.subject, self.arguments.text());
        text.strip_suffix('\n').unwrap_or(&text).to_owned()
    }
}

/// Returns the digest of these texts that a person copies.
pub fn digest_of(texts: &[&str]) -> String {
    let mut digest = sha256(&texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
    digest.truncate(DIGEST_DIGITS);
    digest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn line_shows_breaks_spaces_and_invisible_characters() {
        for (text, shown) in [
            ("bash: make", "bash: make"),
            ("bash: a\n  b\n\nc\n", "bash: a ⏎ ␣␣b ⏎ ⏎ c"),
            ("rm a  b ", "rm a ␣b␣"),
            (
                "a\tb\u{1b}[2J\u{202e}c\u{200b}d\u{a0}e\u{e0041}",
                "a\\tb\\u{1b}[2J\\u{202e}c\\u{200b}d\\u{a0}e\\u{e0041}",
            ),
            ("a⏎b␣", "a\\u{23ce}b\\u{2423}"),
        ] {
            assert_eq!(RequestLine::of(text), RequestLine { text: shown.to_owned(), hidden: None }, "{text:?}");
        }
    }

    #[test]
    fn cut_line_counts_the_rest() {
        let script: String = (1..=82).map(|line| format!("echo {line:0153}\n")).collect();
        let shown = RequestLine::of(&script);
        assert_eq!(shown.hidden.unwrap().to_string(), "81 more lines");
        assert_eq!(shown.text, format!("echo {:0153}", 1));
        let long = RequestLine::of(&"x".repeat(LINE_CHARS_MAX + 1));
        assert_eq!(long.hidden, Some(Hidden::Characters(1)));
        assert_eq!(long.hidden.unwrap().to_string(), "1 more character");
        assert_eq!(RequestLine::of(&"x".repeat(LINE_CHARS_MAX)).hidden, None);
        let two = RequestLine::of(&format!("{}\nrm -rf x", "x".repeat(LINE_CHARS_MAX)));
        assert_eq!(two.hidden, Some(Hidden::Characters(8)));
    }

    #[test]
    fn details_name_every_argument() {
        let input = json!({ "path": "a", "old_text": "x\ny", "new_text": "z", "all": true, "why": "two\nlines" });
        let details = CallDetails::of("edit_file", &input, Some("path"), Some(["old_text", "new_text"]));
        assert_eq!(details.arguments.text(), "- x\n- y\n+ z\nall: true\nwhy: two\n  lines\n");
        let others = [
            CallDetails::of("write_file", &input, Some("path"), None),
            CallDetails::of("edit_file", &json!({ "path": "a" }), Some("path"), None),
        ];
        assert!(others.iter().all(|other| other.hash != details.hash));
    }

    proptest! {
        #[test]
        fn line_is_bounded_and_shows_or_counts_everything(text in "[a-z \n\t\u{200b}⏎]{0,400}") {
            let shown = RequestLine::of(&text);
            prop_assert!(shown.text.chars().count() <= LINE_CHARS_MAX);
            prop_assert!(!shown.text.contains(|c: char| c == '\n' || is_invisible(c)));
            if shown.hidden.is_none() {
                let breaks = text.trim_end_matches('\n').matches('\n').count();
                prop_assert!(shown.text.matches(LINE_BREAK).count() == breaks);
            }
        }
    }
}
