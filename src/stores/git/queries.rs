//! Questions to git about a checkout: commits, refs, changes, the branch and an unfinished operation. And changes of its refs.

use std::ffi::OsString;
use std::path::PathBuf;

use super::branch::is_commit;
use super::command::{GitOutput, RepoPath, pathspec};
use super::files;
use crate::domain::dropped_lines::{LineChanges, missing_lines};
use crate::ports::RepositoryError;

/// Entries of a checkout's git folder that exist during an unfinished operation, and the name of that operation.
const UNFINISHED_OPERATIONS: [(&str, &str); 5] = [
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("MERGE_HEAD", "merge"),
];

impl RepoPath {
    /// The id of a commit; `None` if there is no such commit or ref.
    pub(super) fn commit(&self, name: &str) -> Result<Option<String>, RepositoryError> {
        let name = format!("{name}^{{commit}}");
        let output = self.git(["rev-parse", "--verify", "--quiet", "--end-of-options", &name]).run()?;
        Ok((output.code == 0).then(|| output.line()))
    }

    /// The commit of a branch; `None` if there is no such branch. It starts no git if the branch has a file of its own, as most have; see
    /// gitrepository-layout(5).
    pub(super) fn branch_commit(&self, branch: &str) -> Result<Option<String>, RepositoryError> {
        let name = format!("refs/heads/{branch}");
        let text = files::text(&self.common_dir.join(&name)).unwrap_or_default();
        let commit = text.trim_end();
        if is_commit(commit) { Ok(Some(commit.to_owned())) } else { self.commit(&name) }
    }

    /// The commit of a ref; `None` if there is no such ref.
    ///
    /// # Errors
    /// The object of the commit is missing, or git fails.
    pub(super) fn commit_of_ref(&self, name: &str) -> Result<Option<String>, RepositoryError> {
        if let Some(commit) = self.commit(name)? {
            return Ok(Some(commit));
        }
        let id = self.git(["rev-parse", "--verify", "--quiet", "--end-of-options", name]).run()?;
        if id.code != 0 {
            return Ok(None);
        }
        let id = id.line();
        let branch = name.trim_start_matches("refs/heads/");
        let reason = format!("cannot read {branch}: the object of its commit {id} is missing or damaged");
        let hint = "`git fetch --refetch` gets it from a remote that has it; `git fsck` lists what is missing";
        Err(RepositoryError::unusable_until(reason, hint))
    }

    /// The id of the checked out commit.
    pub(super) fn head(&self) -> Result<String, RepositoryError> {
        let branch = self.checked_out_branch()?;
        let commit = branch.map_or(Ok(None), |branch| self.branch_commit(&branch))?;
        commit.map_or_else(|| Ok(self.git(["rev-parse", "--verify", "HEAD^{commit}"]).ok()?.line()), Ok)
    }

    pub(super) fn is_ancestor(&self, old: &str, new: &str) -> Result<bool, RepositoryError> {
        self.git(["merge-base", "--is-ancestor", old, new]).exit_as_bool()
    }

    /// The number of commits of HEAD that `target` lacks.
    pub(super) fn commits_beyond(&self, target: &str) -> Result<usize, RepositoryError> {
        let commits = self.git(["rev-list", "--count", "HEAD", &format!("^{target}"), "--"]).ok()?.line();
        Ok(commits.parse().unwrap_or(0))
    }

