//! What Tab offers and what is hinted at behind the cursor. Pure: the words there are come from the session.

use std::collections::{BTreeMap, BTreeSet};

use super::line::COMMANDS;
use crate::domain::name::{ALL, HUMAN, LEAD};
use crate::domain::request::{Request, RequestKind};
use crate::domain::state::Mode;
use crate::domain::task::TaskId;
use crate::ui::text::{cut, one_line, width};

/// Tasks that are remembered for completion; more are not offered.
const TASKS_MAX: usize = 20_000;
/// Candidates that are offered at once.
const CANDIDATES_MAX: usize = 100;
/// The widest subject beside a task's number.
const SUBJECT_WIDTH: usize = 50;

/// Subcommands of `/tasks`; those that take a task's number first come first.
const TASKS_WORDS: [&str; 14] = [
    "show", "update", "rm", "claim", "complete", "fail", "release", "renew", "retry", "reopen", "add", "import",
    "list", "help",
];
/// Subcommands of `/plan` and `/review`.
const APPROVAL_WORDS: [&str; 5] = ["show", "approve", "reject", "list", "help"];
/// How many of them take a number.
const WITH_NUMBER: usize = 10;

/// The names and tasks a person may type.
#[derive(Debug, Default)]
pub struct Vocabulary {
    names: BTreeSet<String>,
    tasks: BTreeMap<TaskId, String>,
    waits: Vec<Waits>,
    asks: Vec<Ask>,
    /// The team is paused, by what it is to do.
    is_paused: bool,
}

/// A plan or a review that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// What it is.
    pub kind: RequestKind,
    /// Its id.
    pub id: String,
    /// What it is about.
    pub about: String,
}

impl Waits {
    /// What a line needs to know of a request.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        Self { kind: request.kind, id: one_line(&request.id), about: one_line(&request.plan) }
    }
}

/// Something the person is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// By whom, and what.
    pub shown: String,
    /// How an answer begins; empty where it is simply typed.
    pub typed: String,
}

/// Something that may stand where the cursor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// As it is shown.
    pub shown: String,
    /// As it is typed.
    pub typed: String,
}

/// What is shown behind the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// As it is shown.
    pub shown: String,
    /// What of it can be taken over.
    pub typed: Option<String>,
}

impl Candidate {
    fn plain(word: &str) -> Self {
        Self { shown: word.to_owned(), typed: format!("{word} ") }
    }
}

