//! Keeps the index true to the folder: reads what changed, by a watch where there is one, else by comparing stamps.
//!
//! It decides what is a task and what is spoiled, and nothing else. Files are read without the board's lock too: each is
//! replaced whole by us, and torn only while a program without our locks writes it in place.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use tokio::time::Instant;

use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::platform;
use crate::ports::StoreResult;
use crate::stores::file::failed;
use crate::stores::fs::{Drained, FileKind, FileSystem, FolderWatch, Stamp};
use crate::stores::rules::{CLAIM_BYTES_MAX, TASK_BYTES_MAX};

use super::index::{Entry, Index};
use super::layout::{Meaning, SPOILED_AFTER, meaning_of};

/// A file whose last write is younger than this when it is read can be written again without its stamp changing: clocks of
/// file systems tick every 1 to 10 ms.
const CLOCK_GRAIN_NS: i128 = 20_000_000;
/// The same where times are kept in whole seconds only (FAT: two of them).
const COARSE_CLOCK_GRAIN_NS: i128 = 2_500_000_000;
/// From this many files on, reading is shared between threads.
const SHARED_READS_MIN: usize = 256;
/// Threads that read at once; more do not help one disk.
const READERS_MAX: usize = 4;

/// What is known of a file that was read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// `None`: this board wrote it, and has not looked since.
    stamp: Option<Stamp>,
    /// Tells these bytes from others.
    digest: u64,
    /// Whether the same stamp means the same bytes.
    is_settled: bool,
}

/// A file that is no task, since when.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    stamp: Stamp,
    since: Instant,
}

/// What one look at a file found.
enum Found {
    Nothing,
    /// The bytes that were seen last.
    Same(Stamp),
    Task(Box<Task>, Stamp, u64),
    Spoiled {
        reason: String,
        stamp: Option<Stamp>,
        is_movable: bool,
    },
}

/// The eyes of a board.
pub(super) struct Scan {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    watch: Option<Box<dyn FolderWatch>>,
    /// The folder that is watched, by its number on disk.
    watched: Option<u64>,
    /// Whether everything has to be looked at, watch or not.
    is_cold: bool,
    /// Names to look at again.
    changed: BTreeSet<String>,
    seen: HashMap<TaskId, Seen>,
    suspects: HashMap<TaskId, Suspect>,
    records: BTreeSet<String>,
    /// Temporaries this board gave a name; the watch will tell of it, and there is nothing to look at then.
    own_moves: HashSet<String>,
}

impl Scan {
    pub(super) fn new(files: Arc<dyn FileSystem>, folder: &Path) -> Self {
        Self {
            files,
            folder: folder.to_owned(),
            watch: None,
            watched: None,
            is_cold: true,
            changed: BTreeSet::new(),
            seen: HashMap::new(),
            suspects: HashMap::new(),
            records: BTreeSet::new(),
            own_moves: HashSet::new(),
        }
    }

    /// Whether [`Self::refresh`] would have to read something; certain only where there is a watch.
    pub(super) fn is_behind(&mut self) -> bool {
        self.drain();
        self.is_cold || self.watch.is_none() || !self.changed.is_empty()
    }

    /// Brings `index` up to date with all that was done in the folder before the call.
    pub(super) fn refresh(&mut self, index: &mut Index) -> StoreResult<()> {
        self.drain();
        if self.is_cold || self.watch.is_none() {
            if self.watch.is_none() {
                // First the watch, then the look: what changes in between is told and looked at twice.
                self.watch = self.files.watch(&self.folder);
                self.watched = self.inode();
            }
            self.look_at_all(index)?;
            self.is_cold = false;
        }
        while let Some(name) = self.changed.first().cloned() {
            self.look(&name, index)?;
            self.changed.remove(&name);
        }
        Ok(())
    }

    /// Does the bulk of a refresh, without the lock, so that the rest is short: worth it where there is a bulk, or a watch.
    pub(super) fn warm_up(&mut self, index: &mut Index) -> StoreResult<()> {
        if self.is_cold || self.watch.is_some() { self.refresh(index) } else { Ok(()) }
    }

    fn inode(&self) -> Option<u64> {
        self.files.stamp(&self.folder).ok().map(|stamp| stamp.inode)
    }

