//! The board in memory and its files: updates the index from the folder, with a watch or by comparing stamps.
//!
//! It also decides if a file is a valid task. Files are read with and without the board's lock. Brigade replaces
//! whole files, so a file is incomplete only while a program without this lock writes it in place.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use tokio::time::Instant;

use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::platform;
use crate::ports::{StoreError, StoreResult};
use crate::stores::board_engine::{CLAIM_BYTES_MAX, TASK_BYTES_MAX};
use crate::stores::file::{failed, if_found};
use crate::stores::fs::{FileKind, FileStamp, FileSystem};

use super::change_feed::ChangeFeed;
use super::index::{Index, IndexEntry};
use super::paths::{BoardFileKind, QUARANTINE_AFTER, kind_of};
use super::suspect::SuspectFile;

/// The time after a write in which another write may leave the stamp unchanged. The clocks of file systems tick every 1 to 10 ms.
const CLOCK_GRANULARITY_NS: i128 = 20_000_000;
/// The same for file systems that keep times in whole seconds (FAT: two seconds).
const COARSE_CLOCK_GRANULARITY_NS: i128 = 2_500_000_000;
/// With this many files or more, several threads read.
const PARALLEL_READ_FILES_MIN: usize = 256;
/// The most threads that read concurrently. More do not help with one disk.
const READER_THREADS_MAX: usize = 4;

/// The result of reading one file.
enum ReadResult {
    Missing,
    Task(Arc<Task>, FileStamp),
    Invalid {
        reason: String,
        stamp: Option<FileStamp>,
        is_movable: bool,
        /// True if the rest of its text may follow.
        may_be_incomplete: bool,
    },
}

/// The invalid files that the first scan found. Another program may have been writing them.
struct FirstScan {
    suspects: Vec<TaskId>,
    /// The end of the time in which reads wait for them.
    wait_end: Instant,
}

/// The board as this process knows it, and what it knows about the files.
pub(super) struct BoardState {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    pub(super) feed: ChangeFeed,
    pub(super) index: Index,
    /// The stamps of files that are unchanged as long as their stamp is.
    stamps: HashMap<TaskId, FileStamp>,
    suspects: HashMap<TaskId, SuspectFile>,
    /// Tasks that became completed in their files since [`Self::take_finished`]. This board did not write them.
    finished: BTreeSet<TaskId>,
    /// `None` before the first scan. The tasks that it found completed are no news.
    first_scan: Option<FirstScan>,
    /// The names of batch records.
    records: BTreeSet<String>,
}

impl BoardState {
    pub(super) fn new(files: Arc<dyn FileSystem>, folder: &Path) -> Self {
        Self {
            feed: ChangeFeed::new(Arc::clone(&files), folder),
            files,
            folder: folder.to_owned(),
            index: Index::default(),
            stamps: HashMap::new(),
            suspects: HashMap::new(),
            finished: BTreeSet::new(),
            first_scan: None,
            records: BTreeSet::new(),
        }
    }

    /// Updates the index with all changes made in the folder before the call.
    pub(super) fn refresh(&mut self) -> StoreResult<()> {
        self.feed.drain();
        if self.feed.needs_scan() {
            self.feed.start();
            self.scan_all()?;
            self.feed.finish_scan();
            self.first_scan.get_or_insert_with(|| FirstScan {
                suspects: self.suspects.keys().copied().collect(),
                wait_end: Instant::now() + QUARANTINE_AFTER,
            });
        }
        while let Some(name) = self.feed.first_changed() {
            self.check_name(&name)?;
            self.feed.finish(&name);
        }
        for (id, suspect) in self.suspects.iter().filter(|(_, suspect)| suspect.is_settled()) {
            put_invalid(*id, &suspect.reason, &mut self.index);
        }
        Ok(())
    }

    /// Returns true if the index certainly is what [`Self::refresh`] would make it, and no file waits for its quarantine.
    pub(super) fn is_current(&mut self) -> bool {
        !self.feed.has_changes() && self.finished.is_empty() && self.settled_suspects().is_empty()
    }

    /// Returns true if the index lacks a task whose file another program was writing at the first scan, and still is. This ends after
    /// [`QUARANTINE_AFTER`]. Later files of this kind are new, and reads do not wait for them.
    pub(super) fn must_repeat_reads(&self) -> bool {
        self.first_scan.as_ref().is_some_and(|scan| {
            Instant::now() < scan.wait_end
                && scan.suspects.iter().any(|id| self.index.entry(*id).is_none() && self.is_being_written(*id))
        })
    }

