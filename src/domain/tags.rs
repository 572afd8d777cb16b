//! The harness's own tags in texts of others: made harmless, however they are disguised.
//!
//! A text is compared as a reader sees it: without escapes of terminals, invisible characters and marks on letters, wide and ornamental forms
//! as plain ones, look-alikes of other scripts as the letters they look like. Only the `<` of what reads as a tag is changed.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::iter;
use std::str::Chars;
use std::sync::LazyLock;

use icu_normalizer::{DecomposingNormalizer, DecomposingNormalizerBorrowed};
use regex::Regex;

/// The tags only the harness may write.
pub const HARNESS_TAGS: [&str; 3] = ["identity", "inbox", "auto-claimed"];

/// Characters that look like `<`, besides those that Unicode has as forms of it.
const OPENINGS: &str = "‹〈⟨〈❬❮❰˂ᐸᚲ⧼𝈶";
/// Characters that look like a letter of the tags, besides those that Unicode has as forms of it; the letter stands for those before it. What cannot be told
/// from `i` in some typefaces is one letter with it. From Unicode's confusables.txt.
#[rustfmt::skip]
const LOOK_ALIKES: [(&str, char); 15] = [
    ("аɑα⍺ᴀꭺꓮ∀ᗅ", 'a'), ("ьƅвβʙᏼᖯᑲꓐƀЪъ", 'b'), ("сϲᴄⲥꮯꓚ¢ↄ", 'c'), ("ԁᑯꓒꓓᴅđᗞᗪꭰꮷ", 'd'), ("еҽ℮εеꬲⴹᴇꭼꓰ⋿є", 'e'),
    ("l1|ıіιɩɪӏꙇꭵ⍳ǀⵏꓲᛁłʟꮮꓡ∣│Ɩ", 'i'), ("мμᴍꓟꮇᛖ", 'm'), ("ոռηνɴꓠпийᴨ", 'n'), ("0оοօσᴏⲟꓳѳøⵔჿဝ〇", 'o'),
    ("тτᴛꭲꓔⲧ⊤ŧ", 't'), ("υʋսᴜꞟꭎᑌꓴ∪", 'u'), ("хχᕁᕽ⤫×ꓫⲭⵝ╳ᚷ", 'x'), ("уүγʏყɣꓬΥꭹꮍⲩ", 'y'),
    ("‐‑‒–—―−⁃➖", '-'), ("⁄∕⧸╱", '/'),
];
/// How far the end of a string for a terminal is looked for, in characters.
const STRING_CHARS_MAX: usize = 256;
/// How many strings for a terminal are skipped in one tag: with each, text that begins a tag itself could be read once more.
const STRINGS_MAX: usize = 64;

const COMPATIBILITY: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizer::new_nfkd();

/// What no reader sees: controls, format characters, marks on letters, what is assigned nothing, and spaces that are next to none.
static INVISIBLE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let spaces = r"\u{2000}-\u{200A}\u{202F}\u{205F}\u{2800}\u{FFFC}\u{FFFD}";
    // The expression is constant, and the tests below use it.
    Regex::new(&format!(r"^[\p{{C}}\p{{M}}\p{{Default_Ignorable_Code_Point}}{spaces}]$")).ok()
});

/// The tags as [`Reader`] reads them.
static TAGS: LazyLock<Vec<Vec<char>>> = LazyLock::new(|| {
    let read = |tag: &str| tag.chars().map(letter).collect();
    HARNESS_TAGS.iter().flat_map(|tag| [read(tag), read(&tag.replace('-', ""))]).collect()
});

/// Makes `text` of others harmless: a `<` that opens or closes one of [`HARNESS_TAGS`] becomes `&lt;`, another character that looks
/// like it its number, as `&#xFF1C;`.
#[must_use]
pub fn defuse(text: &str) -> Cow<'_, str> {
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

