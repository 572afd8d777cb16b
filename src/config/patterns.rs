//! Patterns of files in settings, such as `plans/*.md`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::domain::text::path_glob::{NameGlob, PathGlob};
use crate::platform::reading;

/// The most files that a pattern may match.
const MATCHES_MAX: usize = 200;
/// The most files and folders in a folder whose names are matched.
const ENTRIES_MAX: usize = 20_000;
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// Returns the plain files below `folder` that `text` matches, sorted, each as the text would name it. A text that is the path of an existing
/// file, or that has no wildcard, names itself. As in a shell, a wildcard matches no dot at the beginning of a name. Links that leave `folder` are
/// not followed.
///
/// # Errors
/// A text for people: the pattern is invalid, or matches no file or too many.
pub(super) fn matching_files(folder: &Path, text: &str) -> Result<Vec<PathBuf>, String> {
    let is_literal = !text.contains(WILDCARDS) || folder.join(text).symlink_metadata().is_ok();
    if is_literal {
        return Ok(vec![PathBuf::from(text)]);
    }
    if text.contains("**") {
        return Err("`**` is not supported: write one `*` for each folder, such as plans/*/*.md".to_owned());
    }
    let Ok(real_folder) = folder.canonicalize() else {
        return Err(format!("cannot list {}", folder.display()));
    };
    // An absolute text stays as it is.
    let start = PathBuf::from(if text.starts_with('/') { "/" } else { "" });
    let mut found = vec![start];
    for part in text.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for path in &found {
            next.extend(matching_entries(folder, path, part)?);
        }
        found = next;
    }
    let is_plain = |path: &PathBuf| {
        folder.join(path).canonicalize().is_ok_and(|real| real.starts_with(&real_folder) && real.is_file())
    };
    let mut files: Vec<PathBuf> = found.into_iter().filter(is_plain).collect();
    files.sort();
    match (files.len(), PathGlob::new(text).error()) {
        (0, Some(reason)) => Err(format!("{text}: {reason}")),
        (0, None) => Err(format!("no file matches `{text}`")),
        (1..=MATCHES_MAX, _) => Ok(files),
        _ => Err(format!("`{text}` matches more than {MATCHES_MAX} files")),
    }
}

/// Returns the paths below `path`, which is relative to `folder`, that a part of a pattern names or matches.
fn matching_entries(folder: &Path, path: &Path, part: &str) -> Result<Vec<PathBuf>, String> {
    if !part.contains(WILDCARDS) {
        return Ok(vec![path.join(part)]);
    }
    let glob = NameGlob::new(part);
    let is_hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".") && !part.starts_with('.');
    let listed = folder.join(path);
    let entries = match reading::list(&listed, ENTRIES_MAX) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(format!("{} has more than {ENTRIES_MAX} files", listed.display()));
        }
        // A file, or a folder that is not there.
        Err(_) => Vec::new(),
    };
    let names = entries.iter().map(|entry| entry.file_name());
    Ok(names.filter(|name| glob.matches(name) && !is_hidden(name)).map(|name| path.join(name)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        // The name has characters of patterns.
        let folder = tempfile::Builder::new().prefix("a[b]*").tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        folder
    }

    fn names(folder: &tempfile::TempDir, text: &str) -> Result<Vec<String>, String> {
        let files = matching_files(folder.path(), text)?;
        Ok(files.iter().map(|file| file.display().to_string()).collect())
    }

    #[test]
    fn pattern_matches_plain_files_in_order() {
        let folder =
            folder(&["plans/b.md", "plans/a.md", "plans/c.txt", "plans/.x.md", "plans/in/d.md", ".env", ".env.test"]);
        fs::create_dir(folder.path().join("plans/e.md")).unwrap();
        assert_eq!(names(&folder, "plans/*.md").unwrap(), ["plans/a.md", "plans/b.md"]);
        assert_eq!(names(&folder, "plans/*/?.md").unwrap(), ["plans/in/d.md"]);
        assert_eq!(names(&folder, ".env*").unwrap(), [".env", ".env.test"]);
        assert_eq!(names(&folder, "plans/[ab].md").unwrap().len(), 2);
    }

    #[test]
    fn existing_literal_path_wins_over_pattern() {
        let folder = folder(&["plan[1].md", "plan1.md"]);
        assert_eq!(names(&folder, "plan[1].md").unwrap(), ["plan[1].md"]);
        assert_eq!(names(&folder, "missing.md").unwrap(), ["missing.md"], "its reader reports it");
    }

    #[test]
    fn part_that_is_a_name_matches_it_too() {
        let folder = folder(&["[a]/1.md", "a/2.md", "b/3.md", "x[/4.md"]);
        assert_eq!(names(&folder, "[a]/*.md").unwrap(), ["[a]/1.md", "a/2.md"]);
        assert_eq!(names(&folder, "x[/*.md").unwrap(), ["x[/4.md"]);
    }

    #[test]
    fn pattern_without_usable_match_is_an_error() {
        let folder = folder(&["a.md"]);
        assert_eq!(names(&folder, "*.txt").unwrap_err(), "no file matches `*.txt`");
        assert!(names(&folder, "**/*.md").unwrap_err().contains("`**` is not supported"));
        assert!(names(&folder, "a[.md").unwrap_err().starts_with("a[.md: "));
        for number in 0..=MATCHES_MAX {
            fs::write(folder.path().join(format!("{number}.txt")), "").unwrap();
        }
        assert_eq!(names(&folder, "*.txt").unwrap_err(), "`*.txt` matches more than 200 files");
    }

    #[test]
    fn links_out_of_folder_are_not_followed() {
        let outside = folder(&["secret.md"]);
        let folder = folder(&["plans/a.md"]);
        symlink(outside.path().join("secret.md"), folder.path().join("plans/b.md")).unwrap();
        symlink(outside.path(), folder.path().join("other")).unwrap();
        symlink("a.md", folder.path().join("plans/c.md")).unwrap();
        assert_eq!(names(&folder, "plans/*.md").unwrap(), ["plans/a.md", "plans/c.md"]);
        for text in ["other/*.md", "../*/secret.md", &format!("{}/*.md", outside.path().display())] {
            assert!(names(&folder, text).is_err(), "{text}");
        }
    }
}
