//! Replaces whole files: writes a temporary file in the same folder and renames it.
//!
//! A temporary file is named `.tmp-<pid>-<token>-<n>`, which no other file format uses. The next open removes those of killed
//! processes ([`sweep_temporaries`]).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::platform;
use crate::ports::{IoAction, StoreResult};
use crate::stores::fs::FileSystem;

use super::{Durability, failed};

/// The prefix of the name of every temporary file.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// The age at which a temporary file is removed if its process cannot be checked (another pid namespace or machine).
pub const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(60);

/// Distinguishes this process from others with the same pid: earlier ones, and ones in other containers.
static TOKEN: LazyLock<u32> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos() ^ u32::try_from(now.as_secs() & u64::from(u32::MAX)).unwrap_or(0).rotate_left(16)
});
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
/// The temporary files that this process is writing. Any other temporary file with its token was left by a failed operation.
static IN_FLIGHT: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Creates or replaces the file `name` in `folder`. After a crash it has either `bytes` or its old content.
///
/// With [`Durability::Power`] the new content is durable on return. Callers that hold a lock use [`StagedFile`] and
/// [`super::sync`] instead.
///
/// # Errors
/// [`crate::ports::StoreError::Io`]; the old file is unchanged.
pub fn replace(
    files: &dyn FileSystem,
    folder: &Path,
    name: &str,
    bytes: &[u8],
    durability: Durability,
) -> StoreResult<()> {
    let staged = StagedFile::write(files, folder, name, bytes)?;
    if durability == Durability::Power {
        staged.sync()?;
    }
    staged.commit()?;
    if durability == Durability::Power {
        files.sync_folder(folder).map_err(failed(IoAction::Sync, folder))?;
    }
    Ok(())
}

/// A file that is written under a temporary name. Dropping it without [`StagedFile::commit`] removes it.
pub struct StagedFile<'a> {
    files: &'a dyn FileSystem,
    temporary_name: String,
    temporary_path: PathBuf,
    final_path: PathBuf,
    is_committed: bool,
}

impl<'a> StagedFile<'a> {
    /// Writes `bytes` under a temporary name in `folder`. [`StagedFile::commit`] renames it to `name`.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]; the temporary file is removed.
    pub fn write(files: &'a dyn FileSystem, folder: &Path, name: &str, bytes: &[u8]) -> StoreResult<Self> {
        let staged = Self::reserve(files, folder, name);
        files.write(&staged.temporary_path, bytes).map_err(failed("write", &staged.final_path))?;
        Ok(staged)
    }

    /// As [`StagedFile::write`], but overwrites the existing file `spare`. Returns `None` if `spare` cannot be renamed.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]; `spare` is removed.
    pub fn write_into_spare(
        files: &'a dyn FileSystem,
        spare: &Path,
        folder: &Path,
        name: &str,
        bytes: &[u8],
    ) -> StoreResult<Option<Self>> {
        let staged = Self::reserve(files, folder, name);
        if files.rename(spare, &staged.temporary_path).is_err() {
            return Ok(None);
        }
        files.write(&staged.temporary_path, bytes).map_err(failed("write", &staged.final_path))?;
        Ok(Some(staged))
    }

    /// Chooses a temporary name. From now on, [`sweep_temporaries`] does not remove this file.
    fn reserve(files: &'a dyn FileSystem, folder: &Path, name: &str) -> Self {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary_name = format!("{TEMPORARY_PREFIX}{}-{:08x}-{number}", std::process::id(), *TOKEN);
        in_flight(|names| names.insert(temporary_name.clone()));
        Self {
            files,
            temporary_path: folder.join(&temporary_name),
            final_path: folder.join(name),
            temporary_name,
            is_committed: false,
        }
    }

    /// The temporary name, by which watchers of the folder recognise the writer of the rename.
    pub fn temporary_name(&self) -> &str {
        &self.temporary_name
    }

    /// The path until [`StagedFile::commit`].
    pub fn temporary_path(&self) -> &Path {
        &self.temporary_path
    }

    /// The path after [`StagedFile::commit`].
    pub fn final_path(&self) -> &Path {
        &self.final_path
    }

