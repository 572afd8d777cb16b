//! The ledger, `.team/ledger.jsonl`: a line for each request to a model before it is sent, and one once it is over. It knows
//! nothing of budgets or prices.
//!
//! One process appends. When the file has grown large it is replaced by the few lines that come to the same.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::spend::{Book, LedgerLine};
use crate::ports::{Ledger, StoreResult};
use crate::stores::fs::FileSystem;

use super::append::{left_behind, rest_behind};
use super::replace::replace;
use super::{Durability, blocking, failed};

/// The file.
pub const LEDGER_FILE: &str = "ledger.jsonl";

/// With more bytes it is replaced by the few lines that come to the same.
pub const LEDGER_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The largest file that is read, in bytes: many times what it may become.
const READ_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The ledger in its file.
pub struct FileLedger {
    inner: Arc<Inner>,
}

struct Inner {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    bytes_max: u64,
    file: Mutex<File>,
}

/// What is known of the file by the process that appends.
#[derive(Default)]
struct File {
    /// The bytes that are sound; `None` before the first look.
    sound_bytes: Option<u64>,
    /// Whether there may be more behind them: the last append failed, or the process before died.
    may_be_torn: bool,
    /// With more bytes it is folded.
    fold_above: u64,
}

impl FileLedger {
    /// The ledger below `team_folder`.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, team_folder: &Path) -> Self {
        Self::with_bytes(files, team_folder, LEDGER_BYTES_MAX)
    }

    /// The same, folded above `bytes_max`.
    #[must_use]
    pub fn with_bytes(files: Arc<dyn FileSystem>, team_folder: &Path, bytes_max: u64) -> Self {
        let file = Mutex::new(File { fold_above: bytes_max, ..File::default() });
        Self { inner: Arc::new(Inner { files, folder: team_folder.to_owned(), bytes_max, file }) }
    }
}

#[async_trait]
impl Ledger for FileLedger {
    async fn read(&self) -> StoreResult<Book> {
        let inner = Arc::clone(&self.inner);
        blocking(move || Ok(inner.read()?.book)).await
    }

    async fn append(&self, lines: Vec<LedgerLine>) -> StoreResult<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.append(&lines)).await
    }
}

/// The file as it was read.
struct Read {
    book: Book,
    sound_bytes: u64,
    is_torn: bool,
}

impl Inner {
    fn path(&self) -> PathBuf {
        self.folder.join(LEDGER_FILE)
    }

    fn read(&self) -> StoreResult<Read> {
        let path = self.path();
        let bytes = match self.files.read(&path, 0, READ_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let sound = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (mut book, mut torn) = (Book::default(), 0);
        for line in bytes[..sound].split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            match serde_json::from_slice::<LedgerLine>(line) {
                Ok(line) => book.take(&line.entry),
                Err(_) => torn += 1,
            }
        }
        if torn > 0 {
            tracing::warn!(ledger = %path.display(), lines = torn, "lines of the ledger are torn; they are passed over");
        }
        Ok(Read { book, sound_bytes: sound as u64, is_torn: sound < bytes.len() })
    }

    fn append(&self, lines: &[LedgerLine]) -> StoreResult<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path();
        let text: String = lines.iter().map(|line| line.to_line() + "\n").collect();
        let sound_bytes = match file.sound_bytes {
            Some(bytes) => bytes,
            None => {
                let read = self.read()?;
                (file.sound_bytes, file.may_be_torn) = (Some(read.sound_bytes), read.is_torn);
                read.sound_bytes
            }
        };
        let left = if file.may_be_torn { left_behind(&*self.files, &path, sound_bytes)? } else { Vec::new() };
        let rest = rest_behind(&left, text.as_bytes());
        file.may_be_torn = true;
        let before = match self.files.append(&path, &rest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.create_folder(&self.folder).map_err(failed("make", &self.folder))?;
                self.files.append(&path, &rest).map_err(failed("append to", &path))?
            }
            other => other.map_err(failed("append to", &path))?,
        };
        let size = before + rest.len() as u64;
        (file.may_be_torn, file.sound_bytes) = (false, Some(size));
        if size > file.fold_above
            && let Err(error) = self.fold(&mut file, lines)
        {
            // It is whole as it is; the next append tries again.
            tracing::warn!(%error, "the ledger cannot be folded");
        }
        Ok(())
    }

    /// Replaces the file by the few lines that come to the same, dated as the last ones of it.
    fn fold(&self, file: &mut File, last: &[LedgerLine]) -> StoreResult<()> {
        let at = last.last().map(|line| line.at).unwrap_or_default();
        let entries = self.read()?.book.entries();
        let text: String = entries.into_iter().map(|entry| LedgerLine::new(at, entry).to_line() + "\n").collect();
        replace(&*self.files, &self.folder, LEDGER_FILE, text.as_bytes(), Durability::Power)?;
        file.sound_bytes = Some(text.len() as u64);
        file.fold_above = self.bytes_max + text.len() as u64;
        Ok(())
    }
}
