//! Appends to one member's transcript.

use std::collections::HashSet;
use std::sync::Arc;

use crate::domain::agent::prompt::delivered_keys;
use crate::domain::agent::transcript::{MessageRecord, Record, TranscriptEntry};
use crate::ports::{Clock, StoreResult, Transcripts};

/// Appends records to the transcript of one member, and knows the keys of the mail in it.
pub struct TranscriptWriter {
    name: String,
    transcripts: Arc<dyn Transcripts>,
    clock: Arc<dyn Clock>,
    /// The number of its records.
    pub record_count: u64,
    /// The keys of all mail in the transcript.
    pub delivered: HashSet<String>,
    /// A power cut may still remove some of `delivered` from the transcript.
    needs_sync: bool,
}

impl TranscriptWriter {
    /// Continues after these records of the member `name`.
    pub fn resume(name: &str, transcripts: Arc<dyn Transcripts>, clock: Arc<dyn Clock>, records: &[Record]) -> Self {
        Self {
            name: name.to_owned(),
            transcripts,
            clock,
            record_count: records.len() as u64,
            delivered: delivered_keys(records),
            // Its last writer may have been killed before the sync.
            needs_sync: true,
        }
    }

    /// Appends a message, as [`Self::append`], and remembers the keys of the mail in it.
    ///
    /// # Errors
    /// The store cannot write it.
    pub async fn append_message(&mut self, message: &MessageRecord) -> StoreResult<()> {
        self.append(TranscriptEntry::Message(message.clone())).await?;
        self.needs_sync |= !message.delivered.is_empty();
        self.delivered.extend(message.delivered.iter().cloned());
        Ok(())
    }

    /// Appends an entry. The record survives the death of the process. It survives a power cut only after a sync.
    ///
    /// # Errors
    /// The store cannot write it.
    pub async fn append(&mut self, entry: TranscriptEntry) -> StoreResult<()> {
        let record = Record { at: self.clock.now(), entry };
        self.transcripts.append(&self.name, &[record], false).await?;
        self.record_count += 1;
        Ok(())
    }

    /// Returns the keys of all mail in the transcript after a sync.
    ///
    /// # Errors
    /// The sync failed. The mail still counts as delivered.
    pub async fn synced_keys(&mut self) -> StoreResult<&HashSet<String>> {
        if self.needs_sync && !self.delivered.is_empty() {
            self.transcripts.append(&self.name, &[], true).await?;
        }
        self.needs_sync = false;
        Ok(&self.delivered)
    }
}
