//! The operating system's files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Drained, FileSystem, FolderWatch, HeldLock, LOCK_WAIT_MAX, LockTimeout, ReadEach, Stamp};
use crate::platform;

type LockFile = fd_lock::RwLock<File>;

/// The pauses between the first tries for a lock, in microseconds. Most sections are shorter than these, and a thread for each wait would
/// cost more than they do.
const FIRST_PAUSES_US: [u64; 7] = [50, 100, 200, 400, 800, 1600, 3200];

/// A lock of this process. Its threads take turns with it; the file's lock keeps the processes apart.
#[derive(Debug)]
struct OwnLock {
    /// `None` while a thread has it.
    file: Mutex<Option<FileOf>>,
    returned: Condvar,
}

/// The file of a lock, between two uses.
#[derive(Debug)]
enum FileOf {
    /// It has to be opened.
    Closed,
    /// It is open, and not locked.
    Open(LockFile),
    /// A thread waits for its lock and sends the file then. Such a thread ends no wait early, so at most one a lock is kept; where nobody
    /// receives any more it releases the lock at once and ends.
    Awaited(Receiver<LockFile>),
}

/// The file of a lock in the hands of one thread, until this is dropped.
struct Turn<'a> {
    file: FileOf,
    of: &'a OwnLock,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.of.file() = Some(mem::replace(&mut self.file, FileOf::Closed));
        self.of.returned.notify_one();
    }
}

impl OwnLock {
    fn new() -> Self {
        Self { file: Mutex::new(Some(FileOf::Closed)), returned: Condvar::new() }
    }

    fn file(&self) -> MutexGuard<'_, Option<FileOf>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread's turn; `None` where others of this process had it for too long.
    fn turn(&self) -> Option<Turn<'_>> {
        let waited = self.returned.wait_timeout_while(self.file(), LOCK_WAIT_MAX, |file| file.is_none());
        let (mut file, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(Turn { file: file.take()?, of: self })
    }

    /// Runs `critical` under the lock of the file at `path`.
    fn run(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        let (began, mut pauses) = (Instant::now(), FIRST_PAUSES_US.into_iter().map(Duration::from_micros));
        let timeout = || LockTimeout::of(path);
        let mut turn = self.turn().ok_or_else(timeout)?;
        loop {
            let left = LOCK_WAIT_MAX.checked_sub(began.elapsed()).ok_or_else(timeout)?;
            let mut lock = match mem::replace(&mut turn.file, FileOf::Closed) {
                FileOf::Closed => fd_lock::RwLock::new(platform::open_lock_file(path)?),
                FileOf::Open(lock) => lock,
                FileOf::Awaited(waiter) => match waiter.recv_timeout(left) {
                    Ok(lock) => lock,
                    Err(RecvTimeoutError::Disconnected) => continue,
                    Err(RecvTimeoutError::Timeout) => {
                        turn.file = FileOf::Awaited(waiter);
                        return Err(timeout());
                    }
                },
            };
            match try_to_run(&mut lock, path, critical)? {
                Try::Ran => {
                    turn.file = FileOf::Open(lock);
                    return Ok(());
                }
                // The lock of the file that lies there now is wanted.
                Try::Removed => continue,
                Try::Held => {}
            }
            turn.file = match pauses.next() {
                Some(pause) => {
                    std::thread::sleep(pause);
                    FileOf::Open(lock)
                }
                None => FileOf::Awaited(wait_aside(lock)?),
            };
        }
    }
}

/// How a try for a lock came out.
enum Try {
    /// It was free, and the critical section ran.
    Ran,
    /// Another process holds it.
    Held,
    /// Its file is not the one at the path any more.
    Removed,
}

fn try_to_run(lock: &mut LockFile, path: &Path, critical: &mut dyn FnMut()) -> io::Result<Try> {
    match lock.try_write() {
        Ok(file) if is_still(&file, path) => {
            critical();
            Ok(Try::Ran)
        }
        Ok(_) => Ok(Try::Removed),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Try::Held),
        Err(error) => Err(error),
    }
}

/// Waits for the lock in a thread of its own: the system's queue is fair, and ends no wait after a time.
fn wait_aside(mut lock: LockFile) -> io::Result<Receiver<LockFile>> {
    // Sent only to one that receives at that moment; the lock goes with the file otherwise.
    let (sender, receiver) = mpsc::sync_channel(0);
    std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        // Forgetting the guard keeps the lock for the one that receives the file.
        let is_locked = lock.write().map(mem::forget).is_ok();
        if is_locked {
            let _ = sender.try_send(lock);
        }
    })?;
    Ok(receiver)
}

