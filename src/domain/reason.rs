//! Why something failed: the text that is kept of it, and the one line that is told of it everywhere.
//!
//! A reason is a line that says what failed, and below it what shows it. Where that line ends in how a command ended, or where the last
//! line is that in brackets, what shows it is what the command printed, and its last words say why: they belong into the one line.

/// How the ends of commands begin.
const ENDINGS: [&str; 3] = ["exit status ", "ended by signal ", "timed out"];
/// What is kept of an output below a reason, in bytes.
const OUTPUT_BYTES_MAX: usize = 4000;
/// The longest line that is kept of an output, in characters.
const OUTPUT_LINE_CHARS_MAX: usize = 500;
/// The longest reason in one line, and the longest part of it, in characters.
const SHORT_CHARS_MAX: usize = 640;
const PART_CHARS_MAX: usize = 200;
/// A last line of fewer words says too little alone: `AssertionError`.
const WORDS_ENOUGH: usize = 3;
/// How many lines before the last one may be what went wrong, where the last one only says that something did: `make: *** [all] Error 1`.
const LINES_LOOKED_AT_MAX: usize = 8;
/// Words of lines that say what went wrong.
const FAULTS: [&str; 12] = [
    "error",
    "fail",
    "fatal",
    "panic",
    "exception",
    "assert",
    "cannot",
    "denied",
    "not found",
    "no such",
    "undefined",
    "expected",
];

/// The reason in one line: what failed, how it ended, and the last lines that say why. What is one line already stays as it is.
#[must_use]
pub fn short(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let Some((first, rest)) = lines.split_first() else { return String::new() };
    if let Some((last, output)) = lines.split_last()
        && let Some(ending) = bracketed(last)
    {
        return with_last_words(ending, output);
    }
    if says_how_it_ended(first) {
        return with_last_words(first, rest);
    }
    if rest.is_empty() {
        return clipped(first, SHORT_CHARS_MAX);
    }
    format!("{} …", clipped(first.trim_end_matches([':', ' ']), SHORT_CHARS_MAX - 2)).trim_start().to_owned()
}

/// How a command ended, where this is the last line of its report.
fn bracketed(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.strip_suffix(']').filter(|ending| says_how_it_ended(ending))
}

/// Whether the line says how a command ended.
fn says_how_it_ended(line: &str) -> bool {
    ENDINGS.iter().any(|ending| line.starts_with(ending) || line.contains(&format!(": {ending}")))
}

fn with_last_words(what: &str, output: &[&str]) -> String {
    let words = last_words(output);
    if words.is_empty() {
        return clipped(what, SHORT_CHARS_MAX);
    }
    let words: Vec<String> = words.into_iter().map(|line| clipped(line, PART_CHARS_MAX)).collect();
    format!("{}: {}", clipped(what.trim_end_matches([':', '.']), PART_CHARS_MAX), words.join(" / "))
}

/// The last line that says anything, behind the nearest one before it that says what went wrong.
fn last_words<'a>(output: &[&'a str]) -> Vec<&'a str> {
    let says_something = |line: &&&str| line.contains(char::is_alphanumeric) && !line.starts_with("[... ");
    let mut lines = output.iter().rev().filter(says_something).copied();
    let Some(last) = lines.next() else { return Vec::new() };
    // A line that is said twice says no more.
    let before: Vec<&str> = lines.filter(|line| *line != last).take(LINES_LOOKED_AT_MAX).collect();
    let is_fault = |line: &&&str| {
        let line = line.to_lowercase();
        FAULTS.iter().any(|word| line.contains(word))
    };
    let is_scant = last.split_whitespace().count() < WORDS_ENOUGH;
    let fault = before.iter().find(is_fault).or(before.first().filter(|_| is_scant));
    fault.copied().into_iter().chain([last]).collect()
}

/// The line within so many characters: its beginning and its end.
fn clipped(line: &str, chars_max: usize) -> String {
    let count = line.chars().count();
    if count <= chars_max {
        return line.to_owned();
    }
    let end_chars = chars_max / 3;
    let start: String = line.chars().take(chars_max - end_chars - 3).collect();
    let end: String = line.chars().skip(count - end_chars).collect();
    format!("{} … {}", start.trim_end(), end.trim_start())
}

