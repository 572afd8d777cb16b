//! The facts of a run, as front ends read them: lines of `.team/events.jsonl`.
//!
//! One kind for every fact that is shown anywhere; the log numbers them. Nothing here decides anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::merge::FOLLOWS_AGAIN;
use super::row::{MemberRow, TaskRow};
use super::state::Mode;
use super::task::TaskId;
use super::time::UnixMs;
use super::waiting_for::WaitingFor;

/// A numbered fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Version of the form.
    pub v: u32,
    /// Counts up by one within a run, from 1.
    pub seq: u64,
    /// When.
    pub at: UnixMs,
    /// What.
    #[serde(flatten)]
    pub fact: Fact,
}

/// How a session came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Tally {
    /// Tasks completed.
    pub completed: usize,
    /// Tasks given up.
    pub failed: usize,
    /// Tasks that wait for others which are not finished.
    pub blocked: usize,
    /// Tasks in progress.
    pub in_progress: usize,
    /// Tasks that wait for no other, and nobody has claimed.
    pub pending: usize,
}

/// How the check of a goal came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoalCheck {
    /// Whether the goal is met.
    pub met: bool,
    /// What shows it: the command and how it ended.
    pub evidence: String,
}

/// The words of all kinds of facts, in the order of [`Fact`].
pub const KINDS: [&str; 34] = [
    "team_started",
    "team_stopped",
    "taken_up",
    "mode_changed",
    "session_started",
    "session_finished",
    "task_created",
    "task_claimed",
    "task_completed",
    "task_failed",
    "task_released",
    "task_reclaimed",
    "task_changed",
    "task_deleted",
    "task_spoiled",
    "teammate_spawned",
    "teammate_phase",
    "teammate_respawned",
    "teammate_stopped",
    "stop_asked",
    "turn_started",
    "turn_finished",
    "model_retried",
    "said",
    "tool_started",
    "tool_finished",
    "message_sent",
    "message_delivered",
    "compacted",
    "budget_spent",
    "warning",
    "note",
    "board",
    "team",
];

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields carry the names and meanings of contracts/events.jsonl")]
pub enum Fact {
    TeamStarted {
        team: String,
        members: Vec<String>,
    },
    TeamStopped {
        team: String,
        reason: String,
    },
    /// The run before was killed, and this one takes up what its teammates held then.
    TakenUp {
        claims: Vec<HeldRow>,
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
        /// What the lead says, or the figures where it goes by rule.
        summary: String,
        /// The figures, where the lead speaks for itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
        tally: Tally,
        /// How the check of the goal came out, where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
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
    },
    TaskFailed {
        task: TaskId,
        attempt: u32,
        teammate: String,
        reason: String,
    },
    /// The attempt is over without a result; the task is pending again, perhaps not before a time.
    TaskReleased {
        task: TaskId,
        attempt: u32,
        teammate: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<UnixMs>,
    },
    TaskReclaimed {
        task: TaskId,
        attempt: u32,
        teammate: String,
        reason: String,
    },
    /// Any other change to a task: edited, retried, reopened; also by hand.
    TaskChanged {
        task: TaskId,
        status: String,
        by: String,
    },
    TaskDeleted {
        task: TaskId,
        by: String,
    },
    TaskSpoiled {
        file: String,
        reason: String,
    },
    TeammateSpawned {
        teammate: String,
        role: String,
    },
    TeammatePhase {
        teammate: String,
        phase: String,
        #[serde(default)]
        task: Option<TaskId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting_for: Option<WaitingFor>,
    },
    TeammateRespawned {
        teammate: String,
        reason: String,
        respawns: u32,
    },
    TeammateStopped {
        teammate: String,
        reason: String,
        /// Nobody asked it to: it failed too often to be started again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_dead: bool,
    },
    /// A person asked a teammate that works to stop: after its turn, or at once.
    StopAsked {
        teammate: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        now: bool,
    },
    TurnStarted {
        teammate: String,
        #[serde(default)]
        task: Option<TaskId>,
    },
    TurnFinished {
        teammate: String,
        #[serde(default)]
        task: Option<TaskId>,
        input_tokens: u64,
        output_tokens: u64,
        cache_read_tokens: u64,
        #[serde(default, skip_serializing_if = "is_nought")]
        cache_write_tokens: u64,
        ms: u64,
    },
    ModelRetried {
        teammate: String,
        reason: String,
        wait_ms: u64,
        retries: u32,
    },
    Said {
        teammate: String,
        #[serde(default)]
        task: Option<TaskId>,
        text: String,
    },
    ToolStarted {
        teammate: String,
        #[serde(default)]
        task: Option<TaskId>,
        tool: String,
        call: String,
        about: String,
    },
    ToolFinished {
        teammate: String,
        #[serde(default)]
        task: Option<TaskId>,
        tool: String,
        call: String,
        ok: bool,
        ms: u64,
        /// Why it was not, in a bounded line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    MessageSent {
        from: String,
        to: String,
        message: String,
        about: String,
    },
    MessageDelivered {
        to: String,
        from: String,
        message: String,
    },
    Compacted {
        teammate: String,
        covers: u64,
    },
    BudgetSpent {
        limit: String,
        spent: String,
    },
    Warning {
        about: String,
        text: String,
    },
    /// What a person is glad to know, and need do nothing about.
    Note {
        about: String,
        text: String,
    },
    /// How tasks stand, where what was told before does not say so already. For [`super::replay`]; people are told the rest.
    Board {
        tasks: Vec<Arc<TaskRow>>,
        /// All files that are no tasks, where these are others than before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spoiled: Option<Vec<SpoiledRow>>,
        /// This is the whole board: nothing that was known of it before counts.
        #[serde(default, skip_serializing_if = "is_no")]
        anew: bool,
        /// How many tasks of it are in the lines that follow.
        #[serde(default, skip_serializing_if = "is_nought")]
        rest: u64,
    },
    /// How members stand, as [`Fact::Board`] for tasks.
    Team {
        members: Vec<MemberRow>,
        /// This is the whole team, and what it was to do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        anew: Option<TeamRow>,
    },
}