    /// Returns true if the file of `id` is invalid, but another program may still be writing it.
    pub(super) fn is_being_written(&self, id: TaskId) -> bool {
        let is_invalid = matches!(self.index.entry(id), Some(IndexEntry::Invalid(_)));
        !is_invalid && self.suspects.get(&id).is_some_and(|suspect| !suspect.is_settled())
    }

    /// Refreshes before the lock is taken, so that the refresh under the lock is short.
    pub(super) fn prefetch(&mut self) -> StoreResult<()> {
        if self.feed.is_prefetch_useful() { self.refresh() } else { Ok(()) }
    }

    /// The task in the index.
    pub(super) fn task(&self, id: TaskId) -> StoreResult<Arc<Task>> {
        match self.index.entry(id) {
            Some(IndexEntry::Task(task)) => Ok(Arc::clone(task)),
            Some(IndexEntry::Invalid(reason)) => Err(StoreError::InvalidTask { id, reason: reason.clone() }),
            None => Err(StoreError::NoTask(id.into())),
        }
    }

    /// Takes the tasks that other processes or programs completed.
    pub(super) fn take_finished(&mut self) -> BTreeSet<TaskId> {
        std::mem::take(&mut self.finished)
    }

    /// The reason why the file of `id` is invalid now, also if another program may still be writing it.
    pub(super) fn suspect_reason(&self, id: TaskId) -> Option<&str> {
        self.suspects.get(&id).map(|suspect| suspect.reason.as_str())
    }

    /// The numbers of files that are invalid now.
    pub(super) fn suspects(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.suspects.keys().copied()
    }

    /// Records that this board wrote the task.
    pub(super) fn record_written(&mut self, task: Task) {
        let id = task.id;
        self.suspects.remove(&id);
        self.stamps.remove(&id);
        self.index.put(id, Some(IndexEntry::Task(Arc::new(task))));
    }

    /// Records that this board removed the file of `id`.
    pub(super) fn record_removed(&mut self, id: TaskId) {
        self.apply_read(id, ReadResult::Missing);
    }

    /// The names of batch records: one for each unfinished call that creates several tasks.
    pub(super) fn records(&self) -> Vec<String> {
        self.records.iter().cloned().collect()
    }

    pub(super) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// Records that this file exists, if it is a record.
    pub(super) fn add_record(&mut self, name: &str) {
        if let BoardFileKind::Record { .. } = kind_of(name) {
            self.records.insert(name.to_owned());
        }
    }

    /// Records that there is no record of this name any more.
    pub(super) fn remove_record(&mut self, name: &str) {
        self.records.remove(name);
    }

    /// The invalid files that were unchanged long enough for the quarantine.
    pub(super) fn settled_suspects(&self) -> Vec<TaskId> {
        self.suspects.iter().filter(|(_, suspect)| suspect.is_settled()).map(|(id, _)| *id).collect()
    }

    /// Restarts the time that a suspect must be unchanged before its quarantine.
    pub(super) fn restart_suspect(&mut self, id: TaskId) {
        if let Some(suspect) = self.suspects.get_mut(&id) {
            suspect.restart();
        }
    }

    /// Reads the file of `id`, without the cache.
    pub(super) fn reload(&mut self, id: TaskId) -> StoreResult<()> {
        let result = read_file(self.files.as_ref(), &self.folder.join(id.file_name()), id)?;
        self.apply_read(id, result);
        Ok(())
    }

    fn check_name(&mut self, name: &str) -> StoreResult<()> {
        match kind_of(name) {
            BoardFileKind::Task(id) => return self.reload(id),
            BoardFileKind::Stray => self.index.put_stray(name, self.exists(name)?),
            BoardFileKind::Deleted(id) => self.index.put_deleted(id, self.exists(name)?),
            BoardFileKind::Record { .. } => {
                if self.exists(name)? {
                    self.add_record(name);
                } else {
                    self.remove_record(name);
                }
            }
            BoardFileKind::Other => {}
        }
        Ok(())
    }

    pub(super) fn exists(&self, name: &str) -> StoreResult<bool> {
        let path = self.folder.join(name);
        Ok(if_found("inspect", &path, self.files.stamp(&path))?.is_some())
    }

