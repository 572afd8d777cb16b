//! Completion and hints for the input line, and the text of an empty line.

use super::line::commands;
use crate::domain::team::name::ALL;
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::text::one_line;
use crate::front::cli::complete::{self, Candidate, FILES_MARKER, SharedVocabulary, ValueKind};
use crate::front::text::lines::{cut, width};

/// The text of an empty line: the open questions, or the reason why the team does nothing.
#[derive(Debug, Clone, Default)]
pub struct EmptyLine {
    pub questions: Vec<OpenQuestion>,
    /// True if the desired state is pause.
    pub is_paused: bool,
    /// The reason why the team has no session, if its goal is not met.
    pub waiting_for: Option<WaitingFor>,
}

/// A question to the person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenQuestion {
    /// The sender and the question.
    pub text: String,
    /// The text for a line that has no room for all of a plan or a call, whose start alone could mislead.
    pub short: Option<String>,
    /// The start of an answer, or the command that shows the request; empty if any text answers.
    pub answer_prefix: String,
    /// The first step of an answer, for the hint after the question.
    pub how: &'static str,
}

/// A word that can be inserted at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputCandidate {
    /// The text in the list or on the line.
    pub display: String,
    /// The text that is inserted.
    pub replacement: String,
}

impl InputCandidate {
    fn new(Candidate { value, about }: Candidate) -> Self {
        let display = if about.is_empty() { value.clone() } else { format!("{value}  {about}") };
        Self { display, replacement: value + " " }
    }
}

impl EmptyLine {
    /// The text, cut to these columns: the last question, or the reason why the team does nothing.
    pub fn text(&self, columns: usize) -> Option<String> {
        let Some(last) = self.questions.last() else {
            return match &self.waiting_for {
                _ if self.is_paused => Some(cut("(paused; `/state continuous` starts the team)", columns)),
                Some(reason) => Some(cut(&format!("(waits for {})", one_line(&reason.to_string())), columns)),
                None => None,
            };
        };
        let suffix = match self.questions.len() {
            1 => format!(" ({})", last.how),
            count => format!(" (Tab lists all {count})"),
        };
        let columns_left = columns.saturating_sub(width(&suffix));
        let text = match &last.short {
            Some(short) if width(&last.text) > columns_left => short,
            _ => &last.text,
        };
        // With few columns left only the question is shown.
        Some(if columns_left > columns / 2 { cut(text, columns_left) + &suffix } else { cut(text, columns) })
    }

    /// The answer to the only question, or a list of all questions.
    fn candidates(&self) -> Vec<InputCandidate> {
        if let [OpenQuestion { answer_prefix, .. }] = self.questions.as_slice() {
            let candidate = InputCandidate { display: answer_prefix.clone(), replacement: answer_prefix.clone() };
            return if answer_prefix.is_empty() { Vec::new() } else { vec![candidate] };
        }
        // They are only listed: a common start of their answers, such as `/`, would be no answer.
        let listed = |question: &OpenQuestion| {
            let display = format!("{}  {}", question.answer_prefix.trim_end(), question.text);
            InputCandidate { display: display.trim_start().to_owned(), replacement: String::new() }
        };
        self.questions.iter().rev().map(listed).collect()
    }
}

/// Returns the words that can complete `before`, the text before the cursor, and the byte offset of their start.
pub fn complete(before: &str, line: &EmptyLine, vocabulary: &SharedVocabulary) -> (usize, Vec<InputCandidate>) {
    let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (earlier, word) = before.split_at(start);
    let earlier: Vec<&str> = earlier.split_whitespace().collect();
    let candidates: Vec<Candidate> = match (earlier.as_slice(), word.chars().next()) {
        ([], None) => return (start, line.candidates()),
        ([], Some('/')) => commands().iter().map(|command| Candidate::new(format!("/{}", command.name), "")).collect(),
        (_, Some('@')) => {
            let names = vocabulary.values(ValueKind::Recipient).into_iter();
            names.map(|name| Candidate::new(format!("@{}", name.value), "")).collect()
        }
        (["/compact" | "/watch"], _) => {
            vocabulary.values(ValueKind::Recipient).into_iter().filter(|name| name.value != ALL).collect()
        }
        ([first, rest @ ..], _) if first.starts_with('/') => {
            let before: Vec<&str> = [&first[1..]].into_iter().chain(rest.iter().copied()).collect();
            complete::complete(&before, word, vocabulary)
        }
        _ => Vec::new(),
    };
    let candidates = complete::matching(candidates, word).into_iter();
    let candidates = candidates.filter(|candidate| candidate.value != FILES_MARKER);
    (start, candidates.map(InputCandidate::new).collect())
}