    fn drain(&mut self) {
        // A folder that was removed while somebody has it open or mounted is watched on, and nothing is told of the new one.
        if self.watch.is_some() && self.inode() != self.watched {
            self.watch = None;
            self.is_cold = true;
            self.own_moves.clear();
        }
        let Some(watch) = &mut self.watch else {
            return;
        };
        let (changed, own_moves) = (&mut self.changed, &mut self.own_moves);
        let drained = watch.drain(&mut |name, from| {
            let is_own = from.is_some_and(|from| own_moves.remove(from));
            if !is_own && meaning_of(name) != Meaning::Other && !changed.contains(name) {
                changed.insert(name.to_owned());
            }
        });
        if drained != Drained::All {
            self.is_cold = true;
            self.own_moves.clear();
        }
        if drained == Drained::Ended {
            self.watch = None;
        }
    }

    /// Notes that the board itself is about to rename this temporary, and need not look at what it becomes.
    pub(super) fn expect_move(&mut self, temporary: &str) {
        if self.watch.is_some() {
            self.own_moves.insert(temporary.to_owned());
        }
    }

    /// Takes that back: the rename failed.
    pub(super) fn expect_no_move(&mut self, temporary: &str) {
        self.own_moves.remove(temporary);
    }

    /// Takes in that the board itself wrote this task, as these bytes.
    pub(super) fn wrote(&mut self, task: Task, bytes: &[u8], index: &mut Index) {
        let id = task.id;
        self.suspects.remove(&id);
        self.seen.insert(id, Seen { stamp: None, digest: digest_of(bytes), is_settled: false });
        index.put(id, Some(Entry::Task(Arc::new(task))));
    }

    /// Takes in that the board itself took the file of `id` away.
    pub(super) fn took_away(&mut self, id: TaskId, index: &mut Index) {
        self.take_in(id, Found::Nothing, index);
    }

    /// Names of records of calls that created several tasks.
    pub(super) fn records(&self) -> Vec<String> {
        self.records.iter().cloned().collect()
    }

    /// Whether there are any.
    pub(super) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// Takes in that there is a file of this name now, should it be a record's.
    pub(super) fn note_record(&mut self, name: &str) {
        if let Meaning::Record { .. } = meaning_of(name) {
            self.records.insert(name.to_owned());
        }
    }

    /// Takes in that there is no record of this name any more.
    pub(super) fn forget_record(&mut self, name: &str) {
        self.records.remove(name);
    }

    /// Spoiled files that may be moved away because they stayed the same for long enough.
    pub(super) fn settled_suspects(&self) -> Vec<TaskId> {
        let is_settled = |suspect: &Suspect| suspect.since.elapsed() >= SPOILED_AFTER;
        self.suspects.iter().filter(|(_, suspect)| is_settled(suspect)).map(|(id, _)| *id).collect()
    }

    /// Lets a suspect wait anew.
    pub(super) fn acquit(&mut self, id: TaskId) {
        if let Some(suspect) = self.suspects.get_mut(&id) {
            suspect.since = Instant::now();
        }
    }

    /// Looks at the file of `id` whatever is known of it.
    pub(super) fn look_again(&mut self, id: TaskId, index: &mut Index) -> StoreResult<()> {
        let known = self.seen.get(&id).map(|seen| seen.digest);
        let found = read_task(self.files.as_ref(), &self.folder, id, known)?;
        self.take_in(id, found, index);
        Ok(())
    }

    fn look(&mut self, name: &str, index: &mut Index) -> StoreResult<()> {
        match meaning_of(name) {
            Meaning::Task(id) => return self.look_again(id, index),
            Meaning::Stray => index.put_stray(name, self.is_there(name)?),
            Meaning::Deleted(id) => index.put_deleted(id, self.is_there(name)?),
            Meaning::Record { .. } => {
                if self.is_there(name)? {
                    self.note_record(name);
                } else {
                    self.forget_record(name);
                }
            }
            Meaning::Other => {}
        }
        Ok(())
    }

