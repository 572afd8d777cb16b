//! The store of transcripts.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::agent::transcript::Record;

/// The transcripts. They only grow. After a crash the next reader skips an incomplete last record.
#[async_trait]
pub trait Transcripts: Send + Sync {
    /// Returns all records of `name`, oldest first. A new member has none.
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>>;

    /// Appends records. With `sync` and power durability, these and all earlier records survive a power cut when this returns,
    /// even if `records` is empty.
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()>;
}
