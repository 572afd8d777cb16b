//! Patterns of files in settings, such as `plans/*.md`.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern, PatternError};

/// The most files that a pattern may match.
const MATCHES_MAX: usize = 200;
/// As in a shell: `*` matches neither `/` nor a dot at the beginning of a name.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Returns the plain files below `folder` that `text` matches, sorted, each as the text would name it. A text that is the path of an existing
/// file, or that has no wildcard, names itself. Links that leave `folder` are not followed.
///
/// # Errors
/// A text for people: the pattern is invalid, or matches no file or too many.
pub(super) fn matching_files(folder: &Path, text: &str) -> Result<Vec<PathBuf>, String> {
    let is_literal = !text.contains(['*', '?', '[']) || folder.join(text).symlink_metadata().is_ok();
    if is_literal {
        return Ok(vec![PathBuf::from(text)]);
    }
    if text.contains("**") {
        return Err("`**` is not supported: write one `*` for each folder, such as plans/*/*.md".to_owned());
    }
    let (Ok(real_folder), Some(base)) = (folder.canonicalize(), folder.to_str()) else {
        return Err(format!("cannot list {}", folder.display()));
    };
    // An absolute text stays as it is.
    let whole = Path::new(&Pattern::escape(base)).join(text);
    let invalid = |error: PatternError| format!("{text}: {error}");
    let pattern = Pattern::new(&whole.to_string_lossy()).map_err(invalid)?;
    // With this option, the walk would leave out all names with a dot.
    let walk = MatchOptions { require_literal_leading_dot: false, ..OPTIONS };
    let found = glob::glob_with(pattern.as_str(), walk).map_err(invalid)?;
    let is_plain = |path: &PathBuf| {
        pattern.matches_path_with(path, OPTIONS)
            && path.canonicalize().is_ok_and(|real| real.starts_with(&real_folder) && real.is_file())
    };
    let files: Vec<PathBuf> = found.flatten().filter(is_plain).take(MATCHES_MAX + 1).collect();
    match files.len() {
        0 => Err(format!("no file matches `{text}`")),
        1..=MATCHES_MAX => {
            let mut named: Vec<PathBuf> =
                files.iter().map(|file| file.strip_prefix(folder).unwrap_or(file).to_owned()).collect();
            named.sort();
            Ok(named)
        }
        _ => Err(format!("`{text}` matches more than {MATCHES_MAX} files")),
    }
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
