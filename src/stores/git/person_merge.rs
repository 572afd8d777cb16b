//! A merge into the person's branch. Git runs no hook and asks nothing; filters and merge drivers run in the sandbox.
//!
//! The result is computed first. Then the files and a new index are written, the new index becomes the index, and the branch moves. An
//! unfinished move is recorded, see [`super::merge_journal`]. [`PersonMerge::settle`] finishes it if the index is the new one, and
//! otherwise undoes it.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::command::{RepoPath, failure, path_of, pathspec};
use super::commits::list_files;
use super::locks::{REF_LOCK_AGE, end_lock};
use super::merge_journal::{CheckoutMove, MergeJournal};
use super::merges::{MergedTree, merge_trees};
use super::team_worktree::{INDEX_PAUSE, INDEX_WAIT, describe_refusal};
use super::written_files::restore_written_files;
use crate::domain::branch_name::BranchName;
use crate::ports::RepositoryError;

/// The person's variables for the author and the committer of the merge.
const IDENTITY_VARIABLES: [&str; 5] =
    ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"];

/// A merge of a branch into the branch of the person's checkout.
pub(super) struct PersonMerge<'a> {
    main: &'a RepoPath,
    /// The branch that is merged.
    branch: &'a BranchName,
    journal: MergeJournal,
}

impl<'a> PersonMerge<'a> {
    /// Prepares a merge of `branch`. It excludes other merges into this checkout.
    ///
    /// # Errors
    /// Another merge runs, or the record of merges cannot be used.
    pub(super) fn open(main: &'a RepoPath, branch: &'a BranchName) -> Result<Self, RepositoryError> {
        match MergeJournal::open(main)? {
            Some(journal) => Ok(Self { main, branch, journal }),
            None => {
                let reason = format!("cannot merge {branch}: another `brigade merge` runs in this checkout");
                Err(RepositoryError::unusable_until(reason, "wait until it has ended, then `brigade merge` again"))
            }
        }
    }

    /// The error of a merge that changes nothing.
    pub(super) fn refused(&self, why: impl AsRef<str>, hint: impl Into<String>) -> RepositoryError {
        RepositoryError::unusable_until(format!("cannot merge {}: {}", self.branch, why.as_ref()), hint)
    }

    /// Finishes or undoes the move of a merge that was killed. Returns it if it is finished.
    ///
    /// # Errors
    /// Git cannot finish or undo it; the next call tries again.
    pub(super) fn settle_killed(&self) -> Result<Option<CheckoutMove>, RepositoryError> {
        let Some(killed) = self.journal.unfinished() else {
            self.journal.clear()?;
            return Ok(None);
        };
        self.main.wait_for_orphan_git()?;
        self.end_locks(&killed)?;
        Ok(self.settle(&killed)?.then_some(killed))
    }

    /// The commit that the person's branch `into` gets: `tip`, or a new merge of it into `before`.
    ///
    /// # Errors
    /// The branches conflict, or the person's settings or git refuse the merge.
    pub(super) fn create_commit(&self, into: &BranchName, before: &str, tip: &str) -> Result<String, RepositoryError> {
        let (main, branch) = (self.main, self.branch);
        let name = main.name_in_commands(branch)?;
        let by_hand = || format!("`git merge {name}` shows what git reports");
        let setting = main.git(["config", "--get", "merge.ff"]).run()?.line().to_ascii_lowercase();
        let is_descendant = main.is_ancestor(before, tip)?;
        if is_descendant && !["false", "no", "off", "0"].contains(&setting.as_str()) {
            return Ok(tip.to_owned());
        }
        if setting == "only" {
            let why = "it is not a fast-forward, and your setting merge.ff allows nothing else";
            return Err(self.refused(why, format!("`git -c merge.ff=true merge {name}`")));
        }
        let tree = match merge_trees(main, before, tip)? {
            MergedTree::Clean(tree) => tree,
            MergedTree::Conflict { files, .. } => {
                let why = format!("it conflicts with {into} in {}. Nothing was changed", list_files(&files));
                return Err(self.refused(why, format!("`git merge {name}`, resolve the conflicts, and commit")));
            }
            MergedTree::Failed(reason) => return Err(self.refused(reason, by_hand())),
        };
        let names = format!("{tip}\t\tbranch '{branch}' of .\n");
        let message = main.git(["fmt-merge-msg"]).input(names).ok()?.out;
        let identity = IDENTITY_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let call = main.git(["commit-tree", &tree, "-p", before, "-p", tip, "-F", "-"]);
        let commit = call.input(message).variables(identity).run()?;
        if commit.code == 0 {
            return Ok(commit.line());
        }
        let error = failure("create the merge commit".to_owned(), &commit.err);
        if error.is_general() {
            return Err(error);
        }
        let why = commit.err.trim().lines().last().unwrap_or_default();
        let hint = "if git does not know you: `git config --global user.name NAME`, and user.email";
        Err(self.refused(why.trim_start_matches("fatal: "), hint))
    }

