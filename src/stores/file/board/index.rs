//! The board in memory: tasks, dependents and the claim queue. Reads no files: [`super::folder_scan`] updates it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::domain::task::claim_queue::ClaimQueue;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId};
use crate::ports::{BoardView, InvalidEntry};
use crate::stores::board_engine::BoardLookup;

use super::paths::deleted_name;

/// The content of a task file.
#[derive(Debug, Clone)]
pub(super) enum IndexEntry {
    /// A task.
    Task(Arc<Task>),
    /// The file is invalid, for this reason.
    Invalid(String),
}

/// The board in memory.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: BTreeMap<TaskId, IndexEntry>,
    strays: BTreeSet<String>,
    deleted: BTreeSet<TaskId>,
    /// The dependents of each task.
    dependents: HashMap<TaskId, BTreeSet<TaskId>>,
    queue: ClaimQueue,
    invalid_ids: BTreeSet<TaskId>,
    /// The invalid files that the last view shows.
    shown_invalid: BTreeSet<TaskId>,
    /// The largest number that any task had, including tasks whose file is gone.
    largest: u64,
    revision: u64,
    view: Option<Arc<BoardView>>,
}

impl TaskLookup for Index {
    fn task(&self, id: TaskId) -> Option<&Task> {
        match self.entries.get(&id) {
            Some(IndexEntry::Task(task)) => Some(task),
            _ => None,
        }
    }
    fn was_deleted(&self, id: TaskId) -> bool {
        self.deleted.contains(&id)
    }
    fn is_invalid(&self, id: TaskId) -> bool {
        self.invalid_ids.contains(&id)
    }
}

impl BoardLookup for Index {
    fn dependents(&self, id: TaskId) -> Vec<TaskId> {
        self.dependents.get(&id).map(|ids| ids.iter().copied().collect()).unwrap_or_default()
    }
    fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_> {
        Box::new(self.entries.values().filter_map(|entry| match entry {
            IndexEntry::Task(task) => Some(task.as_ref()),
            IndexEntry::Invalid(_) => None,
        }))
    }
}

impl Index {
    /// The content of the file of `id`, if there is one.
    pub(super) fn entry(&self, id: TaskId) -> Option<&IndexEntry> {
        self.entries.get(&id)
    }

    /// All numbers that have a file.
    pub(super) fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.entries.keys().copied()
    }

    pub(super) fn largest(&self) -> TaskId {
        TaskId(self.largest)
    }

    /// The numbers of invalid task files.
    pub(super) fn invalid(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.invalid_ids.iter().copied()
    }

    /// Returns true if the last view shows the file of `id` as invalid.
    pub(super) fn was_shown_invalid(&self, id: TaskId) -> bool {
        self.shown_invalid.contains(&id)
    }

    /// The claimable and the claimed tasks.
    pub(super) fn queue(&mut self) -> &mut ClaimQueue {
        &mut self.queue
    }

    /// Deleted tasks that other tasks may still name.
    pub(super) fn deleted(&self) -> Vec<TaskId> {
        self.deleted.iter().copied().collect()
    }

    /// The names of known files that are not task files.
    pub(super) fn other_names(&self) -> Vec<String> {
        self.strays.iter().cloned().chain(self.deleted.iter().map(|id| deleted_name(*id))).collect()
    }

    /// Updates the content of the file of `id`; `None` removes it.
    pub(super) fn put(&mut self, id: TaskId, entry: Option<IndexEntry>) {
        let was_finished = self.is_finished(id);
        if let Some(IndexEntry::Task(old)) = self.entries.remove(&id) {
            self.unlink(&old);
        }
        self.invalid_ids.remove(&id);
        match entry {
            Some(entry @ IndexEntry::Invalid(_)) => {
                self.invalid_ids.insert(id);
                self.entries.insert(id, entry);
            }
            Some(IndexEntry::Task(task)) => {
                self.largest = self.largest.max(id.0);
                for blocker in &task.blocked_by {
                    self.dependents.entry(*blocker).or_default().insert(id);
                }
                self.entries.insert(id, IndexEntry::Task(Arc::clone(&task)));
                self.enqueue(&task);
            }
            None => {}
        }
        self.record_change(id, was_finished);
    }

    /// Marks `id` as being deleted, or removes the mark.
    pub(super) fn put_deleted(&mut self, id: TaskId, is_deleted: bool) {
        let was_finished = self.is_finished(id);
        self.largest = self.largest.max(id.0);
        let is_change = if is_deleted { self.deleted.insert(id) } else { self.deleted.remove(&id) };
        if is_change {
            self.record_change(id, was_finished);
        }
    }

    /// Adds or removes a stray file name: it resembles a task file's but has no valid number.
    pub(super) fn put_stray(&mut self, name: &str, exists: bool) {
        let is_change = if exists { self.strays.insert(name.to_owned()) } else { self.strays.remove(name) };
        if is_change {
            self.revision += 1;
            self.view = None;
        }
    }

    fn record_change(&mut self, id: TaskId, was_finished: bool) {
        self.revision += 1;
        self.view = None;
        if self.is_finished(id) != was_finished {
            for dependent in self.dependents(id) {
                if let Some(IndexEntry::Task(task)) = self.entries.get(&dependent) {
                    let task = Arc::clone(task);
                    self.queue.remove(&task);
                    self.enqueue(&task);
                }
            }
        }
    }

    fn unlink(&mut self, task: &Task) {
        self.queue.remove(task);
        for blocker in &task.blocked_by {
            if let Some(dependents) = self.dependents.get_mut(blocker) {
                dependents.remove(&task.id);
                if dependents.is_empty() {
                    self.dependents.remove(blocker);
                }
            }
        }
    }

    /// Adds a task to the queue. The queue is taken out meanwhile, because it asks the index for blockers.
    fn enqueue(&mut self, task: &Task) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.add(task, self);
        self.queue = queue;
    }

    /// The view of the board, if nothing changed since the last one.
    pub(super) fn cached_view(&self) -> Option<Arc<BoardView>> {
        self.view.clone()
    }

    /// The view of the board.
    pub(super) fn view(&mut self) -> Arc<BoardView> {
        if let Some(view) = &self.view {
            return Arc::clone(view);
        }
        let tasks = self.entries.iter().filter_map(|(id, entry)| match entry {
            IndexEntry::Task(task) => Some((*id, Arc::clone(task))),
            IndexEntry::Invalid(_) => None,
        });
        let mut invalid: Vec<InvalidEntry> = self.invalid_ids.iter().filter_map(|id| self.invalid_entry(*id)).collect();
        invalid.extend(self.strays.iter().map(|name| InvalidEntry {
            id: None,
            name: name.clone(),
            reason: "its name is not task_<number>.json".to_owned(),
        }));
        let view = Arc::new(BoardView {
            revision: self.revision,
            tasks: tasks.collect(),
            invalid,
            deleted: self.deleted.clone(),
        });
        self.view = Some(Arc::clone(&view));
        self.shown_invalid.clone_from(&self.invalid_ids);
        view
    }

    fn invalid_entry(&self, id: TaskId) -> Option<InvalidEntry> {
        match self.entries.get(&id) {
            Some(IndexEntry::Invalid(reason)) => {
                Some(InvalidEntry { id: Some(id), name: id.file_name(), reason: reason.clone() })
            }
            _ => None,
        }
    }
}
