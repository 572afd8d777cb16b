//! The board of one workspace with blocking calls. Each call is one transaction under the board's lock. If it promises
//! durability, it then waits for the disk without the lock.
//!
//! This module knows the order of writes; [`crate::stores::board_engine`] decides what is written.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::broadcast;

use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::transition::{self, Actor, Change};
use crate::domain::task::{Task, TaskId};
use crate::ports::{
    BoardView, Claimant, Clock, IoAction, ReclaimRequest, Reclaimed, StoreChange, StoreError, StoreResult,
};
use crate::stores::board_engine::{self, BoardLookup};
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::{self, FileSystem};

use super::change_queue::{ChangeQueue, QueuedChange};
use super::folder_scan::BoardState;
use super::paths::{LOCK_FILE, board_folder};
use super::transaction::{Transaction, check_claim_space};

/// A reopening takes two steps. If others undo the first one this often, it is done in one step.
const REOPEN_STEPS_MAX: usize = 3;

/// The progress of a change after one transaction.
pub(super) enum ChangeProgress {
    /// It continues after the written part is durable.
    Continue,
    /// It is done.
    Done(Task),
    /// The task is completed. Its dependents are updated once that is durable.
    Completed(Task),
}

/// The board's files. All calls block.
pub struct BoardFiles {
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) folder: PathBuf,
    pub(super) durability: Durability,
    pub(super) renames_after_bytes: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) change_queue: ChangeQueue,
    lock: PathBuf,
    changes: broadcast::Sender<StoreChange>,
    /// From the standard library: a call that panics poisons it, and the next call builds the state again.
    state: Mutex<BoardState>,
    is_read_only: bool,
    /// Records that this board made durable, until their tasks are on the board.
    pub(super) durable_records: parking_lot::Mutex<HashSet<String>>,
}

impl BoardFiles {
    /// Opens the board of `workspace`, creates it if it is missing, and completes the calls of killed processes.
    ///
    /// A read-only board is opened too: reads work, and changes return an error.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the board's folder can be neither created nor read.
    pub fn open(
        files: Arc<dyn FileSystem>,
        workspace: &Path,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: broadcast::Sender<StoreChange>,
    ) -> StoreResult<Self> {
        let folder = board_folder(workspace);
        if files.stamp(&folder).is_err() {
            files.create_folder(&folder).map_err(failed("create", &folder))?;
            if durability == Durability::Power {
                files.sync_folder(workspace).map_err(failed(IoAction::Sync, workspace))?;
            }
        }
        let board = Self::with_index(files, folder, durability, clock, changes, false);
        board.state().refresh()?;
        match board.transact(|transaction| transaction.recover()) {
            // Another process holds the lock. Each call takes it again, and reports it.
            Err(StoreError::Io { source, .. }) if fs::LockTimeout::in_error(&source).is_some() => {}
            Err(error) => tracing::warn!(%error, "cannot write to the board; it is read-only"),
            Ok(_) => {}
        }
        Ok(board)
    }

    /// The board of `workspace` for read-only access: creates, locks and repairs nothing, and refuses every change.
    pub fn open_read_only(files: Arc<dyn FileSystem>, workspace: &Path, clock: Arc<dyn Clock>) -> Self {
        let (changes, _) = broadcast::channel(1);
        Self::with_index(files, board_folder(workspace), Durability::Process, clock, changes, true)
    }

