//! Characters that arrive in parts. Servers cut answers by tokens, so one character can be in two events: as two halves of a surrogate
//! pair (`\ud83d`, `\ude00`), or as bytes that are not UTF-8 alone.
//!
//! Until an answer is complete, each such part is one private character, a *part*, in its texts. So the texts can be read and joined as
//! others. Then [`joined`] puts together what belongs together, and replaces the rest by U+FFFD.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::str::Utf8Error;

/// The halves of surrogate pairs. The first ones begin a character.
const FIRST_HALVES: RangeInclusive<u32> = 0xd800..=0xdbff;
const SECOND_HALVES: RangeInclusive<u32> = 0xdc00..=0xdfff;
/// The most bytes of a character in UTF-8.
const CHARACTER_BYTES_MAX: usize = 4;
/// The distance from a half to its part, and from a byte to its part. No font or standard uses these private characters.
const HALF_PART: u32 = 0x10_0000;
const BYTE_PART: u32 = 0x10_e000;

/// A part of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Half(u32),
    Byte(u8),
}

impl Part {
    fn of(character: char) -> Option<Self> {
        let code = u32::from(character);
        let half = code.wrapping_sub(HALF_PART);
        let byte = u8::try_from(code.wrapping_sub(BYTE_PART)).ok().filter(|byte| !byte.is_ascii());
        let half = (FIRST_HALVES.contains(&half) || SECOND_HALVES.contains(&half)).then_some(Self::Half(half));
        half.or(byte.map(Self::Byte))
    }

    fn as_char(self) -> char {
        let code = match self {
            Self::Half(half) => HALF_PART + half,
            Self::Byte(byte) => BYTE_PART + u32::from(byte),
        };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

/// Returns true if a text has parts of characters.
pub fn has_parts(text: &str) -> bool {
    // All of them begin with this byte in UTF-8.
    text.as_bytes().contains(&0xf4) && text.chars().any(|character| Part::of(character).is_some())
}

/// Returns the text of these bytes, with a part for each byte that is not UTF-8.
pub fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(2 * bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| Part::Byte(*byte).as_char()));
    }
    Cow::Owned(text)
}

/// Returns a JSON text that the parser can read: with a part for each half of a pair that has no other half beside it, and with escapes for
/// control characters in strings, which some models do not write as such.
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
                (Some(half), _) => {
                    readable.push(Part::Half(half).as_char());
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

/// Returns the length of a text without the parts at its end to which the next text can belong: the first half of a pair, or the first
/// bytes of a character.
pub fn end_of_whole(text: &str) -> usize {
    let (mut bytes, mut waiting) = (Vec::new(), 0);
    for part in text.chars().rev().map_while(Part::of).take(CHARACTER_BYTES_MAX - 1) {
        match part {
            Part::Half(half) => {
                if bytes.is_empty() && FIRST_HALVES.contains(&half) {
                    waiting = 1;
                }
                break;
            }
            Part::Byte(byte) => {
                bytes.insert(0, byte);
                let begins_character = |error: &Utf8Error| error.error_len().is_none() && error.valid_up_to() == 0;
                if std::str::from_utf8(&bytes).is_err_and(|error| begins_character(&error)) {
                    waiting = bytes.len();
                }
            }
        }
    }
    let parts = text.char_indices().rev().take(waiting).last();
    parts.map_or(text.len(), |(start, _)| start)
}

/// A text without parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Joined<'a> {
    /// The text.
    pub text: Cow<'a, str>,
    /// True if a part was replaced by U+FFFD.
    pub is_replaced: bool,
}

