//! Completion and hints for the input line. Pure: the caller passes in the names and tasks.

use std::collections::{BTreeMap, BTreeSet};

use super::line::commands;
use crate::cli::complete::{self, ValueKind, Vocabulary};
use crate::domain::approval::{Request, RequestKind};
use crate::domain::name::{ALL, HUMAN, LEAD};
use crate::domain::task::TaskId;
use crate::domain::waiting_for::WaitingFor;
use crate::ui::text::{cut, one_line, width};

/// The most tasks that completion knows.
const TASKS_MAX: usize = 20_000;
/// The most candidates that are offered at once.
const INPUT_CANDIDATES_MAX: usize = 100;
/// The widest subject after a task number, in columns.
const SUBJECT_WIDTH: usize = 50;

/// The names and tasks that a person may type.
#[derive(Debug, Default)]
pub struct CompletionIndex {
    names: BTreeSet<String>,
    tasks: BTreeMap<TaskId, String>,
    open_approvals: Vec<OpenApproval>,
    open_questions: Vec<OpenQuestion>,
    /// True if the desired state is pause.
    is_paused: bool,
    /// The reason why the team has no session, if its goal is not met.
    waiting_for: Option<WaitingFor>,
}

/// A plan or review that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenApproval {
    /// Plan or review.
    pub kind: RequestKind,
    /// The id of the request.
    pub id: String,
    /// The text of the plan or the work.
    pub about: String,
}

impl OpenApproval {
    /// The parts of a request that completion needs.
    pub fn of(request: &Request) -> Self {
        Self { kind: request.kind, id: one_line(&request.id), about: one_line(&request.plan) }
    }
}

/// A question to the person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenQuestion {
    /// The sender and the question.
    pub text: String,
    /// The start of an answer, or the command that shows the request; empty if any text answers.
    pub answer_prefix: String,
    /// The first step of an answer, for the hint after the question.
    pub how: &'static str,
}

impl OpenQuestion {
    fn listed(&self) -> InputCandidate {
        let display = format!("{}  {}", self.answer_prefix.trim_end(), self.text);
        InputCandidate { display: display.trim_start().to_owned(), replacement: String::new() }
    }
}

/// A word that can be inserted at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputCandidate {
    /// The text in the list or on the line.
    pub display: String,
    /// The text that is inserted.
    pub replacement: String,
}

/// The text after the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// The text after the cursor.
    pub display: String,
    /// The part that the right arrow key inserts.
    pub completion: Option<String>,
}

impl InputCandidate {
    fn plain(word: &str) -> Self {
        Self { display: word.to_owned(), replacement: format!("{word} ") }
    }
}

