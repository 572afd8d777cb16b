//! Tasks: their fields and their form in `task_<id>.json`.
//!
//! Contract: `id subject description status owner blockedBy blocks` have these names and types for every program that shares the
//! board. The other fields belong to Brigade and are optional. [`transition`] decides who may change a task,
//! [`dependencies`] who may claim it.

mod action;
pub mod claim_queue;
pub mod dependencies;
pub mod evidence;
pub mod failed_attempt;
pub mod failure_summary;
pub mod new_task;
pub mod plan;
pub mod plan_update;
pub mod shell_blocks;
pub mod task_error;
pub mod transition;
pub mod verify_run;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::log::snapshot::is_default;
use crate::domain::task::evidence::Caveat;
use crate::domain::task::failed_attempt::FailedAttempt;
pub use crate::domain::task::new_task::NewTask;
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::team::budget::CapReached;
use crate::domain::text::json_document::{Document, DocumentError};
use crate::domain::text::words::words;
use crate::domain::time::UnixMs;

/// Number of a task. The name of its file determines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub u64);

/// The largest task number: 2^53 - 1, which every JSON reader represents exactly.
pub const TASK_ID_MAX: u64 = (1 << 53) - 1;

/// Default number of failures after which a task is not retried.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 3;

/// The longest subject, in characters.
pub const SUBJECT_CHARS_MAX: usize = 500;

/// Returns the problem of a subject that no new task may have.
pub fn subject_problem(subject: &str) -> Option<String> {
    if subject.trim().is_empty() {
        return Some("a task needs a subject of one line".to_owned());
    }
    if subject.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) {
        return Some("a subject has one line without control characters; put the rest into the description".to_owned());
    }
    let chars = subject.chars().count();
    (chars > SUBJECT_CHARS_MAX).then(|| {
        format!("a subject has at most {SUBJECT_CHARS_MAX} characters, this one has {chars}; put the rest into the description")
    })
}

/// Returns the text without spaces around it, or `None` if nothing is left.
pub(super) fn non_blank(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the words without spaces around them, and without empty ones.
pub fn trimmed_words(words: &[String]) -> Vec<String> {
    words.iter().filter_map(|word| non_blank(word)).collect()
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl TaskId {
    /// Returns the name of this task's file on the board.
    pub fn file_name(self) -> String {
        format!("task_{}.json", self.0)
    }

    /// Returns the task of a file name. `task_07.json` has none, because each task has exactly one file name.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("task_")?.strip_suffix(".json")?;
        let id: u64 = digits.parse().ok()?;
        (id <= TASK_ID_MAX && id.to_string() == digits).then_some(Self(id))
    }
}

words! {
    /// The status of a task.
    #[derive(Default)]
    pub enum TaskStatus {
        /// Waits to be claimed.
        #[default]
        Pending = "pending",
        /// In progress.
        InProgress = "in_progress",
        /// Completed. Its dependents may be claimed.
        Completed = "completed",
        /// Failed without further retries, with the reason in its result. Blocks its dependents until retried.
        Failed = "failed",
        /// A word of another program. The task is shown and left as it is; [`Task::status_word`] returns the word.
        Unknown = "unknown",
    }
}

impl TaskStatus {
    /// The statuses that Brigade gives, in display order.
    pub const OWN: [Self; 4] = [Self::Pending, Self::InProgress, Self::Completed, Self::Failed];
}

/// The claim of a task in progress. A task in progress without a claim was set in progress by a program that does not use claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The worker that must be alive for the claim to hold. `lease:<name>` for a claim by command, any text for a claim with a lease.
    pub worker: String,
    /// Time of the claim.
    pub at: UnixMs,
    /// End of the lease, for a claim by command or by another program. A claim of a worker has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<UnixMs>,
}

/// The prefix of the `worker` of a claim that ends with its lease and not with a process. Part of the file format.
const LEASE_WORKER_PREFIX: &str = "lease:";