    /// Moves the checkout: its files, its index and its branch. Local changes of other files stay. After a kill, the next
    /// [`Self::settle_killed`] finishes or undoes the move.
    ///
    /// # Errors
    /// Local changes or other files are in the way, or git fails. Then nothing is changed.
    pub(super) fn apply(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        if let Err(error) = self.prepare(change) {
            self.journal.clear()?;
            return Err(error);
        }
        let written = self.write_files(change);
        if self.settle(change)? {
            return Ok(());
        }
        written?;
        let hint = "`git status` shows the files of this merge. Undo them, then `brigade merge` again";
        Err(self.refused("your branch was moved meanwhile", hint))
    }

    /// Locks the index, checks that the move overwrites no change of the person, and records it.
    fn prepare(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let hint = "move the files, then `brigade merge` again";
        let overwritten = overwritten_files(self.main, change)?;
        if !overwritten.is_empty() {
            let files = list_files(&overwritten.into_iter().collect::<Vec<_>>());
            return Err(self.refused(format!("it would overwrite untracked or ignored files: {files}"), hint));
        }
        self.lock_index()?;
        self.journal.copy_index()?;
        let changed = self.changed_files(change)?;
        if !changed.is_empty() {
            let why = format!("it would overwrite uncommitted changes: {}", list_files(&changed));
            return Err(self.refused(why, "commit or `git stash` them, then `brigade merge` again"));
        }
        self.journal.record(change)
    }

    fn lock_index(&self) -> Result<(), RepositoryError> {
        let started_at = Instant::now();
        while let Some(lock) = self.journal.lock_index()? {
            // For example, an editor that runs `git status` holds it for an instant.
            if started_at.elapsed() > INDEX_WAIT {
                let lock = lock.display();
                let why = format!("another program has locked your index ({lock})");
                return Err(self.refused(why, format!("wait until it has ended. If no git runs, `rm {lock}`")));
            }
            thread::sleep(INDEX_PAUSE);
        }
        Ok(())
    }

    /// The tracked files that the move writes and that have changes, in the index or not.
    fn changed_files(&self, change: &CheckoutMove) -> Result<Vec<PathBuf>, RepositoryError> {
        let CheckoutMove { before, after, .. } = change;
        let options = ["diff-tree", "-r", "-z", "--name-only", "--no-renames"];
        let moved = self.main.git(options.iter().copied().chain([before.as_str(), after])).ok()?;
        let moved: HashSet<&[u8]> = moved.fields().collect();
        // It exits with 1 if files have changes.
        let refresh = self.main.git(["update-index", "-q", "--refresh"]).variables(self.journal.new_index()).run()?;
        if refresh.code > 1 {
            return Err(failure("read your index".to_owned(), &refresh.err));
        }
        let options = ["diff-index", "-z", "--name-only", "--no-renames", "--ignore-submodules=all", before];
        let changed = self.main.git(options).variables(self.journal.new_index()).ok()?;
        Ok(changed.fields().filter(|path| moved.contains(path)).map(path_of).collect())
    }

    fn write_files(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let call = self.main.git(["read-tree", "-m", "-u", &change.before, &change.after]);
        let output = call.variables(self.journal.new_index()).run()?;
        if output.code == 0 {
            return self.journal.publish_index();
        }
        let error = failure("write the files".to_owned(), &output.err);
        if error.is_general() {
            return Err(error);
        }
        let hint = "commit, `git stash` or move the files, then `brigade merge` again";
        Err(self.refused(describe_refusal(&output.err), hint))
    }

