//! The harness's record of a member's current attempt: what its agent did and said. It decides what an attempt without a report is
//! worth, so it never comes from the agent's text.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::agent::last_words::UnansweredQuestion;
use crate::domain::task::TaskId;
use crate::domain::task::evidence::AttemptActivity;
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::pending_questions::is_question;
use crate::domain::team::phase::ClaimRef;
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
    question: Option<SentQuestion>,
    last_words: String,
    refusal: Option<String>,
    refusals: u32,
    has_reported_failure: bool,
    /// The tasks that the agent gave back, in this attempt and in earlier ones.
    given_back: HashSet<TaskId>,
}

/// A question that the agent sent to a member or the person.
#[derive(Debug)]
struct SentQuestion {
    to: String,
    text: String,
    asked_at: UnixMs,
    /// The turns since then, with the one in which it was sent.
    turns: u32,
    /// True if the recipient can answer, or hand it on: the agent may wait.
    can_be_answered: bool,
    is_answered: bool,
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
            if let Some(question) = &mut record.question {
                question.turns = question.turns.saturating_add(1);
            }
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

    /// Records that the agent sent a question. `can_be_answered` is false if its recipient cannot answer.
    pub fn record_question(&self, claim: ClaimRef, to: &str, text: &str, asked_at: UnixMs, can_be_answered: bool) {
        let (to, text) = (to.to_owned(), text.to_owned());
        let question = SentQuestion { to, text, asked_at, turns: 1, can_be_answered, is_answered: false };
        self.with(claim, |record| record.question = Some(question));
    }

    /// Records that the agent got a message. One from the recipient of its question, the lead or the person answers the question.
    pub fn record_mail(&self, claim: ClaimRef, from: &str) {
        self.with(claim, |record| {
            if let Some(question) = &mut record.question {
                question.is_answered |= [&question.to, LEAD, HUMAN].iter().any(|name| name.eq_ignore_ascii_case(from));
            }
        });
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
            record.question.as_ref().is_some_and(|question| {
                question.can_be_answered
                    && question.turns <= QUESTION_TURNS_MAX
                    && now.since(question.asked_at) < ANSWER_WAIT_MAX
            })
        })
    }

    /// Returns the question of the agent that got no answer: the last one that it sent, or else the one in its last text.
    pub fn unanswered_question(&self, claim: ClaimRef) -> Option<UnansweredQuestion> {
        self.with(claim, |record| match &record.question {
            Some(sent) if !sent.is_answered => {
                let to = if sent.can_be_answered { sent.to.as_str() } else { HUMAN };
                Some(UnansweredQuestion { to: Some(to.to_owned()), text: sent.text.clone() })
            }
            _ if is_question(&record.last_words) => {
                Some(UnansweredQuestion { to: None, text: record.last_words.clone() })
            }
            _ => None,
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
        log.record_question(CLAIM, "bob", "Which?", UnixMs(1_000), true);
        assert!(log.awaits_answer(CLAIM, UnixMs(2_000)), "in the same turn");
        log.begin_turn(CLAIM);
        assert!(log.awaits_answer(CLAIM, UnixMs(2_000)), "in the next turn");
        assert!(!log.awaits_answer(CLAIM, UnixMs(301_000)), "too long ago");
        log.begin_turn(CLAIM);
        assert!(!log.awaits_answer(CLAIM, UnixMs(2_000)), "it continued");
        log.record_question(CLAIM, "lead", "Which?", UnixMs(1_000), false);
        assert!(!log.awaits_answer(CLAIM, UnixMs(2_000)), "no one answers");
    }

    #[test]
    fn question_is_unanswered_until_its_recipient_writes() {
        let log = AttemptLog::default();
        let open = || log.unanswered_question(CLAIM).map(|question| (question.to, question.text));
        assert_eq!(open(), None);
        log.record_words(CLAIM, "I look around.");
        assert_eq!(open(), None);
        log.record_question(CLAIM, "Bob", "Which?", UnixMs(1_000), true);
        (0..9).for_each(|_| log.begin_turn(CLAIM));
        log.record_mail(CLAIM, "carol");
        assert_eq!(open(), Some((Some("Bob".to_owned()), "Which?".to_owned())));
        log.record_mail(CLAIM, "bob");
        assert_eq!(open(), None);
        log.record_words(CLAIM, "And which folder? I wait.");
        assert_eq!(open(), Some((None, "And which folder? I wait.".to_owned())));
        log.record_question(CLAIM, "lead", "Why?", UnixMs(1_000), false);
        assert_eq!(open().unwrap().0.as_deref(), Some(HUMAN), "a lead without a model hands it on");
    }
}
