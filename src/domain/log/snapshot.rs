//! Snapshots of tasks and members in the event log, with the fields that views show.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::task::failure_summary::summary_of;
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::task::{Claim, MAX_ATTEMPTS_DEFAULT, Task, TaskId, TaskResult, TaskStatus};
use crate::domain::team::budget::CapReached;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::state::TeammateReport;
use crate::domain::team::waiting_for::{Wait, WaitingFor};
use crate::domain::text::shorten;
use crate::domain::time::UnixMs;

/// Maximum length of a text in a snapshot, in characters. A longer one is cut and ends with `…`.
pub const SNAPSHOT_TEXT_CHARS_MAX: usize = 200;
/// Maximum number of names in a list.
pub const SNAPSHOT_NAMES_MAX: usize = 32;
/// Maximum number of blockers.
pub const SNAPSHOT_BLOCKERS_MAX: usize = 1000;

/// A task in the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskSnapshot {
    /// Its number.
    pub task: TaskId,
    /// Its subject.
    pub subject: String,
    /// Its status.
    pub status: TaskStatus,
    /// The holder, or the member it is reserved for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Number of claims.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Number of failures.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Number of failures after which it is not retried.
    #[serde(default = "default_max_attempts", skip_serializing_if = "is_default_attempts")]
    pub max_attempts: u32,
    /// Priority. Higher numbers go first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i64,
    /// Roles or capabilities, one of which the claimant needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// The tasks it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<TaskId>,
    /// The cap that its attempts reached, while it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_reached: Option<CapReached>,
    /// End of its back-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixMs>,
    /// Its claim, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<TaskClaimSnapshot>,
    /// The summary of its result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// As in its result.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unverified: bool,
    /// True if its verify command ran no test.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nothing_ran: bool,
}

/// A claim in the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskClaimSnapshot {
    /// Time of the claim.
    pub at: UnixMs,
    /// End of its lease, for a claim without a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<UnixMs>,
}

/// Returns true if serialization can omit the value.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn default_max_attempts() -> u32 {
    MAX_ATTEMPTS_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default_attempts(count: &u32) -> bool {
    *count == MAX_ATTEMPTS_DEFAULT
}

impl TaskSnapshot {
    /// Creates the snapshot of a new task with default values.
    pub fn new(task: TaskId, subject: &str) -> Self {
        Self::of(&Task::new(task, subject))
    }

    /// Creates the snapshot of a task.
    pub fn of(task: &Task) -> Self {
        let result = task.result.as_ref();
        Self {
            task: task.id,
            subject: bounded_text(&task.subject),
            status: task.status,
            owner: task.owner.as_deref().map(bounded_text),
            attempt: task.attempt,
            failures: task.failures,
            max_attempts: task.max_attempts,
            priority: task.priority,
            requires: task.requires.iter().take(SNAPSHOT_NAMES_MAX).map(|need| bounded_text(need)).collect(),
            blocked_by: task.blocked_by.iter().copied().take(SNAPSHOT_BLOCKERS_MAX).collect(),
            cap_reached: task.cap_in_force(),
            not_before: task.not_before,
            claim: task.claim.as_ref().map(|claim| TaskClaimSnapshot { at: claim.at, expires: claim.expires }),
            summary: result.map(|result| bounded_text(&summary_of(&result.summary))).unwrap_or_default(),
            unverified: result.is_some_and(|result| result.unverified),
            nothing_ran: result.is_some_and(TaskResult::nothing_ran),
        }
    }

    /// Returns the task, without the fields that snapshots omit.
    pub fn to_task(&self) -> Task {
        let claim = |claim: TaskClaimSnapshot| Claim { worker: String::new(), at: claim.at, expires: claim.expires };
        let verify = self.nothing_ran.then(|| VerifyRun { nothing_ran: true, ..VerifyRun::new("", Some(0), "") });
        let result = TaskResult { unverified: self.unverified, verify, ..TaskResult::new(self.summary.as_str(), "") };
        Task {
            status: self.status,
            owner: self.owner.clone(),
            attempt: self.attempt,
            failures: self.failures,
            max_attempts: self.max_attempts,
            priority: self.priority,
            requires: self.requires.clone(),
            blocked_by: self.blocked_by.clone(),
            cap_reached: self.cap_reached,
            not_before: self.not_before,
            claim: self.claim.map(claim),
            result: if result == TaskResult::default() { None } else { Some(result) },
            ..Task::new(self.task, self.subject.clone())
        }
    }
}

/// A member in the event log.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MemberSnapshot {
    /// Its name.
    pub name: String,
    /// Its role.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Its phase.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: ReportedPhase,
    /// The task it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// Its attempt of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Start time of this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMs>,
    /// Number of tokens it has used.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tokens: u64,
    /// Their cost, in US dollars.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cost_usd: f64,
    /// The reason why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// The kind of the wait, and the id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

impl MemberSnapshot {
    /// Creates the snapshot of a report.
    pub fn of(name: &str, report: &TeammateReport) -> Self {
        Self {
            name: name.to_owned(),
            role: bounded_text(&report.role),
            phase: report.phase,
            task: report.task,
            attempt: report.attempt,
            since: UnixMs::from_iso(&report.since),
            tokens: report.tokens,
            cost_usd: report.cost_usd,
            wait: report.waiting_for.as_ref().map(WaitingFor::wait),
            waiting_for: report.waiting_for.as_ref().map(|reason| bounded_text(&reason.to_file_text())),
        }
    }
}

/// Returns the text, cut to the maximum length.
pub fn bounded_text(text: &str) -> String {
    shorten(text, SNAPSHOT_TEXT_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_snapshot_is_bounded_and_round_trips() {
        let mut task = Task::new(TaskId(7), "s".repeat(5000));
        assert_eq!(TaskSnapshot::of(&task).subject.chars().count(), SNAPSHOT_TEXT_CHARS_MAX);
        task.subject = "Count".into();
        let line = serde_json::to_string(&TaskSnapshot::of(&task)).unwrap();
        assert_eq!(line, r#"{"task":7,"subject":"Count","status":"pending"}"#);
        task.blocked_by = vec![TaskId(3)];
        task.cap_reached = Some(CapReached { tokens_max: 5, tokens_needed: 9 });
        task.claim = Some(Claim { worker: "w".into(), at: UnixMs(5), expires: Some(UnixMs(9)) });
        let verify = Some(VerifyRun::new("pytest", Some(0), "no tests ran in 0.01s"));
        task.result = Some(TaskResult { verify, unverified: true, ..TaskResult::new("done", "e") });
        let snapshot = TaskSnapshot::of(&task);
        assert!(snapshot.unverified && snapshot.nothing_ran);
        assert_eq!(TaskSnapshot::of(&snapshot.to_task()), snapshot);
        let read: TaskSnapshot = serde_json::from_str(&serde_json::to_string(&snapshot).unwrap()).unwrap();
        assert_eq!(read, snapshot);
    }
}
