//! Creates tasks: all of a call or none after any crash, and with numbers never used before.
//!
//! One task appears with its rename. Several appear with the rename of a record that holds them all (`.batch-<first>-<last>`, one
//! task a line). The next holder of the lock puts them on the board ([`super::recover`]). With power durability, bytes are
//! durable before a file appears, and the record's name before its tasks. The record then stays as `.applied-…` until the tasks
//! are durable.

use crate::domain::task::transition::Actor;
use crate::domain::task::{NewTask, Task, TaskId};
use crate::ports::{StoreError, StoreResult};
use crate::stores::board_engine::{CreateBatch, PlannedBatch};
use crate::stores::file::atomic_write::StagedFile;
use crate::stores::file::failed;
use crate::stores::file::sync::SyncRequest;

use super::paths::{RECORD_BYTES_MAX, applied_name, batch_name};
use super::store::BoardFiles;
use super::transaction::{StagedTask, Transaction, check_claim_space, render_task};

/// The most attempts of one call. An attempt fails if the board changes between its two transactions.
const CREATE_ATTEMPTS_MAX: usize = 16;

struct CreateRequest<'a> {
    by: &'a Actor,
    tasks: Vec<NewTask>,
    skip_known_sources: bool,
}

/// A file whose bytes are durable, without its final name.
struct PreparedFile<'a> {
    planned: PlannedBatch,
    file: StagedFile<'a>,
}

impl BoardFiles {
    /// See [`crate::ports::Board::create`]. Reserves numbers under the lock, makes the bytes durable without it, and renames the file
    /// under it.
    ///
    /// # Errors
    /// [`StoreError::Invalid`], [`StoreError::UnknownBlocker`], [`StoreError::Cycle`], [`StoreError::TooLarge`], [`StoreError::Io`].
    pub fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        let request = &CreateRequest { by, tasks, skip_known_sources };
        for _ in 0..CREATE_ATTEMPTS_MAX {
            let (planned, _) = self.transact(|transaction| transaction.reserve(request))?;
            if planned.created.is_empty() {
                return self.transact(|transaction| transaction.results(&planned.ids, &[])).map(|(tasks, _)| tasks);
            }
            let prepared = self.prepare(planned)?;
            let created = prepared.planned.created.clone();
            let (ids, pending) = self.transact(|transaction| transaction.publish(request, prepared))?;
            let Some(ids) = ids else {
                continue;
            };
            self.sync(&pending)?;
            if let Some((first, last)) = record_of(&created) {
                self.apply_record(first, last)?;
            }
            return self.transact(|transaction| transaction.results(&ids, &created)).map(|(tasks, _)| tasks);
        }
        Err(StoreError::Invalid("cannot create the tasks: the board keeps changing; try again".to_owned()))
    }

    /// Puts the tasks of a durable record on the board and makes them durable. Another holder of the lock may do so first.
    ///
    /// The tasks are already accepted: after an error here, the next call does this work.
    fn apply_record(&self, first: TaskId, last: TaskId) -> StoreResult<()> {
        let name = batch_name(first, last);
        self.durable_records.lock().insert(name.clone());
        // Each transaction first puts the tasks of durable records on the board.
        let applied = self.transact(|_| Ok(()));
        self.durable_records.lock().remove(&name);
        applied?;
        let files = (first.0..=last.0).map(|id| self.folder.join(TaskId(id).file_name())).collect();
        self.sync(&SyncRequest { files, folders: vec![self.folder.clone()] })?;
        let _ = self.files.remove(&self.folder.join(applied_name(first, last)));
        Ok(())
    }

    /// Returns true if this process made the record of that name durable.
    pub(super) fn is_durable_record(&self, name: &str) -> bool {
        self.durable_records.lock().contains(name)
    }

    fn prepare(&self, planned: PlannedBatch) -> StoreResult<PreparedFile<'_>> {
        let (name, bytes) = match record_of(&planned.created) {
            None => (planned.created[0].id.file_name(), render_task(planned.created[0].clone(), None)?.1),
            Some((first, last)) => (batch_name(first, last), record_text(&planned.created)?),
        };
        let file = StagedFile::write(self.files.as_ref(), &self.folder, &name, bytes.as_bytes())?;
        self.sync(&SyncRequest { files: vec![file.temporary_path().to_owned()], folders: Vec::new() })?;
        Ok(PreparedFile { planned, file })
    }
}

/// The first and last number of a record. One task needs no record.
fn record_of(created: &[Task]) -> Option<(TaskId, TaskId)> {
    match created {
        [first, .., last] => Some((first.id, last.id)),
        _ => None,
    }
}

