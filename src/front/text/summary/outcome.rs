//! The outcome of a run as data, for programs and for the closing text.

use std::time::Duration;

use serde::Serialize;

use crate::api::Next;
use crate::domain::agent::transcript::Usage;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::log::event::{GoalCheck, TaskCounts};
use crate::domain::task::dependencies;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::run_verdict::{GoalAnswer, RunFacts, UnplannedGoal};
use crate::domain::text::units::duration;
use crate::front::text::cost::grouped;
use crate::front::text::pending::PendingNotes;
use crate::ports::BoardView;

/// The status of a task at the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum OutcomeStatus {
    /// Pending, with an unfinished blocker.
    Blocked,
    Own(TaskStatus),
    /// A status that another program wrote.
    Foreign(String),
}

impl OutcomeStatus {
    pub(super) fn of(task: &Task, view: &BoardView) -> Self {
        match task.status {
            _ if dependencies::is_blocked(task, view) => Self::Blocked,
            TaskStatus::Unknown => Self::Foreign(task.status_word().into_owned()),
            status => Self::Own(status),
        }
    }

    pub(super) fn word(&self) -> &str {
        match self {
            Self::Blocked => "blocked",
            Self::Own(status) => status.as_str(),
            Self::Foreign(word) => word,
        }
    }
}

impl From<OutcomeStatus> for String {
    fn from(status: OutcomeStatus) -> Self {
        status.word().to_owned()
    }
}

/// One task of the summary, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskOutcome {
    pub id: TaskId,
    pub subject: String,
    pub status: OutcomeStatus,
    pub owner: Option<String>,
    /// Attempts so far.
    pub attempt: u32,
    /// The time spent on it in this run, in milliseconds.
    pub ms: u64,
    /// Its result, or its obstacles.
    pub note: String,
    /// The evidence of a completed task: its verify command and the exit status, `unverified`, or the author's own evidence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evidence: String,
    /// True if the task has no verify command and its agent ended without a report.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
    /// True if its verify command ran no test.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nothing_ran: bool,
    /// The files that it made and git ignores, and its worktree, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored_files: Option<IgnoredFiles>,
    /// Its worktree, relative to the workspace.
    #[serde(skip)]
    pub worktree: Option<String>,
    /// The note and the evidence, the more important part first.
    #[serde(skip)]
    pub(super) note_and_evidence: String,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RunUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl From<Usage> for RunUsage {
    fn from(usage: Usage) -> Self {
        Self { input_tokens: usage.total() - usage.output_tokens, output_tokens: usage.output_tokens }
    }
}

/// The outcome of a run, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunOutcome {
    pub team: String,
    /// The counts of all tasks of the board.
    #[serde(rename = "tally")]
    pub task_counts: TaskCounts,
    /// Tasks completed in this run.
    pub completed_now: usize,
    /// Of these, the tasks that the team's own agents completed without a report and without a verify command.
    #[serde(skip_serializing_if = "is_zero")]
    pub unverified_now: usize,
    /// The duration of the run in milliseconds.
    pub ms: u64,
    #[serde(flatten)]
    pub usage: RunUsage,
    /// The reason why the team stopped.
    pub reason: Option<String>,
    /// The last check of the goal.
    pub goal: Option<GoalCheck>,
    /// An error of the team itself, not of its tasks.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The goal, if it has no tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplanned: Option<UnplannedGoal>,
    #[serde(rename = "for_you", skip_serializing_if = "PendingNotes::is_nothing")]
    pub pending: PendingNotes,
    /// The tasks of this run and all unfinished ones.
    pub tasks: Vec<TaskOutcome>,
    /// The next steps that the closing sentences name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

impl RunOutcome {
    /// Adds the items that wait for the person. A question in a message is an answer to the goal too.
    #[must_use]
    pub fn with_pending(mut self, pending: PendingNotes) -> Self {
        if pending.waiting.lead_asks
            && let Some(goal) = &mut self.unplanned
        {
            goal.answer = GoalAnswer::Question;
        }
        Self { pending, ..self }
    }

    /// Returns the facts that decide about verdict and achievement.
    pub fn facts(&self) -> RunFacts<'_> {
        RunFacts {
            task_counts: self.task_counts,
            completed_now: self.completed_now,
            unverified_now: self.unverified_now,
            error: self.error.as_deref(),
            goal: self.goal.as_ref(),
            unplanned: self.unplanned.as_ref(),
        }
    }

    /// Returns a text such as `2 m 5 s, 18,234 tokens`.
    pub(super) fn usage_text(&self) -> String {
        let took = duration(Duration::from_millis(self.ms));
        match self.usage.input_tokens.saturating_add(self.usage.output_tokens) {
            0 => took,
            tokens => format!("{took}, {} tokens", grouped(tokens)),
        }
    }
}