/// Who held a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRow {
    /// The task.
    pub task: TaskId,
    /// Who.
    pub teammate: String,
}

/// A file on the board that is no task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoiledRow {
    /// Its name.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A team in the middle of its run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TeamRow {
    /// Its name.
    pub team: String,
    /// When its run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<UnixMs>,
    /// The session that began last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// What the person wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Mode>,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Mode>,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_no(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_nought(count: &u64) -> bool {
    *count == 0
}

impl Fact {
    /// What is told of worktrees: a warning, unless it is that one is over.
    #[must_use]
    pub fn of_worktrees(about: impl Into<String>, text: String) -> Self {
        let about = about.into();
        if text.ends_with(FOLLOWS_AGAIN) { Self::Note { about, text } } else { Self::Warning { about, text } }
    }
}

impl Event {
    /// The line, without a newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        // No map with other keys than strings is in it, so writing it cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_that_follows_again_is_no_warning() {
        let of = |text: String| Fact::of_worktrees("worktrees", text);
        assert!(matches!(of(format!("your checkout is on main{FOLLOWS_AGAIN}")), Fact::Note { .. }));
        assert!(matches!(of("your checkout is on brigade-yours/main".to_owned()), Fact::Warning { .. }));
    }

    #[test]
    fn the_words_of_all_kinds_are_listed() {
        let error = serde_json::from_str::<Fact>(r#"{"kind":"?"}"#).unwrap_err().to_string();
        let named: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert_eq!(named, KINDS, "{error}");
    }

    #[test]
    fn a_line_starts_with_version_number_and_time() {
        let event = Event {
            v: 1,
            seq: 3,
            at: UnixMs(1_763_688_000_123),
            fact: Fact::TaskClaimed { task: TaskId(3), attempt: 1, teammate: "alice".into() },
        };
        let line = event.to_line();
        assert_eq!(
            line,
            r#"{"v":1,"seq":3,"at":1763688000123,"kind":"task_claimed","task":3,"attempt":1,"teammate":"alice"}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
