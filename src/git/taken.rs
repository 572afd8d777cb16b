//! Finds the work of a team branch that the person's branch has in another form: after a squash, a rebase or cherry-picks, or by hand.
//!
//! One rule finds it: a merge of the team's commit into some commit of the person changes nothing there. A squash has such a commit, and so
//! has a rebase. Later commits of the person do not matter. Equal patches are no such rule: they ignore line numbers and white space, so
//! the same line in another block would count as the work.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::command::{RepoPath, path_of};
use crate::ports::RepositoryError;

/// The most commits of each side that are compared. Of the person's, these are the newest. If the team branch has more, only its last one
/// is compared.
const COMMITS_MAX: usize = 2_000;
/// The most merges that are tried. One takes about a millisecond.
const MERGES_MAX: usize = 500;
/// The first characters of a line with a commit, among names of files. No name begins like this.
const COMMIT_PREFIX: &str = "//";

/// A commit of the team branch.
struct TeamCommit {
    id: String,
    tree: String,
    parents: Vec<String>,
}

impl RepoPath {
    /// The newest commit of a team branch, which is at `tip`, whose work `head` has in another form. It is `tip` if `head` has all of it.
    /// `None` if there is no such commit, or if one side has no commits of its own.
    ///
    /// # Errors
    /// Git fails.
    pub(super) fn find_taken(&self, tip: &str, head: &str) -> Result<Option<String>, RepositoryError> {
        if !self.has_own_commits_on_both_sides(tip, head)? {
            return Ok(None);
        }
        let base = self.merge_base(tip, head)?;
        let trees = self.git(["rev-parse", &format!("{base}^{{tree}}"), &format!("{tip}^{{tree}}")]).ok()?.line();
        let base_tree = trees.lines().next().filter(|base_tree| trees.lines().nth(1) != Some(base_tree));
        let Some(base_tree) = base_tree else { return Ok(None) };
        let holders = self.possible_holders(&base, tip, head)?;
        if holders.is_empty() {
            return Ok(None);
        }
        if self.first_contained(&[tip], &holders)?.is_some() {
            return Ok(Some(tip.to_owned()));
        }
        let commits = self.team_commits(tip, head)?;
        // The first was tried.
        let earlier = first_parents(&commits, tip).into_iter().skip(1).filter(|commit| commit.tree != base_tree);
        let earlier: Vec<&str> = earlier.map(|commit| commit.id.as_str()).collect();
        Ok(self.first_contained(&earlier, &holders)?.map(str::to_owned))
    }

    /// A commit with the content of `head`, which also descends from `taken`: a merge with it takes only what comes after `taken`.
    pub(super) fn joined_with(&self, head: &str, taken: &str) -> Result<String, RepositoryError> {
        let author = ["Brigade", "joined"].map(str::to_owned);
        self.commit_tree([&format!("{head}^{{tree}}"), "Joined\n"], &[head, taken], author)
    }

    fn has_own_commits_on_both_sides(&self, tip: &str, head: &str) -> Result<bool, RepositoryError> {
        let range = format!("{tip}...{head}");
        let counts = self.git(["rev-list", "--count", "--left-right", &range, "--"]).ok()?.line();
        Ok(counts.split_whitespace().all(|count| count != "0"))
    }

    /// The commits of the team branch that `head` lacks, the newest first. Empty if there are more than [`COMMITS_MAX`].
    fn team_commits(&self, tip: &str, head: &str) -> Result<Vec<TeamCommit>, RepositoryError> {
        let count_max = format!("--max-count={}", COMMITS_MAX + 1);
        let not_head = format!("^{head}");
        let options = ["log", "--topo-order", "--format=%H %T %P", &count_max, tip, &not_head, "--"];
        let output = self.git(options).ok()?.line();
        let parse = |line: &str| {
            let mut ids = line.split(' ').map(str::to_owned);
            Some(TeamCommit { id: ids.next()?, tree: ids.next()?, parents: ids.filter(|id| !id.is_empty()).collect() })
        };
        let commits: Vec<TeamCommit> = output.lines().filter_map(parse).collect();
        Ok(if commits.len() > COMMITS_MAX { Vec::new() } else { commits })
    }

