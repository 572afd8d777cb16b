//! A task goes: its file gets another name (`.deleted-<id>`, which counts as finished), its number is taken out of the others,
//! then that file is removed. The watermark goes first, so that the number is never used again. Where power cuts count, each
//! step is durable before the next.

use crate::domain::change::{self, Action, Actor};
use crate::domain::task::{Task, TaskId};
use crate::ports::StoreResult;
use crate::stores::file::Durability;
use crate::stores::rules;

use super::core::BoardFiles;
use super::layout::deleted_name;
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
            self.remove(&deleted_name(id))?;
            self.state.index.put_deleted(id, false);
        }
        Ok(())
    }
}
