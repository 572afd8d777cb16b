//! What every board decides in the same way, whatever it keeps its tasks in: what a call means for other tasks, which
//! dependencies are refused, what is too large. Pure: it is handed the board and the time.
//!
//! Who may change what about one task is [`crate::domain::change`]'s; what stands in a task's way is
//! [`crate::domain::graph`]'s.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::domain::change::{self, Action, Actor, Change, TaskEdit};
use crate::domain::graph::{TaskLookup, find_cycle, find_cycles, obstacle};
use crate::domain::imported::may_be_revised;
use crate::domain::task::{Claim, NewTask, TASK_ID_MAX, Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::{Claimant, LostClaims, StoreError, StoreResult};

/// The largest task file.
pub const TASK_BYTES_MAX: usize = 1 << 20;
/// What must be left of that in the file of a pending task, or it could not be claimed: room for owner, claim and times.
pub const CLAIM_BYTES_MAX: usize = 4096;
/// The longest subject, in characters.
pub const SUBJECT_CHARS_MAX: usize = 500;
/// The most tasks one board holds.
pub const BOARD_TASKS_MAX: usize = 100_000;
/// What the `worker` of a claim by command begins with; such a claim lives by its lease alone.
pub const LEASE_WORKER_PREFIX: &str = "lease:";

/// The tasks of a board, and who waits for whom.
pub trait BoardLookup: TaskLookup {
    /// The tasks that name `id` among their blockers.
    fn dependents(&self, id: TaskId) -> Vec<TaskId>;
    /// All tasks, by number.
    fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_>;

    /// Whether there is a file of that number, be it spoiled.
    fn exists(&self, id: TaskId) -> bool {
        self.task(id).is_some() || self.is_spoiled(id)
    }

    /// Whether nobody has to wait for `id` any more.
    fn is_finished(&self, id: TaskId) -> bool {
        match self.task(id) {
            Some(task) => task.status == TaskStatus::Completed,
            None => self.was_deleted(id),
        }
    }
}

/// How a change of one task shows in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mirror {
    /// It waits for this task now.
    WaitFor(TaskId),
    /// It waits for it no longer.
    Forget(TaskId),
    /// This task waits for it now.
    Block(TaskId),
    /// This task waits for it no longer.
    Unblock(TaskId),
}

impl Mirror {
    /// Makes all of these changes, and says whether they changed anything.
    pub fn apply_all(mirrors: &[Self], task: &mut Task) -> bool {
        let mut has_changed = false;
        for mirror in mirrors {
            has_changed |= mirror.apply(task);
        }
        has_changed
    }

    fn apply(self, task: &mut Task) -> bool {
        match self {
            Self::WaitFor(id) => add(&mut task.blocked_by, id),
            Self::Forget(id) => take(&mut task.blocked_by, id),
            Self::Block(id) => add(&mut task.blocks, id),
            Self::Unblock(id) => take(&mut task.blocks, id),
        }
    }
}

fn add(list: &mut Vec<TaskId>, id: TaskId) -> bool {
    let is_new = !list.contains(&id);
    if is_new {
        // A list that another program wrote need not be sorted; then any place does.
        list.insert(list.partition_point(|other| *other < id), id);
    }
    is_new
}

fn take(list: &mut Vec<TaskId>, id: TaskId) -> bool {
    let before = list.len();
    list.retain(|other| *other != id);
    list.len() < before
}

/// What changes in other tasks, by task.
pub type Ripples = BTreeMap<TaskId, Vec<Mirror>>;

fn ripple(ripples: &mut Ripples, id: TaskId, mirror: Mirror) {
    ripples.entry(id).or_default().push(mirror);
}

/// A change, ready to be written: in this order, so that what a crash leaves of it does no harm.
#[derive(Debug)]
pub struct Planned {
    /// Changes in others that must be there before the task's own.
    pub before: Ripples,
    /// The task.
    pub task: Task,
    /// Changes in others that follow from it.
    pub after: Ripples,
}

