//! Escaping of Brigade's own tags in texts of others, however they are disguised.
//!
//! Texts are compared by their appearance. Terminal escapes, invisible characters and accents are removed. Wide and ornamental forms become
//! plain ones, and look-alikes become Latin letters. Only the `<` of such a tag is changed.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::iter;
use std::str::Chars;
use std::sync::LazyLock;

use icu_normalizer::{DecomposingNormalizer, DecomposingNormalizerBorrowed};
use regex::Regex;

/// The tags that only the harness may write.
pub const HARNESS_TAGS: [&str; 3] = ["identity", "inbox", "auto-claimed"];

/// Characters that look like `<` and are not Unicode compatibility forms of it.
const OPENINGS: &str = "‹〈⟨〈❬❮❰˂ᐸᚲ⧼𝈶";
/// Characters that look like a letter of the tags and are not Unicode compatibility forms of it, before that letter. Characters
/// that look like `i` in some typefaces count as `i`. From Unicode's confusables.txt.
#[rustfmt::skip]
const LOOK_ALIKES: [(&str, char); 15] = [
    ("аɑα⍺ᴀꭺꓮ∀ᗅ", 'a'), ("ьƅвβʙᏼᖯᑲꓐƀЪъ", 'b'), ("сϲᴄⲥꮯꓚ¢ↄ", 'c'), ("ԁᑯꓒꓓᴅđᗞᗪꭰꮷ", 'd'), ("еҽ℮εеꬲⴹᴇꭼꓰ⋿є", 'e'),
    ("l1|ıіιɩɪӏꙇꭵ⍳ǀⵏꓲᛁłʟꮮꓡ∣│Ɩ", 'i'), ("мμᴍꓟꮇᛖ", 'm'), ("ոռηνɴꓠпийᴨ", 'n'), ("0оοօσᴏⲟꓳѳøⵔჿဝ〇", 'o'),
    ("тτᴛꭲꓔⲧ⊤ŧ", 't'), ("υʋսᴜꞟꭎᑌꓴ∪", 'u'), ("хχᕁᕽ⤫×ꓫⲭⵝ╳ᚷ", 'x'), ("уүγʏყɣꓬΥꭹꮍⲩ", 'y'),
    ("‐‑‒–—―−⁃➖", '-'), ("⁄∕⧸╱", '/'),
];
/// Maximum length of a terminal control string, in characters, within which its end is searched.
const CONTROL_STRING_CHARS_MAX: usize = 256;
/// Maximum number of control strings skipped in one tag. It bounds the time for text in which each string starts another tag.
const CONTROL_STRINGS_MAX: usize = 64;

const COMPATIBILITY: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizer::new_nfkd();

/// Invisible characters: controls, format characters, combining marks, unassigned code points and very narrow spaces.
static INVISIBLE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let spaces = r"\u{2000}-\u{200A}\u{202F}\u{205F}\u{2800}\u{FFFC}\u{FFFD}";
    // The expression is constant and covered by the tests below.
    Regex::new(&format!(r"^[\p{{C}}\p{{M}}\p{{Default_Ignorable_Code_Point}}{spaces}]$")).ok()
});

/// The tags as [`TagReader`] reads them, with and without hyphens.
static TAGS: LazyLock<Vec<Vec<char>>> = LazyLock::new(|| {
    let read = |tag: &str| tag.chars().map(plain_letter).collect();
    HARNESS_TAGS.iter().flat_map(|tag| [read(tag), read(&tag.replace('-', ""))]).collect()
});

