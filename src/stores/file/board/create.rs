//! New tasks: all of a call or none, whatever is killed, and with numbers never used before.
//!
//! One task appears with its rename. Several appear with the rename of a record that holds them all (`.batch-<first>-<last>`, a
//! task on each line): whoever has the lock next puts them on the board ([`super::recover`]). Where power cuts count, the bytes of
//! what appears are durable first, and the record's name before its tasks'; it then stays, as `.applied-…`, until these are durable too.

use std::collections::HashSet;
use std::sync::PoisonError;

use crate::domain::change::Actor;
use crate::domain::task::{NewTask, Task, TaskId};
use crate::ports::{StoreError, StoreResult};
use crate::stores::file::replace::Staged;
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed};
use crate::stores::rules::{Batch, PlannedBatch};

use super::core::BoardFiles;
use super::layout::{RECORD_BYTES_MAX, applied_name, batch_name};
use super::section::{Output, Section, check_room, written};

/// The board may change between two looks at it; a call that meets that this often gives up.
const ROUNDS_MAX: usize = 16;

/// What a call asks for.
struct Wanted<'a> {
    by: &'a Actor,
    tasks: Vec<NewTask>,
    skip_known_sources: bool,
}

/// A file whose bytes are on disk and whose name is not.
struct Prepared<'a> {
    planned: PlannedBatch,
    file: Staged<'a>,
}

impl BoardFiles {
    /// See [`crate::ports::Board::create`].
    ///
    /// # Errors
    /// [`StoreError::Invalid`], [`StoreError::UnknownBlocker`], [`StoreError::Cycle`], [`StoreError::TooLarge`], [`StoreError::Io`].
    pub fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        let wanted = Wanted { by, tasks, skip_known_sources };
        match self.durability {
            Durability::Process => self.critical(|section| section.create(&wanted)).map(|(tasks, _)| tasks),
            Durability::Power => self.create_durably(&wanted),
        }
    }

    /// Numbers are reserved under the lock, the bytes made durable without it, the names given under it.
    fn create_durably(&self, wanted: &Wanted<'_>) -> StoreResult<Vec<Task>> {
        for _ in 0..ROUNDS_MAX {
            let (planned, _) = self.critical(|section| section.reserve(wanted))?;
            if planned.created.is_empty() {
                return self.critical(|section| section.results(&planned.ids)).map(|(tasks, _)| tasks);
            }
            let prepared = self.prepare(planned)?;
            let record = record_of(&prepared.planned.created);
            let (ids, pending) = self.critical(|section| section.publish(wanted, prepared))?;
            let Some(ids) = ids else {
                continue;
            };
            self.queue.sync(pending)?;
            if let Some((first, last)) = record {
                self.apply_record(first, last)?;
            }
            return self.critical(|section| section.results(&ids)).map(|(tasks, _)| tasks);
        }
        Err(StoreError::Invalid("the board keeps changing; try again".to_owned()))
    }

    /// Puts the tasks of a durable record on the board and makes them durable too. Whoever else has the lock may do so first; what
    /// fails here is done by the next call: the tasks are accepted.
    fn apply_record(&self, first: TaskId, last: TaskId) -> StoreResult<()> {
        let name = batch_name(first, last);
        self.known_durable(|names| names.insert(name.clone()));
        let applied = self.critical(|section| {
            let paths = (first.0..=last.0).map(|id| section.board.folder.join(TaskId(id).file_name()));
            Ok(paths.collect::<Vec<_>>())
        });
        self.known_durable(|names| names.remove(&name));
        let (files, _) = applied?;
        self.queue.sync(SyncRequest { files, folders: vec![self.folder.clone()] })?;
        let _ = self.files.remove(&self.folder.join(applied_name(first, last)));
        Ok(())
    }

    fn known_durable<R>(&self, act: impl FnOnce(&mut HashSet<String>) -> R) -> R {
        act(&mut self.durable_records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this process made the record of that name durable.
    pub(super) fn is_durable_record(&self, name: &str) -> bool {
        self.known_durable(|names| names.contains(name))
    }

    fn prepare(&self, planned: PlannedBatch) -> StoreResult<Prepared<'_>> {
        let (name, bytes) = match record_of(&planned.created) {
            None => (planned.created[0].id.file_name(), written(planned.created[0].clone(), None)?.1),
            Some((first, last)) => (batch_name(first, last), record_text(&planned.created)?),
        };
        let file = Staged::write(self.files.as_ref(), &self.folder, &name, bytes.as_bytes())?;
        self.queue.sync(SyncRequest { files: vec![file.path().to_owned()], folders: Vec::new() })?;
        Ok(Prepared { planned, file })
    }
}

/// The numbers a record is named by; one task needs none.
fn record_of(created: &[Task]) -> Option<(TaskId, TaskId)> {
    match created {
        [first, .., last] => Some((first.id, last.id)),
        _ => None,
    }
}

