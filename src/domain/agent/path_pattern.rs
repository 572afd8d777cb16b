//! The paths of calls, and the patterns of rules about them.
//!
//! A path is compared without `.`, `..`, and doubled or trailing slashes, and relative to the member's folder if it is inside. In a
//! pattern, `*` stands for any characters, also for slashes, and `**/` for any number of folders, also for none. All other characters stand
//! for themselves.

/// Returns a path without `.`, `..`, and doubled or trailing slashes. Links are not followed. A path inside `folder` is relative to it; the
/// folder itself is empty. An empty `folder` is not known.
pub fn normalised(path: &str, folder: &str) -> String {
    let path = plain(path);
    let folder = plain(folder);
    match path.strip_prefix(&folder) {
        Some("") if !folder.is_empty() => String::new(),
        Some(rest) if !folder.is_empty() => rest.strip_prefix('/').map_or(path.clone(), str::to_owned),
        _ => path,
    }
}

fn plain(path: &str) -> String {
    let root = if path.starts_with('/') { "/" } else { "" };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if !root.is_empty() => {}
            part => parts.push(part),
        }
    }
    format!("{root}{}", parts.join("/"))
}

/// Returns true if a path leads out of the member's folder. Links are not followed.
pub fn is_outside(path: &str) -> bool {
    let path = plain(path);
    path.starts_with(['/', '~']) || path == ".." || path.starts_with("../")
}

/// Returns true if the pattern is about this path. A pattern about all files of a folder is about the folder too.
pub fn matches(path: &str, pattern: &str) -> bool {
    let path = plain(path);
    let is_folder = pattern.ends_with('/');
    let pattern = plain(pattern) + if is_folder { "/" } else { "" };
    let is_match = |path: &str| is_match(path.as_bytes(), pattern.as_bytes());
    is_match(&path) || (!path.is_empty() && is_match(&format!("{path}/")))
}

/// Returns true if the pattern is about this path, or about a folder above it.
pub fn matches_at_or_above(path: &str, pattern: &str) -> bool {
    let path = plain(path);
    let above = path.match_indices('/').map(|(at, _)| &path[..at]).filter(|folder| !folder.is_empty());
    above.chain([path.as_str()]).any(|path| matches(path, pattern))
}

/// Returns true if the pattern is about this folder, a folder above it, or any path that could be below it.
pub fn can_match_below(folder: &str, pattern: &str) -> bool {
    let is_folder = pattern.ends_with('/');
    let plain_pattern = plain(pattern) + if is_folder { "/" } else { "" };
    let begin = plain(folder) + "/";
    let mut can_match = false;
    each_step(begin.as_bytes(), plain_pattern.as_bytes(), |reached, literal| {
        let fits = |at: usize| reached[at] && literal.starts_with(&begin.as_bytes()[at..]);
        can_match |= (0..=begin.len()).any(fits);
    });
    can_match || matches_at_or_above(folder, pattern)
}

/// Returns true if the text matches the pattern.
fn is_match(text: &[u8], pattern: &[u8]) -> bool {
    each_step(text, pattern, |_, _| ())[text.len()]
}

