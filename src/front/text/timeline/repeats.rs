//! Recognises events that only repeat what an earlier line of the timeline says.

use std::collections::{HashMap, HashSet};

use super::TASKS_REMEMBERED_MAX;
use crate::domain::log::event::{EventKind, MERGE_STEP, REPORT_TOOL, VERIFY_STEP};
use crate::domain::task::TaskId;

/// The facts that the lines so far have shown.
#[derive(Debug, Default)]
pub(super) struct RepeatFilter {
    /// Teammates whose current report already has a line for its failed verify or merge.
    failed_reports: HashSet<String>,
    /// The last shown status of each task: an edit that keeps the status gets no line.
    statuses: HashMap<TaskId, String>,
}

impl RepeatFilter {
    /// Records the event. Returns true if it gets no line, because an earlier line says the same.
    pub fn is_repeated(&mut self, kind: &EventKind) -> bool {
        !self.record_status(kind) || self.repeats_failure(kind)
    }

    /// Records the task's status after the event. Returns false for an edit that keeps the status.
    fn record_status(&mut self, kind: &EventKind) -> bool {
        let (task, status) = match kind {
            EventKind::TaskCreated { task, .. }
            | EventKind::TaskReleased { task, .. }
            | EventKind::TaskReclaimed { task, .. } => (task, "pending"),
            EventKind::TaskClaimed { task, .. } => (task, "in_progress"),
            EventKind::TaskCompleted { task, .. } => (task, "completed"),
            EventKind::TaskFailed { task, .. } => (task, "failed"),
            EventKind::TaskChanged { task, status, .. } => (task, status.as_str()),
            _ => return true,
        };
        let before = if self.statuses.len() < TASKS_REMEMBERED_MAX || self.statuses.contains_key(task) {
            self.statuses.insert(*task, status.to_owned())
        } else {
            None
        };
        !matches!(kind, EventKind::TaskChanged { .. }) || before.as_deref().unwrap_or("pending") != status
    }

    /// Records failed verifies and merges. Returns true if the event only repeats such a failure: a failed verify fails the
    /// merge, and both fail the report.
    fn repeats_failure(&mut self, kind: &EventKind) -> bool {
        match kind {
            EventKind::ToolStarted { teammate, tool, .. } if tool == REPORT_TOOL => {
                self.failed_reports.remove(teammate);
                false
            }
            // Brigade completes a task after a turn too, without a report.
            EventKind::TurnFinished { teammate, .. } => {
                self.failed_reports.remove(teammate);
                false
            }
            EventKind::ToolFinished { teammate, tool, ok: false, .. } if tool == VERIFY_STEP || tool == MERGE_STEP => {
                !self.failed_reports.insert(teammate.clone()) && tool == MERGE_STEP
            }
            EventKind::ToolFinished { teammate, tool, .. } if tool == REPORT_TOOL => {
                self.failed_reports.remove(teammate)
            }
            _ => false,
        }
    }
}
