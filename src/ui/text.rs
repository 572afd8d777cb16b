//! Text for terminals: harmless, measured, cut and wrapped. It knows nothing of what the text says.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub use crate::domain::measure::{bytes, duration};
use crate::domain::reason::short;
use crate::domain::time::UnixMs;

/// The width of output that goes to no terminal: lines there are for programs, and only kept from having no end.
pub const WIDTH_UNBOUNDED: usize = 4096;

/// Commands that work on a workspace, and so take the flags that name it.
const COMMANDS: [&str; 14] =
    ["tasks", "why", "up", "run", "stop", "team", "state", "inbox", "send", "plan", "log", "doctor", "config", "clean"];

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

/// A JSON text that says the same, harmless: what is not ASCII is in its strings, where it may be escaped.
#[must_use]
pub fn harmless_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Those that are ASCII are escaped, or stand between what is said. All are below U+10000.
        if is_harmful(c) && !c.is_ascii_whitespace() {
            out.push_str(&format!("\\u{:04x}", u32::from(c)))
        } else {
            out.push(c)
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

/// The text in at most `max` columns; what is left out is in its middle, and marked by `…`.
#[must_use]
pub fn cut_within(text: &str, max: usize) -> String {
    let head = cut(text, max / 3);
    if cut(text, max) == text || head.is_empty() {
        return cut(text, max);
    }
    let mut room = max - width(&head);
    let tail: Vec<char> = text
        .chars()
        .rev()
        .take(max.saturating_mul(CHARS_PER_COLUMN_MAX))
        .take_while(|c| {
            let left = room.checked_sub(c.width().unwrap_or(0));
            room = left.unwrap_or(0);
            left.is_some()
        })
        .collect();
    format!("{head}{}", tail.iter().rev().collect::<String>().trim_start())
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

/// The lines of a text behind `indent` spaces, broken at spaces to `columns`. Further indentation of theirs stays, what would steer a
/// terminal does not.
#[must_use]
pub fn indented(text: &str, columns: usize, indent: usize) -> String {
    let mut out = String::new();
    for line in harmless(text).split('\n') {
        let body = line.trim();
        let further =
            line.chars().take_while(|c| c.is_whitespace()).map(|c| if c == '\t' { 4 } else { 1 }).sum::<usize>();
        let margin = " ".repeat(indent + if body.is_empty() { 0 } else { further.min(columns / 3) });
        for part in wrap(body, columns.saturating_sub(margin.len()), 0).split('\n') {
            out.push_str(&margin);
            out.push_str(part);
            out.push('\n');
        }
    }
    out
}

/// The text in lines of at most `columns`, broken at spaces and, where a word is longer than a line, within it. At most
/// `lines_max`: the last one is cut where more would follow. It wants room for a few characters.
#[must_use]
pub fn fold(text: &str, columns: usize, lines_max: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = width(word);
        if used > 0 && used + 1 + length <= columns {
            lines.last_mut().into_iter().for_each(|line| *line += &format!(" {word}"));
            used += 1 + length;
            continue;
        }
        if used > 0 {
            lines.push(String::new());
            used = 0;
        }
        for c in word.chars() {
            let taken = c.width().unwrap_or(0);
            if used + taken > columns && used > 0 {
                lines.push(String::new());
                used = 0;
            }
            lines.last_mut().into_iter().for_each(|line| line.push(c));
            used += taken;
        }
    }
    if lines.len() > lines_max {
        let rest = lines.split_off(lines_max.saturating_sub(1)).join(" ");
        lines.push(cut(&rest, columns));
    }
    lines
}

/// The text with these flags in every command of ours it names: what is hinted at must work where it is read.
#[must_use]
pub fn with_flags(text: &str, flags: &str) -> String {
    let mut parts = text.split("brigade ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let word = part.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        out.push_str("brigade ");
        if !flags.is_empty() && COMMANDS.contains(&word) {
            out.push_str(flags);
            out.push(' ');
        }
        out.push_str(part);
    }
    out
}

/// The first line of a text that may have many, for where there is room for one.
#[must_use]
pub fn first_line(text: &str) -> String {
    let mut lines = text.trim().lines();
    let first = one_line(lines.next().unwrap_or_default().trim_end());
    if lines.next().is_some() { format!("{first} …") } else { first }
}

/// Why something failed, in one line.
#[must_use]
pub fn reason(text: &str) -> String {
    one_line(&short(text))
}

/// A time as people say it, seen from `now`: `12 s ago`, `in 5 s`. What is to come is said in whole seconds, begun ones
/// counting: a lease of 2 s that was just taken ends in 2 s.
#[must_use]
pub fn ago(time: UnixMs, now: UnixMs) -> String {
    if time <= now {
        return format!("{} ago", duration(now.since(time)));
    }
    let seconds = time.since(now).as_millis().div_ceil(1_000);
    format!("in {}", duration(Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))))
}

/// `1 task`, `2 tasks`.
#[must_use]
pub fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
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
        assert_eq!(cut_within("verify `make` came out red: it is not so", 24), "verify …ed: it is not so");
        assert_eq!(cut_within("日本語 it is not so", 17), "日本…it is not so");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let said = [850, 12_000, 200_000, 7_500_000, 180_000_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(said, ["850 ms", "12 s", "3 min 20 s", "2 h 5 min", "2 d 2 h"]);
        let rounded = [1_499, 1_500, 59_600, 3_599_900, 7_199_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(rounded, ["1 s", "2 s", "1 min", "1 h", "2 h"]);
        assert_eq!(ago(UnixMs(1_999), UnixMs(1_000)), "in 1 s");
        assert_eq!(ago(UnixMs(2_980), UnixMs(1_000)), "in 2 s");
        assert_eq!(ago(UnixMs(1_000), UnixMs(1_999)), "999 ms ago");
        assert_eq!(bytes(5 * 1024 * 1024 / 2), "2.5 MiB");
    }

    #[test]
    fn long_text_breaks_at_spaces() {
        assert_eq!(wrap("one two three four", 9, 2), "one two\n  three\n  four");
    }

    #[test]
    fn hints_name_the_workspace_they_are_for() {
        let text = "`brigade tasks retry ID`, or brigade up; a brigade of tasks; brigade init";
        let with =
            "`brigade --workspace w tasks retry ID`, or brigade --workspace w up; a brigade of tasks; brigade init";
        assert_eq!(with_flags(text, "--workspace w"), with);
        assert_eq!(with_flags(text, ""), text);
    }

    #[test]
    fn folded_text_keeps_everything_within_its_lines() {
        assert_eq!(fold("one two threefour five", 8, 9), ["one two", "threefou", "r five"]);
        assert_eq!(fold("one two three four", 7, 2), ["one two", "three …"]);
        assert_eq!(fold("", 7, 2), [""]);
    }

    proptest! {
        #[test]
        fn folded_lines_fit(text in ".*", columns in 2_usize..40) {
            for line in fold(&one_line(&text), columns, 5) {
                prop_assert!(width(&line) <= columns, "{line:?}");
            }
        }

        #[test]
        fn what_is_cut_fits_and_has_no_orders(text in ".*", max in 0_usize..40) {
            let line = cut(&one_line(&text), max);
            prop_assert!(width(&line) <= max, "{line:?}");
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert!(width(&cut_within(&one_line(&text), max)) <= max);
        }
    }
}
