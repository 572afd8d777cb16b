//! The inboxes: `.team/inbox/<name>.jsonl`. It knows nothing of transcripts; it is told what they carry.
//!
//! Sending is one append under a lock; requests to stop are appended without one. Taking renames the inbox into `.taken/`, where it
//! stays until all its messages are said to be carried by a transcript and it has been unchanged for a second: programs that take no
//! locks may have opened it before the rename. Nothing here remembers what was delivered across a restart; the transcript on disk does.

mod delivery;
mod recipients;
mod spoiled;
mod stillness;
mod taken;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast::Sender;
use tokio::time::Instant;

use crate::domain::message::{MESSAGE_BYTES_MAX, Message, MessageType};
use crate::domain::name::Name;
use crate::domain::time::UnixMs;
use crate::ports::{Clock, Delivery, Mailbox, StoreChange, StoreError, StoreResult};
use crate::stores::fs::{FileKind, FileSystem, Stamp, locked};

use super::replace::sweep_temporaries;
use super::sync::{SyncQueue, SyncRequest};
use super::{Durability, blocking, failed};
use recipients::Recipients;
use spoiled::SpoiledMail;
use stillness::Stillness;
use taken::{Scan, file_name, inbox_name, next_number, parse_name, taken_at_ms};

/// The most an inbox may hold, what was taken and is not carried yet among it, in bytes.
pub const INBOX_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The most messages it may hold.
pub const INBOX_MESSAGES_MAX: u64 = 10_000;

/// The shortest line that is a message with a text, in bytes: with fewer bytes there is no need to count messages.
const LINE_BYTES_MIN: u64 = 15;

/// The largest file of mail that is read, in bytes. Other programs keep no bounds; a file beyond this one is kept aside whole.
const TAKEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How long a taken file must be unchanged before it is removed, or its open end taken for what it is.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The inboxes in their files.
pub struct FileMailbox {
    inner: Arc<Inner>,
}

struct Inner {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    sync: SyncQueue,
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    folder: PathBuf,
    taken: PathBuf,
    lock: PathBuf,
    recipients: Recipients,
    spoiled: SpoiledMail,
    stillness: Stillness,
    settle_time: Duration,
    prepared: OnceLock<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lines of files that were counted: the file's number on disk, how far, how many.
    counted: HashMap<PathBuf, (u64, u64, u64)>,
    /// Taken files, since when they are as they are, and whether all in them is carried.
    watched: BTreeMap<String, Watched>,
    /// Keys said to be carried, by name, as long as taken files of that name are there.
    carried: HashMap<String, HashSet<String>>,
    /// The number of the file taken last.
    last_number: Option<u64>,
    /// Inboxes that can be neither read nor put aside, which was said.
    unreadable: HashSet<String>,
    /// The inboxes whose name this process made durable, each with its file's number on disk.
    named: HashMap<String, u64>,
    is_swept: bool,
    is_sweeping: bool,
}

struct Watched {
    stamp: Stamp,
    since: Instant,
    is_carried: bool,
    /// Whether somebody was told that its open end can be looked at.
    is_told: bool,
}

impl FileMailbox {
    /// The inboxes below `team_folder`.
    #[must_use]
    pub fn new(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: Sender<StoreChange>,
        team_folder: &Path,
    ) -> Self {
        Self::with_settle_time(files, durability, clock, changes, team_folder, SETTLE_TIME)
    }

    /// The same, where writers without locks are trusted to be done after `settle_time`.
    #[must_use]
    pub fn with_settle_time(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: Sender<StoreChange>,
        team_folder: &Path,
        settle_time: Duration,
    ) -> Self {
        let folder = team_folder.join("inbox");
        let inner = Inner {
            sync: SyncQueue::new(Arc::clone(&files), durability),
            recipients: Recipients::new(&folder),
            spoiled: SpoiledMail::new(&folder),
            stillness: Stillness::new(&folder),
            taken: folder.join(".taken"),
            lock: folder.join(".lock"),
            settle_time,
            prepared: OnceLock::new(),
            state: Mutex::default(),
            files,
            durability,
            clock,
            changes,
            folder,
        };
        Self { inner: Arc::new(inner) }
    }

    async fn run<R: Send + 'static>(
        &self,
        action: impl FnOnce(&Arc<Inner>) -> StoreResult<R> + Send + 'static,
    ) -> StoreResult<R> {
        let inner = Arc::clone(&self.inner);
        blocking(move || action(&inner)).await
    }
}

