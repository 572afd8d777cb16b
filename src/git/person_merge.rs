//! A merge into the person's branch. Git runs no hook and asks nothing; filters and merge drivers run in the sandbox.
//!
//! The result is computed first. Then the files and a new index are written, the new index becomes the index, and the branch moves. An
//! unfinished move is recorded, see [`super::merge_journal`]. [`PersonMerge::settle`] finishes it if the index is the new one, and
//! otherwise undoes it.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::command::{GitCommand, GitOutput, RepoPath, failure, path_of, pathspec};
use super::locks::{REF_LOCK_AGE, end_lock};
use super::merge_journal::{CheckoutMove, MergeJournal};
use super::merge_refusal::MergeRefusal;
use super::merges::{MergedTree, merge_trees};
use super::signing::{identity_variables, reason_of};
use super::team_worktree::{INDEX_PAUSE, INDEX_WAIT, describe_refusal};
use super::written_files::restore_written_files;
use crate::domain::git::branch_name::BranchName;
use crate::ports::RepositoryError;

/// A merge of a branch into the branch of the person's checkout.
pub(super) struct PersonMerge<'a> {
    main: &'a RepoPath,
    team: &'a str,
    /// The branch that is merged.
    branch: &'a BranchName,
    journal: MergeJournal,
}

impl<'a> PersonMerge<'a> {
    /// Prepares a merge of `branch`, the branch of `team`. It excludes other merges into this checkout.
    ///
    /// # Errors
    /// Another merge runs, or the record of merges cannot be used.
    pub(super) fn open(main: &'a RepoPath, team: &'a str, branch: &'a BranchName) -> Result<Self, RepositoryError> {
        match MergeJournal::open(main)? {
            Some(journal) => Ok(Self { main, team, branch, journal }),
            None => Err(MergeRefusal::Running.error(main, branch, team)),
        }
    }