    pub(super) fn is_there(&self, name: &str) -> StoreResult<bool> {
        let path = self.folder.join(name);
        match self.files.stamp(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("look at", &path)(error)),
        }
    }

    fn look_at_all(&mut self, index: &mut Index) -> StoreResult<()> {
        let names = match self.files.list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(failed("list", &self.folder))?,
        };
        let mut gone: HashSet<TaskId> = index.ids().collect();
        let mut known: BTreeSet<String> = self.records.iter().cloned().collect();
        known.extend(index.other_names());
        let mut unread = Vec::new();
        for name in &names {
            known.remove(name);
            match meaning_of(name) {
                Meaning::Task(id) => {
                    gone.remove(&id);
                    if !self.is_as_seen(id) {
                        unread.push((id, self.seen.get(&id).map(|seen| seen.digest)));
                    }
                }
                Meaning::Other => {}
                // It is listed: a name that is no text could not be looked up again.
                Meaning::Stray => {
                    index.put_stray(name, true);
                }
                _ => self.look(name, index)?,
            }
        }
        for name in known {
            self.look(&name, index)?;
        }
        for id in gone {
            self.take_in(id, Found::Nothing, index);
        }
        for (id, found) in read_tasks(self.files.as_ref(), &self.folder, &unread)? {
            self.take_in(id, found, index);
        }
        Ok(())
    }

    fn is_as_seen(&self, id: TaskId) -> bool {
        let Some(seen) = self.seen.get(&id).filter(|seen| seen.is_settled) else {
            return false;
        };
        self.files.stamp(&self.folder.join(id.file_name())).is_ok_and(|stamp| Some(stamp) == seen.stamp)
    }

    fn take_in(&mut self, id: TaskId, found: Found, index: &mut Index) {
        let now_ns = self.files.now_ns();
        match found {
            Found::Nothing => {
                self.seen.remove(&id);
                self.suspects.remove(&id);
                if index.entry(id).is_some() {
                    index.put(id, None);
                }
            }
            Found::Same(stamp) => {
                if let Some(seen) = self.seen.get_mut(&id) {
                    (seen.stamp, seen.is_settled) = (Some(stamp), is_settled(&stamp, now_ns));
                }
            }
            Found::Task(task, stamp, digest) => {
                self.suspects.remove(&id);
                self.seen.insert(id, Seen { stamp: Some(stamp), digest, is_settled: is_settled(&stamp, now_ns) });
                // An unchanged task is no news: others compare revisions.
                if !matches!(index.entry(id), Some(Entry::Task(old)) if **old == *task) {
                    index.put(id, Some(Entry::Task(Arc::from(task))));
                }
            }
            Found::Spoiled { reason, stamp, is_movable } => {
                self.seen.remove(&id);
                match stamp.filter(|_| is_movable) {
                    Some(stamp) if self.suspects.get(&id).is_some_and(|suspect| suspect.stamp == stamp) => {}
                    Some(stamp) => {
                        self.suspects.insert(id, Suspect { stamp, since: last_written(&stamp, now_ns) });
                    }
                    None => {
                        self.suspects.remove(&id);
                    }
                }
                if !matches!(index.entry(id), Some(Entry::Spoiled(old)) if *old == reason) {
                    index.put(id, Some(Entry::Spoiled(reason)));
                }
            }
        }
    }
}

/// When the file was last written, as far back as it matters: a command that looks once has not seen it before.
fn last_written(stamp: &Stamp, now_ns: i128) -> Instant {
    let now = Instant::now();
    let settled = i128::try_from(SPOILED_AFTER.as_nanos()).unwrap_or(i128::MAX);
    let is_old = now_ns - stamp.modified_ns > settled;
    if is_old { now.checked_sub(SPOILED_AFTER).unwrap_or(now) } else { now }
}

fn is_settled(stamp: &Stamp, now_ns: i128) -> bool {
    let grain = if stamp.modified_ns % 1_000_000_000 == 0 { COARSE_CLOCK_GRAIN_NS } else { CLOCK_GRAIN_NS };
    now_ns - stamp.modified_ns > grain
}