/// The operating system's files. Clones share their open lock files.
#[derive(Debug, Default, Clone)]
pub struct RealFileSystem {
    locks: Arc<Mutex<HashMap<PathBuf, Arc<OwnLock>>>>,
    /// A folder that is never made: where it is missing, nothing below it is made either.
    root: Option<PathBuf>,
}

impl RealFileSystem {
    /// The files below `root`, which somebody may remove or move at any time: no folder is made in the place of it.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: Some(root.to_owned()), ..Self::default() }
    }

    fn own_lock(&self, path: &Path) -> Arc<OwnLock> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(path) {
            return Arc::clone(lock);
        }
        let lock = Arc::new(OwnLock::new());
        locks.insert(path.to_owned(), Arc::clone(&lock));
        lock
    }
}

/// Appends what `file` holds from `offset` on to `bytes`, and says its stamp from before.
fn read_into(bytes: &mut Vec<u8>, mut file: File, offset: u64, bytes_max: u64) -> io::Result<Stamp> {
    let stamp = platform::stamp_of(&file.metadata()?);
    let expected = stamp.bytes.saturating_sub(offset);
    if offset > 0 {
        file.seek(SeekFrom::Start(offset))?;
    }
    // What comes behind the stamped size while this is read belongs to the next stamp, so that the end need not be looked for.
    let wanted = expected.min(bytes_max.saturating_add(1));
    bytes.reserve(usize::try_from(wanted).unwrap_or(0));
    let read = file.take(wanted).read_to_end(bytes)?;
    if read as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {bytes_max} bytes")));
    }
    Ok(stamp)
}

/// Whether `file` still is what lies at `path`: a lock on a file that somebody removed keeps nobody out.
fn is_still(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    platform::stamp_of(&open).inode == platform::stamp_of(&there).inode
}

/// Cuts off the half that was appended before `error`, unless others appended behind it.
fn take_back(file: &File, before: u64, written: usize, error: io::Error) -> io::Error {
    if written > 0 && file.metadata().is_ok_and(|metadata| metadata.len() == before + written as u64) {
        // What cannot be cut off is a torn line, which readers pass over.
        let _ = file.set_len(before);
    }
    error
}

impl FileSystem for RealFileSystem {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        fs::symlink_metadata(path).map(|metadata| platform::stamp_of(&metadata))
    }

    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)> {
        let mut bytes = Vec::new();
        let stamp = read_into(&mut bytes, platform::open_for_reading(path)?, offset, bytes_max)?;
        Ok((bytes, stamp))
    }

    fn read_each(&self, folder: &Path, names: &[String], bytes_max: u64, each: ReadEach<'_>) {
        // Names below an open folder are found without walking the way to it each time.
        let open = platform::Folder::open(folder);
        let mut bytes = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let file = match &open {
                Ok(open) => open.open_for_reading(name.as_ref()),
                Err(_) => platform::open_for_reading(&folder.join(name)),
            };
            bytes.clear();
            let stamp = file.and_then(|file| read_into(&mut bytes, file, 0, bytes_max));
            each(place, stamp.map(|stamp| (bytes.as_slice(), stamp)));
        }
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        let Some((root, below)) = self.root.as_deref().and_then(|root| Some((root, folder.strip_prefix(root).ok()?)))
        else {
            return fs::create_dir_all(folder);
        };
        let mut path = root.to_owned();
        for part in below {
            path.push(part);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        platform::open_for_writing(path)?.write_all(bytes)
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        let mut file = platform::open_for_appending(path)?;
        let before = file.metadata()?.len();
        let mut written = 0;
        while written < bytes.len() {
            match file.write(&bytes[written..]) {
                Ok(0) => return Err(take_back(&file, before, written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(take_back(&file, before, written, error)),
            }
        }
        Ok(before)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        platform::open_for_reading(path)?.sync_data()
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        platform::sync_folder(folder)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        platform::rename_new(from, to)
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        platform::exchange(a, b)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        self.own_lock(path).run(path, critical)
    }

    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>> {
        loop {
            let mut lock = fd_lock::RwLock::new(platform::open_lock_file(path)?);
            match lock.try_write() {
                // Forgetting the guard keeps the lock until the file is closed, which dropping `lock` does.
                Ok(guard) => mem::forget(guard),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            let file = lock.into_inner();
            if is_still(&file, path) {
                return Ok(Some(Box::new(file)));
            }
        }
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        platform::free_bytes(folder)
    }

    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        platform::watch::FolderWatch::start(folder).map(|watch| Box::new(watch) as Box<dyn FolderWatch>)
    }

    fn distrusts_locks(&self, folder: &Path) -> Option<&'static str> {
        platform::network_file_system(folder)
    }

    fn renames_after_bytes(&self, folder: &Path) -> bool {
        platform::renames_after_bytes(folder)
    }
}

