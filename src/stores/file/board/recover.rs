//! What killed processes, power cuts and other programs leave: half-made calls are finished, spoiled files moved out of the way.
//!
//! Only here does a section wait for the disk under the lock: it is rare, and what is finished must be durable before its record goes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::domain::document::Document;
use crate::domain::graph::TaskLookup;
use crate::domain::task::{Task, TaskId};
use crate::ports::{StoreError, StoreResult};
use crate::stores::file::replace::sweep_temporaries;
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::FileKind;
use crate::stores::rules::{self, Mirror, Ripples};

use super::core::BoardFiles;
use super::index::Entry;
use super::layout::{BOARD_FOLDER, Meaning, RECORD_BYTES_MAX, SPOILED_FOLDER, applied_name, meaning_of};
use super::section::Section;

/// More files of one name among the spoiled are not kept apart.
const SPOILED_COPIES_MAX: u32 = 10_000;

impl Section<'_> {
    /// What an opening does: everything left is finished or swept, and the dependencies are made whole.
    pub(super) fn tidy(&mut self) -> StoreResult<()> {
        sweep_temporaries(self.board.files.as_ref(), &self.board.folder)?;
        self.finish_leftovers()?;
        self.heal()
    }

    /// Finishes what calls in other processes began; these may live and be about to do it themselves, which does no harm.
    pub(super) fn finish_leftovers(&mut self) -> StoreResult<()> {
        self.finish_applied()?;
        for id in self.index().deleted() {
            self.finish_deleted(id)?;
        }
        Ok(())
    }

    /// Puts the tasks on the board that a record holds and that are not there: done before anything else is.
    pub(super) fn finish_batches(&mut self) -> StoreResult<()> {
        for name in self.records(false) {
            self.finish_batch(&name)?;
        }
        Ok(())
    }

    fn finish_batch(&mut self, name: &str) -> StoreResult<()> {
        let Some(tasks) = self.recorded(name)? else {
            return Ok(());
        };
        let (Some(first), Some(last)) = (tasks.first().map(|task| task.id), tasks.last().map(|task| task.id)) else {
            return self.remove(name);
        };
        if !self.board.is_durable_record(name) {
            // The record must outlive a power cut before any of its tasks can.
            let files = vec![self.board.folder.join(name)];
            self.board.queue.sync(SyncRequest { files, folders: vec![self.board.folder.clone()] })?;
        }
        self.put_missing(tasks)?;
        match self.board.durability {
            Durability::Process => self.remove(name),
            Durability::Power => self.rename(name, &applied_name(first, last)),
        }
    }

    /// Makes the tasks durable that were put on the board from records, and removes these.
    pub(super) fn finish_applied(&mut self) -> StoreResult<()> {
        for name in self.records(true) {
            let Some(tasks) = self.recorded(&name)? else {
                continue;
            };
            let before = std::mem::take(&mut self.pending);
            self.pending.files.extend(tasks.iter().map(|task| self.board.folder.join(task.id.file_name())));
            self.note_folder();
            self.put_missing(tasks)?;
            self.make_durable()?;
            self.pending = before;
            self.remove(&name).or_else(unless_gone)?;
        }
        Ok(())
    }

    fn records(&self, is_applied: bool) -> Vec<String> {
        let wanted = Meaning::Record { is_applied };
        self.state.scan.records().into_iter().filter(|name| meaning_of(name) == wanted).collect()
    }

    /// The tasks of a record; `None` when it is gone, or is none.
    fn recorded(&mut self, name: &str) -> StoreResult<Option<Vec<Task>>> {
        let path = self.board.folder.join(name);
        let tasks = match self.board.files.read(&path, 0, RECORD_BYTES_MAX) {
            Ok((bytes, _)) => recorded_tasks(&bytes),
            // Who made it has finished it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if self.is_no_record(&path, &error) => None,
            Err(error) => return Err(failed("read", &path)(error)),
        };
        if tasks.is_none() {
            tracing::warn!(path = %path.display(), "not a record of created tasks; it is moved among the spoiled files");
            if let Err(error) = self.move_among_spoiled(name) {
                tracing::warn!(path = %path.display(), %error, "it could not be moved; it is passed over");
                self.state.scan.forget_record(name);
            }
        }
        Ok(tasks)
    }

    /// Whether what lies there is nothing of ours: we write plain files within a bound.
    fn is_no_record(&self, path: &Path, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::FileTooLarge
            || self.board.files.stamp(path).is_ok_and(|stamp| stamp.kind != FileKind::File)
    }

    /// Puts those on the board that are not there, or torn.
    fn put_missing(&mut self, tasks: Vec<Task>) -> StoreResult<()> {
        let is_lacking = |task: &Task| {
            !matches!(self.index().entry(task.id), Some(Entry::Task(_))) && !self.index().was_deleted(task.id)
        };
        let missing: Vec<Task> = tasks.into_iter().filter(is_lacking).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let staged = self.stage_tasks(&missing)?;
        self.commit_tasks(staged)?;
        self.heal()
    }

    /// Waits until all that this section wrote is durable.
    fn make_durable(&mut self) -> StoreResult<()> {
        self.board.queue.sync(std::mem::take(&mut self.pending))
    }

    fn finish_deleted(&mut self, id: TaskId) -> StoreResult<()> {
        let before = std::mem::take(&mut self.pending);
        self.raise_watermark()?;
        self.make_durable()?;
        if self.prune_deleted(id) {
            self.make_durable()?;
            self.forget_deleted(id)?;
        }
        self.pending = before;
        Ok(())
    }

    /// Makes the dependencies whole. Who is completed must be so after a power cut too before others stop naming it.
    fn heal(&mut self) -> StoreResult<()> {
        let ripples = self.worth_healing();
        if !ripples.is_empty() {
            let finished: BTreeSet<TaskId> = ripples
                .values()
                .flatten()
                .filter_map(|mirror| match mirror {
                    Mirror::Forget(finished) => Some(*finished),
                    _ => None,
                })
                .collect();
            let files = finished.into_iter().map(|id| self.board.folder.join(id.file_name())).collect();
            self.board.queue.sync(SyncRequest { files, folders: vec![self.board.folder.clone()] })?;
            self.spread(&ripples);
        }
        Ok(())
    }

    /// What [`rules::heal`] finds, but for files that another program is working on.
    fn worth_healing(&self) -> Ripples {
        let mut ripples = rules::heal(self.index());
        ripples.retain(|id, _| !self.index().task(*id).is_some_and(Task::is_foreign));
        ripples
    }

    /// Moves files away that are no tasks and stayed the same for long enough that nobody is writing them.
    pub(super) fn move_spoiled(&mut self) {
        for id in self.state.scan.settled_suspects() {
            if let Err(error) = self.move_spoiled_file(id) {
                tracing::warn!(file = id.file_name(), %error, "the spoiled file could not be moved away");
                self.state.scan.acquit(id);
            }
        }
    }

    fn move_spoiled_file(&mut self, id: TaskId) -> StoreResult<()> {
        self.state.look_again(id)?;
        let is_still_settled = self.state.scan.settled_suspects().contains(&id);
        let Some(Entry::Spoiled(reason)) = self.index().entry(id).filter(|_| is_still_settled) else {
            return Ok(());
        };
        let reason = reason.clone();
        self.move_among_spoiled(&id.file_name())?;
        tracing::info!(file = id.file_name(), reason, "a spoiled file was moved to .tasks/{SPOILED_FOLDER}");
        self.state.took_away(id);
        Ok(())
    }

    pub(super) fn move_among_spoiled(&mut self, name: &str) -> StoreResult<()> {
        let folder = self.board.folder.join(SPOILED_FOLDER);
        self.board.files.create_folder(&folder).map_err(failed("make", &folder))?;
        let numbered = (2..=SPOILED_COPIES_MAX).map(|number| format!("{name}.{number}"));
        let taken = |name: &String| self.board.files.stamp(&folder.join(name)).is_ok();
        let Some(free) = std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken(name)) else {
            return Err(failed("move to", &folder)(io::ErrorKind::AlreadyExists.into()));
        };
        self.rename(name, &format!("{SPOILED_FOLDER}/{free}"))
    }
}

impl BoardFiles {
    /// Of each task whose file was moved among the spoiled, where the last such file lies in the workspace.
    pub(super) fn set_aside(&self) -> BTreeMap<TaskId, String> {
        // A folder that is not there, or cannot be read, tells of nothing.
        let mut names = self.files.list(&self.folder.join(SPOILED_FOLDER)).unwrap_or_default();
        names.sort_by_key(|name| (name.len(), name.clone()));
        let place = |name: String| {
            let base = name.split_once(".json").map_or(name.as_str(), |(stem, _)| stem);
            let id = TaskId::from_file_name(&format!("{base}.json"))?;
            Some((id, format!("{BOARD_FOLDER}/{SPOILED_FOLDER}/{name}")))
        };
        names.into_iter().filter_map(place).collect()
    }
}

fn unless_gone(error: StoreError) -> StoreResult<()> {
    match error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Ok(()),
        error => Err(error),
    }
}

/// The tasks of a record, or `None` when it is not one: it was written whole before it got its name.
fn recorded_tasks(bytes: &[u8]) -> Option<Vec<Task>> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let id: u64 = Document::parse(line).ok()?.get("id").ok()??;
            Task::parse(TaskId(id), line).ok()
        })
        .collect()
}
