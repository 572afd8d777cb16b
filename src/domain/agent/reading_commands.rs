//! Commands that only read. An attempt that ran no other command, and changed no file, is no evidence of work.
//!
//! A command counts as reading only if each part of it has a program of the table here, with none of its options that write or run
//! something. Everything else counts as work: an unknown program, an output that goes to a file, and a text that cannot be read with
//! certainty.

use super::shell_words::{Part, ShellText};

/// The deepest nesting of commands in quotes, such as in `sh -c`.
const DEPTH_MAX: u32 = 4;

/// Programs that only read, with any arguments.
#[rustfmt::skip]
const READERS: [&str; 85] = [
    ":", "[", "[[", "basename", "cal", "cat", "cd", "cksum", "cmp", "column", "comm", "cut", "df", "diff", "dir", "dirname", "du", "echo", "egrep",
    "exit", "expand", "expr", "export", "false", "fgrep", "file", "fmt", "fold", "free", "grep", "groups", "head", "help", "hexdump", "history",
    "hostname", "id", "jobs", "jq", "less", "locale", "ls", "lscpu", "man", "md5sum", "more", "nl", "nproc", "od", "paste", "popd", "printenv",
    "printf", "ps", "pushd", "pwd", "read", "readlink", "realpath", "rev", "return", "seq", "set", "sha1sum", "sha256sum", "shopt", "sleep",
    "stat", "strings", "tac", "tail", "test", "tr", "true", "type", "uname", "uniq", "uptime", "wait", "wc", "which", "who", "whoami", "zcat", "zgrep",
];

/// Programs that only read without these options. An option also matches with a value, such as in `--output=FILE`.
#[rustfmt::skip]
const READERS_WITHOUT: [(&str, &[&str]); 7] = [
    ("date", &["-s", "--set"]),
    ("fd", &["-x", "--exec", "-X", "--exec-batch"]),
    ("find", &["-delete", "-exec", "-execdir", "-fls", "-fprint", "-fprint0", "-fprintf", "-ok", "-okdir"]),
    ("rg", &["--pre"]),
    ("sort", &["-o", "--output", "--compress-program"]),
    ("tree", &["-o"]),
    ("yq", &["-i", "--inplace"]),
];

/// Subcommands of git that only read, and the first arguments with which others do. An empty text stands for no argument.
#[rustfmt::skip]
const GIT_READERS: [(&str, Option<&[&str]>); 35] = [
    ("blame", None), ("cat-file", None), ("check-attr", None), ("check-ignore", None), ("cherry", None), ("count-objects", None), ("describe", None),
    ("diff", None), ("diff-index", None), ("diff-tree", None), ("for-each-ref", None), ("grep", None), ("help", None), ("log", None),
    ("ls-files", None), ("ls-remote", None), ("ls-tree", None), ("merge-base", None), ("name-rev", None), ("range-diff", None), ("rev-list", None),
    ("rev-parse", None), ("shortlog", None), ("show", None), ("show-branch", None), ("show-ref", None), ("status", None), ("version", None),
    ("branch", Some(&["", "--list", "-l", "-a", "--all", "-r", "--remotes", "-v", "-vv", "--show-current", "--contains", "--merged", "--no-merged"])),
    ("config", Some(&["--get", "--get-all", "--list", "-l", "get", "list"])),
    ("reflog", Some(&["", "show"])),
    ("remote", Some(&["", "-v", "--verbose", "get-url", "show"])),
    ("stash", Some(&["list", "show"])),
    ("tag", Some(&["", "--list", "-l", "--contains", "--merged"])),
    ("worktree", Some(&["list"])),
];

/// Words of the shell that run what follows them.
const BEFORE_COMMAND: [&str; 12] =
    ["!", "builtin", "command", "do", "elif", "else", "if", "then", "time", "until", "while", "{"];
/// Words of the shell that end a construct.
const ENDS: [&str; 4] = ["done", "esac", "fi", "}"];
/// Shells, which run the text after `-c`.
const SHELLS: [&str; 5] = ["bash", "dash", "ksh", "sh", "zsh"];

/// Returns true if the command line certainly changes nothing.
pub fn only_reads(command: &str) -> bool {
    only_reads_at(command, 0)
}

fn only_reads_at(command: &str, depth: u32) -> bool {
    let text = ShellText::read(command);
    depth <= DEPTH_MAX
        && !text.is_unclear
        && !text.writes_file
        && text.parts.iter().all(|part| part_only_reads(part, depth))
        && text.backquoted.iter().all(|command| only_reads_at(command, depth + 1))
}

fn part_only_reads(part: &Part, depth: u32) -> bool {
    let words: Vec<&str> = part.words.iter().map(|word| word.written.as_str()).collect();
    match words[..] {
        // The words are values, and the body has parts of its own.
        ["for" | "select", _] | ["for" | "select", _, "in", ..] => true,
        [end] if ENDS.contains(&end) => true,
        _ => call_only_reads(&words, depth),
    }
}

/// Judges one call. Words that only lead to it, such as `time`, come first.
fn call_only_reads(words: &[&str], depth: u32) -> bool {
    let Some((word, arguments)) = words.split_first() else { return true };
    let is_assignment = word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.starts_with('-'));
    match word.rsplit('/').next().unwrap_or(word) {
        "command" if matches!(arguments, ["-v" | "-V", ..]) => true,
        _ if is_assignment || BEFORE_COMMAND.contains(word) => call_only_reads(arguments, depth),
        "env" if has_option(arguments, &["-S", "--split-string"]) => false,
        "env" => call_only_reads(after_options(arguments, &["-u", "-C"]), depth),
        "timeout" => match after_options(arguments, &["-k", "-s"]) {
            [_, call @ ..] => call_only_reads(call, depth),
            [] => true,
        },
        "xargs" => match after_options(arguments, &["-I", "-L", "-P", "-d", "-n", "-s", "-a", "-E"]) {
            // It runs `echo`.
            [] => true,
            call => call_only_reads(call, depth),
        },
        shell if SHELLS.contains(&shell) => match arguments {
            [option, script, ..] if option.starts_with('-') && option.ends_with('c') => {
                only_reads_at(script, depth + 1)
            }
            _ => tells_about_itself(arguments),
        },
        program => tells_about_itself(arguments) || program_only_reads(program, arguments),
    }
}

