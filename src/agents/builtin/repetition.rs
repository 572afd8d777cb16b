//! Notices an agent that repeats itself: turn after turn, it makes the same calls and gets the same results.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::domain::permission::ToolKind;
use crate::domain::phase::ClaimRef;
use crate::tools::table;

/// The same turns in a row after which an agent counts as one that repeats itself. One turn is enough in three cases. After a change, it
/// only makes calls of the turn before it again. It makes only changes of the turn before it again. Or, after a change, its own changes
/// leave the files as they are.
const SAME_TURNS_MAX: u32 = 3;
/// The same for turns whose commands end at once. Such a command can be a poll, but an agent that polls waits in between.
const SAME_COMMANDS_MAX: u32 = 6;
/// A turn that takes this long may wait for something.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Compares each turn with the one before it, in the same attempt.
#[derive(Debug, Default)]
pub(super) struct Repetition {
    /// The claim of the last turn.
    claim: Option<ClaimRef>,
    /// The calls of the last turn.
    last_calls: HashSet<u64>,
    /// The changes of files in the last turn.
    last_edits: HashSet<u64>,
    same_turns: u32,
    has_changed_file: bool,
    is_found: bool,
}

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// Brigade skipped it.
    NotMade,
    /// Its result is an error.
    Failed,
    /// It left the file that it should change as it was.
    FileUnchanged,
    /// It has a result.
    Done,
}

/// The calls of one turn and their results.
#[derive(Debug)]
pub(super) struct TurnDigest {
    /// The calls, each as its hash, with their results. Changes of files are without: the first of two equal changes has another result.
    calls: HashSet<u64>,
    started: Instant,
    claim: Option<ClaimRef>,
    /// The calls that change files, each as its hash.
    edits: HashSet<u64>,
    /// True if a call changed a file.
    has_changed_file: bool,
    /// True if a call that changes a file left it as it was.
    has_unchanged_file: bool,
    /// True if a call does something else than reading and changing files.
    has_other_calls: bool,
    /// True if a call can reach something outside of the files and the board, as a command can.
    reaches_outside: bool,
}

impl TurnDigest {
    /// Starts the digest of a turn without calls, in which the agent has this claim.
    pub fn start(claim: Option<ClaimRef>) -> Self {
        Self {
            calls: HashSet::new(),
            started: Instant::now(),
            claim,
            edits: HashSet::new(),
            has_changed_file: false,
            has_unchanged_file: false,
            has_other_calls: false,
            reaches_outside: false,
        }
    }

    /// Adds a call, its result and its end.
    pub fn add(&mut self, tool: &str, input: &Value, result: &str, end: CallEnd) {
        let kind = table::kind_of(tool);
        let call = (tool, input.to_string());
        if kind == ToolKind::Edit && end != CallEnd::NotMade {
            self.has_changed_file |= end == CallEnd::Done;
            self.has_unchanged_file |= end == CallEnd::FileUnchanged;
            self.edits.insert(hash_of(&call));
            self.calls.insert(hash_of(&call));
            return;
        }
        self.has_other_calls |= kind != ToolKind::Read;
        self.calls.insert(hash_of((call, result)));
        self.reaches_outside |= !matches!(kind, ToolKind::Board | ToolKind::Read | ToolKind::Edit);
    }

    /// The same turns in a row after which the agent repeats itself. A turn that waited for something outside of the files and the board
    /// can be a poll, and has no limit.
    fn same_turns_max(&self) -> u32 {
        match (self.reaches_outside, self.started.elapsed() >= WAIT_MIN) {
            (false, _) => SAME_TURNS_MAX,
            (true, false) if self.claim.is_some() => SAME_COMMANDS_MAX,
            (true, false) => SAME_TURNS_MAX,
            (true, true) => u32::MAX,
        }
    }
}

impl Repetition {
    /// Counts a turn with calls.
    pub fn count_turn(&mut self, turn: TurnDigest) {
        if self.claim != turn.claim {
            *self = Self { claim: turn.claim, ..Self::default() };
        }
        self.same_turns = if self.last_calls == turn.calls { self.same_turns + 1 } else { 1 };
        let makes_last_edits = !turn.edits.is_empty() && turn.edits.is_subset(&self.last_edits);
        let leaves_files = turn.has_unchanged_file && !turn.has_changed_file && self.has_changed_file;
        let changes_nothing = !turn.has_other_calls && (makes_last_edits || leaves_files);
        let has_news = turn.reaches_outside || !turn.calls.is_subset(&self.last_calls);
        let has_worked = turn.claim.is_some() && self.has_changed_file;
        self.is_found = changes_nothing || (has_worked && !has_news) || self.same_turns >= turn.same_turns_max();
        self.has_changed_file |= turn.has_changed_file;
        self.last_calls = turn.calls;
        self.last_edits = turn.edits;
    }

    /// Returns true if the last turn shows that the agent repeats itself, and then begins to count again.
    pub fn take(&mut self) -> bool {
        let is_found = self.is_found;
        if is_found {
            *self = Self::default();
        }
        is_found
    }
}

