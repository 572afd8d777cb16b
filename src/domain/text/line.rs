//! Texts on one line. Characters that a terminal could execute are escaped.

use super::length::shorten;

/// Returns true if a terminal could execute this character, or show text in another order because of it.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// Escapes the characters that a terminal could execute. Newlines and tabs stay.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) && !matches!(c, '\n' | '\t') { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Returns the text on one line, escaped; runs of spaces and line breaks become one space.
pub fn one_line(text: &str) -> String {
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the first line of a text, with ` …` if it has more.
pub fn first_line(text: &str) -> String {
    let mut lines = text.trim().lines();
    let first = one_line(lines.next().unwrap_or_default());
    if lines.next().is_some() { format!("{first} …") } else { first }
}

/// Returns the first line of a text in at most `chars_max` characters. It ends with `…` if it is cut or more lines follow.
pub fn headline(text: &str, chars_max: usize) -> String {
    shorten(&first_line(text), chars_max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn harmful_characters_are_escaped() {
        assert_eq!(one_line("a\x1b[2J\nb\u{9b}31m\r\n c\x07"), "a\\u{1b}[2J b\\u{9b}31m c\\u{7}");
        assert_eq!(one_line("a\u{202e}b\u{2028}c\u{200b}"), "a\\u{202e}b c\u{200b}");
        assert_eq!(printable("a\u{202e}b\n\tc\r"), "a\\u{202e}b\n\tc\\r");
        assert_eq!(printable("\u{61c}\u{202e}\u{2028}\u{2029}\r"), "\\u{61c}\\u{202e}\\u{2028}\\u{2029}\\r");
    }

    #[test]
    fn first_line_marks_what_follows() {
        assert_eq!(first_line("\n one\x1b  line \n"), "one\\u{1b} line");
        assert_eq!(first_line("one\n\ntwo"), "one …");
        assert_eq!(headline("one two", 7), "one two");
        assert_eq!(headline("one two\nthree", 7), "one tw…");
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_harmless_line(text in any::<String>(), chars_max in 1_usize..40) {
            let line = one_line(&text);
            prop_assert!(!line.contains(is_harmful), "{line:?}");
            prop_assert_eq!(&one_line(&line), &line);
            prop_assert!(headline(&text, chars_max).chars().count() <= chars_max);
        }
    }
}
