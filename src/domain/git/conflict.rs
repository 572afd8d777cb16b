//! Resolved conflicts. Inside a conflict hunk every token that either side added must survive, so that the lines of both sides may be
//! joined. Outside of conflict hunks the rule is about lines; see [`super::dropped_lines`].
//!
//! Pure: it compares the file with git's conflict markers and the commit that resolves them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::dropped_lines::{ChangedLine, LineChanges, changed_lines, missing_lines};

/// The shortest conflict marker; see gitattributes(5), conflict-marker-size.
const MARKER_LENGTH_MIN: usize = 7;
/// Hunks with at most this number of lines between them are shown as one by git.
const GAP_LINES_MAX: usize = 3;
/// Characters that separate or enclose tokens. Joined lines need fewer or others.
const SEPARATORS: [char; 8] = [',', ';', '(', ')', '[', ']', '{', '}'];

/// A side of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first parent.
    Ours,
    /// The second parent.
    Theirs,
}

/// A part of a file that both sides changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConflictHunk {
    /// Its lines in the file with markers, including the markers; from 0.
    pub range: Range<usize>,
    /// The lines of the first parent.
    pub ours: Vec<Vec<u8>>,
    /// The lines of the merge base.
    pub base: Vec<Vec<u8>>,
    /// The lines of the second parent.
    pub theirs: Vec<Vec<u8>>,
}

/// A conflict hunk, and the lines that replace it in a merge commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedHunk {
    /// The file.
    pub file: String,
    /// The hunk.
    pub hunk: ConflictHunk,
    /// The lines that replace it.
    pub resolution: Vec<Vec<u8>>,
}

impl ResolvedHunk {
    /// Returns the lines of both sides whose tokens are all in the resolution.
    pub fn complete_lines(&self) -> impl Iterator<Item = &Vec<u8>> {
        let incomplete = self.hunk.incomplete_lines(&self.resolution);
        let is_complete =
            move |line: &&Vec<u8>| !incomplete.iter().any(|other| other.line == String::from_utf8_lossy(line));
        self.hunk.ours.iter().chain(&self.hunk.theirs).filter(is_complete)
    }

    /// Returns true if the resolution has this line, git puts such lines between the sides of a conflict, and no side has it.
    pub fn has_separator(&self, line: &[u8]) -> bool {
        let has = |lines: &[Vec<u8>]| lines.iter().any(|other| other == line);
        is_separator(line) && has(&self.resolution) && !has(&self.hunk.ours) && !has(&self.hunk.theirs)
    }
}

/// The lines that a merge commit dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DroppedLines {
    /// Lines outside of conflict hunks.
    pub outside: Vec<Vec<u8>>,
    /// Lines of conflict hunks, with their files.
    pub inside: Vec<(String, IncompleteLine)>,
}

/// The changes of the two sides of a merge since its base, and the change from the first side to the merge commit.
#[derive(Debug, Clone, Default)]
pub struct MergeChanges {
    /// The changes of the first parent.
    pub ours: LineChanges,
    /// The changes of the second parent.
    pub theirs: LineChanges,
    /// The changes from the first parent to the merge.
    pub merge: LineChanges,
}

impl MergeChanges {
    /// Returns the lines that the merge commit dropped. `hunks` are its conflicts.
    pub fn dropped_lines(mut self, hunks: &[ResolvedHunk]) -> DroppedLines {
        let mut dropped = DroppedLines::default();
        for ResolvedHunk { file, hunk, resolution } in hunks {
            self.ours.exclude(&hunk.base, &hunk.ours);
            self.theirs.exclude(&hunk.base, &hunk.theirs);
            self.merge.exclude(&hunk.ours, resolution);
            dropped.inside.extend(hunk.incomplete_lines(resolution).into_iter().map(|line| (file.clone(), line)));
        }
        dropped.outside = missing_lines(&self.theirs, &self.ours, &self.merge);
        dropped
    }
}

/// A change to a file: a hunk of a diff without context lines.
struct Edit {
    /// The replaced lines, from 0. Empty for an insertion before its start.
    replaced: Range<usize>,
    /// The new lines.
    lines: Vec<Vec<u8>>,
}

