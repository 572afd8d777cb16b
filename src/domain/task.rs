//! A task: its fields, and how they stand in `task_<id>.json`.
//!
//! Contract: `id subject description status owner blockedBy blocks` have these names and types for every
//! program that shares the board; the other fields are ours and optional. Who may change what is in [`super::change`],
//! what may be claimed in [`super::graph`].

use std::fmt;

use serde::{Deserialize, Serialize};

use super::document::{Document, DocumentError};
use super::imported::Imported;
use super::time::UnixMs;

/// The number of a task; its file's name rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub u64);

/// The largest task number: every JSON reader holds it exactly (2^53 - 1).
pub const TASK_ID_MAX: u64 = (1 << 53) - 1;

/// Attempts a task has before it is given up, unless it says otherwise.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 3;

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl TaskId {
    /// The name of this task's file on the board.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("task_{}.json", self.0)
    }

    /// The task whose file has this name. `task_07.json` is nobody's: one task has one name.
    #[must_use]
    pub fn from_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("task_")?.strip_suffix(".json")?;
        let id: u64 = digits.parse().ok()?;
        (id <= TASK_ID_MAX && id.to_string() == digits).then_some(Self(id))
    }
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Waits to be claimed.
    Pending,
    /// Somebody works on it.
    InProgress,
    /// Done; others may build on it.
    Completed,
    /// Given up, with a reason in its result; blocks its dependents until retried.
    Failed,
}

impl TaskStatus {
    /// All of them, in the order people read them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::InProgress, Self::Completed, Self::Failed];

    /// The word that stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// The status this word stands for.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Who holds a task. A task in progress without one is held by a program that knows nothing of claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The worker whose life carries the claim; `lease:<name>` for a claim by command.
    pub worker: String,
    /// When it was made.
    pub at: UnixMs,
    /// When a claim without a process behind it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<UnixMs>,
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskResult {
    /// What was done, or why it failed.
    #[serde(default)]
    pub summary: String,
    /// What shows it, in a sentence for people.
    #[serde(default)]
    pub evidence: String,
    /// The verify command, as it came out when the task was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyRun>,
    /// The commit the work is in, where the task had a worktree of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Who approved it, where the team has its work reviewed.
    #[serde(default, rename = "reviewedBy", skip_serializing_if = "Option::is_none")]
    pub reviewed_by: Option<String>,
}

impl TaskResult {
    /// A result of which no more is known than what somebody says.
    #[must_use]
    pub fn said(summary: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self { summary: summary.into(), evidence: evidence.into(), ..Self::default() }
    }

    /// Whether it says why an attempt failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.evidence
            .strip_prefix("attempt ")
            .and_then(|rest| rest.strip_suffix(" failed"))
            .is_some_and(|number| number.parse::<u32>().is_ok())
    }

    /// Why this attempt failed.
    #[must_use]
    pub fn failed(reason: &str, attempt: u32) -> Self {
        Self::said(reason, format!("attempt {attempt} failed"))
    }

    /// The failure it tells of, or that a release kept: which attempt failed, and why.
    #[must_use]
    pub fn failure(&self) -> String {
        if self.is_failure() {
            return format!("{}: {}", self.evidence, self.summary);
        }
        self.evidence.clone()
    }
}

/// How a verify command came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyRun {
    /// The command.
    pub command: String,
    /// Its exit status; none where it was ended by a signal or its time was over.
    #[serde(default, rename = "exitStatus")]
    pub exit_status: Option<i32>,
    /// The end of what it printed, at most [`OUTPUT_TAIL_BYTES_MAX`] bytes.
    #[serde(default, rename = "outputTail")]
    pub output_tail: String,
}

/// How much of a verify command's output a task's result keeps, in bytes.
pub const OUTPUT_TAIL_BYTES_MAX: usize = 2000;

impl VerifyRun {
    /// The run of `command`, with the end of its output.
    #[must_use]
    pub fn new(command: &str, exit_status: Option<i32>, output: &str) -> Self {
        let output = output.trim_end();
        let from = output.len().saturating_sub(OUTPUT_TAIL_BYTES_MAX);
        let from = (from..=output.len()).find(|at| output.is_char_boundary(*at)).unwrap_or(output.len());
        Self { command: command.to_owned(), exit_status, output_tail: output[from..].to_owned() }
    }
}

