//! Accounting of the lines of a branch: each added line is in the result, or was removed by a later commit that says
//! so. It shares no code with the tested accounting.

use std::collections::HashMap;
use std::path::Path;

use crate::harness::git;

/// A file and a line of it.
type Line = (String, String);

/// The number of times that one commit added and removed each line.
struct Commit {
    id: String,
    added: HashMap<Line, usize>,
    removed: HashMap<Line, usize>,
}

/// The commits of `branch`, oldest first, without merges, except for those that name dropped lines.
fn commits(folder: &Path, branch: &str) -> Vec<Commit> {
    let ids = git(folder, &["rev-list", "--reverse", "--topo-order", branch]);
    let says_so = |id: &str| {
        let is_merge = git(folder, &["rev-list", "--parents", "-n1", id]).split(' ').count() > 2;
        !is_merge || git(folder, &["log", "-1", "--format=%B", id]).contains("\nBrigade-Drops: ")
    };
    ids.lines().filter(|id| says_so(id)).map(|id| commit(folder, id)).collect()
}

fn commit(folder: &Path, id: &str) -> Commit {
    let diff = git(folder, &["show", "-m", "--format=", "-U0", "--no-renames", "--text", id]);
    let mut commit = Commit { id: id.to_owned(), added: HashMap::new(), removed: HashMap::new() };
    let (mut old, mut new) = (String::new(), String::new());
    let name = |line: &str| line.trim_start_matches("a/").trim_start_matches("b/").to_owned();
    for line in diff.lines() {
        if let Some(file) = line.strip_prefix("--- ") {
            old = name(file);
        } else if let Some(file) = line.strip_prefix("+++ ") {
            new = name(file);
        } else if let Some(text) = line.strip_prefix('+') {
            *commit.added.entry((new.clone(), text.to_owned())).or_default() += 1;
        } else if let Some(text) = line.strip_prefix('-') {
            *commit.removed.entry((old.clone(), text.to_owned())).or_default() += 1;
        }
    }
    commit
}

/// Added lines that are missing from `branch` and that no later commit removed.
pub fn missing(folder: &Path, branch: &str) -> Vec<(String, Line)> {
    let commits = commits(folder, branch);
    let mut files: HashMap<String, String> = HashMap::new();
    for file in git(folder, &["ls-tree", "-r", "--name-only", branch]).lines() {
        files.insert(file.to_owned(), git(folder, &["show", &format!("{branch}:{file}")]));
    }
    let is_in = |(file, text): &Line| files.get(file).is_some_and(|all| all.lines().any(|line| line == text));
    let mut missing = Vec::new();
    for commit in &commits {
        for line in commit.added.keys().filter(|line| !is_in(line)) {
            let is_removed_by = |later: &Commit| {
                later.id != commit.id && later.removed.contains_key(line) && is_ancestor(folder, &commit.id, &later.id)
            };
            if !commits.iter().any(is_removed_by) {
                missing.push((commit.id.clone(), line.clone()));
            }
        }
    }
    missing
}

/// Returns true for a commit and itself, too.
fn is_ancestor(folder: &Path, old: &str, new: &str) -> bool {
    crate::harness::git_output(folder, &["merge-base", "--is-ancestor", old, new]).0 == Some(0)
}

pub fn assert_no_lines_lost(folder: &Path, branch: &str) {
    let missing = missing(folder, branch);
    assert!(missing.is_empty(), "lines are missing without a removal: {missing:#?}");
}
