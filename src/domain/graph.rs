//! What stands in a task's way: the order of the board, and the reasons `brigade why` gives.
//!
//! Pure: it is handed the tasks. A blocker is finished only if its file says `completed`, or Brigade deleted it on request;
//! a missing, spoiled or failed blocker blocks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::event::Tally;
use super::task::{Task, TaskId, TaskStatus};
use super::time::UnixMs;

/// Finds tasks by number.
pub trait TaskLookup {
    /// The task, unless its file is missing or spoiled.
    fn task(&self, id: TaskId) -> Option<&Task>;
    /// Whether Brigade deleted it on request and is still pruning references to it.
    fn was_deleted(&self, id: TaskId) -> bool;
    /// Whether a file of that number is there that is not a task.
    fn is_spoiled(&self, id: TaskId) -> bool;
}

impl TaskLookup for BTreeMap<TaskId, Task> {
    fn task(&self, id: TaskId) -> Option<&Task> {
        self.get(&id)
    }
    fn was_deleted(&self, _: TaskId) -> bool {
        false
    }
    fn is_spoiled(&self, _: TaskId) -> bool {
        false
    }
}

/// How an unfinished blocker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockerState {
    /// Not done yet.
    Unfinished(TaskStatus),
    /// No such file.
    Missing,
    /// A file that is no task.
    Spoiled,
}

/// One blocker that is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocker {
    /// Its number.
    pub id: TaskId,
    /// How it stands.
    pub state: BlockerState,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            BlockerState::Unfinished(status) => write!(f, "{} ({status})", self.id),
            BlockerState::Missing => write!(f, "{} (missing: no such file on the board)", self.id),
            BlockerState::Spoiled => write!(f, "{} (its file is spoiled)", self.id),
        }
    }
}

/// The blockers of `task` that are not finished, in its order.
pub fn unfinished_blockers<'a>(task: &'a Task, lookup: &'a dyn TaskLookup) -> impl Iterator<Item = Blocker> + 'a {
    task.blocked_by.iter().filter_map(|&id| {
        let state = match lookup.task(id) {
            Some(blocker) if blocker.status == TaskStatus::Completed => return None,
            Some(blocker) => BlockerState::Unfinished(blocker.status),
            None if lookup.was_deleted(id) => return None,
            None if lookup.is_spoiled(id) => BlockerState::Spoiled,
            None => BlockerState::Missing,
        };
        Some(Blocker { id, state })
    })
}

/// Whether a task waits for others: pending, with a blocker that is not finished. The one meaning of `blocked`.
#[must_use]
pub fn is_blocked(task: &Task, lookup: &dyn TaskLookup) -> bool {
    task.status == TaskStatus::Pending && unfinished_blockers(task, lookup).next().is_some()
}

/// How these tasks stand, counted.
#[must_use]
pub fn tally<'a>(tasks: impl IntoIterator<Item = &'a Task>, lookup: &dyn TaskLookup) -> Tally {
    let mut tally = Tally::default();
    for task in tasks {
        match task.status {
            TaskStatus::Completed => tally.completed += 1,
            TaskStatus::Failed => tally.failed += 1,
            TaskStatus::InProgress => tally.in_progress += 1,
            TaskStatus::Pending if is_blocked(task, lookup) => tally.blocked += 1,
            TaskStatus::Pending => tally.pending += 1,
        }
    }
    tally
}

/// The blockers a task waits for in the end: those that wait for nothing else themselves. In the order they are met.
#[must_use]
pub fn last_blockers(task: &Task, lookup: &dyn TaskLookup) -> Vec<Blocker> {
    let mut seen = HashSet::from([task.id]);
    let mut open: Vec<Blocker> = unfinished_blockers(task, lookup).collect();
    open.reverse();
    let mut last = Vec::new();
    while let Some(blocker) = open.pop() {
        if !seen.insert(blocker.id) {
            continue;
        }
        let waits = lookup.task(blocker.id).filter(|task| is_blocked(task, lookup));
        let before = open.len();
        open.extend(waits.into_iter().flat_map(|task| unfinished_blockers(task, lookup)));
        open[before..].reverse();
        if waits.is_none() {
            last.push(blocker);
        }
    }
    last
}

