//! Finds the config and the board in a folder and its parents, and checks their owners. Another user could put a `brigade.toml`
//! into a shared folder such as `/tmp`. Its commands would run as the user who works below that folder. Git had the same problem:
//! CVE-2022-24765.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use super::CONFIG_FILE;
use super::diagnostics::ConfigError;
use crate::domain::git::worktree_name::WORKTREES_FOLDER;
use crate::platform::{is_shared, is_trusted_owner};

/// Returns the nearest config file in `folder` and its parents.
///
/// # Errors
/// [`ConfigError::NotTrusted`]: [`check_owner`] refuses it.
pub fn find_upwards(folder: &Path) -> Result<Option<PathBuf>, ConfigError> {
    // A task's worktree has a copy of the config. The team's config is in the workspace that contains the worktree.
    let is_worktree = |folder: &Path| {
        let worktrees =
            folder.parent().filter(|parent| parent.file_name().is_some_and(|name| name == WORKTREES_FOLDER));
        worktrees.and_then(Path::parent).is_some_and(|workspace| workspace.join(CONFIG_FILE).is_file())
    };
    let folders = folder.ancestors().filter(|folder| !is_worktree(folder));
    // A pipe or a device is found too: the error of reading it names its kind.
    let exists = |path: &PathBuf| path.metadata().is_ok_and(|metadata| !metadata.is_dir());
    let file = folders.map(|folder| folder.join(CONFIG_FILE)).find(exists);
    file.map(|path| check_owner(&path, folder).map(|()| path)).transpose()
}

/// Returns the nearest of `folder` and its parents that contains a folder of one of these names.
///
/// # Errors
/// Those of [`find_upwards`].
pub fn find_folder_upwards(folder: &Path, names: &[&str]) -> Result<Option<PathBuf>, ConfigError> {
    let has_one = |folder: &&Path| names.iter().any(|name| folder.join(name).is_dir());
    let Some(nearest) = folder.ancestors().find(has_one) else { return Ok(None) };
    names.iter().try_for_each(|name| check_owner(&nearest.join(name), folder))?;
    Ok(Some(nearest.to_owned()))
}

/// Returns the nearest folder above `folder` that has a config or a folder of one of these names.
pub fn workspace_above(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    let is_workspace =
        |above: &&Path| above.join(CONFIG_FILE).is_file() || names.iter().any(|name| above.join(name).is_dir());
    folder.ancestors().skip(1).find(is_workspace).map(Path::to_owned)
}

