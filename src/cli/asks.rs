//! What a run without a person at its terminal says of what waits for one: each thing with the command that answers it.

use std::collections::HashSet;

use super::waiting::Waiting;
use crate::domain::questions::Question;
use crate::ui::approvals::how_to_answer;
use crate::ui::text::{first_line, one_line};

/// Things that are named in one reminder; of more, the others are not.
const NAMED_MAX: usize = 5;

/// What was said already.
#[derive(Debug, Default)]
pub struct Asks {
    told: HashSet<String>,
    has_told_of_mail: bool,
}

impl Asks {
    /// What waits now and was not said before; and how mail is read that asks nothing, once.
    pub fn news(&mut self, waiting: &Waiting) -> Vec<String> {
        let asked = asked(waiting);
        let is_new = |(key, _): &(String, String)| self.told.insert(key.clone());
        let news: Vec<String> = asked.into_iter().filter(is_new).map(|(_, line)| line).collect();
        if news.is_empty() && !std::mem::replace(&mut self.has_told_of_mail, true) {
            return vec![
                "that is for you: brigade inbox --take shows it whole, brigade send NAME TEXT answers".to_owned(),
            ];
        }
        news
    }

    /// All that waits, to be said again.
    pub fn all(&mut self, waiting: &Waiting) -> Vec<String> {
        let asked = asked(waiting);
        let more = asked.len().saturating_sub(NAMED_MAX);
        let more = (more > 0).then(|| format!("and {more} more: brigade review, brigade plan, brigade inbox"));
        self.told.extend(asked.iter().map(|(key, _)| key.clone()));
        asked.into_iter().take(NAMED_MAX).map(|(_, line)| format!("waits for you: {line}")).chain(more).collect()
    }
}

/// What the person is asked: what it is known by, and what is said of it.
fn asked(waiting: &Waiting) -> Vec<(String, String)> {
    let approval = |asked: &crate::domain::request::Request| {
        let how = how_to_answer(asked.kind, &asked.id);
        let noun = asked.kind.noun();
        (format!("{noun} {}", asked.id), format!("{noun} {} of {} is yours to answer: {how}", asked.id, asked.from))
    };
    let question =
        |question: &Question| (format!("{}: {}", question.from, first_line(&question.text)), question_to_you(question));
    waiting.approvals_for_you().map(approval).chain(waiting.questions.iter().map(question)).collect()
}

/// A question to the person, with how it is answered.
#[must_use]
pub(super) fn question_to_you(question: &Question) -> String {
    let (from, text) = (one_line(&question.from), first_line(&question.text));
    format!("{from} asks you: {text} (brigade send {from} TEXT answers)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::name::HUMAN;
    use crate::domain::request::{Request, RequestKind};
    use crate::domain::time::UnixMs;

    #[test]
    fn each_thing_is_said_once_with_its_command_and_again_as_a_reminder() {
        let review = Request::new("r1", RequestKind::Review, "ann", HUMAN, UnixMs(1));
        let of_lead = Request::new("r2", RequestKind::PlanApproval, "bob", "lead", UnixMs(1));
        let mut waiting = Waiting { approvals: vec![review, of_lead], ..Waiting::default() };
        let mut asks = Asks::default();
        let line = "review r1 of ann is yours to answer: brigade review approve r1, or brigade review reject r1 --feedback TEXT";
        assert_eq!(asks.news(&waiting), [line]);
        waiting.questions.push(Question { from: "bob".into(), text: "Which port?\nThe old one?".into() });
        let question = "bob asks you: Which port? … (brigade send bob TEXT answers)";
        assert_eq!(asks.news(&waiting), [question]);
        assert!(asks.news(&waiting)[0].contains("brigade inbox --take"), "mail that asks nothing");
        assert!(asks.news(&waiting).is_empty());
        assert_eq!(asks.all(&waiting), [format!("waits for you: {line}"), format!("waits for you: {question}")]);
        assert!(asks.all(&Waiting::default()).is_empty());
    }
}