/// What `change` makes of `task` and of others.
///
/// # Errors
/// Refusals, unknown blockers, cycles, and texts that are not acceptable.
pub fn change(board: &dyn BoardLookup, task: &Task, change: &Change, by: &Actor, now: UnixMs) -> StoreResult<Planned> {
    if let Change::Edit(edit) = change {
        return self::edit(board, task, edit, by, now);
    }
    let next = change::change(task, change, by, now)?;
    let mut planned = Planned { before: Ripples::new(), task: next, after: Ripples::new() };
    match change {
        Change::Complete(_) => planned.after = released(board, task.id),
        Change::Reopen => {
            // First the others: a completed blocker hinders nobody, a reopened one that is not named lets them go ahead.
            for &dependent in &task.blocks {
                if board.task(dependent).is_some_and(|task| task.status == TaskStatus::Pending) {
                    ripple(&mut planned.before, dependent, Mirror::WaitFor(task.id));
                }
            }
            refuse_cycle(board, &planned)?;
        }
        _ => {}
    }
    Ok(planned)
}

/// What the completion of `id` means for those that wait for it.
#[must_use]
pub fn released(board: &dyn BoardLookup, id: TaskId) -> Ripples {
    board.dependents(id).into_iter().map(|dependent| (dependent, vec![Mirror::Forget(id)])).collect()
}

fn edit(board: &dyn BoardLookup, task: &Task, edit: &TaskEdit, by: &Actor, now: UnixMs) -> StoreResult<Planned> {
    let id = task.id;
    if let Some(subject) = &edit.subject {
        check_subject(subject)?;
    }
    if edit.imported.is_some() && may_be_revised(task, board).is_err() {
        return Err(StoreError::Invalid(format!("task {id} was changed meanwhile")));
    }
    for &blocker in &edit.add_blocked_by {
        if !board.exists(blocker) {
            return Err(StoreError::UnknownBlocker { task: id, blocker });
        }
    }
    for &dependent in &edit.add_blocks {
        let other = board.task(dependent).ok_or(StoreError::NoTask(dependent))?;
        change::permit(other, Action::Edit, by)?;
    }
    let mut next = change::change(task, &Change::Edit(edit.clone()), by, now)?;
    next.blocked_by.retain(|blocker| task.blocked_by.contains(blocker) || !board.is_finished(*blocker));
    let mut planned = Planned { before: Ripples::new(), task: next, after: Ripples::new() };
    for &dependent in &edit.add_blocks {
        if task.status != TaskStatus::Completed {
            ripple(&mut planned.before, dependent, Mirror::WaitFor(id));
        }
    }
    for &blocker in &edit.add_blocked_by {
        ripple(&mut planned.after, blocker, Mirror::Block(id));
    }
    for &blocker in edit.remove_blocked_by.iter().filter(|blocker| board.task(**blocker).is_some()) {
        ripple(&mut planned.after, blocker, Mirror::Unblock(id));
    }
    if !edit.add_blocked_by.is_empty() || !edit.add_blocks.is_empty() {
        refuse_cycle(board, &planned)?;
    }
    Ok(planned)
}

/// Every edge a change adds begins or ends at its task, so a cycle it makes goes through it.
fn refuse_cycle(board: &dyn BoardLookup, planned: &Planned) -> StoreResult<()> {
    let id = planned.task.id;
    let blockers_of = |of: TaskId| -> Vec<TaskId> {
        let mut blockers = match board.task(of) {
            _ if of == id => planned.task.blocked_by.clone(),
            Some(task) => task.blocked_by.clone(),
            None => Vec::new(),
        };
        let added = planned.before.get(&of).into_iter().flatten();
        blockers.extend(added.filter_map(|mirror| match mirror {
            Mirror::WaitFor(blocker) => Some(*blocker),
            _ => None,
        }));
        blockers.retain(|blocker| *blocker == id || !board.is_finished(*blocker));
        blockers
    };
    find_cycle(id, blockers_of).map_or(Ok(()), |cycle| Err(StoreError::Cycle(cycle)))
}

