//! The board of one workspace, without a runtime: every call blocks. Each is one critical section under the board's lock, and a
//! wait for the disk after it where the call promises durability.
//!
//! It knows the order in which things are written; what is decided is [`crate::stores::rules`]'.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::broadcast;

use crate::domain::change::{self, Actor, Change};
use crate::domain::task::{Task, TaskId};
use crate::ports::{BoardView, Claimant, Clock, LostClaims, Reclaimed, StoreChange, StoreError, StoreResult};
use crate::stores::file::sync::{SyncQueue, SyncRequest};
use crate::stores::file::{Durability, failed};
use crate::stores::fs::{self, FileSystem};
use crate::stores::rules::{self, BoardLookup};

use super::index::{Entry, Index};
use super::layout::{LOCK_FILE, board_folder};
use super::scan::Scan;
use super::section::{Section, check_room};

/// A reopening is written in two steps where power cuts count; if others keep undoing the first one, it is done in one.
const STEPS_MAX: usize = 3;

/// How far a change got in one section.
enum Step {
    /// It goes on once this much is durable.
    Begun,
    /// All the way.
    Made(Task),
    /// The task is completed; those who wait for it are to be told once that is durable.
    Released(Task),
}

/// What a process knows of the board.
pub(super) struct State {
    pub(super) scan: Scan,
    pub(super) index: Index,
}

impl State {
    pub(super) fn refresh(&mut self) -> StoreResult<()> {
        self.scan.refresh(&mut self.index)
    }

    /// Does the bulk of a refresh ahead of the lock.
    fn warm_up(&mut self) -> StoreResult<()> {
        self.scan.warm_up(&mut self.index)
    }

    /// Reads the file of `id`, whatever is known of it.
    pub(super) fn look_again(&mut self, id: TaskId) -> StoreResult<()> {
        self.scan.look_again(id, &mut self.index)
    }

    /// Whether there is a file of this name on the board now.
    pub(super) fn is_there(&self, name: &str) -> StoreResult<bool> {
        self.scan.is_there(name)
    }

    /// Takes in that this board itself wrote the task, as these bytes.
    pub(super) fn wrote(&mut self, task: Task, bytes: &[u8]) {
        self.scan.wrote(task, bytes, &mut self.index);
    }

    /// Takes in that this board itself took the file of `id` away.
    pub(super) fn took_away(&mut self, id: TaskId) {
        self.scan.took_away(id, &mut self.index);
    }

    /// The task, as far as it is known.
    pub(super) fn known(&self, id: TaskId) -> StoreResult<Arc<Task>> {
        match self.index.entry(id) {
            Some(Entry::Task(task)) => Ok(Arc::clone(task)),
            Some(Entry::Spoiled(reason)) => Err(StoreError::Spoiled { id, reason: reason.clone() }),
            None => Err(StoreError::NoTask(id)),
        }
    }
}

/// The board's files. Calls block; [`super::FileBoard`] makes them off the runtime's threads.
pub struct BoardFiles {
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) folder: PathBuf,
    pub(super) durability: Durability,
    pub(super) renames_after_bytes: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) queue: SyncQueue,
    lock: PathBuf,
    changes: broadcast::Sender<StoreChange>,
    state: Mutex<State>,
    is_read_only: bool,
    /// Records this board made durable itself, until their tasks are on the board.
    pub(super) durable_records: Mutex<HashSet<String>>,
}

impl BoardFiles {
    /// Opens the board of `workspace`, making it where there is none, and finishes what killed processes left half done. A board
    /// that cannot be written to is opened too: it can be looked at, and says so when it is to be changed.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the board's folder can be neither made nor read.
    pub fn open(
        files: Arc<dyn FileSystem>,
        workspace: &Path,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: broadcast::Sender<StoreChange>,
    ) -> StoreResult<Self> {
        let folder = board_folder(workspace);
        if files.stamp(&folder).is_err() {
            files.create_folder(&folder).map_err(failed("make", &folder))?;
            if durability == Durability::Power {
                files.sync_folder(workspace).map_err(failed("sync", workspace))?;
            }
        }
        let board = Self::over(files, folder, durability, clock, changes, false);
        board.state().refresh()?;
        if let Err(error) = board.critical(|section| section.tidy()) {
            tracing::warn!(%error, "the board can be read only");
        }
        Ok(board)
    }

    /// The board of `workspace` to look at: nothing is made, locked or mended, and every change is refused.
    #[must_use]
    pub fn look(files: Arc<dyn FileSystem>, workspace: &Path, clock: Arc<dyn Clock>) -> Self {
        let (changes, _) = broadcast::channel(1);
        Self::over(files, board_folder(workspace), Durability::Process, clock, changes, true)
    }