/// Takes [`defuse`] back, for a reader to whom tags mean nothing.
#[must_use]
pub fn restore(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, _) in text.match_indices('&') {
        if let Some((opening, length)) = defused_opening(&text[at..])
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

/// The opening that a text begins with as [`defuse`] writes it, and how many bytes that takes.
fn defused_opening(text: &str) -> Option<(char, usize)> {
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
    OPENINGS.contains(character) || smuggled(character) == Some('<') || forms_of(character).next() == Some('<')
}

/// Whether text that follows a `<` reads as one of the harness's tags; spaces and slashes in front are what a model overlooks.
fn opens_harness_tag(rest: &str) -> bool {
    // Readers differ in two ways, and any of them may be the one.
    for (ends_escapes, shows_smuggled) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut read = Reader {
            rest: rest.chars(),
            forms: Vec::new(),
            strings_left: STRINGS_MAX,
            ends_escapes,
            shows_smuggled,
            is_ambiguous: false,
        };
        if begins_as_tag(read.by_ref().skip_while(|character| matches!(character, ' ' | '/'))) {
            return true;
        }
        if !read.is_ambiguous {
            return false;
        }
    }
    false
}

fn begins_as_tag(letters: impl Iterator<Item = char>) -> bool {
    let mut possible: Vec<&Vec<char>> = TAGS.iter().collect();
    for (place, letter) in letters.enumerate() {
        possible.retain(|tag| tag[place] == letter);
        if possible.is_empty() {
            return false;
        }
        if possible.iter().any(|tag| tag.len() == place + 1) {
            return true;
        }
    }
    false
}

/// The characters that this one is a form of, by Unicode's compatibility decomposition.
fn forms_of(character: char) -> impl Iterator<Item = char> {
    COMPATIBILITY.normalize_iter(iter::once(character))
}

/// The ASCII character that an invisible tag character (U+E0020 to U+E007E) stands for.
fn smuggled(character: char) -> Option<char> {
    let code = u32::from(character).checked_sub(0xE_0000)?;
    char::from_u32(code).filter(|character| matches!(character, ' '..='~'))
}

/// The plain letter that a visible character looks like.
fn letter(character: char) -> char {
    if character.is_whitespace() {
        return ' ';
    }
    let lower = character.to_lowercase().next().unwrap_or(character);
    let known = |looks: &str| looks.contains(character) || looks.contains(lower);
    LOOK_ALIKES.iter().find(|(looks, _)| known(looks)).map_or(lower, |(_, letter)| *letter)
}

/// Reads a text letter by letter, as it looks.
struct Reader<'a> {
    rest: Chars<'a>,
    /// What the last character is a form of, the last first.
    forms: Vec<char>,
    strings_left: usize,
    /// Whether an escape takes the character after it along, as terminals have it.
    ends_escapes: bool,
    /// Whether invisible tag characters are read as what they stand for.
    shows_smuggled: bool,
    /// Whether it came by something that another reader reads otherwise.
    is_ambiguous: bool,
}