/// Returns the `worker` of a claim that `name` makes by command.
pub fn lease_worker(name: &str) -> String {
    format!("{LEASE_WORKER_PREFIX}{name}")
}

impl Claim {
    /// Returns true if the claim ends with its lease and not with a process.
    pub fn is_lease(&self) -> bool {
        self.expires.is_some() || self.worker.starts_with(LEASE_WORKER_PREFIX)
    }
}

/// The result of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskResult {
    /// The work done, or the reason of the failure.
    pub summary: String,
    /// The evidence, in a sentence for people.
    pub evidence: String,
    /// The run of the verify command at completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyRun>,
    /// True if the task was completed without a verify command and without a report by its agent.
    #[serde(skip_serializing_if = "is_default")]
    pub unverified: bool,
    /// The commit with the work, if the task had its own worktree and changed something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The files that the task made and git ignores, if there are any.
    #[serde(rename = "ignoredFiles", skip_serializing_if = "Option::is_none")]
    pub ignored_files: Option<IgnoredFiles>,
    /// Name of the reviewer, if the team reviews work.
    #[serde(rename = "reviewedBy", skip_serializing_if = "Option::is_none")]
    pub reviewed_by: Option<String>,
    /// The attempt, if it failed.
    #[serde(rename = "failedAttempt", skip_serializing_if = "Option::is_none")]
    pub failed_attempt: Option<u32>,
    /// Name of the person or lead that ended the attempt, if its holder did not.
    #[serde(rename = "endedBy", skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
}

impl TaskResult {
    /// Creates a result with only a summary and evidence.
    pub fn new(summary: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self { summary: summary.into(), evidence: evidence.into(), ..Self::default() }
    }

    /// Returns true if the verify command exited 0, but its output says that no test ran.
    pub fn nothing_ran(&self) -> bool {
        self.verify.as_ref().is_some_and(|run| run.nothing_ran)
    }

    /// Returns the weakness of its evidence, if it has one.
    pub fn caveat(&self) -> Option<Caveat> {
        Caveat::of(self.unverified, self.nothing_ran())
    }

    /// Returns true if it is the result of a failed attempt.
    pub fn is_failure(&self) -> bool {
        self.failed_attempt.is_some()
    }

    /// Creates the result of a failed attempt.
    pub fn failed(reason: &str, attempt: u32) -> Self {
        Self { failed_attempt: Some(attempt), ..Self::new(reason, format!("attempt {attempt} failed")) }
    }

    /// Returns the failed attempt and its reason, also from the result of a later release.
    pub fn failure_text(&self) -> String {
        if self.is_failure() {
            return format!("{}: {}", self.evidence, self.summary);
        }
        self.evidence.clone()
    }
}

/// A task of the board. [`Task::new`] creates one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// A summary in one line.
    pub subject: String,
    /// The full description.
    pub description: String,
    /// Its status.
    pub status: TaskStatus,
    /// The holder, or the last holder of a finished task. For a pending task, the member it is reserved for.
    pub owner: Option<String>,
    /// The member that a claimed or finished task is reserved for when it is pending again.
    pub reserved_for: Option<String>,
    /// Tasks that must be completed first. Only this list counts; `blocks` mirrors it for readers.
    pub blocked_by: Vec<TaskId>,
    /// Tasks that wait for this one.
    pub blocks: Vec<TaskId>,
    /// The subject in the progressive form: "Counting lines".
    pub active_form: Option<String>,
    /// Priority. Higher numbers go first, then lower ids.
    pub priority: i64,
    /// Roles or capabilities, one of which the claimant needs. If empty, anyone may claim it.
    pub requires: Vec<String>,
    /// A command that must exit 0 before the task is completed.
    pub verify: Option<String>,
    /// The task's worktree, also after the work.
    pub worktree: Option<String>,
    /// Number of claims. It is the fence that every write of a holder carries.
    pub attempt: u32,
    /// Number of failed attempts that count against `max_attempts`.
    pub failures: u32,
    /// Number of failures after which it is not retried.
    pub max_attempts: u32,
    /// Its last failed attempts, oldest first. A retry by a person keeps them.
    pub failed_attempts: Vec<FailedAttempt>,
    /// The number of claims before it was last reopened. These attempts are over.
    pub reopened_after: u32,
    /// The most tokens of all its attempts. `None`: as the team says.
    pub tokens_max: Option<u64>,
    /// The cap that its attempts reached. [`Task::cap_in_force`] returns it while it holds.
    pub cap_reached: Option<CapReached>,
    /// End of its back-off: not claimable before this time.
    pub not_before: Option<UnixMs>,
    /// Its claim.
    pub claim: Option<Claim>,
    /// Its result.
    pub result: Option<TaskResult>,
    /// Name of its creator.
    pub created_by: Option<String>,
    /// Time of its creation.
    pub created_at: Option<UnixMs>,
    /// Time of the last change by Brigade.
    pub updated_at: Option<UnixMs>,
    /// The file as it was read, with unknown fields.
    pub document: Document,
}