/// Escapes the tags of [`HARNESS_TAGS`] in `text`, opening and closing ones. `<` becomes `&lt;`, and a look-alike becomes its
/// code point, such as `&#xFF1C;`.
pub fn escape_tags(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (at, opening) in text.char_indices().filter(|(_, character)| is_opening(*character)) {
        let end = at + opening.len_utf8();
        if opens_harness_tag(&text[end..]) {
            out.push_str(&text[copied..at]);
            match opening {
                '<' => out.push_str("&lt;"),
                // Writing into a string cannot fail.
                other => drop(write!(out, "&#x{:X};", u32::from(other))),
            }
            copied = end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Reverses [`escape_tags`], for readers that give tags no meaning.
pub fn unescape_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, _) in text.match_indices('&') {
        if let Some((opening, length)) = parse_escaped_opening(&text[at..])
            && opens_harness_tag(&text[at + length..])
        {
            out.push_str(&text[copied..at]);
            out.push(opening);
            copied = at + length;
        }
    }
    out.push_str(&text[copied..]);
    out
}

/// Parses the escaped opening at the start of `text`. Returns the character and its length in bytes.
fn parse_escaped_opening(text: &str) -> Option<(char, usize)> {
    if text.starts_with("&lt;") {
        return Some(('<', "&lt;".len()));
    }
    let digits = text.strip_prefix("&#x")?;
    let digits = &digits[..digits.find(';')?];
    let opening = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
    (is_opening(opening) && opening != '<').then_some((opening, "&#x;".len() + digits.len()))
}

fn is_opening(character: char) -> bool {
    if character.is_ascii() {
        return character == '<';
    }
    OPENINGS.contains(character)
        || tag_character_to_ascii(character) == Some('<')
        || forms_of(character).next() == Some('<')
}

/// Returns true if text after a `<` reads as a harness tag. Spaces and slashes at its start are ignored, as models may do.
fn opens_harness_tag(rest: &str) -> bool {
    // Readers differ in two ways, so all four combinations are tried.
    for (escapes_take_next, shows_tag_characters) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut read = TagReader {
            rest: rest.chars(),
            forms: Vec::new(),
            strings_left: CONTROL_STRINGS_MAX,
            escapes_take_next,
            shows_tag_characters,
            is_ambiguous: false,
        };
        if starts_with_tag(read.by_ref().skip_while(|character| matches!(character, ' ' | '/'))) {
            return true;
        }
        if !read.is_ambiguous {
            return false;
        }
    }
    false
}

fn starts_with_tag(letters: impl Iterator<Item = char>) -> bool {
    let mut possible: Vec<&Vec<char>> = TAGS.iter().collect();
    for (index, letter) in letters.enumerate() {
        possible.retain(|tag| tag[index] == letter);
        if possible.is_empty() {
            return false;
        }
        if possible.iter().any(|tag| tag.len() == index + 1) {
            return true;
        }
    }
    false
}

/// Returns the characters of the Unicode compatibility decomposition.
fn forms_of(character: char) -> impl Iterator<Item = char> {
    COMPATIBILITY.normalize_iter(iter::once(character))
}

/// Returns the ASCII character of an invisible tag character (U+E0020 to U+E007E).
fn tag_character_to_ascii(character: char) -> Option<char> {
    let code = u32::from(character).checked_sub(0xE_0000)?;
    char::from_u32(code).filter(|character| matches!(character, ' '..='~'))
}

/// Returns the plain letter that a visible character looks like.
fn plain_letter(character: char) -> char {
    if character.is_whitespace() {
        return ' ';
    }
    let lower = character.to_lowercase().next().unwrap_or(character);
    let has_it = |look_alikes: &str| look_alikes.contains(character) || look_alikes.contains(lower);
    LOOK_ALIKES.iter().find(|(look_alikes, _)| has_it(look_alikes)).map_or(lower, |(_, letter)| *letter)
}

/// Reads a text as letters by their appearance.
struct TagReader<'a> {
    rest: Chars<'a>,
    /// The decomposition of the last character, in reverse order.
    forms: Vec<char>,
    strings_left: usize,
    /// True if an escape includes the next character, as in terminals.
    escapes_take_next: bool,
    /// True if invisible tag characters are read as ASCII.
    shows_tag_characters: bool,
    /// True after a character that readers treat differently.
    is_ambiguous: bool,
}

impl Iterator for TagReader<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        loop {
            if let Some(form) = self.forms.pop() {
                if !is_invisible(form) {
                    return Some(plain_letter(form));
                }
                continue;
            }
            match self.rest.next()? {
                '\u{1b}' => self.skip_escape(),
                '\u{9b}' => self.skip_sequence(),
                '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => self.skip_string(),
                ascii if ascii.is_ascii() => self.forms.push(ascii),
                other => {
                    let hidden = tag_character_to_ascii(other);
                    self.is_ambiguous |= hidden.is_some();
                    if self.shows_tag_characters {
                        self.forms.extend(hidden);
                    }
                    if !is_invisible(other) {
                        self.forms.extend(forms_of(other));
                        self.forms.reverse();
                    }
                }
            }
        }
    }
}

