//! Locks that a killed git left.
//!
//! Git holds the lock of a ref for milliseconds, and gives up after a second if another git holds it; see git-config(1),
//! core.packedRefsTimeout. So an old one has no holder. Outside of the places of tasks, locks of an index stay: `git commit` holds one while
//! a person writes the message.
//!
//! In the place of a task, all locks are removed that no living process can hold.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::RepositoryInner;
use super::command::RepoPath;
use super::files::{self, failed, remove_file};
use crate::domain::git::worktree_name::TASK_BRANCHES;
use crate::platform::processes;
use crate::ports::RepositoryError;

/// The age above which the lock of a ref is old.
pub(super) const REF_LOCK_AGE: Duration = Duration::from_secs(2);
/// The age above which the lock of all packed refs is old: a git of the person may be packing very many.
const PACKED_LOCK_AGE: Duration = Duration::from_secs(10);
/// The longest wait for the end of a process that may hold a lock in the place of a task.
const HOLDER_WAIT_MAX: Duration = Duration::from_secs(10);
/// The pause between checks whether a lock is gone.
const PAUSE: Duration = Duration::from_millis(20);
/// The lock of the packed refs, and the file that replaces them.
const PACKED_FILES: [&str; 2] = ["packed-refs.lock", "packed-refs.new"];

impl RepositoryInner {
    /// Removes the old locks of the team's refs in the person's repository, and those of the team worktree.
    pub(super) fn remove_old_locks(&self) {
        for (lock, age_max) in self.locks() {
            remove_old(&lock, age_max);
        }
    }

    /// Waits until no lock is left, of the packed refs too, and removes those that become old meanwhile.
    pub(super) fn end_locks(&self) {
        let packed = PACKED_FILES.map(|name| (self.main.common_dir.join(name), PACKED_LOCK_AGE));
        for (lock, age_max) in self.locks().into_iter().chain(packed) {
            end_lock(&lock, age_max);
        }
    }

    /// The locks that a git of the team may have left, each with the age above which it is old.
    fn locks(&self) -> Vec<(PathBuf, Duration)> {
        let refs = self.main.common_dir.join("refs");
        let team = &self.branch.team;
        let mut locks = vec![self.main.common_dir.join(format!("{}.lock", self.branch.target_ref()))];
        for folder in [format!("heads/{TASK_BRANCHES}/{team}"), format!("brigade/{team}")] {
            locks.extend(locks_below(&refs.join(folder)));
        }
        if let Some(at) = self.main.place_at(&self.branch.team_worktree().root) {
            locks.extend(at.locks().into_iter().filter(|lock| !lock.ends_with("index.lock")));
        }
        locks.into_iter().map(|lock| (lock, REF_LOCK_AGE)).collect()
    }
}

/// Waits until a lock is gone, and removes it if it becomes old meanwhile.
pub(super) fn end_lock(lock: &Path, age_max: Duration) {
    let pauses = age_max.as_millis() / PAUSE.as_millis();
    for _ in 0..=pauses {
        if age(lock).is_none_or(|age| age > age_max) {
            break;
        }
        thread::sleep(PAUSE);
    }
    remove_old(lock, age_max);
}

fn remove_old(lock: &Path, age_max: Duration) {
    if age(lock).is_some_and(|age| age > age_max) {
        match remove_file(lock) {
            Ok(()) => tracing::warn!("{} was left by a killed git and is removed", lock.display()),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

impl RepoPath {
    /// The locks in a git folder and of its refs.
    pub(super) fn locks(&self) -> Vec<PathBuf> {
        let in_folder = files::entries(&self.git_dir).filter(|path| is_lock(path));
        in_folder.chain(locks_below(&self.git_dir.join("refs"))).collect()
    }

    /// Removes the locks that a killed git left in the place of a task, and returns their paths. Waits while a living process may hold one.
    ///
    /// # Errors
    /// A process still may hold one after [`HOLDER_WAIT_MAX`].
    pub(super) fn remove_dead_locks(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        let started_at = Instant::now();
        loop {
            let locks = self.locks();
            let Some(first) = locks.first() else { return Ok(Vec::new()) };
            if !self.may_be_held(&locks) {
                locks.iter().try_for_each(|lock| remove_file(lock))?;
                let others = if locks.len() > 1 { format!(" and {} others", locks.len() - 1) } else { String::new() };
                tracing::warn!("{}{others} left by a killed git: removed", first.display());
                return Ok(locks);
            }
            if started_at.elapsed() > HOLDER_WAIT_MAX {
                let reason = format!("a running git holds {}: wait for its end, or end it", first.display());
                return Err(failed("work in", &self.work_tree, &reason));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Returns true if a process may hold one of these locks. A system that lists no processes does not tell: there, only old locks have no
    /// holder.
    fn may_be_held(&self, locks: &[PathBuf]) -> bool {
        let is_new = || locks.iter().any(|lock| age(lock).is_some_and(|age| age <= PACKED_LOCK_AGE));
        processes::is_in_use(locks, "git", &self.work_tree).unwrap_or_else(is_new)
    }
}

fn locks_below(folder: &Path) -> impl Iterator<Item = PathBuf> {
    files::below(folder).into_iter().filter(|path| is_lock(path))
}

fn is_lock(path: &Path) -> bool {
    let is_packed = path.file_name().is_some_and(|name| PACKED_FILES.iter().any(|packed| name == *packed));
    (is_packed || path.extension().is_some_and(|end| end == "lock")) && !path.is_dir()
}

fn age(path: &Path) -> Option<Duration> {
    path.symlink_metadata().ok()?.modified().ok()?.elapsed().ok()
}