/// Checks that `path`, if it exists, belongs to this user or root, and the target of a link too. Above the current folder `from`,
/// its folder must belong to them as well, and no other user may write to either. Board, plan and prompts are in the same folder.
/// A sticky folder is no exception.
///
/// # Errors
/// [`ConfigError::NotTrusted`].
pub fn check_owner(path: &Path, from: &Path) -> Result<(), ConfigError> {
    let folder = path.parent().unwrap_or(path);
    let refused = |checked: &Path, reason: &str| {
        let subject = if checked == path { "it".to_owned() } else { checked.display().to_string() };
        Err(ConfigError::NotTrusted { path: path.to_owned(), reason: format!("{subject} {reason}") })
    };
    let mut to_check: Vec<(&Path, Metadata)> = Vec::new();
    to_check.extend(path.symlink_metadata().ok().map(|link| (path, link)));
    to_check.extend(path.metadata().ok().map(|target| (path, target)));
    if to_check.is_empty() {
        return Ok(());
    }
    let is_above = folder != from;
    if is_above && let Ok(folder_metadata) = folder.metadata() {
        to_check.push((folder, folder_metadata));
    }
    for (checked, metadata) in to_check {
        if !is_trusted_owner(&metadata) {
            return refused(checked, "belongs to another user, who could run commands as you through it");
        }
        if is_above && !metadata.is_symlink() && is_shared(&metadata) {
            return refused(checked, "can be written by other users, who could run commands as you through it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    /// A user that is neither root nor the user of the tests.
    const OTHER: u32 = 65_534;

    /// Returns a folder, its config file and a folder below it.
    fn location() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (file, below) = (folder.path().join(CONFIG_FILE), folder.path().join("a/b"));
        fs::create_dir_all(&below).unwrap();
        fs::write(&file, "").unwrap();
        (folder, file, below)
    }

    fn refusal(folder: &Path) -> Option<String> {
        find_upwards(folder).err().map(|error| error.to_string())
    }

    fn is_root() -> bool {
        let own = tempfile::tempdir().unwrap();
        let is_root = own.path().metadata().is_ok_and(|own| own.uid() == 0);
        if !is_root {
            eprintln!("skipped: only root can give a file to another user");
        }
        is_root
    }

    #[test]
    fn nearest_own_config_upwards_is_found() {
        let (folder, file, below) = location();
        assert_eq!(find_upwards(&below).unwrap(), Some(file.clone()));
        fs::create_dir(folder.path().join(".team")).unwrap();
        let nearest = find_folder_upwards(&below, &[".tasks", ".team"]).unwrap();
        assert_eq!(nearest.as_deref(), Some(folder.path()));
    }

    #[test]
    fn workspace_above_is_found_by_config_or_board() {
        let (folder, file, below) = location();
        assert_eq!(workspace_above(&below, &[".tasks"]).as_deref(), Some(folder.path()));
        assert_eq!(workspace_above(folder.path(), &[".tasks"]), None, "its own config");
        fs::remove_file(file).unwrap();
        assert_eq!(workspace_above(&below, &[".tasks"]), None);
        fs::create_dir(folder.path().join(".tasks")).unwrap();
        assert_eq!(workspace_above(&below, &[".tasks"]).as_deref(), Some(folder.path()));
    }

    #[test]
    fn config_in_shared_parent_folder_is_refused() {
        let (folder, file, below) = location();
        for mode in [0o777, 0o1777, 0o757] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let error = refusal(&below).unwrap();
            assert!(error.contains(&file.display().to_string()) && error.contains("written by other users"), "{error}");
            assert_eq!(refusal(folder.path()), None, "{mode:o}: the config in the current folder");
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert!(refusal(&below).is_some(), "a file that others can write");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(refusal(&below), None);
    }

    #[test]
    fn config_of_another_user_is_refused() {
        let (folder, file, below) = location();
        if !is_root() {
            return;
        }
        chown(&file, Some(OTHER), None).unwrap();
        for from in [&below, folder.path()] {
            let error = refusal(from).unwrap();
            assert!(error.contains(&format!("{}: it belongs to another user", file.display())), "{error}");
        }
        chown(&file, Some(0), None).unwrap();
        chown(folder.path(), Some(OTHER), None).unwrap();
        assert!(refusal(&below).is_some(), "the owner of the folder can exchange the file");
        chown(folder.path(), Some(0), None).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(folder.path().join("theirs"), "").unwrap();
        chown(folder.path().join("theirs"), Some(OTHER), None).unwrap();
        symlink("theirs", &file).unwrap();
        assert!(refusal(&below).is_some() && refusal(folder.path()).is_some(), "a link to a file of another user");
    }

    #[test]
    fn board_of_another_user_is_refused() {
        let (folder, _, below) = location();
        if !is_root() {
            return;
        }
        for name in [".tasks", ".team"] {
            let board = folder.path().join(name);
            fs::create_dir(&board).unwrap();
            chown(&board, Some(OTHER), None).unwrap();
            for from in [&below, folder.path()] {
                let error = find_folder_upwards(from, &[".tasks", ".team"]).unwrap_err().to_string();
                assert!(error.contains(&format!("{}: it belongs to another user", board.display())), "{error}");
            }
            chown(&board, Some(0), None).unwrap();
        }
        assert!(find_folder_upwards(&below, &[".tasks", ".team"]).unwrap().is_some());
    }
}