/// Why a task is not claimable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It is completed or failed.
    Over(TaskStatus),
    /// Somebody works on it.
    Held {
        /// Who.
        owner: String,
        /// Whether that program knows nothing of claims.
        foreign: bool,
    },
    /// It is kept for somebody else.
    KeptFor(String),
    /// It backs off after a failure.
    BacksOff(UnixMs),
    /// Blockers are unfinished.
    Blocked(Vec<Blocker>),
    /// The claimant has none of the roles or capabilities.
    Unfit(Vec<String>),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over(status) => write!(f, "it is {status}"),
            Self::Held { owner, foreign: true } => {
                write!(f, "it is in progress for {owner} without a claim (another program's)")
            }
            Self::Held { owner, .. } => write!(f, "it is held by {owner}"),
            Self::KeptFor(owner) => write!(f, "it is kept for {owner}"),
            Self::BacksOff(until) => write!(f, "it backs off after a failure until {}", until.to_iso()),
            Self::Blocked(blockers) => {
                f.write_str("it is blocked by ")?;
                for (index, blocker) in blockers.iter().enumerate() {
                    write!(f, "{}{blocker}", if index > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Self::Unfit(requires) => write!(f, "it requires {}", requires.join(" or ")),
        }
    }
}

/// What first keeps somebody called `name`, with `capabilities`, from claiming `task` at `now`; `None`: nothing does.
#[must_use]
pub fn obstacle(
    task: &Task,
    name: &str,
    capabilities: &[String],
    lookup: &dyn TaskLookup,
    now: UnixMs,
) -> Option<Obstacle> {
    if let Some(obstacle) = own_obstacle(task, now) {
        return Some(obstacle);
    }
    if let Some(owner) = &task.owner
        && owner != name
    {
        return Some(Obstacle::KeptFor(owner.clone()));
    }
    let blockers: Vec<Blocker> = unfinished_blockers(task, lookup).collect();
    if !blockers.is_empty() {
        return Some(Obstacle::Blocked(blockers));
    }
    (!task.fits(capabilities)).then(|| Obstacle::Unfit(task.requires.clone()))
}

/// What in the task itself keeps everybody from claiming it.
fn own_obstacle(task: &Task, now: UnixMs) -> Option<Obstacle> {
    match task.status {
        TaskStatus::Completed | TaskStatus::Failed => return Some(Obstacle::Over(task.status)),
        TaskStatus::InProgress => {
            let owner = task.owner.clone().unwrap_or_else(|| "nobody".to_owned());
            return Some(Obstacle::Held { owner, foreign: task.claim.is_none() });
        }
        TaskStatus::Pending => {}
    }
    task.not_before.filter(|until| *until > now).map(Obstacle::BacksOff)
}

/// A cycle that contains `start`, if `blockers_of` has one: the tasks in order, each waiting for the next, the last for the first.
pub fn find_cycle(start: TaskId, blockers_of: impl Fn(TaskId) -> Vec<TaskId>) -> Option<Vec<TaskId>> {
    let mut path = vec![(start, blockers_of(start))];
    let mut seen = HashSet::from([start]);
    while let Some((_, rest)) = path.last_mut() {
        let Some(next) = rest.pop() else {
            path.pop();
            continue;
        };
        if next == start {
            return Some(path.into_iter().map(|(id, _)| id).collect());
        }
        if seen.insert(next) {
            path.push((next, blockers_of(next)));
        }
    }
    None
}

/// Every task that waits, over any number of steps, for itself; each cycle once, from its lowest number.
#[must_use]
pub fn all_cycles(tasks: &BTreeMap<TaskId, &Task>) -> Vec<Vec<TaskId>> {
    let blockers: HashMap<TaskId, Vec<TaskId>> = tasks
        .iter()
        .map(|(id, task)| {
            (
                *id,
                task.blocked_by
                    .iter()
                    .copied()
                    .filter(|blocker| tasks.get(blocker).is_some_and(|task| task.status != TaskStatus::Completed))
                    .collect(),
            )
        })
        .collect();
    // Tasks that can be taken away because all they wait for was taken away first wait for no cycle.
    let mut waiting: HashMap<TaskId, usize> = blockers.iter().map(|(id, list)| (*id, list.len())).collect();
    let mut dependents: HashMap<TaskId, Vec<TaskId>> = HashMap::new();
    for (id, list) in &blockers {
        for blocker in list {
            dependents.entry(*blocker).or_default().push(*id);
        }
    }
    let mut free: Vec<TaskId> = waiting.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
    while let Some(id) = free.pop() {
        waiting.remove(&id);
        for dependent in dependents.get(&id).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(dependent) {
                *count -= 1;
                if *count == 0 {
                    free.push(*dependent);
                }
            }
        }
    }
    let mut left: Vec<TaskId> = waiting.into_keys().collect();
    left.sort_unstable();
    let mut named: HashSet<TaskId> = HashSet::new();
    let mut cycles = Vec::new();
    for id in left {
        if !named.contains(&id)
            && let Some(cycle) = find_cycle(id, |task| blockers.get(&task).cloned().unwrap_or_default())
        {
            named.extend(&cycle);
            cycles.push(cycle);
        }
    }
    cycles
}
