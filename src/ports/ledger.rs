//! The usage of model requests.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::budget::{LedgerRecord, LedgerTotals};

/// The usage of model requests.
///
/// Lines accepted by [`Ledger::append`] survive the death of every process. A power cut may lose the last ones.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Returns the sum of all lines.
    async fn read(&self) -> StoreResult<LedgerTotals>;

    /// Appends lines in this order. Only one process at a time may append: the leading one, or one that excludes leads.
    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()>;
}
