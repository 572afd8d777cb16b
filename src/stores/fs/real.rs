//! The files of the operating system.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::locks::{OwnLock, is_current_file};
use super::{FileStamp, FileSystem, FolderWatch, HeldLock, OpenFile, ReadEach, WatchEvents};
use crate::platform::{self, PlainFile};
use crate::ports::WaitLimit;
use crate::secrets::masked_in_place;

/// The files of the operating system. No secret of this process is written into them. Clones share their open lock files.
#[derive(Debug, Default, Clone)]
pub struct RealFileSystem {
    locks: Arc<Mutex<HashMap<PathBuf, Arc<OwnLock>>>>,
    /// A folder that is never created. If it is missing, no folder below it is created either.
    root: Option<PathBuf>,
    wait_limit: WaitLimit,
}

impl RealFileSystem {
    /// The files below `root`, which may be removed or moved at any time. `root` itself is never created.
    pub fn below(root: &Path) -> Self {
        Self { root: Some(root.to_owned()), ..Self::default() }
    }

    /// The files below `root`, with this limit of the waits for locks.
    pub fn with_wait_limit(root: &Path, wait_limit: WaitLimit) -> Self {
        Self { wait_limit, ..Self::below(root) }
    }

    fn own_lock(&self, path: &Path) -> Arc<OwnLock> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.get(path) {
            return Arc::clone(lock);
        }
        let lock = Arc::new(OwnLock::new());
        locks.insert(path.to_owned(), Arc::clone(&lock));
        lock
    }
}

/// Reads `file` from `offset` into `bytes`, and returns its stamp from before.
fn read_into(bytes: &mut Vec<u8>, opened: PlainFile, offset: u64, bytes_max: u64) -> io::Result<FileStamp> {
    let PlainFile { mut file, metadata } = opened;
    let stamp = platform::stamp_of(&metadata);
    let expected = stamp.bytes.saturating_sub(offset);
    if offset > 0 {
        file.seek(SeekFrom::Start(offset))?;
    }
    // Bytes after the stamped size belong to the next stamp, so the read need not reach the end of the file.
    let read_bytes_max = expected.min(bytes_max.saturating_add(1));
    bytes.reserve(usize::try_from(read_bytes_max).unwrap_or(0));
    let read = file.take(read_bytes_max).read_to_end(bytes)?;
    if read as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {bytes_max} bytes")));
    }
    Ok(stamp)
}

/// Removes the bytes of a failed append, unless another process appended after them. Returns `error`.
fn undo_partial_write(file: &File, before: u64, written: usize, error: io::Error) -> io::Error {
    if written > 0 && file.metadata().is_ok_and(|metadata| metadata.len() == before + written as u64) {
        // If this fails, a torn line is left, which readers skip.
        let _ = file.set_len(before);
    }
    error
}

