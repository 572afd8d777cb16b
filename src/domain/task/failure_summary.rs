//! Failure reasons: the stored text, and its summary in one line.
//!
//! The first line of a reason says what failed; the evidence follows. A reason about a command has the command's ending in its
//! first line. Its evidence is the command's output. The last output lines explain the failure, so the summary includes them.

use crate::domain::text::{OMISSION_START, bound, one_line, shorten_middle, tail};

/// The start of the text about a command's ending.
const ENDINGS: [&str; 3] = ["exit status ", "ended by signal ", "timed out"];
/// Maximum size of the output stored with a reason, in bytes.
const OUTPUT_BYTES_MAX: usize = 4000;
/// Maximum length of a summary, in characters.
const SUMMARY_CHARS_MAX: usize = 640;
/// Maximum length of each part of a summary, in characters.
const PART_CHARS_MAX: usize = 200;
/// A last line with fewer words is not enough alone, such as `AssertionError`.
const LAST_LINE_WORDS_MIN: usize = 3;
/// Number of lines before the last one that are searched for the cause. A last line such as `make: *** [all] Error 1` does not
/// name it.
const CAUSE_SEARCH_LINES_MAX: usize = 8;
/// Words that mark a line as the cause.
#[rustfmt::skip]
const CAUSE_WORDS: [&str; 12] = [
    "error", "fail", "fatal", "panic", "exception", "assert", "cannot", "denied", "not found", "no such",
    "undefined", "expected",
];

/// Returns the summary: what failed, how it ended, and the last lines that explain it. A text of one line does not change.
pub fn summary_of(text: &str) -> String {
    let lines = filled_lines(text);
    let Some((first, rest)) = lines.split_first() else { return String::new() };
    if names_ending(first) {
        return with_explanation(first, rest);
    }
    if rest.is_empty() {
        return shorten_middle(first, SUMMARY_CHARS_MAX);
    }
    format!("{} …", shorten_middle(first.trim_end_matches([':', ' ']), SUMMARY_CHARS_MAX - 2)).trim_start().to_owned()
}

/// Returns the summary of a command: its ending, and the last lines of its output that explain it.
pub fn summary_of_command(ending: &str, output: &str) -> String {
    with_explanation(ending, &filled_lines(output))
}

/// The lines, escaped and without needless spaces. Empty lines are left out.
fn filled_lines(text: &str) -> Vec<String> {
    text.lines().map(one_line).filter(|line| !line.is_empty()).collect()
}

/// Returns true if `line` names a command's ending.
fn names_ending(line: &str) -> bool {
    ENDINGS.iter().any(|ending| line.starts_with(ending) || line.contains(&format!(": {ending}")))
}

fn with_explanation(ending: &str, output: &[String]) -> String {
    let explanation = explaining_lines(output);
    if explanation.is_empty() {
        return shorten_middle(ending, SUMMARY_CHARS_MAX);
    }
    let explanation: Vec<String> = explanation.into_iter().map(|line| shorten_middle(line, PART_CHARS_MAX)).collect();
    format!("{}: {}", shorten_middle(ending.trim_end_matches([':', '.']), PART_CHARS_MAX), explanation.join(" / "))
}

/// Returns the last line with text, after the nearest earlier line that names the cause.
fn explaining_lines(output: &[String]) -> Vec<&str> {
    let mut lines = output.iter().map(String::as_str).rev().filter(|line| has_text(line));
    let Some(last) = lines.next() else { return Vec::new() };
    // A repeated line adds nothing.
    let before: Vec<&str> = lines.filter(|line| *line != last).take(CAUSE_SEARCH_LINES_MAX).collect();
    let is_too_short = last.split_whitespace().count() < LAST_LINE_WORDS_MIN;
    let mut cause = before.iter().copied().find(|line| names_cause(line));
    if cause.is_none() && is_too_short {
        cause = before.first().copied();
    }
    cause.into_iter().chain([last]).collect()
}

/// Returns false for a line of signs, and for the line that counts omitted bytes.
fn has_text(line: &str) -> bool {
    line.contains(char::is_alphanumeric) && !line.starts_with(OMISSION_START)
}

fn names_cause(line: &str) -> bool {
    let line = line.to_lowercase();
    CAUSE_WORDS.iter().any(|word| line.contains(word))
}

/// Returns a reason or its evidence as it is stored: all of it, or its start and its end.
pub fn stored_text(text: &str) -> String {
    bound(text.trim_end(), OUTPUT_BYTES_MAX)
}