    /// Makes the bytes durable, but not the name.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn sync(&self) -> StoreResult<()> {
        self.files.sync_file(&self.temporary_path).map_err(failed(IoAction::Sync, &self.final_path))
    }

    /// Renames the file to its final name, and replaces the file of that name.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]; the file of that name is unchanged.
    pub fn commit(mut self) -> StoreResult<()> {
        self.files.rename(&self.temporary_path, &self.final_path).map_err(failed("write", &self.final_path))?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for StagedFile<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            // If this fails, the next open removes it.
            let _ = self.files.remove(&self.temporary_path);
        }
        in_flight(|names| names.remove(&self.temporary_name));
    }
}

fn in_flight<R>(act: impl FnOnce(&mut HashSet<String>) -> R) -> R {
    act(&mut IN_FLIGHT.lock())
}

/// Removes the temporary files in `folder` that no live process is writing. Call it under the lock of the folder's store.
///
/// # Errors
/// [`crate::ports::StoreError::Io`] if the folder cannot be listed. A file that cannot be removed stays.
pub fn sweep_temporaries(files: &dyn FileSystem, folder: &Path) -> StoreResult<()> {
    for name in files.list(folder).map_err(failed("list", folder))? {
        let path = folder.join(&name);
        if name.starts_with(TEMPORARY_PREFIX) && is_abandoned(files, &path, &name) {
            let _ = files.remove(&path);
        }
    }
    Ok(())
}

fn is_abandoned(files: &dyn FileSystem, path: &Path, name: &str) -> bool {
    let mut parts = name[TEMPORARY_PREFIX.len()..].splitn(3, '-');
    let pid: Option<u32> = parts.next().and_then(|pid| pid.parse().ok());
    let token = parts.next().and_then(|token| u32::from_str_radix(token, 16).ok());
    if pid == Some(std::process::id()) && token == Some(*TOKEN) {
        return in_flight(|names| !names.contains(name));
    }
    let is_old = || {
        let age_ns_max = i128::try_from(TEMPORARY_AGE_MAX.as_nanos()).unwrap_or(i128::MAX);
        files.stamp(path).is_ok_and(|stamp| files.now_ns() - stamp.modified_ns > age_ns_max)
    };
    pid.is_some_and(|pid| !platform::process_lives(pid)) || is_old()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::fs::RealFileSystem;

    fn names(folder: &Path) -> Vec<String> {
        let mut names = RealFileSystem::default().list(folder).unwrap();
        names.sort();
        names
    }

    #[test]
    fn atomic_write_leaves_no_temporary() {
        let folder = tempfile::tempdir().unwrap();
        let files = RealFileSystem::default();
        for durability in [Durability::Process, Durability::Power] {
            replace(&files, folder.path(), "a.json", b"new", durability).unwrap();
            assert_eq!(std::fs::read(folder.path().join("a.json")).unwrap(), b"new");
            assert_eq!(names(folder.path()), ["a.json"]);
        }
    }

    #[test]
    fn failed_atomic_write_names_path_and_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a.json")).unwrap();
        let error =
            replace(&RealFileSystem::default(), folder.path(), "a.json", b"new", Durability::Process).unwrap_err();
        assert!(error.to_string().contains("write") && error.to_string().contains("a.json"), "{error}");
        assert_eq!(names(folder.path()), ["a.json"]);
    }

    #[test]
    fn only_abandoned_temporaries_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let files = RealFileSystem::default();
        let path = folder.path();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = format!(".tmp-{}-0-1", child.id());
        child.wait().unwrap();
        let own_abandoned = format!(".tmp-{}-{:08x}-999999999", std::process::id(), *TOKEN);
        let living = ".tmp-1-0-1".to_owned();
        let old = ".tmp-1-0-2".to_owned();
        for name in [&dead, &own_abandoned, &living, &old, &".tmpfile".to_owned(), &"task_1.json".to_owned()] {
            std::fs::write(path.join(name), "x").unwrap();
        }
        let long_ago = SystemTime::now() - Duration::from_secs(61);
        std::fs::File::options().write(true).open(path.join(&old)).unwrap().set_modified(long_ago).unwrap();
        let staged = StagedFile::write(&files, path, "b.json", b"b").unwrap();
        sweep_temporaries(&files, path).unwrap();
        let mut expected =
            vec![living, staged.temporary_name().to_owned(), ".tmpfile".to_owned(), "task_1.json".to_owned()];
        expected.sort();
        assert_eq!(names(path), expected);
        staged.commit().unwrap();
        assert_eq!(std::fs::read(path.join("b.json")).unwrap(), b"b");
    }
}
