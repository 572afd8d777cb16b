//! Deletes a task in four steps. With power durability each step is durable before the next.
//!
//! 1. Raise the watermark, so that the number is never used again.
//! 2. Rename the file to `.deleted-<id>`. A deleted task blocks no other task.
//! 3. Remove the number from the links of other tasks.
//! 4. Remove the file.

use std::collections::BTreeSet;

use crate::domain::task::transition::{self, Action, Actor};
use crate::domain::task::{TASK_ID_MAX, Task, TaskId};
use crate::ports::StoreResult;
use crate::stores::board_engine;
use crate::stores::file::atomic_write::StagedFile;
use crate::stores::file::{failed, read_or_empty};

use super::paths::{DELETIONS_BYTES_MAX, DELETIONS_FILE, deleted_name};
use super::store::BoardFiles;
use super::transaction::Transaction;

impl BoardFiles {
    /// See [`crate::ports::Board::delete`].
    ///
    /// # Errors
    /// A missing permission of `by`; [`crate::ports::StoreError::NoTask`], [`crate::ports::StoreError::InvalidTask`],
    /// [`crate::ports::StoreError::Io`].
    pub fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        let (task, pending) = self.transact(|transaction| transaction.delete(id, by))?;
        self.sync(&pending)?;
        if let Err(error) = self.finish_delete(id) {
            tracing::warn!(task = id.0, %error, "cannot remove the deleted task from other tasks; the next start repairs that");
        }
        Ok(task)
    }

    fn finish_delete(&self, id: TaskId) -> StoreResult<()> {
        let (is_unreferenced, pending) = self.transact(|transaction| Ok(transaction.remove_references(id)))?;
        self.sync(&pending)?;
        if is_unreferenced {
            self.transact(|transaction| transaction.remove_deleted_file(id))?;
        }
        Ok(())
    }

    /// See [`crate::ports::Board::deleted`].
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        let being_deleted = self.view()?.deleted.clone();
        let deletions = self.deletions()?;
        Ok(ids.iter().copied().filter(|id| being_deleted.contains(id) || deletions.contains(id)).collect())
    }

    /// The numbers of recently deleted tasks. Reads at most twice the size at which the list is shortened.
    fn deletions(&self) -> StoreResult<BTreeSet<TaskId>> {
        let path = self.folder.join(DELETIONS_FILE);
        let bytes = read_or_empty(&*self.files, &path, 0, 2 * DELETIONS_BYTES_MAX)?;
        let text = String::from_utf8_lossy(&bytes);
        let numbers = text.lines().filter_map(|line| line.parse().ok());
        Ok(numbers.filter(|number| *number < TASK_ID_MAX).map(TaskId).collect())
    }
}

impl Transaction<'_> {
    fn delete(&mut self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        // A batch record that still names the task would create it again.
        self.finish_applied_batches()?;
        let task = self.reload_task(id)?;
        transition::permit(&task, Action::Delete, by)?;
        self.raise_watermark()?;
        self.rename(&id.file_name(), &deleted_name(id))?;
        self.state.record_removed(id);
        self.state.index.put_deleted(id, true);
        Ok(Task::clone(&task))
    }

    /// Removes a deleted task from the links of others. Returns true if no task names it any more.
    pub(super) fn remove_references(&mut self, id: TaskId) -> bool {
        let changes = board_engine::reference_removals(self.index(), id);
        self.write_dependents(&changes)
    }

    /// Removes the file of a deleted task that no task names any more.
    pub(super) fn remove_deleted_file(&mut self, id: TaskId) -> StoreResult<()> {
        if self.index().deleted().contains(&id) {
            self.record_deletion(id);
            self.remove(&deleted_name(id))?;
            self.state.index.put_deleted(id, false);
        }
        Ok(())
    }

    /// The largest number among recently deleted tasks; 0 if the list cannot be read.
    pub(super) fn largest_deleted(&self) -> TaskId {
        let deletions = self.board.deletions().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the list of deleted tasks");
            BTreeSet::new()
        });
        deletions.last().copied().unwrap_or(TaskId(0))
    }

    /// Adds the task to the list of deleted tasks. The deletion succeeds even if this fails.
    fn record_deletion(&self, id: TaskId) {
        let files = &self.board.files;
        let path = self.board.folder.join(DELETIONS_FILE);
        let appended = files.append(&path, format!("{}\n", id.0).as_bytes()).map_err(failed("append to", &path));
        let outcome = match appended {
            Ok(bytes) if bytes > DELETIONS_BYTES_MAX => self.halve_deletions(),
            other => other.map(|_| ()),
        };
        if let Err(error) = outcome {
            tracing::warn!(task = id.0, %error, "cannot record that the task was deleted");
        }
    }

    /// Removes the older half of the list.
    fn halve_deletions(&self) -> StoreResult<()> {
        let files = self.board.files.as_ref();
        let path = self.board.folder.join(DELETIONS_FILE);
        let (bytes, _) =
            files.read(&path, DELETIONS_BYTES_MAX / 2, DELETIONS_BYTES_MAX).map_err(failed("read", &path))?;
        let from = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        StagedFile::write(files, &self.board.folder, DELETIONS_FILE, &bytes[from..])?.commit()
    }
}
