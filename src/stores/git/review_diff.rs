//! The commits of a task as a person reads them: the diff to review, and the reasons for removed lines.

use std::path::Path;

use super::branch::is_commit;
use super::{DriverOptions, GitRepository, find_checkout, open_checked};
use crate::domain::dropped_lines::DROPS_TRAILER;
use crate::ports::RepositoryError;

impl GitRepository {
    /// The diff from the point where the work on `commit` began, up to `commit`, as git prints it without colours. `target`
    /// is the ref of the branch that merges go into. With `summary_columns` the result is a summary of that width: the changed lines per file.
    /// It blocks.
    ///
    /// # Errors
    /// The workspace is not a repository that teams can use, or it has no such commit any more.
    pub fn review_diff(
        workspace: &Path,
        target: &str,
        commit: &str,
        summary_columns: Option<usize>,
    ) -> Result<String, RepositoryError> {
        let main = open_checked(workspace, DriverOptions::default())?;
        let failed =
            |reason: &str| RepositoryError::Failed { action: "show the diff".to_owned(), reason: reason.to_owned() };
        if !is_commit(commit) {
            return Err(failed("the review names no commit"));
        }
        if !main.git(["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")]).exit_as_bool()? {
            return Err(failed(&format!("the repository does not have the commit {commit}")));
        }
        // After the merge the branch contains the commit: the work began where the merge's first parent was.
        let merges = main.git(["rev-list", "--merges", "--ancestry-path", &format!("{commit}..{target}")]).ok()?.line();
        let onto = match merges.lines().last() {
            Some(merge) if main.git(["merge-base", "--is-ancestor", commit, target]).exit_as_bool()? => {
                format!("{merge}^1")
            }
            _ => target.to_owned(),
        };
        let base = main.git(["merge-base", &onto, commit]).ok()?.line();
        let form = match summary_columns {
            Some(columns) => [format!("--stat={columns}"), "--summary".to_owned()],
            None => ["--patch", "--submodule=short"].map(str::to_owned),
        };
        let options = ["diff-tree", "-r", "--find-renames", "--no-ext-diff", "--no-textconv", "--no-color"];
        let diff =
            main.git(options.into_iter().chain(form.iter().map(String::as_str)).chain([base.as_str(), commit])).ok()?;
        Ok(String::from_utf8_lossy(&diff.out).into_owned())
    }
    /// The reasons that the commits of a merge give for lines of others that they remove. It blocks.
    ///
    /// # Errors
    /// The workspace is not a repository that teams can use, or git fails.
    pub fn dropped_line_reasons(workspace: &Path, merge: &str) -> Result<Vec<String>, RepositoryError> {
        let main = find_checkout(workspace, DriverOptions::default())?;
        let has_parents =
            is_commit(merge) && main.git(["rev-parse", "--verify", "--quiet", &format!("{merge}^2")]).exit_as_bool()?;
        if !has_parents {
            return Ok(Vec::new());
        }
        let format = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        let reasons =
            main.git(["log", "--no-color", "--reverse", &format, &format!("{merge}^1..{merge}")]).ok()?.line();
        Ok(reasons.lines().map(str::trim).filter(|reason| !reason.is_empty()).map(str::to_owned).collect())
    }
}
