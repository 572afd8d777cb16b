//! The parts of a command line that rules are compared with, and the comparison.
//!
//! Quoted texts that run as commands are parts too, such as the one after `sh -c`. If a program may get its commands from a stream or an
//! expansion, all quoted texts of the command line are. Of a text that is unclear, a second reading ignores all quotes. A rule then sees too
//! much, and never too little.

use std::collections::BTreeSet;

use super::shell_words::{Part, ShellText, Word, unescaped};
use crate::domain::text::pattern::begins_with_words;
use crate::domain::text::{one_line, shorten};

/// The longest sum of a command and all texts in it that are read as commands, in bytes. Linux starts no command of this length.
const READ_BYTES_MAX: usize = 1 << 20;
/// Stands for a blank that separates no words. No command contains it.
const QUOTED_BLANK: char = '\0';

/// The longest word in the text of a match, in characters.
const WORD_CHARS_MAX: usize = 60;
/// The longest part of a command line in the text of a match, in characters.
const PART_CHARS_MAX: usize = 120;

/// Programs that read commands from their input. Here-documents in the same text are commands too.
#[rustfmt::skip]
const INPUT_READERS: [&str; 29] = [
    "ash", "at", "bash", "batch", "busybox", "chroot", "crontab", "csh", "dash", "doas", "eval", "fish", "ksh", "mksh", "newgrp", "nsenter",
    "parallel", "rbash", "runuser", "script", "sh", "source", "ssh", "su", "sudo", "tcsh", "unshare", "yash", "zsh",
];
/// Programs that run nothing of their arguments and input.
const WRITERS: [&str; 11] = ["cat", "diff", "echo", "gh", "git", "grep", "head", "printf", "tail", "tee", "wc"];
/// Words after which a shell expects a command.
const BEFORE_COMMAND: [&str; 14] =
    ["!", "builtin", "command", "coproc", "do", "elif", "else", "eval", "if", "then", "time", "until", "while", "{"];
/// Programs that run their joined arguments as a command line.
const JOINERS: [&str; 7] = ["alias", "eval", "foreach", "parallel", "ssh", "trap", "watch"];

/// A command with more nested text than is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the command and the texts in it that run as commands have more than {READ_BYTES_MAX} bytes")]
pub struct TooLong;

/// The words of the parts of a command line between operators, without quotes and redirections. Some parts have two readings: as written,
/// and with each expansion replaced by nothing.
#[derive(Debug, Default)]
pub struct CommandParts(Vec<Vec<String>>);

impl CommandParts {
    /// Reads a command line.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn read(command: &str) -> Result<Self, TooLong> {
        let (mut parts, mut seen, mut bytes) = (Vec::new(), BTreeSet::new(), 0);
        let (mut texts, mut quoted, mut is_fed) = (vec![command.to_owned()], Vec::new(), false);
        while let Some(text) = texts.pop().or_else(|| quoted.pop().filter(|_| is_fed)) {
            if seen.contains(&text) {
                continue;
            }
            bytes += text.len();
            if bytes > READ_BYTES_MAX {
                return Err(TooLong);
            }
            let shell_text = ShellText::read(&text);
            parts.extend(shell_text.parts.iter().flat_map(readings));
            if shell_text.is_unclear {
                let rough = without_quotes(&text);
                texts.push(rough.replace(['<', '>'], " "));
                texts.push(rough);
            }
            is_fed |= shell_text.parts.iter().any(is_fed_reader);
            quoted.extend(shell_text.parts.iter().flat_map(quoted_texts));
            texts.extend(texts_run(shell_text, &mut quoted));
            seen.insert(text);
        }
        Ok(Self(parts))
    }

    /// Returns the first match of a pattern: at any word of any part, and followed by any words. In a pattern, `*` stands for any characters.
    /// A pattern with shell operators matches nothing.
    pub fn find(&self, pattern: &str) -> Option<PatternMatch> {
        let pattern = CommandPattern::parse(pattern)?;
        self.0.iter().find_map(|words| {
            let index = pattern.find(words)?;
            Some(PatternMatch { word: words[index].clone(), number: index + 1, part: words.join(" ") })
        })
    }
}