impl CompletionIndex {
    /// Adds a member.
    pub fn add_teammate(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    /// Adds a task. More than 20,000 tasks are not offered.
    pub fn add_task(&mut self, task: TaskId, subject: &str) {
        if self.tasks.len() < TASKS_MAX {
            self.tasks.insert(task, one_line(subject));
        }
    }

    /// Removes a task.
    pub fn remove_task(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    /// Replaces the open questions and requests. Returns the questions that are no longer open.
    pub fn replace_open(&mut self, questions: Vec<OpenQuestion>, approvals: Vec<OpenApproval>) -> Vec<OpenQuestion> {
        self.open_approvals = approvals;
        let before = std::mem::replace(&mut self.open_questions, questions);
        before.into_iter().filter(|question| !self.open_questions.contains(question)).collect()
    }

    /// The open questions.
    pub fn open_questions(&self) -> &[OpenQuestion] {
        &self.open_questions
    }

    /// Returns true if a question is open.
    pub fn has_open_question(&self) -> bool {
        !self.open_questions.is_empty()
    }

    /// Sets whether the team is paused.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Sets the reason why the team has no session, if its goal is not met. Returns true if it is another one.
    pub fn set_waiting_for(&mut self, reason: Option<WaitingFor>) -> bool {
        let is_new = self.waiting_for != reason;
        self.waiting_for = reason;
        is_new
    }

    /// Returns true if an empty line shows a text.
    pub fn has_empty_line_text(&self) -> bool {
        self.has_open_question() || self.is_paused || self.waiting_for.is_some()
    }

    /// The text of an empty line, cut to these columns: the last question, or the reason why the team does nothing.
    pub fn empty_line_text(&self, columns: usize) -> Option<String> {
        let Some(last) = self.open_questions.last() else {
            return match &self.waiting_for {
                _ if self.is_paused => Some(cut("(paused; `/state continuous` starts the team)", columns)),
                Some(reason) => Some(cut(&format!("(waits for {})", one_line(&reason.to_string())), columns)),
                None => None,
            };
        };
        let suffix = match self.open_questions.len() {
            1 => format!(" ({})", last.how),
            count => format!(" (Tab lists all {count})"),
        };
        let columns_left = columns.saturating_sub(width(&suffix));
        // With few columns left only the question is shown.
        Some(if columns_left > columns / 2 {
            cut(&last.text, columns_left) + &suffix
        } else {
            cut(&last.text, columns)
        })
    }

    /// Returns the words that can complete `before`, the text before the cursor, and the byte offset of their start.
    pub fn complete(&self, before: &str) -> (usize, Vec<InputCandidate>) {
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let (earlier, word) = before.split_at(start);
        let earlier: Vec<&str> = earlier.split_whitespace().collect();
        let all = self.candidates(&earlier, word);
        let prefix = word.to_lowercase();
        let fits = |candidate: &InputCandidate| candidate.replacement.to_lowercase().starts_with(&prefix);
        (start, all.into_iter().filter(fits).take(INPUT_CANDIDATES_MAX).collect())
    }

    fn candidates(&self, earlier: &[&str], word: &str) -> Vec<InputCandidate> {
        match (earlier, word.chars().next()) {
            ([], None) => match self.open_questions.as_slice() {
                [only] if only.answer_prefix.is_empty() => Vec::new(),
                [only] => vec![InputCandidate {
                    display: only.answer_prefix.clone(),
                    replacement: only.answer_prefix.clone(),
                }],
                // They are only listed: a common start of their answers, such as `/`, would be no answer.
                several => several.iter().rev().map(OpenQuestion::listed).collect(),
            },
            ([], Some('/')) => {
                commands().iter().map(|command| InputCandidate::plain(&format!("/{}", command.name))).collect()
            }
            (_, Some('@')) => self.names(&[ALL, LEAD]).map(|name| InputCandidate::plain(&format!("@{name}"))).collect(),
            (["/compact" | "/watch"], _) => self.names(&[LEAD]).map(InputCandidate::plain).collect(),
            ([first, rest @ ..], _) => match first.strip_prefix('/') {
                Some(name) => {
                    let before: Vec<&str> = [name].into_iter().chain(rest.iter().copied()).collect();
                    complete::complete(&before, word, self).into_iter().map(InputCandidate::from).collect()
                }
                None => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn names<'a>(&'a self, more: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
        let more = more.iter().copied().filter(|name| !self.names.contains(*name));
        self.names.iter().map(String::as_str).chain(more)
    }

    /// The hint after `typed`: the rest of the only possible command with its arguments, or the subject of the task whose number
    /// was typed.
    pub fn hint(&self, typed: &str) -> Option<Hint> {
        if let Some(command) = typed.strip_prefix('/')
            && !command.is_empty()
            && !command.contains(char::is_whitespace)
        {
            let mut fitting = commands().iter().filter(|known| known.name.starts_with(command));
            let (only, more) = (fitting.next()?, fitting.next());
            let rest = &only.name[command.len()..];
            let hint = || Hint {
                display: format!("{rest} {}", only.arguments).trim_end().to_owned(),
                completion: Some(format!("{rest} ")).filter(|_| !rest.is_empty()),
            };
            return more.is_none().then(hint);
        }
        let last = typed.rsplit(char::is_whitespace).next()?;
        let id: u64 = last.parse().ok().filter(|_| typed.starts_with('/'))?;
        let subject = self.tasks.get(&TaskId(id))?;
        Some(Hint { display: format!("  {}", cut(subject, SUBJECT_WIDTH)), completion: None })
    }
}

impl Vocabulary for CompletionIndex {
    fn values(&self, kind: ValueKind) -> Vec<complete::Candidate> {
        let named = |more: &[&str]| self.names(more).map(|name| complete::Candidate::new(name, "")).collect();
        match kind {
            ValueKind::Task => {
                let tasks = self.tasks.iter();
                tasks.map(|(id, subject)| complete::Candidate::new(id.0.to_string(), subject)).collect()
            }
            ValueKind::Request(kind) => {
                let approvals = self.open_approvals.iter().filter(|approval| approval.kind == kind);
                approvals.map(|approval| complete::Candidate::new(approval.id.clone(), &approval.about)).collect()
            }
            ValueKind::Teammate => named(&[]),
            ValueKind::Inbox => named(&[LEAD, HUMAN]),
            ValueKind::Recipient => named(&[LEAD, ALL]),
            ValueKind::Team | ValueKind::File | ValueKind::Text => Vec::new(),
        }
    }
}

impl From<complete::Candidate> for InputCandidate {
    fn from(candidate: complete::Candidate) -> Self {
        let complete::Candidate { value, about } = candidate;
        let display = if about.is_empty() { value.clone() } else { format!("{value}  {about}") };
        Self { display, replacement: value + " " }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> CompletionIndex {
        let mut index = CompletionIndex::default();
        index.add_teammate("alice");
        index.add_teammate("bob");
        index.add_task(TaskId(3), "Write the parser");
        index.add_task(TaskId(31), "Test it");
        index
    }

    fn typed(before: &str) -> Vec<String> {
        let (start, candidates) = index().complete(before);
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
            ("/tasks sh", vec!["/tasks show"]),
            ("/tasks show 31", vec!["/tasks show 31"]),
            ("/tasks add 3", vec![]),
            ("/state p", vec!["/state pause"]),
            ("/stop ", vec!["/stop alice", "/stop bob"]),
            ("/tasks claim 3 --as A", vec!["/tasks claim 3 --as alice"]),
            ("plain text", vec![]),
        ] {
            assert_eq!(typed(before), offered, "{before}");
        }
    }

    #[test]
    fn hint_shows_subject_of_typed_task_id() {
        let index = index();
        let hint = |typed: &str| index.hint(typed).map(|hint| (hint.display, hint.completion));
        assert_eq!(hint("/wh"), Some(("y ID".to_owned(), Some("y ".to_owned()))));
        assert_eq!(hint("/why"), Some((" ID".to_owned(), None)));
        assert_eq!(hint("/t"), None, "tasks or team");
        assert_eq!(hint("/why 3"), Some(("  Write the parser".to_owned(), None)));
        assert_eq!(hint("buy 3"), None);
        assert_eq!(hint(""), None);
    }

    #[test]
    fn tab_on_empty_line_starts_answer_or_lists_questions() {
        let mut index = index();
        assert_eq!(index.empty_line_text(80), None);
        let reason = WaitingFor::Other("a task: the goal is not met".to_owned());
        assert!(index.set_waiting_for(Some(reason.clone())) && !index.set_waiting_for(Some(reason)));
        assert_eq!(index.empty_line_text(80).unwrap(), "(waits for a task: the goal is not met)");
        index.set_waiting_for(None);
        let open_question = |text: &str, answer_prefix: &str, how| OpenQuestion {
            text: text.into(),
            answer_prefix: answer_prefix.into(),
            how,
        };
        let plan = || open_question("bob waits for plan 9b1d4e05: 1. move", "/plan show 9b1d4e05", "Tab shows it");
        let question = || open_question("ada asks: Which colour?", "@ada ", "Tab starts the answer");
        let offered = |index: &CompletionIndex| -> Vec<(String, String)> {
            index.complete("").1.into_iter().map(|candidate| (candidate.replacement, candidate.display)).collect()
        };
        index.replace_open(vec![plan()], Vec::new());
        assert_eq!(index.empty_line_text(80).unwrap(), "bob waits for plan 9b1d4e05: 1. move (Tab shows it)");
        assert_eq!(offered(&index)[0].0, "/plan show 9b1d4e05");
        let approval = |kind, id: &str| OpenApproval { kind, id: id.to_owned(), about: "1. move".to_owned() };
        let approvals = vec![approval(RequestKind::PlanApproval, "9b1d4e05"), approval(RequestKind::Review, "9c00")];
        let review = open_question("bob waits for review 9c00: #1 One", "/review show 9c00", "Tab shows it");
        index.replace_open(vec![plan(), review, question()], approvals);
        assert_eq!(index.empty_line_text(80).unwrap(), "ada asks: Which colour? (Tab lists all 3)");
        assert!((1..80).all(|columns| width(&index.empty_line_text(columns).unwrap()) <= columns));
        let listed = [
            "@ada  ada asks: Which colour?",
            "/review show 9c00  bob waits for review 9c00: #1 One",
            "/plan show 9b1d4e05  bob waits for plan 9b1d4e05: 1. move",
        ];
        assert_eq!(offered(&index), listed.map(|shown| (String::new(), shown.to_owned())));
        index.add_teammate("lead");
        let typed = |before: &str| -> Vec<String> {
            index.complete(before).1.into_iter().map(|candidate| candidate.replacement).collect()
        };
        assert_eq!(typed("/plan approve 9"), ["9b1d4e05 "]);
        assert_eq!(typed("/review show 9"), ["9c00 "]);
        assert_eq!(typed("/compact l"), ["lead "]);
    }
}