    fn with_index(
        files: Arc<dyn FileSystem>,
        folder: PathBuf,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: broadcast::Sender<StoreChange>,
        is_read_only: bool,
    ) -> Self {
        Self {
            renames_after_bytes: files.renames_after_bytes(&folder),
            change_queue: ChangeQueue::default(),
            lock: folder.join(LOCK_FILE),
            state: Mutex::new(BoardState::new(Arc::clone(&files), &folder)),
            files,
            folder,
            durability,
            clock,
            changes,
            is_read_only,
            durable_records: parking_lot::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(|poisoned| {
            // A call that panicked may have left the index incomplete. It is built again from the files.
            let mut state = poisoned.into_inner();
            *state = BoardState::new(Arc::clone(&self.files), &self.folder);
            self.state.clear_poison();
            state
        })
    }

    /// Runs `act` under the board's lock with the board as it is then. Also returns the files that must become durable.
    pub(super) fn transact<'a, R>(
        &'a self,
        act: impl FnOnce(&mut Transaction<'a>) -> StoreResult<R>,
    ) -> StoreResult<(R, SyncRequest)> {
        if self.is_read_only {
            return Err(failed("change", &self.folder)(std::io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        // Most changes are read without the lock: before it is taken, and while another process holds it. An error occurs again below.
        let prepare = || drop(self.state().prefetch());
        // The state is locked after the file lock, so that a reader never waits for the file lock.
        let outcome = fs::locked_prepared(self.files.as_ref(), &self.lock, prepare, || {
            let mut transaction = Transaction::new(self, self.state());
            let outcome = transaction.begin().and_then(|()| act(&mut transaction));
            let Transaction { pending, replaced, has_written, .. } = transaction;
            (outcome, pending, replaced, has_written)
        });
        let (outcome, pending, _replaced, has_written) = outcome.map_err(failed(IoAction::Lock, &self.lock))?;
        if has_written {
            // There may be no listener.
            let _ = self.changes.send(StoreChange::Board);
        }
        Ok((outcome?, pending))
    }

    /// Makes `request` durable. Blocks, so it is called without the lock, except where [`super::recover`] documents it.
    pub(super) fn sync(&self, request: &SyncRequest) -> StoreResult<()> {
        request.sync(&*self.files, self.durability)
    }

    /// See [`crate::ports::Board::view`].
    ///
    /// # Errors
    /// [`StoreError::Io`] if the folder cannot be read.
    pub fn view(&self) -> StoreResult<Arc<BoardView>> {
        let mut state = self.refreshed()?;
        Ok(state.index.view())
    }

    /// See [`crate::ports::Board::get`].
    ///
    /// # Errors
    /// [`StoreError::NoTask`], [`StoreError::InvalidTask`], [`StoreError::Io`].
    pub fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.refreshed()?.task(id).map(|task| Task::clone(&task))
    }

    /// The cached [`Self::view`], if it is up to date. Does not read, lock or wait.
    pub fn cached_view(&self) -> Option<Arc<BoardView>> {
        self.cached()?.index.cached_view()
    }

    /// The cached [`Self::get`], if it is up to date.
    pub fn cached_task(&self, id: TaskId) -> Option<Task> {
        self.cached()?.task(id).ok().map(|task| Task::clone(&task))
    }

    /// Returns true if reads must be repeated, because another program was writing a file when this board was opened, and still is.
    /// This ends after [`super::QUARANTINE_AFTER`].
    pub fn must_repeat_reads(&self) -> bool {
        self.state().must_repeat_reads()
    }

    /// Returns true if the file of `id` is invalid, but another program may still be writing it.
    pub fn is_being_written(&self, id: TaskId) -> bool {
        self.state().is_being_written(id)
    }

    /// Returns true if `claimant` certainly can claim nothing now. Does not read, lock or wait.
    pub fn is_known_empty_for(&self, claimant: &Claimant) -> bool {
        let now = self.clock.now();
        let candidate = claimant.as_candidate();
        self.cached().is_some_and(|mut state| state.index.queue().next_for(&candidate, now, &HashSet::new()).is_none())
    }

    /// Returns true if there certainly is no claim to reclaim and no deletion to finish. Does not read, lock or wait.
    pub fn is_known_without_claims(&self) -> bool {
        self.cached()
            .is_some_and(|mut state| state.index.queue().claimed().is_empty() && state.index.deleted().is_empty())
    }

    /// The known state if it is certainly complete: no new changes, no running call in this process, nothing to finish.
    fn cached(&self) -> Option<MutexGuard<'_, BoardState>> {
        if self.is_read_only {
            return None;
        }
        let mut state = self.state.try_lock().ok()?;
        let is_complete = state.is_current() && !state.has_records() && !state.must_repeat_reads();
        is_complete.then_some(state)
    }

    /// The known state, brought up to date. It is read under the lock, so that no half-made change is seen, unless that fails.
    fn refreshed(&self) -> StoreResult<MutexGuard<'_, BoardState>> {
        let mut state = self.state();
        if state.is_current() {
            return Ok(state);
        }
        drop(state);
        if self.transact(|_| Ok(())).is_err() {
            let mut state = self.state();
            state.refresh()?;
            state.take_finished();
            return Ok(state);
        }
        self.release_dependents_of_finished();
        Ok(self.state())
    }

    /// Removes tasks that other processes or programs completed from the blockers of others, after the completions are durable. This
    /// may fail; the next open repeats it.
    fn release_dependents_of_finished(&self) {
        let finished: Vec<TaskId> = {
            let mut state = self.state();
            let finished = state.take_finished();
            finished.into_iter().filter(|id| !state.index.dependents(*id).is_empty()).collect()
        };
        if finished.is_empty() {
            return;
        }
        let files = finished.iter().map(|id| self.folder.join(id.file_name())).collect();
        if let Err(error) = self.sync(&SyncRequest { files, folders: vec![self.folder.clone()] }) {
            return tracing::warn!(%error, "cannot make completions durable; the next start updates their dependents");
        }
        finished.into_iter().for_each(|id| self.release_dependents(id));
    }

    /// See [`crate::ports::Board::claim_next`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        let (task, _) = self.transact(|transaction| transaction.claim_next(claimant))?;
        Ok(task)
    }