/// A match of a pattern in a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternMatch {
    /// The word at which the match begins.
    pub word: String,
    /// The number of the word in its part, from 1.
    pub number: usize,
    /// The part of the command line.
    pub part: String,
}

impl std::fmt::Display for PatternMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |text: &str, chars_max| shorten(&one_line(text), chars_max);
        let (word, part) = (shown(&self.word, WORD_CHARS_MAX), shown(&self.part, PART_CHARS_MAX));
        write!(f, "`{word}` is word {} of `{part}`", self.number)
    }
}

/// The pattern of a rule: words, in which `*` stands for any characters.
struct CommandPattern {
    /// The first word, and the text after it. The pattern has none of them if its first `*` comes before its first blank.
    words: Option<(String, Option<String>)>,
    text: String,
}

impl CommandPattern {
    fn parse(pattern: &str) -> Option<Self> {
        let shell_text = ShellText::read(pattern);
        let [part] = shell_text.parts.as_slice() else { return None };
        if shell_text.has_operator || shell_text.is_unclear {
            return None;
        }
        let text = joined(&written(part));
        let (first, rest) = text.split_once(' ').map_or((text.as_str(), None), |(first, rest)| (first, Some(rest)));
        let words = (!first.contains('*')).then(|| (first.to_owned(), rest.map(str::to_owned)));
        Some(Self { words, text })
    }

    /// Returns the index of the word at which the first match begins.
    fn find(&self, words: &[String]) -> Option<usize> {
        match &self.words {
            None => self.find_in_text(words),
            Some((program, None)) => words.iter().position(|word| is_program(word, program)),
            Some((program, Some(arguments))) => find_call(words, program, arguments),
        }
    }

    /// Finds a pattern that begins inside of a word. An earlier start leaves more text for `*`, so one start decides.
    fn find_in_text(&self, words: &[String]) -> Option<usize> {
        let start = self.text.split('*').next().unwrap_or_default();
        let index =
            words.iter().position(|word| joined(&[word]).starts_with(start) || base_name(word).starts_with(start))?;
        let rest = joined(&words[index..]);
        let folder = words[index].len() - base_name(&words[index]).len();
        let is_match = begins_with_words(&rest, &self.text) || begins_with_words(&rest[folder..], &self.text);
        is_match.then_some(index)
    }
}

/// Finds a call of a program with these arguments. The program's own options may come first, each with one value, as in `git -C lib push`.
fn find_call(words: &[String], program: &str, arguments: &str) -> Option<usize> {
    let start = arguments.split('*').next().unwrap_or_default();
    let text = joined(words);
    let offsets: Vec<usize> =
        words.iter().scan(0, |end, word| Some(std::mem::replace(end, *end + word.len() + 1))).collect();
    let mut next_unread = 0;
    for index in 0..words.len() {
        // The options of an earlier call include those of this one.
        if index + 1 < next_unread || !is_program(&words[index], program) {
            continue;
        }
        for first in index + 1..words.len() {
            let rest = &text[offsets[first]..];
            if rest.starts_with(start) {
                if begins_with_words(rest, arguments) {
                    return Some(index);
                }
                if arguments.contains('*') {
                    // A later start leaves less text for `*`.
                    return None;
                }
            }
            next_unread = first + 1;
            let is_value = first > index + 1 && is_option(&words[first - 1]);
            if !is_option(&words[first]) && !is_value {
                break;
            }
        }
    }
    None
}

/// Returns the words with one blank between them. Blanks inside of words separate no words.
fn joined<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<String> =
        words.iter().map(|word| word.as_ref().replace([' ', '\t', '\n'], &QUOTED_BLANK.to_string())).collect();
    words.join(" ")
}

/// The name of a program without its folder. A word with blanks is a path only if it begins like one.
fn base_name(word: &str) -> &str {
    let is_path = !word.contains([' ', '\t', '\n']) || word.starts_with(['/', '.', '~']);
    word.rsplit('/').next().filter(|_| is_path).unwrap_or(word)
}

fn is_program(word: &str, program: &str) -> bool {
    word == program || base_name(word) == program
}

/// Returns true if the word is an option, or the toolchain of a program such as `cargo`.
fn is_option(word: &str) -> bool {
    word.starts_with(['-', '+'])
}