impl FolderWatch for platform::watch::FolderWatch {
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> Drained {
        self.drain(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn pipes_and_links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link, target) =
            (folder.path().join("pipe"), folder.path().join("link"), folder.path().join("target"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let files = RealFileSystem::default();
        for (path, found) in [(&pipe, "a pipe"), (&link, "a symbolic link"), (&folder.path().to_owned(), "irectory")] {
            let errors = [files.append(path, b"x").unwrap_err(), files.write(path, b"x").unwrap_err()];
            assert!(errors.iter().all(|error| error.to_string().contains(found)), "{errors:?}");
            assert!(files.read(path, 0, 9).is_err());
        }
        // A pipe that somebody reads is none the less no file.
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe)
        });
        while !reader.is_finished() {
            let writer = File::options().write(true).open(&pipe).unwrap();
            assert!(files.append(&pipe, b"x").unwrap_err().to_string().contains("a pipe, not a plain file"));
            drop(writer);
        }
        assert_eq!(reader.join().unwrap().unwrap(), b"");
        assert_eq!(fs::read(target).unwrap(), b"kept");
    }

    #[test]
    fn a_lock_whose_file_was_removed_keeps_the_next_one_out_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let files = RealFileSystem::default();
        let other = RealFileSystem::default();
        files.locked(&path, &mut || ()).unwrap();
        fs::remove_file(&path).unwrap();
        files
            .locked(&path, &mut || {
                assert!(other.hold(&path).unwrap().is_none(), "two hold the lock at once");
            })
            .unwrap();
        assert!(other.hold(&path).unwrap().is_some());
    }

    #[test]
    fn lock_held_too_long_fails_and_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let (files, other) = (RealFileSystem::default(), RealFileSystem::default());
        let held = other.hold(&path).unwrap();
        let began = Instant::now();
        // Threads of one process do not wait one after the other.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let error = files.locked(&path, &mut || panic!("it ran")).unwrap_err();
                    let timeout = LockTimeout::in_error(&error).unwrap_or_else(|| panic!("{error}"));
                    if cfg!(target_os = "linux") {
                        assert_eq!(timeout.holder.as_ref().map(|holder| holder.pid), Some(std::process::id()));
                    }
                });
            }
        });
        assert!((LOCK_WAIT_MAX..LOCK_WAIT_MAX * 3).contains(&began.elapsed()), "{:?}", began.elapsed());
        drop(held);
        // The thread that still waited lets go of the lock at once.
        super::super::hold(&other, &path).unwrap();
        files.locked(&path, &mut || ()).unwrap();
        std::thread::scope(|scope| {
            let held = other.hold(&path).unwrap();
            let waiter = scope.spawn(|| files.locked(&path, &mut || ()));
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        assert!(other.hold(&path).unwrap().is_some());
    }

    #[test]
    fn half_an_append_is_taken_back_unless_others_appended_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, "whole\nhal").unwrap();
        let file = platform::open_for_appending(&path).unwrap();
        assert_eq!(take_back(&file, 6, 3, io::ErrorKind::StorageFull.into()).kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"whole\n");
        fs::write(&path, "whole\nhalother\n").unwrap();
        take_back(&file, 6, 3, io::ErrorKind::StorageFull.into());
        assert_eq!(fs::read(&path).unwrap(), b"whole\nhalother\n");
    }

    #[test]
    fn a_new_name_is_never_taken_from_another() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let files = RealFileSystem::default();
        fs::write(&a, "a").unwrap();
        files.rename_new(&a, &b).unwrap();
        fs::write(&a, "new").unwrap();
        assert_eq!(files.rename_new(&a, &b).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"new".to_vec(), b"a".to_vec()));
    }

    #[test]
    fn a_held_lock_ends_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.lock");
        let files = RealFileSystem::default();
        let held = files.hold(&path).unwrap();
        assert!(held.is_some());
        assert!(files.hold(&path).unwrap().is_none());
        drop(held);
        assert!(files.hold(&path).unwrap().is_some());
    }
}
