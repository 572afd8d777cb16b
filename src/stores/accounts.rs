//! The limits of accounts, in one file for each account of this user. Commands of agents cannot write this folder, see
//! `sandbox::protected_paths`.
//!
//! The name of a file is a digest of address and key. Its content is a time: nothing in it is secret. A file is replaced as a whole under
//! the folder's lock, so a kill leaves the old or the new one. Ended limits are removed after a day.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::team::account::{AccountId, AccountLimit};
use crate::domain::time::UnixMs;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::{is_shared, is_trusted_owner};
use crate::ports::{AccountStore, IoAction, StoreResult};
use crate::sandbox::protected_paths::accounts_folder;
use crate::stores::file::atomic_write::{StagedFile, sweep_temporaries};
use crate::stores::file::{blocking, failed};
use crate::stores::fs::{FileSystem, RealFileSystem, locked};

/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// The lock of all files of the folder.
const LOCK: &str = ".lock";
/// The age at which a file is removed. No limit lasts as long.
const FILE_AGE_MAX: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// The limits of the accounts of this user.
pub struct AccountFiles(AccountFolder);

struct AccountFolder {
    folder: PathBuf,
    files: RealFileSystem,
}

impl AccountFiles {
    /// The files in `$XDG_STATE_HOME/brigade/accounts`; `None` without a home folder.
    pub fn of_user() -> Option<Self> {
        accounts_folder().map(Self::in_folder)
    }

    /// The files in this folder, which is created when needed.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self(AccountFolder { folder, files: RealFileSystem::default() })
    }
}

#[async_trait]
impl AccountStore for AccountFiles {
    async fn limit(&self, account: &AccountId, now: UnixMs) -> Option<AccountLimit> {
        blocking(|| Ok(self.0.read(account, now))).await.ok().flatten()
    }

    async fn record(&self, account: &AccountId, limit: AccountLimit, now: UnixMs) -> StoreResult<()> {
        blocking(|| self.0.write(account, limit, now)).await
    }
}

impl AccountFolder {
    fn path(&self, account: &AccountId) -> PathBuf {
        self.folder.join(file_name(account))
    }

    /// Returns the recorded limit if it holds. A file that is invalid, or that other users could have written, counts as none.
    fn read(&self, account: &AccountId, now: UnixMs) -> Option<AccountLimit> {
        let file = reading::open(&self.path(account), AllowedKinds::FilesHere).ok()?;
        let metadata = file.metadata().ok()?;
        if !is_trusted_owner(&metadata) || is_shared(&metadata) {
            return None;
        }
        let limit: AccountLimit = serde_json::from_slice(&reading::read_all(file, FILE_BYTES_MAX).ok()?).ok()?;
        limit.holds(now).then_some(limit)
    }

    fn write(&self, account: &AccountId, limit: AccountLimit, now: UnixMs) -> StoreResult<()> {
        let create = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        create.map_err(failed("create", &self.folder))?;
        let lock = self.folder.join(LOCK);
        locked(&self.files, &lock, || self.write_locked(account, limit, now)).map_err(failed(IoAction::Lock, &lock))?
    }

    fn write_locked(&self, account: &AccountId, limit: AccountLimit, now: UnixMs) -> StoreResult<()> {
        let recorded = self.read(account, now);
        let limit = recorded.map_or(limit, |recorded| recorded.followed_by(limit)).cut(now);
        if recorded == Some(limit) {
            return Ok(());
        }
        // A killed process can have left one.
        sweep_temporaries(&self.files, &self.folder)?;
        self.remove_old_files();
        let bytes = serde_json::to_vec(&limit).map_err(|error| failed("write", &self.folder)(error.into()))?;
        let staged = StagedFile::write(&self.files, &self.folder, &file_name(account), &bytes)?;
        let permissions = fs::Permissions::from_mode(0o600);
        fs::set_permissions(staged.temporary_path(), permissions).map_err(failed("write", staged.final_path()))?;
        staged.commit()
    }

