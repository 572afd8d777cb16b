//! The transcripts, as the team needs them.

use std::path::PathBuf;

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::transcript::Record;

/// What lay in the place of a transcript and was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Whose transcript.
    pub teammate: String,
    /// What it was: "a folder".
    pub found: &'static str,
    /// Where it is now.
    pub kept: PathBuf,
}

/// The transcripts. Append-only; a torn last line is closed and passed over by the next reader.
#[async_trait]
pub trait Transcripts: Send + Sync {
    /// All records of `name`, oldest first; none when it never spoke.
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>>;

    /// Appends records. With `sync`, and power durability, they and all before them survive a power cut once this returns; so do those
    /// before where there are none to append.
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()>;

    /// What was no transcript and was moved beside since this was last asked: fresh transcripts begin in their places.
    fn take_set_aside(&self) -> Vec<SetAside> {
        Vec::new()
    }
}