/// Returns the last whole lines of an output that fit into `bytes_max`. A last line that does not fit is shortened.
pub fn last_lines(output: &str, bytes_max: usize) -> String {
    let output = output.trim();
    if output.len() <= bytes_max {
        return output.to_owned();
    }
    match tail(output, bytes_max).split_once('\n') {
        Some((_, lines)) => lines.to_owned(),
        None => shorten_middle(output.lines().next_back().unwrap_or(""), bytes_max / 4),
    }
}

/// Returns the first sentence of a refusal, without advice.
pub fn first_sentence(refusal: &str) -> String {
    let line = refusal.trim().lines().next().unwrap_or_default();
    let is_end =
        |(at, _): &(usize, &str)| line[at + ". ".len()..].starts_with(char::is_uppercase) && !is_quoted(line, *at);
    let sentence = line.match_indices(". ").find(is_end).map_or(line, |(at, _)| &line[..at]);
    sentence.trim_end_matches(['.', ':']).to_owned()
}

/// Returns true if the position is inside backquotes.
fn is_quoted(line: &str, at: usize) -> bool {
    line[..at].matches('`').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn failed_command_summary_has_exit_and_last_lines() {
        let compiling: String = (1..30).map(|file| format!("compiling file {file}\n")).collect();
        let traceback = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    f()\n  File \"t.py\", line 2, in f\n    \
            assert 1+1==3\n           ^^^^^^\nAssertionError\n";
        for (text, expected) in [
            (
                format!("block 1 of 1: exit status 3\n{compiling}error: boom at line 7\n"),
                "block 1 of 1: exit status 3: error: boom at line 7",
            ),
            (format!("exit status 1\n{traceback}"), "exit status 1: assert 1+1==3 / AssertionError"),
            (
                "exit status 2\na.c:3: error: expected ';'\nmake: *** [Makefile:2: all] Error 1\n\n".to_owned(),
                "exit status 2: a.c:3: error: expected ';' / make: *** [Makefile:2: all] Error 1",
            ),
            ("verify `x` failed: timed out\n".to_owned(), "verify `x` failed: timed out"),
            ("ended by signal 9 (SIGKILL)".to_owned(), "ended by signal 9 (SIGKILL)"),
            ("exit status 1\nerror: no room\nerror: no room".to_owned(), "exit status 1: error: no room"),
            ("exit status 1\none\ntwo".to_owned(), "exit status 1: one / two"),
        ] {
            assert_eq!(summary_of(&text), expected);
        }
    }

    #[test]
    fn summary_of_other_failure_is_first_line() {
        let conflict = "its branch and main conflict in a.py, b.py\ndiff --git a/a.py b/a.py\n+exit status\n";
        assert_eq!(summary_of(conflict), "its branch and main conflict in a.py, b.py …");
        assert_eq!(summary_of("it takes out lines:\n  one"), "it takes out lines …");
        assert_eq!(summary_of("\n the compiler said no\n"), "the compiler said no");
        assert_eq!(summary_of(" \n"), "");
        assert_eq!(summary_of("done\n[1 of 2]"), "done …");
    }

    #[test]
    fn long_output_keeps_both_ends() {
        let output: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
        let text = stored_text(&output);
        assert!(text.starts_with("line 0\nline 1\n") && text.ends_with("\nline 1998\nline 1999"), "{text}");
        assert_eq!(last_lines(&output, 20), "line 1998\nline 1999");
        assert_eq!(last_lines(&format!("a\n{}", "b".repeat(90)), 40), "bbbb … bbb");
        assert_eq!(stored_text("short\n"), "short");
    }

    #[test]
    fn refusal_summary_drops_advice() {
        for (text, expected) in [
            (
                "the branch and main conflict in a.py. Merge main (git merge main).\ndiff",
                "the branch and main conflict in a.py",
            ),
            ("the branch removes lines since it was created:\n  x", "the branch removes lines since it was created"),
            ("verify `. Its tool` is red. Fix it.", "verify `. Its tool` is red"),
            ("no such file\nlook again", "no such file"),
        ] {
            assert_eq!(first_sentence(text), expected);
        }
    }

    proptest! {
        #[test]
        fn failure_summary_is_one_bounded_line(text in "(exit status 1|: |\\[|\\]|\n|[a-zé ]{0,90}|b{800}){0,30}") {
            let line = summary_of(&text);
            prop_assert!(!line.contains('\n') && line.chars().count() <= SUMMARY_CHARS_MAX, "{line:?}");
            prop_assert!(stored_text(&text).len() <= OUTPUT_BYTES_MAX + 64);
            prop_assert!(!first_sentence(&text).contains('\n'));
        }
    }
}
