//! Reminders of a run without an interactive session: the questions, mail, plans and reviews for the person, each with the command
//! that answers it.

use std::collections::HashSet;

use crate::api::{OrderForm, Question as ApiQuestion};
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::team::message::Message;
use crate::domain::team::pending_questions::{Question, Questions};
use crate::domain::text::{first_line, one_line};
use crate::front::text::commands::{Hint, hint};
use crate::front::text::lines::width;
use crate::front::text::requests::{how_to_answer, line};
use crate::service::pending::PendingForPerson;

/// The most items that one reminder names.
const NAMED_MAX: usize = 5;
/// The widest message, in columns, that the event about it shows in full. Wider messages are printed as items.
const SHORT_WIDTH_MAX: usize = 50;

/// One item: a line, and the text that belongs to it in full, where the line does not contain it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reminder {
    /// The line.
    pub line: Hint,
    /// The whole text.
    pub text: Option<String>,
}

impl Reminder {
    fn line(line: impl Into<Hint>) -> Self {
        Self { line: line.into(), text: None }
    }

    /// A question to the person, in full, and the command that answers it.
    pub fn of_question(question: &Question) -> Self {
        let (from, text) = (one_line(&question.from), question.text.trim());
        if text.contains('\n') {
            let line = hint![from, " asks you (", answer_to(&question.from), " answers):"];
            return Self { line, text: Some(text.to_owned()) };
        }
        Self::line(question_line(question))
    }

    fn of_mail(message: &Message) -> Option<Self> {
        let text = message.content.trim();
        let is_short = !text.contains('\n') && width(text) <= SHORT_WIDTH_MAX;
        (!is_short)
            .then(|| Self { line: format!("{} writes:", one_line(&message.from)).into(), text: Some(text.to_owned()) })
    }
}

/// A question to the person on one line, and the command that answers it. Only its first line is shown.
pub fn question_line(question: &Question) -> Hint {
    let from = one_line(&question.from);
    let text = first_line(&question.text);
    hint![format!("{from} asks you: {text} ("), answer_to(&question.from), " answers)"]
}

fn answer_to(author: &str) -> OrderForm {
    OrderForm::Send { to: Some(author.to_owned()) }
}

/// The items that were printed before.
#[derive(Debug, Default)]
pub struct Reminders {
    printed_keys: HashSet<String>,
    has_explained_mail: bool,
}

impl Reminders {
    /// Counts this mail as printed before. The summary at the start of a run counts the unread mail of earlier runs.
    pub fn skip_mail(&mut self, waiting: &PendingForPerson) {
        self.printed_keys.extend(waiting.mail.iter().map(mail_key));
    }

    /// The items that were not printed before. The first call without a new question adds the commands that read and answer mail.
    pub fn new_items(&mut self, waiting: &PendingForPerson) -> Vec<Reminder> {
        let mut new_items = Vec::new();
        for message in waiting.mail.iter().filter(|message| !Questions::is_question_to_person(message)) {
            if self.printed_keys.insert(mail_key(message)) {
                new_items.extend(Reminder::of_mail(message));
            }
        }
        let mail_count = new_items.len();
        for (key, item) in items_to_answer(waiting) {
            if self.printed_keys.insert(key) {
                new_items.push(item);
            }
        }
        if let Some(last) = waiting.mail.last()
            && new_items.len() == mail_count
            && !std::mem::replace(&mut self.has_explained_mail, true)
        {
            let how = " shows your mail and marks it as read, ";
            new_items.push(Reminder::line(hint![OrderForm::TakeMail, how, answer_to(&last.from), " answers"]));
        }
        new_items
    }

    /// Everything that waits for an answer, to be printed again.
    pub fn open_items(&mut self, waiting: &PendingForPerson) -> Vec<Reminder> {
        let asked: Vec<_> = items_to_answer(waiting).collect();
        let more = asked.len().saturating_sub(NAMED_MAX);
        self.printed_keys.extend(asked.iter().map(|(key, _)| key.clone()));
        let mut lines: Vec<Reminder> = asked.into_iter().take(NAMED_MAX).map(|(_, item)| item).collect();
        for item in &mut lines {
            item.line = hint!["waits for you: ", std::mem::take(&mut item.line)];
        }
        if more > 0 {
            lines.push(Reminder::line(hint![format!("and {more} more: "), ApiQuestion::Team]));
        }
        lines
    }
}

fn mail_key(message: &Message) -> String {
    message.id.clone().unwrap_or_else(|| message.to_line())
}

