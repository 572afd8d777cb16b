//! Takes mail, and removes delivered mail.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast::Sender;
use tokio::time::Instant;

use crate::domain::team::message::Message;
use crate::domain::team::name::Name;
use crate::domain::time::UnixMs;
use crate::ports::{Clock, Delivery, StoreChange, StoreResult};
use crate::stores::file::atomic_write::sweep_temporaries;
use crate::stores::file::{blocking, failed, if_found, is_foreign_entry, read_or_empty};
use crate::stores::fs::{FileKind, FileStamp};

use super::TAKEN_BYTES_MAX;
use super::empty_cache::EmptyInboxCache;
use super::folder::InboxFolder;
use super::quarantine::Quarantine;
use super::taken_files::{MailContent, file_name, inbox_name, next_number, parse_name, taken_at_ms};

/// Takes mail from inboxes.
pub(super) struct InboxReader {
    pub empty_cache: EmptyInboxCache,
    folder: Arc<InboxFolder>,
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    quarantine: Quarantine,
    settle_time: Duration,
    state: Mutex<ReaderState>,
}

#[derive(Default)]
struct ReaderState {
    /// The taken files by name.
    taken_files: BTreeMap<String, TakenFile>,
    /// The keys of delivered messages by inbox name, while taken files of that name exist.
    delivered_keys: HashMap<String, HashSet<String>>,
    last_number: Option<u64>,
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

impl InboxReader {
    pub fn new(
        folder: Arc<InboxFolder>,
        clock: Arc<dyn Clock>,
        changes: Sender<StoreChange>,
        settle_time: Duration,
    ) -> Self {
        Self {
            empty_cache: EmptyInboxCache::new(&folder.path),
            quarantine: Quarantine::new(&folder.path),
            folder,
            clock,
            changes,
            settle_time,
            state: Mutex::default(),
        }
    }

    pub fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.folder.locked(|| {
            if !std::mem::replace(&mut self.state.lock().is_swept, true) {
                sweep_temporaries(&*self.folder.files, &self.folder.path)?;
            }
            self.folder.recipients.open(&*self.folder.files, names)
        })
    }

