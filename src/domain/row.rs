//! What the event log says of a task and of a member: enough to show both as they stood, and no more.

use serde::{Deserialize, Serialize};

use super::reason;
use super::state::TeammateReport;
use super::task::{Claim, MAX_ATTEMPTS_DEFAULT, Task, TaskId, TaskResult, TaskStatus};
use super::time::UnixMs;

/// The longest text of a row, in characters; a longer one is cut, which its last character says.
pub const ROW_TEXT_CHARS_MAX: usize = 200;
/// Most names of a list in a row.
pub const ROW_NAMES_MAX: usize = 32;
/// Most blockers in a row.
pub const ROW_BLOCKERS_MAX: usize = 1000;

/// A task, as the log says how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Its number.
    pub task: TaskId,
    /// What is to be done.
    pub subject: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// Who has it, or whom it is kept for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How often it was claimed.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub attempt: u32,
    /// How often it failed.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub failures: u32,
    /// Failures at which it is given up.
    #[serde(default = "attempts", skip_serializing_if = "is_default_attempts")]
    pub max_attempts: u32,
    /// Higher goes first.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub priority: i64,
    /// Roles or capabilities, one of which the claimant needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<TaskId>,
    /// It is not tried again before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixMs>,
    /// Its claim, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRow>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

/// A claim, as the log says how it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRow {
    /// When it was made.
    pub at: UnixMs,
    /// When a claim without a process behind it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<UnixMs>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_nought(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_plain(priority: &i64) -> bool {
    *priority == 0
}

fn attempts() -> u32 {
    MAX_ATTEMPTS_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_default_attempts(count: &u32) -> bool {
    *count == MAX_ATTEMPTS_DEFAULT
}

impl TaskRow {
    /// A new task of which no more is known.
    #[must_use]
    pub fn new(task: TaskId, subject: &str) -> Self {
        Self::of(&Task::new(task, subject))
    }

    /// The row of a task.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        Self {
            task: task.id,
            subject: short(&task.subject),
            status: task.status,
            owner: task.owner.as_deref().map(short),
            attempt: task.attempt,
            failures: task.failures,
            max_attempts: task.max_attempts,
            priority: task.priority,
            requires: task.requires.iter().take(ROW_NAMES_MAX).map(|need| short(need)).collect(),
            blocked_by: task.blocked_by.iter().copied().take(ROW_BLOCKERS_MAX).collect(),
            not_before: task.not_before,
            claim: task.claim.as_ref().map(|claim| ClaimRow { at: claim.at, expires: claim.expires }),
            summary: task.result.as_ref().map(|result| said(&result.summary)).unwrap_or_default(),
        }
    }

    /// The task this is the row of, without what rows leave out.
    #[must_use]
    pub fn to_task(&self) -> Task {
        let claim = |claim: ClaimRow| Claim { worker: String::new(), at: claim.at, expires: claim.expires };
        let result = || TaskResult::said(self.summary.as_str(), "");
        Task {
            status: self.status,
            owner: self.owner.clone(),
            attempt: self.attempt,
            failures: self.failures,
            max_attempts: self.max_attempts,
            priority: self.priority,
            requires: self.requires.clone(),
            blocked_by: self.blocked_by.clone(),
            not_before: self.not_before,
            claim: self.claim.map(claim),
            result: (!self.summary.is_empty()).then(result),
            ..Task::new(self.task, self.subject.clone())
        }
    }

    /// Whether both say the same; a claim's time is that of the event which told of it, so it may differ by a moment.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        match (self.claim, other.claim) {
            (Some(mine), Some(theirs)) if mine.expires == theirs.expires && mine != theirs => {
                *self == Self { claim: self.claim, ..other.clone() }
            }
            _ => self == other,
        }
    }
}

/// A member, as the log says how it stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MemberRow {
    /// Its name.
    pub name: String,
    /// Its role.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Its phase; empty where the row says nothing of phase, task and time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The task it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// Its attempt of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Since when it is in this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMs>,
    /// Tokens it has used.
    #[serde(default, skip_serializing_if = "is_unused")]
    pub tokens: u64,
    /// What they cost, in US dollars.
    #[serde(default, skip_serializing_if = "is_free")]
    pub cost_usd: f64,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_unused(tokens: &u64) -> bool {
    *tokens == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_free(cost_usd: &f64) -> bool {
    *cost_usd == 0.0
}

impl MemberRow {
    /// What a report says of a member besides its phase, of which facts tell sooner.
    #[must_use]
    pub fn of(name: &str, report: &TeammateReport) -> Self {
        Self {
            name: name.to_owned(),
            role: short(&report.role),
            tokens: report.tokens,
            cost_usd: report.cost_usd,
            waiting_for: report.waiting_for.as_ref().map(|what| short(&what.to_file_text())),
            ..Self::default()
        }
    }
}

/// What came of a task, in a line.
pub(super) fn said(summary: &str) -> String {
    short(&reason::short(summary))
}

/// The text, cut where it is too long for a row.
pub(super) fn short(text: &str) -> String {
    if text.len() <= ROW_TEXT_CHARS_MAX {
        return text.to_owned();
    }
    match text.char_indices().nth(ROW_TEXT_CHARS_MAX) {
        None => text.to_owned(),
        Some(_) => text.chars().take(ROW_TEXT_CHARS_MAX - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_small_and_says_what_its_task_says() {
        let mut task = Task::new(TaskId(7), "s".repeat(5000));
        assert_eq!(TaskRow::of(&task).subject.chars().count(), ROW_TEXT_CHARS_MAX);
        task.subject = "Count".into();
        let line = serde_json::to_string(&TaskRow::of(&task)).unwrap();
        assert_eq!(line, r#"{"task":7,"subject":"Count","status":"pending"}"#);
        task.blocked_by = vec![TaskId(3)];
        task.claim = Some(Claim { worker: "w".into(), at: UnixMs(5), expires: Some(UnixMs(9)) });
        task.result = Some(TaskResult::said("so it came", "e"));
        let row = TaskRow::of(&task);
        assert_eq!(TaskRow::of(&row.to_task()), row);
        let read: TaskRow = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        assert_eq!(read, row);
    }

    #[test]
    fn a_moment_between_claim_and_event_is_no_difference() {
        let row = TaskRow { claim: Some(ClaimRow { at: UnixMs(5), expires: None }), ..TaskRow::new(TaskId(1), "s") };
        let told = TaskRow { claim: Some(ClaimRow { at: UnixMs(7), expires: None }), ..row.clone() };
        assert!(row.agrees_with(&told));
        assert!(!row.agrees_with(&TaskRow { attempt: 2, ..told.clone() }));
        assert!(!row.agrees_with(&TaskRow { claim: None, ..told }));
    }
}
