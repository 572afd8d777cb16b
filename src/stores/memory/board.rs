//! The task board in memory. [`crate::stores::board_engine`] makes all decisions, as for every board.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::domain::task::claim_queue::ClaimQueue;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::transition::{self, Action, Actor, Change};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;
use crate::ports::{
    Board, BoardView, Claimant, Clock, QuarantinedTask, ReclaimRequest, Reclaimed, StoreChange, StoreError, StoreResult,
};
use crate::stores::board_engine::{self, BoardLookup, CreateBatch, DependentChanges, LinkChange, TASK_BYTES_MAX};

/// The task board in memory.
pub struct MemoryBoard {
    tasks: Mutex<Tasks>,
    clock: Arc<dyn Clock>,
    changes: broadcast::Sender<StoreChange>,
}

#[derive(Default, Clone)]
struct Tasks {
    tasks: BTreeMap<TaskId, Arc<Task>>,
    largest: u64,
    revision: u64,
    deleted: BTreeSet<TaskId>,
}

impl MemoryBoard {
    /// An empty board that announces each of its changes to `changes`.
    pub fn new(clock: Arc<dyn Clock>, changes: broadcast::Sender<StoreChange>) -> Self {
        Self { tasks: Mutex::default(), clock, changes }
    }

    /// Runs `act` on the tasks. If it fails, the tasks stay unchanged.
    fn critical<R>(&self, act: impl FnOnce(&mut Tasks, UnixMs) -> StoreResult<R>) -> StoreResult<R> {
        let mut tasks = self.tasks.lock();
        let mut next = tasks.clone();
        let outcome = act(&mut next, self.clock.now())?;
        if next.revision != tasks.revision {
            *tasks = next;
            // There may be no listener.
            let _ = self.changes.send(StoreChange::Board);
        }
        Ok(outcome)
    }
}

impl TaskLookup for Tasks {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).map(Arc::as_ref)
    }
    fn was_deleted(&self, _: TaskId) -> bool {
        false
    }
    fn is_invalid(&self, _: TaskId) -> bool {
        false
    }
}

impl BoardLookup for Tasks {
    fn dependents(&self, id: TaskId) -> Vec<TaskId> {
        self.tasks.values().filter(|task| task.blocked_by.contains(&id)).map(|task| task.id).collect()
    }
    fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_> {
        Box::new(self.tasks.values().map(Arc::as_ref))
    }
}

impl Tasks {
    fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.task(id).cloned().ok_or(StoreError::NoTask(id.into()))
    }

    fn put(&mut self, mut task: Task) -> StoreResult<()> {
        task.document = task.to_document();
        let bytes = task.document.to_pretty().len();
        if bytes > TASK_BYTES_MAX {
            return Err(StoreError::TooLarge { what: format!("task {}", task.id), bytes, bytes_max: TASK_BYTES_MAX });
        }
        self.tasks.insert(task.id, Arc::new(task));
        self.revision += 1;
        Ok(())
    }

    fn write_dependents(&mut self, changes: &DependentChanges, now: UnixMs) -> StoreResult<()> {
        for (id, links) in changes {
            let Ok(mut task) = self.get(*id) else {
                continue;
            };
            if LinkChange::apply_all(links, &mut task) {
                task.updated_at = Some(now);
                self.put(task)?;
            }
        }
        Ok(())
    }

    fn claim(&mut self, id: TaskId, claimant: &Claimant, now: UnixMs) -> StoreResult<Task> {
        let next = board_engine::claim(self, &self.get(id)?, claimant, now)?;
        self.put(next)?;
        self.get(id)
    }
}

#[async_trait]
impl Board for MemoryBoard {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        self.critical(|board, now| {
            let planned =
                CreateBatch::new(board, tasks, skip_known_sources)?.plan(board, by, TaskId(board.largest + 1), now)?;
            for task in planned.created {
                board.largest = task.id.0;
                board.put(task)?;
            }
            board.write_dependents(&planned.after, now)?;
            planned.ids.iter().map(|id| board.get(*id)).collect()
        })
    }

    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        let board = self.tasks.lock();
        Ok(Arc::new(BoardView { revision: board.revision, tasks: board.tasks.clone(), ..BoardView::default() }))
    }

    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.tasks.lock().get(id)
    }

    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        self.critical(|board, now| {
            let mut queue = ClaimQueue::of(board.tasks(), board);
            let next = queue.next_for(&claimant.as_candidate(), now, &HashSet::new());
            next.map(|id| board.claim(id, claimant, now)).transpose()
        })
    }

    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.critical(|board, now| board.claim(id, claimant, now))
    }

    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.critical(|board, now| {
            let planned = board_engine::change(board, &board.get(id)?, &change, by, now)?;
            board.write_dependents(&planned.before, now)?;
            board.put(planned.task)?;
            board.write_dependents(&planned.after, now)?;
            board.get(id)
        })
    }

    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.critical(|board, now| {
            let task = board.get(id)?;
            transition::permit(&task, Action::Delete, by)?;
            let changes = board_engine::reference_removals(board, id);
            board.tasks.remove(&id);
            board.deleted.insert(id);
            board.revision += 1;
            board.write_dependents(&changes, now)?;
            Ok(task)
        })
    }

    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        let board = self.tasks.lock();
        Ok(ids.iter().copied().filter(|id| board.deleted.contains(id)).collect())
    }

    async fn quarantined_tasks(&self) -> StoreResult<BTreeMap<TaskId, QuarantinedTask>> {
        Ok(BTreeMap::new())
    }

    async fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        self.critical(|board, now| {
            let mut reclaimed = Vec::new();
            for task in board.tasks.values().cloned().collect::<Vec<_>>() {
                let Some(reason) = board_engine::claim_loss_reason(&task, request, now) else {
                    continue;
                };
                board.put(transition::reclaim(&task, &reason, request.is_failure, now))?;
                let owner = task.owner.clone().unwrap_or_default();
                reclaimed.push(Reclaimed { task: board.get(task.id)?, owner, reason });
            }
            Ok(reclaimed)
        })
    }
}
