//! Paths outside the workspace that commands must not write: the user's config, the record of what the user agreed to, the limits of
//! accounts, and the `PATH` folders below the home folder.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::domain::agent::access::PathRule;

/// The most symbolic links that are followed on a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// The home folder without symbolic links. `None` if there is none, or if it is `/`.
fn home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from)?.canonicalize().ok()?;
    home.parent().is_some().then_some(home)
}

/// `PATH` for commands.
pub(super) struct SearchPath {
    /// The variable's value. Its folders below the home folder exist and have no symbolic links, because a command can replace a link.
    pub(super) value: OsString,
    /// The folders below the home folder without symbolic links, including missing ones.
    home_folders: Vec<PathBuf>,
}

impl SearchPath {
    /// The search path for commands, from the `PATH` of this process.
    pub(super) fn of(path: &OsStr) -> Self {
        match home() {
            Some(home) => Self::with_home(path, &home),
            None => Self { value: path.to_owned(), home_folders: Vec::new() },
        }
    }

    fn with_home(path: &OsStr, home: &Path) -> Self {
        let mut folders = Vec::new();
        let mut home_folders = Vec::new();
        for folder in std::env::split_paths(path) {
            let real = ResolvedPath::of(&folder).target;
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
        let value = std::env::join_paths(&folders).unwrap_or_else(|_| path.to_owned());
        Self { value, home_folders }
    }
}

/// The folder with `~` replaced by the home folder, and without symbolic links.
fn resolve_folder(folder: &Path, home: Option<&Path>) -> PathBuf {
    let below_home = folder.strip_prefix("~").ok().and_then(|rest| Some(home?.join(rest)));
    let folder = below_home.unwrap_or_else(|| folder.to_owned());
    folder.canonicalize().unwrap_or(folder)
}

/// The `PATH` folders below the home folder that commands must not write, including missing ones. Folders inside `workspace` and inside
/// `writable` are excluded.
fn protected_search_folders(workspace: &Path, writable: &[PathBuf]) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = home();
    let writable: Vec<PathBuf> = writable.iter().map(|folder| resolve_folder(folder, home.as_deref())).collect();
    let is_writable = |folder: &Path| writable.iter().any(|writable| folder.starts_with(writable));
    let mut folders = SearchPath::of(&path).home_folders;
    // A folder that contains the workspace cannot be read-only.
    folders.retain(|folder| !folder.starts_with(workspace) && !workspace.starts_with(folder) && !is_writable(folder));
    folders
}

/// Rules that keep commands from writing programs into these folders, and from creating missing ones.
fn search_path_rules(folders: Vec<PathBuf>, workspace: &Path) -> Vec<PathRule> {
    let mut rules = Vec::new();
    for folder in folders {
        // If a folder could not be created, its nearest existing parent is protected, or the file in its place.
        let Some(existing) = nearest_existing(&folder) else { continue };
        if existing == folder || (!is_home_or_above(existing) && !workspace.starts_with(existing)) {
            rules.push(PathRule::read_only(existing.to_owned()));
        }
    }
    rules
}

/// The path itself or its nearest parent that exists.
fn nearest_existing(path: &Path) -> Option<&Path> {
    path.ancestors().find(|path| path.symlink_metadata().is_ok())
}

/// Rules that hold for every command, for paths outside the workspace. The folder of the user's config, those of the trust entries and of
/// the accounts, and the `PATH` folders below the home folder are read-only, except those in `writable`. Sockets of terminal multiplexers are hidden.
pub fn home_rules(workspace: &Path, writable: &[PathBuf]) -> Vec<PathRule> {
    let own = own_files().flat_map(|file| own_file_rules(&file, workspace));
    let search_path = search_path_rules(protected_search_folders(workspace, writable), workspace);
    own.chain(search_path).chain(super::multiplexers::rules(workspace)).collect()
}

