//! State travels in types. A program that searches a text for words of another module breaks when that text is improved.

use std::collections::BTreeMap;

use super::assert_no_complaints;
use super::source::{Source, sources};

/// Methods that search a text.
const SEARCHES: &[&str] = &[
    "contains",
    "ends_with",
    "find",
    "match_indices",
    "matches",
    "replace",
    "replacen",
    "rfind",
    "rsplit",
    "rsplit_once",
    "split",
    "split_once",
    "starts_with",
    "strip_prefix",
    "strip_suffix",
    "trim_end_matches",
    "trim_start_matches",
];

/// The searches that are permitted: the file, the words, the reason.
const PERMITTED: &[(&str, &str, &str)] = &[
    (
        "external/claude/protocol.rs",
        "No conversation found",
        "the program's error about an unknown session, which has no kind",
    ),
    (
        "external/claude/protocol.rs",
        "Credit balance is too low",
        "the program's error about an account without credit, which has no kind",
    ),
    ("domain/team/state_note.rs", "the budget of ", "the format of `note` in the state file; it is written there too"),
    (
        "domain/team/state_note.rs",
        "agent_state.json was invalid",
        "the format of `note` in the state file; it is written there too",
    ),
    (
        "domain/team/state_note.rs",
        " is used up until ",
        "the format of `note` in the state file; it is written there too",
    ),
    ("domain/team/state_note.rs", "the quota of ", "the format of `note` in the state file; it is written there too"),
    (
        "domain/text/system_error.rs",
        " (os error {code})",
        "the number that the standard library appends to a system error",
    ),
    ("providers/errors.rs", "try again in ", "the wait in errors of OpenAI and Groq, which have no field for it"),
    (
        "domain/team/waiting_for.rs",
        "a person: ",
        "the format of `waitingFor` in the state file; it is written there too",
    ),
    (
        "domain/team/waiting_for.rs",
        "its model: ",
        "the format of `waitingFor` in the state file; it is written there too",
    ),
    ("providers/scripted.rs", "Task #", "the form of a claimed task is a contract with models"),
    ("git/adoption.rs", "ref: refs/heads/{first}/", "git's format of HEAD"),
    ("git/repair.rs", "ref: refs/", "git's format of HEAD"),
    ("git/lfs.rs", "version https://git-lfs.github.com/spec/v1", "the format of a pointer of Git LFS"),
    ("git/lfs.rs", "oid sha256:", "the format of a pointer of Git LFS"),
    ("git/opening.rs", "not a git repository", "git's error, in the C locale"),
    ("domain/task/shell_blocks.rs", "set -", "the syntax of shells"),
    ("domain/git/git_hints.rs", "Device or resource busy", "the system's error in messages of git, in the C locale"),
    ("domain/git/git_hints.rs", " config file ", "git's error, in the C locale"),
    ("domain/git/git_hints.rs", "failed to remove .agent/", "git's error, in the C locale"),
    ("git/queries.rs", "could not open directory ", "git's warning, in the C locale"),
    ("text/diff.rs", "diff --git ", "git's format of diffs"),
];

#[test]
fn no_module_searches_text_for_words() {
    let constants = constants();
    let mut complaints = Vec::new();
    for source in sources() {
        for (at, words) in searches(source, &constants) {
            let is_permitted =
                PERMITTED.iter().any(|(path, permitted, _)| source.path.ends_with(path) && *permitted == words);
            if !is_permitted {
                complaints.push(format!("{}: {words:?}", source.at(at)));
            }
        }
    }
    assert_no_complaints(
        "prose: a module searches a text for words; pass a type, or add the format to PERMITTED (tests/tidy/prose.rs)",
        &complaints,
    );
}

#[test]
fn permitted_searches_are_in_use() {
    let constants = constants();
    let is_used = |path: &str, words: &str| {
        let mut files = sources().iter().filter(|source| source.path.ends_with(path));
        files.any(|source| searches(source, &constants).iter().any(|(_, found)| found == words))
    };
    let unused = PERMITTED.iter().filter(|(path, words, _)| !is_used(path, words));
    assert_no_complaints(
        "prose: a line of PERMITTED is not used; remove it",
        &unused.map(|(path, words, _)| format!("{path}: {words:?}")).collect::<Vec<_>>(),
    );
}

/// The searches of a file for text with words: a letter beside a space.
fn searches(source: &Source, constants: &BTreeMap<String, String>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for method in SEARCHES {
        let call = format!(".{method}(");
        for (at, _) in source.code.match_indices(&call) {
            let argument = source.text[at + call.len()..].trim_start_matches(['&', '\n', ' ']);
            let words = match argument.strip_prefix("format!(").unwrap_or(argument).strip_prefix('"') {
                Some(literal) => literal.split('"').next().map(str::to_owned),
                None => constants
                    .get(argument.split(|c: char| c != '_' && !c.is_ascii_uppercase()).next().unwrap_or_default())
                    .cloned(),
            };
            found.extend(words.filter(|words| is_prose(words)).map(|words| (at, words)));
        }
    }
    found
}

/// The text constants of the project by name.
fn constants() -> BTreeMap<String, String> {
    let mut constants = BTreeMap::new();
    for source in sources() {
        for (at, _) in source.code.match_indices("const ") {
            let definition = &source.text[at + "const ".len()..];
            if let Some((name, rest)) = definition.split_once(": &str = \"")
                && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_uppercase())
            {
                constants.insert(name.to_owned(), rest.split('"').next().unwrap_or_default().to_owned());
            }
        }
    }
    constants
}

fn is_prose(text: &str) -> bool {
    let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
    let bytes = text.as_bytes();
    (0..bytes.len()).any(|at| bytes[at] == b' ' && (is_letter(bytes[..at].last()) || is_letter(bytes.get(at + 1))))
}
