//! Sockets of terminal multiplexers. Through one, a command could type into the user's terminal outside the sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::protected_paths::is_home_or_above;
use crate::domain::agent::access::PathRule;

/// The parent of the folders of tmux and screen. They do not use `TMPDIR`.
const TEMPORARY_FOLDER: &str = "/tmp";

/// Rules that hide the sockets of tmux and screen that exist at launch. See tmux(1), screen(1).
pub(super) fn rules(workspace: &Path) -> Vec<PathRule> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let tmux_folder = PathBuf::from(variable("TMUX_TMPDIR").unwrap_or_else(|| TEMPORARY_FOLDER.into()));
    let mut folders = vec![tmux_folder.join(format!("tmux-{}", geteuid().as_raw()))];
    folders.extend(variable("SCREENDIR").map(PathBuf::from));
    folders.extend(variable("HOME").map(|home| PathBuf::from(home).join(".screen")));
    let temporary = Path::new(TEMPORARY_FOLDER);
    for parent in [PathBuf::from("/run/screen"), temporary.join("screens"), temporary.join("uscreens")] {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        folders.extend(entries.map(|entry| entry.path()));
    }
    let is_own_folder = |folder: &PathBuf| is_own(folder, std::fs::FileType::is_dir);
    let is_needed = |folder: &PathBuf| is_home_or_above(folder) || workspace.starts_with(folder);
    let folders =
        folders.iter().filter_map(|folder| real(folder)).filter(|folder| is_own_folder(folder) && !is_needed(folder));
    let socket = variable("TMUX").and_then(socket_of_tmux).as_deref().and_then(real);
    let socket = socket.filter(|socket| is_own(socket, FileTypeExt::is_socket));
    folders.chain(socket).map(PathRule::hidden).collect()
}

/// The socket in `TMUX`. Its value is the socket's path, a process id and a session, separated by commas.
fn socket_of_tmux(value: OsString) -> Option<PathBuf> {
    let value = value.into_vec();
    let end = value.iter().enumerate().rev().filter(|(_, byte)| **byte == b',').nth(1).map(|(index, _)| index)?;
    Some(OsString::from_vec(value[..end].to_vec()).into())
}

/// The path without symbolic links in its parent folders. The last part is not resolved.
fn real(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// Returns true if the path has the right kind and belongs to this user. Another user could put a link into a shared folder.
fn is_own(path: &Path, is_kind: impl Fn(&std::fs::FileType) -> bool) -> bool {
    let metadata = path.symlink_metadata().ok();
    metadata.is_some_and(|metadata| is_kind(&metadata.file_type()) && metadata.uid() == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_tmux_may_have_commas() {
        let socket = |value: &str| socket_of_tmux(value.into());
        assert_eq!(socket("/tmp/tmux-0/a,b,123,0"), Some(PathBuf::from("/tmp/tmux-0/a,b")));
        assert_eq!(socket("odd"), None);
    }
}