/// The user's config file, and a file in each folder of Brigade's own records.
fn own_files() -> impl Iterator<Item = PathBuf> {
    let folders = trust_folder().into_iter().chain(accounts_folder());
    user_config_file().into_iter().chain(folders.map(|folder| folder.join("entry.json")))
}

/// The user's config file: `$XDG_CONFIG_HOME/brigade/config.toml`, or the same in `~/.config`.
pub fn user_config_file() -> Option<PathBuf> {
    Some(user_folder("XDG_CONFIG_HOME", ".config")?.join("brigade/config.toml"))
}

/// The folder with the record of what the user agreed to: `$XDG_STATE_HOME/brigade/trust`, or the same in `~/.local/state`.
pub fn trust_folder() -> Option<PathBuf> {
    Some(state_folder()?.join("trust"))
}

/// The folder with the limits of accounts: `$XDG_STATE_HOME/brigade/accounts`, or the same in `~/.local/state`.
pub fn accounts_folder() -> Option<PathBuf> {
    Some(state_folder()?.join("accounts"))
}

fn state_folder() -> Option<PathBuf> {
    Some(user_folder("XDG_STATE_HOME", ".local/state")?.join("brigade"))
}

/// The folder that a variable names, or this one in the home folder. See the XDG Base Directory Specification.
fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    folder(variable).or_else(|| Some(folder("HOME")?.join(in_home)))
}

/// Creates the folders of the user's config file and of Brigade's own records, and the `PATH` folders below the home folder, so that
/// [`home_rules`] can protect them. Returns a warning if a command can still replace the user's files.
#[must_use]
pub fn create_home_folders(workspace: &Path, writable: &[PathBuf]) -> Option<String> {
    for folder in protected_search_folders(workspace, writable) {
        create_folder(&folder, 0o777);
    }
    let mut replaceable = None;
    for file in own_files() {
        let path = ResolvedPath::of(&file);
        if let Some(folder) = path.target.parent() {
            create_folder(folder, 0o700);
        }
        let link = path.links.into_iter().find(|link| link.parent().is_none_or(is_home_or_above));
        replaceable = replaceable.or_else(|| Some((link?, file)));
    }
    let (link, file) = replaceable?;
    Some(format!(
        "a command can replace {}, a symbolic link on the path to {}. hint: replace it by a folder",
        link.display(),
        file.parent().unwrap_or(&file).display()
    ))
}

fn create_folder(folder: &Path, mode: u32) {
    if let Err(error) = DirBuilder::new().recursive(true).mode(mode).create(folder) {
        tracing::info!("cannot create {}: {error}", folder.display());
    }
}

