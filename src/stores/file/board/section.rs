//! What can be done while the board's lock is held: read a task anew, write tasks, give numbers, let a change show in others.
//!
//! A section never waits for the disk (but where [`super::recover`] says so): it notes what has to be durable, and who ran it waits
//! once the lock is free.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use crate::domain::graph::TaskLookup;
use crate::domain::task::{TASK_ID_MAX, Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::{StoreError, StoreResult};
use crate::stores::file::replace::Staged;
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::FileKind;
use crate::stores::rules::{CLAIM_BYTES_MAX, Mirror, Ripples, TASK_BYTES_MAX};

use super::core::{BoardFiles, State};
use super::index::Index;
use super::layout::{SPOILED_FOLDER, WATERMARK_FILE};

/// How far above the largest number given a spoiled file's may be and still count as given once: more than any board has tasks.
const SPOILED_AHEAD_MAX: u64 = 100_000;

/// A plain number with a newline; more is not a watermark.
const WATERMARK_BYTES_MAX: u64 = 64;

/// A task that is written and waits for its name.
pub(super) struct Output<'a> {
    pub(super) file: Staged<'a>,
    pub(super) task: Task,
    pub(super) text: String,
}

/// One critical section of the board.
pub(super) struct Section<'a> {
    pub(super) board: &'a BoardFiles,
    pub(super) state: MutexGuard<'a, State>,
    pub(super) now: UnixMs,
    /// What has to be durable before the call may return, if it promises that.
    pub(super) pending: SyncRequest,
    /// Whether anything changed on disk.
    pub(super) has_written: bool,
}

impl<'a> Section<'a> {
    pub(super) fn new(board: &'a BoardFiles, state: MutexGuard<'a, State>) -> Self {
        Self { board, state, now: board.clock.now(), pending: SyncRequest::default(), has_written: false }
    }

    pub(super) fn index(&self) -> &Index {
        &self.state.index
    }

    /// Brings the index up to date, and finishes what a killed process left in the way.
    pub(super) fn begin(&mut self) -> StoreResult<()> {
        self.state.refresh()?;
        self.finish_batches()?;
        self.move_spoiled();
        Ok(())
    }

    /// The task as its file says at this moment.
    pub(super) fn fresh(&mut self, id: TaskId) -> StoreResult<Arc<Task>> {
        self.state.look_again(id)?;
        self.state.known(id)
    }

    /// Writes tasks, in this order: either none is written, or (but for a crash or a failing disk) all.
    pub(super) fn put_tasks(&mut self, tasks: Vec<Task>) -> StoreResult<()> {
        let mut outputs = Vec::with_capacity(tasks.len());
        for task in tasks {
            let before = self.index().task(task.id);
            let (task, text) = written(task, before)?;
            outputs.push(Output { file: self.stage(&task.id.file_name(), text.as_bytes())?, task, text });
        }
        self.commit_tasks(outputs)
    }

    /// Gives staged tasks their names.
    pub(super) fn commit_tasks(&mut self, outputs: Vec<Output<'a>>) -> StoreResult<()> {
        for Output { file, task, text } in outputs {
            self.commit(file)?;
            self.pending.files.push(self.board.folder.join(task.id.file_name()));
            self.state.wrote(task, text.as_bytes());
        }
        Ok(())
    }

