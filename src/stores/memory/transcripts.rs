//! The transcripts in memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::transcript::Record;
use crate::ports::{QuarantinedTranscript, StoreError, StoreResult, Transcripts};
use crate::stores::file::transcripts::RECORD_BYTES_MAX;

/// The transcripts in memory.
#[derive(Default)]
pub struct MemoryTranscripts {
    records: Mutex<HashMap<String, Vec<Record>>>,
}

#[async_trait]
impl Transcripts for MemoryTranscripts {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        let all = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.get(name).cloned().unwrap_or_default())
    }

    async fn append(&self, name: &str, records: &[Record], _sync: bool) -> StoreResult<()> {
        for record in records {
            let bytes = record.to_line().len();
            if bytes > RECORD_BYTES_MAX {
                let what = format!("a record of {name}'s transcript");
                return Err(StoreError::TooLarge { what, bytes, bytes_max: RECORD_BYTES_MAX });
            }
        }
        let mut all = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name.to_owned()).or_default().extend_from_slice(records);
        Ok(())
    }

    fn take_quarantined(&self) -> Vec<QuarantinedTranscript> {
        Vec::new()
    }
}