impl Vocabulary {
    /// There is a member of this name.
    pub fn meet(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    /// There is such a task.
    pub fn learn(&mut self, task: TaskId, subject: &str) {
        if self.tasks.len() < TASKS_MAX {
            self.tasks.insert(task, one_line(subject));
        }
    }

    /// It is gone.
    pub fn forget(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    /// These are asked, and these plans and reviews wait. Returns what was asked before and is no more.
    pub fn wait_for(&mut self, asks: Vec<Ask>, waits: Vec<Waits>) -> Vec<Ask> {
        self.waits = waits;
        let before = std::mem::replace(&mut self.asks, asks);
        before.into_iter().filter(|ask| !self.asks.contains(ask)).collect()
    }

    /// Whether the person is asked anything.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !self.asks.is_empty()
    }

    /// The team is to do nothing, or to do something again.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether an empty line says anything.
    #[must_use]
    pub fn says_anything(&self) -> bool {
        self.is_asked() || self.is_paused
    }

    /// What an empty line says, in so many columns: what is asked, or that nothing is done.
    #[must_use]
    pub fn asked(&self, columns: usize) -> Option<String> {
        let Some(last) = self.asks.last() else {
            return self.is_paused.then(|| cut("(paused: /state continuous lets the team work)", columns));
        };
        let how = if last.typed.is_empty() { "your answer goes there" } else { "Tab begins the answer" };
        let more = match self.asks.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let behind = format!(" ({how}{more})");
        let room = columns.saturating_sub(width(&behind));
        // What is asked comes before how to answer where there is no room for both.
        Some(if room > columns / 2 { cut(&last.shown, room) + &behind } else { cut(&last.shown, columns) })
    }

    /// What may stand at the end of `before`, which is what stands before the cursor, and where in it that begins.
    #[must_use]
    pub fn complete(&self, before: &str) -> (usize, Vec<Candidate>) {
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let (earlier, word) = before.split_at(start);
        let earlier: Vec<&str> = earlier.split_whitespace().collect();
        let all = self.candidates(&earlier, word);
        let prefix = word.to_lowercase();
        let fits = |candidate: &Candidate| candidate.typed.to_lowercase().starts_with(&prefix);
        (start, all.into_iter().filter(fits).take(CANDIDATES_MAX).collect())
    }

    fn candidates(&self, earlier: &[&str], word: &str) -> Vec<Candidate> {
        match (earlier, word.chars().next()) {
            ([], None) => {
                let asks = self.asks.iter().rev().filter(|ask| !ask.typed.is_empty());
                asks.map(|ask| Candidate { shown: ask.typed.clone(), typed: ask.typed.clone() }).collect()
            }
            ([], Some('/')) => COMMANDS.iter().map(|command| Candidate::plain(&format!("/{}", command.name))).collect(),
            (_, Some('@')) => self.names(&[ALL, LEAD]).map(|name| Candidate::plain(&format!("@{name}"))).collect(),
            (["/tasks"], _) => TASKS_WORDS.iter().map(|word| Candidate::plain(word)).collect(),
            (["/tasks", subcommand], _) if TASKS_WORDS[..WITH_NUMBER].contains(subcommand) => self.ids(),
            (["/why"], _) => self.ids(),
            (["/plan" | "/review"], _) => APPROVAL_WORDS.iter().map(|word| Candidate::plain(word)).collect(),
            (["/plan", "show" | "approve" | "reject"], _) => self.waiting(RequestKind::PlanApproval),
            (["/review", "show" | "approve" | "reject"], _) => self.waiting(RequestKind::Review),
            (["/compact" | "/watch"], _) => self.names(&[LEAD]).map(Candidate::plain_name).collect(),
            (["/state"], _) => Mode::ALL.iter().map(|mode| Candidate::plain(mode.as_str())).collect(),
            (["/inbox"], _) => self.names(&[LEAD, HUMAN]).map(Candidate::plain_name).collect(),
            (["/send"], _) => self.names(&[LEAD, ALL]).map(Candidate::plain_name).collect(),
            (["/stop"], _) => self.names(&[]).map(Candidate::plain_name).collect(),
            (["/config"], _) => vec![Candidate::plain("show")],
            ([first, ..], _) if matches!(first.chars().next(), Some('/')) => {
                // An option's value may be a name.
                match earlier.last() {
                    Some(&("--as" | "--owner")) => self.names(&[]).map(Candidate::plain_name).collect(),
                    _ => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    fn names<'a>(&'a self, more: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
        self.names.iter().map(String::as_str).chain(more.iter().copied())
    }

    fn ids(&self) -> Vec<Candidate> {
        let shown = |(id, subject): (&TaskId, &String)| Candidate {
            shown: format!("{}  {}", id.0, cut(subject, SUBJECT_WIDTH)),
            typed: format!("{} ", id.0),
        };
        self.tasks.iter().map(shown).collect()
    }

    fn waiting(&self, kind: RequestKind) -> Vec<Candidate> {
        let shown = |waits: &Waits| Candidate {
            shown: format!("{}  {}", waits.id, cut(&waits.about, SUBJECT_WIDTH)),
            typed: format!("{} ", waits.id),
        };
        self.waits.iter().filter(|waits| waits.kind == kind).map(shown).collect()
    }

    /// What is likely to follow `typed`, shown behind it: the rest of the only command it can be and its arguments, or the subject
    /// of the task whose number it ends with.
    #[must_use]
    pub fn hint(&self, typed: &str) -> Option<Hint> {
        if let Some(command) = typed.strip_prefix('/')
            && !command.is_empty()
            && !command.contains(char::is_whitespace)
        {
            let mut fitting = COMMANDS.iter().filter(|known| known.name.starts_with(command));
            let (only, more) = (fitting.next()?, fitting.next());
            let rest = &only.name[command.len()..];
            let hint = || Hint {
                shown: format!("{rest} {}", only.arguments).trim_end().to_owned(),
                typed: Some(format!("{rest} ")).filter(|_| !rest.is_empty()),
            };
            return more.is_none().then(hint);
        }
        let last = typed.rsplit(char::is_whitespace).next()?;
        let id: u64 = last.parse().ok().filter(|_| typed.starts_with('/'))?;
        let subject = self.tasks.get(&TaskId(id))?;
        Some(Hint { shown: format!("  {}", cut(subject, SUBJECT_WIDTH)), typed: None })
    }
}

impl Candidate {
    fn plain_name(name: &str) -> Self {
        Self::plain(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let mut vocabulary = Vocabulary::default();
        vocabulary.meet("alice");
        vocabulary.meet("bob");
        vocabulary.learn(TaskId(3), "Write the parser");
        vocabulary.learn(TaskId(31), "Test it");
        vocabulary
    }

    fn typed(before: &str) -> Vec<String> {
        let (start, candidates) = vocabulary().complete(before);
        candidates.into_iter().map(|candidate| before[..start].to_owned() + candidate.typed.trim_end()).collect()
    }

    #[test]
    fn what_fits_is_offered() {
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
    fn hints_name_what_a_number_is() {
        let vocabulary = vocabulary();
        let hint = |typed: &str| vocabulary.hint(typed).map(|hint| (hint.shown, hint.typed));
        assert_eq!(hint("/wh"), Some(("y ID".to_owned(), Some("y ".to_owned()))));
        assert_eq!(hint("/why"), Some((" ID".to_owned(), None)));
        assert_eq!(hint("/t"), None, "tasks or team");
        assert_eq!(hint("/why 3"), Some(("  Write the parser".to_owned(), None)));
        assert_eq!(hint("buy 3"), None);
        assert_eq!(hint(""), None);
    }

    #[test]
    fn what_is_asked_stands_on_an_empty_line_and_tab_begins_the_answer() {
        let mut vocabulary = vocabulary();
        assert_eq!(vocabulary.asked(80), None);
        let ask = |shown: &str, typed: &str| Ask { shown: shown.to_owned(), typed: typed.to_owned() };
        let waits = |kind, id: &str| Waits { kind, id: id.to_owned(), about: "1. move".to_owned() };
        let waits = vec![waits(RequestKind::PlanApproval, "9b1d4e05"), waits(RequestKind::Review, "9c00")];
        vocabulary.wait_for(vec![ask("bob asks: Red?", "@bob "), ask("ada asks: Which colour?", "@ada ")], waits);
        assert_eq!(vocabulary.asked(80).unwrap(), "ada asks: Which colour? (Tab begins the answer, and 1 more)");
        assert!((1..80).all(|columns| width(&vocabulary.asked(columns).unwrap()) <= columns));
        let typed = |before: &str| -> Vec<String> {
            vocabulary.complete(before).1.into_iter().map(|candidate| candidate.typed).collect()
        };
        assert_eq!(typed(""), ["@ada ", "@bob "]);
        assert_eq!(typed("/plan approve 9"), ["9b1d4e05 "]);
        assert_eq!(typed("/review show 9"), ["9c00 "]);
        assert_eq!(typed("/compact l"), ["lead "]);
    }

    #[test]
    fn the_subcommands_of_plan_and_review_are_what_brigade_has() {
        use clap::CommandFactory;
        let brigade = crate::cli::Cli::command();
        for command in ["plan", "review"] {
            let command = brigade.find_subcommand(command).unwrap();
            let known: BTreeSet<_> = command.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
            assert_eq!(known, APPROVAL_WORDS.into_iter().collect());
        }
    }

    #[test]
    fn the_subcommands_of_tasks_are_what_brigade_has() {
        use clap::CommandFactory;
        let brigade = crate::cli::Cli::command();
        let tasks = brigade.find_subcommand("tasks").unwrap();
        for word in TASKS_WORDS.iter().filter(|word| **word != "help") {
            assert!(tasks.find_subcommand(word).is_some(), "{word}");
        }
        let known = tasks.get_subcommands().filter(|command| command.get_name() != "help").count();
        assert_eq!(known, TASKS_WORDS.len() - 1);
    }
}
