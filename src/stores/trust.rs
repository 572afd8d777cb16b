//! The record of the user's agreements, outside of all workspaces: no file that a repository brings can grant trust. Commands of agents cannot write
//! this folder, see `sandbox::protected_paths`.
//!
//! Each workspace has an entry of its own, and one for each of its teams. An entry is replaced as a whole. After a crash it is the old or
//! the new one; after a power cut it can be missing or invalid. Then the person is asked again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::domain::team::digest::sha256;
use crate::domain::time::UnixMs;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::{is_shared, is_trusted_owner};
use crate::sandbox::protected_paths::trust_folder;
use crate::stores::file::atomic_write::{StagedFile, sweep_temporaries};
use crate::stores::fs::RealFileSystem;

/// The longest entry that is read, in bytes.
const ENTRY_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// The most lines of a list that an entry has. A longer list counts as changed if its digest differs.
const LINES_MAX: usize = 1_000;

/// The list that a person agreed to for one team of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// The digest of the whole list.
    pub list: String,
    /// The time of the agreement.
    #[serde(rename = "agreedAt")]
    pub agreed_at: UnixMs,
    /// The lines of the list; the first 1,000 when it is recorded.
    pub lines: Vec<AgreedLine>,
}

/// A line of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgreedLine {
    /// The digest of its complete content.
    pub digest: String,
    /// Its text as it was shown.
    pub text: String,
    /// True if a list without it needs no new agreement, because it is work that can be done by now.
    pub work: bool,
}

/// A workspace whose board and mail Brigade created for this user, or to whose board and mail the user agreed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WorkspaceEntry {
    inode: u64,
    /// The time when the folder was created, in nanoseconds since 1970; 0 if the file system does not tell.
    #[serde(rename = "createdNs")]
    created_ns: u64,
}

/// The entries of this user.
#[derive(Debug, Clone)]
pub struct TrustStore {
    /// `None` without a home folder: nothing is trusted, and nothing can be recorded.
    folder: Option<PathBuf>,
}

impl TrustStore {
    /// The entries in `$XDG_STATE_HOME/brigade/trust`.
    pub fn of_user() -> Self {
        Self { folder: trust_folder() }
    }

    /// Returns the agreement for a team of the workspace with this real path. An entry that is invalid, or that other users could have
    /// written, counts as none. Blocks.
    pub fn agreement(&self, workspace: &Path, team: &str) -> Option<Agreement> {
        self.read(&team_key(workspace, team))
    }

    /// Records the agreement for a team of the workspace with this real path. Blocks.
    ///
    /// # Errors
    /// There is no home folder, or its files cannot be written.
    pub fn record(&self, workspace: &Path, team: &str, mut agreement: Agreement) -> io::Result<()> {
        agreement.lines.truncate(LINES_MAX);
        self.write(&team_key(workspace, team), &agreement)
    }

    /// Returns true if [`Self::record_own`] was called for this folder. Another folder that took its place is not the same. Blocks.
    pub fn is_own(&self, workspace: &Path) -> bool {
        let recorded = self.read::<WorkspaceEntry>(&workspace_key(workspace));
        recorded.is_some_and(|recorded| WorkspaceEntry::of(workspace).is_ok_and(|now| now == recorded))
    }

    /// Records that board and mail of this workspace are the user's own, except those that git tracks. Blocks.
    ///
    /// # Errors
    /// Those of [`Self::record`].
    pub fn record_own(&self, workspace: &Path) -> io::Result<()> {
        self.write(&workspace_key(workspace), &WorkspaceEntry::of(workspace)?)
    }