    pub fn add_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.folder.locked(|| self.folder.recipients.add(&*self.folder.files, names))
    }

    /// Moves the inbox of `name` to its taken files, and reads all of them. The transcript contains `delivered`.
    pub fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<(String, MailContent)>> {
        let since = self.empty_cache.begin(&*self.folder.files);
        let name = self.folder.recipients.find(&*self.folder.files, name)?;
        self.take_inbox(&name, &name)?;
        let contents = self.read_taken_files(&name)?;
        if contents.is_empty() {
            self.empty_cache.mark_empty(&name, since);
        }
        self.update_taken_files(&name, &contents, delivered);
        Ok(contents)
    }

    /// Removes the settled taken files of `name` that are delivered. The transcript contains `delivered`.
    pub fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        let name = self.folder.recipients.find(&*self.folder.files, name)?;
        let contents = self.read_taken_files(&name)?;
        self.update_taken_files(&name, &contents, delivered);
        self.sweep().map(drop)
    }

    /// Reads the taken files of `name`, in the order they were taken.
    fn read_taken_files(&self, name: &str) -> StoreResult<Vec<(String, MailContent)>> {
        let mut contents = Vec::new();
        for (_, file) in self.folder.taken_files_of(name)? {
            if let Some(content) = self.read_taken_file(&file)? {
                contents.push((file, content));
            }
        }
        Ok(contents)
    }

    /// Moves the inbox with the spelling `spelling` to the taken files of `name`, if it has content.
    fn take_inbox(&self, name: &str, spelling: &str) -> StoreResult<()> {
        let path = self.folder.inbox(spelling);
        let has_mail = |stamp: Option<FileStamp>| stamp.is_some_and(|stamp| stamp.bytes > 0);
        if !has_mail(self.folder.stamp(&path)?) {
            return Ok(());
        }
        self.folder.locked(|| {
            if !has_mail(self.folder.stamp(&path)?) {
                return Ok(());
            }
            let number = next_number(self.clock.now(), self.last_number()?);
            let taken = self.folder.taken.join(file_name(name, number));
            self.folder.files.rename(&path, &taken).map_err(failed("take", &path))?;
            let mut state = self.state.lock();
            state.last_number = Some(number);
            Ok(())
        })
    }

    /// The greatest number of a taken file. One process takes the mail of a name, so the folder is listed only once.
    fn last_number(&self) -> StoreResult<Option<u64>> {
        let known = self.state.lock().last_number;
        if known.is_some() {
            return Ok(known);
        }
        Ok(self
            .folder
            .list(&self.folder.taken)?
            .iter()
            .filter_map(|file| parse_name(file))
            .map(|(_, number)| number)
            .max())
    }

    /// Reads a taken file; `None` if it is gone or was quarantined.
    fn read_taken_file(&self, file: &str) -> StoreResult<Option<MailContent>> {
        let path = self.folder.taken.join(file);
        match self.folder.files.read(&path, 0, TAKEN_BYTES_MAX) {
            Ok((bytes, stamp)) => {
                let mut content = MailContent::read(file, &bytes, self.is_settled(file, stamp));
                content.stamp = Some(stamp);
                Ok(Some(content))
            }
            Err(error) => match self.folder.stamp(&path)? {
                // It is delivered, or another reader has quarantined it.
                None => Ok(None),
                Some(stamp) if is_foreign_entry(stamp, &error) => {
                    self.quarantine.quarantine_file(&*self.folder.files, &path, &error)?;
                    self.state.lock().taken_files.remove(file);
                    Ok(None)
                }
                Some(_) => Err(failed("read", &path)(error)),
            },
        }
    }

    /// Returns true if the file was unchanged for the settle time.
    fn is_settled(&self, file: &str, stamp: FileStamp) -> bool {
        let state = self.state.lock();
        state
            .taken_files
            .get(file)
            .is_some_and(|taken_file| taken_file.stamp == stamp && taken_file.since.elapsed() >= self.settle_time)
    }

    /// Updates the state of the taken files of `name`. The transcript contains `delivered` and all keys of earlier calls.
    fn update_taken_files(&self, name: &str, contents: &[(String, MailContent)], delivered: &HashSet<String>) {
        if contents.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let delivered_keys = state.delivered_keys.entry(name.to_owned()).or_default();
        for (file, content) in contents {
            let keys = content.messages.iter().map(|(key, _)| key);
            delivered_keys.extend(keys.filter(|key| delivered.contains(*key)).cloned());
            let Some(stamp) = content.stamp else { continue };
            let age = unchanged_time(file, stamp, now);
            let taken_file = state.taken_files.entry(file.clone()).or_insert_with(|| TakenFile::with_age(stamp, age));
            if taken_file.stamp != stamp {
                *taken_file = TakenFile::new(stamp);
            }
            taken_file.is_delivered = content.is_delivered(delivered_keys);
        }
    }

    /// Checks settled taken files: removes delivered ones, and notifies the owners of files with an unfinished line. Returns true if
    /// any are left to check.
    pub fn sweep(&self) -> StoreResult<bool> {
        let settled: Vec<String> = {
            let state = self.state.lock();
            let is_due = |taken_file: &TakenFile| {
                taken_file.since.elapsed() >= self.settle_time
                    && (taken_file.is_delivered || !taken_file.is_owner_notified)
            };
            state
                .taken_files
                .iter()
                .filter(|(_, taken_file)| is_due(taken_file))
                .map(|(file, _)| file.clone())
                .collect()
        };
        for file in settled {
            self.sweep_file(&file)?;
        }
        let mut state = self.state.lock();
        let names: BTreeSet<String> =
            state.taken_files.keys().filter_map(|file| parse_name(file)).map(|(name, _)| name.to_owned()).collect();
        state.delivered_keys.retain(|name, _| names.contains(name));
        Ok(state.taken_files.values().any(|taken_file| taken_file.is_delivered || !taken_file.is_owner_notified))
    }

    fn sweep_file(&self, file: &str) -> StoreResult<()> {
        let Some((name, _)) = parse_name(file) else {
            return Ok(());
        };
        let Some(content) = self.read_taken_file(file)? else {
            self.state.lock().taken_files.remove(file);
            return Ok(());
        };
        let (name, contents) = (name.to_owned(), [(file.to_owned(), content)]);
        self.update_taken_files(&name, &contents, &HashSet::new());
        let mut state = self.state.lock();
        let Some(taken_file) = state.taken_files.get_mut(file) else {
            return Ok(());
        };
        if taken_file.since.elapsed() < self.settle_time {
            // It changed: a program wrote into it after it was taken.
            let _ = self.changes.send(StoreChange::Mail(name));
        } else if taken_file.is_delivered {
            let path = self.folder.taken.join(file);
            state.taken_files.remove(file);
            drop(state);
            // After a crash in between, they are quarantined again.
            let mut lines = contents.iter().flat_map(|(_, content)| &content.invalid_lines);
            lines.try_for_each(|line| self.quarantine.quarantine_line(&*self.folder.files, line))?;
            // Another sweep may have removed it.
            if_found("remove", &path, self.folder.files.remove(&path))?;
        } else if !taken_file.is_owner_notified {
            taken_file.is_owner_notified = true;
            let _ = self.changes.send(StoreChange::Mail(name));
        }
        Ok(())
    }

    /// Starts the task that checks settled taken files, unless it runs or there are none.
    pub fn start_sweeping(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.taken_files.is_empty() || state.is_sweeping {
            return;
        }
        state.is_sweeping = true;
        tokio::spawn(sweep_in_background(Arc::downgrade(self)));
    }

    pub fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        let name = self.folder.recipients.find(&*self.folder.files, name)?;
        let path = self.folder.inbox(&name);
        loop {
            let since = self.empty_cache.begin(&*self.folder.files);
            let before = self.folder.stamp(&path)?;
            let taken = self.folder.taken_files_of(&name)?;
            if taken.is_empty() && before.is_none_or(|stamp| stamp.bytes == 0) {
                self.empty_cache.mark_empty(&name, since);
                return Ok(Vec::new());
            }
            let mut messages: Vec<(String, Message)> = Vec::new();
            for (_, file) in taken {
                let is_delivered =
                    self.state.lock().taken_files.get(&file).is_some_and(|taken_file| taken_file.is_delivered);
                if !is_delivered && let Some(content) = self.read_taken_file(&file)? {
                    messages.extend(content.messages);
                }
            }
            if before.is_some() {
                let bytes = read_or_empty(&*self.folder.files, &path, 0, TAKEN_BYTES_MAX)?;
                messages.extend(MailContent::read("inbox", &bytes, true).messages);
            }
            // The inbox was taken in the meantime: read again.
            if before.map(|stamp| stamp.inode) == self.folder.stamp(&path)?.map(|stamp| stamp.inode) {
                let state = self.state.lock();
                let delivered_keys = state.delivered_keys.get(&name);
                messages.retain(|(key, _)| !delivered_keys.is_some_and(|delivered_keys| delivered_keys.contains(key)));
                return Ok(messages.into_iter().map(|(key, message)| Delivery { key, message }).collect());
            }
        }
    }

    pub fn waiting(&self) -> StoreResult<Vec<String>> {
        let spellings = self.folder.recipients.spellings(&*self.folder.files)?;
        let known = |name: &str| spellings.get(&name.to_ascii_lowercase()).cloned();
        let mut waiting = BTreeSet::new();
        for file in self.folder.list(&self.folder.path)? {
            let Some((spelling, name)) = inbox_name(&file).and_then(|spelling| Some((spelling, known(spelling)?)))
            else {
                continue;
            };
            let Some(stamp) = self.folder.stamp(&self.folder.path.join(&file))?.filter(|stamp| stamp.bytes > 0) else {
                continue;
            };
            let is_invalid = stamp.kind != FileKind::File || stamp.bytes > TAKEN_BYTES_MAX;
            if is_invalid || spelling != name {
                self.take_inbox(&name, spelling)?;
            }
            if is_invalid {
                // The read quarantines it.
                self.read_taken_files(&name)?;
                continue;
            }
            waiting.insert(name);
        }
        let taken = self.folder.list(&self.folder.taken)?;
        let state = self.state.lock();
        for file in &taken {
            let is_delivered = state.taken_files.get(file).is_some_and(|taken_file| taken_file.is_delivered);
            if !is_delivered && let Some((name, _)) = parse_name(file) {
                waiting.extend(known(name));
            }
        }
        Ok(waiting.into_iter().collect())
    }
}

