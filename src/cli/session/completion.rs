//! What Tab offers and what is hinted at behind the cursor. Pure: the words there are come from the session.

use std::collections::{BTreeMap, BTreeSet};

use super::line::COMMANDS;
use crate::domain::name::{ALL, HUMAN, LEAD};
use crate::domain::state::Mode;
use crate::domain::task::TaskId;
use crate::ui::text::{cut, one_line};

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
/// How many of them take a number.
const WITH_NUMBER: usize = 10;

/// The names and tasks a person may type.
#[derive(Debug, Default)]
pub struct Vocabulary {
    names: BTreeSet<String>,
    tasks: BTreeMap<TaskId, String>,
}

/// Something that may stand where the cursor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// As it is shown.
    pub shown: String,
    /// As it is typed.
    pub typed: String,
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
            ([], Some('/')) => COMMANDS.iter().map(|command| Candidate::plain(&format!("/{}", command.name))).collect(),
            (_, Some('@')) => self.names(&[ALL, LEAD]).map(|name| Candidate::plain(&format!("@{name}"))).collect(),
            (["/tasks"], _) => TASKS_WORDS.iter().map(|word| Candidate::plain(word)).collect(),
            (["/tasks", subcommand], _) if TASKS_WORDS[..WITH_NUMBER].contains(subcommand) => self.ids(),
            (["/why"], _) => self.ids(),
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

    /// What is likely to follow `typed`, shown behind it: the rest of the only command it can be and its arguments, or the subject
    /// of the task whose number it ends with.
    #[must_use]
    pub fn hint(&self, typed: &str) -> Option<String> {
        if let Some(command) = typed.strip_prefix('/')
            && !command.is_empty()
            && !command.contains(char::is_whitespace)
        {
            let mut fitting = COMMANDS.iter().filter(|known| known.name.starts_with(command));
            let (only, more) = (fitting.next()?, fitting.next());
            let rest = &only.name[command.len()..];
            return more.is_none().then(|| format!("{rest} {}", only.arguments).trim_end().to_owned());
        }
        let last = typed.rsplit(char::is_whitespace).next()?;
        let id: u64 = last.parse().ok().filter(|_| typed.starts_with('/'))?;
        let subject = self.tasks.get(&TaskId(id))?;
        Some(format!("  {}", cut(subject, SUBJECT_WIDTH)))
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
        assert_eq!(vocabulary.hint("/wh").as_deref(), Some("y ID"));
        assert_eq!(vocabulary.hint("/t"), None, "tasks or team");
        assert_eq!(vocabulary.hint("/why 3").as_deref(), Some("  Write the parser"));
        assert_eq!(vocabulary.hint("buy 3"), None);
        assert_eq!(vocabulary.hint(""), None);
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