#[async_trait]
impl Mailbox for FileMailbox {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        let to = to.to_owned();
        self.run(move |inner| inner.send(&to, message)).await
    }

    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        let names = names.to_owned();
        self.run(move |inner| inner.open_inboxes(&names)).await
    }

    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        if self.inner.stillness.is_still(name) {
            return Ok(Vec::new());
        }
        let asked = name.to_owned();
        let (name, scans) = self.run(move |inner| inner.take_watched(&asked)).await?;
        self.inner.note(&name, &scans, delivered);
        self.inner.start_sweeping();
        let mut handed_out = HashSet::new();
        let messages = scans.into_iter().flat_map(|(_, scan)| scan.messages);
        let waiting = messages.filter(|(key, _)| !delivered.contains(key) && handed_out.insert(key.clone()));
        Ok(waiting.map(|(key, message)| Delivery { key, message }).collect())
    }

    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        let asked = name.to_owned();
        let (name, scans) = self.run(move |inner| inner.scan_taken(&asked)).await?;
        self.inner.note(&name, &scans, delivered);
        self.run(|inner| inner.sweep()).await?;
        self.inner.start_sweeping();
        Ok(())
    }

    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        if self.inner.stillness.is_still(name) {
            return Ok(Vec::new());
        }
        let name = name.to_owned();
        self.run(move |inner| inner.peek(&name)).await
    }

    async fn waiting(&self) -> StoreResult<Vec<String>> {
        if self.inner.stillness.is_all_still() {
            return Ok(Vec::new());
        }
        self.run(|inner| inner.waiting()).await
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.jsonl"))
    }

    /// Makes the folders, and again when somebody removed them.
    fn prepare(&self) -> StoreResult<()> {
        let is_new = self.stamp(&self.taken)?.is_none();
        if self.prepared.get().is_some() && !is_new {
            return Ok(());
        }
        self.files.create_folder(&self.taken).map_err(failed("make", &self.taken))?;
        if is_new && self.durability == Durability::Power {
            // The folder, the one of the team, the workspace: a message is no more durable than the way to it.
            for folder in self.taken.ancestors().skip(1).take(3) {
                self.files.sync_folder(folder).map_err(failed("sync", folder))?;
            }
        }
        // Another thread may have been faster.
        if self.prepared.set(()).is_err() && is_new {
            self.recipients.restore(&*self.files)?;
        }
        Ok(())
    }

    fn locked<R>(&self, critical: impl FnOnce() -> StoreResult<R>) -> StoreResult<R> {
        self.prepare()?;
        locked(&*self.files, &self.lock, critical).map_err(failed("lock", &self.lock))?
    }

    fn stamp(&self, path: &Path) -> StoreResult<Option<Stamp>> {
        match self.files.stamp(path) {
            Ok(stamp) => Ok(Some(stamp)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("look at", path)(error)),
        }
    }

    fn list(&self, folder: &Path) -> StoreResult<Vec<String>> {
        match self.files.list(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(failed("list", folder)),
        }
    }

    /// The taken files of `name`, in the order they were taken.
    fn taken_of(&self, name: &str) -> StoreResult<Vec<(u64, String)>> {
        let mut taken: Vec<(u64, String)> = self
            .list(&self.taken)?
            .into_iter()
            .filter_map(|file| {
                let (whose, number) = parse_name(&file)?;
                (whose == name).then_some(number).map(|number| (number, file))
            })
            .collect();
        taken.sort_unstable();
        Ok(taken)
    }
}

/// Sending.
impl Inner {
    fn send(&self, to: &str, mut message: Message) -> StoreResult<String> {
        let name = self.recipients.find(&*self.files, to)?;
        let id = format!("m-{:016x}", fastrand::u64(..));
        message.id = Some(id.clone());
        let line = message.to_line() + "\n";
        if line.len() > MESSAGE_BYTES_MAX {
            return Err(StoreError::TooLarge {
                what: "the message".to_owned(),
                bytes: line.len(),
                bytes_max: MESSAGE_BYTES_MAX,
            });
        }
        let appended = if message.kind == MessageType::ShutdownRequest {
            // Stopping waits for nobody: it is appended as programs that take no locks do, which takers allow for.
            self.prepare()?;
            self.append(&name, &line)?
        } else {
            self.locked(|| self.append(&name, &line))?
        };
        self.make_durable(&name, &appended)?;
        // Nobody may listen, as in a process that only sends.
        let _ = self.changes.send(StoreChange::Mail(name));
        Ok(id)
    }

