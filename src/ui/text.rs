//! Text for terminals: harmless, measured, cut and wrapped. It knows nothing of what the text says.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::domain::time::UnixMs;

/// The width of output that goes to no terminal: lines there are for programs, and only kept from having no end.
pub const WIDTH_UNBOUNDED: usize = 4096;

/// Whether a terminal could take this character for an order, or show text in another order than it stands.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// The text with everything a terminal might obey made visible. Newlines and tabs stay.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if is_harmful(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// The text on one line, harmless; runs of spaces and line breaks become one space.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        for c in word.chars() {
            if is_harmful(c) { out.extend(c.escape_default()) } else { out.push(c) }
        }
    }
    out
}

/// How many columns the text takes.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// Characters that a column may have: some take none, such as accents, and a text of nothing else would have no end.
const CHARS_PER_COLUMN_MAX: usize = 8;

/// The text in at most `max` columns; what is left out is marked by `…`.
#[must_use]
pub fn cut(text: &str, max: usize) -> String {
    let chars_max = max.saturating_mul(CHARS_PER_COLUMN_MAX);
    if text.len() <= max || (text.chars().nth(chars_max).is_none() && width(text) <= max) {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut taken = 0;
    for (place, c) in text.chars().enumerate() {
        let columns = c.width().unwrap_or(0);
        if taken + columns + 1 > max || place >= chars_max {
            break;
        }
        taken += columns;
        out.push(c);
    }
    if max > 0 {
        out.push('…');
    }
    out
}

/// The text with spaces behind it up to `columns`.
#[must_use]
pub fn pad(text: &str, columns: usize) -> String {
    let missing = columns.saturating_sub(width(text));
    format!("{text}{}", " ".repeat(missing))
}

/// The text with spaces before it up to `columns`.
#[must_use]
pub fn pad_left(text: &str, columns: usize) -> String {
    let missing = columns.saturating_sub(width(text));
    format!("{}{text}", " ".repeat(missing))
}

/// The text broken at spaces into lines of at most `columns`, all but the first behind `indent` spaces.
#[must_use]
pub fn wrap(text: &str, columns: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = width(word);
        if used > 0 && used + 1 + length > columns {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
}

/// A duration as people say it: `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {small_unit}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// A time as people say it, seen from `now`: `12 s ago`, `in 5 s`.
#[must_use]
pub fn ago(time: UnixMs, now: UnixMs) -> String {
    if time > now { format!("in {}", duration(time.since(now))) } else { format!("{} ago", duration(now.since(time))) }
}

/// `1 task`, `2 tasks`.
#[must_use]
pub fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// Bytes as people say them.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        // Tenths are enough, and the sizes of disks are far below what a float holds.
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_that_take_no_columns_are_cut_too() {
        for c in ['\u{200d}', '\u{301}'] {
            let text = "a".to_owned() + &c.to_string().repeat(100_000);
            assert!(cut(&text, 20).chars().count() <= 20 * CHARS_PER_COLUMN_MAX + 1, "{c:?}");
        }
        assert_eq!(cut("e\u{301}te\u{301}", 3), "e\u{301}te\u{301}");
    }

    #[test]
    fn marks_that_turn_text_around_or_break_lines_are_made_visible() {
        assert_eq!(harmless("\u{61c}\u{202e}\u{2028}\u{2029}\r"), "\\u{61c}\\u{202e}\\u{2028}\\u{2029}\\r");
    }

    #[test]
    fn orders_to_the_terminal_become_visible() {
        assert_eq!(one_line("a\x1b[2J\nb\u{9b}31m\r\n c\x07"), "a\\u{1b}[2J b\\u{9b}31m c\\u{7}");
        assert_eq!(harmless("a\u{202e}b\n\tc\r"), "a\\u{202e}b\n\tc\\r");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(pad("日本", 6), "日本  ");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let said = [850, 12_000, 200_000, 7_500_000, 180_000_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(said, ["850 ms", "12 s", "3 min 20 s", "2 h 5 min", "2 d 2 h"]);
        assert_eq!(bytes(5 * 1024 * 1024 / 2), "2.5 MiB");
    }

    #[test]
    fn long_text_breaks_at_spaces() {
        assert_eq!(wrap("one two three four", 9, 2), "one two\n  three\n  four");
    }

    proptest! {
        #[test]
        fn what_is_cut_fits_and_has_no_orders(text in ".*", max in 0_usize..40) {
            let line = cut(&one_line(&text), max);
            prop_assert!(width(&line) <= max, "{line:?}");
            prop_assert!(!line.chars().any(char::is_control));
        }
    }
}