    /// Writes a file of the board under a temporary name. Where a rename alone could leave it torn after a power cut, and that
    /// is promised not to happen, its bytes are made durable here, under the lock: such disks are slow but safe.
    pub(super) fn stage(&self, name: &str, bytes: &[u8]) -> StoreResult<Staged<'a>> {
        let staged = Staged::write(self.board.files.as_ref(), &self.board.folder, name, bytes)?;
        if self.board.durability == Durability::Power && !self.board.renames_after_bytes {
            staged.sync()?;
        }
        Ok(staged)
    }

    /// Gives a staged file its name.
    pub(super) fn commit(&mut self, file: Staged<'a>) -> StoreResult<()> {
        let temporary = file.temporary().to_owned();
        self.state.scan.expect_move(&temporary);
        if let Err(error) = file.commit() {
            self.state.scan.expect_no_move(&temporary);
            return Err(error);
        }
        self.has_written = true;
        self.note_folder();
        Ok(())
    }

    /// Notes that the folder's entries have to be durable.
    pub(super) fn note_folder(&mut self) {
        if self.pending.folders.is_empty() {
            self.pending.folders.push(self.board.folder.clone());
        }
    }

    /// The tasks that `ripples` change, as they will be.
    pub(super) fn rippled(&mut self, ripples: &Ripples) -> StoreResult<Vec<Task>> {
        let mut tasks = Vec::new();
        for (id, mirrors) in ripples {
            let mut task = Task::clone(self.fresh(*id)?.as_ref());
            if Mirror::apply_all(mirrors, &mut task) {
                task.updated_at = Some(self.now);
                tasks.push(task);
            }
        }
        Ok(tasks)
    }

    /// Lets a change show in others as far as that goes, and says whether it went all the way. What fails here is made up for by
    /// the next open; the change itself stands.
    pub(super) fn spread(&mut self, ripples: &Ripples) -> bool {
        let mut is_whole = true;
        for (id, mirrors) in ripples {
            let one = BTreeMap::from([(*id, mirrors.clone())]);
            let outcome = self.rippled(&one).and_then(|tasks| self.put_tasks(tasks));
            match outcome {
                Ok(()) | Err(StoreError::NoTask(_)) => {}
                Err(error) => {
                    is_whole = false;
                    tracing::warn!(task = id.0, %error, "a dependent task could not be brought up to date; the next start does it");
                }
            }
        }
        is_whole
    }

    /// The largest number ever given: by the watermark, by every task and every deletion, should that be lost or lowered. A file that
    /// is no task may have any name, so it counts only where its number could have been given.
    pub(super) fn largest_id(&self) -> StoreResult<TaskId> {
        let given = self.index().largest().max(self.watermark()).max(self.largest_deleted());
        let could_be = |id: &TaskId| id.0 <= given.0.saturating_add(SPOILED_AHEAD_MAX);
        let spoiled = self.index().spoiled().chain(self.moved_spoiled()?).filter(could_be).max();
        Ok(spoiled.map_or(given, |spoiled| spoiled.max(given)))
    }

    fn watermark(&self) -> TaskId {
        let path = self.watermark_path();
        let bytes = match self.board.files.read(&path, 0, WATERMARK_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return TaskId(0),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot be read; numbering goes on from the files");
                return TaskId(0);
            }
        };
        let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let Some(number) = number.filter(|number| *number < TASK_ID_MAX) else {
            tracing::warn!(path = %path.display(), "not a number; numbering goes on from the files");
            return TaskId(0);
        };
        TaskId(number)
    }

    /// The numbers of files that were moved among the spoiled.
    fn moved_spoiled(&self) -> StoreResult<Vec<TaskId>> {
        let folder = self.board.folder.join(SPOILED_FOLDER);
        let names = match self.board.files.list(&folder) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Vec::new(),
            names => names.map_err(failed("list", &folder))?,
        };
        Ok(names.iter().filter_map(|name| spoiled_id(name)).collect())
    }

    /// Makes sure that no number up to the largest ever given is given again, whatever files go.
    pub(super) fn raise_watermark(&mut self) -> StoreResult<()> {
        let largest = self.largest_id()?;
        let file = self.stage_watermark(largest)?;
        self.commit_watermark(file)
    }

    /// A new watermark, to be committed before what it stands for.
    pub(super) fn stage_watermark(&mut self, id: TaskId) -> StoreResult<Staged<'a>> {
        let there = self.board.files.stamp(&self.watermark_path());
        if there.is_ok_and(|stamp| stamp.kind == FileKind::Folder) {
            // Nothing can be renamed over a folder.
            self.move_among_spoiled(WATERMARK_FILE)?;
        }
        self.stage(WATERMARK_FILE, format!("{}\n", id.0).as_bytes())
    }

    /// Commits a watermark.
    pub(super) fn commit_watermark(&mut self, file: Staged<'a>) -> StoreResult<()> {
        self.commit(file)?;
        self.pending.files.push(self.watermark_path());
        Ok(())
    }

    fn watermark_path(&self) -> PathBuf {
        self.board.folder.join(WATERMARK_FILE)
    }

    /// Whether nobody has to read the file of `id` because there is none and was none.
    pub(super) fn is_free(&self, id: TaskId) -> bool {
        self.index().entry(id).is_none() && !self.index().was_deleted(id)
    }
}

/// The number a file had before it was moved among the spoiled: `task_7.json`, `task_7.json.2`.
fn spoiled_id(name: &str) -> Option<TaskId> {
    let end = name.find(".json")? + ".json".len();
    TaskId::from_file_name(&name[..end])
}

/// The task as a later reader will see it, and the text of its file; `before` is what the board has of it.
pub(super) fn written(mut task: Task, before: Option<&Task>) -> StoreResult<(Task, String)> {
    task.document = match before.filter(|before| before.document == task.document) {
        Some(before) => task.to_document_since(before),
        None => task.to_document(),
    };
    let mut text = task.document.to_pretty();
    if text.len() > TASK_BYTES_MAX {
        // Another program's fields may have been written without any space; they are not to be what is in the way.
        text = task.document.to_line() + "\n";
    }
    let is_small_enough = text.len() <= TASK_BYTES_MAX;
    if is_small_enough { Ok((task, text)) } else { Err(too_large(&task, text.len(), TASK_BYTES_MAX)) }
}

/// Refuses what would be read as spoiled: a pending task that is too large to be claimed.
pub(super) fn check_room(task: &Task) -> StoreResult<()> {
    let (bytes, bytes_max) = (written(task.clone(), None)?.1.len(), TASK_BYTES_MAX - CLAIM_BYTES_MAX);
    let has_room = task.status != TaskStatus::Pending || bytes <= bytes_max;
    if has_room { Ok(()) } else { Err(too_large(task, bytes, bytes_max)) }
}

fn too_large(task: &Task, bytes: usize, bytes_max: usize) -> StoreError {
    StoreError::TooLarge { what: format!("task {}", task.id), bytes, bytes_max }
}