/// Returns a text without quotes, comment marks and here-documents, so that nothing in it is hidden.
fn without_quotes(text: &str) -> String {
    let text = text.replace("\\\n", "").replace(['\'', '"', '\\', '#'], "");
    text.replace("${", "{").replace("<<<", " ").replace("<<", " ")
}

fn written(part: &Part) -> Vec<String> {
    part.words.iter().map(|word| word.written.clone()).collect()
}

/// The readings of a part that differ: as written, and expanded.
fn readings(part: &Part) -> Vec<Vec<String>> {
    let written = written(part);
    let expanded: Vec<String> = part.words.iter().flat_map(Word::expanded).map(str::to_owned).collect();
    if expanded == written { vec![written] } else { vec![written, expanded] }
}

/// The texts that run as commands, and are not read yet. Here-documents that nothing in the text runs are added to `quoted`.
fn texts_run(shell_text: ShellText, quoted: &mut Vec<String>) -> Vec<String> {
    let parts = &shell_text.parts;
    let mut texts: Vec<String> = parts.iter().flat_map(readings).flat_map(|words| texts_run_by(&words)).collect();
    texts.extend(shell_text.backquoted);
    if parts.iter().any(is_reader) { &mut texts } else { quoted }.extend(shell_text.documents);
    texts
}

/// The texts that a part hands over if a program reads its output or a variable of it: quoted words and assignments, values in them, and
/// the joined words.
fn quoted_texts(part: &Part) -> Vec<String> {
    let is_text = |word: &&Word| word.is_quoted || word.written.contains('=');
    let mut texts: Vec<String> = part.words.iter().filter(is_text).map(|word| word.written.clone()).collect();
    if !texts.is_empty() {
        texts.extend(texts.iter().filter_map(|text| value(text)).collect::<Vec<_>>());
        texts.push(written(part).join(" "));
        texts.extend(texts.iter().filter(|text| text.contains('\\')).map(|text| unescaped(text)).collect::<Vec<_>>());
    }
    texts
}

/// Returns true if the part may run text that another part hands over: it reads commands from a stream, or its program is an expansion.
fn is_fed_reader(part: &Part) -> bool {
    part.is_after_stream && is_reader(part) || program(&written(part)).starts_with(['$', '`'])
}

/// Returns true if the part may read commands from its input: with a program for it, with `.`, or with a program that is not known.
fn is_reader(part: &Part) -> bool {
    let words = written(part);
    let is_command = |index: usize| words[..index].iter().all(|word| is_before_command(word));
    let is_reader = |(index, word): (usize, &String)| match word.as_str() {
        "." => is_command(index),
        word if word.starts_with('$') => !WRITERS.contains(&program(&words)),
        word => INPUT_READERS.contains(&base_name(word)),
    };
    words.iter().enumerate().any(is_reader)
}

/// The name of the program that a part runs. It is empty if there is none.
fn program(words: &[String]) -> &str {
    words.iter().find(|word| !is_before_command(word)).map_or("", |word| base_name(word))
}

/// Returns true if the word is an assignment, or one after which a shell expects a command.
fn is_before_command(word: &str) -> bool {
    BEFORE_COMMAND.contains(&word) || (word.contains('=') && !word.starts_with(['$', '`']))
}

/// The texts in the words that run as commands.
fn texts_run_by(words: &[String]) -> Vec<String> {
    let (mut texts, mut commands_expected, mut is_env) = (Vec::new(), 0, false);
    if let Some(index) = words.iter().position(|word| JOINERS.contains(&base_name(word))) {
        let arguments = &words[index + 1..];
        texts.push(arguments.join(" "));
        texts.extend(arguments.iter().filter_map(|word| value(word)));
    }
    for (index, word) in words.iter().enumerate() {
        texts.extend(alias_text(word, words.get(index + 1).map_or("", String::as_str)));
        is_env |= base_name(word) == "env";
        let option = command_option(word, 'c', "command");
        let option = option.or_else(|| command_option(word, 'S', "split-string").filter(|_| is_env));
        if let Some(text) = option {
            texts.push(text.to_owned());
            commands_expected = commands_expected.max(1);
        }
        if commands_expected == 0 {
            continue;
        }
        if !is_option(word) {
            texts.push(word.to_owned());
            texts.extend(value(word));
            commands_expected -= 1;
        } else if is_cluster_with(word, 'o') || is_cluster_with(word, 'O') {
            // A shell takes the name of a setting before the command, as in `bash -co pipefail COMMAND` and `bash -c +O extglob COMMAND`.
            commands_expected += 1;
        }
    }
    texts
}

