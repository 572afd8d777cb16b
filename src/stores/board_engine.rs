//! The decisions that all boards share: changes of dependent tasks, refused dependencies, size limits.
//!
//! The functions are pure: they get the board and the time. [`crate::domain::task::transition`] decides who may change a task,
//! and [`crate::domain::task::claim_queue`] which tasks are claimable.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::domain::task::claim_queue::find_claim_obstacle;
use crate::domain::task::dependencies::{TaskLookup, find_cycle, find_cycles};
use crate::domain::task::plan_update::check_updatable;
use crate::domain::task::transition::{self, Action, Actor, Change, TaskEdit};
use crate::domain::task::{Claim, NewTask, TASK_ID_MAX, Task, TaskId, TaskStatus, subject_problem};
use crate::domain::team::phase::ClaimRef;
use crate::domain::time::UnixMs;
use crate::ports::{Claimant, ReclaimRequest, StoreError, StoreResult};

/// The largest task file, in bytes.
pub const TASK_BYTES_MAX: usize = 1 << 20;
/// The bytes that the file of a pending task must leave free of [`TASK_BYTES_MAX`], so that a claim fits: owner, claim, times.
pub const CLAIM_BYTES_MAX: usize = 4096;
/// The most tasks one board holds.
pub const BOARD_TASKS_MAX: usize = 100_000;

/// The tasks of a board and their dependents.
pub trait BoardLookup: TaskLookup {
    /// The tasks that name `id` among their blockers.
    fn dependents(&self, id: TaskId) -> Vec<TaskId>;
    /// All tasks, by ascending number.
    fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_>;

    /// Returns true if the board has a task of that number, even an invalid one.
    fn exists(&self, id: TaskId) -> bool {
        self.task(id).is_some() || self.is_invalid(id)
    }
}

/// A change of one task's links that follows from a change of another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkChange {
    /// Adds a task to `blockedBy`.
    AddBlockedBy(TaskId),
    /// Removes a task from `blockedBy`.
    RemoveBlockedBy(TaskId),
    /// Adds a task to `blocks`.
    AddBlocks(TaskId),
    /// Removes a task from `blocks`.
    RemoveBlocks(TaskId),
}

impl LinkChange {
    /// Makes all of these changes. Returns true if `task` changed.
    pub fn apply_all(links: &[Self], task: &mut Task) -> bool {
        let mut has_changed = false;
        for link in links {
            has_changed |= link.apply(task);
        }
        has_changed
    }

    fn apply(self, task: &mut Task) -> bool {
        match self {
            Self::AddBlockedBy(id) => insert(&mut task.blocked_by, id),
            Self::RemoveBlockedBy(id) => remove(&mut task.blocked_by, id),
            Self::AddBlocks(id) => insert(&mut task.blocks, id),
            Self::RemoveBlocks(id) => remove(&mut task.blocks, id),
        }
    }
}

fn insert(list: &mut Vec<TaskId>, id: TaskId) -> bool {
    let is_new = !list.contains(&id);
    if is_new {
        // Another program may have written an unsorted list. Then any position is right.
        list.insert(list.partition_point(|other| *other < id), id);
    }
    is_new
}

fn remove(list: &mut Vec<TaskId>, id: TaskId) -> bool {
    let before = list.len();
    list.retain(|other| *other != id);
    list.len() < before
}

/// Link changes in other tasks, by task.
pub type DependentChanges = BTreeMap<TaskId, Vec<LinkChange>>;

fn add_change(changes: &mut DependentChanges, id: TaskId, link: LinkChange) {
    changes.entry(id).or_default().push(link);
}

/// A change that is ready to be written in the order of its fields, so that a crash in between does no harm.
#[derive(Debug)]
pub struct PlannedWrite {
    /// Changes in other tasks that must be written before the task's own.
    pub before: DependentChanges,
    /// The changed task.
    pub task: Task,
    /// Changes in other tasks that are written after it.
    pub after: DependentChanges,
}