impl TakenFile {
    fn new(stamp: FileStamp) -> Self {
        Self::with_age(stamp, Duration::ZERO)
    }

    /// A file that is unchanged for `age` already.
    fn with_age(stamp: FileStamp, age: Duration) -> Self {
        let since = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        Self { stamp, since, is_delivered: false, is_owner_notified: false }
    }
}

/// The time that a taken file is unchanged when it is first read: since it was taken (in its number) and last written.
fn unchanged_time(file: &str, stamp: FileStamp, now: UnixMs) -> Duration {
    let taken_ms = parse_name(file).map(|(_, number)| i128::from(taken_at_ms(number)));
    let written_ms = stamp.modified_ns / 1_000_000;
    let since_ms = taken_ms.unwrap_or(i128::MAX).max(written_ms);
    u64::try_from(i128::from(now.0) - since_ms).map_or(Duration::ZERO, Duration::from_millis)
}

async fn sweep_in_background(inner: Weak<InboxReader>) {
    loop {
        let Some(settle_time) = inner.upgrade().map(|inner| inner.settle_time) else { return };
        tokio::time::sleep(settle_time + Duration::from_millis(20)).await;
        let Some(inner) = inner.upgrade() else { return };
        let has_more = blocking(|| inner.sweep()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot clean up delivered mail; retrying");
            true
        });
        let mut state = inner.state.lock();
        if !has_more {
            state.is_sweeping = false;
            return;
        }
    }
}
