//! Notices an agent that repeats itself: its turns make the same calls and get the same results, one by one or in a loop of several
//! turns.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::domain::agent::permission::ToolKind;
use crate::domain::team::phase::ClaimRef;
use crate::tools::table;

/// The longest loop that is found, in turns.
const PERIOD_MAX: usize = 6;
/// The number of equal loops in a row after which an agent counts as one that repeats itself. One turn is a loop too.
const LOOPS_MAX: usize = 3;
/// The same for single turns whose commands end at once. Such a command can be a poll, but an agent that polls waits in between.
const SAME_COMMANDS_MAX: usize = 6;
/// The number of turns that are compared.
const TURNS_MAX: usize = PERIOD_MAX * LOOPS_MAX;
/// A turn that takes this long may wait for something.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Compares each turn with those before it, in the same attempt.
#[derive(Debug, Default)]
pub(super) struct Repetition {
    /// The claim of the last turn.
    claim: Option<ClaimRef>,
    /// The last turns, the newest last.
    turns: VecDeque<TurnDigest>,
    has_changed_file: bool,
    /// True after a turn that did nothing new was found in this attempt.
    was_idle: bool,
    finding: Option<Finding>,
}

/// A finding about the last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// It did nothing new, for the first time in this attempt. A small model that has done its work often repeats it instead of reporting.
    NothingNew,
    /// The agent repeats itself.
    Repetition,
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
#[derive(Debug, Default)]
pub(super) struct TurnDigest {
    /// The calls, each as its hash, with their results. Changes of files are without: the first of two equal changes has another result.
    calls: HashSet<u64>,
    started: Option<Instant>,
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
    /// True if it took so long that it may have waited for something outside.
    has_waited: bool,
}

impl TurnDigest {
    /// Starts the digest of a turn without calls, in which the agent has this claim.
    pub fn start(claim: Option<ClaimRef>) -> Self {
        Self { claim, started: Some(Instant::now()), ..Self::default() }
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

    /// Ends the turn. From now on it is known if the turn waited.
    fn end(&mut self) {
        self.has_waited = self.reaches_outside && self.started.is_some_and(|started| started.elapsed() >= WAIT_MIN);
    }

    /// Returns true if the turn only makes changes of the turn before it again, or makes changes that leave the files as they are.
    fn changes_nothing(&self, last: Option<&Self>, has_changed_file: bool) -> bool {
        let makes_last_edits = !self.edits.is_empty() && last.is_some_and(|last| self.edits.is_subset(&last.edits));
        let leaves_files = self.has_unchanged_file && !self.has_changed_file && has_changed_file;
        !self.has_other_calls && (makes_last_edits || leaves_files)
    }

    /// Returns true if the turn makes a call that the turn before it did not make, or one that reaches outside.
    fn has_news(&self, last: Option<&Self>) -> bool {
        self.reaches_outside || !last.is_some_and(|last| self.calls.is_subset(&last.calls))
    }
}

impl Repetition {
    /// Counts a turn with calls. The same loop of turns several times in a row is a repetition. These turns do nothing new, and the second
    /// one in an attempt is a repetition too:
    ///
    /// - after a change of a file, a turn that only makes calls of the turn before it again;
    /// - a turn whose changes are only those of the turn before it, or leave the files as they are after a change.
    pub fn count_turn(&mut self, mut turn: TurnDigest) {
        if self.claim != turn.claim {
            *self = Self { claim: turn.claim, ..Self::default() };
        }
        turn.end();
        let last = self.turns.back();
        let has_worked = turn.claim.is_some() && self.has_changed_file;
        let is_idle = turn.changes_nothing(last, self.has_changed_file) || (has_worked && !turn.has_news(last));
        self.has_changed_file |= turn.has_changed_file;
        self.turns.push_back(turn);
        if self.turns.len() > TURNS_MAX {
            self.turns.pop_front();
        }
        self.finding = if (is_idle && self.was_idle) || (1..=PERIOD_MAX).any(|period| self.has_loop(period)) {
            Some(Finding::Repetition)
        } else if is_idle {
            Some(Finding::NothingNew)
        } else {
            None
        };
    }

    /// Returns true if the last turns are a loop of this many turns, often enough. A turn that waited for something outside of the files
    /// and the board can be a poll, so a loop with one has no limit.
    fn has_loop(&self, period: usize) -> bool {
        let newest = || self.turns.iter().rev();
        if newest().take(period).any(|turn| turn.has_waited) {
            return false;
        }
        let may_poll = period == 1 && self.claim.is_some() && newest().take(1).any(|turn| turn.reaches_outside);
        let loops_max = if may_poll { SAME_COMMANDS_MAX } else { LOOPS_MAX };
        let same_turns = newest().zip(newest().skip(period)).take_while(|(turn, before)| turn.calls == before.calls);
        same_turns.count() >= period * (loops_max - 1)
    }

    /// Returns the finding about the last turn, and then begins to count again.
    pub fn take(&mut self) -> Option<Finding> {
        let finding = self.finding;
        if finding.is_some() {
            self.was_idle = true;
            self.forget_turns();
        }
        finding
    }

    /// Begins to count again.
    pub fn forget_turns(&mut self) {
        *self = Self { claim: self.claim, was_idle: self.was_idle, ..Self::default() };
    }
}

pub(super) fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        repetition.take().is_some()
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

    /// One file, changed back and forth.
    #[test]
    fn edits_back_and_forth_are_repetition() {
        let mut repetition = Repetition::default();
        let edits = ["a to b", "b to a"].into_iter().cycle().map(|edit| {
            let mut turn = TurnDigest::start(CLAIM);
            turn.add("edit_file", &Value::from(edit), "changed", CallEnd::Done);
            turn
        });
        let found: Vec<bool> = edits.take(6).map(|turn| is_repetition(&mut repetition, turn)).collect();
        assert_eq!(found, [false, false, false, false, false, true]);
    }

    fn read(call: usize) -> TurnDigest {
        let mut turn = TurnDigest::start(CLAIM);
        turn.add("read_file", &Value::from(call), "text", CallEnd::Done);
        turn
    }

    proptest! {
        /// A loop is found when it ends for the third time, or earlier if a shorter loop is in it.
        #[test]
        fn any_loop_is_found_at_its_third_end(before in prop::collection::vec(10_usize..20, 0..9), turns in prop::collection::vec(0_usize..4, 1..=PERIOD_MAX)) {
            let mut repetition = Repetition::default();
            let looped = turns.iter().cycle().take(turns.len() * LOOPS_MAX);
            let found = before.iter().chain(looped).any(|call| is_repetition(&mut repetition, read(*call)));
            prop_assert!(found);
        }

        /// Neither different turns nor two equal loops in a row are a repetition.
        #[test]
        fn fewer_loops_are_no_repetition(len in 1..=PERIOD_MAX, different in 0_usize..40) {
            let mut repetition = Repetition::default();
            let calls = (0..len).chain(0..len).chain(len..len + different);
            for call in calls {
                prop_assert!(!is_repetition(&mut repetition, read(call)));
            }
        }
    }

    /// An agent that looks at two things and waits in between polls.
    #[tokio::test(start_paused = true)]
    async fn loop_that_may_wait_is_no_repetition() {
        let mut repetition = Repetition::default();
        for _ in 0..9 {
            assert!(!is_repetition(&mut repetition, read(1)));
            let slow = turn(CLAIM, "bash", "not yet");
            tokio::time::sleep(WAIT_MIN).await;
            assert!(!is_repetition(&mut repetition, slow));
        }
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