    /// Ends a recorded move: it is finished if the index is the new one, and undone otherwise. Returns true if it is finished. If the
    /// person has moved the branch or switched to another one, only the record is cleared.
    ///
    /// # Errors
    /// Git cannot do so. The record stays, and the next call tries again.
    fn settle(&self, change: &CheckoutMove) -> Result<bool, RepositoryError> {
        self.try_to_settle(change).map_err(|error| {
            let why = format!("{error}. It is neither finished nor undone");
            self.refused(why, "correct that, then `brigade merge` again, which finishes or undoes it")
        })
    }

    fn try_to_settle(&self, change: &CheckoutMove) -> Result<bool, RepositoryError> {
        let CheckoutMove { before, after, .. } = change;
        let (main, branch) = (self.main, change.branch());
        let is_on_branch = main.checked_out_branch()?.as_ref() == Some(&branch);
        let head = main.head()?;
        let mut is_finished = is_on_branch && head == *after;
        if is_on_branch && head == *before && main.commit(after)?.is_some() && main.is_ancestor(before, after)? {
            is_finished = self.has_new_index(change)?;
            if is_finished {
                let reason = format!("brigade: merge {}", self.branch);
                main.git(["update-ref", "ORIG_HEAD", before]).ok()?;
                main.git(["update-ref", "-m", &reason, &branch.full(), after, before]).ok()?;
            } else {
                restore_written_files(main, after)?;
            }
        }
        self.journal.clear()?;
        Ok(is_finished)
    }

    /// Returns true if the index has the new content of each file that differs.
    fn has_new_index(&self, change: &CheckoutMove) -> Result<bool, RepositoryError> {
        let CheckoutMove { before, after, .. } = change;
        let options = ["--name-only", "-z", "--no-renames"];
        let moved = ["diff-tree", "-r"].into_iter().chain(options).chain([before.as_str(), after]);
        let differing = ["diff-index", "--cached"].into_iter().chain(options).chain([after.as_str()]);
        let (moved, differing) = (self.main.git(moved).ok()?, self.main.git(differing).ok()?);
        let differing: HashSet<&[u8]> = differing.fields().collect();
        Ok(moved.fields().all(|path| !differing.contains(path)))
    }

    /// Removes the locks of refs that a killed `git update-ref` left.
    fn end_locks(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let branch = change.branch();
        if self.main.checked_out_branch()?.as_ref() != Some(&branch) {
            return Ok(());
        }
        let branch = self.main.common_dir.join(format!("{}.lock", branch.full()));
        for lock in [branch, self.main.git_dir.join("HEAD.lock"), self.main.git_dir.join("ORIG_HEAD.lock")] {
            end_lock(&lock, REF_LOCK_AGE);
        }
        Ok(())
    }
}

/// The untracked and ignored files of the person's checkout that the move would overwrite. Git refuses only the untracked ones.
fn overwritten_files(main: &RepoPath, change: &CheckoutMove) -> Result<BTreeSet<PathBuf>, RepositoryError> {
    let options = ["diff-tree", "-r", "-z", "--name-status", "--no-renames"];
    let output = main.git(options.iter().copied().chain([change.before.as_str(), &change.after])).ok()?;
    let fields: Vec<&[u8]> = output.fields().collect();
    let with_status = |wanted: &'static [u8]| {
        let paths = fields.chunks_exact(2).filter(move |pair| pair[0] == wanted);
        paths.map(|pair| path_of(pair[1])).collect::<HashSet<PathBuf>>()
    };
    let (added, deleted) = (with_status(b"A"), with_status(b"D"));
    let mut overwritten = BTreeSet::new();
    for path in &added {
        // A file in place of a folder above is in the way too.
        let metadata_of = |path: &Path| main.work_tree.join(path).symlink_metadata().ok();
        let existing = path.ancestors().find_map(|above| Some((above, metadata_of(above)?)));
        let Some((obstacle, metadata)) = existing.filter(|(above, _)| !deleted.contains(*above)) else { continue };
        if !metadata.is_dir() {
            overwritten.insert(obstacle.to_owned());
        } else if obstacle == path {
            let others = ["ls-files", "-z", "--others", "--"].map(Into::into);
            let found = main.git(others.into_iter().chain([pathspec("", path)])).ok()?;
            overwritten.extend(found.fields().map(path_of));
        }
    }
    Ok(overwritten)
}
