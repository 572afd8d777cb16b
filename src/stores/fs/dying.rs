//! A file system that dies at a chosen call, or whose disk is full from a chosen write on: for crash tests.
//!
//! Death is that of the process: from then on every call fails and changes nothing, so whatever the program still does after it
//! (cleaning up, releasing) leaves no trace, as with `kill -9`. It knows nothing of what it carries.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FileSystem, FolderWatch, HeldLock, Stamp};

/// What goes wrong, and when. Everything is counted from 1. Deaths count the calls that change something on disk, syncs among them:
/// dying before a look is the same as dying before the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing: calls are only counted.
    Lives,
    /// The process is killed just before this changing call.
    DiesAt(u64),
    /// The process is killed in the middle of this changing call: a write or append has put half of its bytes there, any other has
    /// done nothing.
    DiesInside(u64),
    /// From this write or append on, the disk is full: it takes half of the bytes and says so. Renames and removals work.
    DiskFullFrom(u64),
    /// This one call of all fails, with nothing done; all later ones work.
    FailsAt(u64),
}

/// Passes calls on to another file system until its [`Fate`].
pub struct DyingFileSystem {
    inner: Arc<dyn FileSystem>,
    fate: Fate,
    calls: AtomicU64,
    changes: AtomicU64,
    writes: AtomicU64,
}

/// What a call does to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Looks,
    Changes,
    Writes,
}

/// What one call may do.
enum Verdict {
    Passes,
    PassesHalf,
}

impl DyingFileSystem {
    /// Passes calls on to `inner` until `fate`.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, fate: Fate) -> Self {
        Self { inner, fate, calls: AtomicU64::new(0), changes: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    /// All calls so far, also those after death.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Calls so far that change something on disk.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Writes and appends so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Whether its fate has befallen it: a run that ends without was not harmed.
    #[must_use]
    pub fn is_struck(&self) -> bool {
        match self.fate {
            Fate::Lives => false,
            Fate::DiesAt(n) | Fate::DiesInside(n) => self.changes() >= n,
            Fate::FailsAt(n) => self.calls() >= n,
            Fate::DiskFullFrom(n) => self.writes() >= n,
        }
    }

    fn count(&self, kind: Kind) -> io::Result<Verdict> {
        let next = |counter: &AtomicU64, counts: bool| counter.fetch_add(u64::from(counts), Ordering::SeqCst) + 1;
        let call = next(&self.calls, true);
        let change = next(&self.changes, kind != Kind::Looks);
        let write = next(&self.writes, kind == Kind::Writes);
        let changes = kind != Kind::Looks;
        match self.fate {
            Fate::DiesInside(n) if change == n && kind == Kind::Writes => Ok(Verdict::PassesHalf),
            // A look after the fatal change finds the counter beyond it.
            Fate::DiesAt(n) | Fate::DiesInside(n) if change > n || (changes && change == n) => {
                Err(io::Error::other("killed"))
            }
            Fate::FailsAt(n) if call == n => Err(io::Error::other("failed by order")),
            Fate::DiskFullFrom(n) if kind == Kind::Writes && write >= n => Ok(Verdict::PassesHalf),
            _ => Ok(Verdict::Passes),
        }
    }

    fn look<R>(&self, call: impl FnOnce(&dyn FileSystem) -> io::Result<R>) -> io::Result<R> {
        self.count(Kind::Looks)?;
        call(self.inner.as_ref())
    }

    fn change<R>(&self, call: impl FnOnce(&dyn FileSystem) -> io::Result<R>) -> io::Result<R> {
        self.count(Kind::Changes)?;
        call(self.inner.as_ref())
    }

    fn put<R>(&self, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<R>) -> io::Result<R> {
        match self.count(Kind::Writes)? {
            Verdict::Passes => write(bytes),
            Verdict::PassesHalf => {
                write(&bytes[..bytes.len() / 2])?;
                match self.fate {
                    Fate::DiskFullFrom(_) => Err(io::ErrorKind::StorageFull.into()),
                    _ => Err(io::Error::other("killed")),
                }
            }
        }
    }
}

impl FileSystem for DyingFileSystem {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.look(|files| files.list(folder))
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        self.look(|files| files.stamp(path))
    }

    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)> {
        self.look(|files| files.read(path, offset, bytes_max))
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.change(|files| files.create_folder(folder))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes, |bytes| self.inner.write(path, bytes))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        self.put(bytes, |bytes| self.inner.append(path, bytes))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.change(|files| files.sync_file(path))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.change(|files| files.sync_folder(folder))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|files| files.rename(from, to))
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        self.change(|files| files.exchange(a, b))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(|files| files.remove(path))
    }

    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        self.change(|files| files.locked(path, critical))
    }

    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>> {
        self.change(|files| files.hold(path))
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        self.look(|files| files.free_bytes(folder))
    }

    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        self.look(|files| Ok(files.watch(folder))).ok().flatten()
    }

    fn distrusts_locks(&self, folder: &Path) -> Option<&'static str> {
        self.inner.distrusts_locks(folder)
    }

    fn renames_after_bytes(&self, folder: &Path) -> bool {
        self.inner.renames_after_bytes(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::super::RealFileSystem;
    use super::*;

    fn dying(fate: Fate) -> (tempfile::TempDir, DyingFileSystem) {
        (tempfile::tempdir().unwrap(), DyingFileSystem::new(Arc::new(RealFileSystem::default()), fate))
    }

    #[test]
    fn nothing_happens_from_the_chosen_call_on() {
        let (folder, files) = dying(Fate::DiesAt(2));
        files.write(&folder.path().join("a"), b"1234").unwrap();
        assert!(files.write(&folder.path().join("b"), b"1234").is_err());
        assert!(files.remove(&folder.path().join("a")).is_err());
        assert!(files.is_struck());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_is_torn_by_death_and_by_a_full_disk() {
        for (fate, lives_on) in [(Fate::DiesInside(1), false), (Fate::DiskFullFrom(1), true)] {
            let (folder, files) = dying(fate);
            let path = folder.path().join("a");
            assert!(files.append(&path, b"1234").is_err());
            assert_eq!(std::fs::read(&path).unwrap(), b"12");
            assert_eq!(files.remove(&path).is_ok(), lives_on);
        }
    }
}