    fn scan_all(&mut self) -> StoreResult<()> {
        let names = if_found("list", &self.folder, self.files.list(&self.folder))?.unwrap_or_default();
        let mut missing: HashSet<TaskId> = self.index.ids().collect();
        let mut missing_names: BTreeSet<String> = self.records.iter().cloned().collect();
        missing_names.extend(self.index.other_names());
        let mut unread = Vec::new();
        for name in &names {
            missing_names.remove(name);
            match kind_of(name) {
                BoardFileKind::Task(id) => {
                    missing.remove(&id);
                    if !self.is_unchanged(id) {
                        unread.push(id);
                    }
                }
                BoardFileKind::Other => {}
                // The listing is enough: a name that is not UTF-8 could not be looked up.
                BoardFileKind::Stray => {
                    self.index.put_stray(name, true);
                }
                _ => self.check_name(name)?,
            }
        }
        for name in missing_names {
            self.check_name(&name)?;
        }
        for id in missing {
            self.apply_read(id, ReadResult::Missing);
        }
        for (id, result) in read_tasks(self.files.as_ref(), &self.folder, &unread)? {
            self.apply_read(id, result);
        }
        Ok(())
    }

    fn is_unchanged(&self, id: TaskId) -> bool {
        let Some(known) = self.stamps.get(&id) else {
            return false;
        };
        self.files.stamp(&self.folder.join(id.file_name())).is_ok_and(|stamp| stamp == *known)
    }

    fn apply_read(&mut self, id: TaskId, result: ReadResult) {
        let index = &mut self.index;
        let now_ns = self.files.now_ns();
        match result {
            ReadResult::Missing => {
                self.stamps.remove(&id);
                self.suspects.remove(&id);
                if index.entry(id).is_some() {
                    index.put(id, None);
                }
            }
            ReadResult::Task(task, stamp) => {
                self.suspects.remove(&id);
                if is_settled(&stamp, now_ns) {
                    self.stamps.insert(id, stamp);
                } else {
                    self.stamps.remove(&id);
                }
                let was_completed =
                    matches!(index.entry(id), Some(IndexEntry::Task(old)) if old.status == TaskStatus::Completed);
                if task.status == TaskStatus::Completed && self.first_scan.is_some() && !was_completed {
                    self.finished.insert(id);
                }
                // An unchanged task must not change the revision.
                if !matches!(index.entry(id), Some(IndexEntry::Task(old)) if **old == *task) {
                    index.put(id, Some(IndexEntry::Task(task)));
                }
            }
            ReadResult::Invalid { reason, stamp, is_movable, may_be_incomplete } => {
                self.stamps.remove(&id);
                let (Some(stamp), true) = (stamp, is_movable) else {
                    self.suspects.remove(&id);
                    return put_invalid(id, &reason, index);
                };
                let new = || SuspectFile::new(stamp, reason.clone(), now_ns);
                let suspect = self.suspects.entry(id).or_insert_with(new);
                suspect.observe(stamp, reason.clone());
                // Until it settles, the index has the last valid version.
                if suspect.is_settled() || !may_be_incomplete {
                    put_invalid(id, &reason, index);
                }
            }
        }
    }
}

fn put_invalid(id: TaskId, reason: &str, index: &mut Index) {
    if !matches!(index.entry(id), Some(IndexEntry::Invalid(old)) if old == reason) {
        index.put(id, Some(IndexEntry::Invalid(reason.to_owned())));
    }
}

/// Returns true if every later write changes this stamp.
fn is_settled(stamp: &FileStamp, now_ns: i128) -> bool {
    let granularity =
        if stamp.modified_ns % 1_000_000_000 == 0 { COARSE_CLOCK_GRANULARITY_NS } else { CLOCK_GRANULARITY_NS };
    now_ns - stamp.modified_ns > granularity
}

