//! Keeps the project in order: layers, sizes, forms, tables, public documents. It reads the sources and runs `--help`; it
//! knows nothing of what the code does.
//!
//! What is allowed stands as data at the top of each module, with its reason. A rule that is in the way is changed there,
//! in the open, not worked around.

#![allow(clippy::expect_used, reason = "the helpers of tests may panic as the tests do")]

mod documents;
mod forms;
mod layers;
mod paths;
mod source;
mod tables;

use std::path::{Path, PathBuf};

/// What one broken rule looks like: where, and what to do.
type Complaint = String;

/// The project's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Fails with all complaints at once, so that one run shows everything there is to mend.
fn hold(rule: &str, complaints: &[Complaint]) {
    assert!(complaints.is_empty(), "{rule}\n  {}\n", complaints.join("\n  "));
}

/// All files below `folder`, relative to the root, sorted; none when there is no such folder.
fn files_below(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("the tree can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root()).expect("it lies below the root").to_owned());
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
