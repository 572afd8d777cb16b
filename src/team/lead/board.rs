//! The board as the lead last read it, with the tasks that vanished from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::claims::ClaimWatch;
use crate::domain::log::event::TaskCounts;
use crate::domain::task::claim_queue::ClaimQueue;
use crate::domain::task::dependencies::{self, TaskLookup};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::name::Name;
use crate::domain::team::phase::ClaimRef;
use crate::domain::text::units::join_up_to;
use crate::ports::{BoardView, StoreResult, Stores};
use crate::run::event_sink::EventSink;
use crate::team::NAMED_MAX;

/// The board at the last read.
pub(super) struct BoardWatch {
    pub view: Arc<BoardView>,
    /// The claimable tasks of `view`.
    pub queue: ClaimQueue,
    pub claims: ClaimWatch,
    /// Tasks that vanished without being deleted.
    vanished: BTreeMap<TaskId, VanishedTask>,
}

/// A task that vanished from the board.
struct VanishedTask {
    subject: String,
    is_reported: bool,
}

impl BoardWatch {
    pub fn new(view: Arc<BoardView>) -> Self {
        Self { queue: queue_of(&view), view, claims: ClaimWatch::default(), vanished: BTreeMap::new() }
    }

    /// Reads the board. Returns the tasks that vanished since the last read, apart from those deleted on request
    /// and those whose file is invalid.
    pub async fn refresh(&mut self, stores: &Stores) -> StoreResult<Vec<Arc<Task>>> {
        let view = stores.board.view().await?;
        let before = std::mem::replace(&mut self.view, view);
        if before.revision != self.view.revision {
            self.queue = queue_of(&self.view);
        }
        if before.tasks.keys().eq(self.view.tasks.keys()) {
            return Ok(Vec::new());
        }
        let view = &self.view;
        self.vanished.retain(|id, _| !view.tasks.contains_key(id));
        let is_missing = |id: &TaskId| !view.tasks.contains_key(id) && !view.is_invalid(*id);
        let missing: Vec<TaskId> = before.tasks.keys().copied().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        // A board that cannot tell has lost its record of deletions with the rest.
        let deleted = stores.board.deleted(&missing).await.unwrap_or_default();
        let invalid = stores.board.invalid_tasks(view).await.unwrap_or_default();
        let has_vanished = |id: &TaskId| !deleted.contains(id) && !invalid.contains_key(id);
        Ok(missing.into_iter().filter(has_vanished).map(|id| Arc::clone(&before.tasks[&id])).collect())
    }

    /// Remembers tasks that vanished.
    pub fn record_vanished(&mut self, tasks: Vec<Arc<Task>>) {
        for task in tasks {
            self.vanished.insert(task.id, VanishedTask { subject: task.subject.clone(), is_reported: false });
        }
    }

    /// Reports each vanished task once, at the next poll. Until then a program that replaces its file has time to do so.
    pub fn report_vanished(&mut self, events: &EventSink) {
        if self.vanished.values().all(|vanished| vanished.is_reported) {
            return;
        }
        self.vanished.values_mut().for_each(|vanished| vanished.is_reported = true);
        if let Some(text) = self.vanished_text() {
            events.warn("board", text);
        }
    }

    /// Returns a sentence that names the vanished tasks.
    pub fn vanished_text(&self) -> Option<String> {
        if self.vanished.is_empty() {
            return None;
        }
        let names = self.vanished.iter().map(|(id, task)| format!("{id} ({})", task.subject));
        Some(format!("Missing from the board, but not deleted: {}.", join_up_to(names, NAMED_MAX)))
    }

    /// Returns a sentence that names the tasks whose file is invalid.
    pub async fn invalid_text(&self, stores: &Stores) -> Option<String> {
        let invalid = stores.board.invalid_tasks(&self.view).await.unwrap_or_default();
        if invalid.is_empty() {
            return None;
        }
        let names = join_up_to(invalid.iter().map(|(id, place)| format!("{id} ({place})")), NAMED_MAX);
        Some(format!("Tasks with an invalid file: {names}."))
    }

    /// Returns true if `owner` has lost this claim.
    pub fn has_lost(&self, owner: &Name, claim: ClaimRef) -> bool {
        match self.view.task(claim.task) {
            Some(task) => {
                let is_held = task.status == TaskStatus::InProgress
                    && task.attempt == claim.attempt
                    && task.owner.as_deref().is_some_and(|name| owner.is_same(name));
                // A view may be older than the claim. Then it has an earlier attempt, and does not show that the claim is lost.
                !is_held && task.attempt >= claim.attempt
            }
            None => !self.view.is_invalid(claim.task),
        }
    }

    /// Returns the claims that this worker has on the board for `owner`.
    pub fn claims_of(&self, owner: &Name, worker: &str) -> Vec<ClaimRef> {
        let is_claimed = |task: &&Arc<Task>| {
            task.current_claim().is_some_and(|claim| claim.worker == worker)
                && task.owner.as_deref().is_some_and(|name| owner.is_same(name))
        };
        self.view.tasks.values().filter(is_claimed).map(|task| ClaimRef::of(task)).collect()
    }

    /// Counts the tasks by status.
    pub fn task_counts(&self) -> TaskCounts {
        dependencies::count_tasks(self.view.tasks.values().map(AsRef::as_ref), &*self.view)
    }
}

fn queue_of(view: &BoardView) -> ClaimQueue {
    ClaimQueue::of(view.tasks.values().map(Arc::as_ref), view)
}