impl TagReader<'_> {
    /// Skips an escape sequence, by ECMA-48.
    fn skip_escape(&mut self) {
        let before = self.rest.clone();
        match self.rest.next() {
            Some('[') => self.skip_sequence(),
            Some(']' | '^' | '_') => self.skip_string(),
            Some('P' | 'X') if self.escapes_take_next => self.skip_string(),
            Some(' '..='/') => {
                self.skip_all(' ', '/');
                self.skip_one('0', '~');
            }
            Some('0'..='~') if self.escapes_take_next => {}
            next => {
                self.is_ambiguous |= next.is_some_and(|next| ('0'..='~').contains(&next));
                self.rest = before;
            }
        }
    }

    /// Skips a control sequence: parameters and final character. Skips nothing if there is no final character.
    fn skip_sequence(&mut self) {
        let before = self.rest.clone();
        self.skip_all('0', '?');
        self.skip_all(' ', '/');
        if !self.skip_one('@', '~') {
            self.rest = before;
        }
    }

    /// Skips a control string and its terminator. Skips nothing if there is no terminator nearby.
    fn skip_string(&mut self) {
        let Some(fewer) = self.strings_left.checked_sub(1) else { return };
        self.strings_left = fewer;
        let mut rest = self.rest.clone();
        for _ in 0..CONTROL_STRING_CHARS_MAX {
            match rest.next() {
                Some('\u{7}' | '\u{9c}') => return self.rest = rest,
                Some('\u{1b}') if rest.clone().next() == Some('\\') => {
                    rest.next();
                    return self.rest = rest;
                }
                Some(_) => {}
                None => return,
            }
        }
    }

    fn skip_all(&mut self, first: char, last: char) {
        while self.skip_one(first, last) {}
    }

    fn skip_one(&mut self, first: char, last: char) -> bool {
        let is_in_range = self.rest.clone().next().is_some_and(|next| (first..=last).contains(&next));
        if is_in_range {
            self.rest.next();
        }
        is_in_range
    }
}