/// The reason why `what` failed, of a command's report: how it ended is said first, and below it what the command printed.
#[must_use]
pub fn of_report(what: &str, report: &str) -> String {
    let report = report.trim_end();
    let (output, last) = report.rsplit_once('\n').unwrap_or(("", report));
    let (ending, output) = bracketed(last.trim())
        .map_or_else(|| report.split_once('\n').unwrap_or((report, "")), |ending| (ending, output));
    format!("{what}: {ending}\n{}", bounded(output)).trim_end().to_owned()
}

/// What is kept of an output: all of it, or its first and its last lines.
#[must_use]
pub fn bounded(output: &str) -> String {
    let output = output.trim_end();
    if output.len() <= OUTPUT_BYTES_MAX {
        return output.to_owned();
    }
    let lines: Vec<String> = output.lines().map(|line| clipped(line, OUTPUT_LINE_CHARS_MAX)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let head = fitting(lines.iter(), OUTPUT_BYTES_MAX / 2);
    let tail = fitting(lines[head..].iter().rev(), OUTPUT_BYTES_MAX / 2);
    let left_out = lines.len() - head - tail;
    let note = format!("[... {left_out} lines left out ...]");
    let note = (left_out > 0).then_some(note.as_str());
    let kept = lines[..head].iter().copied().chain(note).chain(lines[lines.len() - tail..].iter().copied());
    kept.collect::<Vec<_>>().join("\n")
}

/// The last lines of an output within so many bytes, whole; the last one in any case, if need be clipped.
#[must_use]
pub fn last_lines(output: &str, bytes_max: usize) -> String {
    let lines: Vec<&str> = output.trim().lines().collect();
    match fitting(lines.iter().rev(), bytes_max) {
        0 => clipped(lines.last().unwrap_or(&""), bytes_max / 4),
        count => lines[lines.len() - count..].join("\n"),
    }
}

/// How many of the lines fit.
fn fitting<'a>(lines: impl Iterator<Item = &'a &'a str>, bytes_max: usize) -> usize {
    let mut room = bytes_max;
    lines
        .take_while(|line| {
            let left = room.checked_sub(line.len() + 1);
            room = left.unwrap_or(0);
            left.is_some()
        })
        .count()
}

/// What speaks to who does the work, in one line for others: of a command how it ended and its last words; of a refusal the first
/// sentence, without what is to be done about it, in the third person.
#[must_use]
pub fn for_others(text: &str) -> String {
    let text = text.trim();
    if text.lines().next_back().is_some_and(|last| bracketed(last).is_some()) {
        return short(text);
    }
    let (line, shows) = text.split_once('\n').unwrap_or((text, ""));
    if says_how_it_ended(line) { short(&format!("{}\n{shows}", in_third_person(line))) } else { told(line) }
}

/// A refusal's first sentence, in the third person.
#[must_use]
pub fn told(refusal: &str) -> String {
    let line = refusal.trim().lines().next().unwrap_or_default();
    let is_end = |(at, _): &(usize, &str)| line[at + 2..].starts_with(char::is_uppercase) && !is_quoted(line, *at);
    let sentence = line.match_indices(". ").find(is_end).map_or(line, |(at, _)| &line[..at]);
    in_third_person(sentence.trim_end_matches(['.', ':']))
}

/// Whether this place is within backquotes.
fn is_quoted(line: &str, at: usize) -> bool {
    line[..at].matches('`').count() % 2 == 1
}