/// What must change so that no task names `id` any more.
#[must_use]
pub fn references(board: &dyn BoardLookup, id: TaskId) -> Ripples {
    let mut ripples = Ripples::new();
    for task in board.tasks() {
        if task.blocked_by.contains(&id) {
            ripple(&mut ripples, task.id, Mirror::Forget(id));
        }
        if task.blocks.contains(&id) {
            ripple(&mut ripples, task.id, Mirror::Unblock(id));
        }
    }
    ripples
}

/// What an interrupted call, or a program that writes no mirrors, left to be done: finished blockers are pruned, each
/// unfinished one says whom it blocks, and nobody blocks what is not there. Only what a Brigade wrote gets mirrors: other
/// programs' tasks are written no more than needed.
#[must_use]
pub fn heal(board: &dyn BoardLookup) -> Ripples {
    let mut ripples = Ripples::new();
    let named: HashSet<(TaskId, TaskId)> =
        board.tasks().flat_map(|task| task.blocks.iter().map(|dependent| (task.id, *dependent))).collect();
    for task in board.tasks() {
        let is_ours = task.updated_at.is_some();
        for &dependent in task.blocks.iter().filter(|id| is_ours && !board.exists(**id)) {
            ripple(&mut ripples, task.id, Mirror::Unblock(dependent));
        }
        for &blocker in &task.blocked_by {
            if board.is_finished(blocker) {
                ripple(&mut ripples, task.id, Mirror::Forget(blocker));
            } else if is_ours && board.task(blocker).is_some() && !named.contains(&(blocker, task.id)) {
                ripple(&mut ripples, blocker, Mirror::Block(task.id));
            }
        }
    }
    ripples
}

/// Tasks to be created, with those left out whose source is on the board already.
#[derive(Debug)]
pub struct Batch {
    new: Vec<NewTask>,
    places: Vec<Place>,
}

/// What becomes of one task of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It gets a number of its own.
    New,
    /// Its source is on the board already, as this task.
    Known(TaskId),
    /// It has the source of this earlier task of the call.
    Same(usize),
}

/// A batch with its numbers.
#[derive(Debug)]
pub struct PlannedBatch {
    /// The tasks to be put on the board.
    pub created: Vec<Task>,
    /// The number of each task of the call, also of those that were there already.
    pub ids: Vec<TaskId>,
    /// Whom the blockers that were there block now.
    pub after: Ripples,
}

impl Batch {
    /// Looks at what is to be created.
    ///
    /// # Errors
    /// Texts that are not acceptable, a board that would be too full, unknown blockers.
    pub fn new(board: &dyn BoardLookup, new: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Self> {
        let places = if skip_known_sources { known_sources(board, &new) } else { vec![Place::New; new.len()] };
        let batch = Self { new, places };
        for (index, task) in batch.new.iter().enumerate() {
            check_subject(&task.subject)?;
            if let Some(other) = task.blocked_by_new.iter().find(|other| **other >= batch.new.len()) {
                return Err(StoreError::Invalid(format!(
                    "task {index} of the call waits for task {other} of it, which is none"
                )));
            }
            if let Some(&blocker) = task.blocked_by.iter().find(|blocker| !board.exists(**blocker)) {
                return Err(StoreError::UnknownBlocker { task: TaskId(0), blocker });
            }
        }
        if batch.count() > 0 && board.tasks().count() + batch.count() > BOARD_TASKS_MAX {
            return Err(StoreError::Invalid(format!("a board holds at most {BOARD_TASKS_MAX} tasks")));
        }
        Ok(batch)
    }

    /// How many numbers it needs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.iter().filter(|place| **place == Place::New).count()
    }