/// One task of the board.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// One line that says what is to be done.
    pub subject: String,
    /// The whole of it.
    pub description: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// Who works or worked on it.
    pub owner: Option<String>,
    /// Tasks that must be finished first. Only this list decides; `blocks` mirrors it for readers.
    pub blocked_by: Vec<TaskId>,
    /// Tasks that wait for this one.
    pub blocks: Vec<TaskId>,
    /// The subject as something going on: "Counting lines".
    pub active_form: Option<String>,
    /// Higher goes first; then the lower id.
    pub priority: i64,
    /// Roles or capabilities, one of which the claimant needs; empty means anyone.
    pub requires: Vec<String>,
    /// A command that must exit 0 before the task counts as completed.
    pub verify: Option<String>,
    /// The worktree it is done in, or was.
    pub worktree: Option<String>,
    /// How often it was claimed: the fence every write of a holder carries.
    pub attempt: u32,
    /// Attempts that count against `max_attempts`.
    pub failures: u32,
    /// Failures at which it is given up.
    pub max_attempts: u32,
    /// Not claimable before this time.
    pub not_before: Option<UnixMs>,
    /// Who holds it.
    pub claim: Option<Claim>,
    /// What came of it.
    pub result: Option<TaskResult>,
    /// Who put it on the board.
    pub created_by: Option<String>,
    /// When it was put there.
    pub created_at: Option<UnixMs>,
    /// When a Brigade last changed it.
    pub updated_at: Option<UnixMs>,
    /// The file it was read from, with the fields of others.
    pub document: Document,
}

/// Why the bytes of a task file are no task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskFileError {
    /// Not JSON, or a field of the wrong type.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A field every task has is missing.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// The id inside is not the one in the file's name.
    #[error("its id is {inside}, its file says {file}")]
    OtherId {
        /// The id in the file.
        inside: u64,
        /// The id of the file's name.
        file: u64,
    },
    /// A status nobody knows.
    #[error("status `{0}` is none of pending, in_progress, completed, failed")]
    UnknownStatus(String),
}

impl Task {
    /// A new task as it stands before anybody touched it.
    #[must_use]
    pub fn new(id: TaskId, subject: impl Into<String>) -> Self {
        Self {
            id,
            subject: subject.into(),
            description: String::new(),
            status: TaskStatus::Pending,
            owner: None,
            blocked_by: Vec::new(),
            blocks: Vec::new(),
            active_form: None,
            priority: 0,
            requires: Vec::new(),
            verify: None,
            worktree: None,
            attempt: 0,
            failures: 0,
            max_attempts: MAX_ATTEMPTS_DEFAULT,
            not_before: None,
            claim: None,
            result: None,
            created_by: None,
            created_at: None,
            updated_at: None,
            document: Document::default(),
        }
    }

    /// Reads the bytes of `task_<id>.json`. Fields that are missing have their defaults; an owner of `""` is none.
    ///
    /// # Errors
    /// [`TaskFileError`]: the file is spoiled, and must not be taken for a task.
    pub fn parse(id: TaskId, bytes: &[u8]) -> Result<Self, TaskFileError> {
        let document = Document::parse(bytes)?;
        let inside: u64 = document.get("id")?.ok_or(TaskFileError::Missing("id"))?;
        if inside != id.0 {
            return Err(TaskFileError::OtherId { inside, file: id.0 });
        }
        let word: String = document.get("status")?.ok_or(TaskFileError::Missing("status"))?;
        let status = TaskStatus::from_word(&word).ok_or(TaskFileError::UnknownStatus(word))?;
        let text = |field: &str| -> Result<Option<String>, DocumentError> {
            Ok(document.get::<String>(field)?.filter(|text| !text.is_empty()))
        };
        Ok(Self {
            id,
            subject: document.get("subject")?.ok_or(TaskFileError::Missing("subject"))?,
            description: document.get("description")?.unwrap_or_default(),
            status,
            owner: text("owner")?,
            blocked_by: document.get("blockedBy")?.unwrap_or_default(),
            blocks: document.get("blocks")?.unwrap_or_default(),
            active_form: text("activeForm")?,
            priority: document.get("priority")?.unwrap_or(0),
            requires: document.get("requires")?.unwrap_or_default(),
            verify: text("verify")?,
            worktree: text("worktree")?,
            attempt: document.get("attempt")?.unwrap_or(0),
            failures: document.get("failures")?.unwrap_or(0),
            max_attempts: document.get("maxAttempts")?.unwrap_or(MAX_ATTEMPTS_DEFAULT),
            not_before: document.get("notBefore")?,
            claim: document.get("claim")?,
            result: document.get("result")?,
            created_by: text("createdBy")?,
            created_at: document.get("createdAt")?,
            updated_at: document.get("updatedAt")?,
            document,
        })
    }

