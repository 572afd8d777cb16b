//! Dependencies between tasks: blockers and cycles.
//!
//! Pure: the caller passes the tasks. A blocker is finished only if its file says `completed`, or Brigade deleted it on request.
//! A missing, invalid or failed blocker blocks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::domain::log::event::TaskCounts;
use crate::domain::task::{Task, TaskId, TaskStatus};

/// Finds tasks by number.
pub trait TaskLookup {
    /// Returns the task, unless its file is missing or invalid.
    fn task(&self, id: TaskId) -> Option<&Task>;
    /// Returns true if Brigade deleted it on request and still removes references to it.
    fn was_deleted(&self, _: TaskId) -> bool {
        false
    }
    /// Returns true if the task's file exists but is not a valid task.
    fn is_invalid(&self, _: TaskId) -> bool {
        false
    }

    /// Returns true if `id` blocks no task: it is completed or was deleted.
    fn is_finished(&self, id: TaskId) -> bool {
        match self.task(id) {
            Some(task) => task.status == TaskStatus::Completed,
            None => self.was_deleted(id),
        }
    }
}

impl TaskLookup for BTreeMap<TaskId, Task> {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.get(&id)
    }
}

/// The state of an unfinished blocker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockerState {
    /// It is a task with this status.
    Unfinished(TaskStatus),
    /// It has no file.
    Missing,
    /// Its file is not a valid task.
    Invalid,
}

/// A blocker that is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocker {
    /// Number of the blocker.
    pub id: TaskId,
    /// Its state.
    pub state: BlockerState,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            BlockerState::Unfinished(status) => write!(f, "{} ({status})", self.id),
            BlockerState::Missing => write!(f, "{} (missing: it has no file on the board)", self.id),
            BlockerState::Invalid => write!(f, "{} (its file is invalid)", self.id),
        }
    }
}

/// Returns the unfinished blockers of `task`, in the task's order.
pub fn unfinished_blockers<'a>(task: &'a Task, lookup: &'a dyn TaskLookup) -> impl Iterator<Item = Blocker> + 'a {
    task.blocked_by.iter().filter(|id| !lookup.is_finished(**id)).map(|&id| {
        let state = match lookup.task(id) {
            Some(blocker) => BlockerState::Unfinished(blocker.status),
            None if lookup.is_invalid(id) => BlockerState::Invalid,
            None => BlockerState::Missing,
        };
        Blocker { id, state }
    })
}

/// Returns true if the task is pending and has an unfinished blocker. This is the only definition of `blocked`.
pub fn is_blocked(task: &Task, lookup: &dyn TaskLookup) -> bool {
    task.status == TaskStatus::Pending && unfinished_blockers(task, lookup).next().is_some()
}

/// Counts the tasks by state.
pub fn count_tasks<'a>(tasks: impl IntoIterator<Item = &'a Task>, lookup: &dyn TaskLookup) -> TaskCounts {
    let mut counts = TaskCounts::default();
    for task in tasks {
        match task.status {
            TaskStatus::Completed => counts.completed += 1,
            TaskStatus::Failed => counts.failed += 1,
            // A status of another program is in the hands of that program.
            TaskStatus::InProgress | TaskStatus::Unknown => counts.in_progress += 1,
            TaskStatus::Pending if is_blocked(task, lookup) => counts.blocked += 1,
            TaskStatus::Pending => counts.pending += 1,
        }
    }
    counts
}

/// Returns a cycle that contains `start`, if there is one. Each task in it waits for the next, the last one for the first.
pub fn find_cycle(start: TaskId, blockers_of: impl Fn(TaskId) -> Vec<TaskId>) -> Option<Vec<TaskId>> {
    let mut path = vec![(start, blockers_of(start))];
    let mut visited = HashSet::from([start]);
    while let Some((_, unvisited_blockers)) = path.last_mut() {
        let Some(next) = unvisited_blockers.pop() else {
            path.pop();
            continue;
        };
        if next == start {
            return Some(path.into_iter().map(|(id, _)| id).collect());
        }
        if visited.insert(next) {
            path.push((next, blockers_of(next)));
        }
    }
    None
}

/// Returns one cycle of each group of tasks that wait for each other. Only groups with a task for which `is_included` holds count.
/// Each task in a cycle waits for the next, the last one for the first. Visits each task and each dependency once.
pub fn find_cycles(
    tasks: impl IntoIterator<Item = TaskId>,
    blockers_of: impl Fn(TaskId) -> Vec<TaskId>,
    is_included: impl Fn(TaskId) -> bool,
) -> Vec<Vec<TaskId>> {
    let mut cycles: Vec<Vec<TaskId>> = Components::of(tasks, &blockers_of)
        .into_iter()
        .filter_map(|component| {
            let start = component.iter().copied().filter(|id| is_included(*id)).min()?;
            let members: HashSet<TaskId> = component.into_iter().collect();
            find_cycle(start, |id| blockers_of(id).into_iter().filter(|id| members.contains(id)).collect())
        })
        .collect();
    cycles.sort_unstable();
    cycles
}

