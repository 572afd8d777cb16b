//! The task board.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Serialize;

use super::StoreResult;
use crate::domain::task::claim_queue::{Candidate, TaskScope};
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::team::phase::ClaimRef;
use crate::domain::text::one_line;

/// A member or script that claims a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant {
    /// The name that becomes the task's owner.
    pub name: String,
    /// Its role and capabilities.
    pub capabilities: Vec<String>,
    /// The worker that must be alive for the claim to hold; `lease:<name>` for a claim by command.
    pub worker: String,
    /// The length of the lease, for a claim by command.
    pub lease: Option<Duration>,
    /// The tasks that it can do.
    pub scope: TaskScope,
}

impl Claimant {
    /// Returns what decides about its claims.
    pub fn as_candidate(&self) -> Candidate<'_> {
        Candidate { name: &self.name, capabilities: &self.capabilities, scope: self.scope }
    }
}

/// An entry of the board that is not a valid task. Another program wrote it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidEntry {
    /// The task, if the entry has the place of one.
    pub id: Option<TaskId>,
    /// Its name, as people find it.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// The board at one moment.
#[derive(Debug, Clone, Default)]
pub struct BoardView {
    /// Increases at every change that the store sees.
    pub revision: u64,
    /// The tasks by id.
    pub tasks: BTreeMap<TaskId, Arc<Task>>,
    /// Entries that are not valid tasks.
    pub invalid: Vec<InvalidEntry>,
    /// Deleted tasks that are still being removed from other tasks' dependencies.
    pub deleted: BTreeSet<TaskId>,
}

impl TaskLookup for BoardView {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).map(Arc::as_ref)
    }
    fn was_deleted(&self, id: TaskId) -> bool {
        self.deleted.contains(&id)
    }
    fn is_invalid(&self, id: TaskId) -> bool {
        self.invalid.iter().any(|invalid| invalid.id == Some(id))
    }
}

/// A claim that was removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Reclaimed {
    /// The task after that.
    pub task: Task,
    /// The former owner.
    pub owner: String,
    /// The reason.
    pub reason: String,
}

/// The claims to remove.
#[derive(Debug, Clone, Default)]
pub struct ReclaimRequest {
    /// The claims whose holder is gone.
    pub claims: Vec<ClaimRef>,
    /// The claims whose lease expired only by a jump of the clock. They stay.
    pub running_leases: Vec<ClaimRef>,
    /// True if the loss counts against `max_attempts`, because others of the team were alive.
    pub is_failure: bool,
    /// The reason, for people.
    pub reason: String,
}

/// An invalid entry of a task in quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QuarantinedTask {
    /// Its place, for people.
    pub place: String,
    /// The reason why it is invalid. `None` if it is valid now, or cannot be read.
    pub reason: Option<String>,
}

/// The end of a sentence about its entry.
impl fmt::Display for QuarantinedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "was invalid and was set aside as {}", one_line(&self.place))?;
        self.reason.iter().try_for_each(|reason| write!(f, ": {}", one_line(reason)))
    }
}

/// A task that is not on the board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTask {
    /// Its id.
    pub id: TaskId,
    /// Its invalid entry, if that was moved to quarantine.
    pub quarantined: Option<QuarantinedTask>,
}

impl From<TaskId> for MissingTask {
    fn from(id: TaskId) -> Self {
        Self { id, quarantined: None }
    }
}

impl fmt::Display for MissingTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no task {} on the board", self.id)?;
        self.quarantined.iter().try_for_each(|task| write!(f, ": its file {task}"))
    }
}

/// The task board.
///
/// After a crash at any point, each task is as before or as after the call. With power durability this includes power cuts, once
/// [`Board::create`], [`Board::change`] or [`Board::delete`] returned. A power cut may lose a claim. The next open or call
/// completes updates of dependents.
#[async_trait]
pub trait Board: Send + Sync {
    /// Creates all tasks or none, with ids that were never used. Unknown blockers and cycles are errors. With
    /// `skip_known_sources`, the existing task is returned for a `source` that is already on the board.
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>>;

    /// Returns the current board.
    async fn view(&self) -> StoreResult<Arc<BoardView>>;

    /// Returns the current state of one task.
    async fn get(&self, id: TaskId) -> StoreResult<Task>;

    /// Claims the best claimable task: highest priority, then lowest id. Checks and claims in one step.
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>>;

    /// Claims this task. The error names the obstacle.
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task>;

    /// Changes a task by the rules of [`crate::domain::task::transition`]. A completed task is removed from the blockers of others, and
    /// a reopened one is added again to its pending dependents.
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task>;

    /// Deletes a task, and its id from other tasks. The id is never used again.
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task>;

    /// Returns those of `ids` that [`Board::delete`] removed. The store remembers the last few thousand.
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>>;

    /// Returns the tasks whose invalid entry was moved to quarantine.
    async fn quarantined_tasks(&self) -> StoreResult<BTreeMap<TaskId, QuarantinedTask>>;

    /// Returns the tasks that `view` lacks because their entry is invalid or in quarantine: for each its place, for people.
    async fn invalid_tasks(&self, view: &BoardView) -> StoreResult<BTreeMap<TaskId, String>> {
        let quarantined = self.quarantined_tasks().await?.into_iter();
        let mut invalid: BTreeMap<_, _> = quarantined.map(|(id, task)| (id, task.place)).collect();
        invalid.retain(|id, _| !view.tasks.contains_key(id));
        if !invalid.is_empty() {
            let ids: Vec<TaskId> = invalid.keys().copied().collect();
            let deleted = self.deleted(&ids).await?;
            invalid.retain(|id, _| !deleted.contains(id));
        }
        invalid.extend(view.invalid.iter().filter_map(|entry| Some((entry.id?, entry.name.clone()))));
        Ok(invalid)
    }

    /// Removes the claims that `request` describes, and those with an expired lease. Tasks without a claim do not change.
    async fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>>;
}
