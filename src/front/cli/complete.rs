//! Completion of a command line, for the interactive session and for shells, along clap's command tree. The scripts of
//! `brigade completions` call the hidden command `brigade complete`.

use std::ffi::OsString;
use std::sync::Arc;

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::engine::{self, ArgValueCandidates, CompletionCandidate};

use super::Cli;
use super::commands::value_name;
use super::context::{Context, on_one_thread};
use super::error::CliResult;
use super::location::Global;
use super::output::CommandAnswer;
use crate::api::members;
use crate::api::request::approvals;
use crate::api::task;
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::team::name::{ALL, HUMAN, LEAD};
use crate::domain::text::{one_line, shell_word};
use crate::front::text::lines::cut;

/// The most candidates that are offered at once.
pub const CANDIDATES_MAX: usize = 200;
/// The widest description of a candidate, in columns.
pub const ABOUT_WIDTH: usize = 50;
/// The line that tells the shell to complete file names. No name of a task, member or team has a colon.
pub const FILES_MARKER: &str = ":files";

/// A word that can be inserted at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The word.
    pub value: String,
    /// Its description; may be empty.
    pub about: String,
}

impl Candidate {
    /// A candidate with a description of one line.
    pub fn new(value: impl Into<String>, about: &str) -> Self {
        Self { value: value.into(), about: cut(&one_line(about), ABOUT_WIDTH) }
    }
}

impl Candidate {
    fn into_completion(self) -> CompletionCandidate {
        CompletionCandidate::new(self.value).help(Some(self.about.into()))
    }
}

/// The meaning of an argument's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A task number.
    Task,
    /// The id of a plan or a review that waits for an answer.
    Request(RequestKind),
    /// A teammate.
    Teammate,
    /// A teammate, the lead or the person: everyone with an inbox.
    Inbox,
    /// A teammate, the lead or all.
    Recipient,
    /// A team of the config.
    Team,
    /// A path.
    File,
    /// A text that is not completed.
    Text,
}

/// The words of a workspace, for all threads.
pub type SharedVocabulary = Arc<dyn Vocabulary>;

/// The words of a workspace.
pub trait Vocabulary: Send + Sync {
    /// The values of this kind, in the order in which they are offered.
    fn values(&self, kind: ValueKind) -> Vec<Candidate>;
}

/// Returns the meaning of an argument's value, which follows from its name in the help.
fn value_kind(path: &[&str], argument: &Arg) -> ValueKind {
    let name = value_name(argument);
    match (path.first().copied(), name.as_str()) {
        (Some("plan"), "ID") => ValueKind::Request(RequestKind::PlanApproval),
        (Some("review"), "ID") => ValueKind::Request(RequestKind::Review),
        (Some("permission"), "ID") => ValueKind::Request(RequestKind::Permission),
        (_, "ID" | "IDS") => ValueKind::Task,
        (Some("init" | "mcp"), "NAME") => ValueKind::Text,
        (Some("inbox"), "NAME") => ValueKind::Inbox,
        (_, "NAME") => ValueKind::Teammate,
        (_, "TO") => ValueKind::Recipient,
        (_, "TEAM") => ValueKind::Team,
        (_, "FILE" | "DIR") => ValueKind::File,
        _ => ValueKind::Text,
    }
}

/// Returns the words that can replace `word`, after the words `before` it. Options are offered once a `-` is typed.
pub fn complete(before: &[&str], word: &str, vocabulary: &SharedVocabulary) -> Vec<Candidate> {
    // The letters that were typed are compared here, ignoring case.
    let asked = match word.split_once('=') {
        Some((option, _)) if option.starts_with("--") => format!("{option}="),
        _ if word.starts_with('-') => word.to_owned(),
        _ => String::new(),
    };
    let words = ["brigade"].iter().chain(before).copied().chain([asked.as_str()]).map(OsString::from).collect();
    let mut root = with_vocabulary(Cli::command(), &[], vocabulary);
    let found = engine::complete(&mut root, words, before.len() + 1, None).unwrap_or_default();
    let candidate = |found: &CompletionCandidate| {
        let about = found.get_help().map(ToString::to_string).unwrap_or_default();
        Candidate::new(found.get_value().to_string_lossy(), &about)
    };
    let shown = found.iter().filter(|found| !found.is_hide_set()).map(candidate);
    matching(shown.filter(|candidate| candidate.value.starts_with("--") == word.starts_with('-')), word)
}

