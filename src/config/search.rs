//! Finds the config and the board in a folder and those above it, and obeys those of this user alone. Anyone can put a `brigade.toml`
//! into a folder that they can write, such as `/tmp`, and its commands would run as whoever works below; see CVE-2022-24765 for
//! the same in git.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use super::CONFIG_FILE;
use super::problem::ConfigError;
use crate::platform::{is_shared, is_trusted_owner};

/// The nearest config file in `folder` and those above it.
///
/// # Errors
/// [`ConfigError::NotTrusted`]: [`check_owner`] refuses it.
pub fn find_upwards(folder: &Path) -> Result<Option<PathBuf>, ConfigError> {
    // A task's worktree has a copy of the config, and the team is where that worktree lies.
    let is_worktree = |folder: &Path| {
        let worktrees = folder.parent().filter(|parent| parent.file_name().is_some_and(|name| name == ".worktrees"));
        worktrees.and_then(Path::parent).is_some_and(|workspace| workspace.join(CONFIG_FILE).is_file())
    };
    let folders = folder.ancestors().filter(|folder| !is_worktree(folder));
    // A pipe or a device in its place is found too: reading it says what it is.
    let is_there = |path: &PathBuf| path.metadata().is_ok_and(|there| !there.is_dir());
    let found = folders.map(|folder| folder.join(CONFIG_FILE)).find(is_there);
    found.map(|path| check_owner(&path, folder).map(|()| path)).transpose()
}

/// The nearest of `folder` and those above it that has a folder of one of these names.
///
/// # Errors
/// As [`find_upwards`].
pub fn find_folder_upwards(folder: &Path, names: &[&str]) -> Result<Option<PathBuf>, ConfigError> {
    let has_one = |folder: &&Path| names.iter().any(|name| folder.join(name).is_dir());
    let Some(found) = folder.ancestors().find(has_one) else { return Ok(None) };
    names.iter().try_for_each(|name| check_owner(&found.join(name), folder))?;
    Ok(Some(found.to_owned()))
}

/// Refuses what lies at `path`, if anything does, unless it is this user's or root's, and of what a link leads to the same. Above
/// the current folder `from` the folder it lies in must be theirs as well, and nobody else may write either: the rest that
/// Brigade obeys (board, plan, prompts) lies beside it. So a sticky folder is no exception.
///
/// # Errors
/// [`ConfigError::NotTrusted`].
pub fn check_owner(path: &Path, from: &Path) -> Result<(), ConfigError> {
    let folder = path.parent().unwrap_or(path);
    let refused = |place: &Path, reason: &str| {
        let place = if place == path { "it".to_owned() } else { place.display().to_string() };
        Err(ConfigError::NotTrusted { path: path.to_owned(), reason: format!("{place} {reason}") })
    };
    let mut places: Vec<(&Path, Metadata)> = Vec::new();
    places.extend(path.symlink_metadata().ok().map(|link| (path, link)));
    places.extend(path.metadata().ok().map(|target| (path, target)));
    if places.is_empty() {
        return Ok(());
    }
    let is_above = folder != from;
    places.extend(folder.metadata().ok().filter(|_| is_above).map(|folder_metadata| (folder, folder_metadata)));
    for (place, metadata) in places {
        if !is_trusted_owner(&metadata) {
            return refused(place, "belongs to another user, who could run commands as you through it");
        }
        if is_above && !metadata.is_symlink() && is_shared(&metadata) {
            return refused(place, "can be written by other users, who could run commands as you through it");
        }
    }
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    /// A user who is neither root nor the tester.
    const OTHER: u32 = 65_534;

    /// A folder with a config file and a folder below it.
    fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (file, below) = (folder.path().join(CONFIG_FILE), folder.path().join("a/b"));
        fs::create_dir_all(&below).unwrap();
        fs::write(&file, "").unwrap();
        (folder, file, below)
    }

    fn refusal(folder: &Path) -> Option<String> {
        find_upwards(folder).err().map(|error| error.to_string())
    }

    /// Whether files can be given to another user.
    fn is_root() -> bool {
        let own = tempfile::tempdir().unwrap();
        let is_root = own.path().metadata().is_ok_and(|own| own.uid() == 0);
        if !is_root {
            eprintln!("skipped: only root can give a file to another user");
        }
        is_root
    }

    #[test]
    fn nearest_own_file_upwards_is_found() {
        let (folder, file, below) = place();
        assert_eq!(find_upwards(&below).unwrap(), Some(file.clone()));
        fs::create_dir(folder.path().join(".team")).unwrap();
        let found = find_folder_upwards(&below, &[".tasks", ".team"]).unwrap();
        assert_eq!(found.as_deref(), Some(folder.path()));
    }

    #[test]
    fn file_in_shared_folder_above_is_refused() {
        let (folder, file, below) = place();
        for mode in [0o777, 0o1777, 0o757] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let error = refusal(&below).unwrap();
            assert!(error.contains(&file.display().to_string()) && error.contains("written by other users"), "{error}");
            assert_eq!(refusal(folder.path()), None, "{mode:o}: one's own in the current folder");
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert!(refusal(&below).is_some(), "a file that others can write");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(refusal(&below), None);
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let (folder, file, below) = place();
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
        assert!(refusal(&below).is_some(), "a folder of another user can be exchanged");
        chown(folder.path(), Some(0), None).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(folder.path().join("theirs"), "").unwrap();
        chown(folder.path().join("theirs"), Some(OTHER), None).unwrap();
        symlink("theirs", &file).unwrap();
        assert!(refusal(&below).is_some() && refusal(folder.path()).is_some(), "a link to a file of another user");
    }

    #[test]
    fn board_of_another_user_is_refused() {
        let (folder, _, below) = place();
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