    fn read<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let path = self.folder.as_ref()?.join(key);
        let file = reading::open(&path, AllowedKinds::FilesHere).ok()?;
        let metadata = file.metadata().ok()?;
        if !is_trusted_owner(&metadata) || is_shared(&metadata) {
            return None;
        }
        serde_json::from_slice(&reading::read_all(file, ENTRY_BYTES_MAX).ok()?).ok()
    }

    fn write(&self, key: &str, entry: &impl Serialize) -> io::Result<()> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "neither XDG_STATE_HOME nor HOME is set");
        let folder = self.folder.as_ref().ok_or_else(missing)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let files = RealFileSystem::default();
        // A killed process can have left one.
        sweep_temporaries(&files, folder).map_err(io::Error::other)?;
        let staged = StagedFile::write(&files, folder, key, &serde_json::to_vec(entry)?).map_err(io::Error::other)?;
        fs::set_permissions(staged.temporary_path(), fs::Permissions::from_mode(0o600))?;
        staged.commit().map_err(io::Error::other)
    }
}

impl WorkspaceEntry {
    fn of(workspace: &Path) -> io::Result<Self> {
        let metadata = workspace.metadata()?;
        let since = metadata.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let created_ns = since.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        Ok(Self { inode: metadata.ino(), created_ns })
    }
}

fn workspace_key(workspace: &Path) -> String {
    format!("{}.json", sha256(&[b"workspace", workspace.as_os_str().as_encoded_bytes()]))
}

fn team_key(workspace: &Path, team: &str) -> String {
    format!("{}.json", sha256(&[b"team", workspace.as_os_str().as_encoded_bytes(), team.as_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, TrustStore, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let workspace = home.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        let store = TrustStore { folder: Some(home.path().join("state/brigade/trust")) };
        (home, store, workspace)
    }

    fn agreement(lines: usize) -> Agreement {
        let line = |number: usize| AgreedLine { digest: number.to_string(), text: "runs x".to_owned(), work: true };
        Agreement { list: "abc".to_owned(), agreed_at: UnixMs(1), lines: (0..lines).map(line).collect() }
    }

    fn files(store: &TrustStore) -> Vec<PathBuf> {
        fs::read_dir(store.folder.as_ref().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn agreement_holds_for_its_workspace_and_team() {
        let (home, store, workspace) = store();
        assert_eq!(store.agreement(&workspace, "crew"), None);
        store.record(&workspace, "crew", agreement(2)).unwrap();
        assert_eq!(store.agreement(&workspace, "crew"), Some(agreement(2)));
        assert_eq!(store.agreement(&workspace, "other"), None);
        assert_eq!(store.agreement(home.path(), "crew"), None);
        store.record(&workspace, "crew", agreement(LINES_MAX + 1)).unwrap();
        assert_eq!(store.agreement(&workspace, "crew").unwrap().lines.len(), LINES_MAX);
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        let [file] = &files(&store)[..] else { panic!("{:?}", files(&store)) };
        assert_eq!((mode(file), mode(file.parent().unwrap())), (0o600, 0o700));
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(store.agreement(&workspace, "crew"), None, "others could have written it");
    }

    #[test]
    fn folder_in_place_of_own_workspace_is_not_own() {
        let (home, store, workspace) = store();
        assert!(!store.is_own(&workspace));
        store.record_own(&workspace).unwrap();
        assert!(store.is_own(&workspace));
        fs::rename(&workspace, home.path().join("moved")).unwrap();
        fs::create_dir(&workspace).unwrap();
        assert!(!store.is_own(&workspace));
    }

    #[test]
    fn invalid_or_missing_entries_trust_nothing() {
        let (_home, store, workspace) = store();
        store.record_own(&workspace).unwrap();
        for text in ["", "{", "[]", "{\"inode\":-1}"] {
            fs::write(&files(&store)[0], text).unwrap();
            assert!(!store.is_own(&workspace), "{text}");
        }
        let homeless = TrustStore { folder: None };
        assert!(homeless.record_own(&workspace).is_err() && !homeless.is_own(&workspace));
    }

    #[test]
    fn temporary_file_of_killed_process_is_removed() {
        let (_home, store, workspace) = store();
        store.record_own(&workspace).unwrap();
        let folder = store.folder.as_ref().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        fs::write(folder.join(format!(".tmp-{}-0-1", child.id())), "{").unwrap();
        store.record_own(&workspace).unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
        assert!(store.is_own(&workspace));
    }
}
