//! Questions to git about a checkout: commits, refs, changes, the branch and an unfinished operation. And changes of its refs.

use std::ffi::OsString;
use std::path::PathBuf;

use super::branch::is_commit;
use super::command::{GitOutput, RepoPath, failure, pathspec};
use super::files;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::{LineChanges, missing_lines};
use crate::domain::text::shorten;
use crate::ports::RepositoryError;

/// The most characters of a warning, which can name a very long path.
const WARNING_CHARS_MAX: usize = 300;
/// Entries of a checkout's git folder that exist during an unfinished operation, and the name of that operation.
const UNFINISHED_OPERATIONS: [(&str, &str); 6] = [
    ("rebase-merge", "rebase"),
    ("rebase-apply/applying", "am"),
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
    pub(super) fn branch_commit(&self, branch: &BranchName) -> Result<Option<String>, RepositoryError> {
        let name = branch.full();
        let text = files::text(&self.common_dir.join(&name)).unwrap_or_default();
        let commit = text.trim_end();
        if is_commit(commit) {
            return Ok(Some(commit.to_owned()));
        }
        // `git rev-parse` would also find a branch or a tag that is itself called `refs/heads/…`.
        let found = self.refs(&[&name])?;
        Ok(found.into_iter().find(|(found, _)| *found == name).map(|(_, commit)| commit))
    }

    /// The commit of a branch, which this repository has; `None` if there is no such branch.
    ///
    /// # Errors
    /// The object of the commit is missing, or git fails.
    pub(super) fn checked_branch_commit(&self, branch: &BranchName) -> Result<Option<String>, RepositoryError> {
        match self.branch_commit(branch)? {
            Some(commit) => self.checked(branch.short(), commit).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the commit if this repository has it.
    fn checked(&self, name: &str, commit: String) -> Result<String, RepositoryError> {
        if self.commit(&commit)?.is_some() {
            return Ok(commit);
        }
        let reason = format!("cannot read {name}: the object of its commit {commit} is missing or damaged");
        let hint = "`git fetch --refetch` gets it from a remote that has it; `git fsck` lists what is missing";
        Err(RepositoryError::unusable_until(reason, hint))
    }

    /// The id of the checked out commit.
    pub(super) fn head(&self) -> Result<String, RepositoryError> {
        self.head_or_none()?.map_or_else(|| Ok(self.git(["rev-parse", "--verify", "HEAD^{commit}"]).ok()?.line()), Ok)
    }

    /// The id of the checked out commit, which this repository has; `None` if the checked out branch has no commit yet.
    ///
    /// # Errors
    /// The object of the commit is missing, or git fails.
    pub(super) fn checked_head(&self) -> Result<Option<String>, RepositoryError> {
        self.head_or_none()?.map(|commit| self.checked("HEAD", commit)).transpose()
    }

    fn head_or_none(&self) -> Result<Option<String>, RepositoryError> {
        match self.checked_out_branch()? {
            Some(branch) => self.branch_commit(&branch),
            None => {
                let detached = self.git(["rev-parse", "--verify", "--quiet", "HEAD"]).run()?;
                Ok((detached.code == 0).then(|| detached.line()))
            }
        }
    }

    /// The name of a branch in a command that is shown to a person or a teammate. It is the full one if git could take the short one for
    /// something else.
    pub(super) fn name_in_commands(&self, branch: &BranchName) -> Result<String, RepositoryError> {
        let full = branch.full();
        let shortest = self.git(["for-each-ref", "--format=%(refname:short)", &full]).ok()?.line();
        let is_clear = shortest == branch.short() && !shortest.starts_with('-');
        Ok(if is_clear { shortest } else { full })
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
    ///
    /// # Errors
    /// Git fails, or cannot read a folder: it would leave its files out.
    pub(super) fn changes(&self, options: &[&str]) -> Result<GitOutput, RepositoryError> {
        let start = ["status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all"];
        let output = self.git(start.iter().chain(options)).ok()?;
        match unread_folder(&output) {
            Some(reason) => Err(failure("list the changes".to_owned(), &reason)),
            None => Ok(output),
        }
    }

    /// The checked out branch.
    pub(super) fn checked_out_branch(&self) -> Result<Option<BranchName>, RepositoryError> {
        // See gitrepository-layout(5). A repository with another ref storage has the invalid branch name `.invalid` in this file.
        let head = files::text(&self.git_dir.join("HEAD")).unwrap_or_default();
        let branch = head.trim_end().strip_prefix("ref: ").and_then(BranchName::of_ref);
        if let Some(branch) = branch.filter(|branch| branch.short() != ".invalid") {
            return Ok(Some(branch));
        }
        let output = self.git(["symbolic-ref", "--quiet", "HEAD"]).run()?;
        Ok(BranchName::of_ref(&output.line()))
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
        match base.code {
            0 => Ok(base.line()),
            1 => Ok(self.git(["mktree"]).ok()?.line()),
            _ => Err(failure("run git merge-base".to_owned(), &base.err)),
        }
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

/// The warning of a `git status` that could not read a folder, shortened.
pub(super) fn unread_folder(status: &GitOutput) -> Option<String> {
    let mut warnings = status.err.lines().filter_map(|line| line.strip_prefix("warning: "));
    let warning = warnings.find(|warning| warning.starts_with("could not open directory "))?;
    Some(shorten(warning, WARNING_CHARS_MAX))
}
