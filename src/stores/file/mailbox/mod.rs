//! The inboxes: `.team/inbox/<name>.jsonl`.
//!
//! A send is one append under a lock; requests to stop are appended without it. Taking mail renames the inbox into `.taken/`. The
//! file stays there until a transcript contains all its messages and it was unchanged for a second. The wait is for programs without
//! locks, which may have opened it before the rename. Across a restart only the transcripts on disk know the delivered messages.

mod empty_cache;
mod folder;
mod quarantine;
mod reader;
mod recipients;
mod taken_files;
mod writer;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast::Sender;

use crate::domain::team::message::Message;
use crate::domain::team::name::Name;
use crate::ports::{Clock, Delivery, Mailbox, StoreChange, StoreResult};
use crate::stores::fs::FileSystem;

use super::{Durability, blocking};
use folder::InboxFolder;
use reader::InboxReader;
use writer::InboxWriter;

/// The most that an inbox may hold, with its undelivered taken files, in bytes.
pub const INBOX_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The largest mail file that is read, in bytes. Other programs know no limit; a larger file is quarantined.
const TAKEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The time that a taken file must be unchanged before it is removed, or before its unfinished last line counts as complete.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The inboxes in files.
pub struct FileMailbox {
    writer: InboxWriter,
    reader: Arc<InboxReader>,
}

impl FileMailbox {
    /// The inboxes below `team_folder`.
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
    pub fn with_settle_time(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: Sender<StoreChange>,
        team_folder: &Path,
        settle_time: Duration,
    ) -> Self {
        let folder = Arc::new(InboxFolder::new(files, durability, team_folder.join("inbox")));
        let writer = InboxWriter::new(Arc::clone(&folder), changes.clone());
        Self { writer, reader: Arc::new(InboxReader::new(folder, clock, changes, settle_time)) }
    }
}

#[async_trait]
impl Mailbox for FileMailbox {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        blocking(|| self.writer.send(to, message)).await
    }

    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        blocking(|| self.reader.open_inboxes(names)).await
    }

    async fn add_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        blocking(|| self.reader.add_inboxes(names)).await
    }

    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        if self.reader.empty_cache.is_empty(name) {
            return Ok(Vec::new());
        }
        let contents = blocking(|| self.reader.take(name, delivered)).await?;
        self.reader.start_sweeping();
        let mut returned = HashSet::new();
        let messages = contents.into_iter().flat_map(|(_, content)| content.messages);
        let waiting = messages.filter(|(key, _)| !delivered.contains(key) && returned.insert(key.clone()));
        Ok(waiting.map(|(key, message)| Delivery { key, message }).collect())
    }

    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        blocking(|| self.reader.settle(name, delivered)).await?;
        self.reader.start_sweeping();
        Ok(())
    }

    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        if self.reader.empty_cache.is_empty(name) {
            return Ok(Vec::new());
        }
        blocking(|| self.reader.peek(name)).await
    }

    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        blocking(|| self.reader.waiting()).await
    }
}