/// The strongly connected components of a task graph, by Tarjan's algorithm with a stack instead of recursion.
#[derive(Default)]
struct Components {
    /// Position of each visited task in the order of visits.
    visit_order: HashMap<TaskId, usize>,
    /// Visited tasks that are in no component yet.
    unassigned: Vec<TaskId>,
    complete: Vec<Vec<TaskId>>,
}

/// A task on the current path.
struct PathEntry {
    id: TaskId,
    unvisited_blockers: Vec<TaskId>,
    /// The earliest task in `unassigned` that this one is known to wait for.
    lowest: usize,
}

impl Components {
    fn of(tasks: impl IntoIterator<Item = TaskId>, blockers_of: &impl Fn(TaskId) -> Vec<TaskId>) -> Vec<Vec<TaskId>> {
        let mut components = Self::default();
        for id in tasks {
            if !components.visit_order.contains_key(&id) {
                components.visit(id, blockers_of);
            }
        }
        components.complete
    }

    fn visit(&mut self, start: TaskId, blockers_of: &impl Fn(TaskId) -> Vec<TaskId>) {
        let mut path = vec![self.reach(start, blockers_of)];
        while let Some(entry) = path.last_mut() {
            if let Some(next) = entry.unvisited_blockers.pop() {
                match self.visit_order.get(&next) {
                    None => path.push(self.reach(next, blockers_of)),
                    Some(order) => entry.lowest = entry.lowest.min(*order),
                }
                continue;
            }
            let (id, lowest) = (entry.id, entry.lowest);
            path.pop();
            if let Some(parent) = path.last_mut() {
                parent.lowest = parent.lowest.min(lowest);
            }
            if self.visit_order.get(&id) == Some(&lowest) {
                self.close_component(id);
            }
        }
    }

    fn reach(&mut self, id: TaskId, blockers_of: &impl Fn(TaskId) -> Vec<TaskId>) -> PathEntry {
        let order = self.visit_order.len();
        self.visit_order.insert(id, order);
        self.unassigned.push(id);
        PathEntry { id, unvisited_blockers: blockers_of(id), lowest: order }
    }

    /// Closes the component that starts with `id`. Its tasks get the last position, so that no later task joins it.
    fn close_component(&mut self, id: TaskId) {
        let from = self.unassigned.iter().rposition(|unassigned| *unassigned == id).unwrap_or(0);
        let component = self.unassigned.split_off(from);
        self.visit_order.extend(component.iter().map(|id| (*id, usize::MAX)));
        self.complete.push(component);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Length of a dependency chain from a bug report.
    const COUNT: u64 = 20_000;

    /// Boards with a chain in either direction, a task that waits for all others, and tasks that all wait for one.
    #[test]
    fn find_cycles_takes_linear_time() {
        // The cycle is near the end of each board, so that the search cannot skip a task.
        let chain = |id: u64| if id < COUNT { vec![id + 1] } else { vec![COUNT - 1] };
        let between = |id: u64| {
            if id == 1 {
                vec![2]
            } else if id == 2 {
                vec![1, 3]
            } else {
                chain(id)
            }
        };
        let all = |id: u64| if id < COUNT { vec![COUNT] } else { (1..COUNT).collect() };
        for (blockers, count) in [(&chain as &dyn Fn(u64) -> Vec<u64>, 1), (&between, 2), (&all, 1)] {
            let calls = Cell::new(0_u64);
            let blockers_of = |id: TaskId| {
                calls.set(calls.get() + 1);
                blockers(id.0).into_iter().map(TaskId).collect()
            };
            let found = find_cycles((1..=COUNT).map(TaskId), blockers_of, |_| true);
            assert_eq!(found.len(), count, "{found:?}");
            assert!(calls.get() <= 2 * COUNT, "{} calls", calls.get());
        }
    }

    proptest! {
        #[test]
        fn find_cycles_agrees_with_find_cycle(edges in prop::collection::vec((0u64..8, 0u64..8), 0..14)) {
            let blockers_of =
                |id: TaskId| edges.iter().filter(|edge| edge.0 == id.0).map(|edge| TaskId(edge.1)).collect::<Vec<_>>();
            let found = find_cycles((0..8).map(TaskId), blockers_of, |_| true);
            for cycle in &found {
                for (at, id) in cycle.iter().enumerate() {
                    prop_assert!(blockers_of(*id).contains(&cycle[(at + 1) % cycle.len()]), "{:?}", found);
                }
            }
            for id in (0..8).map(TaskId) {
                let with_it = find_cycles((0..8).map(TaskId), blockers_of, |other| other == id);
                prop_assert_eq!(find_cycle(id, blockers_of).is_some(), !with_it.is_empty());
                prop_assert!(with_it.is_empty() || !found.is_empty());
            }
        }
    }
}
