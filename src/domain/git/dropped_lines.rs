//! Lines that a merge dropped. Every line that either side added must be in the merge result, unless a commit removed it.
//! [`super::conflict`] has the rule for conflicts.
//!
//! Pure: it counts lines in diffs, without regard to files, so that renaming a file loses no lines. The file also has the names
//! of commit trailers.

use std::collections::HashMap;

/// The trailer by which the author of a merge commit states that it drops lines of either side on purpose.
pub const DROPS_TRAILER: &str = "Brigade-Drops";

/// Number of commit hash digits that people see.
const SHORT_COMMIT_DIGITS: usize = 12;

/// Returns the commit hash as people see it.
pub fn short_commit(commit: &str) -> &str {
    commit.get(..SHORT_COMMIT_DIGITS).unwrap_or(commit)
}
/// The trailer that names the task of a commit.
pub const TASK_TRAILER: &str = "Brigade-Task";
/// The trailer that names the teammate that made a commit.
pub const TEAMMATE_TRAILER: &str = "Brigade-Teammate";
/// The trailer that names the attempt in which a commit was made.
pub const ATTEMPT_TRAILER: &str = "Brigade-Attempt";
/// The trailer of a merge whose agent ended its work without a report. Its value is always `none`.
pub const REPORT_TRAILER: &str = "Brigade-Report";
/// The trailer of a merge that names the reviewer who approved the work.
pub const REVIEW_TRAILER: &str = "Brigade-Reviewed-By";

/// The number of times that a diff adds and removes one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LineCount {
    added: i64,
    removed: i64,
}

impl LineCount {
    fn net(self) -> i64 {
        self.added - self.removed
    }
}

/// The lines that a diff adds and removes, with their counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LineChanges(HashMap<Vec<u8>, LineCount>);

impl LineChanges {
    /// Counts the lines of a unified diff, as `git diff` prints it.
    pub fn of_diff(diff: &[u8]) -> Self {
        let mut lines = Self::default();
        for line in changed_lines(diff) {
            match line {
                ChangedLine::Removed(text) => lines.0.entry(text.to_vec()).or_default().removed += 1,
                ChangedLine::Added { text, .. } => lines.0.entry(text.to_vec()).or_default().added += 1,
                ChangedLine::Hunk { .. } => {}
            }
        }
        lines
    }

    /// Removes the change of `from` to `to` from these changes. `from` and `to` are whole parts of the two files.
    pub fn exclude<'a>(
        &mut self,
        from: impl IntoIterator<Item = &'a Vec<u8>>,
        to: impl IntoIterator<Item = &'a Vec<u8>>,
    ) {
        let mut part: HashMap<&[u8], i64> = HashMap::new();
        from.into_iter().for_each(|line| *part.entry(line).or_default() -= 1);
        to.into_iter().for_each(|line| *part.entry(line).or_default() += 1);
        for (line, net) in part.into_iter().filter(|(_, net)| *net != 0) {
            let count = self.0.entry(line.to_vec()).or_default();
            // The counts may not have the change, because a diff counts moved lines. The difference stays right.
            if net > 0 {
                count.added -= net;
            } else {
                count.removed += net;
            }
            let below = count.added.min(count.removed).min(0);
            (count.added, count.removed) = (count.added - below, count.removed - below);
        }
    }

    /// Returns true if there are fewer of one of these lines after the change.
    pub fn removes_any(&self, lines: &[Vec<u8>]) -> bool {
        lines.iter().any(|line| self.of(line).net() < 0)
    }

    fn of(&self, line: &[u8]) -> LineCount {
        self.0.get(line).copied().unwrap_or_default()
    }
}

/// A changed line of a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedLine<'a> {
    /// The header of a hunk.
    Hunk {
        /// The number of its first line in the old file. If it removes none, that of the line before it.
        first: usize,
        /// The number of lines that it replaces in the old file.
        removed: usize,
    },
    /// A removed line.
    Removed(&'a [u8]),
    /// An added line.
    Added {
        /// The file, as the diff names it.
        file: &'a [u8],
        /// The line.
        text: &'a [u8],
    },
}

/// Returns the changed lines of a unified diff, as `git diff` prints it.
pub fn changed_lines(diff: &[u8]) -> impl Iterator<Item = ChangedLine<'_>> {
    // A `+` or `-` starts a changed line only inside a hunk, whose header gives the number of lines of each side.
    let (mut removed, mut added) = (0_usize, 0_usize);
    let mut file: &[u8] = b"";
    diff.split(|byte| *byte == b'\n').filter_map(move |line| {
        match line.split_first() {
            Some((b'-', text)) if removed > 0 => {
                removed -= 1;
                return Some(ChangedLine::Removed(text));
            }
            Some((b'+', text)) if added > 0 => {
                added -= 1;
                return Some(ChangedLine::Added { file, text });
            }
            Some((b' ', _)) if removed > 0 && added > 0 => (removed, added) = (removed - 1, added - 1),
            Some((b'@', _)) if removed == 0 && added == 0 => {
                let [(first, old), (_, new)] = hunk_ranges(line)?;
                (removed, added) = (old, new);
                return Some(ChangedLine::Hunk { first, removed });
            }
            Some((b'+', _)) => file = line.strip_prefix(b"+++ b/").unwrap_or(file),
            _ => {}
        }
        None
    })
}

