//! Paths outside the workspace that commands must not write: the user's config, and the `PATH` folders in the home folder.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::domain::access::PathRule;

/// The home folder without symbolic links. `None` if there is none, or if it is `/`.
fn home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from)?.canonicalize().ok()?;
    home.parent().is_some().then_some(home)
}

/// `PATH` for commands, and its folders below the home folder, including missing ones. In the returned `PATH`, folders below the
/// home folder have no symbolic links, because a command can replace a link. Missing folders are left out.
#[must_use]
pub fn search_path(path: &OsStr) -> (OsString, Vec<PathBuf>) {
    match home() {
        Some(home) => search_path_below(path, &home),
        None => (path.to_owned(), Vec::new()),
    }
}

fn search_path_below(path: &OsStr, home: &Path) -> (OsString, Vec<PathBuf>) {
    let (mut folders, mut home_folders) = (Vec::new(), Vec::new());
    for folder in std::env::split_paths(path) {
        let real = RealPath::of(&folder).end;
        let is_in_home = real.starts_with(home);
        if !folder.is_absolute() || !(is_in_home || folder.starts_with(home)) {
            // A folder outside the home folder stays unchanged.
            folders.push(folder);
            continue;
        }
        if real.is_dir() {
            folders.push(real.clone());
        }
        if is_in_home {
            home_folders.push(real);
        }
    }
    // Joining cannot fail: the folders come from a `PATH`, so no name contains the separator.
    (std::env::join_paths(&folders).unwrap_or_else(|_| path.to_owned()), home_folders)
}

/// The folder with `~` replaced by the home folder, and without symbolic links.
fn expanded(folder: &Path, home: Option<&Path>) -> PathBuf {
    let below_home = folder.strip_prefix("~").ok().and_then(|rest| Some(home?.join(rest)));
    let folder = below_home.unwrap_or_else(|| folder.to_owned());
    folder.canonicalize().unwrap_or(folder)
}

/// The `PATH` folders below the home folder that commands must not write, including missing ones. Folders inside `workspace` and inside
/// `writable` are excluded.
fn protected_search_folders(workspace: &Path, writable: &[PathBuf]) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = home();
    let writable: Vec<PathBuf> = writable.iter().map(|folder| expanded(folder, home.as_deref())).collect();
    let is_writable = |folder: &Path| writable.iter().any(|writable| folder.starts_with(writable));
    let mut folders = search_path(&path).1;
    // A folder that contains the workspace cannot be read-only.
    folders.retain(|folder| !folder.starts_with(workspace) && !workspace.starts_with(folder) && !is_writable(folder));
    folders
}

/// Rules that keep commands from writing programs into these folders, and from creating missing ones.
fn search_path_rules(folders: Vec<PathBuf>, workspace: &Path) -> Vec<PathRule> {
    let protected =
        folders.into_iter().filter_map(|folder| {
            // If a folder could not be created, its nearest existing parent is protected, or the file in its place.
            folder.ancestors().find(|path| path.symlink_metadata().is_ok()).map(Path::to_owned).filter(|existing| {
                *existing == folder || (!is_home_or_above(existing) && !workspace.starts_with(existing))
            })
        });
    protected.map(PathRule::read_only).collect()
}

/// Rules for paths outside the workspace that hold for every command. The folder of the user's config and the `PATH` folders below
/// the home folder are read-only, except those in `writable`. Sockets of terminal multiplexers are hidden.
#[must_use]
pub fn home_rules(workspace: &Path, writable: &[PathBuf]) -> Vec<PathRule> {
    let config = user_config_file().map(|file| user_config_rules(&file, workspace)).unwrap_or_default();
    let search_path = search_path_rules(protected_search_folders(workspace, writable), workspace);
    let rules = config.into_iter().chain(search_path);
    #[cfg(unix)]
    let rules = rules.chain(super::multiplexers::rules(workspace));
    rules.collect()
}

/// The user's config file: `$XDG_CONFIG_HOME/brigade/config.toml`, or the same in `~/.config`.
#[must_use]
pub fn user_config_file() -> Option<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("brigade/config.toml"))
}

/// Creates the folder of the user's config file and the `PATH` folders below the home folder, so that [`home_rules`] can protect
/// them. Returns a warning if a command can still replace the config.
#[must_use]
pub fn create_home_folders(workspace: &Path, writable: &[PathBuf]) -> Option<String> {
    protected_search_folders(workspace, writable).iter().for_each(|folder| create_folder(folder));
    let file = user_config_file()?;
    let path = RealPath::of(&file);
    path.end.parent().into_iter().for_each(create_folder);
    let link = path.links.iter().find(|link| link.parent().is_none_or(is_home_or_above))?;
    Some(format!(
        "a command can replace {}, a symbolic link on the path to your config. hint: replace it by a folder",
        link.display()
    ))
}

fn create_folder(folder: &Path) {
    if let Err(error) = std::fs::create_dir_all(folder) {
        tracing::info!("cannot create {}: {error}", folder.display());
    }
}