/// A line that one side added, with tokens that are missing in a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteLine {
    /// The side.
    pub side: Side,
    /// The line.
    pub line: String,
    /// Its tokens that are missing. Empty if all of them are.
    pub missing: Vec<String>,
}

/// The part of a conflict hunk that a line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Ours,
    Base,
    Theirs,
}

/// Returns the conflict hunks of a file, and their resolution. `marked` is the file with git's markers in the style `diff3`, where
/// `sides` are the names of the first and the second parent. `diff` leads from it to the resolved file, without context lines.
pub fn resolved_hunks(file: &str, marked: &[u8], sides: [&str; 2], diff: &[u8]) -> Vec<ResolvedHunk> {
    let edits = edits(diff);
    let lines = marked.split(|byte| *byte == b'\n').collect::<Vec<_>>();
    let mut hunks: Vec<ConflictHunk> = Vec::new();
    for hunk in conflict_hunks(marked, sides[0], sides[1]) {
        match hunks.last_mut() {
            Some(last) if last.is_near(&hunk, &edits) => last.join(hunk, &lines),
            _ => hunks.push(hunk),
        }
    }
    let resolved = |hunk: ConflictHunk| {
        let resolution = hunk.resolution(&lines, &edits);
        ResolvedHunk { file: file.to_owned(), hunk, resolution }
    };
    hunks.into_iter().map(resolved).collect()
}

/// Returns the conflict hunks of a file with git's markers in the style `diff3`.
fn conflict_hunks(text: &[u8], ours: &str, theirs: &str) -> Vec<ConflictHunk> {
    let mut hunks = Vec::new();
    let mut current: Option<(ConflictHunk, Part, usize)> = None;
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let marker = line.strip_suffix(b"\r").unwrap_or(line);
        let Some((hunk, part, length)) = &mut current else {
            if let Some(length) = marker_length(marker, b'<', ours) {
                let range = number..number;
                current = Some((ConflictHunk { range, ..ConflictHunk::default() }, Part::Ours, length));
            }
            continue;
        };
        let is_marker = |letter: u8| marker.iter().take_while(|byte| **byte == letter).count() == *length;
        if marker_length(marker, b'>', theirs) == Some(*length) {
            hunk.range.end = number + 1;
            hunks.extend(current.take().map(|(hunk, ..)| hunk));
        } else if *part == Part::Ours && is_marker(b'|') {
            *part = Part::Base;
        } else if *part == Part::Base && is_marker(b'=') && marker.len() == *length {
            *part = Part::Theirs;
        } else {
            let lines = match part {
                Part::Ours => &mut hunk.ours,
                Part::Base => &mut hunk.base,
                Part::Theirs => &mut hunk.theirs,
            };
            lines.push(line.to_vec());
        }
    }
    hunks
}

/// Returns true for a line as git puts it between the sides of a conflict. Other text can have such lines, too.
fn is_separator(line: &[u8]) -> bool {
    line.trim_ascii_end() == b"=======" || line.starts_with(b"||||||| ")
}

/// Returns the length of a marker of this letter and name.
fn marker_length(line: &[u8], letter: u8, name: &str) -> Option<usize> {
    let length = line.iter().take_while(|byte| **byte == letter).count();
    let rest = line[length..].strip_prefix(b" ")?;
    (length >= MARKER_LENGTH_MIN && rest.starts_with(name.as_bytes())).then_some(length)
}

/// Returns the changes in a diff of one file without context lines, as `git diff -U0` prints it.
fn edits(diff: &[u8]) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    for line in changed_lines(diff) {
        match (line, edits.last_mut()) {
            (ChangedLine::Hunk { first, removed }, _) => {
                // For an insertion, git names the line before it.
                let start = if removed == 0 { first } else { first.saturating_sub(1) };
                edits.push(Edit { replaced: start..start + removed, lines: Vec::new() });
            }
            (ChangedLine::Added { text, .. }, Some(edit)) => edit.lines.push(text.to_vec()),
            _ => {}
        }
    }
    edits
}

