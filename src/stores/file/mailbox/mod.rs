//! The inboxes: `.team/inbox/<name>.jsonl`.
//!
//! A send is one append under a lock; requests to stop are appended without it. Taking mail renames the inbox into `.taken/`. The
//! file stays there until a transcript contains all its messages and it was unchanged for a second. The wait is for programs without
//! locks, which may have opened it before the rename. Across a restart only the transcripts on disk know the delivered messages.

mod delivery;
mod empty_cache;
mod quarantine;
mod recipients;
mod taken_files;

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
use crate::ports::{Clock, Delivery, IoAction, Mailbox, StoreChange, StoreError, StoreResult};
use crate::stores::fs::{FileKind, FileStamp, FileSystem, locked};

use super::atomic_write::sweep_temporaries;
use super::group_sync::{SyncQueue, SyncRequest};
use super::{Durability, blocking, failed};
use empty_cache::EmptyInboxCache;
use quarantine::Quarantine;
use recipients::Recipients;
use taken_files::{MailContent, file_name, inbox_name, next_number, parse_name, taken_at_ms};

/// The most that an inbox may hold, with its undelivered taken files, in bytes.
pub const INBOX_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The most messages that an inbox may hold.
pub const INBOX_MESSAGES_MAX: u64 = 10_000;

/// The shortest line that is a message, in bytes: a smaller file needs no count of messages.
const LINE_BYTES_MIN: u64 = 15;

/// The largest mail file that is read, in bytes. Other programs know no limit; a larger file is quarantined.
const TAKEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The time that a taken file must be unchanged before it is removed, or before its unfinished last line counts as complete.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The inboxes in files.
pub struct FileMailbox {
    inner: Arc<MailboxInner>,
}

struct MailboxInner {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    sync: SyncQueue,
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    folder: PathBuf,
    taken_folder: PathBuf,
    lock: PathBuf,
    recipients: Recipients,
    quarantine: Quarantine,
    empty_cache: EmptyInboxCache,
    settle_time: Duration,
    is_prepared: OnceLock<()>,
    state: Mutex<MailboxState>,
}

#[derive(Default)]
struct MailboxState {
    /// The counted lines of each file: inode, bytes counted, lines.
    counted_lines: HashMap<PathBuf, (u64, u64, u64)>,
    /// The taken files by name.
    taken_files: BTreeMap<String, TakenFile>,
    /// The keys of delivered messages by inbox name, while taken files of that name exist.
    delivered_keys: HashMap<String, HashSet<String>>,
    last_number: Option<u64>,
    /// The inboxes that can be neither read nor quarantined, and that were logged.
    unreadable: HashSet<String>,
    /// The inboxes whose file name this process made durable, each with its inode.
    durable_inodes: HashMap<String, u64>,
    is_swept: bool,
    is_sweeping: bool,
}

struct TakenFile {
    stamp: FileStamp,
    since: Instant,
    is_delivered: bool,
    /// True if its owner was notified that the unfinished last line can be read.
    is_owner_notified: bool,
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

    /// The inboxes below `team_folder`. Writers without locks are assumed to finish within `settle_time`.
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
        let inner = MailboxInner {
            sync: SyncQueue::new(Arc::clone(&files), durability),
            recipients: Recipients::new(&folder),
            quarantine: Quarantine::new(&folder),
            empty_cache: EmptyInboxCache::new(&folder),
            taken_folder: folder.join(".taken"),
            lock: folder.join(".lock"),
            settle_time,
            is_prepared: OnceLock::new(),
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
        action: impl FnOnce(&Arc<MailboxInner>) -> StoreResult<R> + Send + 'static,
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
        if self.inner.empty_cache.is_empty(name) {
            return Ok(Vec::new());
        }
        let spelling = name.to_owned();
        let (name, contents) = self.run(move |inner| inner.take_and_cache(&spelling)).await?;
        self.inner.update_taken_files(&name, &contents, delivered);
        self.inner.start_sweeping();
        let mut returned = HashSet::new();
        let messages = contents.into_iter().flat_map(|(_, content)| content.messages);
        let waiting = messages.filter(|(key, _)| !delivered.contains(key) && returned.insert(key.clone()));
        Ok(waiting.map(|(key, message)| Delivery { key, message }).collect())
    }

    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        let spelling = name.to_owned();
        let (name, contents) = self.run(move |inner| inner.read_taken_files(&spelling)).await?;
        self.inner.update_taken_files(&name, &contents, delivered);
        self.run(|inner| inner.sweep()).await?;
        self.inner.start_sweeping();
        Ok(())
    }

    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        if self.inner.empty_cache.is_empty(name) {
            return Ok(Vec::new());
        }
        let name = name.to_owned();
        self.run(move |inner| inner.peek(&name)).await
    }

    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        if self.inner.empty_cache.are_all_empty() {
            return Ok(Vec::new());
        }
        self.run(|inner| inner.waiting()).await
    }
}