/// Joins the parts in a text to characters. Each one that is left is replaced by U+FFFD.
pub fn joined(text: &str) -> Joined<'_> {
    if !has_parts(text) {
        return Joined { text: Cow::Borrowed(text), is_replaced: false };
    }
    let (mut whole, mut is_replaced) = (String::with_capacity(text.len()), false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match Part::of(character) {
            None => whole.push(character),
            Some(Part::Half(first)) => {
                let second = characters.peek().copied().and_then(Part::of);
                let pair = match second {
                    Some(Part::Half(second)) if is_pair(first, second) => {
                        characters.next();
                        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
                    }
                    _ => None,
                };
                is_replaced |= pair.is_none();
                whole.push(pair.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(Part::Byte(byte)) => {
                let mut bytes = vec![byte];
                while let Some(Part::Byte(next)) = characters.peek().copied().and_then(Part::of) {
                    bytes.push(next);
                    characters.next();
                }
                is_replaced |= std::str::from_utf8(&bytes).is_err();
                whole.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
    Joined { text: Cow::Owned(whole), is_replaced }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// The string of a JSON text.
    fn read(json: &[u8]) -> String {
        let text = text_of(json);
        serde_json::from_str::<String>(&readable_json(&text)).unwrap()
    }

    #[test]
    fn lone_part_is_replaced() {
        for (json, expected) in [
            (&b"\"a\\ud83d\""[..], "a\u{fffd}"),
            (b"\"\\ude00a\"", "\u{fffd}a"),
            (b"\"\\ud83d\\ud83d\\uDE00\"", "\u{fffd}😀"),
            (b"\"\\ude00\\ud83d\"", "\u{fffd}\u{fffd}"),
            (b"\"\\ud83d\\n\"", "\u{fffd}\n"),
            (b"\"caf\xe9 \xf0\x9f\"", "caf\u{fffd} \u{fffd}"),
            (b"\"\xed\xa0\xbd\"", "\u{fffd}\u{fffd}\u{fffd}"),
        ] {
            let text = read(json);
            assert_eq!(joined(&text), Joined { text: expected.into(), is_replaced: true }, "{json:?}");
        }
    }

    /// A stream of them must not wait as a whole: each text would be looked through again.
    #[test]
    fn only_start_of_one_character_waits() {
        for (bytes, waiting) in [
            (&b"\"a\\ud83d\\ud83d\\ud83d\""[..], 1),
            (b"\"a\\ud83d\\ude00\\ude00\"", 0),
            (b"\"\xf0\x9f\xf0\x9f\x98\"", 3),
            (b"\"\xf0\x9f\x98\x80\x80\"", 0),
        ] {
            let text = read(bytes);
            assert_eq!(text[end_of_whole(&text)..].chars().count(), waiting, "{bytes:?}");
        }
    }

    #[test]
    fn whole_text_is_unchanged() {
        let text = r#"{"a": "\ud83d\ude00 \u00e4 \\ud83d \\\\ud83d \"\\", "b\u0000": [1, "\u{fffd}😀"]}"#
            .replace("\\u{fffd}", "\u{fffd}");
        assert_eq!(readable_json(&text), text);
        assert_eq!(joined(&text), Joined { text: Cow::Borrowed(&text), is_replaced: false });
        assert!(matches!(readable_json("{\"a\": 1}"), Cow::Borrowed(_)) && matches!(text_of(b"a"), Cow::Borrowed(_)));
    }

    #[test]
    fn control_character_in_string_is_escaped() {
        let text = "{\"a\":\r\n\t\"x\0y\tz\r\n\\\"\u{1}\"}";
        let value: Value = serde_json::from_str(&readable_json(text)).unwrap();
        assert_eq!(value["a"], "x\0y\tz\r\n\"\u{1}");
        assert_eq!(readable_json("{\0}\n"), "{\0}\n", "only in strings");
    }

    proptest! {
        /// Cuts a text into two strings, between any two bytes or halves of a pair.
        #[test]
        fn text_cut_anywhere_is_joined(text in "[a-c\"\\\\\n\u{0}äß€漢😀\u{10ffff}]{0,12}", cut in 0..60_usize, is_escaped: bool) {
            let mut pieces: Vec<Vec<u8>> = Vec::new();
            for character in text.chars() {
                match character {
                    'a'..='c' => pieces.push(vec![character as u8]),
                    '"' | '\\' => pieces.push(vec![b'\\', character as u8]),
                    _ if is_escaped || character < ' ' => {
                        let mut units = [0; 2];
                        let units = character.encode_utf16(&mut units).iter();
                        pieces.extend(units.map(|unit| format!("\\u{unit:04x}").into_bytes()));
                    }
                    _ => pieces.extend(character.to_string().bytes().map(|byte| vec![byte])),
                }
            }
            let (first, second) = pieces.split_at(cut.min(pieces.len()));
            let string = |pieces: &[Vec<u8>]| read(&[b"\"", &pieces.concat()[..], b"\""].concat());
            let cut = [string(first), string(second)];
            let both = cut.concat();
            prop_assert_eq!(joined(&both), Joined { text: text.as_str().into(), is_replaced: false });
            let whole: Vec<usize> = cut.iter().map(|piece| end_of_whole(piece)).collect();
            prop_assert!(!has_parts(&cut[0][..whole[0]]), "what is shown early is whole");
        }

        #[test]
        fn any_bytes_become_text_without_parts(bytes: Vec<u8>) {
            let text = text_of(&bytes);
            let joined = joined(&text);
            prop_assert!(!has_parts(&joined.text));
            prop_assert_eq!(&joined.text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(joined.is_replaced, std::str::from_utf8(&bytes).is_err());
        }
    }
}