impl Iterator for Reader<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        loop {
            if let Some(form) = self.forms.pop() {
                if !is_invisible(form) {
                    return Some(letter(form));
                }
                continue;
            }
            match self.rest.next()? {
                '\u{1b}' => self.skip_escape(),
                '\u{9b}' => self.skip_sequence(),
                '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => self.skip_string(),
                ascii if ascii.is_ascii() => self.forms.push(ascii),
                other => {
                    let smuggled = smuggled(other);
                    self.is_ambiguous |= smuggled.is_some();
                    if self.shows_smuggled {
                        self.forms.extend(smuggled);
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

impl Reader<'_> {
    /// Skips what belongs to an escape, by ECMA-48.
    fn skip_escape(&mut self) {
        let before = self.rest.clone();
        match self.rest.next() {
            Some('[') => self.skip_sequence(),
            Some(']' | '^' | '_') => self.skip_string(),
            Some('P' | 'X') if self.ends_escapes => self.skip_string(),
            Some(' '..='/') => {
                self.skip_all(' ', '/');
                self.skip_one('0', '~');
            }
            Some('0'..='~') if self.ends_escapes => {}
            next => {
                self.is_ambiguous |= next.is_some_and(|next| ('0'..='~').contains(&next));
                self.rest = before;
            }
        }
    }

    /// Skips parameters and the final character of a control sequence; where it has none, nothing.
    fn skip_sequence(&mut self) {
        let before = self.rest.clone();
        self.skip_all('0', '?');
        self.skip_all(' ', '/');
        if !self.skip_one('@', '~') {
            self.rest = before;
        }
    }

    /// Skips a string for the terminal with its end; where it has none nearby, nothing.
    fn skip_string(&mut self) {
        let Some(fewer) = self.strings_left.checked_sub(1) else { return };
        self.strings_left = fewer;
        let mut rest = self.rest.clone();
        for _ in 0..STRING_CHARS_MAX {
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
        let is_one = self.rest.clone().next().is_some_and(|next| (first..=last).contains(&next));
        if is_one {
            self.rest.next();
        }
        is_one
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
    fn tags_are_defused_in_any_disguise() {
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
            let defused = defuse(hostile);
            assert!(defused.starts_with('&'), "{hostile:?} is {defused:?}");
            assert_eq!(restore(&defused), hostile);
        }
    }

    #[test]
    fn text_that_is_no_tag_is_left_as_it_is() {
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
            assert!(matches!(defuse(plain), Cow::Borrowed(_)), "{plain:?} is {:?}", defuse(plain));
        }
    }

    #[test]
    fn look_alikes_stand_for_letters_of_the_tags() {
        let letters: String = HARNESS_TAGS.concat();
        assert!(LOOK_ALIKES.iter().all(|(_, letter)| *letter == '/' || letters.contains(*letter)));
        let tags: Vec<String> = TAGS.iter().map(|tag| tag.iter().collect()).collect();
        assert_eq!(tags, ["identity", "identity", "inbox", "inbox", "auto-ciaimed", "autociaimed"]);
    }

    #[test]
    fn long_hostile_text_is_read_in_linear_time() {
        let texts =
            ["\u{1b}]<\u{7}", "\u{1b}[<m", "<", "<\u{1b}]", "<\u{200b}", "<\u{1b}[", "<\u{1b}i", "\u{ff1c}\u{1b}P"];
        for text in texts {
            // Quadratic time would take minutes.
            let text = text.repeat(30_000);
            assert!(matches!(defuse(&text), Cow::Borrowed(_)));
        }
    }

    /// What may stand between the letters of a tag unseen.
    fn junk() -> impl Strategy<Value = String> {
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

    /// A form of an ASCII letter: wide, bold, with an accent, capital.
    fn dressed(letter: char, how: u8) -> String {
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
        fn tags_are_defused_with_random_insertions(
            tag in prop::sample::select(HARNESS_TAGS.to_vec()),
            opening in prop::sample::select(vec!["<", "\u{ff1c}", "\u{fe64}", "‹", "⟨"]),
            slash in prop::sample::select(vec!["", "/", " / ", "\u{ff0f}"]),
            parts in prop::collection::vec((junk(), 0_u8..6), 12),
            around in "[a-z <>&;]{0,8}",
        ) {
            let mut hostile = format!("{around}{opening}{slash}");
            for (letter, (junk, how)) in tag.chars().zip(&parts) {
                hostile.push_str(junk);
                hostile.push_str(&dressed(letter, *how));
            }
            hostile.push_str(">\n");
            let defused = defuse(&hostile);
            prop_assert!(matches!(defused, Cow::Owned(_)), "{hostile:?}");
            let left = |text: &str| text.char_indices().any(|(at, c)| is_opening(c) && opens_harness_tag(&text[at + c.len_utf8()..]));
            prop_assert!(!left(&defused), "{defused:?}");
            prop_assert_eq!(restore(&defused), hostile.clone());
        }

        #[test]
        fn defused_text_is_restored(text in "[<&lt;/a-d inboxINBOXidentity\u{ff1c}\u{1b}\u{2060}]{0,60}") {
            prop_assume!(!text.contains("&lt;"));
            prop_assert_eq!(restore(&defuse(&text)), text.clone());
            let defused = defuse(&text);
            prop_assert_eq!(&defuse(&defused), &defused);
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let defused = defuse(&text);
            prop_assert!(text.chars().any(is_opening) || defused == text);
        }
    }
}