/// Plans `change` of `task`, with the changes of other tasks that it needs.
///
/// # Errors
/// A refused change, an unknown blocker, a cycle, an invalid text.
pub fn change(
    board: &dyn BoardLookup,
    task: &Task,
    change: &Change,
    by: &Actor,
    now: UnixMs,
) -> StoreResult<PlannedWrite> {
    if let Change::Edit(edit) = change {
        return self::edit(board, task, edit, by, now);
    }
    let next = transition::change(task, change, by, now)?;
    let mut planned = PlannedWrite { before: DependentChanges::new(), task: next, after: DependentChanges::new() };
    match change {
        Change::Complete(_) => planned.after = unblock_dependents(board, task.id),
        Change::Reopen => {
            // The dependents are written first. If the reopened task came first, a crash could leave dependents that do not
            // wait for it.
            for &dependent in &task.blocks {
                if board.task(dependent).is_some_and(|task| task.status == TaskStatus::Pending) {
                    add_change(&mut planned.before, dependent, LinkChange::AddBlockedBy(task.id));
                }
            }
            refuse_cycle(board, &planned)?;
        }
        _ => {}
    }
    Ok(planned)
}

/// The changes of dependents after the completion of `id`.
#[must_use]
pub fn unblock_dependents(board: &dyn BoardLookup, id: TaskId) -> DependentChanges {
    board.dependents(id).into_iter().map(|dependent| (dependent, vec![LinkChange::RemoveBlockedBy(id)])).collect()
}

fn edit(board: &dyn BoardLookup, task: &Task, edit: &TaskEdit, by: &Actor, now: UnixMs) -> StoreResult<PlannedWrite> {
    let id = task.id;
    let edit = &edit.clone().trimmed();
    if let Some(subject) = &edit.subject {
        check_subject(subject)?;
    }
    if edit.imported.is_some() && check_updatable(task, board).is_err() {
        return Err(StoreError::Invalid(format!(
            "cannot update task {id} from the plan: it was changed in the meantime"
        )));
    }
    for &blocker in &edit.add_blocked_by {
        if !board.exists(blocker) {
            return Err(StoreError::UnknownBlocker { task: id, blocker });
        }
    }
    for &dependent in &edit.add_blocks {
        let other = board.task(dependent).ok_or(StoreError::NoTask(dependent.into()))?;
        transition::permit(other, Action::Edit, by)?;
    }
    let mut next = transition::change(task, &Change::Edit(edit.clone()), by, now)?;
    next.blocked_by.retain(|blocker| task.blocked_by.contains(blocker) || !board.is_finished(*blocker));
    let mut planned = PlannedWrite { before: DependentChanges::new(), task: next, after: DependentChanges::new() };
    for &dependent in &edit.add_blocks {
        if task.status != TaskStatus::Completed {
            add_change(&mut planned.before, dependent, LinkChange::AddBlockedBy(id));
        }
    }
    for &blocker in &edit.add_blocked_by {
        add_change(&mut planned.after, blocker, LinkChange::AddBlocks(id));
    }
    for &blocker in edit.remove_blocked_by.iter().filter(|blocker| board.task(**blocker).is_some()) {
        add_change(&mut planned.after, blocker, LinkChange::RemoveBlocks(id));
    }
    if !edit.add_blocked_by.is_empty() || !edit.add_blocks.is_empty() {
        refuse_cycle(board, &planned)?;
    }
    Ok(planned)
}

/// Refuses a change that closes a cycle. Every edge that a change adds begins or ends at its task, so a new cycle contains the task.
fn refuse_cycle(board: &dyn BoardLookup, planned: &PlannedWrite) -> StoreResult<()> {
    let id = planned.task.id;
    let blockers_of = |dependent: TaskId| -> Vec<TaskId> {
        let mut blockers = match board.task(dependent) {
            _ if dependent == id => planned.task.blocked_by.clone(),
            Some(task) => task.blocked_by.clone(),
            None => Vec::new(),
        };
        let added = planned.before.get(&dependent).into_iter().flatten();
        blockers.extend(added.filter_map(|link| match link {
            LinkChange::AddBlockedBy(blocker) => Some(*blocker),
            _ => None,
        }));
        blockers.retain(|blocker| *blocker == id || !board.is_finished(*blocker));
        blockers
    };
    match find_cycle(id, blockers_of) {
        Some(cycle) => Err(StoreError::Cycle(cycle)),
        None => Ok(()),
    }
}

