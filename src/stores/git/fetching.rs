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
    /// A fetch that fails is repeated once, because one of its processes may have been killed.
    ///
    /// Git's upload-pack is made for repositories of others: it runs no hook and no program that they name; see git(1), SECURITY.
    /// Commands cannot write the settings of a place either.
    pub(super) fn fetch_from(&self, at: &RepoPath, commit: &str) -> Result<Result<(), String>, RepositoryError> {
        let options =
            ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-show-forced-updates"];
        let start =
            ["-c", "protocol.version=2", "-c", "fetch.writeCommitGraph=false", "fetch"].into_iter().chain(options);
        let path = at.work_tree.as_os_str();
        let arguments: Vec<_> = start.map(AsRef::as_ref).chain([path, commit.as_ref()]).collect();
        let fetch = || self.git(&arguments).variables([("GIT_ALLOW_PROTOCOL", "file")]).run();
        let mut output = fetch()?;
        if output.code != 0 {
            output = fetch()?;
        }
        if output.code == 0 {
            return self.copy_lfs_objects(at).map(Ok);
        }
        let error = super::command::failure("fetch the commits of the worktree".to_owned(), &output.err);
        if error.is_general() { Err(error) } else { Ok(Err(error.to_string().replace('\n', "; "))) }
    }

    /// The refs of a place with commits that `self`, the person's repository, lacks. If the place lacks the commit too, the ref is that of
    /// a branch which the person removed.
    pub(super) fn unfetched_refs(&self, at: &RepoPath) -> Result<Vec<UnfetchedRef>, RepositoryError> {
        let refs = at.refs(&REFS)?.into_iter().map(|(name, commit)| UnfetchedRef { name, commit }).collect();
        let unfetched = self.refs_by_existence(refs, false)?;
        at.refs_by_existence(unfetched, true)
    }

    /// The refs of which this repository has the commits, or lacks them.
    fn refs_by_existence(
        &self,
        refs: Vec<UnfetchedRef>,
        is_existing: bool,
    ) -> Result<Vec<UnfetchedRef>, RepositoryError> {
        if refs.is_empty() {
            return Ok(refs);
        }
        let input: String = refs.iter().map(|unfetched| format!("{}\n", unfetched.commit)).collect();
        let kinds = self.git(["cat-file", "--batch-check=%(objecttype)"]).input(input).ok()?.line();
        let of_refs = refs.into_iter().zip(kinds.lines());
        let is_wanted = |kind: &str| kind.ends_with("missing") != is_existing;
        Ok(of_refs.filter_map(|(unfetched, kind)| is_wanted(kind).then_some(unfetched)).collect())
    }
}