/// The command tree, in which arguments know their values.
fn with_vocabulary(command: Command, path: &[&str], vocabulary: &SharedVocabulary) -> Command {
    let with_values = |argument: Arg| {
        let kind = value_kind(path, &argument);
        if kind == ValueKind::Text || !argument.get_possible_values().is_empty() {
            return argument;
        }
        let vocabulary = Arc::clone(vocabulary);
        let values = move || vocabulary.values(kind).into_iter().map(Candidate::into_completion).collect();
        argument.add(ArgValueCandidates::new(values))
    };
    command.mut_args(with_values).mut_subcommands(|subcommand| {
        let name = subcommand.get_name().to_owned();
        with_vocabulary(subcommand, &[path, &[&name]].concat(), vocabulary)
    })
}

/// The candidates that begin with `word`, ignoring case.
pub fn matching(candidates: impl IntoIterator<Item = Candidate>, word: &str) -> Vec<Candidate> {
    let prefix = word.to_lowercase();
    let begins =
        |candidate: &Candidate| candidate.value.to_lowercase().starts_with(&prefix) || candidate.value == FILES_MARKER;
    // The shell does not quote the inserted word, and names and ids may come from other programs. So words that need quotes are left
    // out.
    let is_word = |text: &str| text.split('=').all(|part| part.is_empty() || shell_word(part) == part);
    let is_plain = |candidate: &Candidate| is_word(&candidate.value) || candidate.value == FILES_MARKER;
    candidates.into_iter().filter(begins).filter(is_plain).take(CANDIDATES_MAX).collect()
}

/// Print the words that complete a command line; the scripts of `brigade completions` call it
#[derive(Debug, clap::Args)]
pub struct Complete {
    /// The words after `brigade`, up to the cursor; the last one is completed and may be empty
    #[arg(last = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<String>,
}

impl Complete {
    /// Prints one candidate a line: the word and its description, separated by a tab. Prints nothing where there is no
    /// workspace or where it cannot be read.
    ///
    /// # Errors
    /// None.
    pub fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        // bash passes `--status=failed` as three words.
        let mut words: Vec<&str> = Vec::new();
        for word in &self.words {
            if word != "=" || !words.last().is_some_and(|before| before.starts_with("--")) {
                words.push(word);
            } else if std::ptr::eq(word, &self.words[self.words.len() - 1]) {
                words.push("");
            }
        }
        let word = words.pop().unwrap_or_default();
        let vocabulary: SharedVocabulary =
            Arc::new(WorkspaceVocabulary { context: with_named_workspace(context, &words) });
        let line = |candidate: Candidate| {
            if candidate.about.is_empty() {
                format!("{}\n", candidate.value)
            } else {
                format!("{}\t{}\n", candidate.value, candidate.about)
            }
        };
        let text = complete(&words, word, &vocabulary).into_iter().map(line).collect();
        Ok(CommandAnswer::text(text))
    }
}

