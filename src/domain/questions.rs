//! What members asked the person and the person has not answered, as the person's own transcript tells it: what was shown to them
//! stands there as told, what they wrote as said.

use std::collections::BTreeMap;

use super::message::{Message, MessageType};
use super::name::{ALL, HUMAN};
use super::time::UnixMs;
use super::transcript::{Block, Entry, MessageRecord, Record, Role};

/// Askers that are remembered; of more, the oldest are not.
const QUESTIONS_MAX: usize = 100;
/// What stands behind the mark of a question that is one: its sentence is over. In `?x=1` it is not.
const ENDS: &str = "\"'”’»)]*_`!.,;:";

/// A question that waits for the person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Who asks.
    pub from: String,
    /// The message.
    pub text: String,
}

/// The questions that wait, one for each who asks, oldest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Questions {
    waiting: Vec<Question>,
    /// When the person last wrote to whom, in seconds: what was asked before that is answered, however late it was read.
    answered: BTreeMap<String, f64>,
}

impl Questions {
    /// Those of a person's transcript.
    #[must_use]
    pub fn of(records: &[Record]) -> Self {
        let mut questions = Self::default();
        for record in records {
            let Entry::Message(message) = &record.entry else { continue };
            for block in &message.content {
                let Block::Text { text } = block else { continue };
                match message.role {
                    Role::User => drop(Message::parse(text.as_bytes()).map(|message| questions.hear(&message))),
                    Role::Assistant => {
                        if let Some((to, _)) = text.strip_prefix("to ").and_then(|said| said.split_once(": ")) {
                            questions.answer(to, record.at);
                        }
                    }
                }
            }
        }
        questions
    }

    /// Whether the person is asked something by this message.
    #[must_use]
    pub fn asks(message: &Message) -> bool {
        // Work to be reviewed is a request of its own.
        let is_plain =
            matches!(message.kind, MessageType::Message | MessageType::Broadcast) && message.request_id.is_none();
        is_plain && message.from != HUMAN && is_question(&message.content)
    }

    /// The person was told this. The last thing somebody wrote says whether they wait.
    pub fn hear(&mut self, message: &Message) {
        let is_plain = matches!(message.kind, MessageType::Message | MessageType::Broadcast);
        if message.from == HUMAN || !is_plain || message.request_id.is_some() {
            return;
        }
        self.waiting.retain(|question| !question.from.eq_ignore_ascii_case(&message.from));
        let written = |to: &str| self.answered.get(&to.to_lowercase()).copied();
        let is_answered =
            [written(&message.from), written(ALL)].into_iter().flatten().any(|at| at >= message.timestamp);
        if Self::asks(message) && !is_answered {
            if self.waiting.len() >= QUESTIONS_MAX {
                self.waiting.remove(0);
            }
            self.waiting.push(Question { from: message.from.clone(), text: message.content.clone() });
        }
    }

    /// The person wrote to this member, or to all.
    fn answer(&mut self, to: &str, at: UnixMs) {
        self.waiting.retain(|question| !(question.from.eq_ignore_ascii_case(to) || to.eq_ignore_ascii_case(ALL)));
        self.answered.insert(to.to_lowercase(), at.as_seconds());
    }

    /// Those that wait.
    #[must_use]
    pub fn waiting(&self) -> &[Question] {
        &self.waiting
    }
}

/// What a person's transcript keeps of a message that they wrote.
#[must_use]
pub fn said(to: &str, text: &str) -> MessageRecord {
    MessageRecord::new(Role::Assistant, vec![Block::text(format!("to {to}: {text}"))])
}

/// Whether a text asks something: a question mark ends one of its sentences.
fn is_question(text: &str) -> bool {
    let ends = |rest: &str| rest.chars().next().is_none_or(|next| next.is_whitespace() || ENDS.contains(next));
    text.match_indices(['?', '？', '؟']).any(|(at, mark)| mark != "?" || ends(&text[at + 1..]))
}

/// The last line of what somebody said, where it asks something: they wait for an answer.
#[must_use]
pub fn asked_at_the_end(said: &str) -> Option<&str> {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    last.trim_end_matches(|c| ENDS.contains(c)).ends_with(['?', '？', '؟']).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(from: &str, text: &str) -> Record {
        told_at(1_000, from, text)
    }

    fn told_at(at: i64, from: &str, text: &str) -> Record {
        let line = Message::new(MessageType::Message, from, text, UnixMs(at)).to_line();
        Record { at: UnixMs(5_000), entry: Entry::Message(MessageRecord::new(Role::User, vec![Block::text(line)])) }
    }

    fn wrote(to: &str, text: &str) -> Record {
        Record { at: UnixMs(2_000), entry: Entry::Message(said(to, text)) }
    }

    fn askers(records: &[Record]) -> Vec<String> {
        Questions::of(records).waiting().iter().map(|question| question.from.clone()).collect()
    }

    #[test]
    fn a_question_waits_until_it_is_answered_or_who_asked_has_moved_on() {
        let asked = [told("ada", "Which colour?"), told("bob", "Done."), told("lead", "Ship it?")];
        assert_eq!(askers(&asked), ["ada", "lead"]);
        let then = |records: &[Record]| askers(&[&asked[..], records].concat());
        assert_eq!(then(&[wrote("Ada", "red: as ever")]), ["lead"]);
        assert_eq!(then(&[wrote("all", "stop")]), Vec::<String>::new());
        assert_eq!(then(&[wrote("bob", "thanks")]), ["ada", "lead"]);
        assert_eq!(then(&[told("ada", "Never mind, it is red.")]), ["lead"]);
        assert_eq!(then(&[wrote("ada", "red"), told_at(3_000, "ada", "Light or dark?")]), ["lead", "ada"]);
        assert_eq!(
            askers(&[wrote("bob", "red"), told("bob", "Which?")]),
            Vec::<String>::new(),
            "read after the answer"
        );
    }

    #[test]
    fn who_ends_with_a_question_waits() {
        assert_eq!(asked_at_the_end("I see two ways.\nWhich **one?**\n\n"), Some("Which **one?**"));
        assert_eq!(asked_at_the_end("Which one? I took the first.\n"), None);
        assert_eq!(asked_at_the_end(""), None);
    }

    #[test]
    fn a_question_ends_a_sentence() {
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
