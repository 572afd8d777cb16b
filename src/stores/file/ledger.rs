//! The ledger, `.team/ledger.jsonl`: one line before a model request is sent, and one after it ends.
//!
//! Only one process appends. A large file is folded: it is replaced by a few lines with the same totals.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::team::budget::{LedgerRecord, LedgerTotals};
use crate::ports::{Ledger, StoreResult};
use crate::stores::fs::FileSystem;

use super::append_file::{FileEnd, complete_bytes};
use super::atomic_write::replace;
use super::{Durability, blocking, read_or_empty};

/// The file's name in `.team`.
pub const LEDGER_FILE: &str = "ledger.jsonl";

/// The size in bytes above which the file is folded.
pub const LEDGER_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The largest file that is read, in bytes: many times the expected size.
const READ_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The ledger in a file.
pub struct FileLedger {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    bytes_max: u64,
    file: Mutex<LedgerFile>,
}

/// The cached facts about the file, in the process that appends.
struct LedgerFile {
    end: FileEnd,
    /// The size in bytes above which the file is folded.
    fold_above: u64,
}

impl FileLedger {
    /// The ledger below `team_folder`.
    pub fn new(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        Self::with_bytes(files, team_folder, LEDGER_BYTES_MAX)
    }

    /// The ledger below `team_folder`, folded above `bytes_max`.
    pub fn with_bytes(files: Arc<dyn FileSystem>, team_folder: &Path, bytes_max: u64) -> Self {
        let file = Mutex::new(LedgerFile { end: FileEnd::default(), fold_above: bytes_max });
        Self { files, folder: team_folder.to_owned(), bytes_max, file }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(LEDGER_FILE)
    }

    fn read_bytes(&self) -> StoreResult<Vec<u8>> {
        read_or_empty(&*self.files, &self.path(), 0, READ_BYTES_MAX)
    }

    fn totals(&self) -> StoreResult<LedgerTotals> {
        let bytes = self.read_bytes()?;
        let mut totals = LedgerTotals::default();
        let mut invalid = 0;
        let lines = bytes[..complete_bytes(&bytes)].split(|byte| *byte == b'\n');
        for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
            match serde_json::from_slice::<LedgerRecord>(line) {
                Ok(line) => totals.apply(&line.entry),
                Err(_) => invalid += 1,
            }
        }
        if invalid > 0 {
            tracing::warn!(ledger = %self.path().display(), lines = invalid, "skipped invalid lines of the ledger");
        }
        Ok(totals)
    }

    fn append_lines(&self, lines: &[LedgerRecord]) -> StoreResult<()> {
        let mut file = self.file.lock();
        if !file.end.is_known() {
            file.end = FileEnd::of(&self.read_bytes()?);
        }
        let text: String = lines.iter().map(|line| line.to_line() + "\n").collect();
        let bytes = file.end.append(&*self.files, &self.path(), &text)?.end;
        if bytes > file.fold_above
            && let Err(error) = self.fold(&mut file, lines)
        {
            // The file is unchanged. The next append tries again.
            tracing::warn!(%error, "cannot fold the ledger");
        }
        Ok(())
    }

    /// Replaces the file by a few lines with the same totals and the time of the last record.
    fn fold(&self, file: &mut LedgerFile, last: &[LedgerRecord]) -> StoreResult<()> {
        let at = last.last().map(|line| line.at).unwrap_or_default();
        let entries = self.totals()?.entries();
        let text: String = entries.into_iter().map(|entry| LedgerRecord::new(at, entry).to_line() + "\n").collect();
        replace(&*self.files, &self.folder, LEDGER_FILE, text.as_bytes(), Durability::Power)?;
        file.end = FileEnd::of(text.as_bytes());
        file.fold_above = self.bytes_max + text.len() as u64;
        Ok(())
    }
}

#[async_trait]
impl Ledger for FileLedger {
    async fn read(&self) -> StoreResult<LedgerTotals> {
        blocking(|| self.totals()).await
    }

    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()> {
        if lines.is_empty() {
            return Ok(());
        }
        blocking(|| self.append_lines(&lines)).await
    }
}