/// The line with `your` as `its`, outside backquotes.
#[must_use]
pub fn in_third_person(line: &str) -> String {
    let mut quotes = 0;
    let words = line.split(' ').map(|word| {
        let is_quoted = quotes % 2 == 1;
        quotes += word.matches('`').count();
        let bare = word.trim_end_matches([',', '.', ':', ';', ')']);
        let meant = match bare {
            "your" if !is_quoted => "its",
            "Your" if !is_quoted => "Its",
            "you" if !is_quoted => "it",
            _ => bare,
        };
        format!("{meant}{}", &word[bare.len()..])
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_failed_command_is_told_by_how_it_ended_and_its_last_words() {
        let compiling: String = (1..30).map(|file| format!("compiling file {file}\n")).collect();
        let traceback = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    f()\n  File \"t.py\", line 2, in f\n    \
            assert 1+1==3\n           ^^^^^^\nAssertionError\n";
        for (text, expected) in [
            (
                format!("block 1 of 1: exit status 3\n{compiling}error: boom at line 7\n"),
                "block 1 of 1: exit status 3: error: boom at line 7",
            ),
            (format!("{compiling}error: boom at line 7\n[exit status 3]"), "exit status 3: error: boom at line 7"),
            (format!("{traceback}[exit status 1]"), "exit status 1: assert 1+1==3 / AssertionError"),
            (
                "a.c:3: error: expected ';'\nmake: *** [Makefile:2: all] Error 1\n\n[exit status 2]".to_owned(),
                "exit status 2: a.c:3: error: expected ';' / make: *** [Makefile:2: all] Error 1",
            ),
            ("verify `x` came out red: timed out\n".to_owned(), "verify `x` came out red: timed out"),
            ("[ended by signal 9 (SIGKILL)]".to_owned(), "ended by signal 9 (SIGKILL)"),
            ("error: no room\nerror: no room\n[exit status 1]".to_owned(), "exit status 1: error: no room"),
            ("one\ntwo\n[exit status 1]".to_owned(), "exit status 1: one / two"),
        ] {
            assert_eq!(short(&text), expected);
        }
    }

    #[test]
    fn what_is_no_command_is_told_by_its_first_line() {
        let conflict = "its branch and main conflict in a.py, b.py\ndiff --git a/a.py b/a.py\n+exit status\n";
        assert_eq!(short(conflict), "its branch and main conflict in a.py, b.py …");
        assert_eq!(short("it takes out lines:\n  one"), "it takes out lines …");
        assert_eq!(short("\n the compiler said no\n"), "the compiler said no");
        assert_eq!(short(" \n"), "");
        assert_eq!(short("done\n[1 of 2]"), "done …");
    }

    #[test]
    fn a_report_becomes_a_reason_that_says_first_how_it_ended() {
        let of = |report: &str| of_report("block 2 of 2", report);
        assert_eq!(of("one\ntwo\n[exit status 3]\n"), "block 2 of 2: exit status 3\none\ntwo");
        assert_eq!(of("[exit status 3]"), "block 2 of 2: exit status 3");
        assert_eq!(
            of("the command was ended: its guard was killed\none"),
            "block 2 of 2: the command was ended: its guard was killed\none"
        );
    }

    #[test]
    fn long_outputs_keep_whole_lines_of_both_ends() {
        let output: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
        let kept = bounded(&output);
        assert!(kept.starts_with("line 0\nline 1\n") && kept.ends_with("\nline 1998\nline 1999"), "{kept}");
        assert!(kept.lines().all(|line| line.starts_with("line ") || line.ends_with(" lines left out ...]")), "{kept}");
        assert_eq!(last_lines(&output, 20), "line 1998\nline 1999");
        assert_eq!(last_lines(&format!("a\n{}", "b".repeat(90)), 40), "bbbb … bbb");
        assert_eq!(bounded("short\n"), "short");
    }

    #[test]
    fn what_is_said_to_who_works_is_told_to_others_in_a_line() {
        for (text, expected) in [
            (
                "\nsaving your work. Then\nz.txt: Read-only file system\n[exit status 1]",
                "exit status 1: z.txt: Read-only file system",
            ),
            ("no such file\nlook again", "no such file"),
            ("your branch conflicts in a.py. Merge it.\ndiff", "its branch conflicts in a.py"),
            (
                "verify `x` on your work: exit status 1\nno such your",
                "verify `x` on its work: exit status 1: no such your",
            ),
        ] {
            assert_eq!(for_others(text), expected);
        }
    }

    #[test]
    fn a_refusal_is_told_without_advice_in_the_third_person() {
        let text = "your branch and main conflict in your.py. Merge main into your branch (git merge main), and report again.\ndiff";
        assert_eq!(told(text), "its branch and main conflict in your.py");
        assert_eq!(
            told("your branch takes out lines since you began:\n  x"),
            "its branch takes out lines since it began"
        );
        assert_eq!(told("verify `. Your tool` is red. Mend it."), "verify `. Your tool` is red");
        assert_eq!(told("no such file\nlook again"), "no such file");
    }

    proptest! {
        #[test]
        fn it_is_one_bounded_line(text in "(exit status 1|: |\\[|\\]|\n|[a-zé ]{0,90}|b{800}){0,30}") {
            let line = short(&text);
            prop_assert!(!line.contains('\n') && line.chars().count() <= SHORT_CHARS_MAX, "{line:?}");
            prop_assert!(bounded(&text).len() <= OUTPUT_BYTES_MAX + 64);
            prop_assert!(!for_others(&text).contains('\n'));
        }
    }
}
