//! Tasks: the facts that explain their state, and the orders that change them.

mod actor;
mod add;
mod change;
mod claim;
mod complete;
mod context;
mod diff;

use std::collections::{BTreeMap, HashSet};

use serde_json::value::RawValue;

pub use actor::ActingAs;
pub use add::{StartObstacles, add, import, start_obstacles};
pub use change::{DeletedTask, StatusChange, acting_name, board, change, change_each, delete_each, edit, find};
pub use claim::{ClaimOrder, ClaimOutcome, claim};
pub use complete::{complete, incomplete};
pub use context::{abandoned_tasks, load as load_context};
pub use diff::Changes;

use super::team::LeadHealth;
use crate::domain::task::claim_queue::{Candidate, TaskScope};
use crate::domain::task::{Claim, MAX_ATTEMPTS_DEFAULT, Task, TaskId, TaskStatus};
use crate::domain::team::approval::Request;
use crate::domain::team::pending_questions::Question;
use crate::domain::team::state::Mode;
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, QuarantinedTask};

/// The place of a member in a running team. A team that does not run has all members of its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It runs, or no team runs.
    Here,
    /// It was stopped or died.
    Stopped,
    /// It is new in the config.
    NextLaunch,
}

/// A member that could claim tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimCandidate {
    /// The name.
    pub name: String,
    /// The capabilities, among them the role.
    pub capabilities: Vec<String>,
    /// Its place in the running team.
    pub presence: Presence,
    /// The reason of its wait while the team runs; `None` if it waits for work.
    pub waits_for: Option<WaitingFor>,
    /// The tasks that it can do.
    pub scope: TaskScope,
}

impl ClaimCandidate {
    /// Returns a member that waits for nothing.
    pub fn of(name: impl Into<String>, capabilities: Vec<String>) -> Self {
        Self { name: name.into(), capabilities, presence: Presence::Here, waits_for: None, scope: TaskScope::All }
    }

    /// Returns the member as the claim queue sees it.
    pub fn as_candidate(&self) -> Candidate<'_> {
        Candidate { name: &self.name, capabilities: &self.capabilities, scope: self.scope }
    }
}

/// The facts about the whole team that may keep it from claiming tasks. A fact that is not known has its default.
#[derive(Debug, Clone, Default)]
pub struct TeamCondition {
    /// The team that is running.
    pub running: Option<String>,
    /// The process of the running team, if it is suspended or silent.
    pub lead_health: Option<(LeadHealth, u32)>,
    /// The desired state.
    pub desired: Option<Mode>,
    /// Set while the team is paused because its budget is spent.
    pub spent_budget: Option<String>,
    /// Set while the disk is too full for new work.
    pub disk_shortage: Option<String>,
}

/// The board and the facts that explain the state of its tasks. A fact that is not known has its default.
#[derive(Debug, Clone)]
pub struct TaskContext<'a> {
    /// The board.
    pub view: &'a BoardView,
    /// The time of the view.
    pub now: UnixMs,
    /// The facts about the team.
    pub team: TeamCondition,
    /// The members that could claim tasks; empty if they are not known.
    pub candidates: Vec<ClaimCandidate>,
    /// The paths of the invalid task files in quarantine.
    pub quarantined_tasks: BTreeMap<TaskId, QuarantinedTask>,
    /// The ids of live workers; `None` if they are not known.
    pub live_workers: Option<HashSet<String>>,
    /// Plans and reviews that wait for an answer.
    pub approvals: Vec<Request>,
    /// Questions of members that wait for the person.
    pub questions: Vec<Question>,
    /// The reasons in the merged commits of the task for removing lines of other tasks.
    pub dropped: Vec<String>,
    /// True if the folder of the task's worktree does not exist any more.
    pub is_worktree_removed: bool,
}

impl<'a> TaskContext<'a> {
    /// Returns the board without further facts.
    pub fn of(view: &'a BoardView, now: UnixMs) -> Self {
        Self {
            view,
            now,
            team: TeamCondition::default(),
            candidates: Vec::new(),
            quarantined_tasks: BTreeMap::new(),
            live_workers: None,
            approvals: Vec::new(),
            questions: Vec::new(),
            dropped: Vec::new(),
            is_worktree_removed: false,
        }
    }

    /// Returns true if the process that claimed the task is gone.
    pub fn is_abandoned(&self, task: &Task) -> bool {
        let is_gone = |claim: &Claim| self.live_workers.as_ref().is_some_and(|live| !live.contains(&claim.worker));
        task.current_claim().is_some_and(|claim| claim.expires.is_none() && is_gone(claim))
    }

    /// Returns the question of the task's holder that waits for the person.
    pub fn open_question(&self, task: &Task) -> Option<&Question> {
        if !matches!(task.status, TaskStatus::InProgress | TaskStatus::Failed) {
            return None;
        }
        let holder = task.owner.as_ref()?;
        self.questions.iter().find(|question| question.from.eq_ignore_ascii_case(holder))
    }

    /// Returns the requests about the task that wait for an answer.
    pub fn open_requests(&self, id: TaskId) -> impl Iterator<Item = &Request> {
        let is_about_task = move |request: &&Request| request.about.as_ref().is_some_and(|about| about.task == id);
        self.approvals.iter().filter(is_about_task)
    }
}

/// Returns the task as one line of JSON: all fields of its file, and the fields that a file omits while they have their
/// defaults.
pub fn document(task: &Task) -> Option<Box<RawValue>> {
    let mut document = task.to_document();
    let mut fill = |field: &str, default: &serde_json::Value| {
        if !document.contains(field) {
            document.put(field, default);
        }
    };
    for field in
        ["owner", "activeForm", "verify", "worktree", "tokensMax", "capReached", "notBefore", "claim", "result"]
    {
        fill(field, &serde_json::Value::Null);
    }
    for field in ["createdBy", "createdAt", "updatedAt"] {
        fill(field, &serde_json::Value::Null);
    }
    for (field, number) in [("priority", 0), ("attempt", 0), ("failures", 0), ("maxAttempts", MAX_ATTEMPTS_DEFAULT)] {
        fill(field, &number.into());
    }
    fill("requires", &serde_json::json!([]));
    // A document is always valid JSON.
    RawValue::from_string(document.to_line()).ok()
}