    /// The tasks, numbered from `first` up.
    ///
    /// # Errors
    /// Cycles; numbers beyond the largest.
    pub fn plan(self, board: &dyn BoardLookup, by: &Actor, first: TaskId, now: UnixMs) -> StoreResult<PlannedBatch> {
        if first.0.saturating_add(self.count() as u64) > TASK_ID_MAX {
            return Err(StoreError::Invalid(format!("there are no task numbers left beyond {first}")));
        }
        let mut ids: Vec<TaskId> = Vec::with_capacity(self.new.len());
        let mut next = first.0;
        for place in &self.places {
            ids.push(match place {
                Place::Known(id) => *id,
                Place::Same(index) => ids[*index],
                Place::New => TaskId(next),
            });
            next += u64::from(*place == Place::New);
        }
        let mut created = Vec::with_capacity(self.count());
        for (index, new) in self.new.into_iter().enumerate() {
            if self.places[index] == Place::New {
                created.push(new.into_task(ids[index], &ids, &by.name, now));
            }
        }
        let after = mirror_batch(board, &mut created);
        refuse_batch_cycle(board, &created)?;
        Ok(PlannedBatch { created, ids, after })
    }
}

fn known_sources(board: &dyn BoardLookup, new: &[NewTask]) -> Vec<Place> {
    let mut places: HashMap<String, Place> = HashMap::new();
    let wanted: HashSet<&str> = new.iter().filter_map(|task| task.source.as_deref()).collect();
    for task in board.tasks().filter(|task| !wanted.is_empty() && task.document.contains("metadata")) {
        if let Some(source) = task.source().filter(|source| wanted.contains(source.as_str())) {
            places.entry(source).or_insert(Place::Known(task.id));
        }
    }
    let mut place = |(index, task): (usize, &NewTask)| match &task.source {
        None => Place::New,
        Some(source) => *places.entry(source.clone()).or_insert_with(|| Place::Same(index)),
    };
    new.iter()
        .enumerate()
        .map(|(index, task)| match place((index, task)) {
            Place::Same(first) if first == index => Place::New,
            place => place,
        })
        .collect()
}

/// Fills in who blocks whom: within the batch at once, among the tasks that were there as ripples. Nobody waits for what is finished.
fn mirror_batch(board: &dyn BoardLookup, created: &mut [Task]) -> Ripples {
    let place: HashMap<TaskId, usize> = created.iter().enumerate().map(|(index, task)| (task.id, index)).collect();
    let mut after = Ripples::new();
    for index in 0..created.len() {
        let id = created[index].id;
        for blocker in created[index].blocked_by.clone() {
            match place.get(&blocker) {
                Some(&other) => {
                    add(&mut created[other].blocks, id);
                }
                None if board.task(blocker).is_some() => ripple(&mut after, blocker, Mirror::Block(id)),
                None => {}
            }
        }
        created[index].blocked_by.retain(|blocker| place.contains_key(blocker) || !board.is_finished(*blocker));
    }
    after
}

/// Refuses a batch of which a task would wait for itself, be it through tasks of the board that waited for its number already.
fn refuse_batch_cycle(board: &dyn BoardLookup, created: &[Task]) -> StoreResult<()> {
    let new: HashMap<TaskId, &Task> = created.iter().map(|task| (task.id, task)).collect();
    // Without a task on the board that waits for a new one, no cycle leaves the new ones.
    let is_awaited = created.iter().any(|task| !board.dependents(task.id).is_empty());
    let blockers_of = |id: TaskId| {
        let task = new.get(&id).copied().or_else(|| board.task(id));
        let blockers = task.into_iter().flat_map(|task| &task.blocked_by).copied();
        let counts = |blocker: &TaskId| new.contains_key(blocker) || (is_awaited && !board.is_finished(*blocker));
        blockers.filter(counts).collect()
    };
    match find_cycles(created.iter().map(|task| task.id), blockers_of, |id| new.contains_key(&id)).pop() {
        Some(cycle) => Err(StoreError::Cycle(cycle)),
        None => Ok(()),
    }
}

