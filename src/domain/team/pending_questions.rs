//! Questions of members that the person has not answered, derived from the person's own transcript. It stores messages
//! shown to the person with role `user`, and messages that the person wrote with role `assistant`.

use std::collections::BTreeMap;

use super::message::{Message, MessageType};
use super::name::{ALL, HUMAN};
use crate::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use crate::domain::time::UnixMs;

/// Maximum number of stored questions. To make room, the oldest is removed.
const QUESTIONS_MAX: usize = 100;
/// Characters that may follow a question mark at the end of a sentence. In `?x=1` the mark ends no sentence.
const SENTENCE_END_CHARS: &str = "\"'”’»)]*_`!.,;:";

/// A question that waits for the person.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Question {
    /// The id of the message, if its program set one.
    pub id: Option<String>,
    /// Name of the asker.
    pub from: String,
    /// Text of the message.
    pub text: String,
}

/// The waiting questions, one for each asker, oldest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Questions {
    waiting: Vec<Question>,
    /// For each recipient, the time of the person's last message, in seconds. It answers all questions asked before, even if they
    /// are delivered later.
    answered: BTreeMap<String, f64>,
}

impl Questions {
    /// Returns the waiting questions of the person's transcript.
    pub fn of(records: &[Record]) -> Self {
        let mut questions = Self::default();
        for record in records {
            let TranscriptEntry::Message(message) = &record.entry else { continue };
            for block in &message.content {
                if let (Role::User, Block::Text { text }) = (message.role, block)
                    && let Ok(shown) = Message::parse(text.as_bytes())
                {
                    questions.record_shown(&shown);
                }
            }
            if let Some(to) = &message.to {
                questions.answer(to, record.at);
            }
        }
        questions
    }

    /// Returns true if this message asks the person a question.
    pub fn is_question_to_person(message: &Message) -> bool {
        is_from_member(message) && is_question(&message.content)
    }

    /// Records that the person was shown this message. An asker's last message decides whether a question of theirs waits.
    pub fn record_shown(&mut self, message: &Message) {
        if !is_from_member(message) {
            return;
        }
        self.waiting.retain(|question| !question.from.eq_ignore_ascii_case(&message.from));
        if Self::is_question_to_person(message) && !self.is_answered(message) {
            if self.waiting.len() >= QUESTIONS_MAX {
                self.waiting.remove(0);
            }
            let (id, from, text) = (message.id.clone(), message.from.clone(), message.content.clone());
            self.waiting.push(Question { id, from, text });
        }
    }

    /// Returns true if the person has written to the sender, or to all, since this message.
    pub fn is_answered(&self, message: &Message) -> bool {
        let answered_at = |to: &str| self.answered.get(&to.to_lowercase()).copied();
        [answered_at(&message.from), answered_at(ALL)].into_iter().flatten().any(|at| at >= message.timestamp)
    }

    /// Records that the person wrote to this member, or to all.
    fn answer(&mut self, to: &str, at: UnixMs) {
        self.waiting.retain(|question| !(question.from.eq_ignore_ascii_case(to) || to.eq_ignore_ascii_case(ALL)));
        self.answered.insert(to.to_lowercase(), at.as_seconds());
    }

    /// Returns the waiting questions.
    pub fn waiting(&self) -> &[Question] {
        &self.waiting
    }
}

/// Returns true for text that a member wrote. A message with a request id is a review, which is a request of its own.
fn is_from_member(message: &Message) -> bool {
    let is_text = matches!(message.kind, MessageType::Message | MessageType::Broadcast);
    is_text && message.from != HUMAN && message.request_id.is_none()
}

/// Returns the transcript entry for a message that the person wrote.
pub fn record_of_message(to: &str, text: &str) -> MessageRecord {
    MessageRecord { to: Some(to.to_owned()), ..MessageRecord::new(Role::Assistant, vec![Block::text(text)]) }
}

/// Returns true if a question mark ends one of the sentences.
pub fn is_question(text: &str) -> bool {
    let ends_sentence =
        |rest: &str| rest.chars().next().is_none_or(|next| next.is_whitespace() || SENTENCE_END_CHARS.contains(next));
    text.match_indices(['?', '？', '؟']).any(|(at, mark)| mark != "?" || ends_sentence(&text[at + 1..]))
}

/// Returns the last line of `text` if it is a question.
pub fn trailing_question(text: &str) -> Option<&str> {
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    last.trim_end_matches(|c| SENTENCE_END_CHARS.contains(c)).ends_with(['?', '？', '؟']).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(from: &str, text: &str) -> Record {
        shown_at(1_000, from, text)
    }

    fn shown_at(at: i64, from: &str, text: &str) -> Record {
        let line = Message::new(MessageType::Message, from, text, UnixMs(at)).to_line();
        Record {
            at: UnixMs(5_000),
            entry: TranscriptEntry::Message(MessageRecord::new(Role::User, vec![Block::text(line)])),
        }
    }

    fn written_to(to: &str, text: &str) -> Record {
        Record { at: UnixMs(2_000), entry: TranscriptEntry::Message(record_of_message(to, text)) }
    }

    fn askers(records: &[Record]) -> Vec<String> {
        Questions::of(records).waiting().iter().map(|question| question.from.clone()).collect()
    }

    #[test]
    fn question_is_open_until_answered_or_superseded() {
        let questions = [shown("ada", "Which colour?"), shown("bob", "Done."), shown("lead", "Ship it?")];
        assert_eq!(askers(&questions), ["ada", "lead"]);
        let then = |records: &[Record]| askers(&[&questions[..], records].concat());
        assert_eq!(then(&[written_to("Ada", "red: as ever")]), ["lead"]);
        assert_eq!(then(&[written_to("all", "stop")]), Vec::<String>::new());
        assert_eq!(then(&[written_to("bob", "thanks")]), ["ada", "lead"]);
        assert_eq!(then(&[shown("ada", "Never mind, it is red.")]), ["lead"]);
        assert_eq!(then(&[written_to("ada", "red"), shown_at(3_000, "ada", "Light or dark?")]), ["lead", "ada"]);
        assert_eq!(
            askers(&[written_to("bob", "red"), shown("bob", "Which?")]),
            Vec::<String>::new(),
            "delivered after the answer"
        );
    }

    #[test]
    fn question_in_last_paragraph_is_found() {
        assert_eq!(trailing_question("I see two ways.\nWhich **one?**\n\n"), Some("Which **one?**"));
        assert_eq!(trailing_question("Which one? I took the first.\n"), None);
        assert_eq!(trailing_question(""), None);
    }

    #[test]
    fn question_mark_counts_only_at_sentence_end() {
        for (text, asks) in [
            ("Which one?", true),
            ("Which one? I wait.", true),
            ("(or \"both?\")", true),
            ("哪个？", true),
            ("see http://x/y?z=1", false),
            ("done", false),
        ] {
            assert_eq!(is_question(text), asks, "{text}");
        }
    }
}
