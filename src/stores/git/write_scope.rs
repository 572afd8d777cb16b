//! Path rules for commands in a worktree. They can write only objects, the team's own branches and the worktree's files, so that the target
//! branch moves only by merges. They cannot write what another git would run or follow, the records of merges, or the person's checkout.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::path_of;
use super::worktree_list::POINTER_FILE;
use super::{RepositoryInner, files};
use crate::domain::access::PathRule;
use crate::domain::worktree_name::TASK_BRANCHES;
use crate::ports::CommandPlace;
use crate::stores::file::WORKTREE_LOCK_FILE;

/// The most object folders that are followed. Git itself follows only a few.
const ALTERNATES_MAX: usize = 100;

impl RepositoryInner {
    pub(super) fn boundaries(&self, place: CommandPlace<'_>) -> Vec<PathRule> {
        let common = real(&self.main.common_dir);
        let mut rules: Vec<PathRule> = [&common, &self.main.work_tree].map(PathRule::read_only).into();
        rules.extend(alternates(&common).iter().map(|folder| PathRule::read_only(real(folder))));
        // Otherwise a command could change settings that git uses, and run the programs that they name.
        let included = self.main.settings.included(&self.main).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        });
        rules.extend(included.iter().map(|file| PathRule::read_only(real(file))));
        rules.extend(self.main.settings.user_files().into_iter().map(PathRule::read_only));
        let worktree = match place {
            CommandPlace::Task(worktree) => worktree,
            CommandPlace::Lead => {
                let root = self.branch.team_worktree().root;
                rules.extend([PathRule::read_only(root.join(".git")), PathRule::writable(root)]);
                return rules;
            }
            CommandPlace::NoTask => return rules,
        };
        rules.extend([".agent", ".git"].map(|name| PathRule::read_only(worktree.root.join(name))));
        rules.push(PathRule::hidden(worktree.root.join(WORKTREE_LOCK_FILE)));
        let packs = ["objects/info", "objects/pack"].map(|folder| common.join(folder));
        let branches = common.join("refs/heads").join(TASK_BRANCHES).join(&self.branch.team);
        // Git removes empty folders. A command could not create the team's branch folder, and could replace a pack folder by one of
        // its own.
        for folder in packs.iter().chain([&branches]) {
            if let Err(error) = fs::create_dir_all(folder) {
                tracing::warn!("cannot create {}: {error}", folder.display());
            }
        }
        rules.extend(packs.map(PathRule::read_only));
        rules.extend([common.join("objects"), worktree.root.clone(), branches].map(PathRule::writable));
        if let Some(at) = self.main.repo_path_of(&worktree.root) {
            let git_dir = real(&at.git_dir);
            // These contain the paths of the worktree and of its repository.
            rules.extend([POINTER_FILE, "commondir"].map(|file| PathRule::read_only(git_dir.join(file))));
            rules.push(PathRule::writable(git_dir));
        }
        rules
    }
}

/// The object folders of other repositories that git also reads; see gitrepository-layout(5), objects/info/alternates.
pub(super) fn alternates(common_dir: &Path) -> Vec<PathBuf> {
    let mut folders = vec![common_dir.join("objects")];
    let mut next = 0;
    while next < folders.len().min(ALTERNATES_MAX) {
        let text = files::bytes(&folders[next].join("info/alternates")).unwrap_or_default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#")) {
            // Relative paths are relative to the folder that names them.
            let folder = folders[next].join(unquoted(line));
            if folder.is_dir() && !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        next += 1;
    }
    folders.split_off(1)
}

/// The path without symbolic links, as a rule requires it.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Parses a line, which may be a quoted path.
fn unquoted(line: &[u8]) -> PathBuf {
    let inner = line.strip_prefix(b"\"").and_then(|line| line.strip_suffix(b"\""));
    let Some(inner) = inner else { return path_of(line) };
    let mut bytes = Vec::new();
    let mut rest = inner.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap_or(b'\\') {
                b'n' => b'\n',
                b't' => b'\t',
                digit @ b'0'..=b'3' => {
                    let mut octal =
                        || rest.next_if(|digit| (b'0'..=b'7').contains(digit)).map_or(0, |digit| digit - b'0');
                    let (middle, last) = (octal(), octal());
                    ((digit - b'0') << 6) | (middle << 3) | last
                }
                other => other,
            },
            other => other,
        });
    }
    path_of(&bytes)
}