fn read_tasks(
    files: &dyn FileSystem,
    folder: &Path,
    ids: &[(TaskId, Option<u64>)],
) -> StoreResult<Vec<(TaskId, Found)>> {
    let read = |ids: &[(TaskId, Option<u64>)]| {
        let names: Vec<String> = ids.iter().map(|(id, _)| id.file_name()).collect();
        let mut found = Vec::with_capacity(ids.len());
        files.read_each(folder, &names, TASK_BYTES_MAX as u64, &mut |place, read| {
            let (id, known) = ids[place];
            let path = || folder.join(&names[place]);
            found.push(understood(files, path, id, known, read).map(|found| (id, found)));
        });
        found.into_iter().collect::<StoreResult<Vec<(TaskId, Found)>>>()
    };
    if ids.len() < SHARED_READS_MIN {
        return read(ids);
    }
    let readers = thread::available_parallelism().map_or(1, usize::from).min(READERS_MAX);
    let shares: Vec<StoreResult<Vec<(TaskId, Found)>>> = thread::scope(|scope| {
        let start = |share| thread::Builder::new().spawn_scoped(scope, move || read(share)).map_err(|_| share);
        let readers: Vec<_> = ids.chunks(ids.len().div_ceil(readers)).map(start).collect();
        let lost = |_| Err(failed("read", folder)(io::Error::other("a reading thread failed")));
        let result = |reader| match reader {
            Ok(thread) => thread::ScopedJoinHandle::join(thread).unwrap_or_else(lost),
            // The system gives no thread for it.
            Err(share) => read(share),
        };
        readers.into_iter().map(result).collect()
    });
    let mut all = Vec::with_capacity(ids.len());
    for share in shares {
        all.extend(share?);
    }
    Ok(all)
}

/// Tells bytes from others. A file that says something else with the same digest, and of 2^64, is not to be expected.
fn digest_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Reads the file of `id`; `known` is the digest of what is known of it.
fn read_task(files: &dyn FileSystem, folder: &Path, id: TaskId, known: Option<u64>) -> StoreResult<Found> {
    let path = folder.join(id.file_name());
    match files.read(&path, 0, TASK_BYTES_MAX as u64) {
        Ok((bytes, stamp)) => understood(files, || path, id, known, Ok((&bytes, stamp))),
        Err(error) => understood(files, || path, id, known, Err(error)),
    }
}

/// What the file of `id` is, by what came of reading it.
fn understood(
    files: &dyn FileSystem,
    path: impl FnOnce() -> PathBuf,
    id: TaskId,
    known: Option<u64>,
    read: io::Result<(&[u8], Stamp)>,
) -> StoreResult<Found> {
    match read {
        Ok((bytes, stamp)) => {
            let digest = digest_of(bytes);
            if known == Some(digest) {
                return Ok(Found::Same(stamp));
            }
            let spoiled = |reason| Found::Spoiled { reason, stamp: Some(stamp), is_movable: true };
            Ok(match Task::parse(id, bytes) {
                Ok(task) if task.status == TaskStatus::Pending && bytes.len() > TASK_BYTES_MAX - CLAIM_BYTES_MAX => {
                    spoiled(format!("it has {} bytes, which leaves no room for a claim", bytes.len()))
                }
                Ok(task) => Found::Task(Box::new(task), stamp, digest),
                Err(error) => spoiled(error.to_string()),
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => unreadable(files, &path(), error),
    }
}

/// Tells a file that cannot be a task from a system that is in trouble: only the first is the file's fault.
fn unreadable(files: &dyn FileSystem, path: &Path, error: io::Error) -> StoreResult<Found> {
    let stamp = match files.stamp(path) {
        Ok(stamp) => stamp,
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(_) => return Err(failed("read", path)(error)),
    };
    let spoiled = |reason: String, is_movable| Ok(Found::Spoiled { reason, stamp: Some(stamp), is_movable });
    match stamp.kind {
        FileKind::Folder => spoiled("it is a folder".to_owned(), false),
        FileKind::Other => spoiled("it is not a plain file".to_owned(), false),
        FileKind::Link => spoiled("it is a symbolic link".to_owned(), true),
        FileKind::File if error.kind() == io::ErrorKind::FileTooLarge => {
            spoiled(format!("it has more than {TASK_BYTES_MAX} bytes"), true)
        }
        FileKind::File if error.kind() == io::ErrorKind::PermissionDenied => {
            spoiled("it cannot be read: permission denied".to_owned(), true)
        }
        FileKind::File if platform::is_media_error(&error) => spoiled(format!("it cannot be read: {error}"), false),
        FileKind::File => Err(failed("read", path)(error)),
    }
}
