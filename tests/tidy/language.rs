//! The words of the project: plain English in comments, messages and documents, and test names that can be searched for.

use std::path::{Path, PathBuf};

use super::{assert_no_complaints, files_below, root, text_of};

/// Words that are not used, with the plain word to use in their place.
const WORDS: &[(&str, &str)] = &[
    ("amiss", "wrong"),
    ("anew", "again"),
    ("befall", "happen to"),
    ("befalls", "happens to"),
    ("besides", "and, except, also"),
    ("errand", "a literal word"),
    ("errands", "a literal word"),
    ("for ever", "forever"),
    ("lodge", "worktree"),
    ("lodging", "worktree"),
    ("mend", "repair, fix"),
    ("mended", "repaired, fixed"),
    ("mending", "repairing, fixing"),
    ("mends", "repairs, fixes"),
    ("nobody", "no process, no user, no teammate"),
    ("nought", "zero, nothing"),
    ("purse", "budget"),
    ("reins", "turn control"),
    ("somebody", "a process, a user, a teammate"),
    ("stillness", "a literal word"),
    ("whoever", "the process, the user, the teammate that"),
    ("whomever", "the one that"),
];
/// First words of a doc comment that make a clause of it where a noun phrase or a verb should be.
const CLAUSES: &[&str] =
    &["How", "That", "What", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whom", "Whose", "Why"];
/// First words of a test name that begin a sentence.
const SENTENCES: &[&str] =
    &["a_", "an_", "it_", "no_one_", "the_", "they_", "what_", "when_", "where_", "which_", "who_", "whoever_"];
/// The longest name of a test, in characters.
const TEST_NAME_CHARS_MAX: usize = 50;
/// Files with words that are not ours: this list, a document that is data for a demonstration, and what a demonstration in this
/// folder writes.
const EXEMPT: &[&str] = &["tests/tidy/language.rs", "demo/audit.md", "REPORT.md", "agent_state.json"];
/// Words of the event log's format.
const FORMAT_WORDS: &[&str] = &["\"anew\"", "\"somebody\""];

fn source_files() -> Vec<PathBuf> {
    let folders = ["src", "tests", "benches", "examples"].into_iter().flat_map(files_below);
    folders.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn documents() -> Vec<PathBuf> {
    let root_files = std::fs::read_dir(root()).expect("the root can be read");
    let root_files = root_files.map(|entry| PathBuf::from(entry.expect("the root can be read").file_name()));
    let folders = ["docs", "examples", "demo", "src", "schema"].into_iter().flat_map(files_below);
    let is_document = |path: &Path| {
        path.extension().is_some_and(|extension| ["md", "toml", "json"].iter().any(|one| extension == *one))
    };
    // The other files of the board are a team's: a demo in this folder leaves tasks there.
    let board_page = PathBuf::from(".tasks/README.md");
    root_files.chain(folders).chain([board_page]).filter(|path| is_document(path)).collect()
}

fn contains_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next()))
}

#[test]
fn old_dialect_is_absent() {
    let files = source_files().into_iter().chain(documents());
    let mut complaints = Vec::new();
    for path in files.filter(|path| EXEMPT.iter().all(|exempt| path != Path::new(exempt))) {
        for (number, line) in text_of(&path).lines().enumerate() {
            let line = FORMAT_WORDS.iter().fold(line.to_lowercase(), |line, word| line.replace(word, ""));
            for (word, plain) in WORDS.iter().filter(|(word, _)| contains_word(&line, word)) {
                complaints.push(format!("{}:{}: \"{word}\": write {plain}", path.display(), number + 1));
            }
        }
    }
    assert_no_complaints("language: plain words", &complaints);
}

#[test]
fn doc_comment_starts_with_noun_or_verb() {
    let mut complaints = Vec::new();
    for path in source_files() {
        let text = text_of(&path);
        let mut is_inside = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//").and_then(|rest| rest.strip_prefix(['/', '!']))
            else {
                is_inside = false;
                continue;
            };
            let first = comment.split_whitespace().next().unwrap_or_default();
            let first = first.trim_end_matches(|c: char| !c.is_alphanumeric());
            if !is_inside && CLAUSES.contains(&first) {
                complaints.push(format!("{}:{}: \"{first}\" begins a clause", path.display(), number + 1));
            }
            is_inside = true;
        }
    }
    assert_no_complaints(
        "language: a doc comment starts with a noun phrase (\"The claim of …\") or a verb (\"Returns …\")",
        &complaints,
    );
}

#[test]
fn test_name_is_short_and_no_sentence() {
    let mut complaints = Vec::new();
    let mut tests = 0;
    for path in source_files() {
        let text = text_of(&path);
        let mut is_test = false;
        for (number, line) in text.lines().map(str::trim_start).enumerate() {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test && !line.starts_with("//")) else {
                continue;
            };
            is_test = false;
            tests += 1;
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            if name.len() > TEST_NAME_CHARS_MAX || SENTENCES.iter().any(|start| name.starts_with(start)) {
                complaints.push(format!("{}:{}: {name} ({} characters)", path.display(), number + 1, name.len()));
            }
        }
    }
    assert!(tests > 500, "the tests are found; there are {tests}");
    let rule = format!("language: a test name is `subject_when_expected`, at most {TEST_NAME_CHARS_MAX} characters");
    assert_no_complaints(&rule, &complaints);
}
