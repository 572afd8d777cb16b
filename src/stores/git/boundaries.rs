//! What commands in a worktree may write, and what not. All that another git would run, be led astray by, or take for a merge, and what the
//! person's checkout is at, is not theirs: only objects, the team's own branches and what belongs to the worktree can be written, so that the
//! branch merged into moves by merges alone.

use std::fs;
use std::path::{Path, PathBuf};

use super::run::path_of;
use super::worktrees::POINTER_FILE;
use super::{Inner, small};
use crate::ports::Worktree;

/// Folders of objects that are followed; git itself follows a few.
const ALTERNATES_MAX: usize = 100;

impl Inner {
    pub(super) fn boundaries(&self, worktree: Option<&Worktree>) -> Vec<PathBuf> {
        let common = &self.main.common_dir;
        let mut boundaries = vec![common.clone(), self.main.work_tree.clone()];
        boundaries.extend(alternates(common));
        // Else a command could have git take other settings, and run what they name.
        boundaries.extend(self.main.settings.included(&self.main).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        }));
        if let Some(worktree) = worktree {
            boundaries.extend([worktree.root.join(".agent"), worktree.root.join(".git")]);
            let packs = ["objects/info", "objects/pack"].map(|folder| common.join(folder));
            let branches = common.join("refs/heads/brigade").join(&self.team);
            // Git removes folders that are empty; in one that is not there the team's own branches could not be written, and one that a
            // command makes would be its own.
            for folder in packs.iter().chain([&branches]) {
                if let Err(error) = fs::create_dir_all(folder) {
                    tracing::warn!("cannot make {}: {error}", folder.display());
                }
            }
            boundaries.extend(packs);
            let mut writable = vec![common.join("objects"), worktree.root.clone(), branches];
            if let Some(at) = self.at(&worktree.root) {
                // What says whose folder it is, and of which repository.
                boundaries.extend([POINTER_FILE, "commondir"].map(|file| at.git_dir.join(file)));
                writable.push(at.git_dir);
            }
            let is_there = |path: &PathBuf| path.exists();
            boundaries.extend(
                writable.iter().filter(|path| is_there(path)).map(|path| PathBuf::from(format!("!{}", path.display()))),
            );
        }
        boundaries
    }
}

/// The folders of other repositories' objects that git reads as this one's; see gitrepository-layout(5), objects/info/alternates.
pub(super) fn alternates(common_dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![common_dir.join("objects")];
    let mut next = 0;
    while next < found.len().min(ALTERNATES_MAX) {
        let text = small::bytes(&found[next].join("info/alternates")).unwrap_or_default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#")) {
            // Of each, what it says is seen from where it says it.
            let folder = found[next].join(unquoted(line));
            if folder.is_dir() && !found.contains(&folder) {
                found.push(folder);
            }
        }
        next += 1;
    }
    found.split_off(1)
}

/// A path as it stands in a line, where it may be quoted.
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
