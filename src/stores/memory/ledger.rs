//! The ledger in memory.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::budget::{LedgerRecord, LedgerTotals};
use crate::ports::{Ledger, StoreResult};

/// The ledger in memory.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    totals: Mutex<LedgerTotals>,
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn read(&self) -> StoreResult<LedgerTotals> {
        Ok(self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().for_each(|line| totals.apply(&line.entry));
        Ok(())
    }
}
