//! Checks of the project's form: layers, sizes, tables, public documents. They read the sources and run `--help`; they
//! do not test behaviour.
//!
//! The permitted exceptions are tables at the top of each module, with reasons. To change a rule, change its table.

#![allow(clippy::expect_used, reason = "test helpers may panic")]

mod bounds;
mod commands;
mod documents;
mod forms;
mod generated;
mod language;
mod layers;
mod paths;
mod programs;
mod prose;
mod source;
mod tables;

use std::path::{Path, PathBuf};

/// A violation: the position, and the fix.
type Complaint = String;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Fails with all complaints at once, so that one run shows all problems.
fn assert_no_complaints(rule: &str, complaints: &[Complaint]) {
    assert!(complaints.is_empty(), "{rule}\n  {}\n", complaints.join("\n  "));
}

/// All files below `folder`, relative to the root, sorted; empty if the folder is missing.
fn files_below(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("the tree can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root()).expect("the path is below the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The text of a file, by its path from the root.
fn text_of(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