/// The changes that remove `id` from the links of all tasks.
#[must_use]
pub fn reference_removals(board: &dyn BoardLookup, id: TaskId) -> DependentChanges {
    let mut changes = DependentChanges::new();
    for task in board.tasks() {
        if task.blocked_by.contains(&id) {
            add_change(&mut changes, task.id, LinkChange::RemoveBlockedBy(id));
        }
        if task.blocks.contains(&id) {
            add_change(&mut changes, task.id, LinkChange::RemoveBlocks(id));
        }
    }
    changes
}

/// The changes that repair links after an interrupted call, or after a change by a program that does not write `blocks`.
///
/// They remove finished blockers and missing dependents, and add each unfinished blocker's dependents to its `blocks`. A task
/// that Brigade never wrote adds no `blocks` entries, because files of other programs are written as little as possible.
#[must_use]
pub fn repair_links(board: &dyn BoardLookup) -> DependentChanges {
    let mut changes = DependentChanges::new();
    let named: HashSet<(TaskId, TaskId)> =
        board.tasks().flat_map(|task| task.blocks.iter().map(|dependent| (task.id, *dependent))).collect();
    for task in board.tasks() {
        let is_ours = task.updated_at.is_some();
        for &dependent in task.blocks.iter().filter(|id| is_ours && !board.exists(**id)) {
            add_change(&mut changes, task.id, LinkChange::RemoveBlocks(dependent));
        }
        for &blocker in &task.blocked_by {
            if board.is_finished(blocker) {
                add_change(&mut changes, task.id, LinkChange::RemoveBlockedBy(blocker));
            } else if is_ours && board.task(blocker).is_some() && !named.contains(&(blocker, task.id)) {
                add_change(&mut changes, blocker, LinkChange::AddBlocks(task.id));
            }
        }
    }
    changes
}

/// The tasks of one create call, and what happens to each.
#[derive(Debug)]
pub struct CreateBatch {
    new: Vec<NewTask>,
    outcomes: Vec<CreateOutcome>,
}

/// The result for one task of a create call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The task is new and gets its own number.
    New,
    /// This task on the board has the same source.
    Existing(TaskId),
    /// The earlier task of the call with this index has the same source.
    DuplicateOf(usize),
}

/// A batch with assigned numbers.
#[derive(Debug)]
pub struct PlannedBatch {
    /// The tasks to write to the board.
    pub created: Vec<Task>,
    /// The number of each task of the call, in its order, including those that were on the board already.
    pub ids: Vec<TaskId>,
    /// The new dependents of blockers that were already on the board.
    pub after: DependentChanges,
}

