//! The board in memory: its tasks, who waits for whom, and which could be claimed next, so that a claim costs the same
//! whatever else lies on the board. It reads no files: [`super::scan`] tells it what they say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::domain::graph::TaskLookup;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, Claimant, SpoiledFile};
use crate::stores::rules::BoardLookup;

use super::layout::deleted_name;

/// What a file of the board says.
#[derive(Debug, Clone)]
pub(super) enum Entry {
    /// A task.
    Task(Arc<Task>),
    /// It is no task, for this reason.
    Spoiled(String),
}

/// Best first: the highest priority, then the lowest number.
type Rank = (Reverse<i64>, TaskId);

/// Tasks that the same claimants may claim.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Group {
    kept_for: Option<String>,
    requires: Vec<String>,
}

impl Group {
    fn of(task: &Task) -> Self {
        Self { kept_for: task.owner.clone(), requires: task.requires.clone() }
    }

    fn is_open_to(&self, claimant: &Claimant, sample: &Task) -> bool {
        self.kept_for.as_ref().is_none_or(|owner| *owner == claimant.name) && sample.fits(&claimant.capabilities)
    }
}

/// The board in memory.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: BTreeMap<TaskId, Entry>,
    strays: BTreeSet<String>,
    deleted: BTreeSet<TaskId>,
    /// Who names a task among its blockers.
    dependents: HashMap<TaskId, BTreeSet<TaskId>>,
    /// Pending tasks that wait for no other.
    ready: HashMap<Group, BTreeSet<Rank>>,
    /// Such tasks that back off, by the end of that.
    resting: BTreeSet<(UnixMs, TaskId)>,
    in_progress: BTreeSet<TaskId>,
    spoiled: BTreeSet<TaskId>,
    /// The largest number a task was ever seen to have: a file says so no longer once it is gone.
    largest: u64,
    revision: u64,
    view: Option<Arc<BoardView>>,
}

impl TaskLookup for Index {
    fn task(&self, id: TaskId) -> Option<&Task> {
        match self.entries.get(&id) {
            Some(Entry::Task(task)) => Some(task),
            _ => None,
        }
    }
    fn was_deleted(&self, id: TaskId) -> bool {
        self.deleted.contains(&id)
    }
    fn is_spoiled(&self, id: TaskId) -> bool {
        self.spoiled.contains(&id)
    }
}

impl BoardLookup for Index {
    fn dependents(&self, id: TaskId) -> Vec<TaskId> {
        self.dependents.get(&id).map(|ids| ids.iter().copied().collect()).unwrap_or_default()
    }
    fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_> {
        Box::new(self.entries.values().filter_map(|entry| match entry {
            Entry::Task(task) => Some(task.as_ref()),
            Entry::Spoiled(_) => None,
        }))
    }
}

impl Index {
    /// What the file of `id` says, if there is one.
    pub(super) fn entry(&self, id: TaskId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// All numbers that have a file.
    pub(super) fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.entries.keys().copied()
    }

    /// The largest number a task has or had.
    pub(super) fn largest(&self) -> TaskId {
        TaskId(self.largest)
    }

    /// Numbers of files that are no tasks.
    pub(super) fn spoiled(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.spoiled.iter().copied()
    }

    /// Tasks in progress.
    pub(super) fn in_progress(&self) -> Vec<TaskId> {
        self.in_progress.iter().copied().collect()
    }

    /// Deleted tasks whose references are being pruned.
    pub(super) fn deleted(&self) -> Vec<TaskId> {
        self.deleted.iter().copied().collect()
    }

    /// Names, other than tasks', that are known to be there.
    pub(super) fn other_names(&self) -> Vec<String> {
        self.strays.iter().cloned().chain(self.deleted.iter().map(|id| deleted_name(*id))).collect()
    }

    /// Takes in what the file of `id` says now; `None`: there is none.
    pub(super) fn put(&mut self, id: TaskId, entry: Option<Entry>) {
        let was_finished = self.is_finished(id);
        if let Some(Entry::Task(old)) = self.entries.remove(&id) {
            self.unlink(&old);
        }
        self.spoiled.remove(&id);
        match entry {
            Some(entry @ Entry::Spoiled(_)) => {
                self.spoiled.insert(id);
                self.entries.insert(id, entry);
            }
            Some(Entry::Task(task)) => {
                self.largest = self.largest.max(id.0);
                for blocker in &task.blocked_by {
                    self.dependents.entry(*blocker).or_default().insert(id);
                }
                self.entries.insert(id, Entry::Task(Arc::clone(&task)));
                self.place(&task);
            }
            None => {}
        }
        self.changed(id, was_finished);
    }

