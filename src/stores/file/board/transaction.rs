//! One read-modify-write under the board's lock: reads current tasks, writes tasks, assigns numbers, updates dependents.
//!
//! A transaction never waits for the disk, except where [`super::recover`] documents it. It collects the files that must become
//! durable, and its caller waits for them without the lock.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{TASK_ID_MAX, Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::{StoreError, StoreResult};
use crate::stores::board_engine::{CLAIM_BYTES_MAX, DependentChanges, LinkChange, TASK_BYTES_MAX};
use crate::stores::file::atomic_write::StagedFile;
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::{FileKind, OpenFile};

use super::folder_scan::BoardState;
use super::index::Index;
use super::paths::{QUARANTINE_FOLDER, WATERMARK_FILE};
use super::recover::Quarantine;
use super::store::BoardFiles;

/// The most by which an invalid file's number may exceed the largest assigned one. A larger number does not count as assigned.
const INVALID_AHEAD_MAX: u64 = 100_000;

/// The largest watermark file, in bytes: one number and a newline.
const WATERMARK_BYTES_MAX: u64 = 64;

/// The most replaced files that a transaction keeps open.
const REPLACED_MAX: usize = 32;

/// A task file that is written under a temporary name.
pub(super) struct StagedTask<'a> {
    pub(super) file: StagedFile<'a>,
    pub(super) task: Task,
}

/// One transaction on the board.
pub(super) struct Transaction<'a> {
    pub(super) board: &'a BoardFiles,
    pub(super) state: MutexGuard<'a, BoardState>,
    pub(super) now: UnixMs,
    /// The files that must be durable before the call returns. The caller of the transaction waits for them.
    pub(super) pending: SyncRequest,
    /// Replaced files, which the disk frees without the lock: that takes longer than their replacement.
    pub(super) replaced: Vec<OpenFile>,
    /// The count of all files that were kept open.
    replaced_count: usize,
    /// True if anything changed on disk.
    pub(super) has_written: bool,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(board: &'a BoardFiles, state: MutexGuard<'a, BoardState>) -> Self {
        let now = board.clock.now();
        Self {
            board,
            state,
            now,
            pending: SyncRequest::default(),
            replaced: Vec::new(),
            replaced_count: 0,
            has_written: false,
        }
    }

    pub(super) fn index(&self) -> &Index {
        &self.state.index
    }

    /// Updates the index, and completes the interrupted calls that matter for any change.
    pub(super) fn begin(&mut self) -> StoreResult<()> {
        self.state.refresh()?;
        self.finish_batches()?;
        self.quarantine_invalid(Quarantine::Shown);
        Ok(())
    }

    /// The task as it is in its file now.
    pub(super) fn reload_task(&mut self, id: TaskId) -> StoreResult<Arc<Task>> {
        self.state.reload(id)?;
        match self.state.suspect_reason(id) {
            Some(reason) => Err(StoreError::InvalidTask { id, reason: reason.to_owned() }),
            None => self.state.task(id),
        }
    }

    /// Writes tasks in this order: all or none, except after a crash or a disk error.
    pub(super) fn put_tasks(&mut self, tasks: Vec<Task>) -> StoreResult<()> {
        let mut staged = Vec::with_capacity(tasks.len());
        for task in tasks {
            let before = self.index().task(task.id);
            let (task, text) = render_task(task, before)?;
            staged.push(StagedTask { file: self.stage(&task.id.file_name(), text.as_bytes())?, task });
        }
        self.commit_tasks(staged)
    }

    /// Renames staged tasks to their final names.
    pub(super) fn commit_tasks(&mut self, staged: Vec<StagedTask<'a>>) -> StoreResult<()> {
        for StagedTask { file, task } in staged {
            self.commit(file)?;
            self.pending.files.push(self.board.folder.join(task.id.file_name()));
            self.state.record_written(task);
        }
        Ok(())
    }

    /// Writes a file of the board under a temporary name.
    ///
    /// On some file systems a power cut after a rename can leave a torn file. There, with [`Durability::Power`], the bytes are
    /// made durable here, under the lock. Such disks are slow but safe.
    pub(super) fn stage(&self, name: &str, bytes: &[u8]) -> StoreResult<StagedFile<'a>> {
        let staged = StagedFile::write(self.board.files.as_ref(), &self.board.folder, name, bytes)?;
        if self.board.durability == Durability::Power && !self.board.renames_after_bytes {
            staged.sync()?;
        }
        Ok(staged)
    }

    /// Renames a staged file to its final name.
    pub(super) fn commit(&mut self, file: StagedFile<'a>) -> StoreResult<()> {
        if self.replaced_count < REPLACED_MAX {
            self.replaced_count += 1;
            self.replaced.extend(self.board.files.keep_open(file.final_path()));
        }
        let temporary = file.temporary_name().to_owned();
        self.state.feed.expect_rename(&temporary);
        if let Err(error) = file.commit() {
            self.state.feed.cancel_expected_rename(&temporary);
            return Err(error);
        }
        self.has_written = true;
        self.require_folder_sync();
        Ok(())
    }

    /// Records that the folder's entries must become durable.
    pub(super) fn require_folder_sync(&mut self) {
        if self.pending.folders.is_empty() {
            self.pending.folders.push(self.board.folder.clone());
        }
    }

    /// Returns the tasks with `changes` applied, without those that stay the same.
    pub(super) fn apply_changes(&mut self, changes: &DependentChanges) -> StoreResult<Vec<Task>> {
        let mut tasks = Vec::new();
        for (id, links) in changes {
            let mut task = Task::clone(self.reload_task(*id)?.as_ref());
            if LinkChange::apply_all(links, &mut task) {
                task.updated_at = Some(self.now);
                tasks.push(task);
            }
        }
        Ok(tasks)
    }

    /// Writes `changes` to the dependents, and continues after errors. Returns false if one occurred. The change that requires them
    /// stays on the board, and the next open repeats the failed writes.
    pub(super) fn write_dependents(&mut self, changes: &DependentChanges) -> bool {
        let mut is_complete = true;
        for (id, links) in changes {
            let one = BTreeMap::from([(*id, links.clone())]);
            let outcome = self.apply_changes(&one).and_then(|tasks| self.put_tasks(tasks));
            match outcome {
                Ok(()) | Err(StoreError::NoTask(_)) => {}
                Err(error) => {
                    is_complete = false;
                    tracing::warn!(task = id.0, %error, "cannot update a dependent task; the next start repairs that");
                }
            }
        }
        is_complete
    }

    /// The largest number ever assigned, according to the watermark, all tasks and the deletions. The watermark alone
    /// may be lost or lowered.
    ///
    /// An invalid file may have any name, so it counts only if its number is near the assigned ones.
    pub(super) fn largest_id(&self) -> StoreResult<TaskId> {
        let assigned = self.index().largest().max(self.watermark()).max(self.largest_deleted());
        let is_near = |id: &TaskId| id.0 <= assigned.0.saturating_add(INVALID_AHEAD_MAX);
        let invalid = self.index().invalid().chain(self.state.suspects());
        let near_invalid = invalid.chain(self.quarantined_ids()?).filter(is_near);
        Ok(near_invalid.max().unwrap_or(assigned).max(assigned))
    }

    fn watermark(&self) -> TaskId {
        let path = self.watermark_path();
        let bytes = match self.board.files.read(&path, 0, WATERMARK_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return TaskId(0),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the watermark; numbers continue after the existing files");
                return TaskId(0);
            }
        };
        let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let Some(number) = number.filter(|number| *number < TASK_ID_MAX) else {
            tracing::warn!(path = %path.display(), "the watermark is not a number; numbers continue after the existing files");
            return TaskId(0);
        };
        TaskId(number)
    }

    /// The numbers of quarantined files.
    fn quarantined_ids(&self) -> StoreResult<Vec<TaskId>> {
        let folder = self.board.folder.join(QUARANTINE_FOLDER);
        let names = match self.board.files.list(&folder) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Vec::new(),
            names => names.map_err(failed("list", &folder))?,
        };
        Ok(names.iter().filter_map(|name| quarantined_id(name)).collect())
    }

    /// Writes the largest assigned number, so that it is not assigned again after its file is removed.
    pub(super) fn raise_watermark(&mut self) -> StoreResult<()> {
        let largest = self.largest_id()?;
        let file = self.stage_watermark(largest)?;
        self.commit_watermark(file)
    }

    /// Writes a new watermark. It must be committed before the files that it covers.
    pub(super) fn stage_watermark(&mut self, id: TaskId) -> StoreResult<StagedFile<'a>> {
        let stamp = self.board.files.stamp(&self.watermark_path());
        if stamp.is_ok_and(|stamp| stamp.kind == FileKind::Folder) {
            // A file cannot be renamed over a folder.
            self.quarantine(WATERMARK_FILE)?;
        }
        self.stage(WATERMARK_FILE, format!("{}\n", id.0).as_bytes())
    }

    pub(super) fn commit_watermark(&mut self, file: StagedFile<'a>) -> StoreResult<()> {
        self.commit(file)?;
        self.pending.files.push(self.watermark_path());
        Ok(())
    }

    fn watermark_path(&self) -> PathBuf {
        self.board.folder.join(WATERMARK_FILE)
    }

    /// Returns true if there is no file of `id` and the task was not deleted.
    pub(super) fn is_id_free(&self, id: TaskId) -> bool {
        let is_unused = self.index().entry(id).is_none() && self.state.suspect_reason(id).is_none();
        is_unused && !self.index().was_deleted(id)
    }
}

