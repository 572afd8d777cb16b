//! A task goes: its file gets another name (`.deleted-<id>`, which counts as finished), its number is taken out of the others,
//! then that file is removed. The watermark goes first, so that the number is never used again. Where power cuts count, each
//! step is durable before the next.

use std::collections::BTreeSet;
use std::io;

use crate::domain::change::{self, Action, Actor};
use crate::domain::task::{TASK_ID_MAX, Task, TaskId};
use crate::ports::StoreResult;
use crate::stores::file::replace::Staged;
use crate::stores::file::{Durability, failed};
use crate::stores::rules;

use super::core::BoardFiles;
use super::layout::{DELETIONS_BYTES_MAX, DELETIONS_FILE, deleted_name};
use super::section::Section;

impl BoardFiles {
    /// See [`crate::ports::Board::delete`].
    ///
    /// # Errors
    /// When `by` may not; [`crate::ports::StoreError::NoTask`], [`crate::ports::StoreError::Spoiled`],
    /// [`crate::ports::StoreError::Io`].
    pub fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        let (task, pending) = self.critical(|section| section.delete(id, by))?;
        self.queue.sync(pending)?;
        if self.durability == Durability::Power
            && let Err(error) = self.finish_delete(id)
        {
            tracing::warn!(task = id.0, %error, "others may still name the deleted task; the next start mends that");
        }
        Ok(task)
    }

    fn finish_delete(&self, id: TaskId) -> StoreResult<()> {
        let (is_pruned, pending) = self.critical(|section| Ok(section.prune_deleted(id)))?;
        self.queue.sync(pending)?;
        if is_pruned {
            self.critical(|section| section.forget_deleted(id))?;
        }
        Ok(())
    }
}

impl BoardFiles {
    /// See [`crate::ports::Board::deleted`].
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        let being_deleted = self.view()?.deleted.clone();
        let noted = self.deletions()?;
        Ok(ids.iter().copied().filter(|id| being_deleted.contains(id) || noted.contains(id)).collect())
    }

    fn deletions(&self) -> StoreResult<BTreeSet<TaskId>> {
        let path = self.folder.join(DELETIONS_FILE);
        let bytes = match self.files.read(&path, 0, 2 * DELETIONS_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let text = String::from_utf8_lossy(&bytes);
        let numbers = text.lines().filter_map(|line| line.parse().ok());
        Ok(numbers.filter(|number| *number < TASK_ID_MAX).map(TaskId).collect())
    }
}

impl Section<'_> {
    fn delete(&mut self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        // A record of it would bring it back.
        self.finish_applied()?;
        let task = self.fresh(id)?;
        change::permit(&task, Action::Delete, by)?;
        self.raise_watermark()?;
        self.rename(&id.file_name(), &deleted_name(id))?;
        self.state.took_away(id);
        self.state.index.put_deleted(id, true);
        if self.board.durability == Durability::Process && self.prune_deleted(id) {
            // The task is deleted; what is left of it is removed by the next start.
            let _ = self.forget_deleted(id);
        }
        Ok(Task::clone(&task))
    }

    /// Takes a deleted task out of the others, and says whether nobody names it any more.
    pub(super) fn prune_deleted(&mut self, id: TaskId) -> bool {
        let ripples = rules::references(self.index(), id);
        self.spread(&ripples)
    }

    /// Removes the file of a deleted task that nobody names any more.
    pub(super) fn forget_deleted(&mut self, id: TaskId) -> StoreResult<()> {
        if self.index().deleted().contains(&id) {
            self.note_deletion(id);
            self.remove(&deleted_name(id))?;
            self.state.index.put_deleted(id, false);
        }
        Ok(())
    }

    /// The largest number among the tasks deleted last. A list that cannot be read says nothing.
    pub(super) fn largest_deleted(&self) -> TaskId {
        let noted = self.board.deletions().unwrap_or_else(|error| {
            tracing::warn!(%error, "which tasks were deleted last is not known");
            BTreeSet::new()
        });
        noted.last().copied().unwrap_or(TaskId(0))
    }

    /// Notes for those who miss the task that it was deleted on request. The deletion does not hang on it.
    fn note_deletion(&self, id: TaskId) {
        let (files, path) = (&self.board.files, self.board.folder.join(DELETIONS_FILE));
        let noted = files.append(&path, format!("{}\n", id.0).as_bytes()).map_err(failed("append to", &path));
        let outcome = noted.and_then(|bytes| if bytes > DELETIONS_BYTES_MAX { self.halve_deletions() } else { Ok(()) });
        if let Err(error) = outcome {
            tracing::warn!(task = id.0, %error, "that the task was deleted could not be noted");
        }
    }

    fn halve_deletions(&self) -> StoreResult<()> {
        let (files, path) = (self.board.files.as_ref(), self.board.folder.join(DELETIONS_FILE));
        let (bytes, _) =
            files.read(&path, DELETIONS_BYTES_MAX / 2, DELETIONS_BYTES_MAX).map_err(failed("read", &path))?;
        let from = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        Staged::write(files, &self.board.folder, DELETIONS_FILE, &bytes[from..])?.commit()
    }
}
