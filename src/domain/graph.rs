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

/// The unfinished blockers at the end of the dependency chains of tasks: those that wait for no other task themselves.
///
/// Remembers every task it has visited, so that asking for all tasks of a board visits each task and each dependency once.
pub struct RootBlockers<'a> {
    lookup: &'a dyn TaskLookup,
    /// The roots of each visited task, in the order of its dependencies; `None` for a task that waits for no other.
    known: HashMap<TaskId, Option<Vec<Blocker>>>,
}

impl<'a> RootBlockers<'a> {
    /// The most roots that are returned for one task.
    pub const COUNT_MAX: usize = 5;

    /// The roots of the tasks that `lookup` finds.
    #[must_use]
    pub fn new(lookup: &'a dyn TaskLookup) -> Self {
        Self { lookup, known: HashMap::new() }
    }

    /// The first [`Self::COUNT_MAX`] roots of the task `id`. Dependencies that close a cycle are left out.
    pub fn of(&mut self, id: TaskId) -> &[Blocker] {
        let mut entered = HashSet::new();
        // A stack instead of recursion: chains can be as long as the board.
        let mut open = vec![id];
        while let Some(&id) = open.last() {
            if self.known.contains_key(&id) {
                open.pop();
            } else if entered.insert(id) {
                open.extend(self.blockers(id).map(|blocker| blocker.id).filter(|id| !entered.contains(id)));
            } else {
                let roots = self.roots(id);
                self.known.insert(id, roots);
                open.pop();
            }
        }
        self.known.get(&id).and_then(Option::as_deref).unwrap_or_default()
    }

    /// The unfinished blockers of `id`, if it is a pending task.
    fn blockers(&self, id: TaskId) -> impl Iterator<Item = Blocker> + use<'a> {
        let lookup = self.lookup;
        let task = lookup.task(id).filter(|task| task.status == TaskStatus::Pending);
        task.into_iter().flat_map(move |task| unfinished_blockers(task, lookup))
    }

    fn roots(&self, id: TaskId) -> Option<Vec<Blocker>> {
        let mut blockers = self.blockers(id).peekable();
        blockers.peek()?;
        let mut roots = Vec::new();
        for blocker in blockers {
            let of_blocker = match self.known.get(&blocker.id) {
                Some(Some(roots)) => roots.as_slice(),
                Some(None) => std::slice::from_ref(&blocker),
                // It closes a cycle.
                None => &[],
            };
            for root in of_blocker {
                if roots.len() < Self::COUNT_MAX && !roots.contains(root) {
                    roots.push(*root);
                }
            }
        }
        Some(roots)
    }
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

/// One cycle of each group of tasks that wait for each other, and that contains one of the tasks for which `is_wanted`
/// holds: the tasks in order, each waiting for the next, the last for the first. Visits each task and each dependency once.
pub fn find_cycles(
    tasks: impl IntoIterator<Item = TaskId>,
    blockers_of: impl Fn(TaskId) -> Vec<TaskId>,
    is_wanted: impl Fn(TaskId) -> bool,
) -> Vec<Vec<TaskId>> {
    let mut cycles: Vec<Vec<TaskId>> = Components::of(tasks, &blockers_of)
        .into_iter()
        .filter_map(|component| {
            let start = component.iter().copied().filter(|id| is_wanted(*id)).min()?;
            let members: HashSet<TaskId> = component.into_iter().collect();
            find_cycle(start, |id| blockers_of(id).into_iter().filter(|id| members.contains(id)).collect())
        })
        .collect();
    cycles.sort_unstable();
    cycles
}

/// The strongly connected components of a graph of tasks, by Tarjan's algorithm with a stack instead of recursion.
#[derive(Default)]
struct Components {
    /// The order in which tasks were reached.
    reached: HashMap<TaskId, usize>,
    /// Reached tasks that are in no component yet.
    waiting: Vec<TaskId>,
    found: Vec<Vec<TaskId>>,
}

/// A task on the path that is being followed.
struct Step {
    id: TaskId,
    rest: Vec<TaskId>,
    /// The earliest task in `waiting` that this one is known to wait for.
    lowest: usize,
}

impl Components {
    fn of(tasks: impl IntoIterator<Item = TaskId>, blockers_of: &impl Fn(TaskId) -> Vec<TaskId>) -> Vec<Vec<TaskId>> {
        let mut components = Self::default();
        for id in tasks {
            if !components.reached.contains_key(&id) {
                components.follow(id, blockers_of);
            }
        }
        components.found
    }