impl ConflictHunk {
    /// Returns true if git shows this hunk and the next one as one, or if one edit resolves both.
    fn is_near(&self, next: &Self, edits: &[Edit]) -> bool {
        let is_close = next.range.start - self.range.end <= GAP_LINES_MAX;
        is_close || edits.iter().any(|edit| self.is_touched_by(edit) && next.is_touched_by(edit))
    }

    /// Adds the next hunk, and the lines between. Their tokens must survive too.
    fn join(&mut self, next: Self, marked: &[&[u8]]) {
        let between: Vec<Vec<u8>> = (self.range.end..next.range.start)
            .filter_map(|number| marked.get(number))
            .map(|line| line.to_vec())
            .collect();
        self.ours.extend(between.iter().cloned().chain(next.ours));
        self.theirs.extend(between.into_iter().chain(next.theirs));
        self.base.extend(next.base);
        self.range.end = next.range.end;
    }

    fn is_touched_by(&self, edit: &Edit) -> bool {
        edit.replaced.start <= self.range.end && edit.replaced.end >= self.range.start
    }

    /// Returns the lines that replace this hunk. `edits` are the changes from `marked`, the lines of the file with markers, to the
    /// resolution.
    fn resolution(&self, marked: &[&[u8]], edits: &[Edit]) -> Vec<Vec<u8>> {
        let touching = || edits.iter().filter(|edit| self.is_touched_by(edit));
        let is_kept = |number: &usize| !touching().any(|edit| edit.replaced.contains(number));
        let kept = self.range.clone().filter(is_kept).filter_map(|number| marked.get(number));
        kept.map(|line| line.to_vec()).chain(touching().flat_map(|edit| edit.lines.iter().cloned())).collect()
    }

    /// Returns the added lines with tokens that are missing in the resolution. A token that both sides added is needed once.
    pub fn incomplete_lines(&self, resolution: &[Vec<u8>]) -> Vec<IncompleteLine> {
        let missing = self.missing_tokens(resolution);
        let is_gone = |line: &Vec<u8>| !self.base.contains(line) && !resolution.contains(line);
        let lines = self.lines_with(&missing, is_gone);
        // The resolution has fewer copies of equal lines.
        if lines.is_empty() { self.lines_with(&missing, |_| true) } else { lines }
    }

    /// Returns the tokens that a side added and that are missing in the resolution.
    fn missing_tokens(&self, resolution: &[Vec<u8>]) -> HashSet<String> {
        let [base, ours, theirs] = [&self.base, &self.ours, &self.theirs].map(|lines| count_tokens(lines));
        let present = count_tokens(resolution);
        let is_missing = |token: &&String| {
            let [base, ours, theirs, present] = [&base, &ours, &theirs, &present].map(|counts| count_of(counts, token));
            let added = ours.saturating_sub(base).max(theirs.saturating_sub(base));
            let removed = base.saturating_sub(ours) + base.saturating_sub(theirs);
            added > 0 && present < added + base.saturating_sub(removed)
        };
        ours.keys().chain(theirs.keys()).filter(is_missing).cloned().collect()
    }

    /// Returns the lines of both sides that pass `filter` and have some of these tokens.
    fn lines_with(&self, missing: &HashSet<String>, filter: impl Fn(&Vec<u8>) -> bool) -> Vec<IncompleteLine> {
        let base = count_tokens(&self.base);
        let mut lines = Vec::new();
        for (side, of_side) in [(Side::Ours, &self.ours), (Side::Theirs, &self.theirs)] {
            let counts = count_tokens(of_side);
            let is_added = |token: &str| count_of(&counts, token) > count_of(&base, token);
            for line in of_side.iter().filter(|line| filter(line)) {
                let (gone, present): (Vec<String>, Vec<String>) =
                    tokens(line).into_iter().partition(|token| missing.contains(token) && is_added(token));
                if !gone.is_empty() {
                    let line = String::from_utf8_lossy(line).into_owned();
                    lines.push(IncompleteLine { side, line, missing: if present.is_empty() { present } else { gone } });
                }
            }
        }
        lines
    }
}

