//! What must hold of a worktree before git works there outside of any confinement: a teammate's commands write its git folder, and git
//! follows what it finds there. Nobody else's commands reach that folder, and the teammate's own have ended by then.

use std::fs;
use std::path::Path;

use super::run::At;
use super::{Inner, small};

/// The most entries of a worktree's git folder that are looked at.
const ENTRIES_MAX: usize = 10_000;

impl Inner {
    /// Why git is not to work there, for who can mend it.
    pub(super) fn unsound(&self, at: &At) -> Option<String> {
        let mut left = ENTRIES_MAX;
        if let Some(what) = link_in(&at.git_dir, &mut left) {
            return Some(format!("its git folder is not as git made it ({what})"));
        }
        let settings = at.git_dir.join("config.worktree");
        if settings.symlink_metadata().is_ok()
            && small::bytes(&settings)
                .is_none_or(|own| small::bytes(&at.common_dir.join("config.worktree")) != Some(own))
        {
            return Some("it has git settings of its own (config.worktree): remove them".to_owned());
        }
        let agent = at.work_tree.join(".agent");
        if agent.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
            return Some("its .agent is no folder".to_owned());
        }
        None
    }

    /// Why a branch of the team's is not to be used: a ref that stands for another one, or a link, would have that one moved.
    pub(super) fn stands_for_another(&self, branch: &str) -> Option<String> {
        let mut path = self.main.common_dir.join("refs/heads");
        for part in branch.split('/') {
            path.push(part);
            let Ok(metadata) = path.symlink_metadata() else { break };
            let is_commit = || small::bytes(&path).is_some_and(|text| !text.starts_with(b"ref:"));
            if !metadata.is_dir() && !is_commit() {
                return Some(format!("its branch {branch} stands for another one"));
            }
        }
        None
    }
}

/// The first entry that is neither file nor folder, or that there are too many.
fn link_in(folder: &Path, left: &mut usize) -> Option<String> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let Some(fewer) = left.checked_sub(1) else { return Some("it has too many entries".to_owned()) };
        *left = fewer;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                if let Some(what) = link_in(&entry.path(), left) {
                    return Some(what);
                }
            }
            Ok(kind) if kind.is_file() => {}
            _ => return Some(format!("{name} is neither a file nor a folder")),
        }
    }
    None
}
