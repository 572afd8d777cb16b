//! The ledger, `.team/ledger.jsonl`: one line before a model request is sent, and one after it ends.
//!
//! Only one process appends. A large file is folded: it is replaced by a few lines with the same totals.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::budget::{LedgerRecord, LedgerTotals};
use crate::ports::{Ledger, StoreResult};
use crate::stores::fs::FileSystem;

use super::append_file::{missing_bytes, unfinished_bytes};
use super::atomic_write::replace;
use super::{Durability, blocking, failed};

/// The file's name in `.team`.
pub const LEDGER_FILE: &str = "ledger.jsonl";

/// The size in bytes above which the file is folded.
pub const LEDGER_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The largest file that is read, in bytes: many times the expected size.
const READ_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The ledger in a file.
pub struct FileLedger {
    inner: Arc<LedgerInner>,
}

struct LedgerInner {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    bytes_max: u64,
    file: Mutex<LedgerFile>,
}

/// The cached facts about the file, in the process that appends.
#[derive(Default)]
struct LedgerFile {
    /// The length of the complete lines; `None` before the first read.
    valid_bytes: Option<u64>,
    /// True if an incomplete line may follow: the last append failed, or the previous process died.
    may_be_torn: bool,
    /// The size in bytes above which the file is folded.
    fold_above: u64,
}

impl FileLedger {
    /// The ledger below `team_folder`.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        Self::with_bytes(files, team_folder, LEDGER_BYTES_MAX)
    }

    /// The ledger below `team_folder`, folded above `bytes_max`.
    #[must_use]
    pub fn with_bytes(files: Arc<dyn FileSystem>, team_folder: &Path, bytes_max: u64) -> Self {
        let file = Mutex::new(LedgerFile { fold_above: bytes_max, ..LedgerFile::default() });
        Self { inner: Arc::new(LedgerInner { files, folder: team_folder.to_owned(), bytes_max, file }) }
    }
}

#[async_trait]
impl Ledger for FileLedger {
    async fn read(&self) -> StoreResult<LedgerTotals> {
        let inner = Arc::clone(&self.inner);
        blocking(move || Ok(inner.read()?.totals)).await
    }

    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.append(&lines)).await
    }
}

struct LedgerContent {
    totals: LedgerTotals,
    valid_bytes: u64,
    is_torn: bool,
}

impl LedgerInner {
    fn path(&self) -> PathBuf {
        self.folder.join(LEDGER_FILE)
    }

    fn read(&self) -> StoreResult<LedgerContent> {
        let path = self.path();
        let bytes = match self.files.read(&path, 0, READ_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let valid_bytes = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (mut totals, mut invalid) = (LedgerTotals::default(), 0);
        for line in bytes[..valid_bytes].split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            match serde_json::from_slice::<LedgerRecord>(line) {
                Ok(line) => totals.apply(&line.entry),
                Err(_) => invalid += 1,
            }
        }
        if invalid > 0 {
            tracing::warn!(ledger = %path.display(), lines = invalid, "skipped invalid lines of the ledger");
        }
        Ok(LedgerContent { totals, valid_bytes: valid_bytes as u64, is_torn: valid_bytes < bytes.len() })
    }

    fn append(&self, lines: &[LedgerRecord]) -> StoreResult<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path();
        let text: String = lines.iter().map(|line| line.to_line() + "\n").collect();
        let valid_bytes = match file.valid_bytes {
            Some(bytes) => bytes,
            None => {
                let content = self.read()?;
                (file.valid_bytes, file.may_be_torn) = (Some(content.valid_bytes), content.is_torn);
                content.valid_bytes
            }
        };
        let unfinished =
            if file.may_be_torn { unfinished_bytes(&*self.files, &path, valid_bytes)? } else { Vec::new() };
        let rest = missing_bytes(&unfinished, text.as_bytes());
        file.may_be_torn = true;
        let before = match self.files.append(&path, &rest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
                self.files.append(&path, &rest).map_err(failed("append to", &path))?
            }
            other => other.map_err(failed("append to", &path))?,
        };
        let size = before + rest.len() as u64;
        (file.may_be_torn, file.valid_bytes) = (false, Some(size));
        if size > file.fold_above
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
        let entries = self.read()?.totals.entries();
        let text: String = entries.into_iter().map(|entry| LedgerRecord::new(at, entry).to_line() + "\n").collect();
        replace(&*self.files, &self.folder, LEDGER_FILE, text.as_bytes(), Durability::Power)?;
        file.valid_bytes = Some(text.len() as u64);
        file.fold_above = self.bytes_max + text.len() as u64;
        Ok(())
    }
}