fn count_of(counts: &HashMap<String, usize>, token: &str) -> usize {
    counts.get(token).copied().unwrap_or(0)
}

fn count_tokens(lines: &[Vec<u8>]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for token in lines.iter().flat_map(|line| tokens(line)) {
        *counts.entry(token).or_default() += 1;
    }
    counts
}

/// Returns the tokens of a line: words, and each other character except space and [`SEPARATORS`].
fn tokens(line: &[u8]) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut is_in_word = false;
    for letter in String::from_utf8_lossy(line).chars() {
        let is_word = letter.is_alphanumeric() || letter == '_';
        match tokens.last_mut() {
            Some(word) if is_word && is_in_word => word.push(letter),
            _ if letter.is_whitespace() || SEPARATORS.contains(&letter) => {}
            _ => tokens.push(letter.to_string()),
        }
        is_in_word = is_word;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &str) -> Vec<Vec<u8>> {
        text.lines().map(|line| line.as_bytes().to_vec()).collect()
    }

    fn hunk(base: &str, ours: &str, theirs: &str) -> ConflictHunk {
        let [base, ours, theirs] = [base, ours, theirs].map(lines);
        ConflictHunk { range: 0..0, ours, base, theirs }
    }

    /// The lines of which a resolution lacks tokens, with these tokens.
    fn incomplete(hunk: &ConflictHunk, resolution: &str) -> Vec<(String, String)> {
        let lines = hunk.incomplete_lines(&lines(resolution));
        lines.into_iter().map(|line| (line.line, line.missing.join(" "))).collect()
    }

    #[test]
    fn joined_lines_with_all_tokens_are_complete() {
        for (base, ours, theirs, resolution) in [
            ("", "import a, b", "import a, c", "import a, b, c"),
            ("", "import a, b", "import a, c", "import a\nimport b\nimport c"),
            ("use x::{a};", "use x::{a, b};", "use x::{a, c};", "use x::{a, b, c};"),
            ("f(a)", "f(a, b)", "f(a) + 1", "f(a, b) + 1"),
            ("", "first", "second", "second\nfirst"),
            ("old", "new", "", "new"),
            ("same", "same", "same", ""),
        ] {
            let incomplete = incomplete(&hunk(base, ours, theirs), resolution);
            assert!(incomplete.is_empty(), "{resolution}: {incomplete:?}");
        }
    }

    #[test]
    fn dropped_tokens_are_named_with_their_line() {
        let conflict = hunk("", "import a, b", "import a, c");
        assert_eq!(incomplete(&conflict, "import a, b"), [("import a, c".to_owned(), "c".to_owned())]);
        assert_eq!(incomplete(&conflict, "").len(), 2);
        assert_eq!(incomplete(&hunk("", "x\nx", "y"), "x\ny"), vec![("x".to_owned(), String::new()); 2]);
        assert_eq!(incomplete(&hunk("n = 1", "n = -1", "n = 1.5"), "n = 1.5"), [("n = -1".to_owned(), "-".to_owned())]);
        let sides: Vec<Side> =
            hunk("", "a", "b").incomplete_lines(&[]).into_iter().map(|incomplete| incomplete.side).collect();
        assert_eq!(sides, [Side::Ours, Side::Theirs]);
    }

    #[test]
    fn changed_token_leaves_other_lines_complete() {
        let hunk = hunk("", "import a, b\nx = 1", "import a, c");
        let resolved = ResolvedHunk { file: "f".to_owned(), hunk, resolution: lines("import a, b, c\nx = 3") };
        let complete: Vec<Vec<u8>> = resolved.complete_lines().cloned().collect();
        assert_eq!(complete, lines("import a, b\nimport a, c"));
    }

    const MARKED: &str =
        "one\n<<<<<<< aaa\nours\n=======\n||||||| base\nwas\n=======\ntheirs\n>>>>>>> bbb\ntwo\n<<<<<<< other\n";

    #[test]
    fn markers_of_sides_delimit_hunks() {
        let hunks = conflict_hunks(MARKED.as_bytes(), "aaa", "bbb");
        assert_eq!(hunks, [ConflictHunk { range: 1..9, ..hunk("was", "ours\n=======", "theirs") }]);
        assert_eq!(conflict_hunks(MARKED.replace('\n', "\r\n").as_bytes(), "aaa", "bbb").len(), 1);
        assert!(conflict_hunks(MARKED.as_bytes(), "aaa", "ccc").is_empty());
    }

    #[test]
    fn resolution_is_kept_and_new_lines_at_hunk() {
        let marked: Vec<&[u8]> = MARKED.split('\n').map(str::as_bytes).collect();
        let hunk = &conflict_hunks(MARKED.as_bytes(), "aaa", "bbb")[0];
        let diff = "@@ -2 +1,0 @@\n-<<<<<<< aaa\n@@ -4,4 +2 @@\n-=======\n-||||||| base\n-was\n-=======\n+between\n@@ -9 +4,0 @@\n->>>>>>> bbb\n@@ -11 +6 @@\n-<<<<<<< other\n+elsewhere\n";
        let resolution = hunk.resolution(&marked, &edits(diff.as_bytes()));
        assert_eq!(resolution, lines("ours\ntheirs\nbetween"));
    }

    #[test]
    fn near_hunks_are_resolved_as_one() {
        let marked = |between: &str| {
            let hunk = |name: &str| format!("<<<<<<< a\n{name} ours\n||||||| o\n=======\n{name} theirs\n>>>>>>> b\n");
            format!("{}{between}{}", hunk("first"), hunk("second"))
        };
        let resolved =
            |between: &str, diff: &str| resolved_hunks("f", marked(between).as_bytes(), ["a", "b"], diff.as_bytes());
        let joined = resolved("between\n", "@@ -1,13 +1 @@\n+first ours theirs between second ours theirs\n");
        assert_eq!(joined.len(), 1, "{joined:?}");
        assert_eq!(joined[0].hunk.ours, lines("first ours\nbetween\nsecond ours"));
        assert_eq!(joined[0].hunk.incomplete_lines(&joined[0].resolution), []);
        assert_eq!(joined[0].hunk.incomplete_lines(&lines("first ours theirs second ours theirs")).len(), 2);
        let far = "1\n2\n3\n4\n";
        assert_eq!(resolved(far, "@@ -1,16 +1 @@\n+all\n").len(), 1, "one edit for both");
        assert_eq!(resolved(far, "@@ -1,6 +1 @@\n+x\n@@ -11,6 +6 @@\n+y\n").len(), 2);
    }

    /// A part of a merged file.
    #[derive(Debug, Clone)]
    enum Segment {
        /// A line that no side changed.
        Unchanged(String),
        /// Lines that only one side added.
        Added(bool, Vec<String>),
        Conflict {
            base: Vec<String>,
            ours: Vec<String>,
            theirs: Vec<String>,
            resolution: Vec<String>,
        },
    }

    fn any_line() -> impl Strategy<Value = String> {
        prop::collection::vec("[abc+]", 1..4).prop_map(|tokens| tokens.join(" "))
    }

    fn any_lines() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(any_line(), 0..3)
    }

    fn any_segment() -> impl Strategy<Value = Segment> {
        prop_oneof![
            any_line().prop_map(Segment::Unchanged),
            (any::<bool>(), any_lines()).prop_map(|(is_ours, lines)| Segment::Added(is_ours, lines)),
            (any_lines(), any_lines(), any_lines(), prop::collection::vec(any_line(), 0..5))
                .prop_map(|(base, ours, theirs, resolution)| Segment::Conflict { base, ours, theirs, resolution }),
        ]
    }

    #[derive(Default)]
    struct Files {
        base: Vec<Vec<u8>>,
        ours: Vec<Vec<u8>>,
        theirs: Vec<Vec<u8>>,
        merged: Vec<Vec<u8>>,
        hunks: Vec<ResolvedHunk>,
    }

    fn bytes(lines: &[String]) -> Vec<Vec<u8>> {
        lines.iter().map(|line| line.as_bytes().to_vec()).collect()
    }

    /// The files of a merge. `resolve` returns a resolution for the sides and the random one.
    fn files(segments: &[Segment], resolve: impl Fn(&[String], &[String], &[String]) -> Vec<String>) -> Files {
        let mut files = Files::default();
        for segment in segments {
            match segment {
                Segment::Unchanged(line) => {
                    let line = bytes(std::slice::from_ref(line));
                    for file in [&mut files.base, &mut files.ours, &mut files.theirs, &mut files.merged] {
                        file.extend(line.iter().cloned());
                    }
                }
                Segment::Added(is_ours, lines) => {
                    if *is_ours { &mut files.ours } else { &mut files.theirs }.extend(bytes(lines));
                    files.merged.extend(bytes(lines));
                }
                Segment::Conflict { base, ours, theirs, resolution } => {
                    let resolution = bytes(&resolve(ours, theirs, resolution));
                    let hunk =
                        ConflictHunk { range: 0..0, ours: bytes(ours), base: bytes(base), theirs: bytes(theirs) };
                    files.base.extend(hunk.base.iter().cloned());
                    files.ours.extend(hunk.ours.iter().cloned());
                    files.theirs.extend(hunk.theirs.iter().cloned());
                    files.merged.extend(resolution.iter().cloned());
                    files.hunks.push(ResolvedHunk { file: "f".to_owned(), hunk, resolution });
                }
            }
        }
        files
    }

    /// The change between two files as the smallest diff shows it.
    fn change(from: &[Vec<u8>], to: &[Vec<u8>]) -> LineChanges {
        let mut changes = LineChanges::default();
        changes.exclude(to, from);
        changes
    }

    fn dropped(files: &Files) -> DroppedLines {
        let (ours, theirs) = (change(&files.base, &files.ours), change(&files.base, &files.theirs));
        MergeChanges { ours, theirs, merge: change(&files.ours, &files.merged) }.dropped_lines(&files.hunks)
    }

    proptest! {
        #[test]
        fn resolution_with_all_tokens_is_accepted(segments in prop::collection::vec(any_segment(), 1..8)) {
            let union = files(&segments, |ours, theirs, _| [ours, theirs].concat());
            prop_assert_eq!(dropped(&union), DroppedLines::default());
            let joined = files(&segments, |ours, theirs, _| vec![[ours, theirs].concat().join(", ")]);
            prop_assert_eq!(dropped(&joined), DroppedLines::default());
        }

        /// Every line that a side added is in an accepted merge. Inside a conflict its tokens are.
        #[test]
        fn accepted_merge_has_every_line(
            segments in prop::collection::vec(any_segment(), 1..8), removed in prop::option::of(0_usize..20),
        ) {
            let mut files = files(&segments, |_, _, resolution| resolution.to_vec());
            if let Some(removed) = removed.filter(|removed| *removed < files.merged.len()) {
                let line = files.merged.remove(removed);
                // A line of a resolution is gone from it too.
                for resolved in &mut files.hunks {
                    resolved.resolution.retain(|other| *other != line);
                }
            }
            if dropped(&files) != DroppedLines::default() {
                return Ok(());
            }
            for segment in &segments {
                if let Segment::Added(_, lines) = segment {
                    for line in bytes(lines) {
                        prop_assert!(files.merged.contains(&line), "a line outside of conflicts is lost");
                    }
                }
            }
            for ResolvedHunk { hunk, resolution, .. } in &files.hunks {
                let present = resolution.concat();
                for line in [&hunk.ours, &hunk.theirs].into_iter().flatten().filter(|line| !hunk.base.contains(line)) {
                    let is_from_base = |token: &u8| hunk.base.concat().contains(token);
                    let is_accounted = |token: &u8| present.contains(token) || is_from_base(token);
                    prop_assert!(line.iter().filter(|byte| **byte != b' ').all(is_accounted), "a token is lost");
                }
            }
        }
    }
}