    fn follow(&mut self, start: TaskId, blockers_of: &impl Fn(TaskId) -> Vec<TaskId>) {
        let mut path = vec![self.reach(start, blockers_of)];
        while let Some(step) = path.last_mut() {
            if let Some(next) = step.rest.pop() {
                match self.reached.get(&next) {
                    None => path.push(self.reach(next, blockers_of)),
                    Some(order) => step.lowest = step.lowest.min(*order),
                }
                continue;
            }
            let (id, lowest) = (step.id, step.lowest);
            path.pop();
            if let Some(before) = path.last_mut() {
                before.lowest = before.lowest.min(lowest);
            }
            if self.reached.get(&id) == Some(&lowest) {
                self.close(id);
            }
        }
    }

    fn reach(&mut self, id: TaskId, blockers_of: &impl Fn(TaskId) -> Vec<TaskId>) -> Step {
        let order = self.reached.len();
        self.reached.insert(id, order);
        self.waiting.push(id);
        Step { id, rest: blockers_of(id), lowest: order }
    }

    /// Ends the component that begins with `id`. Its tasks count as reached last, so that no later task joins it.
    fn close(&mut self, id: TaskId) {
        let from = self.waiting.iter().rposition(|waiting| *waiting == id).unwrap_or(0);
        let component = self.waiting.split_off(from);
        self.reached.extend(component.iter().map(|id| (*id, usize::MAX)));
        self.found.push(component);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// As many tasks as the chain of the report that this was found with.
    const COUNT: u64 = 20_000;

    /// A board that counts how often it is asked for a task.
    struct Counted {
        tasks: BTreeMap<TaskId, Task>,
        lookups: Cell<u64>,
    }

    impl TaskLookup for Counted {
        fn task(&self, id: TaskId) -> Option<&Task> {
            self.lookups.set(self.lookups.get() + 1);
            self.tasks.get(&id)
        }
        fn was_deleted(&self, _: TaskId) -> bool {
            false
        }
        fn is_spoiled(&self, _: TaskId) -> bool {
            false
        }
    }

    fn board(blockers: impl IntoIterator<Item = (u64, Vec<u64>)>) -> Counted {
        let task = |(id, blockers): (u64, Vec<u64>)| {
            let mut task = Task::new(TaskId(id), "t");
            task.blocked_by = blockers.into_iter().map(TaskId).collect();
            (task.id, task)
        };
        Counted { tasks: blockers.into_iter().map(task).collect(), lookups: Cell::new(0) }
    }

    /// A chain, a task that waits for all others, and tasks that all wait for one.
    fn large_boards() -> [Counted; 4] {
        [
            board((1..=COUNT).map(|id| (id, if id > 1 { vec![id - 1] } else { Vec::new() }))),
            board((1..=COUNT).map(|id| (id, if id < COUNT { vec![id + 1] } else { Vec::new() }))),
            board((1..=COUNT).map(|id| (id, if id < COUNT { Vec::new() } else { (1..COUNT).collect() }))),
            board((1..=COUNT).map(|id| (id, if id > 1 { vec![1] } else { Vec::new() }))),
        ]
    }

    fn roots(board: &Counted, id: u64) -> Vec<u64> {
        RootBlockers::new(board).of(TaskId(id)).iter().map(|root| root.id.0).collect()
    }

    #[test]
    fn roots_of_a_board_take_work_linear_in_its_size() {
        for board in large_boards() {
            let mut roots = RootBlockers::new(&board);
            let mut found = 0;
            for id in board.tasks.keys() {
                found += u64::from(!roots.of(*id).is_empty());
                // Each task and each dependency, a few times each.
                assert!(board.lookups.get() <= 8 * COUNT, "{} lookups for {id}", board.lookups.get());
            }
            assert!(found == 1 || found == COUNT - 1, "{found}");
        }
    }

    #[test]
    fn roots_are_the_ends_of_the_chains() {
        let board = board([
            (1, vec![2, 3]),
            (2, vec![4, 5]),
            (3, vec![5, 9]),
            (4, vec![]),
            (5, vec![]),
            (6, (10..20).collect()),
        ]);
        assert_eq!(roots(&board, 1), [4, 5, 9], "each once, a missing one too");
        assert_eq!(roots(&board, 4), [0; 0]);
        assert_eq!(roots(&board, 6).len(), RootBlockers::COUNT_MAX);
    }

    #[test]
    fn roots_of_a_cycle_are_those_beside_it() {
        let board = board([(1, vec![2]), (2, vec![3, 4]), (3, vec![1]), (4, vec![])]);
        assert_eq!(roots(&board, 1), [4]);
    }

    #[test]
    fn cycles_of_a_board_take_work_linear_in_its_size() {
        // Before the end of each board waits a cycle, so that no task can be set aside.
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
        fn cycles_are_found_where_there_are_any(edges in prop::collection::vec((0u64..8, 0u64..8), 0..14)) {
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
