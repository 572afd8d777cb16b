//! A board for tests that counts its lookups.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::dependencies::TaskLookup;
use super::task::{Task, TaskId};

/// A board that counts its lookups.
pub(crate) struct CountingBoard {
    pub tasks: BTreeMap<TaskId, Task>,
    pub lookups: Cell<u64>,
}

impl CountingBoard {
    /// Creates a board with these tasks, each with its blockers.
    pub fn new(blockers: impl IntoIterator<Item = (u64, Vec<u64>)>) -> Self {
        let task = |(id, blockers): (u64, Vec<u64>)| {
            let mut task = Task::new(TaskId(id), "t");
            task.blocked_by = blockers.into_iter().map(TaskId).collect();
            (task.id, task)
        };
        Self { tasks: blockers.into_iter().map(task).collect(), lookups: Cell::new(0) }
    }

    /// Creates a board of `count` tasks, where each task except the first waits for the previous one.
    pub fn chain(count: u64) -> Self {
        Self::new((1..=count).map(|id| (id, if id > 1 { vec![id - 1] } else { Vec::new() })))
    }
}

impl TaskLookup for CountingBoard {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.lookups.set(self.lookups.get() + 1);
        self.tasks.get(&id)
    }
}