/// Reasons why the bytes of a task file are not a valid task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskFileError {
    /// They are not a JSON object, or a field has the wrong type.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A required field is missing.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// The id in the file differs from the id in the file's name.
    #[error("its id is {inside}{}, but its file name says {file}", line.map(|line| format!(" at line {line}")).unwrap_or_default())]
    OtherId {
        /// The id in the file.
        inside: u64,
        /// The id in the file's name.
        file: u64,
        /// The line of the id in the file.
        line: Option<usize>,
    },
}

impl Task {
    /// Creates a pending task with default values.
    pub fn new(id: TaskId, subject: impl Into<String>) -> Self {
        Self { id, subject: subject.into(), max_attempts: MAX_ATTEMPTS_DEFAULT, ..Self::default() }
    }

    /// Parses `task_<id>.json`. Missing fields get their defaults. An owner of `""` means no owner.
    ///
    /// # Errors
    /// [`TaskFileError`]: the file is invalid and must not be used as a task.
    pub fn parse(id: TaskId, bytes: &[u8]) -> Result<Self, TaskFileError> {
        let document = Document::parse(bytes)?;
        let inside: u64 = document.get("id")?.ok_or(TaskFileError::Missing("id"))?;
        if inside != id.0 {
            return Err(TaskFileError::OtherId { inside, file: id.0, line: document.line_of("id") });
        }
        let word: String = document.get("status")?.ok_or(TaskFileError::Missing("status"))?;
        let status = TaskStatus::from_word(&word).unwrap_or(TaskStatus::Unknown);
        let text = |field: &str| -> Result<Option<String>, DocumentError> {
            Ok(document.get::<String>(field)?.filter(|text| !text.is_empty()))
        };
        Ok(Self {
            id,
            subject: document.get("subject")?.ok_or(TaskFileError::Missing("subject"))?,
            description: document.get("description")?.unwrap_or_default(),
            status,
            owner: text("owner")?,
            reserved_for: text("reservedFor")?,
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
            failed_attempts: document.get("failedAttempts")?.unwrap_or_default(),
            reopened_after: document.get("reopenedAfter")?.unwrap_or(0),
            tokens_max: document.get("tokensMax")?,
            cap_reached: document.get("capReached")?,
            not_before: document.get("notBefore")?,
            claim: document.get("claim")?,
            result: document.get("result")?,
            created_by: text("createdBy")?,
            created_at: document.get("createdAt")?,
            updated_at: document.get("updatedAt")?,
            document,
        })
    }

    /// Returns the file's text: the document as it was read, with the changed fields.
    pub fn to_file(&self) -> String {
        self.to_document().to_pretty()
    }

    /// Returns the task as a JSON object: the document as it was read, with the changed fields.
    pub fn to_document(&self) -> Document {
        self.document_with_changes(|_| true)
    }

    /// Returns the same document, faster, if this task is a changed copy of `before` with the same document. Only differing
    /// fields are written, and omitted fields stay omitted.
    pub fn to_document_since(&self, before: &Self) -> Document {
        self.document_with_changes(|is_same| !is_same(self, before))
    }

