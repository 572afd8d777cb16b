//! Patterns of files, such as `src/**/*.rs`: `*` stays within a folder, `**` crosses folders, `[ab]` and `{a,b}` match one of them.
//!
//! Names of real files have these characters too, as `app/[slug]/page.tsx` in a web application. So each part of a pattern also matches
//! the name that is equal to it: an existing path is found by its own text.

use std::ffi::OsStr;
use std::path::{Component, Path};

use globset::{GlobBuilder, GlobMatcher};

/// The characters that a pattern reads in another way, so that a name with them does not match itself.
const READ_IN_ANOTHER_WAY: [char; 4] = ['[', '{', '}', '\\'];
const ANY_FOLDERS: &str = "**";

/// A pattern of paths.
#[derive(Debug, Clone)]
pub struct PathGlob {
    /// The pattern as a whole, with braces that have slashes in them; the error if it is only a path.
    whole: Result<GlobMatcher, String>,
    /// The parts between slashes, if one of them can be equal to a name that it does not match.
    parts: Vec<NameGlob>,
}

/// A part of a pattern, without slashes.
#[derive(Debug, Clone)]
pub struct NameGlob {
    text: String,
    glob: Option<GlobMatcher>,
}

impl PathGlob {
    /// Reads a pattern. One that is not valid matches the path that is equal to it.
    pub fn new(pattern: &str) -> Self {
        let has_other_reading = pattern.contains(READ_IN_ANOTHER_WAY);
        let parts = if has_other_reading { pattern.split('/').map(NameGlob::new).collect() } else { Vec::new() };
        Self { whole: matcher_of(pattern), parts }
    }

    /// Returns true if the path matches.
    pub fn matches(&self, path: &Path) -> bool {
        self.whole.as_ref().is_ok_and(|glob| glob.is_match(path)) || self.matches_in_parts(path)
    }

    /// Returns the reason why the pattern is only a path.
    pub fn error(&self) -> Option<&str> {
        self.whole.as_ref().err().map(String::as_str)
    }

    /// Each step keeps the numbers of names that the parts so far can match.
    fn matches_in_parts(&self, path: &Path) -> bool {
        if self.parts.is_empty() {
            return false;
        }
        let names: Vec<&OsStr> =
            path.components().filter(|name| *name != Component::CurDir).map(Component::as_os_str).collect();
        let mut reached = vec![false; names.len() + 1];
        reached[0] = true;
        for part in &self.parts {
            let mut next = vec![false; names.len() + 1];
            let mut has_start = false;
            for at in 0..=names.len() {
                has_start |= reached[at];
                if part.text == ANY_FOLDERS {
                    next[at] = has_start;
                } else if reached[at] && names.get(at).is_some_and(|name| part.matches(name)) {
                    next[at + 1] = true;
                }
            }
            reached = next;
        }
        reached[names.len()]
    }
}

impl NameGlob {
    /// Reads a part of a pattern. One that is not valid matches the name that is equal to it.
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), glob: matcher_of(text).ok() }
    }

    /// Returns true if the name of a file or folder matches, or is equal to it.
    pub fn matches(&self, name: &OsStr) -> bool {
        name.as_encoded_bytes() == self.text.as_bytes() || self.glob.as_ref().is_some_and(|glob| glob.is_match(name))
    }
}

fn matcher_of(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pattern_matches_both_readings_of_a_part() {
        for (pattern, path, is_match) in [
            ("app/[slug]/*.tsx", "app/[slug]/page.tsx", true),
            ("app/[slug]/*.tsx", "app/s/page.tsx", true),
            ("app/[slug]/*.tsx", "app/x/page.tsx", false),
            ("app/[slug]/*.tsx", "app/[slug]/in/page.tsx", false),
            ("app/[...all]/**", "app/[...all]/a/b.ts", true),
            ("app/[[...all]]/**/b.ts", "app/[[...all]]/b.ts", true),
            ("**/[id]/page.tsx", "app/[slug]/[id]/page.tsx", true),
            ("(group)/page.tsx", "(group)/page.tsx", true),
            ("{a}/x", "{a}/x", true),
            ("{a}/x", "a/x", true),
            ("{a/b,c}/[x].md", "a/b/x.md", true),
            ("file[1].txt", "file[1].txt", true),
            ("file[1].txt", "file1.txt", true),
            ("what?.md", "what?.md", true),
            ("a[", "a[", true),
            ("a[/*.md", "a[/b.md", true),
            (r"a\[b]", "a[b]", true),
            (r"a\b", r"a\b", true),
        ] {
            assert_eq!(PathGlob::new(pattern).matches(Path::new(path)), is_match, "{pattern} {path}");
        }
        assert!(PathGlob::new("a[/x").error().is_some() && PathGlob::new("[a]/x").error().is_none());
    }

    proptest! {
        #[test]
        fn path_is_found_by_its_own_text(path in r"[a\[\]{}()!?*.,\\ -]{1,6}(/[a\[\]{}!?*\\^-]{1,6}){0,2}") {
            // A `.` part is none.
            prop_assume!(!path.split('/').any(|name| name == "."));
            prop_assert!(PathGlob::new(&path).matches(Path::new(&path)), "{}", path);
            prop_assert!(PathGlob::new(&format!("**/{path}")).matches(&Path::new("x/y").join(&path)), "{}", path);
        }
    }
}