    fn over(
        files: Arc<dyn FileSystem>,
        folder: PathBuf,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: broadcast::Sender<StoreChange>,
        is_read_only: bool,
    ) -> Self {
        Self {
            renames_after_bytes: files.renames_after_bytes(&folder),
            queue: SyncQueue::new(Arc::clone(&files), durability),
            lock: folder.join(LOCK_FILE),
            state: Mutex::new(State { scan: Scan::new(Arc::clone(&files), &folder), index: Index::default() }),
            files,
            folder,
            durability,
            clock,
            changes,
            is_read_only,
            durable_records: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            // A call that panicked may have left half of what it knew: the files say it all again.
            let mut state = poisoned.into_inner();
            *state = State { scan: Scan::new(Arc::clone(&self.files), &self.folder), index: Index::default() };
            self.state.clear_poison();
            state
        })
    }

    /// Runs `act` under the board's lock with the board as it is then. Also returns what has to be durable.
    pub(super) fn critical<'a, R>(
        &'a self,
        act: impl FnOnce(&mut Section<'a>) -> StoreResult<R>,
    ) -> StoreResult<(R, SyncRequest)> {
        if self.is_read_only {
            return Err(failed("change", &self.folder)(std::io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        // A first look at a large board takes long, and needs no lock.
        self.state().warm_up()?;
        // Only now: whoever reads never waits for the lock.
        let outcome = fs::locked(self.files.as_ref(), &self.lock, || {
            let mut section = Section::new(self, self.state());
            let outcome = section.begin().and_then(|()| act(&mut section));
            let Section { pending, has_written, .. } = section;
            (outcome, pending, has_written)
        });
        let (outcome, pending, has_written) = outcome.map_err(failed("lock", &self.lock))?;
        if has_written {
            // Nobody may be listening.
            let _ = self.changes.send(StoreChange::Board);
        }
        Ok((outcome?, pending))
    }

    /// See [`crate::ports::Board::view`].
    ///
    /// # Errors
    /// [`StoreError::Io`] when the folder cannot be read.
    pub fn view(&self) -> StoreResult<Arc<BoardView>> {
        let mut state = self.look_again()?;
        Ok(state.index.view())
    }

    /// See [`crate::ports::Board::get`].
    ///
    /// # Errors
    /// [`StoreError::NoTask`], [`StoreError::Spoiled`], [`StoreError::Io`].
    pub fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.look_again()?.known(id).map(|task| Task::clone(&task))
    }

    /// [`Self::view`] where it is at hand: nothing has to be read, locked or waited for.
    pub fn view_at_hand(&self) -> Option<Arc<BoardView>> {
        self.at_hand()?.index.view_at_hand()
    }

    /// [`Self::get`] where it is at hand.
    pub fn get_at_hand(&self, id: TaskId) -> Option<Task> {
        self.at_hand()?.known(id).ok().map(|task| Task::clone(&task))
    }

    /// Whether it is certain, without reading, locking or waiting, that nothing can be claimed by `claimant` now.
    pub fn has_surely_nothing_for(&self, claimant: &Claimant) -> bool {
        let now = self.clock.now();
        self.at_hand().is_some_and(|mut state| state.index.best(claimant, now, &HashSet::new()).is_none())
    }

    /// Whether it is certain, without reading, locking or waiting, that there is no claim to take back, and nothing else to finish.
    pub fn has_surely_no_claims(&self) -> bool {
        self.at_hand().is_some_and(|state| state.index.in_progress().is_empty() && state.index.deleted().is_empty())
    }

    /// What is known, where that is certain to be all there is: the watch tells of nothing new, nobody is at work here, and
    /// nothing waits to be finished.
    fn at_hand(&self) -> Option<MutexGuard<'_, State>> {
        if self.is_read_only {
            return None;
        }
        let mut state = self.state.try_lock().ok()?;
        let is_all = !state.scan.is_behind() && !state.scan.has_records() && state.scan.settled_suspects().is_empty();
        is_all.then_some(state)
    }

    /// What is known, brought up to date: under the lock, so that nothing is seen half done, or without where it cannot be had.
    fn look_again(&self) -> StoreResult<MutexGuard<'_, State>> {
        let mut state = self.state();
        if !state.scan.is_behind() && state.scan.settled_suspects().is_empty() {
            return Ok(state);
        }
        drop(state);
        if self.critical(|_| Ok(())).is_err() {
            let mut state = self.state();
            state.refresh()?;
            return Ok(state);
        }
        Ok(self.state())
    }

    /// See [`crate::ports::Board::claim_next`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        let (task, _) = self.critical(|section| section.claim_next(claimant))?;
        Ok(task)
    }

    /// See [`crate::ports::Board::claim`].
    ///
    /// # Errors
    /// [`StoreError::NotClaimable`] with what is in the way; [`StoreError::NoTask`], [`StoreError::Spoiled`], [`StoreError::Io`].
    pub fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        let (task, _) = self.critical(|section| section.claim(id, claimant))?;
        Ok(task)
    }

    /// See [`crate::ports::Board::change`].
    ///
    /// # Errors
    /// What the rules refuse; [`StoreError::NoTask`], [`StoreError::Spoiled`], [`StoreError::Io`].
    pub fn change(&self, id: TaskId, change: &Change, by: &Actor) -> StoreResult<Task> {
        let mut steps_left = STEPS_MAX;
        loop {
            steps_left -= 1;
            let (step, pending) = self.critical(|section| section.change(id, change, by, steps_left == 0))?;
            self.queue.sync(pending)?;
            match step {
                Step::Begun => {}
                Step::Made(task) => return Ok(task),
                Step::Released(task) => {
                    self.release_dependents(&task);
                    return Ok(task);
                }
            }
        }
    }

    /// Takes a completed task out of the others' blockers, now that a power cut cannot undo the completion. They need not wait for
    /// this, so that it may fail: the next open does it.
    fn release_dependents(&self, task: &Task) {
        let released = self.critical(|section| {
            if section.index().is_finished(task.id) {
                let ripples = rules::released(section.index(), task.id);
                section.spread(&ripples);
            }
            Ok(())
        });
        if let Err(error) = released {
            tracing::warn!(task = task.id.0, %error, "its dependents still name it; the next start mends that");
        }
    }

    /// See [`crate::ports::Board::reclaim`].
    ///
    /// # Errors
    /// [`StoreError::Io`] when nothing could be taken back.
    pub fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        let (reclaimed, _) = self.critical(|section| section.reclaim(lost))?;
        Ok(reclaimed)
    }
}