    /// The commits of `head` that the team branch lacks and that changed one of its files, and `head`. Empty if `head` has no own commits.
    fn possible_holders(&self, base: &str, tip: &str, head: &str) -> Result<Vec<String>, RepositoryError> {
        let changed = self.git(["diff-tree", "-r", "-z", "--name-only", "--no-renames", base, tip]).ok()?;
        let changed: HashSet<PathBuf> = changed.fields().map(path_of).collect();
        let count_max = format!("--max-count={COMMITS_MAX}");
        let format = format!("--format={COMMIT_PREFIX}%H");
        let options = ["log", "-z", "--name-only", "--no-renames", "--diff-merges=first-parent", &format, &count_max];
        let output = self.git(options.into_iter().chain([head, &format!("^{tip}"), "--"])).ok()?;
        let mut holders: Vec<String> = Vec::new();
        let mut commit = None;
        for field in output.fields() {
            // A line end comes before the first name.
            let name = field.strip_prefix(b"\n").unwrap_or(field);
            if let Some(id) = name.strip_prefix(COMMIT_PREFIX.as_bytes()) {
                let id = String::from_utf8_lossy(id).into_owned();
                // Files that the person renamed have other names: the last commit counts always.
                if id == head {
                    holders.push(id);
                    commit = None;
                } else {
                    commit = Some(id);
                }
            } else if changed.contains(&path_of(name)) || changed.contains(&path_of(field)) {
                holders.extend(commit.take());
            }
        }
        Ok(holders)
    }

    /// The first of these commits that some holder contains: a merge of it changes nothing there.
    fn first_contained<'a>(&self, commits: &[&'a str], holders: &[String]) -> Result<Option<&'a str>, RepositoryError> {
        let pairs = commits.iter().flat_map(|commit| holders.iter().map(move |holder| (*commit, holder.as_str())));
        let pairs: Vec<_> = pairs.take(MERGES_MAX).collect();
        let trees = self.merged_trees(pairs.iter().map(|(commit, holder)| [*holder, *commit]))?;
        let own = self.trees(holders)?;
        let contained = pairs
            .into_iter()
            .zip(trees)
            .find(|((_, holder), tree)| tree.as_ref().is_some_and(|tree| own.get(*holder) == Some(tree)));
        Ok(contained.map(|((commit, _), _)| commit))
    }

    /// The trees of merges of these pairs; `None` for a conflict. Git 2.38 cannot try many merges at once, and gives none.
    fn merged_trees<'a>(
        &self,
        pairs: impl Iterator<Item = [&'a str; 2]>,
    ) -> Result<Vec<Option<String>>, RepositoryError> {
        let input: String = pairs.map(|[ours, theirs]| format!("{ours} {theirs}\n")).collect();
        if input.is_empty() {
            return Ok(Vec::new());
        }
        let call = self.git(["merge-tree", "--stdin", "-z", "--no-messages", "--name-only"]);
        let output = call.input(input).run()?;
        // For each merge: `1` if it is clean, the tree, the files with conflicts, and an empty field.
        let mut fields = output.out.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let mut trees = Vec::new();
        while let (Some(status), Some(tree)) = (fields.next().filter(|status| !status.is_empty()), fields.next()) {
            trees.push((status == "1").then(|| tree.into_owned()));
            let _ = fields.by_ref().take_while(|field| !field.is_empty()).count();
        }
        Ok(trees)
    }

    fn trees(&self, commits: &[String]) -> Result<HashMap<String, String>, RepositoryError> {
        let input: String = commits.iter().map(|commit| format!("{commit}^{{tree}}\n")).collect();
        let output = self.git(["cat-file", "--batch-check=%(objectname)"]).input(input).ok()?.line();
        Ok(commits.iter().cloned().zip(output.lines().map(str::to_owned)).collect())
    }
}

/// The commits from `tip` on, each the first parent of the one before.
fn first_parents<'a>(commits: &'a [TeamCommit], tip: &str) -> Vec<&'a TeamCommit> {
    let by_id: HashMap<&str, &TeamCommit> = commits.iter().map(|commit| (commit.id.as_str(), commit)).collect();
    let next = |commit: &&'a TeamCommit| by_id.get(commit.parents.first()?.as_str()).copied();
    std::iter::successors(by_id.get(tip).copied(), next).collect()
}
