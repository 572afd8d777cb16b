//! JSON texts that models and programs write.

use std::borrow::Cow;
use std::ops::RangeInclusive;

/// The halves of surrogate pairs. The first ones begin a character.
const FIRST_HALVES: RangeInclusive<u32> = 0xd800..=0xdbff;
const SECOND_HALVES: RangeInclusive<u32> = 0xdc00..=0xdfff;

/// Returns a JSON text that the parser can read: with U+FFFD for each half of a surrogate pair that has no other half beside it, and with
/// escapes for control characters in strings, which some models do not write as such.
pub fn readable_json(text: &str) -> Cow<'_, str> {
    let is_control = |byte: u8| byte < b' ';
    if !text.contains("\\u") && !text.bytes().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut readable = String::with_capacity(text.len());
    let (mut rest, mut is_string) = (text, false);
    while let Some(character) = rest.chars().next() {
        let mut taken = character.len_utf8();
        match (character, is_string) {
            ('"', _) => is_string = !is_string,
            ('\\', true) => match (escaped_half(rest), rest.get(6..).and_then(escaped_half)) {
                (Some(first), Some(second)) if is_pair(first, second) => taken = 12,
                (Some(_), _) => {
                    readable.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[6..];
                    continue;
                }
                (None, _) => taken += rest[taken..].chars().next().map_or(0, char::len_utf8),
            },
            (control @ '\0'..'\u{20}', true) => {
                readable.push_str(&format!("\\u{:04x}", u32::from(control)));
                rest = &rest[taken..];
                continue;
            }
            _ => {}
        }
        readable.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    Cow::Owned(readable)
}

/// The half of a pair whose escape begins the text.
fn escaped_half(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let code = digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16))?.ok()?;
    (FIRST_HALVES.contains(&code) || SECOND_HALVES.contains(&code)).then_some(code)
}

fn is_pair(first: u32, second: u32) -> bool {
    FIRST_HALVES.contains(&first) && SECOND_HALVES.contains(&second)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn lone_half_of_pair_is_replaced() {
        for (json, expected) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ude00a""#, "\u{fffd}a"),
            (r#""\ud83d\ud83d\uDE00""#, "\u{fffd}😀"),
            (r#""\ud83d\n""#, "\u{fffd}\n"),
        ] {
            assert_eq!(serde_json::from_str::<String>(&readable_json(json)).unwrap(), expected, "{json}");
        }
        let whole = r#"{"a": "\ud83d\ude00 \\ud83d \"\\", "b\u0000": 1}"#;
        assert_eq!(readable_json(whole), whole);
    }

    #[test]
    fn control_character_in_string_is_escaped() {
        let text = "{\"a\":\r\n\t\"x\0y\tz\r\n\\\"\u{1}\"}";
        let value: Value = serde_json::from_str(&readable_json(text)).unwrap();
        assert_eq!(value["a"], "x\0y\tz\r\n\"\u{1}");
        assert_eq!(readable_json("{\0}\n"), "{\0}\n", "only in strings");
    }
}
