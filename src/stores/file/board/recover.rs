//! Recovery from killed processes, power cuts and other programs: completes half-made calls and quarantines invalid files.
//!
//! Only here does a transaction wait for the disk under the lock. This is rare, and the work must be durable before its record is
//! removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId};
use crate::domain::text::json_document::Document;
use crate::ports::{MissingTask, QuarantinedTask, StoreError, StoreResult};
use crate::stores::board_engine::{self, DependentChanges, LinkChange};
use crate::stores::file::atomic_write::sweep_temporaries;
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed, is_foreign_entry, move_aside};

use super::folder_scan::invalid_reason;
use super::index::IndexEntry;
use super::paths::{BOARD_FOLDER, BoardFileKind, QUARANTINE_FOLDER, RECORD_BYTES_MAX, applied_name, kind_of};
use super::store::BoardFiles;
use super::transaction::Transaction;

/// The most quarantined files of one name.
const QUARANTINED_COPIES_MAX: u32 = 10_000;

/// The invalid files to quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quarantine {
    /// All that no program is writing.
    All,
    /// Those of them that a view of the board has shown, so that people learn of each.
    Shown,
}

impl Transaction<'_> {
    /// The recovery when the board is opened: completes or removes unfinished work, and repairs the links.
    pub(super) fn recover(&mut self) -> StoreResult<()> {
        sweep_temporaries(self.board.files.as_ref(), &self.board.folder)?;
        self.quarantine_invalid(Quarantine::All);
        self.finish_leftovers()?;
        self.repair_links()
    }

    /// Completes calls that other processes began. A live process may complete its call too, which does no harm.
    pub(super) fn finish_leftovers(&mut self) -> StoreResult<()> {
        self.finish_applied_batches()?;
        for id in self.index().deleted() {
            self.finish_deleted(id)?;
        }
        Ok(())
    }

    /// Puts the missing tasks of records on the board. This precedes all other work.
    pub(super) fn finish_batches(&mut self) -> StoreResult<()> {
        for name in self.records(false) {
            self.finish_batch(&name)?;
        }
        Ok(())
    }

    fn finish_batch(&mut self, name: &str) -> StoreResult<()> {
        let Some(tasks) = self.read_record(name)? else {
            return Ok(());
        };
        let (Some(first), Some(last)) = (tasks.first().map(|task| task.id), tasks.last().map(|task| task.id)) else {
            return self.remove(name);
        };
        if !self.board.is_durable_record(name) {
            // The record must be durable before any of its tasks.
            let files = vec![self.board.folder.join(name)];
            self.board.sync(&SyncRequest { files, folders: vec![self.board.folder.clone()] })?;
        }
        self.put_missing(tasks)?;
        match self.board.durability {
            Durability::Process => self.remove(name),
            Durability::Power => self.rename(name, &applied_name(first, last)),
        }
    }

    /// Makes the tasks of applied records durable, and removes the records.
    pub(super) fn finish_applied_batches(&mut self) -> StoreResult<()> {
        for name in self.records(true) {
            let Some(tasks) = self.read_record(&name)? else {
                continue;
            };
            let before = std::mem::take(&mut self.pending);
            self.pending.files.extend(tasks.iter().map(|task| self.board.folder.join(task.id.file_name())));
            self.require_folder_sync();
            self.put_missing(tasks)?;
            self.make_durable()?;
            self.pending = before;
            self.remove(&name).or_else(unless_gone)?;
        }
        Ok(())
    }

    fn records(&self, is_applied: bool) -> Vec<String> {
        let kind = BoardFileKind::Record { is_applied };
        self.state.records().into_iter().filter(|name| kind_of(name) == kind).collect()
    }

    /// The tasks of a record; `None` if it is gone or invalid.
    fn read_record(&mut self, name: &str) -> StoreResult<Option<Vec<Task>>> {
        let path = self.board.folder.join(name);
        let tasks = match self.board.files.read(&path, 0, RECORD_BYTES_MAX) {
            Ok((bytes, _)) => parse_record(&bytes),
            // Its creator has finished it in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if self.board.files.stamp(&path).is_ok_and(|stamp| is_foreign_entry(stamp, &error)) => None,
            Err(error) => return Err(failed("read", &path)(error)),
        };
        if tasks.is_none() {
            tracing::warn!(path = %path.display(), "quarantining an invalid record of created tasks");
            if let Err(error) = self.quarantine(name) {
                tracing::warn!(path = %path.display(), %error, "cannot quarantine the record; ignoring it");
                self.state.remove_record(name);
            }
        }
        Ok(tasks)
    }

    /// Puts the missing and the torn ones of `tasks` on the board.
    fn put_missing(&mut self, tasks: Vec<Task>) -> StoreResult<()> {
        let is_missing = |task: &Task| {
            !matches!(self.index().entry(task.id), Some(IndexEntry::Task(_))) && !self.index().was_deleted(task.id)
        };
        let missing: Vec<Task> = tasks.into_iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let staged = self.stage_tasks(&missing)?;
        self.commit_tasks(staged)?;
        self.repair_links()
    }

    /// Waits until everything that this transaction wrote is durable.
    fn make_durable(&mut self) -> StoreResult<()> {
        self.board.sync(&std::mem::take(&mut self.pending))
    }

    fn finish_deleted(&mut self, id: TaskId) -> StoreResult<()> {
        let before = std::mem::take(&mut self.pending);
        self.raise_watermark()?;
        self.make_durable()?;
        if self.remove_references(id) {
            self.make_durable()?;
            self.remove_deleted_file(id)?;
        }
        self.pending = before;
        Ok(())
    }

    /// Repairs the links. A completion must be durable before other tasks stop naming the task.
    fn repair_links(&mut self) -> StoreResult<()> {
        let changes = self.needed_link_repairs();
        if !changes.is_empty() {
            let finished: BTreeSet<TaskId> = changes
                .values()
                .flatten()
                .filter_map(|link| match link {
                    LinkChange::RemoveBlockedBy(finished) => Some(*finished),
                    _ => None,
                })
                .collect();
            let files = finished.into_iter().map(|id| self.board.folder.join(id.file_name())).collect();
            self.board.sync(&SyncRequest { files, folders: vec![self.board.folder.clone()] })?;
            self.write_dependents(&changes);
        }
        Ok(())
    }

    /// The link repairs, without those of files that another program is working on.
    fn needed_link_repairs(&self) -> DependentChanges {
        let mut changes = board_engine::repair_links(self.index());
        changes.retain(|id, _| !self.index().task(*id).is_some_and(Task::is_foreign));
        changes
    }

    /// Quarantines invalid files that were unchanged for so long that no program is writing them.
    pub(super) fn quarantine_invalid(&mut self, files: Quarantine) {
        for id in self.state.settled_suspects() {
            if files == Quarantine::Shown && !self.index().was_shown_invalid(id) {
                continue;
            }
            if let Err(error) = self.quarantine_file(id) {
                tracing::warn!(file = id.file_name(), %error, "cannot quarantine the invalid file");
                self.state.restart_suspect(id);
            }
        }
    }

    fn quarantine_file(&mut self, id: TaskId) -> StoreResult<()> {
        self.state.reload(id)?;
        if !self.state.settled_suspects().contains(&id) {
            return Ok(());
        }
        let Some(IndexEntry::Invalid(reason)) = self.index().entry(id) else {
            return Ok(());
        };
        let reason = reason.clone();
        self.quarantine(&id.file_name())?;
        tracing::info!(file = id.file_name(), reason, "moved an invalid task file to .tasks/{QUARANTINE_FOLDER}");
        self.state.record_removed(id);
        Ok(())
    }

    pub(super) fn quarantine(&mut self, name: &str) -> StoreResult<()> {
        let (path, folder) = (self.board.folder.join(name), self.board.folder.join(QUARANTINE_FOLDER));
        let numbered = (2..=QUARANTINED_COPIES_MAX).map(|number| format!("{name}.{number}"));
        let names = std::iter::once(name.to_owned()).chain(numbered);
        move_aside(&*self.board.files, &path, &folder, names).map_err(failed("quarantine", &path))?;
        self.state.remove_record(name);
        self.has_written = true;
        self.require_folder_sync();
        Ok(())
    }
}