    /// Returns the document with the changed fields. `may_differ` gets a function that compares one field of two tasks.
    fn document_with_changes(&self, may_differ: impl Fn(fn(&Self, &Self) -> bool) -> bool) -> Document {
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
        // The document keeps a word of another program.
        if self.status != TaskStatus::Unknown {
            write!(status, document.set("status", &self.status));
        }
        write!(owner, set_owner(&mut document, self.owner.as_ref()));
        write!(reserved_for, set_text(&mut document, "reservedFor", self.reserved_for.as_ref()));
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
        write!(failed_attempts, document.set_unless_default("failedAttempts", &self.failed_attempts, &Vec::new()));
        write!(reopened_after, document.set_unless_default("reopenedAfter", &self.reopened_after, &0));
        write!(tokens_max, document.set_optional("tokensMax", self.tokens_max.as_ref()));
        write!(cap_reached, document.set_optional("capReached", self.cap_reached.as_ref()));
        write!(not_before, document.set_optional("notBefore", self.not_before.as_ref()));
        write!(claim, document.set_optional("claim", self.claim.as_ref()));
        write!(result, document.set_optional("result", self.result.as_ref()));
        write!(created_by, set_text(&mut document, "createdBy", self.created_by.as_ref()));
        write!(created_at, document.set_optional("createdAt", self.created_at.as_ref()));
        write!(updated_at, document.set_optional("updatedAt", self.updated_at.as_ref()));
        document
    }

    /// Returns the word of its status in the file.
    pub fn status_word(&self) -> Cow<'_, str> {
        let foreign = || self.document.get::<String>("status").ok().flatten();
        match self.status {
            TaskStatus::Unknown => foreign().map_or(Cow::Borrowed(self.status.as_str()), Cow::Owned),
            status => Cow::Borrowed(status.as_str()),
        }
    }

    /// Returns its result if it is completed.
    pub fn completion(&self) -> Option<&TaskResult> {
        if self.status == TaskStatus::Completed { self.result.as_ref() } else { None }
    }

    /// Returns its claim if it is in progress.
    pub fn current_claim(&self) -> Option<&Claim> {
        if self.status == TaskStatus::InProgress { self.claim.as_ref() } else { None }
    }

    /// Returns the cap that its attempts reached, until its own cap is higher.
    pub fn cap_in_force(&self) -> Option<CapReached> {
        self.cap_reached.filter(|reached| self.tokens_max.is_none_or(|tokens_max| tokens_max <= reached.tokens_max))
    }

    /// Returns true if another program set it in progress without a claim. Such a task is shown. It is not waited for, and
    /// reclaimed only with `--force`.
    pub fn is_foreign(&self) -> bool {
        self.status == TaskStatus::InProgress && self.claim.is_none()
    }
}

/// Writes the owner. An owner that the file spells as `""` stays so if there is none.
fn set_owner(document: &mut Document, owner: Option<&String>) {
    let is_empty_text = matches!(document.get::<Option<String>>("owner"), Ok(Some(Some(owner))) if owner.is_empty());
    match owner {
        Some(owner) => document.set("owner", owner),
        None if is_empty_text => {}
        None => document.set::<Option<String>>("owner", &None),
    }
}

fn set_text(document: &mut Document, field: &str, text: Option<&String>) {
    let is_empty_text = matches!(document.get::<String>(field), Ok(Some(old)) if old.is_empty());
    if text.is_some() || !is_empty_text {
        document.set_optional(field, text);
    }
}

