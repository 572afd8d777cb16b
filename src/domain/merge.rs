//! What a merge must keep: every line that either side added is in the result, or was taken out by a commit. Pure: it is
//! handed diffs and counts lines, whatever file they stand in, so that a renamed file loses nothing by its new name.

use std::collections::HashMap;

/// The trailer by which the author of a merge commit says that lines of either side were left out on purpose.
pub const DROPS_TRAILER: &str = "Brigade-Drops";
/// How it ends when a checkout follows the branch again: good news, among what else is told of worktrees.
pub const FOLLOWS_AGAIN: &str = " again, with all merges";

/// How many letters of a commit's number people are shown.
const COMMIT_SHOWN: usize = 12;

/// A commit as people are shown it.
#[must_use]
pub fn short_commit(commit: &str) -> &str {
    commit.get(..COMMIT_SHOWN).unwrap_or(commit)
}
/// The trailer that names the task of a commit.
pub const TASK_TRAILER: &str = "Brigade-Task";
/// The trailer that names who made a commit.
pub const TEAMMATE_TRAILER: &str = "Brigade-Teammate";
/// The trailer that names the attempt a commit was made in.
pub const ATTEMPT_TRAILER: &str = "Brigade-Attempt";

/// How often a diff adds and removes one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    added: i64,
    removed: i64,
}

impl Count {
    fn net(self) -> i64 {
        self.added - self.removed
    }
}

/// The lines a diff adds and removes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lines(HashMap<Vec<u8>, Count>);

impl Lines {
    /// Counts the lines of a unified diff, as `git diff` prints it.
    #[must_use]
    pub fn of_diff(diff: &[u8]) -> Self {
        let mut lines = Self::default();
        // What begins with `+` or `-` is a line only within a hunk, whose head says how many it has of each.
        let (mut removed, mut added) = (0_usize, 0_usize);
        for line in diff.split(|byte| *byte == b'\n') {
            match line.split_first() {
                Some((b'-', text)) if removed > 0 => {
                    removed -= 1;
                    lines.0.entry(text.to_vec()).or_default().removed += 1;
                }
                Some((b'+', text)) if added > 0 => {
                    added -= 1;
                    lines.0.entry(text.to_vec()).or_default().added += 1;
                }
                Some((b' ', _)) if removed > 0 && added > 0 => (removed, added) = (removed - 1, added - 1),
                Some((b'@', _)) if removed == 0 && added == 0 => (removed, added) = hunk(line).unwrap_or_default(),
                _ => {}
            }
        }
        lines
    }

    fn of(&self, line: &[u8]) -> Count {
        self.0.get(line).copied().unwrap_or_default()
    }
}

/// How many lines a hunk has of the former and of the later file: `@@ -1,2 +3 @@`.
fn hunk(head: &[u8]) -> Option<(usize, usize)> {
    let head = std::str::from_utf8(head.get(..head.len().min(100))?).ok().or_else(|| {
        // Behind the second `@@` any bytes may stand.
        let end = head.windows(3).skip(2).position(|window| window == b" @@").map(|at| at + 2)?;
        std::str::from_utf8(&head[..end]).ok()
    })?;
    let mut words = head.strip_prefix("@@ ")?.split(' ');
    let mut count = |sign: char| -> Option<usize> {
        let range = words.next()?.strip_prefix(sign)?;
        range.split_once(',').map_or(Some(1), |(_, count)| count.parse().ok())
    };
    Some((count('-')?, count('+')?))
}

/// The lines that a merge does not account for, each once, in order. `ours` and `theirs` are what each side made of where they parted,
/// `merged` what the merge made of ours. A line that both sides added may have become one.
#[must_use]
pub fn unaccounted(theirs: &Lines, ours: &Lines, merged: &Lines) -> Vec<Vec<u8>> {
    let is_lost = |line: &&Vec<u8>| {
        let shared = theirs.of(line).added.min(ours.of(line).added);
        merged.of(line).net() < theirs.of(line).net() - shared
    };
    let mut lost: Vec<Vec<u8>> = theirs.0.keys().chain(merged.0.keys()).filter(is_lost).cloned().collect();
    lost.sort_unstable();
    lost.dedup();
    lost
}