fn read_tasks(files: &dyn FileSystem, folder: &Path, tasks: &[TaskId]) -> StoreResult<Vec<(TaskId, ReadResult)>> {
    let read = |tasks: &[TaskId]| {
        let names: Vec<String> = tasks.iter().map(|id| id.file_name()).collect();
        let mut results = Vec::with_capacity(tasks.len());
        files.read_each(folder, &names, TASK_BYTES_MAX as u64, &mut |position, read| {
            let (id, path) = (tasks[position], || folder.join(&names[position]));
            results.push(classify_read(files, path, id, read).map(|result| (id, result)));
        });
        results.into_iter().collect::<StoreResult<Vec<(TaskId, ReadResult)>>>()
    };
    if tasks.len() < PARALLEL_READ_FILES_MIN {
        return read(tasks);
    }
    let readers = thread::available_parallelism().map_or(1, usize::from).min(READER_THREADS_MAX);
    let chunk_results: Vec<StoreResult<Vec<(TaskId, ReadResult)>>> = thread::scope(|scope| {
        let start = |chunk| thread::Builder::new().spawn_scoped(scope, move || read(chunk)).map_err(|_| chunk);
        let readers: Vec<_> = tasks.chunks(tasks.len().div_ceil(readers)).map(start).collect();
        let panicked = |_| Err(failed("read", folder)(io::Error::other("a reading thread failed")));
        let result = |reader| match reader {
            Ok(thread) => thread::ScopedJoinHandle::join(thread).unwrap_or_else(panicked),
            // The thread could not be started.
            Err(chunk) => read(chunk),
        };
        readers.into_iter().map(result).collect()
    });
    let mut all = Vec::with_capacity(tasks.len());
    for results in chunk_results {
        all.extend(results?);
    }
    Ok(all)
}

fn read_file(files: &dyn FileSystem, path: &Path, id: TaskId) -> StoreResult<ReadResult> {
    match files.read(path, 0, TASK_BYTES_MAX as u64) {
        Ok((bytes, stamp)) => classify_read(files, || path.to_owned(), id, Ok((&bytes, stamp))),
        Err(error) => classify_read(files, || path.to_owned(), id, Err(error)),
    }
}

/// Returns the reason why the file at this path is no valid task; `None` if it is one, or cannot be read.
pub(super) fn invalid_reason(files: &dyn FileSystem, path: &Path, id: TaskId) -> Option<String> {
    match read_file(files, path, id) {
        Ok(ReadResult::Invalid { reason, .. }) => Some(reason),
        _ => None,
    }
}

/// Classifies the file of `id` by its bytes or by the error of the read.
fn classify_read(
    files: &dyn FileSystem,
    path: impl FnOnce() -> PathBuf,
    id: TaskId,
    read: io::Result<(&[u8], FileStamp)>,
) -> StoreResult<ReadResult> {
    match read {
        Ok((bytes, stamp)) => {
            let invalid = |reason, may_be_incomplete| ReadResult::Invalid {
                reason,
                stamp: Some(stamp),
                is_movable: true,
                may_be_incomplete,
            };
            Ok(match Task::parse(id, bytes) {
                Ok(task) if task.status == TaskStatus::Pending && bytes.len() > TASK_BYTES_MAX - CLAIM_BYTES_MAX => {
                    invalid(format!("it has {} bytes, which leaves no space for a claim", bytes.len()), false)
                }
                Ok(task) => ReadResult::Task(Arc::new(task), stamp),
                Err(error) => invalid(error.to_string(), true),
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ReadResult::Missing),
        Err(error) => classify_error(files, &path(), error),
    }
}

/// Classifies the error of a read: the file is invalid, or the disk failed.
fn classify_error(files: &dyn FileSystem, path: &Path, error: io::Error) -> StoreResult<ReadResult> {
    let stamp = match files.stamp(path) {
        Ok(stamp) => stamp,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(ReadResult::Missing),
        Err(_) => return Err(failed("read", path)(error)),
    };
    let invalid = |reason: String, is_movable| {
        Ok(ReadResult::Invalid { reason, stamp: Some(stamp), is_movable, may_be_incomplete: false })
    };
    match stamp.kind {
        FileKind::Folder => invalid("it is a folder".to_owned(), false),
        FileKind::Other => invalid("it is not a plain file".to_owned(), false),
        FileKind::Link => invalid("it is a symbolic link".to_owned(), true),
        FileKind::File if error.kind() == io::ErrorKind::FileTooLarge => {
            invalid(format!("it has more than {TASK_BYTES_MAX} bytes"), true)
        }
        FileKind::File if error.kind() == io::ErrorKind::PermissionDenied => {
            invalid("it cannot be read: permission denied".to_owned(), true)
        }
        FileKind::File if platform::is_media_error(&error) => invalid(format!("it cannot be read: {error}"), false),
        FileKind::File => Err(failed("read", path)(error)),
    }
}
