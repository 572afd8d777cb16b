//! The outcome of a run with its texts, for programs and for the closing text.

use std::time::Duration;

use serde::Serialize;

use super::closing;
use crate::api::Next;
use crate::api::run_summary::{OutcomeStatus, RunTask, RunView};
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::task::evidence::joined;
use crate::domain::task::failure_summary::summary_of;
use crate::domain::task::{TaskId, TaskResult, TaskStatus};
use crate::domain::team::run_verdict::GoalAnswer;
use crate::domain::text::first_line;
use crate::domain::text::units::duration;
use crate::front::text::cost::grouped;
use crate::front::text::evidence::{evidence_text, with_evidence};
use crate::front::text::pending::PendingNotes;
use crate::front::text::tasks::obstacles;

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

impl TaskOutcome {
    fn of(RunTask { task, status, ms, blockers }: &RunTask, view: &RunView) -> Self {
        let result = task.result.as_ref().filter(|result| !result.summary.trim().is_empty());
        let result = result.map(|result| match task.status {
            TaskStatus::Completed => first_line(&result.summary),
            TaskStatus::Pending if !result.is_failure() => format!("released: {}", summary_of(&result.summary)),
            _ => summary_of(&result.summary),
        });
        let mut note = Vec::new();
        if task.status == TaskStatus::Pending {
            note = obstacles(task, blockers, &view.candidates, view.at);
        }
        note.extend(result);
        let completed = task.completion();
        let note = joined(note);
        Self {
            id: task.id,
            subject: task.subject.clone(),
            status: status.clone(),
            owner: task.owner.clone(),
            attempt: task.attempt,
            ms: *ms,
            note_and_evidence: completed.map_or(note.clone(), |result| with_evidence(&note, result)),
            note,
            evidence: completed.map(evidence_text).unwrap_or_default(),
            unverified: completed.is_some_and(|result| result.unverified),
            nothing_ran: completed.is_some_and(TaskResult::nothing_ran),
            ignored_files: completed.and_then(|result| result.ignored_files.clone()),
            worktree: task.worktree.clone(),
        }
    }
}

/// The outcome of a run, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunOutcome {
    #[serde(flatten)]
    pub view: RunView,
    #[serde(rename = "for_you", skip_serializing_if = "PendingNotes::is_nothing")]
    pub pending: PendingNotes,
    pub tasks: Vec<TaskOutcome>,
    /// The next steps that the closing sentences name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

impl RunOutcome {
    /// The outcome, with the items that wait for the person. A question in a message is an answer to the goal too.
    pub fn of(mut view: RunView, pending: PendingNotes) -> Self {
        if pending.waiting.lead_asks
            && let Some(goal) = &mut view.unplanned
        {
            goal.answer = GoalAnswer::Question;
        }
        let tasks = view.tasks.iter().map(|task| TaskOutcome::of(task, &view)).collect();
        let outcome = Self { view, pending, tasks, next: Vec::new() };
        Self { next: closing::next_steps(&outcome), ..outcome }
    }

    /// Returns a text such as `2 m 5 s, 18,234 tokens`.
    pub(super) fn usage_text(&self) -> String {
        let (took, usage) = (duration(Duration::from_millis(self.view.ms)), self.view.usage);
        match usage.input_tokens.saturating_add(usage.output_tokens) {
            0 => took,
            tokens => format!("{took}, {} tokens", grouped(tokens)),
        }
    }
}
