//! Text for terminals: escapes control characters, measures, cuts and wraps.

use std::borrow::Cow;
use std::iter::once;
use std::time::Duration;

use textwrap::core::Word;
use textwrap::{Options, WordSeparator, WordSplitter};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::domain::text::is_harmful;
use crate::domain::text::printable;
use crate::domain::text::units::duration;
use crate::domain::time::UnixMs;

/// The width of output that does not go to a terminal: enough for programs, and a bound.
pub const WIDTH_UNBOUNDED: usize = 4096;

/// Escapes the characters of a JSON text that a terminal could execute. The value stays the same: characters outside ASCII occur only in
/// its strings.
pub fn escape_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // A serializer has escaped ASCII control characters already. All other harmful characters are below U+10000.
        if is_harmful(c) && !c.is_ascii_whitespace() {
            out.push_str(&format!("\\u{:04x}", u32::from(c)))
        } else {
            out.push(c)
        }
    }
    out
}

/// Returns the number of terminal columns that the text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The most characters per column. Some characters, such as accents, take no column, and a text of them needs a bound.
const CHARS_PER_COLUMN_MAX: usize = 8;

/// Returns the text in at most `max` columns, with `…` for a cut end.
pub fn cut(text: &str, max: usize) -> String {
    let chars_max = max.saturating_mul(CHARS_PER_COLUMN_MAX);
    if text.len() <= max || (text.chars().nth(chars_max).is_none() && width(text) <= max) {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut taken = 0;
    for (index, c) in text.chars().enumerate() {
        let columns = c.width().unwrap_or(0);
        if taken + columns + 1 > max || index >= chars_max {
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

/// Returns the text in at most `max` columns, with `…` for a cut middle.
pub fn cut_middle(text: &str, max: usize) -> String {
    let head = cut(text, max / 3);
    if cut(text, max) == text || head.is_empty() {
        return cut(text, max);
    }
    let mut columns_left = max - width(&head);
    let tail: Vec<char> = text
        .chars()
        .rev()
        .take(max.saturating_mul(CHARS_PER_COLUMN_MAX))
        .take_while(|c| {
            let left = columns_left.checked_sub(c.width().unwrap_or(0));
            columns_left = left.unwrap_or(0);
            left.is_some()
        })
        .collect();
    format!("{head}{}", tail.iter().rev().collect::<String>().trim_start())
}

/// Adds spaces after the text up to `columns`.
pub fn pad(text: &str, columns: usize) -> String {
    let missing = columns.saturating_sub(width(text));
    format!("{text}{}", " ".repeat(missing))
}

/// Adds spaces before the text up to `columns`.
pub fn pad_left(text: &str, columns: usize) -> String {
    let missing = columns.saturating_sub(width(text));
    format!("{}{text}", " ".repeat(missing))
}

/// Stands for a space that is not a place to break a line.
const NO_BREAK_SPACE: &str = "\u{a0}";

fn wrap_options<'a>(columns: usize) -> Options<'a> {
    Options::new(columns).word_splitter(WordSplitter::NoHyphenation)
}

/// Breaks the text at spaces into lines of at most `columns`, and indents all but the first by `indent` spaces. A code span that fits
/// into a line is not broken, because a person copies it. Words longer than a line are not broken either. No-break spaces become spaces.
pub fn wrap(text: &str, columns: usize, indent: usize) -> String {
    // The odd parts are code spans, if a backtick ends them.
    let mut parts: Vec<Cow<'_, str>> = text.split('`').map(Cow::Borrowed).collect();
    for index in (1..parts.len().saturating_sub(1)).step_by(2) {
        let before = parts[index - 1].rsplit(' ').next().unwrap_or_default();
        let after = parts[index + 1].split(' ').next().unwrap_or_default();
        if indent + width(&format!("{before}`{}`{after}", parts[index])) <= columns {
            parts[index] = parts[index].replace(' ', NO_BREAK_SPACE).into();
        }
    }
    let margin = " ".repeat(indent);
    let options = wrap_options(columns).subsequent_indent(&margin).break_words(false);
    textwrap::fill(&parts.join("`"), options).replace(NO_BREAK_SPACE, " ")
}

/// Indents the lines of a text by `indent` spaces and breaks them at spaces to `columns`. Keeps their own indentation, and
/// escapes characters that a terminal could execute.
pub fn indented(text: &str, columns: usize, indent: usize) -> String {
    let mut out = String::new();
    for line in printable(text).split('\n') {
        let body = line.trim();
        let own_indent =
            line.chars().take_while(|c| c.is_whitespace()).map(|c| if c == '\t' { 4 } else { 1 }).sum::<usize>();
        let margin = " ".repeat(indent + if body.is_empty() { 0 } else { own_indent.min(columns / 3) });
        for part in wrap(body, columns.saturating_sub(margin.len()), 0).split('\n') {
            out.push_str(&margin);
            out.push_str(part);
            out.push('\n');
        }
    }
    out
}

/// Breaks the text into at most `lines_max` lines of at most `columns`, at spaces and within words longer than a line. Cuts the
/// last line if more would follow. `columns` must be at least 2.
pub fn fold(text: &str, columns: usize, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<_> = textwrap::wrap(text, wrap_options(columns)).into_iter().map(Cow::into_owned).collect();
    if lines.len() > lines_max {
        let rest = lines.split_off(lines_max.saturating_sub(1)).join(" ");
        lines.push(cut(&rest, columns));
    }
    lines
}

/// Breaks a line into parts of at most `columns`, anywhere. An empty line has one empty part.
pub fn chunks(line: &str, columns: usize) -> Vec<String> {
    let one_word = WordSeparator::Custom(|line| Box::new(once(Word::from(line))));
    textwrap::wrap(line, wrap_options(columns).word_separator(one_word)).into_iter().map(Cow::into_owned).collect()
}

/// Returns a time relative to `now`: `just now`, `12 s ago`, `in 5 s`. Times in the future are rounded up to seconds: a lease of 2 s that
/// was just taken ends in 2 s.
pub fn ago(time: UnixMs, now: UnixMs) -> String {
    if time <= now {
        let past = now.since(time);
        return if past < Duration::from_secs(1) { "just now".to_owned() } else { format!("{} ago", duration(past)) };
    }
    let seconds = time.since(now).as_millis().div_ceil(1_000);
    format!("in {}", duration(Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))))
}

/// Returns a time since the start of a run: `0:07`, `12:30`, `1:02:03`.
pub fn elapsed(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds / 3600 {
        0 => format!("{:>2}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::text::one_line;
    use crate::domain::text::units::bytes;
    use proptest::prelude::*;

    #[test]
    fn zero_width_text_is_cut() {
        for c in ['\u{200d}', '\u{301}'] {
            let text = "a".to_owned() + &c.to_string().repeat(100_000);
            assert!(cut(&text, 20).chars().count() <= 20 * CHARS_PER_COLUMN_MAX + 1, "{c:?}");
        }
        assert_eq!(cut("e\u{301}te\u{301}", 3), "e\u{301}te\u{301}");
    }

    #[test]
    fn code_span_that_fits_is_not_wrapped() {
        assert_eq!(wrap("2 failed: `brigade why 2`, to see why", 20, 2), "2 failed:\n  `brigade why 2`,\n  to see why");
        assert_eq!(wrap("`a code span that fits nowhere` b", 12, 0), "`a code span\nthat fits\nnowhere` b");
        assert_eq!(wrap("an open `quotation of a model", 12, 0), "an open\n`quotation\nof a model");
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(pad("日本", 6), "日本  ");
        assert_eq!(cut("abc", 0), "");
        assert_eq!(cut_middle("verify `make` failed with red: it is not so", 24), "verify …ed: it is not so");
        assert_eq!(cut_middle("日本語 it is not so", 17), "日本…it is not so");
    }

    #[test]
    fn duration_has_at_most_two_units() {
        let durations = [850, 12_000, 200_000, 7_500_000, 180_000_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(durations, ["850 ms", "12 s", "3 min 20 s", "2 h 5 min", "2 d 2 h"]);
        let rounded = [1_499, 1_500, 59_600, 3_599_900, 7_199_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(rounded, ["1 s", "2 s", "1 min", "1 h", "2 h"]);
        assert_eq!(ago(UnixMs(1_999), UnixMs(1_000)), "in 1 s");
        assert_eq!(ago(UnixMs(2_980), UnixMs(1_000)), "in 2 s");
        assert_eq!(ago(UnixMs(1_000), UnixMs(1_999)), "just now");
        assert_eq!(ago(UnixMs(1_000), UnixMs(2_000)), "1 s ago");
        assert_eq!(bytes(5 * 1024 * 1024 / 2), "2.5 MiB");
    }

    #[test]
    fn elapsed_time_of_long_run_shows_hours() {
        assert_eq!(elapsed(Duration::from_secs(3723)), "1:02:03");
        assert_eq!(elapsed(Duration::from_secs(59)), " 0:59");
    }

    #[test]
    fn long_text_breaks_at_spaces() {
        assert_eq!(wrap("one two three four", 9, 2), "one two\n  three\n  four");
    }

    #[test]
    fn folded_text_keeps_all_text_up_to_line_limit() {
        assert_eq!(fold("one two threefour five", 8, 9), ["one two", "threefou", "r five"]);
        assert_eq!(fold("one two three four", 7, 2), ["one two", "three …"]);
        assert_eq!(fold("", 7, 2), [""]);
    }

    proptest! {
        #[test]
        fn folded_lines_fit_width(text in ".*", columns in 2_usize..40) {
            for line in fold(&one_line(&text), columns, 5) {
                prop_assert!(width(&line) <= columns, "{line:?}");
            }
        }

        #[test]
        fn cut_text_fits_width_without_control_codes(text in ".*", max in 0_usize..40) {
            let line = cut(&one_line(&text), max);
            prop_assert!(width(&line) <= max, "{line:?}");
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert!(width(&cut_middle(&one_line(&text), max)) <= max);
        }
    }
}
