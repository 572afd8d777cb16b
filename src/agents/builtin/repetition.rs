//! Notices an agent that repeats itself: turn after turn, it makes the same calls and gets the same results.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::domain::permission::ToolKind;
use crate::tools::table;

/// The same turns in a row after which an agent counts as one that repeats itself.
const SAME_TURNS_MAX: u32 = 3;
/// As [`SAME_TURNS_MAX`], for turns that only change files. The second such turn changes nothing.
const SAME_EDITS_MAX: u32 = 2;
/// A turn that takes this long may wait for something.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Counts the same turns in a row.
#[derive(Debug, Default)]
pub(super) struct Repetition {
    last: Option<u64>,
    same_turns: u32,
    same_turns_max: u32,
}

/// The calls of one turn and their results.
#[derive(Debug)]
pub(super) struct TurnDigest {
    hasher: DefaultHasher,
    started: Instant,
    has_task: bool,
    /// The last call's tool and arguments.
    last_call: Option<(String, Value)>,
    /// True if all calls change files.
    only_edits: bool,
    /// True if a call can reach something outside of the files and the board, as a command can.
    reaches_outside: bool,
}

impl TurnDigest {
    /// Starts the digest of a turn without calls. `has_task` is true if the agent holds a task.
    pub fn start(has_task: bool) -> Self {
        let (hasher, started) = (DefaultHasher::new(), Instant::now());
        Self { hasher, started, has_task, last_call: None, only_edits: true, reaches_outside: false }
    }

    /// Adds a call and its result. Of equal edits in a row only the first counts.
    pub fn add(&mut self, tool: &str, input: &Value, result: &str) {
        let kind = table::kind_of(tool);
        let call = Some((tool.to_owned(), input.clone()));
        if kind == ToolKind::Edit && self.last_call == call {
            return;
        }
        self.last_call = call;
        self.only_edits &= kind == ToolKind::Edit;
        // The first of two equal changes has another result.
        let result = if kind == ToolKind::Edit { "" } else { result };
        (tool, input.to_string(), result).hash(&mut self.hasher);
        self.reaches_outside |= !matches!(kind, ToolKind::Board | ToolKind::Read | ToolKind::Edit);
    }

    /// Returns true if the turn may be a poll of something outside of the files and the board.
    fn may_be_poll(&self) -> bool {
        self.reaches_outside && (self.has_task || self.started.elapsed() >= WAIT_MIN)
    }
}

impl Repetition {
    /// Counts a turn with calls.
    pub fn count_turn(&mut self, turn: &TurnDigest) {
        let digest = turn.hasher.finish();
        self.same_turns = if self.last == Some(digest) { self.same_turns + 1 } else { 1 };
        self.last = Some(digest);
        self.same_turns_max = match turn {
            _ if turn.may_be_poll() => u32::MAX,
            _ if turn.only_edits => SAME_EDITS_MAX,
            _ => SAME_TURNS_MAX,
        };
    }

    /// Returns the count of same turns if the last turn shows that the agent repeats itself, and then begins to count again.
    pub fn take(&mut self) -> Option<u32> {
        let same_turns = self.same_turns;
        let is_found = same_turns > 0 && same_turns >= self.same_turns_max;
        is_found.then(|| {
            *self = Self::default();
            same_turns
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(has_task: bool, tool: &str, result: &str) -> TurnDigest {
        let mut turn = TurnDigest::start(has_task);
        turn.add(tool, &Value::Null, result);
        turn
    }

    fn is_repetition(repetition: &mut Repetition, turn: &TurnDigest) -> bool {
        repetition.count_turn(turn);
        repetition.take().is_some()
    }

    #[test]
    fn third_same_turn_in_a_row_is_a_repetition() {
        let mut repetition = Repetition::default();
        let results = ["a", "a", "b", "a", "a", "a", "a", "a", "a"];
        let found = results.map(|result| is_repetition(&mut repetition, &turn(true, "read_file", result)));
        assert_eq!(found, [false, false, false, false, false, true, false, false, true]);
    }

    #[test]
    fn second_same_edit_is_a_repetition() {
        let mut repetition = Repetition::default();
        assert!(!is_repetition(&mut repetition, &turn(true, "write_file", "created `a.txt`")));
        let mut twice = turn(true, "write_file", "replaced `a.txt`");
        twice.add("write_file", &Value::Null, "replaced `a.txt`");
        repetition.count_turn(&twice);
        assert_eq!(repetition.take(), Some(2));
        assert_eq!(repetition.take(), None);
        let mut mixed = turn(true, "write_file", "created `a.txt`");
        mixed.add("read_file", &Value::Null, "a");
        let found = [(); 3].map(|()| is_repetition(&mut repetition, &mixed));
        assert_eq!(found, [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn command_that_may_wait_is_no_repetition() {
        let mut repetition = Repetition::default();
        assert!((0..9).all(|_| !is_repetition(&mut repetition, &turn(true, "bash", "not yet"))));
        let slow = turn(false, "bash", "not yet");
        tokio::time::sleep(WAIT_MIN).await;
        assert!(!is_repetition(&mut repetition, &slow));
        assert!(is_repetition(&mut repetition, &turn(false, "bash", "not yet")), "it waits for nothing");
    }
}