impl FileSystem for RealFileSystem {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
    }

    fn stamp(&self, path: &Path) -> io::Result<FileStamp> {
        fs::symlink_metadata(path).map(|metadata| platform::stamp_of(&metadata))
    }

    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, FileStamp)> {
        let mut bytes = Vec::new();
        let stamp = read_into(&mut bytes, platform::open_plain_file(path)?, offset, bytes_max)?;
        Ok((bytes, stamp))
    }

    fn read_each(&self, folder: &Path, names: &[String], bytes_max: u64, each: ReadEach<'_>) {
        // Names relative to an open folder are found without resolving its path each time.
        let open = platform::Folder::open(folder);
        let mut bytes = Vec::new();
        for (position, name) in names.iter().enumerate() {
            let file = match &open {
                Ok(open) => open.open_plain_file(name.as_ref()),
                Err(_) => platform::open_plain_file(&folder.join(name)),
            };
            bytes.clear();
            let stamp = file.and_then(|file| read_into(&mut bytes, file, 0, bytes_max));
            each(position, stamp.map(|stamp| (bytes.as_slice(), stamp)));
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
        platform::open_for_writing(path)?.write_all(&masked_in_place(bytes))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        let bytes = masked_in_place(bytes);
        let mut file = platform::open_for_appending(path)?;
        let before = file.metadata()?.len();
        let mut written = 0;
        while written < bytes.len() {
            match file.write(&bytes[written..]) {
                Ok(0) => return Err(undo_partial_write(&file, before, written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(undo_partial_write(&file, before, written, error)),
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

    fn keep_open(&self, path: &Path) -> Option<OpenFile> {
        let PlainFile { file, .. } = platform::open_plain_file(path).ok()?;
        Some(Box::new(file))
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
        self.locked_prepared(path, &mut || (), critical)
    }

    fn locked_prepared(&self, path: &Path, prepare: &mut dyn FnMut(), critical: &mut dyn FnMut()) -> io::Result<()> {
        self.own_lock(path).run(path, &self.wait_limit, prepare, critical)
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
            if is_current_file(&file, path) {
                return Ok(Some(Box::new(file)));
            }
        }
    }

    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        platform::watch::FolderWatch::start(folder).map(|watch| Box::new(watch) as Box<dyn FolderWatch>)
    }

    fn unreliable_lock_file_system(&self, folder: &Path) -> Option<&'static str> {
        platform::network_file_system(folder)
    }

    fn renames_after_bytes(&self, folder: &Path) -> bool {
        platform::renames_after_bytes(folder)
    }
}

impl FolderWatch for platform::watch::FolderWatch {
    fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> WatchEvents {
        self.drain(each)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stores::fs::{LOCK_WAIT_MAX, LockTimeout};

    #[test]
    fn pipe_or_link_in_place_of_file_is_refused() {
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
            let remedy = |error: &io::Error| found == "irectory" || error.to_string().contains("remove it (rm)");
            assert!(errors.iter().all(remedy), "{errors:?}");
            assert!(files.read(path, 0, 9).is_err());
        }
        // A pipe that is opened for both directions has a reader and does not wait.
        let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
        assert!(files.append(&pipe, b"x").unwrap_err().to_string().contains("a pipe, not a plain file"));
        assert_eq!(fs::read(target).unwrap(), b"kept");
    }

    #[test]
    fn removed_lock_file_still_excludes_others() {
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
        super::super::hold(&other, &path).unwrap();
    }

    #[test]
    fn lock_preparation_repeats_while_lock_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let (files, other) = (RealFileSystem::default(), RealFileSystem::default());
        let mut held = other.hold(&path).unwrap();
        let (mut preparations, mut runs) = (0, 0);
        let mut prepare = || {
            preparations += 1;
            if preparations == 3 {
                held = None;
            }
        };
        files.locked_prepared(&path, &mut prepare, &mut || runs += 1).unwrap();
        assert_eq!((preparations, runs), (3, 1));
    }

    #[test]
    fn lock_held_too_long_fails_and_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let (files, other) = (RealFileSystem::default(), RealFileSystem::default());
        let held = other.hold(&path).unwrap();
        let started_at = Instant::now();
        // The threads of one process wait at the same time, not one after the other.
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
        assert!((LOCK_WAIT_MAX..LOCK_WAIT_MAX * 4).contains(&started_at.elapsed()), "{:?}", started_at.elapsed());
        drop(held);
        // The thread that still waited releases the lock at once.
        super::super::hold(&other, &path).unwrap();
        files.locked(&path, &mut || ()).unwrap();
        std::thread::scope(|scope| {
            let held = other.hold(&path).unwrap();
            let waiter = scope.spawn(|| files.locked(&path, &mut || ()));
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        super::super::hold(&other, &path).unwrap();
    }

    #[test]
    fn command_waits_only_for_first_refused_lock() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "c"].map(|name| folder.path().join(name));
        let (files, other) =
            (RealFileSystem::with_wait_limit(folder.path(), WaitLimit::for_command()), RealFileSystem::default());
        let held = paths.clone().map(|path| other.hold(&path).unwrap().unwrap());
        let started_at = Instant::now();
        // Six waits would take six times as long.
        for path in paths.iter().chain(&paths) {
            let error = files.clone().locked(path, &mut || panic!("it ran")).unwrap_err();
            assert!(LockTimeout::in_error(&error).is_some(), "{error}");
        }
        assert!((LOCK_WAIT_MAX..LOCK_WAIT_MAX * 6).contains(&started_at.elapsed()), "{:?}", started_at.elapsed());
        drop(held);
        // A child that another test starts holds the locks of this process until its exec.
        while files.clone().locked(&paths[0], &mut || ()).is_err() {
            assert!(started_at.elapsed() < LOCK_WAIT_MAX * 60, "the lock is not free");
        }
    }

    #[test]
    fn partial_append_is_undone_only_if_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, "whole\nhal").unwrap();
        let file = platform::open_for_appending(&path).unwrap();
        assert_eq!(
            undo_partial_write(&file, 6, 3, io::ErrorKind::StorageFull.into()).kind(),
            io::ErrorKind::StorageFull
        );
        assert_eq!(fs::read(&path).unwrap(), b"whole\n");
        fs::write(&path, "whole\nhalother\n").unwrap();
        undo_partial_write(&file, 6, 3, io::ErrorKind::StorageFull.into());
        assert_eq!(fs::read(&path).unwrap(), b"whole\nhalother\n");
    }

    #[test]
    fn rename_new_refuses_existing_name() {
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
    fn lock_is_free_after_holder_is_dropped() {
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