    /// The error of a merge that changes nothing.
    pub(super) fn refused(&self, refusal: &MergeRefusal) -> RepositoryError {
        refusal.error(self.main, self.branch, self.team)
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

    /// The commit that the person's branch `into` gets: `tip`, or a new merge of it into `before`. `content` is a commit with the content of
    /// `before`; see [`RepoPath::joined_with`].
    ///
    /// # Errors
    /// The branches conflict, or the person's settings or git refuse the merge.
    pub(super) fn create_commit(
        &self,
        into: &BranchName,
        [before, content]: [&str; 2],
        tip: &str,
    ) -> Result<String, RepositoryError> {
        let (main, branch) = (self.main, self.branch);
        let setting = main.git(["config", "--get", "merge.ff"]).run()?.line().to_ascii_lowercase();
        let signs = main.settings.signs_commits()?;
        // A fast-forward would make commits that the person did not sign those of the person's branch without a word.
        let may_forward = match setting.as_str() {
            "only" => true,
            "false" | "no" | "off" | "0" => false,
            _ => !signs || main.unsigned_commits(before, tip)? == 0,
        };
        if may_forward && main.is_ancestor(before, tip)? {
            return Ok(tip.to_owned());
        }
        if setting == "only" {
            return Err(self.refused(&MergeRefusal::NotFastForward));
        }
        let tree = match merge_trees(main, content, tip)? {
            MergedTree::Clean(tree) => tree,
            MergedTree::Conflict { files, .. } => {
                return Err(self.refused(&MergeRefusal::Conflict { into: into.clone(), files }));
            }
            MergedTree::Failed(reason) => return Err(self.refused(&MergeRefusal::Git(reason))),
        };
        let names = format!("{tip}\t\tbranch '{branch}' of .\n");
        let message = main.git(["fmt-merge-msg"]).input(names).ok()?.out;
        let commit = self.commit([&tree, before, tip], message.clone())?;
        if signs { self.sign(&tree, message, [before, tip]) } else { Ok(commit) }
    }

    fn commit(&self, [tree, before, tip]: [&str; 3], message: Vec<u8>) -> Result<String, RepositoryError> {
        let call = self.main.git(["commit-tree", tree, "-p", before, "-p", tip, "-F", "-"]);
        let commit = call.input(message).variables(identity_variables()).run()?;
        if commit.code == 0 {
            return Ok(commit.line());
        }
        let error = failure("create the merge commit".to_owned(), &commit.err);
        if error.is_general() {
            return Err(error);
        }
        for identity_of in ["GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"] {
            let known = self.main.git(["var", identity_of]).variables(identity_variables()).run()?;
            if known.code != 0 {
                return Err(self.refused(&MergeRefusal::NoIdentity(last_message(&known.err))));
            }
        }
        Err(self.refused(&MergeRefusal::Git(last_message(&commit.err))))
    }

    /// Creates the merge with the person's signature. The same merge without one could be created.
    fn sign(&self, tree: &str, message: Vec<u8>, parents: [&str; 2]) -> Result<String, RepositoryError> {
        let reason = match self.main.signed_commit_tree(tree, message, &parents) {
            Ok(output) if output.code == 0 => return Ok(output.line()),
            Ok(output) => reason_of(&output),
            Err(error) if error.is_general() => return Err(error),
            Err(error) => error.to_string(),
        };
        Err(self.refused(&MergeRefusal::NotSigned(reason)))
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
        Err(self.refused(&MergeRefusal::Moved))
    }

    /// Locks the index, checks that the move overwrites no change of the person, and records it.
    fn prepare(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let overwritten = overwritten_files(self.main, change)?;
        if !overwritten.is_empty() {
            return Err(self.refused(&MergeRefusal::FilesInTheWay(overwritten.into_iter().collect())));
        }
        self.lock_index()?;
        self.wait_for_locks_of_branch(change)?;
        self.journal.copy_index()?;
        let unmerged = self.index_call(["ls-files", "--unmerged", "-z"])?;
        if !unmerged.out.is_empty() {
            return Err(self.refused(&MergeRefusal::UnmergedIndex(unmerged_files(&unmerged))));
        }
        let changed = self.changed_files(change)?;
        if !changed.is_empty() {
            return Err(self.refused(&MergeRefusal::UncommittedChanges(changed)));
        }
        let refused = self.read_tree(change, &["--dry-run"])?;
        if refused.code != 0 {
            return Err(self.refused(&MergeRefusal::Overwrites(describe_refusal(&refused.err))));
        }
        self.journal.record(change)
    }

    fn lock_index(&self) -> Result<(), RepositoryError> {
        let started_at = Instant::now();
        while let Some(lock) = self.journal.lock_index()? {
            self.wait_for(&lock, started_at)?;
        }
        Ok(())
    }

    /// Waits until no other program has locked the branch. Git would find out after it has written the files.
    fn wait_for_locks_of_branch(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let started_at = Instant::now();
        for lock in self.locks_of_branch(change) {
            while lock.symlink_metadata().is_ok() {
                self.wait_for(&lock, started_at)?;
            }
        }
        Ok(())
    }

    /// Pauses while another program holds a lock. For example, an editor that runs `git status` holds it for an instant.
    fn wait_for(&self, lock: &Path, started_at: Instant) -> Result<(), RepositoryError> {
        if started_at.elapsed() > INDEX_WAIT {
            return Err(self.refused(&MergeRefusal::Locked(lock.to_owned())));
        }
        thread::sleep(INDEX_PAUSE);
        Ok(())
    }

    /// The locks of the refs that a move changes.
    fn locks_of_branch(&self, change: &CheckoutMove) -> [PathBuf; 3] {
        let branch = self.main.common_dir.join(format!("{}.lock", change.branch().full()));
        [branch, self.main.git_dir.join("HEAD.lock"), self.main.git_dir.join("ORIG_HEAD.lock")]
    }

    /// Checks that git can read the index. Many other calls read it too, and would fail with another text.
    ///
    /// # Errors
    /// Git cannot read it.
    pub(super) fn check_index(&self) -> Result<(), RepositoryError> {
        self.read_index(self.main.git(["ls-files", "--unmerged", "-z"])).map(drop)
    }

    /// Runs git with the new index.
    fn index_call<'s>(&self, arguments: impl IntoIterator<Item = &'s str>) -> Result<GitOutput, RepositoryError> {
        self.read_index(self.main.git(arguments).variables(self.journal.new_index()))
    }