fn check_subject(subject: &str) -> StoreResult<()> {
    if subject.trim().is_empty() {
        return Err(StoreError::Invalid("a task needs a subject".to_owned()));
    }
    if subject.chars().any(|c| c.is_control() || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}')) {
        return Err(StoreError::Invalid("a subject is one line; the rest belongs into the description".to_owned()));
    }
    let chars = subject.chars().count();
    if chars > SUBJECT_CHARS_MAX {
        let text = format!(
            "a subject has at most {SUBJECT_CHARS_MAX} characters, this one {chars}; the rest belongs into the description"
        );
        return Err(StoreError::Invalid(text));
    }
    Ok(())
}

/// The task once `claimant` has it. Its finished blockers stay named: that they are finished may not be durable yet.
///
/// # Errors
/// [`StoreError::NotClaimable`], with what is in the way.
pub fn claim(board: &dyn BoardLookup, task: &Task, claimant: &Claimant, now: UnixMs) -> StoreResult<Task> {
    if let Some(obstacle) = obstacle(task, &claimant.name, &claimant.capabilities, board, now) {
        return Err(StoreError::NotClaimable { id: task.id, obstacle });
    }
    let expires = claimant.lease.map(|lease| now.plus(lease));
    let claim = Claim { worker: claimant.worker.clone(), at: now, expires };
    Ok(change::claim(task, &claimant.name, claim))
}

/// Why `task` loses its claim, if it does. A worker's claim lives with the worker, whatever the clock says; a claim by command by
/// its lease, whoever lives.
#[must_use]
pub fn lost(task: &Task, lost: &LostClaims, now: UnixMs) -> Option<String> {
    if task.status != TaskStatus::InProgress {
        return None;
    }
    let claim = task.claim.as_ref()?;
    if lost.claims.contains(&(task.id, task.attempt)) {
        return Some(lost.reason.clone());
    }
    if claim.worker.starts_with(LEASE_WORKER_PREFIX) {
        let is_over = claim.expires.is_some_and(|expires| expires <= now);
        let is_spared = lost.spared.contains(&(task.id, task.attempt));
        return (is_over && !is_spared).then(|| "its lease ran out".to_owned());
    }
    let is_gone = lost.live_workers.as_ref().is_some_and(|live| !live.contains(&claim.worker));
    is_gone.then(|| lost.reason.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::change::ActorKind;
    use std::cell::Cell;

    /// A chain of tasks that counts how often it is asked for a task.
    struct Chain {
        tasks: BTreeMap<TaskId, Task>,
        lookups: Cell<usize>,
    }

    impl Chain {
        fn new(count: u64) -> Self {
            let task = |id: u64| {
                let mut task = Task::new(TaskId(id), "t");
                task.blocked_by = (1..id).next_back().map(TaskId).into_iter().collect();
                (task.id, task)
            };
            Self { tasks: (1..=count).map(task).collect(), lookups: Cell::new(0) }
        }

        fn lookups_of(&self, edit: TaskEdit) -> usize {
            let last = self.tasks.values().next_back().unwrap();
            let by = Actor::new("lead", ActorKind::Lead);
            self.lookups.set(0);
            change(self, last, &Change::Edit(edit), &by, UnixMs(1)).unwrap();
            self.lookups.get()
        }
    }

    impl TaskLookup for Chain {
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

    impl BoardLookup for Chain {
        fn dependents(&self, _: TaskId) -> Vec<TaskId> {
            Vec::new()
        }
        fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_> {
            Box::new(self.tasks.values())
        }
    }

    #[test]
    fn edit_without_new_dependency_follows_no_chain() {
        let chain = Chain::new(20_000);
        let edit = TaskEdit { priority: Some(3), ..TaskEdit::default() };
        assert!(chain.lookups_of(edit) <= 2);
        let edit = TaskEdit { add_blocked_by: vec![TaskId(1)], ..TaskEdit::default() };
        let lookups = chain.lookups_of(edit);
        assert!((20_000..=60_000).contains(&lookups), "{lookups} lookups");
    }
}
