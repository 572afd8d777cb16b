//! The ledger in memory.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::spend::{Book, LedgerLine};
use crate::ports::{Ledger, StoreResult};

/// The ledger in memory.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    book: Mutex<Book>,
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn read(&self) -> StoreResult<Book> {
        Ok(self.book.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn append(&self, lines: Vec<LedgerLine>) -> StoreResult<()> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().for_each(|line| book.take(&line.entry));
        Ok(())
    }
}
