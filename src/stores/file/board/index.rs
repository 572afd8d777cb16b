//! The board in memory: tasks, dependents and claimable tasks, so that the cost of a claim does not grow with the board. Reads no
//! files: [`super::loader`] updates it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::domain::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, Claimant, InvalidTaskFile};
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

/// The order of claims: the highest priority, then the lowest number.
type Rank = (Reverse<i64>, TaskId);

/// Tasks that the same claimants may claim.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ClaimGroup {
    reserved_for: Option<String>,
    requires: Vec<String>,
}

impl ClaimGroup {
    fn of(task: &Task) -> Self {
        Self { reserved_for: task.owner.clone(), requires: task.requires.clone() }
    }

    fn is_open_to(&self, claimant: &Claimant, sample: &Task) -> bool {
        self.reserved_for.as_ref().is_none_or(|owner| *owner == claimant.name)
            && sample.is_claimable_with(&claimant.capabilities)
    }
}

/// The board in memory.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: BTreeMap<TaskId, IndexEntry>,
    strays: BTreeSet<String>,
    deleted: BTreeSet<TaskId>,
    /// The dependents of each task.
    dependents: HashMap<TaskId, BTreeSet<TaskId>>,
    /// Pending tasks without unfinished blockers.
    ready: HashMap<ClaimGroup, BTreeSet<Rank>>,
    /// Pending tasks without unfinished blockers that back off, by the end of the back-off.
    backing_off: BTreeSet<(UnixMs, TaskId)>,
    in_progress: BTreeSet<TaskId>,
    invalid_ids: BTreeSet<TaskId>,
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

    pub(super) fn in_progress(&self) -> Vec<TaskId> {
        self.in_progress.iter().copied().collect()
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
                    self.dequeue(&task);
                    self.enqueue(&task);
                }
            }
        }
    }

    fn unlink(&mut self, task: &Task) {
        self.dequeue(task);
        for blocker in &task.blocked_by {
            if let Some(dependents) = self.dependents.get_mut(blocker) {
                dependents.remove(&task.id);
                if dependents.is_empty() {
                    self.dependents.remove(blocker);
                }
            }
        }
    }

    /// Adds a task to those in progress, ready or backing off, if it is one of these.
    fn enqueue(&mut self, task: &Task) {
        match task.status {
            TaskStatus::InProgress => {
                self.in_progress.insert(task.id);
            }
            TaskStatus::Pending if task.blocked_by.iter().all(|blocker| self.is_finished(*blocker)) => {
                match task.not_before {
                    Some(until) => {
                        self.backing_off.insert((until, task.id));
                    }
                    None => self.make_ready(task),
                }
            }
            _ => {}
        }
    }

    fn make_ready(&mut self, task: &Task) {
        self.ready.entry(ClaimGroup::of(task)).or_default().insert((Reverse(task.priority), task.id));
    }

    fn dequeue(&mut self, task: &Task) {
        match task.status {
            TaskStatus::InProgress => {
                self.in_progress.remove(&task.id);
            }
            TaskStatus::Pending => {
                if let Some(until) = task.not_before {
                    self.backing_off.remove(&(until, task.id));
                }
                let group = ClaimGroup::of(task);
                if let Some(ranks) = self.ready.get_mut(&group) {
                    ranks.remove(&(Reverse(task.priority), task.id));
                    if ranks.is_empty() {
                        self.ready.remove(&group);
                    }
                }
            }
            TaskStatus::Completed | TaskStatus::Failed => {}
        }
    }

    /// The best task that `claimant` can claim at `now` according to the index, except `skipped`.
    pub(super) fn best_claimable(
        &mut self,
        claimant: &Claimant,
        now: UnixMs,
        skipped: &HashSet<TaskId>,
    ) -> Option<TaskId> {
        while let Some(&(until, id)) = self.backing_off.first().filter(|(until, _)| *until <= now) {
            self.backing_off.remove(&(until, id));
            if let Some(IndexEntry::Task(task)) = self.entries.get(&id) {
                let task = Arc::clone(task);
                self.make_ready(&task);
            }
        }
        let open = self.ready.iter().filter(|(group, ranks)| {
            let sample = ranks.first().and_then(|(_, id)| self.task(*id));
            sample.is_some_and(|sample| group.is_open_to(claimant, sample))
        });
        open.filter_map(|(_, ranks)| ranks.iter().find(|(_, id)| !skipped.contains(id))).min().map(|(_, id)| *id)
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
        let mut invalid_files: Vec<InvalidTaskFile> =
            self.invalid_ids.iter().filter_map(|id| self.invalid_file(*id)).collect();
        invalid_files.extend(self.strays.iter().map(|name| InvalidTaskFile {
            file: name.clone(),
            reason: "its name is not task_<number>.json".to_owned(),
        }));
        let view = Arc::new(BoardView {
            revision: self.revision,
            tasks: tasks.collect(),
            invalid_files,
            deleted: self.deleted.clone(),
        });
        self.view = Some(Arc::clone(&view));
        view
    }

    fn invalid_file(&self, id: TaskId) -> Option<InvalidTaskFile> {
        match self.entries.get(&id) {
            Some(IndexEntry::Invalid(reason)) => Some(InvalidTaskFile { file: id.file_name(), reason: reason.clone() }),
            _ => None,
        }
    }
}