/// The rest of the only command that begins with `typed`, and its arguments: the text to show, and the part that the right arrow key
/// inserts.
pub fn hint(typed: &str) -> Option<(String, Option<String>)> {
    let command = typed.strip_prefix('/').filter(|command| !command.is_empty())?;
    let mut fitting = commands().iter().filter(|known| known.name.starts_with(command));
    let (Some(only), None) = (fitting.next(), fitting.next()) else { return None };
    let rest = &only.name[command.len()..];
    let display = format!("{rest} {}", only.arguments).trim_end().to_owned();
    Some((display, (!rest.is_empty()).then(|| format!("{rest} "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::cli::complete::tests::fixed_vocabulary;

    fn typed(before: &str) -> Vec<String> {
        let (start, candidates) = complete(before, &EmptyLine::default(), &fixed_vocabulary());
        candidates.into_iter().map(|candidate| before[..start].to_owned() + candidate.replacement.trim_end()).collect()
    }

    #[test]
    fn completion_offers_matching_words() {
        for (before, offered) in [
            ("/te", vec!["/team"]),
            ("@al", vec!["@alice", "@all"]),
            ("@alice @b", vec!["@alice @bob"]),
            ("hello @b", vec!["hello @bob"]),
            ("/why 3", vec!["/why 3", "/why 31"]),
            ("/tasks import ", vec![]),
            ("/review show 9", vec!["/review show 9c00"]),
            ("/compact l", vec!["/compact lead"]),
            ("plain text", vec![]),
        ] {
            assert_eq!(typed(before), offered, "{before}");
        }
    }

    #[test]
    fn hint_shows_rest_and_arguments_of_command() {
        assert_eq!(hint("/wh"), Some(("y ID".to_owned(), Some("y ".to_owned()))));
        assert_eq!(hint("/why"), Some((" ID".to_owned(), None)));
        for typed in ["/t", "/why 3", "buy 3", "/", ""] {
            assert_eq!(hint(typed), None, "{typed}");
        }
    }

    #[test]
    fn tab_on_empty_line_starts_answer_or_lists_questions() {
        let mut line = EmptyLine::default();
        assert_eq!(line.text(80), None);
        line.waiting_for = Some(WaitingFor::Other("a task: the goal is not met".to_owned()));
        assert_eq!(line.text(80).unwrap(), "(waits for a task: the goal is not met)");
        let open_question = |text: &str, answer_prefix: &str, how| OpenQuestion {
            short: None,
            text: text.into(),
            answer_prefix: answer_prefix.into(),
            how,
        };
        let plan = || open_question("bob asks about plan 9b1d4e05: 1. move", "/plan show 9b1d4e05", "Tab shows it");
        let question = || open_question("ada asks: Which colour?", "@ada ", "Tab starts the answer");
        let offered = |line: &EmptyLine| -> Vec<(String, String)> {
            let candidates = complete("", line, &fixed_vocabulary()).1;
            candidates.into_iter().map(|candidate| (candidate.replacement, candidate.display)).collect()
        };
        line.questions = vec![plan()];
        assert_eq!(line.text(80).unwrap(), "bob asks about plan 9b1d4e05: 1. move (Tab shows it)");
        assert_eq!(offered(&line)[0].0, "/plan show 9b1d4e05");
        let review = open_question("bob waits for review 9c00: #1 One", "/review show 9c00", "Tab shows it");
        line.questions = vec![plan(), review, question()];
        assert_eq!(line.text(80).unwrap(), "ada asks: Which colour? (Tab lists all 3)");
        assert!((1..80).all(|columns| width(&line.text(columns).unwrap()) <= columns));
        let listed = [
            "@ada  ada asks: Which colour?",
            "/review show 9c00  bob waits for review 9c00: #1 One",
            "/plan show 9b1d4e05  bob asks about plan 9b1d4e05: 1. move",
        ];
        assert_eq!(offered(&line), listed.map(|shown| (String::new(), shown.to_owned())));
    }
}
