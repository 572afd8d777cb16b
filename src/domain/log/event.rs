//! The events of a run: the lines of `.team/events.jsonl`, which front ends read. The recorder numbers them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event_id::EventId;
pub use super::goal_check::{GoalCheck, GoalResult, TaskCounts};
use super::request_log::{AskKind, RequestSnapshot};
use super::snapshot::{MemberSnapshot, TaskSnapshot, is_default};
use crate::domain::task::TaskId;
use crate::domain::team::next::Next;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::state::Mode;
use crate::domain::team::waiting_for::{Wait, WaitingFor};
use crate::domain::time::UnixMs;

/// The tool that reports a task as completed or failed.
pub const REPORT_TOOL: &str = "task_update";
/// The tool that claims a task.
pub const CLAIM_TOOL: &str = "claim_task";
/// The tool by which the lead reports that the goal is met.
pub const GOAL_TOOL: &str = "goal_done";
/// The name under which events show a run of a task's verify command.
pub const VERIFY_STEP: &str = "verify";
/// The name under which events show the merge of a task.
pub const MERGE_STEP: &str = "merge";

/// A numbered event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Format version.
    pub v: u32,
    /// Number within the run: starts at 1 and grows by one.
    pub seq: u64,
    /// Time of the event.
    pub at: UnixMs,
    /// Its position in the log. Lines of older versions have none, and the reader of the log computes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub id: Option<EventId>,
    /// Its kind and fields.
    #[serde(flatten)]
    pub kind: EventKind,
    /// The task after the event, if the event changes a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<Arc<TaskSnapshot>>,
    /// The member after the event, if the event changes the status of a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<Arc<MemberSnapshot>>,
}

/// An event without a number. The event log numbers it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// Its kind and fields.
    pub kind: EventKind,
    /// As in [`Event`].
    pub row: Option<Arc<TaskSnapshot>>,
    /// As in [`Event`].
    pub member: Option<Arc<MemberSnapshot>>,
}

/// The names of all event kinds, in the order of [`EventKind`].
#[rustfmt::skip]
pub const KINDS: [&str; 40] = [
    "team_started", "team_stopped", "taken_up", "mode_changed", "session_started", "session_finished",
    "task_created", "task_claimed", "task_completed", "task_failed", "task_released", "task_reclaimed",
    "task_changed", "task_deleted", "task_spoiled", "teammate_spawned", "teammate_phase", "teammate_respawned",
    "teammate_stopped", "stop_asked", "turn_started", "turn_finished", "model_retried", "model_switched", "said", "tool_started",
    "tool_finished", "message_sent", "message_delivered", "request_made", "request_answered", "request_withdrawn", "requests", "compacted", "budget_low",
    "budget_spent", "warning", "note", "board", "team",
];

