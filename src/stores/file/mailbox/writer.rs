//! Sends mail: one append to the recipient's inbox.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast::Sender;

use crate::domain::team::message::{MESSAGE_BYTES_MAX, Message, MessageType};
use crate::ports::{StoreChange, StoreError, StoreResult};
use crate::stores::file::sync::SyncRequest;
use crate::stores::file::{Durability, failed};
use crate::stores::fs::FileStamp;

use super::folder::InboxFolder;
use super::{INBOX_BYTES_MAX, TAKEN_BYTES_MAX};

/// Appends messages to inboxes.
pub(super) struct InboxWriter {
    folder: Arc<InboxFolder>,
    changes: Sender<StoreChange>,
    /// The inboxes whose file name this process made durable, each with its inode.
    durable_inodes: Mutex<HashMap<String, u64>>,
}

impl InboxWriter {
    pub fn new(folder: Arc<InboxFolder>, changes: Sender<StoreChange>) -> Self {
        Self { folder, changes, durable_inodes: Mutex::default() }
    }

    /// Appends a message to the inbox of `to` and returns its new id.
    pub fn send(&self, to: &str, mut message: Message) -> StoreResult<String> {
        let name = self.folder.recipients.find(&*self.folder.files, to)?;
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
            self.folder.prepare()?;
            self.append(&name, &line)?
        } else {
            self.folder.locked(|| self.append(&name, &line))?
        };
        self.make_durable(&name, &appended)?;
        // There may be no listener.
        let _ = self.changes.send(StoreChange::Mail(name));
        Ok(id)
    }

    fn append(&self, name: &str, line: &str) -> StoreResult<Appended> {
        let path = self.folder.inbox(name);
        let before = self.folder.stamp(&path)?;
        let taken = self.folder.taken_files_of(name)?;
        self.check_space(name, before, &taken, line.len() as u64)?;
        let bytes = if self.has_unfinished_line(&path, before)? { format!("\n{line}") } else { line.to_owned() };
        self.folder.files.append(&path, bytes.as_bytes()).map_err(failed("append to", &path))?;
        let inode = if self.folder.durability == Durability::Power {
            self.folder.stamp(&path)?.map(|stamp| stamp.inode)
        } else {
            None
        };
        let is_named = inode.is_some() && self.durable_inodes.lock().get(name).copied() == inode;
        Ok(Appended { inode, is_named, has_taken: !taken.is_empty() })
    }

    fn check_space(
        &self,
        name: &str,
        before: Option<FileStamp>,
        taken: &[(u64, String)],
        new_bytes: u64,
    ) -> StoreResult<()> {
        let mut bytes = before.map_or(0, |stamp| stamp.bytes);
        for (_, file) in taken {
            bytes += self.folder.stamp(&self.folder.taken.join(file))?.map_or(0, |stamp| stamp.bytes);
        }
        if bytes + new_bytes > INBOX_BYTES_MAX {
            return Err(StoreError::InboxFull { name: name.to_owned(), bytes, bytes_max: INBOX_BYTES_MAX });
        }
        Ok(())
    }

    /// Returns true if the last line has no newline: its writer died, or its program writes none.
    fn has_unfinished_line(&self, path: &Path, before: Option<FileStamp>) -> StoreResult<bool> {
        let Some(last) = before.and_then(|stamp| stamp.bytes.checked_sub(1)) else {
            return Ok(false);
        };
        let (bytes, _) = self.folder.files.read(path, last, TAKEN_BYTES_MAX).map_err(failed("read", path))?;
        Ok(bytes.last().is_some_and(|byte| *byte != b'\n'))
    }

    fn sync(&self, request: &SyncRequest) -> StoreResult<()> {
        request.sync(&*self.folder.files, self.folder.durability)
    }

    /// Makes the line durable, even if its file was taken in the meantime.
    fn make_durable(&self, name: &str, appended: &Appended) -> StoreResult<()> {
        if self.folder.durability == Durability::Process {
            return Ok(());
        }
        let path = self.folder.inbox(name);
        if !appended.is_named && appended.has_taken {
            // The rename of the previous file must become durable before the new file's name.
            self.sync(&SyncRequest { files: vec![], folders: vec![self.folder.taken.clone()] })?;
        }
        let folders = if appended.is_named { vec![] } else { vec![self.folder.path.clone()] };
        self.sync(&SyncRequest { files: vec![path.clone()], folders })?;
        if self.folder.stamp(&path)?.map(|stamp| stamp.inode) == appended.inode {
            self.durable_inodes.lock().extend(appended.inode.map(|inode| (name.to_owned(), inode)));
            return Ok(());
        }
        let files =
            self.folder.taken_files_of(name)?.into_iter().map(|(_, file)| self.folder.taken.join(file)).collect();
        self.sync(&SyncRequest { files, folders: vec![self.folder.taken.clone(), self.folder.path.clone()] })
    }
}

/// The file that a line was appended to.
struct Appended {
    inode: Option<u64>,
    /// True if the file's name is durable. Another program may have created the file without a sync.
    is_named: bool,
    has_taken: bool,
}
