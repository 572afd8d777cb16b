//! Reminds an agent of the tool `todo`: once for each attempt, after some turns without an update of its list.

use crate::domain::team::phase::ClaimRef;

/// The name of the tool.
pub(super) const TODO_TOOL: &str = "todo";

/// The turns without an update after which the agent is reminded.
const TURNS_MAX: u32 = 10;

const REMINDER: &str =
    "[Brigade] You have not updated your list of steps (todo) for 10 turns. If it helps, note what is left.";

/// Counts the turns since the last update of the list.
#[derive(Debug, Default)]
pub(super) struct TodoReminder {
    claim: Option<ClaimRef>,
    turns: u32,
    has_reminded: bool,
}

impl TodoReminder {
    /// Counts a turn under this claim. Returns the reminder if it is due.
    pub fn count_turn(&mut self, claim: ClaimRef, is_update: bool) -> Option<&'static str> {
        if self.claim != Some(claim) {
            *self = Self { claim: Some(claim), ..Self::default() };
        }
        self.turns = if is_update { 0 } else { self.turns + 1 };
        if self.has_reminded || self.turns < TURNS_MAX {
            return None;
        }
        self.has_reminded = true;
        Some(REMINDER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;

    #[test]
    fn todo_reminder_comes_once_per_attempt() {
        let claim = |attempt| ClaimRef { task: TaskId(1), attempt };
        let mut reminder = TodoReminder::default();
        let turns = |reminder: &mut TodoReminder, attempt, updates: &[u32]| -> Vec<u32> {
            (1..=40).filter(|turn| reminder.count_turn(claim(attempt), updates.contains(turn)).is_some()).collect()
        };
        assert_eq!(turns(&mut reminder, 1, &[]), [10]);
        assert_eq!(turns(&mut reminder, 2, &[5, 9]), [19]);
        let often: Vec<u32> = (0..40).step_by(8).collect();
        assert!(turns(&mut reminder, 3, &often).is_empty());
    }
}
