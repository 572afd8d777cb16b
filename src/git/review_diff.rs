//! The changes of a task for people: the diff to review, the diff of a worktree, and the reasons for removed lines.

use std::path::Path;

use super::branch::is_commit;
use super::command::{RepoPath, path_of};
use super::opening::{find_checkout, open_checked};
use super::{DriverOptions, GitRepository};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::DROPS_TRAILER;
use crate::ports::RepositoryError;

/// Options of a diff that is read by a person.
const DIFF_OPTIONS: [&str; 4] = ["--find-renames", "--no-ext-diff", "--no-textconv", "--no-color"];

/// The options of git for a summary of this width, or for a patch if it is `None`.
fn format_options(summary_columns: Option<usize>) -> [String; 2] {
    match summary_columns {
        Some(columns) => [format!("--stat={columns}"), "--summary".to_owned()],
        None => ["--patch", "--submodule=short"].map(str::to_owned),
    }
}

fn failed(reason: &str) -> RepositoryError {
    RepositoryError::Failed { action: "show the diff".to_owned(), reason: reason.to_owned() }
}

/// The person's checkout, and the worktree of a task in it.
fn find_worktree(
    workspace: &Path,
    worktree: &str,
    drivers: DriverOptions,
) -> Result<(RepoPath, RepoPath), RepositoryError> {
    let main = find_checkout(workspace, drivers)?;
    let at = main.place_at(&workspace.join(worktree)).map(RepoPath::confined);
    let at = at.ok_or_else(|| failed(&format!("{worktree} has no git folder of its own")))?;
    Ok((main, at))
}

impl RepoPath {
    /// The commit of a branch, or the checked out one.
    fn commit_of(&self, target: Option<&BranchName>) -> Result<String, RepositoryError> {
        let Some(branch) = target else { return self.head() };
        self.checked_branch_commit(branch)?.ok_or_else(|| failed(&format!("there is no branch {branch}")))
    }

    /// The diff between two commits.
    fn commit_diff(&self, from: &str, to: &str, summary_columns: Option<usize>) -> Result<String, RepositoryError> {
        self.printed_diff(&["diff-tree", "-r"], &[from, to], summary_columns)
    }

    /// The output of a diff command without colours: a summary of this width, or a patch.
    fn printed_diff(
        &self,
        command: &[&str],
        commits: &[&str],
        summary_columns: Option<usize>,
    ) -> Result<String, RepositoryError> {
        let format = format_options(summary_columns);
        let options = DIFF_OPTIONS.iter().copied().chain(format.iter().map(String::as_str));
        let diff = self.git(command.iter().copied().chain(options).chain(commits.iter().copied())).ok()?;
        Ok(String::from_utf8_lossy(&diff.out).into_owned())
    }
}

impl GitRepository {
    /// Returns the diff from the point where the work on `commit` began, up to `commit`, as git prints it without colours. Blocks.
    ///
    /// `target` is the branch that merges go into; `None` stands for the person's commit. With `summary_columns` the result is a summary
    /// of that width: the changed lines per file.
    ///
    /// # Errors
    /// The workspace is not a repository that teams can use, `commit` is not an id of a commit in it, or git fails.
    pub fn review_diff(
        workspace: &Path,
        target: Option<&BranchName>,
        commit: &str,
        summary_columns: Option<usize>,
    ) -> Result<String, RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        if !is_commit(commit) {
            return Err(failed("the review names no commit"));
        }
        if main.commit(commit)?.is_none() {
            return Err(failed(&format!("the repository does not have the commit {commit}")));
        }
        let target = &main.commit_of(target)?;
        // After the merge the branch contains the commit: the work began where the merge's first parent was.
        let merges = main.git(["rev-list", "--merges", "--ancestry-path", &format!("{commit}..{target}")]).ok()?.line();
        let onto = match merges.lines().last() {
            Some(merge) if main.is_ancestor(commit, target)? => format!("{merge}^1"),
            _ => target.clone(),
        };
        let base = main.git(["merge-base", &onto, commit]).ok()?.line();
        main.commit_diff(&base, commit, summary_columns)
    }

    /// Returns the diff of a merge into the team branch. `summary_columns` is as for [`GitRepository::review_diff`]. Blocks.
    ///
    /// # Errors
    /// The workspace is not a repository that teams can use, `merge` is not an id of a commit in it, or git fails.
    pub fn merge_diff(
        workspace: &Path,
        merge: &str,
        summary_columns: Option<usize>,
    ) -> Result<String, RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        if !is_commit(merge) {
            return Err(failed("the task names no commit"));
        }
        main.commit_diff(&format!("{merge}^1"), merge, summary_columns)
    }

    /// Returns the diff from the point where the work in a task's worktree began, up to the current content of its tracked
    /// files. `worktree` is relative to the workspace; `target` and `summary_columns` are as for [`GitRepository::review_diff`]. Blocks.
    ///
    /// # Errors
    /// The folder is no worktree of Brigade, or git fails.
    pub fn worktree_diff(
        workspace: &Path,
        worktree: &str,
        target: Option<&BranchName>,
        summary_columns: Option<usize>,
        drivers: DriverOptions,
    ) -> Result<String, RepositoryError> {
        let (main, at) = find_worktree(workspace, worktree, drivers)?;
        let target = main.commit_of(target)?;
        let base = at.git(["merge-base", &target, "HEAD"]).ok()?.line();
        at.printed_diff(&["--no-optional-locks", "diff", "--ignore-submodules=dirty"], &[&base], summary_columns)
    }

    /// Returns the files of a task's worktree that git neither tracks nor ignores. Blocks.
    ///
    /// # Errors
    /// As [`GitRepository::worktree_diff`].
    pub fn untracked_files(
        workspace: &Path,
        worktree: &str,
        drivers: DriverOptions,
    ) -> Result<Vec<String>, RepositoryError> {
        let (_, at) = find_worktree(workspace, worktree, drivers)?;
        let files = at.git(["ls-files", "--others", "--exclude-standard", "-z"]).ok()?;
        Ok(files.fields().map(|path| path_of(path).display().to_string()).collect())
    }

    /// Returns the reasons that the commits of a merge give for removed lines of other tasks. It is empty if `merge` is not a merge
    /// commit. Blocks.
    ///
    /// # Errors
    /// The workspace is not a repository that teams can use, or git fails.
    pub fn dropped_line_reasons(workspace: &Path, merge: &str) -> Result<Vec<String>, RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        if !is_commit(merge) || main.commit(&format!("{merge}^2"))?.is_none() {
            return Ok(Vec::new());
        }
        let format = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        let reasons =
            main.git(["log", "--no-color", "--reverse", &format, &format!("{merge}^1..{merge}")]).ok()?.line();
        Ok(reasons.lines().map(str::trim).filter(|reason| !reason.is_empty()).map(str::to_owned).collect())
    }
}