    /// Removes the files of limits that ended a day ago or earlier. A file that cannot be removed stays.
    fn remove_old_files(&self) {
        for name in self.files.list(&self.folder).unwrap_or_default().iter().filter(|name| *name != LOCK) {
            let path = self.folder.join(name);
            let changed = fs::symlink_metadata(&path).and_then(|metadata| metadata.modified());
            if changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > FILE_AGE_MAX)) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn file_name(account: &AccountId) -> String {
    format!("{}.json", account.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs(1_000_000);

    fn store() -> (tempfile::TempDir, AccountFolder, AccountId) {
        let home = tempfile::tempdir().unwrap();
        let folder = AccountFolder { folder: home.path().join("accounts"), files: RealFileSystem::default() };
        (home, folder, AccountId::of(&[b"https://a", b"sk-secret"]))
    }

    fn limit(until: i64) -> AccountLimit {
        AccountLimit { until: UnixMs(until), is_quota: false, no_credit_since: None }
    }

    #[test]
    fn limit_is_recorded_and_never_shortened() {
        let (_home, store, account) = store();
        assert_eq!(store.read(&account, NOW), None);
        store.write(&account, limit(1_005_000), NOW).unwrap();
        store.write(&account, limit(1_002_000), NOW).unwrap();
        assert_eq!(store.read(&account, NOW), Some(limit(1_005_000)));
        assert_eq!(store.read(&AccountId::of(&[b"https://a", b"other"]), NOW), None);
        assert_eq!(store.read(&account, UnixMs(1_005_000)), None, "it has ended");
        let quota = AccountLimit { is_quota: true, ..limit(1_004_000) };
        store.write(&account, quota, NOW).unwrap();
        assert_eq!(store.read(&account, NOW), Some(AccountLimit { is_quota: true, ..limit(1_005_000) }));
        store.write(&account, limit(1_009_000), UnixMs(1_006_000)).unwrap();
        assert_eq!(store.read(&account, UnixMs(1_006_000)), Some(limit(1_009_000)), "the quota window has ended");
    }

    #[test]
    fn account_file_is_private_and_holds_no_key() {
        let (_home, store, account) = store();
        store.write(&account, limit(1_005_000), NOW).unwrap();
        let path = store.path(&account);
        let text = format!("{}{}", path.display(), fs::read_to_string(&path).unwrap());
        assert!(!text.contains("secret") && !text.contains("https"), "{text}");
        let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&store.folder)), (0o600, 0o700));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(store.read(&account, NOW), None, "others could have written it");
    }

    #[test]
    fn hostile_account_file_is_ignored_and_replaced() {
        let (_home, store, account) = store();
        store.write(&account, limit(1_005_000), NOW).unwrap();
        let path = store.path(&account);
        let long = format!("{{\"until\":1005000}}{}", " ".repeat(5_000));
        let days = format!("{{\"until\":{}}}", NOW.0 + 90_000_000);
        let absurd = format!("{{\"until\":{}}}", i64::MAX);
        for text in ["", "{", "[]", "{\"until\":\"soon\"}", "{\"until\":-1}", &absurd, &days, &long] {
            fs::write(&path, text).unwrap();
            assert_eq!(store.read(&account, NOW), None, "{text}");
            store.write(&account, limit(1_003_000), NOW).unwrap();
            assert_eq!(store.read(&account, NOW), Some(limit(1_003_000)), "{text}");
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(store.read(&account, NOW), None);
        store.write(&account, limit(i64::MAX), NOW).unwrap();
        assert_eq!(store.read(&account, NOW), Some(limit(i64::MAX).cut(NOW)));
    }

    #[test]
    fn files_of_killed_process_and_old_limits_are_removed() {
        let (_home, store, account) = store();
        let other = AccountId::of(&[b"https://b"]);
        store.write(&other, limit(1_005_000), NOW).unwrap();
        let old = std::time::SystemTime::now() - FILE_AGE_MAX - Duration::from_secs(60);
        fs::File::options().write(true).open(store.path(&other)).unwrap().set_modified(old).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        fs::write(store.folder.join(format!(".tmp-{}-0-1", child.id())), "{").unwrap();
        store.write(&account, limit(1_005_000), NOW).unwrap();
        let mut names: Vec<String> = fs::read_dir(&store.folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [LOCK.to_owned(), file_name(&account)]);
    }
}