fn record_text(created: &[Task]) -> StoreResult<String> {
    let mut text = String::new();
    for task in created {
        let (task, _) = render_task(task.clone(), None)?;
        text.push_str(&task.document.to_line());
        text.push('\n');
    }
    if text.len() as u64 > RECORD_BYTES_MAX {
        let bytes_max = usize::try_from(RECORD_BYTES_MAX).unwrap_or(usize::MAX);
        return Err(StoreError::TooLarge { what: "the tasks of one call".to_owned(), bytes: text.len(), bytes_max });
    }
    Ok(text)
}

impl<'a> Transaction<'a> {
    /// Checks the tasks and reserves their numbers.
    fn reserve(&mut self, request: &CreateRequest<'_>) -> StoreResult<PlannedBatch> {
        let planned = self.plan(request, None)?;
        if let Some(last) = planned.created.last() {
            let watermark = self.stage_watermark(last.id)?;
            self.commit_watermark(watermark)?;
        }
        Ok(planned)
    }

    /// Renames the prepared file, and returns the numbers of all tasks of the call. Returns `None` if the plan is no longer valid for
    /// the board.
    fn publish(&mut self, request: &CreateRequest<'_>, prepared: PreparedFile<'a>) -> StoreResult<Option<Vec<TaskId>>> {
        let PreparedFile { planned, file } = prepared;
        self.now = planned.created[0].created_at.unwrap_or(self.now);
        let replanned = self.plan(request, Some(planned.created[0].id))?;
        let is_free = planned.created.iter().all(|task| self.is_id_free(task.id));
        let is_temporary_gone = !self.state.exists(file.temporary_name())?;
        if replanned.created != planned.created || !is_free || is_temporary_gone {
            return Ok(None);
        }
        match planned.created.as_slice() {
            [one] => {
                let (task, _) = render_task(one.clone(), None)?;
                self.commit_tasks(vec![StagedTask { file, task }])?;
                // The call does not wait until the dependents are durable: after a power cut the next open updates them again.
                let pending_before = self.pending.clone();
                self.write_dependents(&planned.after);
                self.pending = pending_before;
            }
            // The next transaction finds the record and puts its tasks on the board.
            created => {
                self.commit(file)?;
                if let Some((first, last)) = record_of(created) {
                    self.state.add_record(&batch_name(first, last));
                }
            }
        }
        Ok(Some(planned.ids))
    }

    fn plan(&self, request: &CreateRequest<'_>, first: Option<TaskId>) -> StoreResult<PlannedBatch> {
        let batch = CreateBatch::new(self.index(), request.tasks.clone(), request.skip_known_sources)?;
        let first = match first {
            Some(first) => first,
            None => TaskId(self.largest_id()?.0 + 1),
        };
        let planned = batch.plan(self.index(), request.by, first, self.now)?;
        planned.created.iter().try_for_each(check_claim_space)?;
        Ok(planned)
    }

    /// The tasks as they are now. Another program may already have changed or removed the file of a created one: that one is returned
    /// as it was created.
    fn results(&mut self, ids: &[TaskId], created: &[Task]) -> StoreResult<Vec<Task>> {
        let created = |id| created.iter().find(|task| task.id == id).cloned();
        let result = |id: &TaskId| match self.state.task(*id) {
            Ok(task) => Ok(Task::clone(&task)),
            Err(error) => created(*id).ok_or(error),
        };
        ids.iter().map(result).collect()
    }

    /// Writes temporaries without a sync: either a record makes them recoverable, or the call promises no durability.
    pub(super) fn stage_tasks(&self, tasks: &[Task]) -> StoreResult<Vec<StagedTask<'a>>> {
        let stage = |task: &Task| {
            let (task, text) = render_task(task.clone(), None)?;
            let (files, folder) = (self.board.files.as_ref(), &self.board.folder);
            Ok(StagedTask { file: StagedFile::write(files, folder, &task.id.file_name(), text.as_bytes())?, task })
        };
        tasks.iter().map(stage).collect()
    }

    /// Removes a file of the board that is not a task file.
    pub(super) fn remove(&mut self, name: &str) -> StoreResult<()> {
        let path = self.board.folder.join(name);
        self.board.files.remove(&path).map_err(failed("remove", &path))?;
        self.state.remove_record(name);
        self.has_written = true;
        self.require_folder_sync();
        Ok(())
    }

    /// Renames a file of the board that is not a temporary.
    pub(super) fn rename(&mut self, name: &str, to: &str) -> StoreResult<()> {
        let from = self.board.folder.join(name);
        self.board.files.rename(&from, &self.board.folder.join(to)).map_err(failed("rename", &from))?;
        self.state.remove_record(name);
        self.state.add_record(to);
        self.has_written = true;
        self.require_folder_sync();
        Ok(())
    }
}
