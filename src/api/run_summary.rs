//! The facts about a run: they are collected from its events, and completed by the board at its end.

mod planning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::task::ClaimCandidate;
use crate::domain::agent::transcript::Usage;
use crate::domain::log::event::{Event, EventKind, GoalCheck, TaskCounts};
use crate::domain::task::dependencies::{self, Blocker, unfinished_blockers};
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::team::run_verdict::{RunFacts, UnplannedGoal};
use crate::domain::time::UnixMs;
use crate::ports::BoardView;
use planning::Planning;

/// The status of a task at the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum OutcomeStatus {
    /// Pending, with an unfinished blocker.
    Blocked,
    /// Its own status.
    Own(TaskStatus),
    /// A status that another program wrote.
    Foreign(String),
}

impl OutcomeStatus {
    fn of(task: &Task, view: &BoardView) -> Self {
        match task.status {
            _ if dependencies::is_blocked(task, view) => Self::Blocked,
            TaskStatus::Unknown => Self::Foreign(task.status_word().into_owned()),
            status => Self::Own(status),
        }
    }

    /// The word for people and programs.
    pub fn word(&self) -> &str {
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

/// One task of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTask {
    /// The task at the end of the run.
    pub task: Arc<Task>,
    /// Its status.
    pub status: OutcomeStatus,
    /// The time spent on it in this run, in milliseconds.
    pub ms: u64,
    /// The unfinished tasks that it waits for.
    pub blockers: Vec<Blocker>,
}

/// The tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RunUsage {
    /// The tokens that the models read.
    pub input_tokens: u64,
    /// The tokens that they wrote.
    pub output_tokens: u64,
}

impl From<Usage> for RunUsage {
    fn from(usage: Usage) -> Self {
        Self { input_tokens: usage.total() - usage.output_tokens, output_tokens: usage.output_tokens }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A run at its end.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RunView {
    /// The name of the team.
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
    /// The tokens. They are zero until the caller sets them, because the events do not show all requests.
    #[serde(flatten)]
    pub usage: RunUsage,
    /// The reason why the team stopped.
    pub reason: Option<String>,
    /// The last check of the goal.
    pub goal: Option<GoalCheck>,
    /// An error of the team itself, not of its tasks. The caller sets it.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The goal, if it has no tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplanned: Option<UnplannedGoal>,
    /// The tasks of this run and all unfinished ones.
    #[serde(skip)]
    pub tasks: Vec<RunTask>,
    /// The members, which explain unfinished tasks.
    #[serde(skip)]
    pub candidates: Vec<ClaimCandidate>,
    /// The time of the last event.
    #[serde(skip)]
    pub at: UnixMs,
}

impl RunView {
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
}

/// The time that the run spent on one task.
#[derive(Debug, Clone, Copy, Default)]
struct TaskTime {
    /// The time of all finished attempts.
    spent: Duration,
    /// The start of the current attempt.
    since: Option<UnixMs>,
}

/// Collects the data of the summary from the events of a run.
#[derive(Debug, Clone, Default)]
pub struct RunSummary {
    first: Option<UnixMs>,
    last: UnixMs,
    times: BTreeMap<TaskId, TaskTime>,
    completed: BTreeSet<TaskId>,
    /// The members that this run started.
    members: BTreeSet<String>,
    /// The attempts that completed a task without a report and without a verify command, by these members.
    unverified: BTreeMap<TaskId, u32>,
    stopped: Option<String>,
    goal: Option<GoalCheck>,
    /// The members, to explain unfinished tasks.
    candidates: Vec<ClaimCandidate>,
    planning: Planning,
}

impl RunSummary {
    /// Returns the empty summary of a team with these members. `has_goal` is true if its lead plans a goal.
    pub fn new(candidates: Vec<ClaimCandidate>, has_goal: bool) -> Self {
        Self { candidates, planning: Planning::new(has_goal), ..Self::default() }
    }

    /// Records an event of the run.
    pub fn observe(&mut self, event: &Event) {
        self.first.get_or_insert(event.at);
        self.last = self.last.max(event.at);
        self.planning.observe(&event.kind);
        match &event.kind {
            EventKind::TaskClaimed { task, .. } => {
                self.times.entry(*task).or_default().since = Some(event.at);
            }
            EventKind::TeamStarted { members, .. } => self.members.extend(members.iter().cloned()),
            EventKind::TeammateSpawned { teammate, .. } => {
                self.members.insert(teammate.clone());
            }
            EventKind::TaskCompleted { task, attempt, teammate, unverified, .. } => {
                self.completed.insert(*task);
                if *unverified && self.members.contains(teammate) {
                    self.unverified.insert(*task, *attempt);
                }
                self.end_claim(*task, event.at);
            }
            EventKind::TaskFailed { task, .. }
            | EventKind::TaskReleased { task, .. }
            | EventKind::TaskReclaimed { task, .. } => {
                self.end_claim(*task, event.at);
            }
            EventKind::SessionFinished { goal, .. } => self.goal.clone_from(goal),
            EventKind::TeamStopped { reason, .. } => self.stopped = Some(reason.clone()),
            _ => {}
        }
    }

    fn end_claim(&mut self, task: TaskId, at: UnixMs) {
        let time = self.times.entry(task).or_default();
        if let Some(since) = time.since.take() {
            time.spent += at.since(since);
        }
    }

    /// Returns the run, with the board's current tasks.
    pub fn view(&self, team: &str, board: &BoardView) -> RunView {
        let is_goal_met = self.goal.as_ref().is_some_and(|goal| goal.met);
        let is_shown = |task: &&Arc<Task>| task.status != TaskStatus::Completed || self.times.contains_key(&task.id);
        let unplanned = if is_goal_met { None } else { self.planning.unplanned(!board.tasks.is_empty()) };
        let is_unverified = |(id, attempt): &(&TaskId, &u32)| is_unverified(**id, **attempt, board);
        RunView {
            team: team.to_owned(),
            task_counts: dependencies::count_tasks(board.tasks.values().map(AsRef::as_ref), board),
            completed_now: self.completed.len(),
            unverified_now: self.unverified.iter().filter(is_unverified).count(),
            ms: millis(self.first.map_or(Duration::ZERO, |first| self.last.since(first))),
            reason: self.stopped.clone(),
            goal: self.goal.clone(),
            unplanned,
            tasks: board.tasks.values().filter(is_shown).map(|task| self.run_task(task, board)).collect(),
            candidates: self.candidates.clone(),
            at: self.last,
            ..RunView::default()
        }
    }

    fn run_task(&self, task: &Arc<Task>, board: &BoardView) -> RunTask {
        let time = self.times.get(&task.id).copied().unwrap_or_default();
        let running = time.since.map_or(Duration::ZERO, |since| self.last.since(since));
        RunTask {
            status: OutcomeStatus::of(task, board),
            ms: millis(time.spent + running),
            blockers: unfinished_blockers(task, board).collect(),
            task: Arc::clone(task),
        }
    }
}

/// Returns true if this attempt completed the task, and neither a report, a review nor a verify command shows its work now. A completion by
/// another than its holder is that person's or program's word.
fn is_unverified(id: TaskId, attempt: u32, view: &BoardView) -> bool {
    let Some(task) = view.tasks.get(&id) else { return false };
    let is_unchecked =
        |result: &TaskResult| result.unverified && result.ended_by.is_none() && result.reviewed_by.is_none();
    task.attempt == attempt && task.completion().is_some_and(is_unchecked)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