/// The text after the first `=`.
fn value(word: &str) -> Option<String> {
    word.split_once('=').map(|(_, value)| value.to_owned())
}

/// Returns the command that git runs for an alias, if the word sets one: `alias.x=!COMMAND`, or `alias.x` before the value.
fn alias_text(word: &str, next: &str) -> Option<String> {
    if let Some(command) = word.strip_prefix('!').or_else(|| Some(word.split_once("=!")?.1)) {
        return Some(command.to_owned());
    }
    if !word.to_ascii_lowercase().starts_with("alias.") {
        return None;
    }
    let value = word.split_once('=').map_or(next, |(_, value)| value);
    Some(format!("git {value}"))
}

/// Returns true if the word is one dash or plus sign and letters, and this letter is one of them.
fn is_cluster_with(word: &str, letter: char) -> bool {
    let letters = word.strip_prefix(['-', '+']).unwrap_or_default();
    letters.contains(letter) && letters.chars().all(|letter| letter.is_ascii_alphabetic())
}

/// Returns the text in an option that takes a command, such as `-c`, `-qcTEXT` and `--command=TEXT`. The text can be the next word instead.
fn command_option<'a>(word: &'a str, letter: char, name: &str) -> Option<&'a str> {
    if let Some(long) = word.strip_prefix("--") {
        let (option, text) = long.split_once('=').unwrap_or((long, ""));
        return (!option.is_empty() && name.starts_with(option)).then_some(text);
    }
    let (flags, text) = word.strip_prefix('-')?.split_once(letter)?;
    // Of `-mTEXT`, the text is a message.
    let is_option = is_cluster_with(word, letter) || flags.is_empty() || (flags.len() == 1 && flags != "m");
    is_option.then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find(command: &str, pattern: &str) -> Option<PatternMatch> {
        CommandParts::read(command).unwrap().find(pattern)
    }

    #[test]
    fn match_names_word_and_part() {
        let found = find("cd x && sudo -u y 'git' push >out", "git push").unwrap();
        assert_eq!(found.to_string(), "`git` is word 4 of `sudo -u y git push`");
    }

    #[test]
    fn text_that_no_command_runs_is_no_match() {
        for command in [
            "git commit -m 'git push'",
            "git stash push",
            "git 'push origin'",
            "'git push'",
            "echo 'git push' | cat",
            "cat <<E\ngit push\nE",
            "true # git push",
            "git log --grep=push",
            "X='git push' make",
        ] {
            assert_eq!(find(command, "git push"), None, "{command}");
        }
    }

    #[test]
    fn value_of_variable_that_shell_runs_is_a_match() {
        for command in ["X=zap; bash -cO extglob \"$X\"", "X='zap y'; bash -c \"$X\"", "export X=zap && $X now"] {
            assert!(find(command, "zap").is_some(), "{command}");
        }
        assert_eq!(find("X=zap make", "zap"), None);
    }

    #[test]
    fn pattern_matches_words_in_any_quotes() {
        for (pattern, command, is_match) in [
            ("git commit -m \"a b\"", "true; git commit -m 'a b'", true),
            ("git commit -m \"a b\"", "git commit -m a b", false),
            ("rm -rf *", "cd x && rm -rf $X", true),
            ("rm -rf $HOME", "rm -rf \"$HOME\"", true),
            ("*secret*", "cat 'my secret file'", true),
            ("/usr/bin/git push", "/usr/bin/git push", true),
            ("git*", "/usr/bin/git-lfs x", true),
            ("git * push", "git commit -m 'a push'", false),
            ("git * push", "git a b push c", true),
            ("git push * main", "git -C x push -f origin main", true),
            ("curl * | sh", "curl x | sh", false),
        ] {
            assert_eq!(find(command, pattern).is_some(), is_match, "{pattern}: {command}");
        }
    }

    #[test]
    fn nested_text_is_bounded() {
        let repeated = |word: &str| word.repeat(20_000 / word.len());
        for word in ["$(", "`", "git -x ", "git ", "-co ", "{", "${", "<<E ", "<(", "$((", "\\\n", "sh -c "] {
            let parts = CommandParts::read(&repeated(word)).unwrap();
            for pattern in ["git push", "git * push", "*push*"] {
                assert_eq!(parts.find(pattern), None, "{word} {pattern}");
            }
        }
        for word in ["eval ", "!", "a=!", "\"$("] {
            assert_eq!(CommandParts::read(&repeated(word)).err(), Some(TooLong), "{word}");
        }
    }

    /// A word in quotes of these kinds, one for each letter.
    fn quoted(word: &str, kinds: &[u8]) -> String {
        let quote = |(letter, kind): (char, &u8)| match kind % 5 {
            0 if letter.is_alphanumeric() => letter.to_string(),
            1 if letter != '\'' => format!("'{letter}'"),
            2 if letter.is_alphanumeric() => format!("\"{letter}\""),
            0..=3 => format!("\\{letter}"),
            _ => format!("$'\\x{:02x}'", u32::from(letter)),
        };
        word.chars().zip(kinds.iter().cycle()).map(quote).collect()
    }

    /// Forms in which a program gets a text, and runs it.
    const FEEDS: [&str; 12] = [
        "echo TEXT | sh",
        "true && printf '%s\\n' TEXT | sudo -u x bash -s",
        "echo 'a b' TEXT | { cd /; zsh; }",
        "f() { dash; }; echo TEXT | f",
        "sh <(echo TEXT)",
        ". <(printf 'cd x\\n%s\\n' TEXT)",
        "bash -x < <(echo TEXT)",
        "echo TEXT > >(sh)",
        "coproc ksh; echo TEXT >&${COPROC[1]}",
        "eval \"$(echo TEXT)\"",
        "X=TEXT; bash -cO extglob \"$X\"",
        "sh <<< TEXT",
    ];

    proptest! {
        #[test]
        fn stream_never_hides_command(
            kinds in proptest::collection::vec(0_u8.., 1..9),
            before in "(cd x; |A=b |nice -n 5 |true && )*",
            feeds in proptest::collection::vec(proptest::sample::select(&FEEDS[..]), 1..3),
        ) {
            let fed = |text: String, feed: &&str| feed.replace("TEXT", &quoted(&text, &kinds));
            for (last, pattern) in [("git push", "git push"), ("zap", "zap"), ("zap;", "zap")] {
                let command = feeds.iter().fold(format!("{before}{last}"), fed);
                prop_assert!(find(&command, pattern).is_some(), "{command}");
            }
        }

        #[test]
        fn prefix_never_hides_command(
            // Words, redirections, assignments and operators, or quotes that may stay open. A `#` or a redirection takes what follows.
            prefix in "([a-z0-9_=./-]{1,8} |[0-9]?>{1,2} ?[a-z]{1,4} |<&[0-9] |[A-Z]='[ -\"$-&(-;=?-~]{0,8}' |[;&|({!] |\n|[ -\"$-.0-;?-\\[\\]-~]{1,6} )*",
            command in prop_oneof![Just("git push"), Just("git -C x push origin"), Just("sh -c 'git push'"), Just("git >out push")],
        ) {
            prop_assert!(find(&format!("{prefix}{command}"), "git push").is_some(), "{prefix}{command}");
        }

        #[test]
        fn quotes_never_hide_word(kinds in proptest::collection::vec(0_u8.., 1..9), prefix in "(env |nice -n 5 |>out |A=b )*") {
            let command = format!("{prefix}{} {}", quoted("git", &kinds), quoted("push", &kinds[kinds.len() / 2..]));
            prop_assert!(find(&command, "git push").is_some(), "{command}");
            let nested = format!("sh -c {}", quoted(&command, &kinds));
            prop_assert!(find(&nested, "git push").is_some(), "{nested}");
        }
    }
}