    /// The existing refs with these names or prefixes, with their commits.
    pub(super) fn refs<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<(String, String)>, RepositoryError> {
        let start = ["for-each-ref", "--format=%(objectname) %(refname)"].into_iter();
        let output = self.git(start.chain(names.iter().map(AsRef::as_ref))).ok()?.line();
        let refs = output.lines().filter_map(|line| line.split_once(' '));
        Ok(refs.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// Creates or moves a ref.
    pub(super) fn set_ref(&self, name: &str, commit: &str) -> Result<(), RepositoryError> {
        self.git(["-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", name, commit]).ok().map(drop)
    }

    /// Deletes refs, those that exist.
    pub(super) fn delete_refs<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Result<(), RepositoryError> {
        let deletions: String = names.into_iter().map(|name| format!("delete {name}\n")).collect();
        if deletions.is_empty() {
            return Ok(());
        }
        self.git(["update-ref", "--no-deref", "--stdin"]).input(deletions).ok().map(drop)
    }

    /// The uncommitted changes, one field each: two letters, a space and the path. Ignored files and nested repositories do not count.
    pub(super) fn changes(&self, options: &[&str]) -> Result<GitOutput, RepositoryError> {
        let start = ["status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"];
        self.git(start.iter().chain(options)).ok()
    }

    /// The checked out branch, without `refs/heads/`.
    pub(super) fn checked_out_branch(&self) -> Result<Option<String>, RepositoryError> {
        // See gitrepository-layout(5). A repository with another ref storage has the invalid branch name `.invalid` in this file.
        let head = files::text(&self.git_dir.join("HEAD")).unwrap_or_default();
        if let Some(branch) = head.trim_end().strip_prefix("ref: refs/heads/").filter(|branch| *branch != ".invalid") {
            return Ok(Some(branch.to_owned()));
        }
        let output = self.git(["symbolic-ref", "--quiet", "HEAD"]).run()?;
        Ok(output.line().strip_prefix("refs/heads/").map(str::to_owned))
    }

    /// The name of the operation that is unfinished here. A merge comes last.
    pub(super) fn unfinished_operation(&self) -> Option<&'static str> {
        let is_unfinished = |(file, _): &(&str, &str)| self.git_dir.join(file).exists();
        UNFINISHED_OPERATIONS.into_iter().find(is_unfinished).map(|(_, operation)| operation)
    }

    /// The commits that an unfinished merge merges.
    pub(super) fn merge_heads(&self) -> Vec<String> {
        let text = files::text(&self.git_dir.join("MERGE_HEAD")).unwrap_or_default();
        text.lines().map(|head| head.trim().to_owned()).collect()
    }

    /// Creates a commit by this author, and moves no ref.
    pub(super) fn commit_tree(
        &self,
        [tree, message]: [&str; 2],
        parents: &[&str],
        author: [String; 2],
    ) -> Result<String, RepositoryError> {
        let parents = parents.iter().flat_map(|parent| ["-p", parent]);
        let call = self.git(["commit-tree", tree].into_iter().chain(parents).chain(["-F", "-"]));
        Ok(call.input(message).variables(identity(author)).ok()?.line())
    }

    /// The merge base of two commits, or the empty tree if they have no common history.
    pub(super) fn merge_base(&self, ours: &str, theirs: &str) -> Result<String, RepositoryError> {
        let base = self.git(["merge-base", ours, theirs]).run()?;
        if base.code == 0 { Ok(base.line()) } else { Ok(self.git(["mktree"]).ok()?.line()) }
    }

    /// The lines of `theirs` that are missing in `merged`, the result of a merge into `ours`.
    pub(super) fn missing(&self, ours: &str, theirs: &str, merged: &str) -> Result<Vec<Vec<u8>>, RepositoryError> {
        let base = self.merge_base(ours, theirs)?;
        let (by_them, by_merge) = (self.diff(&base, theirs)?, self.diff(ours, merged)?);
        if by_them == by_merge {
            return Ok(Vec::new());
        }
        Ok(missing_lines(&by_them, &self.diff(&base, ours)?, &by_merge))
    }

    pub(super) fn diff(&self, from: &str, to: &str) -> Result<LineChanges, RepositoryError> {
        Ok(LineChanges::of_diff(&self.raw_diff(from, to, &[])?))
    }

    /// The diff of these files, or of all. It has no context lines.
    pub(super) fn raw_diff(&self, from: &str, to: &str, files: &[PathBuf]) -> Result<Vec<u8>, RepositoryError> {
        let options = ["diff-tree", "-r", "-p", "-U0", "--text", "--no-renames", "--no-ext-diff", "--no-textconv"];
        let prefixes = ["--no-color", "--src-prefix=a/", "--dst-prefix=b/", from, to, "--"];
        let start = options.into_iter().chain(prefixes).map(OsString::from);
        Ok(self.git(start.chain(files.iter().map(|file| pathspec("", file)))).ok()?.out)
    }
}

/// The variables for commits by this author.
pub(super) fn identity([name, email]: [String; 2]) -> [(&'static str, String); 4] {
    [
        ("GIT_AUTHOR_NAME", name.clone()),
        ("GIT_AUTHOR_EMAIL", email.clone()),
        ("GIT_COMMITTER_NAME", name),
        ("GIT_COMMITTER_EMAIL", email),
    ]
}