/// The plans, reviews and questions that the person must answer, each with a key that stays the same.
fn items_to_answer(waiting: &PendingForPerson) -> impl Iterator<Item = (String, Reminder)> + '_ {
    let approval = |request: &Request| {
        let noun = request.kind.noun();
        let how = how_to_answer(request);
        let head = format!("{} asks for your answer to {noun} {}", one_line(&request.from), one_line(&request.id));
        let line = match request.kind {
            RequestKind::Permission => hint![head, ": ", line(request), " (", how, ")"],
            _ => hint![head, ": ", how],
        };
        (format!("{noun} {}", request.id), Reminder::line(line))
    };
    let question = |question: &Question| {
        let Question { id, from, text } = question;
        let key = id.as_ref().map_or_else(|| format!("{from}: {text}"), |id| format!("question {id}"));
        (key, Reminder::of_question(question))
    };
    waiting.approvals_for_person().map(approval).chain(waiting.questions.iter().map(question))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::team::message::MessageType;
    use crate::domain::team::name::HUMAN;
    use crate::domain::time::UnixMs;

    fn lines(items: Vec<Reminder>) -> Vec<String> {
        items.into_iter().map(|item| item.line.to_string()).collect()
    }

    #[test]
    fn pending_item_is_printed_once_then_in_reminder() {
        let review = Request::new("r1", RequestKind::Review, "ann", HUMAN, UnixMs(1));
        let of_lead = Request::new("r2", RequestKind::PlanApproval, "bob", "lead", UnixMs(1));
        let mut waiting = PendingForPerson { approvals: vec![review, of_lead], ..PendingForPerson::default() };
        let mut reminders = Reminders::default();
        let line = "ann asks for your answer to review r1: `brigade review approve r1`, or `brigade review reject r1 --feedback TEXT`";
        assert_eq!(lines(reminders.new_items(&waiting)), [line]);
        let asked = |id: &str| Question { id: Some(id.into()), from: "bob".into(), text: "Which port?".into() };
        waiting.questions.push(asked("m1"));
        let question = "bob asks you: Which port? (`brigade send bob TEXT` answers)";
        assert_eq!(lines(reminders.new_items(&waiting)), [question]);
        // The person answered, and bob asks the same again.
        waiting.questions = vec![asked("m2")];
        assert_eq!(lines(reminders.new_items(&waiting)), [question]);
        assert!(reminders.new_items(&waiting).is_empty(), "there is no mail to read");
        waiting.mail.push(Message::new(MessageType::Message, "bob", "Done.", UnixMs(2)));
        assert!(lines(reminders.new_items(&waiting))[0].contains("brigade inbox --take"), "mail that asks nothing");
        assert!(reminders.new_items(&waiting).is_empty());
        let again = lines(reminders.open_items(&waiting));
        assert_eq!(again, [format!("waits for you: {line}"), format!("waits for you: {question}")]);
        assert!(reminders.open_items(&PendingForPerson::default()).is_empty());
    }

    #[test]
    fn mail_of_earlier_run_is_not_printed() {
        let mail = |text: &str, at| Message::new(MessageType::Message, "ann", text, UnixMs(at));
        let mut waiting = PendingForPerson { mail: vec![mail("One\nand more", 1)], ..PendingForPerson::default() };
        let mut reminders = Reminders::default();
        reminders.skip_mail(&waiting);
        waiting.mail.push(mail("Two\nand more", 2));
        let texts: Vec<_> = reminders.new_items(&waiting).into_iter().filter_map(|item| item.text).collect();
        assert_eq!(texts, ["Two\nand more"]);
    }

    #[test]
    fn multiline_question_and_mail_are_printed_in_full() {
        let text = "Which port?\n1. the old one\n2. a new one";
        let mail = Message::new(MessageType::Message, "ann", "Done.\n\n- one\n- two", UnixMs(1));
        let short = Message::new(MessageType::Message, "ann", "Done.", UnixMs(2));
        let waiting = PendingForPerson {
            mail: vec![mail, short],
            questions: vec![Question { id: None, from: "bob".into(), text: text.into() }],
            ..PendingForPerson::default()
        };
        let new_items = Reminders::default().new_items(&waiting);
        let shown: Vec<(String, Option<&str>)> =
            new_items.iter().map(|item| (item.line.to_string(), item.text.as_deref())).collect();
        assert_eq!(
            shown,
            [
                ("ann writes:".to_owned(), Some("Done.\n\n- one\n- two")),
                ("bob asks you (`brigade send bob TEXT` answers):".to_owned(), Some(text)),
            ]
        );
    }
}
