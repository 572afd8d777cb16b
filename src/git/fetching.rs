//! Fetches commits from the places of tasks into the person's repository. Git computes the id of each object that it receives, and checks
//! that none is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use super::branch::is_commit;
use super::command::{RepoPath, text_of};
use super::files::{self, failed};
use crate::domain::git::branch_name::BranchName;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

/// The largest file with refs that is read, in bytes.
const REFS_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Git's name of the last stash. Earlier ones are in its log.
pub(super) const STASH: &str = "refs/stash";

/// A ref of a place with commits that the person's repository lacks.
pub(super) struct UnfetchedRef {
    /// The full name.
    pub name: String,
    pub commit: String,
}

impl UnfetchedRef {
    /// The name as a person knows it.
    pub(super) fn shown(&self) -> String {
        self.branch().map_or_else(|| "a stash".to_owned(), |branch| format!("the branch {branch}"))
    }

    /// Its branch; `None` for a stash.
    pub(super) fn branch(&self) -> Option<BranchName> {
        BranchName::of_ref(&self.name)
    }
}

/// The result of fetching a commit.
#[derive(PartialEq, Eq)]
pub(super) enum Fetch {
    Done,
    /// Git does not take the commit, for this reason. The teammate can fix it.
    Refused(String),
}

impl RepoPath {
    /// Fetches a commit from a place, with objects of Git LFS.
    pub(super) fn fetch_from(&self, at: &RepoPath, commit: &str) -> Result<Fetch, RepositoryError> {
        let fetch = self.fetch_commit(&at.work_tree, commit)?;
        if fetch == Fetch::Done {
            self.copy_lfs_objects(at)?;
        }
        Ok(fetch)
    }

    /// Fetches a commit from another repository. A fetch that fails is repeated once, because one of its processes may have been killed.
    ///
    /// Git's upload-pack is made for repositories of others: it runs no hook and no program that they name; see git(1), SECURITY.
    /// Commands cannot write the settings of a place either. Git checks that new objects are well-formed.
    pub(super) fn fetch_commit(&self, from: &Path, commit: &str) -> Result<Fetch, RepositoryError> {
        let options =
            ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-show-forced-updates"];
        let settings = ["protocol.version=2", "fetch.writeCommitGraph=false", "fetch.fsckObjects=true"];
        let start = settings.iter().flat_map(|setting| ["-c", setting]).chain(["fetch"]).chain(options);
        // Git passes no setting to the other process. Some file systems show all files as those of another user.
        let serve = "--upload-pack=git -c 'safe.directory=*' upload-pack";
        let from = from.as_os_str();
        let arguments: Vec<_> = start.chain([serve]).map(AsRef::as_ref).chain([from, commit.as_ref()]).collect();
        let fetch = || self.git(&arguments).variables([("GIT_ALLOW_PROTOCOL", "file")]).run();
        let mut output = fetch()?;
        if output.code != 0 {
            output = fetch()?;
        }
        if output.code == 0 {
            return Ok(Fetch::Done);
        }
        let error = super::command::failure("fetch the commits of the worktree".to_owned(), &output.err);
        if error.is_general() { Err(error) } else { Ok(Fetch::Refused(error.to_string().replace('\n', "; "))) }
    }

    /// The branches and stashes of a place with commits that `self`, the person's repository, lacks. If the place lacks the commit too,
    /// the branch is one that the person removed.
    pub(super) fn unfetched_refs(&self, at: &RepoPath) -> Result<Vec<UnfetchedRef>, RepositoryError> {
        let refs = refs_with_work(&at.git_dir)?.into_iter().map(|(name, commit)| UnfetchedRef { name, commit });
        let unfetched = self.refs_by_existence(refs.collect(), false)?;
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

/// The branches and stashes of a place, each with its commit; see gitrepository-layout(5). No link is followed: commands may have made one.
fn refs_with_work(git_dir: &Path) -> Result<BTreeSet<(String, String)>, RepositoryError> {
    let read = |name: &str| match reading::read(&git_dir.join(name), AllowedKinds::FilesHere, REFS_BYTES_MAX) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(failed("read", &git_dir.join(name), &error)),
    };
    let mut refs: BTreeMap<String, String> = BTreeMap::new();
    for (commit, name) in read("packed-refs")?.lines().filter_map(|line| line.split_once(' ')) {
        refs.insert(name.to_owned(), commit.to_owned());
    }
    let heads = git_dir.join("refs/heads");
    for file in files::below(&heads).into_iter().chain([git_dir.join(STASH)]) {
        let name = file.strip_prefix(git_dir).map(text_of).unwrap_or_default();
        // A file with another content names another ref, or is damaged.
        if let Some(text) = files::text(&file) {
            refs.insert(name, text.trim_end().to_owned());
        }
    }
    refs.retain(|name, _| name.starts_with("refs/heads/") || name == STASH);
    let mut with_work: BTreeSet<(String, String)> = refs.into_iter().collect();
    if with_work.iter().any(|(name, _)| name == STASH) {
        // Each line has the old and the new commit.
        let log = read(&format!("logs/{STASH}"))?;
        let stashes = log.lines().filter_map(|line| line.split(' ').nth(1));
        with_work.extend(stashes.map(|commit| (STASH.to_owned(), commit.to_owned())));
    }
    with_work.retain(|(_, commit)| is_commit(commit));
    Ok(with_work)
}