/// Rules that keep commands from writing the user's config file. Its folder is read-only, and so is each folder with a
/// symbolic link on the path to it. If its folder could not be created, the file in its place or its nearest parent is read-only.
fn user_config_rules(file: &Path, workspace: &Path) -> Vec<PathRule> {
    let path = RealPath::of(file);
    // The existing end of the path: the file itself if its folder has links, a file in place of a folder, or the nearest parent.
    let end = path.end.ancestors().find(|path| path.symlink_metadata().is_ok()).map(Path::to_owned);
    let folder = path.end.parent().filter(|folder| path.links.is_empty() && folder.is_dir()).map(Path::to_owned);
    let folders_of_links = path.links.iter().filter_map(|link| link.parent().map(Path::to_owned));
    let protected = folder.into_iter().chain(folders_of_links).chain(end);
    let mut rules: Vec<PathRule> = Vec::new();
    for path in protected.filter(|path| !is_home_or_above(path) && !workspace.starts_with(path)) {
        let rule = PathRule::read_only(path);
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

/// Returns `true` if a folder is the home folder or contains it, so that it cannot be read-only.
pub(super) fn is_home_or_above(folder: &Path) -> bool {
    folder.parent().is_none() || home().is_some_and(|home| home.starts_with(folder))
}

/// The most symbolic links that are followed on a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// A path with its symbolic links resolved. Its last parts may be missing.
#[derive(Debug, PartialEq, Eq)]
struct RealPath {
    /// The path without symbolic links.
    end: PathBuf,
    /// The links on the path, each with resolved parents.
    links: Vec<PathBuf>,
}

impl RealPath {
    fn of(path: &Path) -> Self {
        let (mut end, mut links) = (PathBuf::new(), Vec::new());
        let mut rest: Vec<OsString> = parts(path);
        while let Some(part) = rest.pop() {
            if part == ".." {
                end.pop();
                continue;
            }
            let next = end.join(&part);
            match std::fs::read_link(&next) {
                Ok(target) if links.len() < LINKS_MAX => {
                    // An absolute target begins with `/`, which replaces the path so far.
                    rest.extend(parts(&target));
                    links.push(next);
                }
                _ => end = next,
            }
        }
        Self { end, links }
    }
}

/// The parts of a path in reverse order.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).filter(|part| part != ".").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_path_resolves_home_links_drops_missing() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("real/bin")).unwrap();
        std::os::unix::fs::symlink("real/bin", home.join("bin")).unwrap();
        let path = std::env::join_paths([
            home.join("bin").as_path(),
            &home.join("missing"),
            Path::new("/usr/bin"),
            Path::new("node_modules/.bin"),
        ])
        .unwrap();
        let (path, home_folders) = search_path_below(&path, &home);
        assert_eq!(home_folders, [home.join("real/bin"), home.join("missing")]);
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        assert_eq!(folders, [home.join("real/bin").as_path(), Path::new("/usr/bin"), Path::new("node_modules/.bin")]);
    }

    #[test]
    fn user_config_missing_is_protected() {
        let folder = tempfile::tempdir().unwrap();
        let (home, workspace) = (folder.path().canonicalize().unwrap(), Path::new("/elsewhere"));
        let config = home.join(".config/brigade/config.toml");
        assert_eq!(user_config_rules(&config, workspace), [PathRule::read_only(&home)], "its folder is missing");
        create_folder(RealPath::of(&config).end.parent().unwrap());
        assert_eq!(user_config_rules(&config, workspace), [PathRule::read_only(home.join(".config/brigade"))]);
    }

    #[test]
    fn linked_user_config_is_protected_with_target() {
        let folder = tempfile::tempdir().unwrap();
        let (home, workspace) = (folder.path().canonicalize().unwrap(), Path::new("/elsewhere"));
        let config = home.join(".config/brigade/config.toml");
        std::fs::create_dir_all(config.parent().unwrap()).unwrap();
        std::fs::write(home.join("dotfile"), "").unwrap();
        std::os::unix::fs::symlink(home.join("dotfile"), &config).unwrap();
        let expected = [home.join(".config/brigade"), home.join("dotfile")].map(PathRule::read_only);
        assert_eq!(user_config_rules(&config, workspace), expected);
    }

    #[test]
    fn user_config_below_linked_folder_is_protected() {
        let folder = tempfile::tempdir().unwrap();
        let (home, workspace) = (folder.path().canonicalize().unwrap(), Path::new("/elsewhere"));
        std::fs::create_dir_all(home.join(".config")).unwrap();
        std::os::unix::fs::symlink("../dot/brig", home.join(".config/brigade")).unwrap();
        let config = home.join(".config/brigade/config.toml");
        create_folder(RealPath::of(&config).end.parent().unwrap());
        let expected = [home.join(".config"), home.join("dot/brig")].map(PathRule::read_only);
        assert_eq!(user_config_rules(&config, workspace), expected, "the link and the folder it leads to");
        std::os::unix::fs::symlink("../else/config.toml", home.join("dot/brig.toml")).unwrap();
        let dangling = RealPath::of(&home.join("dot/brig.toml"));
        assert_eq!(dangling, RealPath { end: home.join("else/config.toml"), links: vec![home.join("dot/brig.toml")] });
    }

    #[test]
    fn file_blocking_user_config_folder_is_protected() {
        let folder = tempfile::tempdir().unwrap();
        let (home, workspace) = (folder.path().canonicalize().unwrap(), Path::new("/elsewhere"));
        std::fs::write(home.join(".config"), "").unwrap();
        let config = home.join(".config/brigade/config.toml");
        create_folder(RealPath::of(&config).end.parent().unwrap());
        assert_eq!(user_config_rules(&config, workspace), [PathRule::read_only(home.join(".config"))]);
    }
}