/// Returns the context with the `--workspace` and the `--config` of the typed line.
fn with_named_workspace(context: &Context, words: &[&str]) -> Context {
    let value = |flag: &str| {
        let mut values = words.iter().enumerate().filter_map(|(at, word)| match word.strip_prefix(flag) {
            Some("") => words.get(at + 1).copied(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        });
        values.next().map(Into::into)
    };
    let global = Global { config: value("--config"), workspace: value("--workspace"), ..Global::default() };
    if global.config.is_none() && global.workspace.is_none() {
        return context.clone();
    }
    Context::new(global, context.output).unwrap_or_else(|_| context.clone())
}

/// The words of a workspace, read from its files. Files that cannot be read offer no words.
#[derive(Debug)]
pub(in crate::front) struct WorkspaceVocabulary {
    pub(in crate::front) context: Context,
}

impl Vocabulary for WorkspaceVocabulary {
    fn values(&self, kind: ValueKind) -> Vec<Candidate> {
        let read = async {
            match kind {
                ValueKind::Task => self.tasks().await,
                ValueKind::Request(kind) => self.requests(kind).await,
                ValueKind::Teammate => self.names(&[]).await,
                ValueKind::Inbox => self.names(&[LEAD, HUMAN]).await,
                ValueKind::Recipient => self.names(&[LEAD, ALL]).await,
                ValueKind::Team => Ok(self.teams()),
                ValueKind::File => Ok(vec![Candidate::new(FILES_MARKER, "")]),
                ValueKind::Text => Ok(Vec::new()),
            }
        };
        on_one_thread(read).unwrap_or_default()
    }
}

impl WorkspaceVocabulary {
    async fn tasks(&self) -> CliResult<Vec<Candidate>> {
        let view = task::board(&self.context.workspace).await?;
        Ok(view.tasks.values().map(|task| Candidate::new(task.id.0.to_string(), &task.subject)).collect())
    }

    async fn requests(&self, kind: RequestKind) -> CliResult<Vec<Candidate>> {
        let approvals = approvals(&self.context.workspace).await?;
        let candidate = |request: &Request| Candidate::new(one_line(&request.id), &request.plan);
        Ok(approvals.open(kind).map(candidate).collect())
    }

    fn teams(&self) -> Vec<Candidate> {
        let config = self.context.workspace.location.config_if_valid();
        let names = config.map(|config| config.team_names()).unwrap_or_default();
        names.into_iter().map(|name| Candidate::new(name, "")).collect()
    }

    async fn names(&self, more: &[&str]) -> CliResult<Vec<Candidate>> {
        let mut names = members::all_names(&self.context.workspace).await;
        names.sort();
        let names = names.iter().map(String::as_str).chain(more.iter().copied());
        Ok(names.map(|name| Candidate::new(one_line(name), "")).collect())
    }
}

#[cfg(test)]
pub(in crate::front) mod tests {
    use super::*;
    use crate::front::cli::commands::{root, visible_subcommands};

    struct FixedVocabulary;

    impl Vocabulary for FixedVocabulary {
        fn values(&self, kind: ValueKind) -> Vec<Candidate> {
            let words: &[&str] = match kind {
                ValueKind::Task => &["3", "31"],
                ValueKind::Request(RequestKind::Review) => &["9c00"],
                ValueKind::Request(_) => &["9b1d"],
                ValueKind::Teammate => &["alice", "bob", "x;touch y", "`id`"],
                ValueKind::Inbox => &["alice", "bob", "lead", "human"],
                ValueKind::Recipient => &["alice", "bob", "lead", "all"],
                ValueKind::Team => &["crew"],
                ValueKind::File => &[FILES_MARKER],
                ValueKind::Text => &[],
            };
            words.iter().map(|word| Candidate::new(*word, "")).collect()
        }
    }

    pub(in crate::front) fn fixed_vocabulary() -> SharedVocabulary {
        Arc::new(FixedVocabulary)
    }

    fn offered(line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let (word, before) = words.split_last().unwrap();
        complete(before, word, &fixed_vocabulary()).into_iter().map(|candidate| candidate.value).collect()
    }

    #[test]
    fn completion_follows_the_command_tree() {
        for (line, expected) in [
            ("te", vec!["team"]),
            ("why ", vec!["3", "31"]),
            ("why 31", vec!["31"]),
            ("tasks sh", vec!["show"]),
            ("tasks show 3 ", vec!["3", "31"]),
            ("tasks done ", vec!["3", "31"]),
            ("tasks add 3", vec![]),
            ("tasks add x --after ", vec!["3", "31"]),
            ("tasks claim 3 --as A", vec!["alice"]),
            ("tasks list --status f", vec!["failed"]),
            ("tasks list --status=f", vec!["--status=failed"]),
            ("tasks claim --le", vec!["--lease"]),
            ("tasks import ", vec![FILES_MARKER]),
            ("--workspace /x why 31", vec!["31"]),
            ("review show ", vec!["9c00"]),
            ("plan approve ", vec!["9b1d"]),
            ("state p", vec!["pause"]),
            ("inbox h", vec!["human"]),
            ("send l", vec!["lead"]),
            ("stop ", vec!["alice", "bob"]),
            ("run c", vec!["crew"]),
            ("config sh", vec!["show"]),
            ("why 3 ", vec![]),
        ] {
            assert_eq!(offered(line), expected, "{line:?}");
        }
    }

    /// A new value name must be added to [`value_kind`], or to this list.
    #[test]
    fn every_value_name_has_a_kind() {
        const TEXTS: [&str; 16] = [
            "TEXT", "WORDS", "COMMAND", "N", "TIME", "COUNT", "SECONDS", "MOMENT", "RUN", "SUBJECT", "GOAL", "NAME",
            "SHELL", "MODE", "DIGEST", "URL",
        ];
        let mut left = vec![(Vec::new(), root())];
        while let Some((path, command)) = left.pop() {
            for argument in command.get_arguments().filter(|argument| argument.get_action().takes_values()) {
                let is_known = !argument.get_possible_values().is_empty()
                    || value_kind(&path, argument) != ValueKind::Text
                    || TEXTS.contains(&value_name(argument).as_str());
                assert!(is_known, "{path:?} {argument}");
            }
            for subcommand in visible_subcommands(command) {
                left.push(([path.as_slice(), &[subcommand.get_name()]].concat(), subcommand));
            }
        }
    }
}
