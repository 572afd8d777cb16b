//! The form of every file: its size, its first line, forbidden words.

use std::path::{Path, PathBuf};

use super::source::{Source, closing, sources};
use super::{assert_no_complaints, files_below, root, text_of};

/// The most lines of a file before its tests.
const FILE_LINES_MAX: usize = 500;
/// The most lines of a function, from its `fn` to its closing bracket.
const FUNCTION_LINES_MAX: usize = 70;

/// Macros that end the program instead of returning an error, or that mark unfinished code.
const NOT_IN_CODE: &[&str] =
    &[".unwrap()", ".expect(", ".unwrap_err()", ".expect_err(", "todo!", "unimplemented!", "dbg!", "panic!"];

/// Paths of one machine.
const NOT_IN_TREE: &[&str] = &["/work/", "/root/", "/home/", "/tmp/"];
/// Paths that tests must not contain either; they may name the system's folder for temporary files.
const NOT_IN_TESTS: &[&str] = &["/work/", "/root/"];
/// Marks of unfinished code in comments.
const MARKS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// Folders that are searched for [`NOT_IN_TREE`], in addition to the files in the root.
const FOLDERS: &[&str] = &["src", "tests", "benches", "examples", "prompts", "schema", "demo", "docs", ".ci"];

#[test]
fn files_are_under_line_limit() {
    let complaints: Vec<String> = sources()
        .iter()
        .filter_map(|source| {
            let lines = source.text.lines().take_while(|line| !line.trim_start().starts_with("#[cfg(test)]")).count();
            (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines before its tests", source.path.display()))
        })
        .collect();
    assert_no_complaints(&format!("sizes: a file has at most {FILE_LINES_MAX} lines before its tests"), &complaints);
}

#[test]
fn functions_are_under_line_limit() {
    let functions: Vec<_> = sources().iter().flat_map(functions_of).collect();
    assert!(functions.len() > 500, "too few functions: {}", functions.len());
    let complaints: Vec<String> = functions
        .iter()
        .filter(|(.., lines)| *lines > FUNCTION_LINES_MAX)
        .map(|(at, name, lines)| format!("{at}: {name} has {lines} lines"))
        .collect();
    assert_no_complaints(&format!("sizes: a function has at most {FUNCTION_LINES_MAX} lines"), &complaints);
}

/// The functions with a body: position, name, number of lines.
fn functions_of(source: &Source) -> Vec<(String, String, usize)> {
    let code = &source.code;
    let starts = code.match_indices("fn ").map(|(at, _)| at).filter(|at| *at == 0 || !is_word(code.as_bytes()[at - 1]));
    let functions = starts.filter_map(|at| {
        let name: String = code[at + 3..].chars().take_while(|character| is_word(*character as u8)).collect();
        let body = body_of(code, at + 3 + name.len()).filter(|_| !name.is_empty())?;
        let lines = code[at..=closing(code, body)].lines().count();
        Some((source.at(at), name, lines))
    });
    functions.collect()
}

/// The start of the body of a function whose signature continues at `at`; `None` for a function without a body.
fn body_of(code: &str, mut at: usize) -> Option<usize> {
    loop {
        match code.as_bytes().get(at)? {
            b'{' => return Some(at),
            b';' => return None,
            b'(' | b'[' => at = closing(code, at) + 1,
            _ => at += 1,
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[test]
fn every_file_starts_with_module_doc() {
    let folders = ["src", "tests", "benches", "examples"];
    let silent = folders
        .iter()
        .flat_map(|folder| files_below(folder))
        .filter(|path| is_rust(path) && !text_of(path).starts_with("//! "));
    let complaints: Vec<String> = silent.map(|path| format!("{}: begin with `//! `", path.display())).collect();
    assert_no_complaints("forms: the first line of each file says what it is for", &complaints);
}

#[test]
fn code_has_no_unwrap_todo_or_bare_allow() {
    let mut complaints = Vec::new();
    for source in sources() {
        for banned in NOT_IN_CODE {
            for (at, _) in source.code.match_indices(banned) {
                let is_part = !banned.starts_with('.') && at > 0 && is_word(source.code.as_bytes()[at - 1]);
                if !is_part {
                    complaints.push(format!("{}: {banned}", source.at(at)));
                }
            }
        }
        for form in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (at, _) in source.code.match_indices(form) {
                let end = closing(&source.code, at + form.len() - 1);
                if !source.code[at..end].contains("reason =") {
                    complaints.push(format!("{}: {form}…) without `reason = \"…\"`", source.at(at)));
                }
            }
        }
    }
    assert_no_complaints("forms: code outside tests returns errors, and each `allow` has a reason", &complaints);
}

#[test]
fn tree_has_no_machine_paths_or_todo_marks() {
    let mut complaints = Vec::new();
    for path in tree() {
        let Ok(text) = String::from_utf8(std::fs::read(root().join(&path)).expect("the tree can be read")) else {
            continue;
        };
        let tests_begin = tests_begin(&path, &text);
        for (number, (offset, line)) in with_offsets(&text).enumerate() {
            let places = if offset >= tests_begin { NOT_IN_TESTS } else { NOT_IN_TREE };
            let comment = line.find("//").filter(|_| is_rust(&path)).map_or("", |at| &line[at..]);
            let found = places.iter().filter(|place| line.contains(*place));
            let found = found.chain(MARKS.iter().filter(|mark| comment.contains(*mark)));
            complaints.extend(found.map(|word| format!("{}:{}: {word}", path.display(), number + 1)));
        }
    }
    assert_no_complaints("tree: no path of one machine, and no mark of unfinished code", &complaints);
}

/// The files that are searched for [`NOT_IN_TREE`], except for this test's: they contain the words.
fn tree() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root()).expect("the root can be read").map(|entry| entry.expect("an entry"));
    // `.git` is a file in a worktree of git.
    let in_root =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()) && entry.file_name() != ".git");
    let mut tree: Vec<PathBuf> = in_root.map(|entry| PathBuf::from(entry.file_name())).collect();
    tree.extend(FOLDERS.iter().flat_map(|folder| files_below(folder)));
    tree.push(PathBuf::from(".tasks/README.md"));
    tree.retain(|path| !path.starts_with("tests/tidy"));
    assert!(tree.len() > 100, "too few files");
    tree
}

/// The offset at which the tests of a file begin; 0 for snapshots and test modules.
fn tests_begin(path: &Path, text: &str) -> usize {
    if path.starts_with("tests") || path.extension().is_some_and(|extension| extension == "snap") {
        return 0;
    }
    match is_rust(path) && path.starts_with("src") {
        true if sources().iter().any(|source| source.path == path) => text.find("#[cfg(test)]").unwrap_or(text.len()),
        true => 0,
        false => text.len(),
    }
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

fn with_offsets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().map(move |line| (line.as_ptr() as usize - text.as_ptr() as usize, line))
}
