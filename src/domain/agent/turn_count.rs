//! The number of a turn, and the notice of it for an agent.

/// An agent gets a notice of its turn after each of this many turns.
const TOLD_EVERY: u32 = 10;
/// The number of remaining turns at which an agent is asked to report.
const LAST_TURNS: u32 = 5;

/// The number of the current turn in its WORK phase, and the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TurnCount {
    /// The current turn; the first one is 1.
    pub turn: u32,
    /// The maximum number of turns.
    pub turns_max: u32,
}

impl TurnCount {
    /// Returns the line for the end of the turn's last tool result, if one is due.
    pub fn notice(self, holds_task: bool) -> Option<String> {
        let Self { turn, turns_max } = self;
        match turns_max.checked_sub(turn)? {
            LAST_TURNS if holds_task => Some(format!("[Brigade] {LAST_TURNS} turns left. Report with task_update.")),
            LAST_TURNS => Some(format!("[Brigade] {LAST_TURNS} turns left.")),
            1.. if turn > 0 && turn.is_multiple_of(TOLD_EVERY) => {
                Some(format!("[Brigade] Turn {turn} of {turns_max}."))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_notice_comes_every_ten_turns_and_at_five_left() {
        let notices = |turns_max: u32, holds_task| -> Vec<(u32, String)> {
            let notice = |turn| Some((turn, TurnCount { turn, turns_max }.notice(holds_task)?));
            (0..=turns_max).filter_map(notice).collect()
        };
        let notice = |turn: u32, text: &str| (turn, format!("[Brigade] {text}"));
        let report = "5 turns left. Report with task_update.";
        assert_eq!(
            notices(25, true),
            [notice(10, "Turn 10 of 25."), notice(20, report)],
            "the more important notice replaces the other one"
        );
        assert_eq!(notices(12, false), [notice(7, "5 turns left."), notice(10, "Turn 10 of 12.")]);
        assert_eq!(notices(10, true), [notice(5, report)], "no request follows the last turn");
        assert_eq!(notices(4, true), []);
        assert_eq!(TurnCount { turn: 51, turns_max: 50 }.notice(true), None);
    }
}