pub(super) fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;

    const CLAIM: Option<ClaimRef> = Some(ClaimRef { task: TaskId(1), attempt: 1 });

    fn turn(claim: Option<ClaimRef>, tool: &str, result: &str) -> TurnDigest {
        let mut turn = TurnDigest::start(claim);
        turn.add(tool, &Value::Null, result, CallEnd::Done);
        turn
    }

    fn is_repetition(repetition: &mut Repetition, turn: TurnDigest) -> bool {
        repetition.count_turn(turn);
        repetition.take()
    }

    #[test]
    fn third_same_turn_in_a_row_is_a_repetition() {
        let mut repetition = Repetition::default();
        let results = ["a", "a", "b", "a", "a", "a", "a", "a", "a"];
        let found = results.map(|result| is_repetition(&mut repetition, turn(CLAIM, "read_file", result)));
        assert_eq!(found, [false, false, false, false, false, true, false, false, true]);
    }

    #[test]
    fn second_same_edit_is_a_repetition() {
        let edit = |result| turn(CLAIM, "write_file", result);
        let mut repetition = Repetition::default();
        let mut read_and_edit = edit("created `a.txt`");
        read_and_edit.add("read_file", &Value::Null, "b", CallEnd::Done);
        assert!(!is_repetition(&mut repetition, read_and_edit));
        let mut twice = edit("replaced `a.txt`");
        twice.add("write_file", &Value::Null, "replaced `a.txt`", CallEnd::Done);
        assert!(is_repetition(&mut repetition, twice));
        assert!(!is_repetition(&mut repetition, edit("replaced `a.txt`")));
        let mut edit_and_read = turn(CLAIM, "read_file", "b");
        edit_and_read.add("write_file", &Value::Null, "`a.txt` already has this content", CallEnd::FileUnchanged);
        assert!(is_repetition(&mut repetition, edit_and_read));
        assert!(!is_repetition(&mut repetition, turn(CLAIM, "read_file", "b")));
        let mut other = TurnDigest::start(CLAIM);
        other.add("write_file", &Value::from("other"), "created `b.txt`", CallEnd::Done);
        assert!(!is_repetition(&mut repetition, other));
        let cut = || {
            let mut cut = TurnDigest::start(CLAIM);
            cut.add("write_file", &Value::Null, "Not called", CallEnd::NotMade);
            cut
        };
        repetition = Repetition::default();
        let found = [(); 3].map(|()| is_repetition(&mut repetition, cut()));
        assert_eq!(found, [false, false, true]);
    }

    #[test]
    fn same_edit_in_next_attempt_is_no_repetition() {
        let mut repetition = Repetition::default();
        assert!(!is_repetition(&mut repetition, turn(CLAIM, "write_file", "created `a.txt`")));
        let next = CLAIM.map(|claim| ClaimRef { attempt: 2, ..claim });
        assert!(!is_repetition(&mut repetition, turn(next, "write_file", "created `a.txt`")));
        assert!(is_repetition(&mut repetition, turn(next, "write_file", "replaced `a.txt`")));
    }

    #[test]
    fn edits_without_effect_are_repetition() {
        let turn_of = |calls: &[(&str, CallEnd)]| {
            let mut turn = TurnDigest::start(CLAIM);
            for (text, end) in calls {
                turn.add("write_file", &Value::from(*text), "", *end);
            }
            turn
        };
        let same = [("a", CallEnd::FileUnchanged), ("b", CallEnd::Failed)];
        let mut repetition = Repetition::default();
        assert!(!is_repetition(&mut repetition, turn_of(&same)), "nothing was changed before");
        repetition = Repetition::default();
        assert!(!is_repetition(&mut repetition, turn_of(&[("c", CallEnd::Done)])));
        assert!(!is_repetition(&mut repetition, turn(CLAIM, "read_file", "c")));
        assert!(is_repetition(&mut repetition, turn_of(&same)));
        assert!(!is_repetition(&mut repetition, turn_of(&[("c", CallEnd::Done)])));
        assert!(!is_repetition(&mut repetition, turn_of(&[same[0], ("d", CallEnd::Done)])));
        assert!(!is_repetition(&mut repetition, turn_of(&[("e", CallEnd::Failed)])), "it can try another passage");
        let mut with_command = turn_of(&same);
        with_command.add("bash", &Value::Null, "", CallEnd::Done);
        assert!(!is_repetition(&mut repetition, with_command));
    }

    #[test]
    fn turn_without_news_after_change_is_repetition() {
        let turn_of = |tools: &[&str], result: &str| {
            let mut turn = TurnDigest::start(CLAIM);
            tools.iter().for_each(|tool| turn.add(tool, &Value::Null, result, CallEnd::Done));
            turn
        };
        for (tools, found) in [("todo", true), ("read_file", true), ("bash", false)] {
            let mut repetition = Repetition::default();
            assert!(!is_repetition(&mut repetition, turn_of(&["write_file", tools], "a")));
            assert_eq!(is_repetition(&mut repetition, turn_of(&[tools, tools], "a")), found, "{tools}");
            assert!(!is_repetition(&mut repetition, turn_of(&[tools], "b")), "{tools}");
        }
        let mut repetition = Repetition::default();
        assert!(!is_repetition(&mut repetition, turn_of(&["read_file"], "a")));
        assert!(!is_repetition(&mut repetition, turn_of(&["read_file"], "a")), "nothing was changed");
    }

    #[tokio::test(start_paused = true)]
    async fn command_that_may_wait_is_no_repetition() {
        let mut repetition = Repetition::default();
        for _ in 0..9 {
            let slow = turn(CLAIM, "bash", "not yet");
            tokio::time::sleep(WAIT_MIN).await;
            assert!(!is_repetition(&mut repetition, slow));
        }
        assert!(is_repetition(&mut repetition, turn(CLAIM, "bash", "not yet")), "it waits for nothing");
        let found = [(); 6].map(|()| is_repetition(&mut repetition, turn(CLAIM, "bash", "")));
        assert_eq!(found, [false, false, false, false, false, true]);
        let found = [(); 3].map(|()| is_repetition(&mut repetition, turn(None, "bash", "")));
        assert_eq!(found, [false, false, true]);
    }
}