/// The kind and fields of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields have the meanings of contracts/events.jsonl")]
pub enum EventKind {
    TeamStarted {
        team: String,
        members: Vec<String>,
    },
    TeamStopped {
        team: String,
        reason: String,
    },
    /// The previous run was killed, and this one continues with the claims of its teammates.
    #[serde(rename = "taken_up")]
    RunResumed {
        claims: Vec<ClaimSnapshot>,
    },
    ModeChanged {
        desired: Mode,
        current: Mode,
        note: String,
    },
    SessionStarted {
        session: u64,
        mode: Mode,
    },
    SessionFinished {
        session: u64,
        /// The lead's last text, or the counts if it wrote none; then the error.
        summary: String,
        /// The counts, if the lead wrote a text.
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
        /// An error other than failed tasks.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        tally: TaskCounts,
        /// The result of the goal check, if there was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        goal: Option<GoalCheck>,
    },
    TaskCreated {
        task: TaskId,
        subject: String,
        by: String,
    },
    TaskClaimed {
        task: TaskId,
        attempt: u32,
        teammate: String,
    },
    TaskCompleted {
        task: TaskId,
        attempt: u32,
        teammate: String,
        evidence: String,
        /// As in the task's result.
        #[serde(default, skip_serializing_if = "is_default")]
        unverified: bool,
        /// True if the verify command ran no test.
        #[serde(default, skip_serializing_if = "is_default")]
        nothing_ran: bool,
    },
    TaskFailed {
        task: TaskId,
        attempt: u32,
        teammate: String,
        reason: String,
        /// The person or lead that ended the attempt, if the teammate did not.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// The attempt ended without a result. The task is pending again, possibly not before a given time.
    TaskReleased {
        task: TaskId,
        attempt: u32,
        teammate: String,
        reason: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        not_before: Option<UnixMs>,
        /// As for a failed task.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    TaskReclaimed {
        task: TaskId,
        attempt: u32,
        teammate: String,
        reason: String,
    },
    /// Any other change of a task, such as an edit, a retry or a reopening. Includes edits by hand.
    TaskChanged {
        task: TaskId,
        status: String,
        by: String,
    },
    TaskDeleted {
        task: TaskId,
        by: String,
    },
    /// A file on the board is not a valid task. It goes to the quarantine if it stays as it is.
    #[serde(rename = "task_spoiled")]
    InvalidTaskFileFound(InvalidFileSnapshot),
    TeammateSpawned {
        teammate: String,
        role: String,
    },
    TeammatePhase {
        teammate: String,
        phase: ReportedPhase,
        task: Option<TaskId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        waiting_for: Option<WaitingFor>,
        /// The kind of the wait, and the id of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait: Option<Wait>,
    },
    TeammateRespawned {
        teammate: String,
        reason: String,
        respawns: u32,
    },
    TeammateStopped {
        teammate: String,
        reason: String,
        /// True if it was not asked to stop: it failed too often and is not started again.
        #[serde(default, skip_serializing_if = "is_default")]
        is_dead: bool,
    },
    /// A person asked a working teammate to stop: after its turn, or at once if `now`.
    #[serde(rename = "stop_asked")]
    StopRequested {
        teammate: String,
        #[serde(default, skip_serializing_if = "is_default")]
        now: bool,
    },
    TurnStarted {
        teammate: String,
        task: Option<TaskId>,
    },
    TurnFinished {
        teammate: String,
        task: Option<TaskId>,
        input_tokens: u64,
        output_tokens: u64,
        cache_read_tokens: u64,
        #[serde(default, skip_serializing_if = "is_default")]
        cache_write_tokens: u64,
        ms: u64,
    },
    ModelRetried {
        teammate: String,
        reason: String,
        wait_ms: u64,
        retries: u32,
    },
    /// Another model answers from now on: a fallback for this reason, or without one the member's own model again.
    ModelSwitched {
        teammate: String,
        task: Option<TaskId>,
        from: String,
        to: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    Said {
        teammate: String,
        task: Option<TaskId>,
        text: String,
    },
    ToolStarted {
        teammate: String,
        task: Option<TaskId>,
        tool: String,
        call: String,
        about: String,
    },
    ToolFinished {
        teammate: String,
        task: Option<TaskId>,
        tool: String,
        call: String,
        ok: bool,
        /// True if the call was not made, such as for lack of permission. Then it has no start.
        #[serde(default, skip_serializing_if = "is_default")]
        not_made: bool,
        ms: u64,
        /// The reason of a failure, in one line of limited length.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    MessageSent {
        from: String,
        to: String,
        message: String,
        about: String,
        /// The task of the request that it brings.
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
    },
    MessageDelivered {
        to: String,
        from: String,
        message: String,
    },
    /// A request or a question to the person was made. Each appears once, over all runs; [`super::request_log`] has the exceptions.
    RequestMade(RequestSnapshot),
    /// A request was answered, once. `to` requested it. The answer to a question counts as approved.
    RequestAnswered {
        by: String,
        to: String,
        request: String,
        request_kind: AskKind,
        approved: bool,
        /// The responder's words, shortened.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        feedback: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// A request needs no answer any more, once.
    RequestWithdrawn {
        request: String,
        request_kind: AskKind,
        from: String,
        to: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// Open requests of earlier runs or parts of the log, or those that changed. They are no new requests. A run begins with them, if
    /// there are some.
    Requests {
        open: Vec<RequestSnapshot>,
        /// True if this is the start of all open requests, which replaces those of earlier events.
        #[serde(default, rename = "anew", skip_serializing_if = "is_default")]
        is_full_list: bool,
    },
    Compacted {
        teammate: String,
        covers: u64,
    },
    /// 80 % of a limit of the budget is used.
    BudgetLow {
        limit: String,
        spent: String,
    },
    /// A budget does not cover the next request: that of the team, or of this member.
    BudgetSpent {
        limit: String,
        spent: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        teammate: Option<String>,
    },
    Warning {
        about: String,
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        next: Vec<Next>,
    },
    /// A notice that needs no action.
    Note {
        about: String,
        text: String,
    },
    /// The rows of tasks that changed without an event of their own, or of the whole board. Only [`super::replay`] reads them.
    Board {
        tasks: Vec<Arc<TaskSnapshot>>,
        /// All files that are not valid tasks, if the list changed.
        #[serde(default, rename = "spoiled", skip_serializing_if = "Option::is_none")]
        invalid_files: Option<Vec<InvalidFileSnapshot>>,
        /// True if this is the start of the whole board, which replaces the board of earlier events.
        #[serde(default, rename = "anew", skip_serializing_if = "is_default")]
        is_full_board: bool,
        /// Number of the full board's tasks in the lines that follow.
        #[serde(default, rename = "rest", skip_serializing_if = "is_default")]
        tasks_to_follow: u64,
    },
    /// The rows of members, as [`EventKind::Board`] for tasks.
    Team {
        members: Vec<Arc<MemberSnapshot>>,
        /// The whole team and its steering state, if this replaces the team of earlier events.
        #[serde(default, rename = "anew", skip_serializing_if = "Option::is_none")]
        full_team: Option<TeamSnapshot>,
    },
}

/// A task and its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimSnapshot {
    /// The task.
    pub task: TaskId,
    /// The holder.
    pub teammate: String,
}

/// A file on the board that is not a valid task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InvalidFileSnapshot {
    /// Its name.
    pub file: String,
    /// The reason.
    pub reason: String,
    /// Its place in the quarantine, if it was there when it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A team during its run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TeamSnapshot {
    /// Its name.
    pub team: String,
    /// Time at which its run started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<UnixMs>,
    /// The last session that started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// The desired state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<Mode>,
    /// The current state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<Mode>,
    /// The note with the state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A message for the person, by severity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Information that needs no action.
    Info(String),
    /// A warning that may need action.
    Warning {
        /// The reason.
        text: String,
        /// The next steps.
        next: Vec<Next>,
    },
}

impl Notice {
    /// A warning without a next step.
    pub fn warning(text: impl Into<String>) -> Self {
        Self::Warning { text: text.into(), next: Vec::new() }
    }
}

impl EventKind {
    /// Creates the event of a notice about `about`.
    pub fn of_notice(about: impl Into<String>, notice: Notice) -> Self {
        let about = about.into();
        match notice {
            Notice::Info(text) => Self::Note { about, text },
            Notice::Warning { text, next } => Self::Warning { about, text, next },
        }
    }
}

impl From<EventKind> for NewEvent {
    fn from(kind: EventKind) -> Self {
        Self { kind, row: None, member: None }
    }
}

impl NewEvent {
    /// Creates an event that changes the status of a member.
    pub fn with_member(kind: EventKind, member: MemberSnapshot) -> Self {
        Self { kind, row: None, member: Some(Arc::new(member)) }
    }

    /// Returns the event with this number, outside of a run.
    pub fn number(self, seq: u64, at: UnixMs) -> Event {
        let Self { kind, row, member } = self;
        Event { v: 1, seq, at, id: None, kind, row, member }
    }
}

impl Event {
    /// Returns the event with its position in the run that began at `began`.
    #[must_use]
    pub fn in_run(self, began: UnixMs) -> Self {
        Self { id: Some(EventId { began, seq: self.seq }), ..self }
    }

    /// Returns the line without a newline.
    pub fn to_line(&self) -> String {
        // All map keys are strings, so serializing cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_kinds_list_is_complete() {
        let error = serde_json::from_str::<EventKind>(r#"{"kind":"?"}"#).unwrap_err().to_string();
        let kinds: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert_eq!(kinds, KINDS, "{error}");
    }

    #[test]
    fn event_line_starts_with_v_seq_at() {
        let claimed = EventKind::TaskClaimed { task: TaskId(3), attempt: 1, teammate: "alice".into() };
        let row = Some(Arc::new(TaskSnapshot::new(TaskId(3), "Count")));
        let event = NewEvent { row, ..claimed.into() }.number(3, UnixMs(1_763_688_000_123));
        let line = event.to_line();
        assert_eq!(
            line,
            r#"{"v":1,"seq":3,"at":1763688000123,"kind":"task_claimed","task":3,"attempt":1,"teammate":"alice","row":{"task":3,"subject":"Count","status":"pending"}}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