fn program_only_reads(program: &str, arguments: &[&str]) -> bool {
    if READERS.contains(&program) {
        return true;
    }
    // An expansion could be any option.
    if arguments.iter().any(|argument| argument.starts_with(['$', '`'])) {
        return false;
    }
    match program {
        "git" => git_only_reads(arguments),
        "sed" => sed_only_prints(arguments),
        "awk" => arguments
            .iter()
            .all(|argument| !["-f", "-i", ">", "|", "system("].iter().any(|text| argument.contains(text))),
        _ => READERS_WITHOUT.iter().any(|(name, options)| *name == program && !has_option(arguments, options)),
    }
}

fn git_only_reads(arguments: &[&str]) -> bool {
    let Some((command, arguments)) = after_options(arguments, &["-C", "-c"]).split_first() else { return true };
    let first = arguments.first().copied().unwrap_or_default();
    let entry = GIT_READERS.iter().find(|(name, _)| name == command);
    entry.is_some_and(|(_, firsts)| firsts.is_none_or(|firsts| firsts.contains(&first)))
        && !has_option(arguments, &["--output"])
}

/// Returns true for `sed -n` with a script that only prints lines, such as `1,20p`.
fn sed_only_prints(arguments: &[&str]) -> bool {
    let [option, script, files @ ..] = arguments else { return false };
    let is_print = script.chars().all(|letter| letter.is_ascii_digit() || "$,;+~pq ".contains(letter));
    *option == "-n" && is_print && !files.iter().any(|file| file.starts_with('-'))
}

/// Returns true if the arguments make any program only print its version or its help.
fn tells_about_itself(arguments: &[&str]) -> bool {
    matches!(arguments, ["--help" | "--version"])
}

/// Returns the words after the options. The options of `with_value` have a value in the next word.
fn after_options<'a, 'w>(mut words: &'a [&'w str], with_value: &[&str]) -> &'a [&'w str] {
    while let [option, rest @ ..] = words
        && option.starts_with('-')
    {
        words = if with_value.contains(option) { rest.get(1..).unwrap_or_default() } else { rest };
    }
    words
}

/// Returns true if an argument is one of these options. The value can be in the same word. Short options can be together, as in `-ro`.
fn has_option(arguments: &[&str], options: &[&str]) -> bool {
    let is_option = |argument: &str, option: &str| {
        let is_short = option.len() == 2;
        let is_together = is_short && argument.len() <= 4 && !argument.starts_with("--") && argument.starts_with('-');
        argument == option
            || argument.strip_prefix(option).is_some_and(|value| is_short || value.starts_with('='))
            || (is_together && argument.contains(&option[1..]))
    };
    arguments.iter().any(|argument| options.iter().any(|option| is_option(argument, option)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_commands_change_nothing() {
        for command in [
            "ls",
            "ls -la src | grep rs | wc -l",
            "cd src && cat a.rs 2>/dev/null || echo none >&2",
            "cat <<END\n> x\nEND",
            "git -C lib --no-pager log --oneline -5",
            "git status --short; git branch --list; git branch; git remote -v; git stash list",
            "find . -name '*.rs' -not -path './target/*' | xargs -n 1 grep -l main",
            "for f in *.txt; do head -3 \"$f\"; done",
            "if [ -f a ]; then cat a; fi",
            "bash -lc 'ls && pwd'",
            "echo $(pwd) `ls`",
            "sed -n '1,20p' a.rs",
            "awk '{print $1}' a.txt | sort -rn | uniq -c",
            "command -v make >/dev/null 2>&1",
            "timeout 5 env LANG=C ls",
            "/usr/bin/python3 --version",
            "X=1",
            "",
            "# nothing",
            "ls &>/dev/null",
        ] {
            assert!(only_reads(command), "{command}");
        }
    }

    #[test]
    fn other_commands_are_work() {
        for command in [
            "make",
            "touch a",
            "echo x > a",
            "cat a >> b",
            "ls &> list.txt",
            "ls >& list.txt",
            "ls | tee list.txt",
            "ls; rm a",
            "ls && cargo test",
            "echo $(touch a)",
            "echo `touch a`",
            "cat <(touch a)",
            "cat > a <<END\nx\nEND",
            "cat <<END\n$(touch a)\nEND",
            "find . -name '*.o' -delete",
            "find . -exec rm {} +",
            "find . $OPTIONS",
            "find . | xargs rm",
            "sort -o a a",
            "sort -ro a a",
            "sort --output=a a",
            "git commit -m x",
            "git branch topic",
            "git stash",
            "git tag v1",
            "git diff --output=a",
            "git fetch",
            "sed -i s/a/b/ a",
            "sed -n 'w out' a",
            "sed s/a/b/ a",
            "awk '{print > \"out\"}' a",
            "sh -c 'touch a'",
            "sh build.sh",
            "$PROGRAM",
            "python3 -c 'print(1)'",
            "cat 'unclosed",
            "echo $((1 << 2))",
            "f() { ls; }; f",
            "timeout 5 make",
            "env make",
            "env -S'touch a'",
            "xxd -p a a.hex",
            "A=1 make",
        ] {
            assert!(!only_reads(command), "{command}");
        }
    }
}
