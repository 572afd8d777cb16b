//! The inboxes in memory.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast::Sender;

use crate::domain::team::message::{MESSAGE_BYTES_MAX, Message};
use crate::domain::team::name::{HUMAN, LEAD, Name};
use crate::ports::{Delivery, Mailbox, StoreChange, StoreError, StoreResult};
use crate::stores::file::mailbox::INBOX_BYTES_MAX;

/// The inboxes in memory.
pub struct MemoryMailbox {
    changes: Sender<StoreChange>,
    content: Mutex<MailboxContent>,
}

#[derive(Default)]
struct MailboxContent {
    open: Vec<Name>,
    sent: u64,
    inboxes: BTreeMap<String, Vec<StoredMessage>>,
}

struct StoredMessage {
    id: String,
    message: Message,
    bytes: u64,
}

impl MemoryMailbox {
    /// Empty inboxes for `lead` and `human`.
    pub fn new(changes: Sender<StoreChange>) -> Self {
        Self { changes, content: Mutex::default() }
    }
}

impl MailboxContent {
    fn find(&self, name: &str) -> StoreResult<String> {
        let recipients = || [LEAD, HUMAN].into_iter().chain(self.open.iter().map(Name::as_str));
        match recipients().find(|recipient| recipient.eq_ignore_ascii_case(name)) {
            Some(recipient) => Ok(recipient.to_owned()),
            None => Err(StoreError::UnknownRecipient {
                name: name.to_owned(),
                recipients: recipients().map(str::to_owned).collect(),
            }),
        }
    }
}

#[async_trait]
impl Mailbox for MemoryMailbox {
    async fn send(&self, to: &str, mut message: Message) -> StoreResult<String> {
        let mut content = self.content.lock();
        let name = content.find(to)?;
        let id = format!("m-{:016x}", content.sent + 1);
        message.id = Some(id.clone());
        let bytes = message.to_line().len() + 1;
        if bytes > MESSAGE_BYTES_MAX {
            let what = "the message".to_owned();
            return Err(StoreError::TooLarge { what, bytes, bytes_max: MESSAGE_BYTES_MAX });
        }
        let inbox = content.inboxes.entry(name.clone()).or_default();
        let used_bytes: u64 = inbox.iter().map(|stored| stored.bytes).sum();
        if used_bytes + bytes as u64 > INBOX_BYTES_MAX {
            return Err(StoreError::InboxFull { name, bytes: used_bytes, bytes_max: INBOX_BYTES_MAX });
        }
        inbox.push(StoredMessage { id: id.clone(), message, bytes: bytes as u64 });
        content.sent += 1;
        drop(content);
        // There may be no listener.
        let _ = self.changes.send(StoreChange::Mail(name));
        Ok(id)
    }

    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        let mut content = self.content.lock();
        for name in names {
            if !content.open.iter().any(|open| open.is_same(name.as_str())) {
                content.open.push(name.clone());
            }
        }
        Ok(())
    }

    async fn add_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.open_inboxes(names).await
    }

    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        let content = self.content.lock();
        let name = content.find(name)?;
        let waiting = content.inboxes.get(&name).into_iter().flatten().filter(|stored| !delivered.contains(&stored.id));
        Ok(waiting.map(|stored| Delivery { key: stored.id.clone(), message: stored.message.clone() }).collect())
    }

    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        let mut content = self.content.lock();
        let name = content.find(name)?;
        if let Some(inbox) = content.inboxes.get_mut(&name) {
            inbox.retain(|stored| !delivered.contains(&stored.id));
        }
        Ok(())
    }

    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.take(name, &HashSet::new()).await
    }

    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        let content = self.content.lock();
        Ok(content.inboxes.iter().filter(|(_, inbox)| !inbox.is_empty()).map(|(name, _)| name.clone()).collect())
    }
}