    /// The file's text: what was read, with the fields that changed since.
    #[must_use]
    pub fn to_file(&self) -> String {
        self.to_document().to_pretty()
    }

    /// The task as a JSON object: what was read, with the fields that changed since.
    #[must_use]
    pub fn to_document(&self) -> Document {
        self.document_where(|_| true)
    }

    /// The same where only what differs from `before` can have changed: `before` has the same document, and says what it says. Fields
    /// that were left out stay out.
    #[must_use]
    pub fn to_document_since(&self, before: &Self) -> Document {
        self.document_where(|is_same| !is_same(self, before))
    }

    /// The document with the fields that may have changed: `may_differ` is handed what compares one field of two tasks.
    fn document_where(&self, may_differ: impl Fn(fn(&Self, &Self) -> bool) -> bool) -> Document {
        let mut document = self.document.clone();
        macro_rules! write {
            ($field:ident, $write:expr) => {
                if may_differ(|a, b| a.$field == b.$field) {
                    $write
                }
            };
        }
        write!(id, document.set("id", &self.id));
        write!(subject, document.set("subject", &self.subject));
        write!(description, document.set("description", &self.description));
        write!(status, document.set("status", &self.status));
        write!(owner, set_owner(&mut document, self.owner.as_ref()));
        write!(blocked_by, document.set("blockedBy", &self.blocked_by));
        write!(blocks, document.set("blocks", &self.blocks));
        write!(active_form, set_text(&mut document, "activeForm", self.active_form.as_ref()));
        write!(priority, document.set_unless_default("priority", &self.priority, &0));
        write!(requires, document.set_unless_default("requires", &self.requires, &Vec::new()));
        write!(verify, set_text(&mut document, "verify", self.verify.as_ref()));
        write!(worktree, set_text(&mut document, "worktree", self.worktree.as_ref()));
        write!(attempt, document.set_unless_default("attempt", &self.attempt, &0));
        write!(failures, document.set_unless_default("failures", &self.failures, &0));
        write!(max_attempts, document.set_unless_default("maxAttempts", &self.max_attempts, &MAX_ATTEMPTS_DEFAULT));
        write!(not_before, document.set_optional("notBefore", self.not_before.as_ref()));
        write!(claim, document.set_optional("claim", self.claim.as_ref()));
        write!(result, document.set_optional("result", self.result.as_ref()));
        write!(created_by, set_text(&mut document, "createdBy", self.created_by.as_ref()));
        write!(created_at, document.set_optional("createdAt", self.created_at.as_ref()));
        write!(updated_at, document.set_optional("updatedAt", self.updated_at.as_ref()));
        document
    }

    /// In progress for a program that knows nothing of claims: shown, not waited for, not reclaimed unless forced.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.status == TaskStatus::InProgress && self.claim.is_none()
    }

    /// Whether somebody who is called `name` and can do `capabilities` may do this task.
    #[must_use]
    pub fn fits(&self, capabilities: &[String]) -> bool {
        self.requires.is_empty()
            || self.requires.iter().any(|need| capabilities.iter().any(|have| have.eq_ignore_ascii_case(need)))
    }
}