impl Task {
    /// Returns the task's source, from `metadata.source`.
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
    fn task_file_name_has_one_spelling() {
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
    fn missing_task_fields_have_defaults() {
        let task = parse(r#"{"id":7,"subject":"s","status":"pending"}"#).unwrap();
        assert_eq!((task.max_attempts, task.priority, task.attempt), (3, 0, 0));
        assert_eq!(task.owner, None);
    }

    #[test]
    fn invalid_task_error_names_reason() {
        for (text, reason) in [
            (r#"{"id":8,"subject":"s","status":"pending"}"#, "its id is 8 at line 1, but its file name says 7"),
            (r#"{"id":7,"subject":"s","status":7}"#, "field `status`"),
            (r#"{"id":7,"status":"pending"}"#, "field `subject` is missing"),
            (r#"{"id":7,"subject":"s","status":"pending","blockedBy":"3"}"#, "field `blockedBy`"),
            (r#"{"id":7,"subject":"s","status":"pending","attempt":-1}"#, "field `attempt`"),
            (r#"{"id":7,"subje"#, "not a JSON object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error} lacks {reason}");
        }
    }

    #[test]
    fn unknown_status_is_shown_and_kept() {
        let mut task = parse(r#"{"id":7,"subject":"s","status":"in_review","owner":"pat"}"#).unwrap();
        assert_eq!((task.status, &*task.status_word()), (TaskStatus::Unknown, "in_review"));
        task.subject = "other".into();
        let again = parse(&task.to_file()).unwrap();
        assert_eq!((again.subject.as_str(), &*again.status_word()), ("other", "in_review"));
        assert_eq!(&*Task::new(TaskId(7), "s").status_word(), "pending");
    }

    #[test]
    fn empty_owner_means_none_and_keeps_spelling() {
        let text = "{\n  \"id\": 7,\n  \"subject\": \"s\",\n  \"description\": \"\",\n  \"status\": \"pending\",\n  \"owner\": \"\",\n  \"blockedBy\": [],\n  \"blocks\": []\n}\n";
        let mut task = parse(text).unwrap();
        assert_eq!(task.owner, None);
        assert_eq!(task.to_file(), text);
        task.owner = Some("bob".into());
        assert!(task.to_file().contains("\"owner\": \"bob\""));
        task.owner = None;
        assert!(task.to_file().contains("\"owner\": \"\""), "spelled as in the file");
        let mut bob = parse(&text.replace("\"owner\": \"\"", "\"owner\": \"bob\"")).unwrap();
        bob.owner = None;
        assert!(bob.to_file().contains("\"owner\": null"));
    }

    fn arbitrary_task() -> impl Strategy<Value = Task> {
        let ids = prop::collection::vec((1_u64..50).prop_map(TaskId), 0..4);
        let text = prop::option::of("[^\u{0}]{1,12}");
        (
            (".*", ".*", 0_usize..4, text.clone(), text.clone(), ids.clone(), ids),
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
                    (subject, description, status, owner, reserved_for, blocked_by, blocks),
                    (active_form, priority, requires, verify, attempt, failures),
                    (max_attempts, not_before, claim, result),
                )| Task {
                    description,
                    status: TaskStatus::OWN[status],
                    owner,
                    reserved_for,
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
                    result: result.map(|(summary, evidence)| TaskResult::new(summary, evidence)),
                    ..Task::new(TaskId(7), subject)
                },
            )
    }

    proptest! {
        #[test]
        fn task_file_round_trips(task in arbitrary_task(), other in arbitrary_task()) {
            let written = task.to_file();
            let read = Task::parse(TaskId(7), written.as_bytes()).unwrap();
            prop_assert_eq!(&read.to_file(), &written);
            prop_assert_eq!(&Task { document: Document::default(), ..read.clone() }, &task);
            // Values of the earlier file do not survive.
            let changed = Task { document: read.document, ..other.clone() };
            let again = Task::parse(TaskId(7), changed.to_file().as_bytes()).unwrap();
            prop_assert_eq!(&Task { document: Document::default(), ..again }, &other);
            // The same holds if only the differing fields are written.
            let before = Task { document: changed.to_document(), ..changed };
            let mut next = before.clone();
            (next.status, next.owner, next.claim, next.not_before) = (task.status, task.owner, task.claim, task.not_before);
            prop_assert_eq!(next.to_document_since(&before).to_pretty(), next.to_document().to_pretty());
        }
    }
}
