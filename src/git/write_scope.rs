//! Path rules for commands. They write only the place of their task, with its git folder. So the team branch moves only by merges, and
//! Brigade's git finds nothing of theirs outside of a place.

use std::path::{Path, PathBuf};

use super::RepositoryInner;
use super::git_folder::{COMMON_FILE, alternates};
use super::places::AGENT_FOLDER;
use crate::domain::agent::access::PathRule;
use crate::ports::CommandPlace;
use crate::stores::file::WORKTREE_LOCK_FILE;

impl RepositoryInner {
    pub(super) fn boundaries(&self, place: CommandPlace<'_>) -> Vec<PathRule> {
        let common = real(&self.main.common_dir);
        let mut rules: Vec<PathRule> = [&common, &self.main.work_tree].map(PathRule::read_only).into();
        rules.extend(alternates(&common).iter().map(|folder| PathRule::read_only(real(folder))));
        // Otherwise a command could change settings that git uses, and run the programs that they name.
        let included = self.main.settings.included().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        });
        rules.extend(included.iter().map(|file| PathRule::read_only(real(file))));
        rules.extend(self.main.settings.user_files().into_iter().map(PathRule::read_only));
        match place {
            CommandPlace::Task(worktree) => rules.extend(task_rules(&worktree.root)),
            CommandPlace::Lead => {
                let root = self.branch.team_worktree().root;
                let own = [".git", AGENT_FOLDER].map(|name| PathRule::read_only(root.join(name)));
                rules.extend(own.into_iter().chain([PathRule::writable(root)]));
            }
            CommandPlace::NoTask => {}
        }
        rules
    }
}

/// The rules of a task's place. Settings in it would be followed by the person's git too.
pub(super) fn task_rules(root: &Path) -> Vec<PathRule> {
    let git_dir = root.join(".git");
    vec![
        PathRule::writable(root),
        PathRule::read_only(git_dir.join("config")),
        PathRule::read_only(git_dir.join(COMMON_FILE)),
        PathRule::read_only(root.join(AGENT_FOLDER)),
        PathRule::hidden(root.join(WORKTREE_LOCK_FILE)),
    ]
}

/// The path without symbolic links, as a rule requires it.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