/// Rules that keep commands from writing a file of the user. Its folder is read-only, and so is each folder with a
/// symbolic link on the path to it. If its folder could not be created, the file in its place or its nearest parent is read-only.
fn own_file_rules(file: &Path, workspace: &Path) -> Vec<PathRule> {
    let path = ResolvedPath::of(file);
    let folder = path.target.parent().filter(|folder| path.links.is_empty() && folder.is_dir());
    let folders_of_links = path.links.iter().filter_map(|link| link.parent());
    // The file, a file in place of one of its folders, or the nearest parent.
    let existing = nearest_existing(&path.target);
    let protected = folder.into_iter().chain(folders_of_links).chain(existing);
    let mut rules: Vec<PathRule> = Vec::new();
    for path in protected.filter(|path| !is_home_or_above(path) && !workspace.starts_with(path)) {
        let rule = PathRule::read_only(path.to_owned());
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

/// Returns true if a folder is the home folder or contains it, so that it cannot be read-only.
pub(super) fn is_home_or_above(folder: &Path) -> bool {
    folder.parent().is_none() || home().is_some_and(|home| home.starts_with(folder))
}

/// A path with its symbolic links resolved. Its last parts may be missing.
#[derive(Debug, PartialEq, Eq)]
struct ResolvedPath {
    /// The path without symbolic links.
    target: PathBuf,
    /// The links on the path, each with resolved parents.
    links: Vec<PathBuf>,
}

impl ResolvedPath {
    fn of(path: &Path) -> Self {
        let mut target = PathBuf::new();
        let mut links = Vec::new();
        let mut rest = reversed_parts(path);
        while let Some(part) = rest.pop() {
            if part == ".." {
                target.pop();
                continue;
            }
            let next = target.join(&part);
            match std::fs::read_link(&next) {
                Ok(destination) if links.len() < LINKS_MAX => {
                    // An absolute destination begins with `/`, which replaces the path so far.
                    rest.extend(reversed_parts(&destination));
                    links.push(next);
                }
                _ => target = next,
            }
        }
        Self { target, links }
    }
}

/// The parts of a path, the last one first.
fn reversed_parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).filter(|part| part != ".").collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn search_path_resolves_links_and_drops_missing() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("real/bin")).unwrap();
        symlink("real/bin", home.join("bin")).unwrap();
        let path = std::env::join_paths([
            home.join("bin").as_path(),
            &home.join("missing"),
            Path::new("/usr/bin"),
            Path::new("node_modules/.bin"),
        ])
        .unwrap();
        let search_path = SearchPath::with_home(&path, &home);
        assert_eq!(search_path.home_folders, [home.join("real/bin"), home.join("missing")]);
        let folders: Vec<PathBuf> = std::env::split_paths(&search_path.value).collect();
        assert_eq!(folders, [home.join("real/bin").as_path(), Path::new("/usr/bin"), Path::new("node_modules/.bin")]);
    }

    /// A home folder, used in place of the person's.
    struct TestHome {
        folder: PathBuf,
        config: PathBuf,
        _temporary: tempfile::TempDir,
    }

    impl TestHome {
        fn new() -> Self {
            let temporary = tempfile::tempdir().unwrap();
            let folder = temporary.path().canonicalize().unwrap();
            Self { config: folder.join(".config/brigade/config.toml"), folder, _temporary: temporary }
        }

        fn join(&self, path: &str) -> PathBuf {
            self.folder.join(path)
        }

        fn create_config_folder(&self) {
            create_folder(ResolvedPath::of(&self.config).target.parent().unwrap(), 0o700);
        }

        /// Asserts that exactly these paths below the home folder are read-only.
        fn assert_protects(&self, paths: &[&str]) {
            let expected: Vec<PathRule> = paths.iter().map(|path| PathRule::read_only(self.join(path))).collect();
            assert_eq!(own_file_rules(&self.config, Path::new("/elsewhere")), expected);
        }
    }

    #[test]
    fn missing_user_config_is_protected() {
        let home = TestHome::new();
        // Its folder is missing.
        home.assert_protects(&[""]);
        home.create_config_folder();
        home.assert_protects(&[".config/brigade"]);
    }

    #[test]
    fn linked_user_config_is_protected_with_target() {
        let home = TestHome::new();
        home.create_config_folder();
        std::fs::write(home.join("dotfile"), "").unwrap();
        symlink(home.join("dotfile"), &home.config).unwrap();
        home.assert_protects(&[".config/brigade", "dotfile"]);
    }

    #[test]
    fn user_config_below_linked_folder_is_protected() {
        let home = TestHome::new();
        std::fs::create_dir_all(home.join(".config")).unwrap();
        symlink("../dot/brig", home.join(".config/brigade")).unwrap();
        home.create_config_folder();
        // The link and the folder that it leads to.
        home.assert_protects(&[".config", "dot/brig"]);
        symlink("../else/config.toml", home.join("dot/brig.toml")).unwrap();
        let dangling = ResolvedPath::of(&home.join("dot/brig.toml"));
        assert_eq!(
            dangling,
            ResolvedPath { target: home.join("else/config.toml"), links: vec![home.join("dot/brig.toml")] }
        );
    }

    #[test]
    fn file_blocking_user_config_folder_is_protected() {
        let home = TestHome::new();
        std::fs::write(home.join(".config"), "").unwrap();
        home.create_config_folder();
        home.assert_protects(&[".config"]);
    }
}