/// The lines that others added and that are fewer after a change, each once, in order; those without a letter or a digit are everybody's.
#[must_use]
pub fn taken_out(others: &Lines, change: &Lines) -> Vec<Vec<u8>> {
    let says_something = |line: &[u8]| line.iter().any(u8::is_ascii_alphanumeric) || !line.is_ascii();
    let is_lost = |line: &&Vec<u8>| others.of(line).net() > 0 && change.of(line).net() < 0 && says_something(line);
    let mut lost: Vec<Vec<u8>> = change.0.keys().filter(is_lost).cloned().collect();
    lost.sort_unstable();
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(diff: &str) -> Lines {
        Lines::of_diff(diff.as_bytes())
    }

    fn lost(theirs: &str, ours: &str, merged: &str) -> Vec<String> {
        let lost = unaccounted(&lines(theirs), &lines(ours), &lines(merged));
        lost.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn heads_of_files_are_no_lines_and_lines_that_look_like_heads_are() {
        let diff = "--- a/f\n+++ b/f\n@@ -1 +1,2 @@ fn x\n--- a\n+++ b\n+@@ -1 +1 @@\n";
        let found = lines(diff);
        assert_eq!(found.of(b"-- a"), Count { added: 0, removed: 1 });
        assert_eq!(found.of(b"++ b"), Count { added: 1, removed: 0 });
        assert_eq!(found.of(b"@@ -1 +1 @@").added, 1);
        assert_eq!(found.0.len(), 3, "{found:?}");
    }

    #[test]
    fn a_hunk_behind_which_no_text_stands_is_read_too() {
        let mut diff = b"@@ -0,0 +1 @@ \xff\xfe\n".to_vec();
        diff.extend(b"+x\n\\ No newline at end of file\n");
        assert_eq!(Lines::of_diff(&diff).of(b"x").added, 1);
    }

    #[test]
    fn what_others_added_and_a_change_removes_is_taken_out() {
        let of = |others: &str, change: &str| taken_out(&lines(others), &lines(change)).len();
        assert_eq!(of(ADDS_A, "@@ -1 +0,0 @@\n-a\n"), 1);
        assert_eq!(of(ADDS_A, "@@ -1 +1 @@\n-a\n+a\n"), 0, "it was moved");
        assert_eq!(of(ADDS_B, "@@ -1 +0,0 @@\n-a\n"), 0, "nobody added it meanwhile");
        assert_eq!(of("@@ -1,0 +1 @@\n+}\n", "@@ -1 +0,0 @@\n-}\n"), 0);
    }

    const ADDS_A: &str = "@@ -1,0 +1 @@\n+a\n";
    const ADDS_B: &str = "@@ -1,0 +1 @@\n+b\n";
    const ADDS_NOTHING: &str = "";

    #[test]
    fn what_one_side_added_must_be_there() {
        assert_eq!(lost(ADDS_A, ADDS_B, ADDS_A), [""; 0]);
        assert_eq!(lost(ADDS_A, ADDS_B, ADDS_NOTHING), ["a"]);
    }

    #[test]
    fn what_the_other_side_has_must_stay() {
        assert_eq!(lost(ADDS_A, ADDS_B, "@@ -1 +1 @@\n-b\n+a\n"), ["b"]);
    }

    #[test]
    fn what_both_added_may_be_one_and_what_one_removed_may_be_gone() {
        assert_eq!(lost(ADDS_A, ADDS_A, ADDS_NOTHING), [""; 0]);
        let removes_b = "@@ -1 +0,0 @@\n-b\n";
        assert_eq!(lost(removes_b, ADDS_A, removes_b), [""; 0]);
        assert_eq!(lost("@@ -1,0 +1,2 @@\n+a\n+a\n", ADDS_A, ADDS_NOTHING), ["a"], "two became none");
    }
}