fn is_invisible(character: char) -> bool {
    match character {
        '\n' | '\t' | ' '..='~' => false,
        other => INVISIBLE.as_ref().is_some_and(|invisible| invisible.is_match(other.encode_utf8(&mut [0; 4]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn disguised_harness_tag_is_escaped() {
        for hostile in [
            "<identity>",
            "</ Identity",
            "<\n/inbox>",
            "<\u{1b}[0midentity>",
            "<\u{1b}iidentity>",
            "<\u{1b}identity>",
            "<i\u{1b}]0;title\u{7}nbox>",
            "<i\u{1b}]8;;http://a\u{1b}\\nbox>",
            "<\u{1b}(Bin\u{9b}1mbox>",
            "<in\u{2060}box>",
            "<in\u{200d}\u{feff}\u{180e}\u{3164}box>",
            "\u{ff1c}inbox>",
            "\u{ff1c}ｉｎｂｏｘ＞",
            "<𝐢𝓷𝒃𝕠𝔵>",
            "<ⓘⓝⓑⓞⓧ>",
            "<ínb\u{336}o\u{301}x>",
            "<іnbох>",
            "<lnb0x>",
            "‹identity›",
            "≮identity>",
            "<auto\u{2011}claimed>",
            "<auto\u{ad}claimed>",
            "<auto\u{ad}-claimed>",
            "<／identity>",
            "<in\u{200a}box>",
            "<i\u{0}n\u{8}b\rox>",
            "<\u{e0069}\u{e006e}\u{e0062}\u{e006f}\u{e0078}>",
            "\u{e003c}\u{e0069}nbox",
            "<i\u{e0061}nbox>",
            "<\u{33cc}box>",
        ] {
            let escaped = escape_tags(hostile);
            assert!(escaped.starts_with('&'), "{hostile:?} is {escaped:?}");
            assert_eq!(unescape_tags(&escaped), hostile);
        }
    }

    #[test]
    fn text_without_harness_tag_is_unchanged() {
        for plain in [
            "a < b && b > c",
            "<in box> <inner> <i>dent</i> <id> <input>",
            "v := <-inbox",
            "let x: Vec<Identifier> = 1 << 2;",
            "«identity» (inbox)",
            "<идентичность> <входящие>",
            "\u{1b}[31mred\u{1b}[0m <b>",
            "〈角括弧〉 ＜全角＞",
            "&lt;b> &#xFF1C;b",
            "identity inbox auto-claimed",
        ] {
            assert!(matches!(escape_tags(plain), Cow::Borrowed(_)), "{plain:?} is {:?}", escape_tags(plain));
        }
    }

    #[test]
    fn look_alikes_map_to_tag_letters() {
        let letters: String = HARNESS_TAGS.concat();
        assert!(LOOK_ALIKES.iter().all(|(_, letter)| *letter == '/' || letters.contains(*letter)));
        let tags: Vec<String> = TAGS.iter().map(|tag| tag.iter().collect()).collect();
        assert_eq!(tags, ["identity", "identity", "inbox", "inbox", "auto-ciaimed", "autociaimed"]);
    }

    #[test]
    fn escape_of_hostile_text_takes_linear_time() {
        let texts =
            ["\u{1b}]<\u{7}", "\u{1b}[<m", "<", "<\u{1b}]", "<\u{200b}", "<\u{1b}[", "<\u{1b}i", "\u{ff1c}\u{1b}P"];
        for text in texts {
            // Quadratic time would take minutes.
            let text = text.repeat(30_000);
            assert!(matches!(escape_tags(&text), Cow::Borrowed(_)));
        }
    }

    /// Invisible text between the letters of a tag.
    fn invisible_text() -> impl Strategy<Value = String> {
        let pieces = [
            "",
            "",
            "\u{1b}[0m",
            "\u{1b}[38;5;1m",
            "\u{1b}]0;x\u{7}",
            "\u{1b}(B",
            "\u{9b}0m",
            "\u{2060}",
            "\u{200b}",
            "\u{200d}",
            "\u{ad}",
            "\u{301}",
            "\u{336}",
            "\u{fe0f}",
            "\u{e0100}",
            "\u{202e}",
            "\u{2066}",
            "\u{0}",
            "\u{7f}",
            "\u{e000}",
            "\u{115f}",
            "\u{2009}",
        ];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..4).prop_map(|pieces| pieces.concat())
    }

    /// A variant of an ASCII letter: wide, bold, accented or upper case.
    fn styled(letter: char, how: u8) -> String {
        let offset = u32::from(letter).wrapping_sub(u32::from('a'));
        let of = |base: u32| char::from_u32(base + offset).map(String::from).unwrap_or_default();
        match how {
            _ if !letter.is_ascii_lowercase() => letter.to_string(),
            0 => letter.to_string(),
            1 => letter.to_ascii_uppercase().to_string(),
            2 => of(0xFF41),
            3 => of(0x1_D41A),
            4 => of(0x24D0),
            _ => format!("{letter}\u{308}"),
        }
    }

    proptest! {
        #[test]
        fn harness_tag_with_random_insertions_is_escaped(
            tag in prop::sample::select(HARNESS_TAGS.to_vec()),
            opening in prop::sample::select(vec!["<", "\u{ff1c}", "\u{fe64}", "‹", "⟨"]),
            slash in prop::sample::select(vec!["", "/", " / ", "\u{ff0f}"]),
            parts in prop::collection::vec((invisible_text(), 0_u8..6), 12),
            around in "[a-z <>&;]{0,8}",
        ) {
            let mut hostile = format!("{around}{opening}{slash}");
            for (letter, (junk, how)) in tag.chars().zip(&parts) {
                hostile.push_str(junk);
                hostile.push_str(&styled(letter, *how));
            }
            hostile.push_str(">\n");
            let escaped = escape_tags(&hostile);
            prop_assert!(matches!(escaped, Cow::Owned(_)), "{hostile:?}");
            let left = |text: &str| text.char_indices().any(|(at, c)| is_opening(c) && opens_harness_tag(&text[at + c.len_utf8()..]));
            prop_assert!(!left(&escaped), "{escaped:?}");
            prop_assert_eq!(unescape_tags(&escaped), hostile.clone());
        }

        #[test]
        fn escaped_text_is_restored(text in "[<&lt;/a-d inboxINBOXidentity\u{ff1c}\u{1b}\u{2060}]{0,60}") {
            prop_assume!(!text.contains("&lt;"));
            prop_assert_eq!(unescape_tags(&escape_tags(&text)), text.clone());
            let escaped = escape_tags(&text);
            prop_assert_eq!(&escape_tags(&escaped), &escaped);
        }

        #[test]
        fn escape_never_panics(text in any::<String>()) {
            let escaped = escape_tags(&text);
            prop_assert!(text.chars().any(is_opening) || escaped == text);
        }
    }
}