    /// See [`crate::ports::Board::claim`].
    ///
    /// # Errors
    /// [`StoreError::NotClaimable`] with the reason; [`StoreError::NoTask`], [`StoreError::InvalidTask`], [`StoreError::Io`].
    pub fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        let (task, _) = self.transact(|transaction| transaction.claim(id, claimant))?;
        Ok(task)
    }

    /// See [`crate::ports::Board::change`].
    ///
    /// # Errors
    /// The errors of [`board_engine::change`]; [`StoreError::NoTask`], [`StoreError::InvalidTask`], [`StoreError::Io`].
    pub fn change(&self, id: TaskId, change: &Change, by: &Actor) -> StoreResult<Task> {
        let mut steps_left = REOPEN_STEPS_MAX;
        loop {
            steps_left -= 1;
            let is_one_step = steps_left == 0;
            let queued = QueuedChange { id, change: change.clone(), by: by.clone(), is_one_step };
            let (progress, pending) = self.change_in_group(queued)?;
            self.sync(&pending)?;
            match progress {
                ChangeProgress::Continue => {}
                ChangeProgress::Done(task) => return Ok(task),
                ChangeProgress::Completed(task) => {
                    self.release_dependents(task.id);
                    return Ok(task);
                }
            }
        }
    }

    /// Removes a completed task from the blockers of others, after the completion is durable. This may fail,
    /// because the others do not wait for it; the next open repeats it.
    fn release_dependents(&self, id: TaskId) {
        let released = self.transact(|transaction| {
            if transaction.index().is_finished(id) {
                let mut changes = board_engine::unblock_dependents(transaction.index(), id);
                // Another program may be writing the file of a task that it has in progress.
                changes.retain(|id, _| !transaction.index().task(*id).is_some_and(Task::is_foreign));
                transaction.write_dependents(&changes);
            }
            Ok(())
        });
        if let Err(error) = released {
            tracing::warn!(task = id.0, %error, "cannot remove the task from its dependents; the next start repairs that");
        }
    }

    /// See [`crate::ports::Board::reclaim`].
    ///
    /// # Errors
    /// [`StoreError::Io`] if no claim could be reclaimed.
    pub fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        let (reclaimed, _) = self.transact(|transaction| transaction.reclaim(request))?;
        Ok(reclaimed)
    }
}

impl Transaction<'_> {
    fn claim_next(&mut self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        let mut skipped = HashSet::new();
        while let Some(id) = self.state.index.queue().next_for(&claimant.as_candidate(), self.now, &skipped) {
            match self.claim(id, claimant) {
                Ok(task) => return Ok(Some(task)),
                // Its file has changed, or is being written.
                Err(
                    StoreError::NotClaimable { .. }
                    | StoreError::NoTask(_)
                    | StoreError::InvalidTask { .. }
                    | StoreError::TooLarge { .. },
                ) => {
                    skipped.insert(id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn claim(&mut self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        let task = self.reload_task(id)?;
        let next = board_engine::claim(self.index(), &task, claimant, self.now)?;
        self.put_tasks(vec![next])?;
        self.state.task(id).map(|task| Task::clone(&task))
    }

    pub(super) fn change(&mut self, queued: &QueuedChange) -> StoreResult<ChangeProgress> {
        let QueuedChange { id, change, by, is_one_step } = queued;
        let task = self.reload_task(*id)?;
        let planned = board_engine::change(self.index(), &task, change, by, self.now)?;
        if matches!(change, Change::Edit(_)) {
            check_claim_space(&planned.task)?;
        }
        let mut tasks = self.apply_changes(&planned.before)?;
        if matches!(change, Change::Reopen) && !tasks.is_empty() && !is_one_step {
            // A power cut could keep the reopened task but lose the links of its dependents.
            self.put_tasks(tasks)?;
            return Ok(ChangeProgress::Continue);
        }
        tasks.push(planned.task);
        let is_completing = matches!(change, Change::Complete(_));
        if !is_completing {
            tasks.extend(self.apply_changes(&planned.after)?);
        }
        self.put_tasks(tasks)?;
        let task = Task::clone(&*self.state.task(*id)?);
        // The completed file unblocks the others, which may still name it.
        let has_named_dependents = is_completing && !planned.after.is_empty();
        Ok(if has_named_dependents { ChangeProgress::Completed(task) } else { ChangeProgress::Done(task) })
    }

    fn reclaim(&mut self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        self.finish_leftovers()?;
        let mut reclaimed = Vec::new();
        for id in self.state.index.queue().claimed().clone() {
            match self.reclaim_one(id, request) {
                Ok(Some(one)) => reclaimed.push(one),
                Ok(None) | Err(StoreError::NoTask(_) | StoreError::InvalidTask { .. }) => {}
                // The caller must learn about the claims that were already reclaimed.
                Err(error) if !reclaimed.is_empty() => {
                    tracing::warn!(task = id.0, %error, "cannot reclaim the task; the next reclaim tries again");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(reclaimed)
    }

    fn reclaim_one(&mut self, id: TaskId, request: &ReclaimRequest) -> StoreResult<Option<Reclaimed>> {
        if board_engine::claim_loss_reason(&*self.state.task(id)?, request, self.now).is_none() {
            return Ok(None);
        }
        let task = self.reload_task(id)?;
        let Some(reason) = board_engine::claim_loss_reason(&task, request, self.now) else {
            return Ok(None);
        };
        self.put_tasks(vec![transition::reclaim(&task, &reason, request.is_failure, self.now)])?;
        let owner = task.owner.clone().unwrap_or_default();
        Ok(Some(Reclaimed { task: Task::clone(&*self.state.task(id)?), owner, reason }))
    }
}
