//! The inboxes.

use std::collections::HashSet;

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::message::Message;
use crate::domain::team::name::Name;

/// A message for a transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Its key in a transcript: the message's id or, for mail of another program, its place in the inbox.
    pub key: String,
    /// The message.
    pub message: Message,
}

/// The inboxes.
///
/// A message that [`Mailbox::send`] accepted is delivered exactly once. [`Mailbox::take`] returns it repeatedly, also after a
/// crash, until [`Mailbox::settle`] confirms that the transcript has it.
#[async_trait]
pub trait Mailbox: Send + Sync {
    /// Adds a message to the inbox of `to` and returns its new id. Unknown recipients and full inboxes are errors.
    async fn send(&self, to: &str, message: Message) -> StoreResult<String>;

    /// Adds recipients to `lead` and `human`. The first call of an opened store replaces the recipients of earlier runs.
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()>;

    /// Adds recipients. Those of earlier runs and of other processes stay.
    async fn add_inboxes(&self, names: &[Name]) -> StoreResult<()>;

    /// Returns the mail of `name` that no transcript has, in order. `delivered` are the keys in its transcript. Invalid mail is
    /// moved to quarantine with a warning.
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>>;

    /// Confirms that the transcript of `name` durably has these keys. Their messages may be removed.
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()>;

    /// Returns waiting mail without taking it. Mail that was taken before has the same key. After a restart the transcript may
    /// already have some of it.
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>>;

    /// Returns the recipients with waiting mail, or with mail that [`Mailbox::take`] must check. Reads no mail.
    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>>;
}