/// Follows the pattern through the text, and returns the positions in the text at which the pattern can end. Each step keeps the positions
/// that the pattern reached so far; `visit` gets them and the literal text that is next.
fn each_step(text: &[u8], pattern: &[u8], mut visit: impl FnMut(&[bool], &[u8])) -> Vec<bool> {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    let mut rest = pattern;
    while !rest.is_empty() {
        let after_folders = rest.strip_prefix(b"**/");
        let literal = &rest[..rest.iter().position(|byte| *byte == b'*').unwrap_or(rest.len())];
        visit(&reached, literal);
        let mut next = vec![false; text.len() + 1];
        let mut has_start = false;
        for at in 0..=text.len() {
            has_start |= reached[at];
            if after_folders.is_some() {
                next[at] = reached[at] || (has_start && text[..at].ends_with(b"/"));
            } else if literal.is_empty() {
                next[at] = has_start;
            } else if reached[at] && text[at..].starts_with(literal) {
                next[at + literal.len()] = true;
            }
        }
        reached = next;
        rest = after_folders.unwrap_or_else(|| &rest[literal.len().max(1)..]);
    }
    visit(&reached, b"");
    reached
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn path_is_compared_without_detours() {
        for (path, expected) in [
            ("./src//a.rs/", "src/a.rs"),
            ("docs/../src/a.rs", "src/a.rs"),
            ("../a", "../a"),
            ("a/../../b", "../b"),
            ("/srv/team/src/a.rs", "src/a.rs"),
            ("/srv/./team/docs/../src", "src"),
            ("/srv/team", ""),
            ("/srv/teams/a", "/srv/teams/a"),
            ("/../etc", "/etc"),
            (".", ""),
        ] {
            assert_eq!(normalised(path, "/srv/team/"), expected, "{path}");
        }
        assert_eq!(normalised("/etc/passwd", ""), "/etc/passwd");
        for (path, leads_out) in [("a", false), ("a/../b", false), ("..a", false), ("a/../../b", true), ("/a", true)] {
            assert_eq!(is_outside(path), leads_out, "{path}");
        }
    }

    #[test]
    fn pattern_is_about_folder_and_its_files() {
        for (pattern, path, is_about) in [
            ("secrets/**", "secrets", true),
            ("secrets/**", "secrets/a/b", true),
            ("secrets/", "secrets", true),
            ("secrets", "secrets/a/b", true),
            ("./secrets//a", "secrets/a", true),
            ("secrets/**", "secrets2", false),
            ("secrets/*", "x/secrets/a", false),
            ("**/.env", ".env", true),
            ("**/.env", "a/b/.env", true),
            ("**/.env", "a/x.env", false),
            ("a/**/b/**/c", "a/b/x/c", true),
            ("a/**/b/**/c", "a/x/b/c", true),
            ("*/key", "key", false),
            ("*.pem", "deep/ä.pem", true),
            ("app/[slug]/**", "app/[slug]/a", true),
            ("app/[slug]", "app/s", false),
            ("{a}?.md", "{a}?.md", true),
        ] {
            assert_eq!(matches_at_or_above(path, pattern), is_about, "{pattern} {path}");
        }
        for (pattern, folder, can_match) in [
            ("dist/**", "dist", true),
            ("dist/**", "dist/a", true),
            ("dist", "dist/a", true),
            ("node_modules/.cache/**", "node_modules", true),
            ("node_modules/.cache/**", "node_modules/left-pad", false),
            ("target/release/x", "target/release", true),
            ("target/release/x", "target/debug", false),
            ("reports/**", "target", false),
            ("*.bin", "target", true),
            ("**/dist/**", "a/node_modules", true),
            (".coverage", "node_modules", false),
            ("./dist//a", "dist", true),
        ] {
            assert_eq!(can_match_below(folder, pattern), can_match, "{pattern} {folder}");
        }
        assert!(!matches("secrets/a", "secrets") && matches("secrets", "secrets/**"));
    }

    proptest! {
        #[test]
        fn detours_change_no_decision(
            folders in proptest::collection::vec("[ab]", 0..4),
            detours in proptest::collection::vec(0..4_usize, 0..6),
            pattern in "[ab*/.]{1,8}",
        ) {
            let detour = |at: usize| match detours.get(at) {
                Some(1) => "./",
                Some(2) => "b/../",
                Some(3) => "/",
                _ => "",
            };
            let mut path = String::new();
            for (at, folder) in folders.iter().enumerate() {
                path.push_str(if at == 0 && detour(at) == "/" { "" } else { detour(at) });
                path.push_str(&format!("{folder}/"));
            }
            let direct = folders.join("/");
            prop_assert_eq!(normalised(&path, "/w"), direct.clone());
            prop_assert_eq!(normalised(&format!("/w/{path}"), "/w"), direct.clone());
            prop_assert_eq!(matches(&path, &pattern), matches(&direct, &pattern));
            prop_assert_eq!(matches_at_or_above(&path, &pattern), matches_at_or_above(&direct, &pattern));
        }
    }
}