    /// Runs a call that reads an index.
    fn read_index(&self, call: GitCommand<'_>) -> Result<GitOutput, RepositoryError> {
        let output = call.run()?;
        // 1 means that files have changes.
        if output.code <= 1 {
            return Ok(output);
        }
        let error = failure("read your index".to_owned(), &output.err);
        if error.is_general() {
            return Err(error);
        }
        let (index, reason) = (self.main.git_dir.join("index"), last_message(&output.err));
        Err(self.refused(&MergeRefusal::UnreadableIndex { index, reason }))
    }

    /// Runs git to write the files and the new index.
    fn read_tree(&self, change: &CheckoutMove, options: &[&str]) -> Result<GitOutput, RepositoryError> {
        let start = ["read-tree", "-m", "-u"].iter().chain(options).copied();
        let call = self.main.git(start.chain([change.before.as_str(), &change.after]));
        call.variables(self.journal.new_index()).run()
    }

    /// The tracked files that the move writes and that have changes, in the index or not.
    fn changed_files(&self, change: &CheckoutMove) -> Result<Vec<PathBuf>, RepositoryError> {
        let CheckoutMove { before, after, .. } = change;
        let options = ["diff-tree", "-r", "-z", "--name-only", "--no-renames"];
        let moved = self.main.git(options.iter().copied().chain([before.as_str(), after])).ok()?;
        let moved: HashSet<&[u8]> = moved.fields().collect();
        self.index_call(["update-index", "-q", "--refresh"])?;
        let options = ["diff-index", "-z", "--name-only", "--no-renames", "--ignore-submodules=all", before];
        let changed = self.index_call(options)?;
        Ok(changed.fields().filter(|path| moved.contains(path)).map(path_of).collect())
    }

    fn write_files(&self, change: &CheckoutMove) -> Result<(), RepositoryError> {
        let output = self.read_tree(change, &[])?;
        if output.code == 0 {
            return self.journal.publish_index();
        }
        let error = failure("write the files".to_owned(), &output.err);
        if error.is_general() {
            return Err(error);
        }
        Err(self.refused(&MergeRefusal::NotWritten(describe_refusal(&output.err))))
    }

    /// Ends a recorded move: it is finished if the index is the new one, and undone otherwise. Returns true if it is finished. If the
    /// person has moved the branch or switched to another one, only the record is cleared.
    ///
    /// # Errors
    /// Git cannot do so. The record stays, and the next call tries again.
    fn settle(&self, change: &CheckoutMove) -> Result<bool, RepositoryError> {
        self.try_to_settle(change).map_err(|error| self.refused(&MergeRefusal::Unsettled(error.to_string())))
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
        if self.main.checked_out_branch()? != Some(change.branch()) {
            return Ok(());
        }
        for lock in self.locks_of_branch(change) {
            end_lock(&lock, REF_LOCK_AGE);
        }
        Ok(())
    }
}

/// The last line of git's messages.
fn last_message(error_text: &str) -> String {
    let line = error_text.trim().lines().last().unwrap_or_default();
    line.trim_start_matches("fatal: ").to_owned()
}

/// The files in the output of `git ls-files --unmerged`: mode, object, stage, a tab and the path.
fn unmerged_files(output: &GitOutput) -> Vec<PathBuf> {
    let path = |field: &[u8]| field.splitn(2, |byte| *byte == b'\t').nth(1).map(path_of);
    output.fields().filter_map(path).collect::<BTreeSet<_>>().into_iter().collect()
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
