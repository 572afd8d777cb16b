//! Fetches commits from the places of tasks into the person's repository. Git computes the id of each object that it receives, and checks
//! that none is missing.

use super::command::RepoPath;
use crate::ports::RepositoryError;

/// The refs of a place whose commits are work.
const REFS: [&str; 2] = ["refs/heads", "refs/stash"];

/// A ref of a place with commits that the person's repository lacks.
pub(super) struct UnfetchedRef {
    /// The full name.
    pub name: String,
    pub commit: String,
}

impl RepoPath {
    /// Fetches a commit from a place, with objects of Git LFS. The inner error is the reason why git does not take it, for the teammate.
    ///
    /// Git's upload-pack is made for repositories of others: it runs no hook and no program that they name; see git(1), SECURITY.
    /// Commands cannot write the settings of a place either.
    pub(super) fn fetch_from(&self, at: &RepoPath, commit: &str) -> Result<Result<(), String>, RepositoryError> {
        let options =
            ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-show-forced-updates"];
        let start =
            ["-c", "protocol.version=2", "-c", "fetch.writeCommitGraph=false", "fetch"].into_iter().chain(options);
        let path = at.work_tree.as_os_str();
        let call = self.git(start.map(AsRef::as_ref).chain([path, commit.as_ref()]));
        let output = call.variables([("GIT_ALLOW_PROTOCOL", "file")]).run()?;
        if output.code == 0 {
            return self.copy_lfs_objects(at).map(Ok);
        }
        let error = super::command::failure("fetch the commits of the worktree".to_owned(), &output.err);
        if error.is_general() { Err(error) } else { Ok(Err(error.to_string().replace('\n', "; "))) }
    }

    /// The refs of a place with commits that `self`, the person's repository, lacks.
    pub(super) fn unfetched_refs(&self, at: &RepoPath) -> Result<Vec<UnfetchedRef>, RepositoryError> {
        let all = at.refs(&REFS)?;
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let input: String = all.iter().map(|(_, commit)| format!("{commit}\n")).collect();
        let known = self.git(["cat-file", "--batch-check=%(objecttype)"]).input(input).ok()?.line();
        let is_missing = |line: &str| line.ends_with("missing");
        let refs = all.into_iter().zip(known.lines()).filter(|(_, line)| is_missing(line));
        Ok(refs.map(|((name, commit), _)| UnfetchedRef { name, commit }).collect())
    }
}