/// Parses a hunk header such as `@@ -1,2 +3 @@` into the first line and the number of lines of the old and the new file.
fn hunk_ranges(head: &[u8]) -> Option<[(usize, usize); 2]> {
    // Any bytes may follow the second `@@`.
    let mut words = head.strip_prefix(b"@@ ")?.split(|byte| *byte == b' ');
    let mut range = |sign: char| -> Option<(usize, usize)> {
        let range = std::str::from_utf8(words.next()?).ok()?.strip_prefix(sign)?;
        let (first, count) = range.split_once(',').unwrap_or((range, "1"));
        Some((first.parse().ok()?, count.parse().ok()?))
    };
    Some([range('-')?, range('+')?])
}

/// Returns the lines that a merge dropped, sorted, each once. `ours` and `theirs` are the changes of each side since the merge
/// base, `merged` is the change from ours to the merge result. A line that both sides added may appear once in the result.
pub fn missing_lines(theirs: &LineChanges, ours: &LineChanges, merged: &LineChanges) -> Vec<Vec<u8>> {
    let is_dropped = |line: &&Vec<u8>| {
        let shared = theirs.of(line).added.min(ours.of(line).added);
        merged.of(line).net() < theirs.of(line).net() - shared
    };
    let mut dropped: Vec<Vec<u8>> = theirs.0.keys().chain(merged.0.keys()).filter(is_dropped).cloned().collect();
    dropped.sort_unstable();
    dropped.dedup();
    dropped
}

/// Returns the lines that others added and `change` removes, sorted, each once. Lines without a letter or digit are ignored, as
/// any text may have them.
pub fn removed_lines(others: &LineChanges, change: &LineChanges) -> Vec<Vec<u8>> {
    let has_text = |line: &[u8]| line.iter().any(u8::is_ascii_alphanumeric) || !line.is_ascii();
    let is_dropped = |line: &&Vec<u8>| others.of(line).net() > 0 && change.of(line).net() < 0 && has_text(line);
    let mut dropped: Vec<Vec<u8>> = change.0.keys().filter(is_dropped).cloned().collect();
    dropped.sort_unstable();
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(diff: &str) -> LineChanges {
        LineChanges::of_diff(diff.as_bytes())
    }

    fn dropped(theirs: &str, ours: &str, merged: &str) -> Vec<String> {
        let dropped = missing_lines(&lines(theirs), &lines(ours), &lines(merged));
        dropped.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn diff_headers_are_not_counted_as_lines() {
        let diff = "--- a/f\n+++ b/f\n@@ -1 +1,2 @@ fn x\n--- a\n+++ b\n+@@ -1 +1 @@\n";
        let found = lines(diff);
        assert_eq!(found.of(b"-- a"), LineCount { added: 0, removed: 1 });
        assert_eq!(found.of(b"++ b"), LineCount { added: 1, removed: 0 });
        assert_eq!(found.of(b"@@ -1 +1 @@").added, 1);
        assert_eq!(found.0.len(), 3, "{found:?}");
    }

    #[test]
    fn hunk_header_with_invalid_utf8_is_parsed() {
        let mut diff = b"@@ -0,0 +1 @@ \xff\xfe\n".to_vec();
        diff.extend(b"+x\n\\ No newline at end of file\n");
        assert_eq!(LineChanges::of_diff(&diff).of(b"x").added, 1);
    }

    #[test]
    fn change_removing_lines_of_others_is_detected() {
        let of = |others: &str, change: &str| removed_lines(&lines(others), &lines(change)).len();
        assert_eq!(of(ADDS_A, "@@ -1 +0,0 @@\n-a\n"), 1);
        assert_eq!(of(ADDS_A, "@@ -1 +1 @@\n-a\n+a\n"), 0, "it only moved");
        assert_eq!(of(ADDS_B, "@@ -1 +0,0 @@\n-a\n"), 0, "the others did not add it");
        assert_eq!(of("@@ -1,0 +1 @@\n+}\n", "@@ -1 +0,0 @@\n-}\n"), 0);
    }

    const ADDS_A: &str = "@@ -1,0 +1 @@\n+a\n";
    const ADDS_B: &str = "@@ -1,0 +1 @@\n+b\n";
    const ADDS_NOTHING: &str = "";

    #[test]
    fn merge_missing_line_added_by_one_side_is_lost() {
        assert_eq!(dropped(ADDS_A, ADDS_B, ADDS_A), [""; 0]);
        assert_eq!(dropped(ADDS_A, ADDS_B, ADDS_NOTHING), ["a"]);
    }

    #[test]
    fn merge_removing_line_of_other_side_is_lost() {
        assert_eq!(dropped(ADDS_A, ADDS_B, "@@ -1 +1 @@\n-b\n+a\n"), ["b"]);
    }

    #[test]
    fn merge_may_join_equal_additions_and_keep_removals() {
        assert_eq!(dropped(ADDS_A, ADDS_A, ADDS_NOTHING), [""; 0]);
        let removes_b = "@@ -1 +0,0 @@\n-b\n";
        assert_eq!(dropped(removes_b, ADDS_A, removes_b), [""; 0]);
        assert_eq!(
            dropped("@@ -1,0 +1,2 @@\n+a\n+a\n", ADDS_A, ADDS_NOTHING),
            ["a"],
            "the result has neither of two equal lines"
        );
    }
}