    /// Takes in whether `id` is being deleted.
    pub(super) fn put_deleted(&mut self, id: TaskId, is_deleted: bool) {
        let was_finished = self.is_finished(id);
        self.largest = self.largest.max(id.0);
        let is_news = if is_deleted { self.deleted.insert(id) } else { self.deleted.remove(&id) };
        if is_news {
            self.changed(id, was_finished);
        }
    }

    /// Takes in whether there is a file of this name, which is like a task's but nobody's.
    pub(super) fn put_stray(&mut self, name: &str, is_there: bool) {
        let is_news = if is_there { self.strays.insert(name.to_owned()) } else { self.strays.remove(name) };
        if is_news {
            self.revision += 1;
            self.view = None;
        }
    }

    fn changed(&mut self, id: TaskId, was_finished: bool) {
        self.revision += 1;
        self.view = None;
        if self.is_finished(id) != was_finished {
            for dependent in self.dependents(id) {
                if let Some(Entry::Task(task)) = self.entries.get(&dependent) {
                    let task = Arc::clone(task);
                    self.displace(&task);
                    self.place(&task);
                }
            }
        }
    }

    fn unlink(&mut self, task: &Task) {
        self.displace(task);
        for blocker in &task.blocked_by {
            if let Some(dependents) = self.dependents.get_mut(blocker) {
                dependents.remove(&task.id);
                if dependents.is_empty() {
                    self.dependents.remove(blocker);
                }
            }
        }
    }

    /// Puts a task among those in progress, ready or resting, where it belongs to one of them.
    fn place(&mut self, task: &Task) {
        match task.status {
            TaskStatus::InProgress => {
                self.in_progress.insert(task.id);
            }
            TaskStatus::Pending if task.blocked_by.iter().all(|blocker| self.is_finished(*blocker)) => {
                match task.not_before {
                    Some(until) => {
                        self.resting.insert((until, task.id));
                    }
                    None => self.make_ready(task),
                }
            }
            _ => {}
        }
    }

    fn make_ready(&mut self, task: &Task) {
        self.ready.entry(Group::of(task)).or_default().insert((Reverse(task.priority), task.id));
    }

    fn displace(&mut self, task: &Task) {
        match task.status {
            TaskStatus::InProgress => {
                self.in_progress.remove(&task.id);
            }
            TaskStatus::Pending => {
                if let Some(until) = task.not_before {
                    self.resting.remove(&(until, task.id));
                }
                let group = Group::of(task);
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

    /// The best task that `claimant` could claim at `now`, by what is known here, but none of `passed`.
    pub(super) fn best(&mut self, claimant: &Claimant, now: UnixMs, passed: &HashSet<TaskId>) -> Option<TaskId> {
        while let Some(&(until, id)) = self.resting.first().filter(|(until, _)| *until <= now) {
            self.resting.remove(&(until, id));
            if let Some(Entry::Task(task)) = self.entries.get(&id) {
                let task = Arc::clone(task);
                self.make_ready(&task);
            }
        }
        let open = self.ready.iter().filter(|(group, ranks)| {
            let sample = ranks.first().and_then(|(_, id)| self.task(*id));
            sample.is_some_and(|sample| group.is_open_to(claimant, sample))
        });
        open.filter_map(|(_, ranks)| ranks.iter().find(|(_, id)| !passed.contains(id))).min().map(|(_, id)| *id)
    }

    /// The board as others see it, where nothing changed since it was last asked for.
    pub(super) fn view_at_hand(&self) -> Option<Arc<BoardView>> {
        self.view.clone()
    }

    /// The board as others see it.
    pub(super) fn view(&mut self) -> Arc<BoardView> {
        if let Some(view) = &self.view {
            return Arc::clone(view);
        }
        let tasks = self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Task(task) => Some((*id, Arc::clone(task))),
            Entry::Spoiled(_) => None,
        });
        let mut spoiled: Vec<SpoiledFile> = self.spoiled.iter().filter_map(|id| self.spoiled_file(*id)).collect();
        spoiled.extend(
            self.strays.iter().map(|name| SpoiledFile {
                file: name.clone(),
                reason: "its name is not task_<number>.json".to_owned(),
            }),
        );
        let view = Arc::new(BoardView {
            revision: self.revision,
            tasks: tasks.collect(),
            spoiled,
            deleted: self.deleted.clone(),
        });
        self.view = Some(Arc::clone(&view));
        view
    }

    fn spoiled_file(&self, id: TaskId) -> Option<SpoiledFile> {
        match self.entries.get(&id) {
            Some(Entry::Spoiled(reason)) => Some(SpoiledFile { file: id.file_name(), reason: reason.clone() }),
            _ => None,
        }
    }
}