    fn append(&self, name: &str, line: &str) -> StoreResult<Appended> {
        let path = self.inbox(name);
        let before = self.stamp(&path)?;
        let taken = self.taken_of(name)?;
        if before.is_some_and(|stamp| stamp.kind != FileKind::File) {
            return Err(failed("append to", &path)(io::Error::other("it is no plain file")));
        }
        self.check_room(name, &path, before, &taken, line.len() as u64)?;
        let bytes = if self.has_open_end(&path, before)? { format!("\n{line}") } else { line.to_owned() };
        self.files.append(&path, bytes.as_bytes()).map_err(failed("append to", &path))?;
        let inode =
            if self.durability == Durability::Power { self.stamp(&path)?.map(|stamp| stamp.inode) } else { None };
        let is_named = inode.is_some() && self.state().named.get(name).copied() == inode;
        Ok(Appended { inode, is_named, has_taken: !taken.is_empty() })
    }

    fn check_room(
        &self,
        name: &str,
        path: &Path,
        before: Option<Stamp>,
        taken: &[(u64, String)],
        more: u64,
    ) -> StoreResult<()> {
        let mut held: Vec<(PathBuf, Stamp)> = before.map(|stamp| (path.to_owned(), stamp)).into_iter().collect();
        for (_, file) in taken {
            let path = self.taken.join(file);
            held.extend(self.stamp(&path)?.map(|stamp| (path, stamp)));
        }
        let bytes: u64 = held.iter().map(|(_, stamp)| stamp.bytes).sum();
        let is_full = bytes + more > INBOX_BYTES_MAX
            || (bytes / LINE_BYTES_MIN >= INBOX_MESSAGES_MAX && self.count(&held)? >= INBOX_MESSAGES_MAX);
        if is_full {
            return Err(StoreError::InboxFull { name: name.to_owned(), bytes, bytes_max: INBOX_BYTES_MAX });
        }
        Ok(())
    }

    /// The lines of these files. What was counted is not read again.
    fn count(&self, held: &[(PathBuf, Stamp)]) -> StoreResult<u64> {
        let mut state = self.state();
        let mut lines = 0;
        for (path, stamp) in held {
            let known = state
                .counted
                .get(path)
                .copied()
                .filter(|(inode, bytes, _)| *inode == stamp.inode && *bytes <= stamp.bytes);
            let (_, from, mut count) = known.unwrap_or((stamp.inode, 0, 0));
            let (bytes, _) = self.files.read(path, from, TAKEN_BYTES_MAX).map_err(failed("read", path))?;
            count += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            state.counted.insert(path.clone(), (stamp.inode, from + bytes.len() as u64, count));
            lines += count;
        }
        Ok(lines)
    }

    /// Whether the last line has no end: its writer died, or its program writes none.
    fn has_open_end(&self, path: &Path, before: Option<Stamp>) -> StoreResult<bool> {
        let Some(last) = before.and_then(|stamp| stamp.bytes.checked_sub(1)) else {
            return Ok(false);
        };
        let (bytes, _) = self.files.read(path, last, TAKEN_BYTES_MAX).map_err(failed("read", path))?;
        Ok(bytes.last().is_some_and(|byte| *byte != b'\n'))
    }

    /// Returns once the line is durable, wherever a taker has moved its file meanwhile.
    fn make_durable(&self, name: &str, appended: &Appended) -> StoreResult<()> {
        if self.durability == Durability::Process {
            return Ok(());
        }
        let path = self.inbox(name);
        if !appended.is_named && appended.has_taken {
            // The new file's name may not outlive the one its predecessor was given.
            self.sync.sync(SyncRequest { files: vec![], folders: vec![self.taken.clone()] })?;
        }
        let folders = if appended.is_named { vec![] } else { vec![self.folder.clone()] };
        self.sync.sync(SyncRequest { files: vec![path.clone()], folders })?;
        if self.stamp(&path)?.map(|stamp| stamp.inode) == appended.inode {
            self.state().named.extend(appended.inode.map(|inode| (name.to_owned(), inode)));
            return Ok(());
        }
        let files = self.taken_of(name)?.into_iter().map(|(_, file)| self.taken.join(file)).collect();
        self.sync.sync(SyncRequest { files, folders: vec![self.taken.clone(), self.folder.clone()] })
    }
}

/// Where a line was appended.
struct Appended {
    inode: Option<u64>,
    /// Whether that file's name is durable: another program may have made it, and synced nothing.
    is_named: bool,
    has_taken: bool,
}