fn record_text(created: &[Task]) -> StoreResult<String> {
    let mut text = String::new();
    for task in created {
        let (task, _) = written(task.clone(), None)?;
        text.push_str(&task.document.to_line());
        text.push('\n');
    }
    if text.len() as u64 > RECORD_BYTES_MAX {
        let bytes_max = usize::try_from(RECORD_BYTES_MAX).unwrap_or(usize::MAX);
        return Err(StoreError::TooLarge { what: "what one call creates".to_owned(), bytes: text.len(), bytes_max });
    }
    Ok(text)
}

impl<'a> Section<'a> {
    /// All of it in one section. The record is what counts: once it has its name the tasks are accepted.
    fn create(&mut self, wanted: &Wanted<'_>) -> StoreResult<Vec<Task>> {
        let planned = self.plan(wanted, None)?;
        if let Some(last) = planned.created.last() {
            let watermark = self.stage_watermark(last.id)?;
            let record = match record_of(&planned.created) {
                None => None,
                Some((first, last)) => {
                    Some(self.stage(&batch_name(first, last), record_text(&planned.created)?.as_bytes())?)
                }
            };
            let tasks = self.stage_tasks(&planned.created)?;
            self.commit_watermark(watermark)?;
            if let Some(record) = record {
                self.commit(record)?;
            }
            self.commit_tasks(tasks)?;
            if let Some((first, last)) = record_of(&planned.created) {
                self.remove(&batch_name(first, last))?;
            }
            self.spread(&planned.after);
        }
        self.results(&planned.ids)
    }

    /// Looks whether all of it is acceptable and takes the numbers for it.
    fn reserve(&mut self, wanted: &Wanted<'_>) -> StoreResult<PlannedBatch> {
        let planned = self.plan(wanted, None)?;
        if let Some(last) = planned.created.last() {
            let watermark = self.stage_watermark(last.id)?;
            self.commit_watermark(watermark)?;
        }
        Ok(planned)
    }

    /// Gives what was prepared its name, and returns the numbers of all tasks of the call; `None` when the board as it is now asks for
    /// something else.
    fn publish(&mut self, wanted: &Wanted<'_>, prepared: Prepared<'a>) -> StoreResult<Option<Vec<TaskId>>> {
        let Prepared { planned, file } = prepared;
        self.now = planned.created[0].created_at.unwrap_or(self.now);
        let again = self.plan(wanted, Some(planned.created[0].id))?;
        let is_free = planned.created.iter().all(|task| self.is_free(task.id));
        let is_swept = !self.state.is_there(file.temporary())?;
        if again.created != planned.created || !is_free || is_swept {
            return Ok(None);
        }
        match planned.created.as_slice() {
            [one] => {
                let (task, text) = written(one.clone(), None)?;
                self.commit_tasks(vec![Output { file, task, text }])?;
                let promised = self.pending.clone();
                self.spread(&planned.after);
                self.pending = promised;
            }
            // The next section finds the record and puts its tasks on the board.
            created => {
                self.commit(file)?;
                if let Some((first, last)) = record_of(created) {
                    self.state.scan.note_record(&batch_name(first, last));
                }
            }
        }
        Ok(Some(planned.ids))
    }

    fn plan(&self, wanted: &Wanted<'_>, first: Option<TaskId>) -> StoreResult<PlannedBatch> {
        let batch = Batch::new(self.index(), wanted.tasks.clone(), wanted.skip_known_sources)?;
        let first = match first {
            Some(first) => first,
            None => TaskId(self.largest_id()?.0 + 1),
        };
        let planned = batch.plan(self.index(), wanted.by, first, self.now)?;
        planned.created.iter().try_for_each(check_room)?;
        Ok(planned)
    }

    fn results(&mut self, ids: &[TaskId]) -> StoreResult<Vec<Task>> {
        ids.iter().map(|id| self.state.known(*id).map(|task| Task::clone(&task))).collect()
    }

    /// Never synced: a record vouches for them, or nothing does.
    pub(super) fn stage_tasks(&self, tasks: &[Task]) -> StoreResult<Vec<Output<'a>>> {
        let stage = |task: &Task| {
            let (task, text) = written(task.clone(), None)?;
            let (files, folder) = (self.board.files.as_ref(), &self.board.folder);
            Ok(Output { file: Staged::write(files, folder, &task.id.file_name(), text.as_bytes())?, task, text })
        };
        tasks.iter().map(stage).collect()
    }

    /// Removes a file of the board that is no task.
    pub(super) fn remove(&mut self, name: &str) -> StoreResult<()> {
        let path = self.board.folder.join(name);
        self.board.files.remove(&path).map_err(failed("remove", &path))?;
        self.state.scan.forget_record(name);
        self.has_written = true;
        self.note_folder();
        Ok(())
    }

    /// Gives a file of the board that is no temporary another name.
    pub(super) fn rename(&mut self, name: &str, to: &str) -> StoreResult<()> {
        let from = self.board.folder.join(name);
        self.board.files.rename(&from, &self.board.folder.join(to)).map_err(failed("rename", &from))?;
        self.state.scan.forget_record(name);
        self.state.scan.note_record(to);
        self.has_written = true;
        self.note_folder();
        Ok(())
    }
}
