//! The places that start a program. Each is known, so that no program gets a key or runs outside of the sandbox unnoticed.

use std::path::Path;

use super::assert_no_complaints;
use super::paths::paths_of;
use super::source::{Source, sources};

/// The files that start programs: the number of places, and the reason why the program may run with the environment that it gets.
#[rustfmt::skip]
const STARTS: &[(&str, usize, &str)] = &[
    ("src/front/cli/pager.rs",          1, "the person's pager, without keys"),
    ("src/sandbox/filter.rs",     6, "this program as the sandbox of git or of a driver, and that program in it: the environment of Brigade's git has no keys"),
    ("src/sandbox/guard.rs",      1, "this program as the init of a command, with the environment of the command"),
    ("src/sandbox/launch.rs",     1, "this program as the guard of a command; the environment has no keys, except those of `pass_env`"),
    ("src/sandbox/mod.rs",        1, "the shell of a command, in the sandbox"),
    ("src/sandbox/namespaces.rs", 1, "this program, to map ids for the guard of a command, with its environment"),
    ("src/sandbox/reexec.rs",     1, "becomes the shell of a command, in the sandbox"),
    ("src/process/guarded_process.rs", 1, "takes over the guard that src/sandbox/launch.rs describes"),
    ("src/git/drivers.rs", 1, "a shell that looks for a program and starts none, with the environment of git"),
    ("src/git/command.rs", 1, "git, without keys; it starts programs in the sandbox only"),
];

/// The forms that start a program, or make this process one.
const FORMS: &[&str] = &[
    "Command::new(",
    "Command::from(",
    "Command::default(",
    ".exec()",
    "exec(",
    "execv",
    "execl",
    "fexec",
    "fork(",
    "vfork(",
    "posix_spawn",
    "popen(",
    "system(",
    "CommandWrap::",
];

/// Types and functions that start programs, by path: each file that uses them must be in [`STARTS`], under whatever name.
const PATHS: &[&[&str]] = &[
    &["std", "process", "Command"],
    &["tokio", "process", "Command"],
    &["std", "os", "unix", "process", "CommandExt"],
    &["nix", "unistd", "fork"],
    &["nix", "unistd", "execv"],
    &["nix", "unistd", "execve"],
    &["nix", "unistd", "execvp"],
    &["nix", "unistd", "fexecve"],
    &["libc"],
    &["rustix", "runtime"],
];

/// Files that use a type of [`PATHS`] only to pass it on.
const PASS_ON: &[(&str, &str)] = &[
    ("src/sandbox/init.rs", "starts what src/sandbox/mod.rs prepares, in the sandbox"),
    ("src/git/settings.rs", "gives src/git/command.rs what src/sandbox/filter.rs prepares"),
];

/// The number of places in the code that start a program.
fn starts_in(source: &Source) -> usize {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let code = source.code.as_bytes();
    let starts = FORMS.iter().flat_map(|form| source.code.match_indices(form).map(|(at, _)| (at, *form)));
    // `regexec(` and `fn exec(` are no starts; `.exec()` is found by its own form.
    let is_start = |(at, form): &(usize, &str)| {
        let before = if *at == 0 { b' ' } else { code[at - 1] };
        form.starts_with('.') || (!is_word(before) && before != b'.' && !source.code[..*at].ends_with("fn "))
    };
    starts.filter(is_start).count()
}

fn uses_type(source: &Source) -> bool {
    let is_listed = |parts: &[String]| {
        PATHS.iter().any(|path| parts.len() >= path.len() && path.iter().zip(parts).all(|(a, b)| a == b))
    };
    paths_of(source)
        .iter()
        .any(|path| is_listed(&path.parts) || path.parts.ends_with(&["process".to_owned(), "*".to_owned()]))
}

#[test]
fn programs_are_started_in_known_places() {
    let mut complaints = Vec::new();
    let mut total = 0;
    for source in sources() {
        let starts = starts_in(source);
        total += starts;
        let known = STARTS.iter().find(|(file, ..)| source.path == Path::new(file));
        let passes_on = PASS_ON.iter().any(|(file, _)| source.path == Path::new(file));
        let expected = known.map_or(0, |(_, count, _)| *count);
        if starts != expected {
            complaints.push(format!(
                "{}: starts a program in {starts} places, and STARTS (tests/tidy/programs.rs) has {expected}. Git is started by src/git/command.rs, commands by src/sandbox/launch.rs",
                source.path.display()
            ));
        }
        if uses_type(source) && known.is_none() && !passes_on {
            complaints.push(format!(
                "{}: uses a type that starts programs; add it to STARTS or PASS_ON",
                source.path.display()
            ));
        }
    }
    let unknown = STARTS.iter().filter(|(file, ..)| !sources().iter().any(|source| source.path == Path::new(file)));
    complaints
        .extend(unknown.map(|(file, _, reason)| format!("STARTS: {file} is missing ({reason}); remove the line")));
    assert!(total > 5, "too few starts of programs: {total}");
    assert_no_complaints("programs: only known places start them", &complaints);
}

#[test]
fn starts_of_programs_are_found_in_any_form() {
    let count =
        |code: &str| starts_in(&Source { path: "src/x.rs".into(), text: code.to_owned(), code: code.to_owned() });
    for code in [
        "Command::new(git)",
        "std::process::Command::new(git)",
        "tokio::process::Command::from(prepared)",
        "shell.exec()",
        "libc::execve(path)",
        "nix::unistd::execvp(path)",
        "unsafe { libc::fork() }",
        "libc::posix_spawn(path)",
        "libc::system(text)",
    ] {
        assert_eq!(count(code), 1, "{code}");
    }
    for code in
        ["fn exec(text: &str)", "self.exec(query)", "thread.spawn()", "filesystem(", "is_fork(", "CommandAnswer::new("]
    {
        assert_eq!(count(code), 0, "{code}");
    }
    let named =
        |code: &str| uses_type(&Source { path: "src/x.rs".into(), text: code.to_owned(), code: code.to_owned() });
    assert!(named("use std::process::{Command as Program, Stdio};") && named("use tokio::process::*;"));
    assert!(!named("use std::process::Stdio;"));
}