impl Section<'_> {
    fn claim_next(&mut self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        let mut passed = HashSet::new();
        while let Some(id) = self.state.index.best(claimant, self.now, &passed) {
            match self.claim(id, claimant) {
                Ok(task) => return Ok(Some(task)),
                // Its file says something else now, or is just being written.
                Err(
                    StoreError::NotClaimable { .. }
                    | StoreError::NoTask(_)
                    | StoreError::Spoiled { .. }
                    | StoreError::TooLarge { .. },
                ) => {
                    passed.insert(id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn claim(&mut self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        let task = self.fresh(id)?;
        let next = rules::claim(self.index(), &task, claimant, self.now)?;
        self.put_tasks(vec![next])?;
        self.state.known(id).map(|task| Task::clone(&task))
    }

    fn change(&mut self, id: TaskId, change: &Change, by: &Actor, is_last: bool) -> StoreResult<Step> {
        let task = self.fresh(id)?;
        let planned = rules::change(self.index(), &task, change, by, self.now)?;
        if matches!(change, Change::Edit(_)) {
            check_room(&planned.task)?;
        }
        let counts_power = self.board.durability == Durability::Power;
        let mut tasks = self.rippled(&planned.before)?;
        if matches!(change, Change::Reopen) && !tasks.is_empty() && counts_power && !is_last {
            // A power cut could keep the reopened task and lose that others wait for it.
            self.put_tasks(tasks)?;
            return Ok(Step::Begun);
        }
        tasks.push(planned.task);
        let is_completing = matches!(change, Change::Complete(_));
        if !is_completing {
            tasks.extend(self.rippled(&planned.after)?);
        }
        self.put_tasks(tasks)?;
        let task = Task::clone(&*self.state.known(id)?);
        if !is_completing || planned.after.is_empty() {
            return Ok(Step::Made(task));
        }
        if counts_power {
            return Ok(Step::Released(task));
        }
        // The completed file itself lets the others go ahead: that they name it still does no harm, so this may fail.
        self.spread(&planned.after);
        Ok(Step::Made(task))
    }

    fn reclaim(&mut self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        self.finish_leftovers()?;
        let mut reclaimed = Vec::new();
        for id in self.index().in_progress() {
            match self.reclaim_one(id, lost) {
                Ok(Some(one)) => reclaimed.push(one),
                Ok(None) | Err(StoreError::NoTask(_) | StoreError::Spoiled { .. }) => {}
                // The others must learn what was taken already.
                Err(error) if !reclaimed.is_empty() => {
                    tracing::warn!(task = id.0, %error, "the claim could not be taken back; the next look does it");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(reclaimed)
    }

    fn reclaim_one(&mut self, id: TaskId, lost: &LostClaims) -> StoreResult<Option<Reclaimed>> {
        if rules::lost(&*self.state.known(id)?, lost, self.now).is_none() {
            return Ok(None);
        }
        let task = self.fresh(id)?;
        let Some(reason) = rules::lost(&task, lost, self.now) else {
            return Ok(None);
        };
        self.put_tasks(vec![change::reclaim(&task, &reason, lost.counts, self.now)])?;
        let owner = task.owner.clone().unwrap_or_default();
        Ok(Some(Reclaimed { task: Task::clone(&*self.state.known(id)?), owner, reason }))
    }
}