/// A fresh reader of the file must see what the task says, also where the file said "" for nobody.
fn set_owner(document: &mut Document, owner: Option<&String>) {
    let says_empty = matches!(document.get::<Option<String>>("owner"), Ok(Some(Some(owner))) if owner.is_empty());
    match owner {
        Some(owner) => document.set("owner", owner),
        None if says_empty => {}
        None => document.set::<Option<String>>("owner", &None),
    }
}

fn set_text(document: &mut Document, field: &str, text: Option<&String>) {
    let spelled_empty = matches!(document.get::<String>(field), Ok(Some(old)) if old.is_empty());
    if text.is_some() || !spelled_empty {
        document.set_optional(field, text);
    }
}

/// A task that is to be put on the board; the board gives it its id.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NewTask {
    /// One line that says what is to be done.
    pub subject: String,
    /// The whole of it.
    pub description: String,
    /// Blockers that are on the board already.
    pub blocked_by: Vec<TaskId>,
    /// Blockers among the tasks created in the same call, by their index.
    pub blocked_by_new: Vec<usize>,
    /// The subject as something going on.
    pub active_form: Option<String>,
    /// Higher goes first.
    pub priority: i64,
    /// Roles or capabilities, one of which the claimant needs.
    pub requires: Vec<String>,
    /// A command that must exit 0 before completion.
    pub verify: Option<String>,
    /// Failures at which it is given up; `None` is the default.
    pub max_attempts: Option<u32>,
    /// Whom it is kept for.
    pub owner: Option<String>,
    /// Where it comes from, so that importing a plan twice adds nothing twice: kept as `metadata.source`.
    pub source: Option<String>,
    /// The line of the plan it begins in, from 1.
    pub source_line: Option<usize>,
}

impl NewTask {
    /// The task this becomes under `id`, created by `by` at `now`; `ids` are those of the whole call.
    #[must_use]
    pub fn into_task(self, id: TaskId, ids: &[TaskId], by: &str, now: UnixMs) -> Task {
        let mut task = Task::new(id, self.subject);
        task.description = self.description;
        task.blocked_by = self.blocked_by;
        task.blocked_by.extend(self.blocked_by_new.iter().filter_map(|index| ids.get(*index).copied()));
        task.blocked_by.sort_unstable();
        task.blocked_by.dedup();
        task.active_form = self.active_form;
        task.priority = self.priority;
        task.requires = self.requires;
        task.verify = self.verify;
        task.owner = self.owner;
        task.max_attempts = self.max_attempts.unwrap_or(MAX_ATTEMPTS_DEFAULT);
        task.created_by = Some(by.to_owned());
        task.created_at = Some(now);
        task.updated_at = Some(now);
        if let Some(source) = self.source {
            // The fields everybody knows come first in the file.
            task.document = task.to_document();
            task.document.put("metadata", &serde_json::json!({ "source": source }));
            Imported::of(&task).remember(&mut task);
        }
        task
    }
}

