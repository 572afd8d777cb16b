//! The task board in memory. It decides nothing itself: [`crate::stores::rules`] does, as for every board.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::domain::change::{self, Action, Actor, Change};
use crate::domain::graph::TaskLookup;
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;
use crate::ports::{Board, BoardView, Claimant, Clock, LostClaims, Reclaimed, StoreChange, StoreError, StoreResult};
use crate::stores::rules::{self, Batch, BoardLookup, Mirror, Ripples, TASK_BYTES_MAX};

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
    /// An empty board that tells `changes` of each of its changes.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, changes: broadcast::Sender<StoreChange>) -> Self {
        Self { tasks: Mutex::default(), clock, changes }
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` on the tasks; they stay as they were when it fails.
    fn critical<R>(&self, act: impl FnOnce(&mut Tasks, UnixMs) -> StoreResult<R>) -> StoreResult<R> {
        let mut tasks = self.lock();
        let mut next = tasks.clone();
        let outcome = act(&mut next, self.clock.now())?;
        if next.revision != tasks.revision {
            *tasks = next;
            // Nobody may be listening.
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
    fn is_spoiled(&self, _: TaskId) -> bool {
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
        self.task(id).cloned().ok_or(StoreError::NoTask(id))
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

    fn spread(&mut self, ripples: &Ripples, now: UnixMs) -> StoreResult<()> {
        for (id, mirrors) in ripples {
            let Ok(mut task) = self.get(*id) else {
                continue;
            };
            if Mirror::apply_all(mirrors, &mut task) {
                task.updated_at = Some(now);
                self.put(task)?;
            }
        }
        Ok(())
    }

    fn claim(&mut self, id: TaskId, claimant: &Claimant, now: UnixMs) -> StoreResult<Task> {
        let next = rules::claim(self, &self.get(id)?, claimant, now)?;
        self.put(next)?;
        self.get(id)
    }

    /// The best claimable task.
    fn best(&self, claimant: &Claimant, now: UnixMs) -> Option<TaskId> {
        let mut ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        ids.sort_by_key(|id| std::cmp::Reverse(self.tasks[id].priority));
        ids.into_iter().find(|id| rules::claim(self, &self.tasks[id], claimant, now).is_ok())
    }
}

#[async_trait]
impl Board for MemoryBoard {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        self.critical(|board, now| {
            let planned =
                Batch::new(board, tasks, skip_known_sources)?.plan(board, by, TaskId(board.largest + 1), now)?;
            for task in planned.created {
                board.largest = task.id.0;
                board.put(task)?;
            }
            board.spread(&planned.after, now)?;
            planned.ids.iter().map(|id| board.get(*id)).collect()
        })
    }

    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        let board = self.lock();
        Ok(Arc::new(BoardView { revision: board.revision, tasks: board.tasks.clone(), ..BoardView::default() }))
    }

    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.lock().get(id)
    }

    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        self.critical(|board, now| match board.best(claimant, now) {
            Some(id) => board.claim(id, claimant, now).map(Some),
            None => Ok(None),
        })
    }

    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.critical(|board, now| board.claim(id, claimant, now))
    }

    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.critical(|board, now| {
            let planned = rules::change(board, &board.get(id)?, &change, by, now)?;
            board.spread(&planned.before, now)?;
            board.put(planned.task)?;
            board.spread(&planned.after, now)?;
            board.get(id)
        })
    }

    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.critical(|board, now| {
            let task = board.get(id)?;
            change::permit(&task, Action::Delete, by)?;
            let ripples = rules::references(board, id);
            board.tasks.remove(&id);
            board.deleted.insert(id);
            board.revision += 1;
            board.spread(&ripples, now)?;
            Ok(task)
        })
    }

    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        let board = self.lock();
        Ok(ids.iter().copied().filter(|id| board.deleted.contains(id)).collect())
    }

    async fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        self.critical(|board, now| {
            let mut reclaimed = Vec::new();
            for task in board.tasks.values().cloned().collect::<Vec<_>>() {
                let Some(reason) = rules::lost(&task, lost, now) else {
                    continue;
                };
                board.put(change::reclaim(&task, &reason, lost.counts, now))?;
                let owner = task.owner.clone().unwrap_or_default();
                reclaimed.push(Reclaimed { task: board.get(task.id)?, owner, reason });
            }
            Ok(reclaimed)
        })
    }
}
