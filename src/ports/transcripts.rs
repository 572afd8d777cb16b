//! The store of transcripts.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::agent::transcript::Record;

/// An object that was in the place of a transcript and was moved to quarantine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinedTranscript {
    /// Name of the transcript's member.
    pub teammate: String,
    /// The kind of object that was found: "a folder".
    pub kind: &'static str,
    /// Its new place.
    pub moved_to: String,
}

/// The transcripts. They only grow. After a crash the next reader skips an incomplete last record.
#[async_trait]
pub trait Transcripts: Send + Sync {
    /// Returns all records of `name`, oldest first. A new member has none.
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>>;

    /// Appends records. With `sync` and power durability, these and all earlier records survive a power cut when this returns,
    /// even if `records` is empty.
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()>;

    /// Returns what was moved to quarantine since the last call. New transcripts start in its place.
    fn take_quarantined(&self) -> Vec<QuarantinedTranscript>;
}