impl Task {
    /// Where the task comes from: `metadata.source`, as [`NewTask::source`] set it.
    #[must_use]
    pub fn source(&self) -> Option<String> {
        let metadata: serde_json::Value = self.document.get("metadata").ok()??;
        Some(metadata.get("source")?.as_str()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Task, TaskFileError> {
        Task::parse(TaskId(7), text.as_bytes())
    }

    #[test]
    fn file_names_have_one_spelling() {
        assert_eq!(TaskId::from_file_name("task_7.json"), Some(TaskId(7)));
        for other in [
            "task_07.json",
            "task_-1.json",
            "task_+7.json",
            "task_.json",
            "task_7.json.tmp",
            "task_9007199254740992.json",
            "Task_7.json",
            "task_ 7.json",
        ] {
            assert_eq!(TaskId::from_file_name(other), None, "{other}");
        }
    }

    #[test]
    fn missing_optional_fields_have_their_defaults() {
        let task = parse(r#"{"id":7,"subject":"s","status":"pending"}"#).unwrap();
        assert_eq!((task.max_attempts, task.priority, task.attempt), (3, 0, 0));
        assert_eq!(task.owner, None);
    }

    #[test]
    fn spoiled_files_are_named_with_their_reason() {
        for (text, reason) in [
            (r#"{"id":8,"subject":"s","status":"pending"}"#, "its id is 8, its file says 7"),
            (r#"{"id":7,"subject":"s","status":"done"}"#, "status `done`"),
            (r#"{"id":7,"status":"pending"}"#, "field `subject` is missing"),
            (r#"{"id":7,"subject":"s","status":"pending","blockedBy":"3"}"#, "field `blockedBy`"),
            (r#"{"id":7,"subject":"s","status":"pending","attempt":-1}"#, "field `attempt`"),
            (r#"{"id":7,"subje"#, "not a JSON object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error} should say {reason}");
        }
    }

    #[test]
    fn an_empty_owner_is_nobody_and_stays_spelled_that_way() {
        let text = "{\n  \"id\": 7,\n  \"subject\": \"s\",\n  \"description\": \"\",\n  \"status\": \"pending\",\n  \"owner\": \"\",\n  \"blockedBy\": [],\n  \"blocks\": []\n}\n";
        let mut task = parse(text).unwrap();
        assert_eq!(task.owner, None);
        assert_eq!(task.to_file(), text);
        task.owner = Some("bob".into());
        assert!(task.to_file().contains("\"owner\": \"bob\""));
        task.owner = None;
        assert!(task.to_file().contains("\"owner\": \"\""), "as the file had it");
        let mut bob = parse(&text.replace("\"owner\": \"\"", "\"owner\": \"bob\"")).unwrap();
        bob.owner = None;
        assert!(bob.to_file().contains("\"owner\": null"));
    }

    fn arbitrary_task() -> impl Strategy<Value = Task> {
        let ids = prop::collection::vec((1_u64..50).prop_map(TaskId), 0..4);
        let text = prop::option::of("[^\u{0}]{1,12}");
        (
            (".*", ".*", 0_usize..4, text.clone(), ids.clone(), ids),
            (text.clone(), any::<i64>(), prop::collection::vec(".*", 0..3), text, any::<u32>(), any::<u32>()),
            (
                any::<u32>(),
                prop::option::of(any::<i64>()),
                prop::option::of((".*", any::<i64>(), prop::option::of(any::<i64>()))),
                prop::option::of((".*", ".*")),
            ),
        )
            .prop_map(
                |(
                    (subject, description, status, owner, blocked_by, blocks),
                    (active_form, priority, requires, verify, attempt, failures),
                    (max_attempts, not_before, claim, result),
                )| Task {
                    description,
                    status: TaskStatus::ALL[status],
                    owner,
                    blocked_by,
                    blocks,
                    active_form,
                    priority,
                    requires,
                    verify,
                    attempt,
                    failures,
                    max_attempts,
                    not_before: not_before.map(UnixMs),
                    claim: claim.map(|(worker, at, expires)| Claim {
                        worker,
                        at: UnixMs(at),
                        expires: expires.map(UnixMs),
                    }),
                    result: result.map(|(summary, evidence)| TaskResult::said(summary, evidence)),
                    ..Task::new(TaskId(7), subject)
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(task in arbitrary_task(), other in arbitrary_task()) {
            let written = task.to_file();
            let read = Task::parse(TaskId(7), written.as_bytes()).unwrap();
            prop_assert_eq!(&read.to_file(), &written);
            prop_assert_eq!(&Task { document: Document::default(), ..read.clone() }, &task);
            // Whatever the file said before, it says the new values afterwards.
            let changed = Task { document: read.document, ..other.clone() };
            let again = Task::parse(TaskId(7), changed.to_file().as_bytes()).unwrap();
            prop_assert_eq!(&Task { document: Document::default(), ..again }, &other);
            // So it does when only what differs is written.
            let before = Task { document: changed.to_document(), ..changed };
            let mut next = before.clone();
            (next.status, next.owner, next.claim, next.not_before) = (task.status, task.owner, task.claim, task.not_before);
            prop_assert_eq!(next.to_document_since(&before).to_pretty(), next.to_document().to_pretty());
        }
    }
}