impl MailboxInner {
    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.jsonl"))
    }

    /// Creates the folders, and creates them again if they were removed.
    fn prepare(&self) -> StoreResult<()> {
        let is_new = self.stamp(&self.taken_folder)?.is_none();
        if self.is_prepared.get().is_some() && !is_new {
            return Ok(());
        }
        self.files.create_folder(&self.taken_folder).map_err(failed("create", &self.taken_folder))?;
        if is_new && self.durability == Durability::Power {
            // The inbox folder, the team folder, the workspace: a message is only as durable as its path.
            for folder in self.taken_folder.ancestors().skip(1).take(3) {
                self.files.sync_folder(folder).map_err(failed(IoAction::Sync, folder))?;
            }
        }
        // Another thread may have set it first.
        if self.is_prepared.set(()).is_err() && is_new {
            self.recipients.restore(&*self.files)?;
        }
        Ok(())
    }

    fn locked<R>(&self, critical: impl FnOnce() -> StoreResult<R>) -> StoreResult<R> {
        self.prepare()?;
        locked(&*self.files, &self.lock, critical).map_err(failed("lock", &self.lock))?
    }

    fn stamp(&self, path: &Path) -> StoreResult<Option<FileStamp>> {
        match self.files.stamp(path) {
            Ok(stamp) => Ok(Some(stamp)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("inspect", path)(error)),
        }
    }

    fn list(&self, folder: &Path) -> StoreResult<Vec<String>> {
        match self.files.list(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(failed("list", folder)),
        }
    }

    /// The taken files of `name`, in the order they were taken.
    fn taken_files_of(&self, name: &str) -> StoreResult<Vec<(u64, String)>> {
        let mut taken: Vec<(u64, String)> = self
            .list(&self.taken_folder)?
            .into_iter()
            .filter_map(|file| {
                let (owner, number) = parse_name(&file)?;
                if owner == name { Some((number, file)) } else { None }
            })
            .collect();
        taken.sort_unstable();
        Ok(taken)
    }
}

