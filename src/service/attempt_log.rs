//! The harness's record of a member's current attempt: what its agent did and said. It decides what an attempt without a report is
//! worth, so it never comes from the agent's text.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::evidence::AttemptActivity;
use crate::domain::phase::ClaimRef;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;

/// The longest wait for the answer to a question.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(300);
/// The number of turns after which a question no longer counts as the agent's last action: the turn in which it asked, and the one in which
/// it ended its work.
const QUESTION_TURNS_MAX: u32 = 2;
/// The number of refused completions at which an attempt fails.
pub const REFUSALS_MAX: u32 = 3;

/// The record of a member's current attempt. Each attempt has its own.
#[derive(Debug, Default)]
pub struct AttemptLog(Mutex<AttemptRecord>);

#[derive(Debug, Default)]
struct AttemptRecord {
    claim: Option<ClaimRef>,
    activity: AttemptActivity,
    question: Option<OpenQuestion>,
    last_words: String,
    refusal: Option<String>,
    refusals: u32,
    has_reported_failure: bool,
    /// The tasks that the agent gave back, in this attempt and in earlier ones.
    given_back: HashSet<TaskId>,
}

/// A question that the agent sent to a member or the person.
#[derive(Debug)]
struct OpenQuestion {
    asked_at: UnixMs,
    /// The turns since then, with the one in which it was sent.
    turns: u32,
}

impl AttemptLog {
    /// Reads or changes the record of this attempt. An attempt without a record gets an empty one.
    fn with<R>(&self, claim: ClaimRef, act: impl FnOnce(&mut AttemptRecord) -> R) -> R {
        let mut record = self.0.lock();
        if record.claim != Some(claim) {
            let given_back = std::mem::take(&mut record.given_back);
            *record = AttemptRecord { claim: Some(claim), given_back, ..AttemptRecord::default() };
        }
        act(&mut record)
    }

    /// Records the start of a turn.
    pub fn begin_turn(&self, claim: ClaimRef) {
        self.with(claim, |record| {
            let question =
                record.question.take().map(|question| OpenQuestion { turns: question.turns + 1, ..question });
            record.question = question.filter(|question| question.turns <= QUESTION_TURNS_MAX);
        });
    }

    /// Records what the agent did in the interrupted attempt that this one resumes.
    pub fn resume(&self, claim: ClaimRef, activity: AttemptActivity) {
        self.with(claim, |record| {
            record.activity.has_called_tool |= activity.has_called_tool;
            record.activity.has_worked |= activity.has_worked;
        });
    }

    /// Records a tool call.
    pub fn record_call(&self, claim: ClaimRef) {
        self.with(claim, |record| record.activity.has_called_tool = true);
    }

    /// Records a changed file or a command that ran.
    pub fn record_work(&self, claim: ClaimRef) {
        self.with(claim, |record| record.activity = AttemptActivity { has_called_tool: true, has_worked: true });
    }

    /// Records that the agent sent a question.
    pub fn record_question(&self, claim: ClaimRef, asked_at: UnixMs) {
        self.with(claim, |record| record.question = Some(OpenQuestion { asked_at, turns: 1 }));
    }

    /// Records the last text of the agent.
    pub fn record_words(&self, claim: ClaimRef, text: &str) {
        self.with(claim, |record| text.clone_into(&mut record.last_words));
    }

    /// Adds a refused completion and returns their number.
    pub fn count_refusal(&self, claim: ClaimRef) -> u32 {
        self.with(claim, |record| {
            record.refusals += 1;
            record.refusals
        })
    }

    /// Records that the agent reports a failure. Returns true if it did so before in this attempt.
    pub fn record_failure_report(&self, claim: ClaimRef) -> bool {
        self.with(claim, |record| std::mem::replace(&mut record.has_reported_failure, true))
    }

    /// Records that the agent gives its task back. Returns true if it did so before with the same task.
    pub fn record_give_back(&self, claim: ClaimRef) -> bool {
        self.with(claim, |record| !record.given_back.insert(claim.task))
    }

    /// Records why the attempt's evidence did not complete the task.
    pub fn record_refusal(&self, claim: ClaimRef, reason: String) {
        self.with(claim, |record| record.refusal = Some(reason));
    }

    /// Returns what the agent did.
    pub fn activity(&self, claim: ClaimRef) -> AttemptActivity {
        self.with(claim, |record| record.activity)
    }

    /// Returns the last text of the agent.
    pub fn last_words(&self, claim: ClaimRef) -> String {
        self.with(claim, |record| record.last_words.clone())
    }

    /// Returns why the attempt's evidence did not complete the task, the last time.
    pub fn refusal(&self, claim: ClaimRef) -> Option<String> {
        self.with(claim, |record| record.refusal.clone())
    }

    /// Returns true if a question was the last thing that the agent did, and it may still wait for the answer.
    pub fn awaits_answer(&self, claim: ClaimRef, now: UnixMs) -> bool {
        self.with(claim, |record| {
            record.question.as_ref().is_some_and(|question| now.since(question.asked_at) < ANSWER_WAIT_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: ClaimRef = ClaimRef { task: TaskId(1), attempt: 1 };

    #[test]
    fn each_attempt_has_its_own_record() {
        let log = AttemptLog::default();
        log.record_call(CLAIM);
        log.record_words(CLAIM, "Done.");
        assert_eq!((log.count_refusal(CLAIM), log.count_refusal(CLAIM)), (1, 2));
        assert_eq!(log.activity(CLAIM), AttemptActivity { has_called_tool: true, has_worked: false });
        log.record_work(CLAIM);
        assert!(log.activity(CLAIM).has_worked && log.last_words(CLAIM) == "Done.");
        let next = ClaimRef { attempt: 2, ..CLAIM };
        assert_eq!((log.activity(next), log.last_words(next)), (AttemptActivity::default(), String::new()));
        assert_eq!(log.count_refusal(next), 1, "another attempt");
    }

    #[test]
    fn question_counts_if_the_work_ends_with_it() {
        let log = AttemptLog::default();
        log.begin_turn(CLAIM);
        log.record_question(CLAIM, UnixMs(1_000));
        assert!(log.awaits_answer(CLAIM, UnixMs(2_000)), "in the same turn");
        log.begin_turn(CLAIM);
        assert!(log.awaits_answer(CLAIM, UnixMs(2_000)), "in the next turn");
        assert!(!log.awaits_answer(CLAIM, UnixMs(301_000)), "too long ago");
        log.begin_turn(CLAIM);
        assert!(!log.awaits_answer(CLAIM, UnixMs(2_000)), "it continued");
    }
}