/// The number in the name of a quarantined file: `task_7.json`, `task_7.json.2`.
fn quarantined_id(name: &str) -> Option<TaskId> {
    let end = name.find(".json")? + ".json".len();
    TaskId::from_file_name(&name[..end])
}

/// Returns the task as a reader will parse it, and the text of its file. `before` is the task on the board.
pub(super) fn render_task(mut task: Task, before: Option<&Task>) -> StoreResult<(Task, String)> {
    task.document = match before.filter(|before| before.document == task.document) {
        Some(before) => task.to_document_since(before),
        None => task.to_document(),
    };
    let mut text = task.document.to_pretty();
    if text.len() > TASK_BYTES_MAX {
        // Another program may have written its fields without spaces; added spaces must not exceed the limit.
        text = task.document.to_line() + "\n";
    }
    if text.len() > TASK_BYTES_MAX {
        return Err(too_large(&task, text.len(), TASK_BYTES_MAX));
    }
    Ok((task, text))
}

/// Refuses a pending task that is too large to be claimed: a reader would treat it as invalid.
pub(super) fn check_claim_space(task: &Task) -> StoreResult<()> {
    let bytes_max = TASK_BYTES_MAX - CLAIM_BYTES_MAX;
    let (_, text) = render_task(task.clone(), None)?;
    if task.status == TaskStatus::Pending && text.len() > bytes_max {
        return Err(too_large(task, text.len(), bytes_max));
    }
    Ok(())
}

fn too_large(task: &Task, bytes: usize, bytes_max: usize) -> StoreError {
    StoreError::TooLarge { what: format!("task {}", task.id), bytes, bytes_max }
}