/// Sending.
impl MailboxInner {
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
            // A stop request waits for no lock. It is appended as other programs append, which takers expect.
            self.prepare()?;
            self.append(&name, &line)?
        } else {
            self.locked(|| self.append(&name, &line))?
        };
        self.make_durable(&name, &appended)?;
        // There may be no listener.
        let _ = self.changes.send(StoreChange::Mail(name));
        Ok(id)
    }

    fn append(&self, name: &str, line: &str) -> StoreResult<Appended> {
        let path = self.inbox(name);
        let before = self.stamp(&path)?;
        let taken = self.taken_files_of(name)?;
        if before.is_some_and(|stamp| stamp.kind != FileKind::File) {
            return Err(failed("append to", &path)(io::Error::other("it is not a plain file")));
        }
        self.check_space(name, &path, before, &taken, line.len() as u64)?;
        let bytes = if self.has_unfinished_line(&path, before)? { format!("\n{line}") } else { line.to_owned() };
        self.files.append(&path, bytes.as_bytes()).map_err(failed("append to", &path))?;
        let inode =
            if self.durability == Durability::Power { self.stamp(&path)?.map(|stamp| stamp.inode) } else { None };
        let is_named = inode.is_some() && self.state().durable_inodes.get(name).copied() == inode;
        Ok(Appended { inode, is_named, has_taken: !taken.is_empty() })
    }

    fn check_space(
        &self,
        name: &str,
        path: &Path,
        before: Option<FileStamp>,
        taken: &[(u64, String)],
        new_bytes: u64,
    ) -> StoreResult<()> {
        let mut files: Vec<(PathBuf, FileStamp)> = before.map(|stamp| (path.to_owned(), stamp)).into_iter().collect();
        for (_, file) in taken {
            let path = self.taken_folder.join(file);
            files.extend(self.stamp(&path)?.map(|stamp| (path, stamp)));
        }
        let bytes: u64 = files.iter().map(|(_, stamp)| stamp.bytes).sum();
        let is_full = bytes + new_bytes > INBOX_BYTES_MAX
            || (bytes / LINE_BYTES_MIN >= INBOX_MESSAGES_MAX && self.count_lines(&files)? >= INBOX_MESSAGES_MAX);
        if is_full {
            return Err(StoreError::InboxFull { name: name.to_owned(), bytes, bytes_max: INBOX_BYTES_MAX });
        }
        Ok(())
    }

    /// The count of lines in these files. Counted bytes are not read again.
    fn count_lines(&self, files: &[(PathBuf, FileStamp)]) -> StoreResult<u64> {
        let mut state = self.state();
        let mut lines = 0;
        for (path, stamp) in files {
            let known = state
                .counted_lines
                .get(path)
                .copied()
                .filter(|(inode, bytes, _)| *inode == stamp.inode && *bytes <= stamp.bytes);
            let (_, from, mut count) = known.unwrap_or((stamp.inode, 0, 0));
            let (bytes, _) = self.files.read(path, from, TAKEN_BYTES_MAX).map_err(failed("read", path))?;
            count += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            state.counted_lines.insert(path.clone(), (stamp.inode, from + bytes.len() as u64, count));
            lines += count;
        }
        Ok(lines)
    }

    /// Returns true if the last line has no newline: its writer died, or its program writes none.
    fn has_unfinished_line(&self, path: &Path, before: Option<FileStamp>) -> StoreResult<bool> {
        let Some(last) = before.and_then(|stamp| stamp.bytes.checked_sub(1)) else {
            return Ok(false);
        };
        let (bytes, _) = self.files.read(path, last, TAKEN_BYTES_MAX).map_err(failed("read", path))?;
        Ok(bytes.last().is_some_and(|byte| *byte != b'\n'))
    }

    /// Makes the line durable, even if its file was taken in the meantime.
    fn make_durable(&self, name: &str, appended: &Appended) -> StoreResult<()> {
        if self.durability == Durability::Process {
            return Ok(());
        }
        let path = self.inbox(name);
        if !appended.is_named && appended.has_taken {
            // The rename of the previous file must become durable before the new file's name.
            self.sync.sync(SyncRequest { files: vec![], folders: vec![self.taken_folder.clone()] })?;
        }
        let folders = if appended.is_named { vec![] } else { vec![self.folder.clone()] };
        self.sync.sync(SyncRequest { files: vec![path.clone()], folders })?;
        if self.stamp(&path)?.map(|stamp| stamp.inode) == appended.inode {
            self.state().durable_inodes.extend(appended.inode.map(|inode| (name.to_owned(), inode)));
            return Ok(());
        }
        let files = self.taken_files_of(name)?.into_iter().map(|(_, file)| self.taken_folder.join(file)).collect();
        self.sync.sync(SyncRequest { files, folders: vec![self.taken_folder.clone(), self.folder.clone()] })
    }
}

/// The file that a line was appended to.
struct Appended {
    inode: Option<u64>,
    /// True if the file's name is durable. Another program may have created the file without a sync.
    is_named: bool,
    has_taken: bool,
}