impl CreateBatch {
    /// Checks the tasks of a create call. If `skip_known_sources` is true, a task whose source is on the board is not created again.
    ///
    /// # Errors
    /// An invalid text, a board that would hold too many tasks, an unknown blocker.
    pub fn new(board: &dyn BoardLookup, new: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Self> {
        let new: Vec<NewTask> = new.into_iter().map(NewTask::trimmed).collect();
        let outcomes =
            if skip_known_sources { match_sources(board, &new) } else { vec![CreateOutcome::New; new.len()] };
        let batch = Self { new, outcomes };
        for (index, task) in batch.new.iter().enumerate() {
            check_subject(&task.subject)?;
            if let Some(other) = task.blocked_by_new.iter().find(|other| **other >= batch.new.len()) {
                return Err(StoreError::Invalid(format!(
                    "cannot create task {index} of the call: it waits for task {other} of the call, which does not exist"
                )));
            }
            if let Some(&blocker) = task.blocked_by.iter().find(|blocker| !board.exists(**blocker)) {
                return Err(StoreError::UnknownBlocker { task: TaskId(0), blocker });
            }
        }
        if batch.count() > 0 && board.tasks().count() + batch.count() > BOARD_TASKS_MAX {
            let text = format!("cannot create {} tasks: a board holds at most {BOARD_TASKS_MAX}", batch.count());
            return Err(StoreError::Invalid(text));
        }
        Ok(batch)
    }

    /// The count of tasks to create.
    pub fn count(&self) -> usize {
        self.outcomes.iter().filter(|outcome| **outcome == CreateOutcome::New).count()
    }

    /// Numbers the tasks from `first` up.
    ///
    /// # Errors
    /// A cycle; a number above [`TASK_ID_MAX`].
    pub fn plan(self, board: &dyn BoardLookup, by: &Actor, first: TaskId, now: UnixMs) -> StoreResult<PlannedBatch> {
        if first.0.saturating_add(self.count() as u64) > TASK_ID_MAX {
            return Err(StoreError::Invalid(format!("cannot create tasks: no task numbers are left from {first}")));
        }
        let mut ids: Vec<TaskId> = Vec::with_capacity(self.new.len());
        let mut next = first.0;
        for outcome in &self.outcomes {
            ids.push(match outcome {
                CreateOutcome::Existing(id) => *id,
                CreateOutcome::DuplicateOf(index) => ids[*index],
                CreateOutcome::New => TaskId(next),
            });
            next += u64::from(*outcome == CreateOutcome::New);
        }
        let mut created = Vec::with_capacity(self.count());
        for (index, new) in self.new.into_iter().enumerate() {
            if self.outcomes[index] == CreateOutcome::New {
                created.push(new.into_task(ids[index], &ids, &by.name, now));
            }
        }
        let after = link_batch(board, &mut created);
        refuse_batch_cycle(board, &created)?;
        Ok(PlannedBatch { created, ids, after })
    }
}

/// Finds the tasks whose source is already on the board, or occurs twice in the call.
fn match_sources(board: &dyn BoardLookup, new: &[NewTask]) -> Vec<CreateOutcome> {
    let mut outcomes: HashMap<String, CreateOutcome> = HashMap::new();
    let sources: HashSet<&str> = new.iter().filter_map(|task| task.source.as_deref()).collect();
    for task in board.tasks().filter(|task| !sources.is_empty() && task.document.contains("metadata")) {
        if let Some(source) = task.source().filter(|source| sources.contains(source.as_str())) {
            outcomes.entry(source).or_insert(CreateOutcome::Existing(task.id));
        }
    }
    new.iter()
        .enumerate()
        .map(|(index, task)| {
            let Some(source) = &task.source else {
                return CreateOutcome::New;
            };
            match outcomes.entry(source.clone()) {
                Entry::Occupied(outcome) => *outcome.get(),
                Entry::Vacant(entry) => {
                    entry.insert(CreateOutcome::DuplicateOf(index));
                    CreateOutcome::New
                }
            }
        })
        .collect()
}

/// Fills in `blocks` within the batch, and returns the changes of blockers on the board. Removes finished blockers.
fn link_batch(board: &dyn BoardLookup, created: &mut [Task]) -> DependentChanges {
    let positions: HashMap<TaskId, usize> = created.iter().enumerate().map(|(index, task)| (task.id, index)).collect();
    let mut after = DependentChanges::new();
    for index in 0..created.len() {
        let id = created[index].id;
        for blocker in created[index].blocked_by.clone() {
            match positions.get(&blocker) {
                Some(&other) => {
                    insert(&mut created[other].blocks, id);
                }
                None if board.task(blocker).is_some() => add_change(&mut after, blocker, LinkChange::AddBlocks(id)),
                None => {}
            }
        }
        created[index].blocked_by.retain(|blocker| positions.contains_key(blocker) || !board.is_finished(*blocker));
    }
    after
}

/// Refuses a batch that closes a cycle. The cycle can go through tasks on the board that already wait for a new number.
fn refuse_batch_cycle(board: &dyn BoardLookup, created: &[Task]) -> StoreResult<()> {
    let new: HashMap<TaskId, &Task> = created.iter().map(|task| (task.id, task)).collect();
    // If no task on the board waits for a new one, every cycle consists of new tasks only.
    let has_old_dependents = created.iter().any(|task| !board.dependents(task.id).is_empty());
    let blockers_of = |id: TaskId| {
        let task = new.get(&id).copied().or_else(|| board.task(id));
        let blockers = task.into_iter().flat_map(|task| &task.blocked_by).copied();
        let is_relevant =
            |blocker: &TaskId| new.contains_key(blocker) || (has_old_dependents && !board.is_finished(*blocker));
        blockers.filter(is_relevant).collect()
    };
    match find_cycles(created.iter().map(|task| task.id), blockers_of, |id| new.contains_key(&id)).pop() {
        Some(cycle) => Err(StoreError::Cycle(cycle)),
        None => Ok(()),
    }
}

fn check_subject(subject: &str) -> StoreResult<()> {
    match subject_problem(subject) {
        Some(problem) => Err(StoreError::Invalid(problem)),
        None => Ok(()),
    }
}

/// Returns the task as claimed by `claimant`. Keeps its finished blockers, because their completion may not be durable yet.
///
/// # Errors
/// [`StoreError::NotClaimable`] with the reason.
pub fn claim(board: &dyn BoardLookup, task: &Task, claimant: &Claimant, now: UnixMs) -> StoreResult<Task> {
    if let Some(obstacle) = find_claim_obstacle(task, &claimant.as_candidate(), board, now) {
        return Err(StoreError::NotClaimable { id: task.id, obstacle });
    }
    let expires = claimant.lease.map(|lease| now.plus(lease));
    let claim = Claim { worker: claimant.worker.clone(), at: now, expires };
    Ok(transition::claim(task, &claimant.name, claim))
}

/// The reason why `task` loses its claim, if it does.
///
/// A worker's claim never expires: it ends only on request. A claim with a lease also ends when the lease expires.
pub fn claim_loss_reason(task: &Task, request: &ReclaimRequest, now: UnixMs) -> Option<String> {
    if task.status != TaskStatus::InProgress {
        return None;
    }
    let claim = task.claim.as_ref()?;
    if request.claims.contains(&ClaimRef::of(task)) {
        return Some(request.reason.clone());
    }
    if claim.is_lease() {
        let is_expired = claim.expires.is_some_and(|expires| expires <= now);
        let is_running = request.running_leases.contains(&ClaimRef::of(task));
        if is_expired && !is_running {
            return Some("its lease ran out".to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::domain::task::transition::ActorKind;

    /// A board that counts its lookups.
    struct CountingBoard {
        tasks: BTreeMap<TaskId, Task>,
        lookups: Cell<u64>,
    }

    impl CountingBoard {
        /// Creates a board of `count` tasks, where each task except the first waits for the previous one.
        fn chain(count: u64) -> Self {
            let task = |id| {
                let mut task = Task::new(TaskId(id), "t");
                task.blocked_by = if id > 1 { vec![TaskId(id - 1)] } else { Vec::new() };
                (task.id, task)
            };
            Self { tasks: (1..=count).map(task).collect(), lookups: Cell::new(0) }
        }
    }

    impl TaskLookup for CountingBoard {
        fn task(&self, id: TaskId) -> Option<&Task> {
            self.lookups.set(self.lookups.get() + 1);
            self.tasks.get(&id)
        }
    }

    impl BoardLookup for CountingBoard {
        fn dependents(&self, _: TaskId) -> Vec<TaskId> {
            Vec::new()
        }
        fn tasks(&self) -> Box<dyn Iterator<Item = &Task> + '_> {
            Box::new(self.tasks.values())
        }
    }

    fn lookups_of(board: &CountingBoard, edit: TaskEdit) -> u64 {
        let last = board.tasks.values().next_back().unwrap();
        let by = Actor::new("lead", ActorKind::Lead);
        board.lookups.set(0);
        change(board, last, &Change::Edit(edit), &by, UnixMs(1)).unwrap();
        board.lookups.get()
    }

    #[test]
    fn edit_without_new_dependency_follows_no_chain() {
        let chain = CountingBoard::chain(20_000);
        let edit = TaskEdit { priority: Some(3), ..TaskEdit::default() };
        assert!(lookups_of(&chain, edit) <= 2);
        let edit = TaskEdit { add_blocked_by: vec![TaskId(1)], ..TaskEdit::default() };
        let lookups = lookups_of(&chain, edit);
        assert!((20_000..=60_000).contains(&lookups), "{lookups} lookups");
    }
}