impl BoardFiles {
    /// The last quarantined file of each task, with its path in the workspace.
    pub(super) fn quarantined_files(&self) -> BTreeMap<TaskId, QuarantinedTask> {
        // A missing or unreadable folder counts as empty.
        let mut names = self.files.list(&self.folder.join(QUARANTINE_FOLDER)).unwrap_or_default();
        names.sort_by_key(|name| (name.len(), name.clone()));
        let id_and_name = |name: String| {
            let base = name.split_once(".json").map_or(name.as_str(), |(stem, _)| stem);
            let id = TaskId::from_file_name(&format!("{base}.json"))?;
            Some((id, name))
        };
        let last: BTreeMap<TaskId, String> = names.into_iter().filter_map(id_and_name).collect();
        let quarantined = |(id, name): (TaskId, String)| {
            let reason = invalid_reason(&*self.files, &self.folder.join(QUARANTINE_FOLDER).join(&name), id);
            (id, QuarantinedTask { place: format!("{BOARD_FOLDER}/{QUARANTINE_FOLDER}/{name}"), reason })
        };
        last.into_iter().map(quarantined).collect()
    }

    /// The outcome of a call. The error for a missing task names its file in the quarantine.
    pub(super) fn explained<R>(&self, outcome: StoreResult<R>) -> StoreResult<R> {
        outcome.map_err(|error| match error {
            StoreError::NoTask(MissingTask { id, quarantined: None }) => {
                StoreError::NoTask(MissingTask { id, quarantined: self.quarantined_files().remove(&id) })
            }
            error => error,
        })
    }
}

fn unless_gone(error: StoreError) -> StoreResult<()> {
    match error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Ok(()),
        error => Err(error),
    }
}

/// The tasks of a record, or `None` if it is invalid. Brigade writes a record completely before it gets its name.
fn parse_record(bytes: &[u8]) -> Option<Vec<Task>> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let id: u64 = Document::parse(line).ok()?.get("id").ok()??;
            let mut task = Task::parse(TaskId(id), line).ok()?;
            task.document.lay_out();
            Some(task)
        })
        .collect()
}
