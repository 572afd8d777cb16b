//! Merges. A merge is made without a checkout and checked for lost lines. The caller verifies it in a scratch worktree. A
//! move of the team branch then makes it visible.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::RepositoryInner;
use super::branch::recorded_base;
use super::command::{RepoPath, failure, path_of, pathspec, text_of};
use super::commits::{list_files, message};
use super::git_folder::Head;
use super::index_flags::REPOSITORY_MODE;
use super::places::{Found, is_marked};
use super::resolutions::MergeCheck;
use crate::domain::git::dropped_lines::{DROPS_TRAILER, REPORT_TRAILER, REVIEW_TRAILER, removed_lines};
use crate::domain::git::worktree_name::{WORKTREES_FOLDER, merge_folder};
use crate::ports::{Assignment, Merge, MergeOutcome, MergeRequest, PublishOutcome, RepositoryError, Worktree};

/// The longest part of a conflict's diff that a refusal contains, in bytes.
const CONFLICT_BYTES_MAX: usize = 6 * 1024;
/// The most dropped lines that a refusal lists. It counts the others.
pub(super) const LINES_NAMED_MAX: usize = 20;

impl RepositoryInner {
    pub(super) fn merge(&self, worktree: &Worktree, request: &MergeRequest) -> Result<MergeOutcome, RepositoryError> {
        let tip = request.commit.as_str();
        let _merge_lock = self.merge_lock.lock();
        let [onto, work] = self.merge_inputs(tip)?;
        let base = self.main.merge_base(&onto, tip)?;
        if base == tip {
            return Ok(MergeOutcome::UpToDate(onto));
        }
        let tree = match merge_trees(&self.main, &onto, tip)? {
            MergedTree::Clean(tree) => tree,
            MergedTree::Conflict { tree, files } => {
                return Ok(MergeOutcome::Refused(self.conflict(&onto, &tree, &files)?));
            }
            MergedTree::Failed(reason) => return Ok(MergeOutcome::Refused(reason)),
        };
        let assignment = &worktree.assignment;
        let subject = format!("Merge task {}: {}", assignment.task.0, assignment.subject);
        let mut text = message(&subject, &request.summary, assignment);
        if !request.is_reported {
            text.push_str(&format!("{REPORT_TRAILER}: none\n"));
        }
        if let Some(reviewer) = &request.reviewed_by {
            text.push_str(&format!("{REVIEW_TRAILER}: {reviewer}\n"));
        }
        let commit = self.main.commit_tree([&tree, &text], &[&onto, tip], assignment.signature())?;
        let merge = Merge { onto, commit };
        // If nothing was merged since the branch's base, the merge equals the branch.
        let equals_branch = base == merge.onto && tree == work;
        if let Some(refusal) = self.refusal(worktree, &merge.onto, [&base, tip, &tree], equals_branch)? {
            return Ok(MergeOutcome::Refused(refusal));
        }
        // No branch has the commit until it is verified, and a `git gc` of the person would remove it.
        self.main.set_ref(&self.trial_ref(assignment), &merge.commit)?;
        Ok(MergeOutcome::Created(merge))
    }

    /// The reason why a merge of `tip` with the result `tree` must not be published. `base` is the merge base.
    fn refusal(
        &self,
        worktree: &Worktree,
        onto: &str,
        [base, tip, tree]: [&str; 3],
        equals_branch: bool,
    ) -> Result<Option<String>, RepositoryError> {
        let changed = self.changed_entries(onto, tree)?;
        if let Some(refusal) = self.check_forbidden_changes(&changed)? {
            return Ok(Some(refusal));
        }
        let merges = self.main.git(["rev-list", "--min-parents=2", tip, &format!("^{onto}")]).ok()?.line();
        let mut joined = HashSet::new();
        for commit in merges.lines() {
            match self.main.check_branch_merge(commit, tip)? {
                MergeCheck::Accepted(lines) => joined.extend(lines),
                MergeCheck::Refused(refusal) => return Ok(Some(refusal)),
            }
        }
        if !equals_branch && let Some(refusal) = self.check_dropped_lines(onto, tip, tree)? {
            return Ok(Some(refusal));
        }
        if let Some(refusal) = self.check_undone_merges(worktree, [base, onto, tip, tree], &joined)? {
            return Ok(Some(refusal));
        }
        self.take_linked_objects(worktree, tree, &changed)
    }

    /// The commit that is merged into, and the tree of `tip`.
    fn merge_inputs(&self, tip: &str) -> Result<[String; 2], RepositoryError> {
        let names = [format!("{}^{{commit}}", self.branch.target_commit()?), format!("{tip}^{{tree}}")];
        let output = self.main.git(["rev-parse"].into_iter().chain(names.iter().map(String::as_str))).ok()?.line();
        let ids: Vec<String> = output.lines().map(str::to_owned).collect();
        ids.try_into().map_err(|_| RepositoryError::Failed {
            action: "merge".to_owned(),
            reason: format!("git rev-parse printed no ids for {} and {tip}", self.branch.name),
        })
    }

    /// The entries that a tree changes.
    fn changed_entries(&self, onto: &str, tree: &str) -> Result<Vec<ChangedEntry>, RepositoryError> {
        let output =
            self.main.git(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", onto, tree]).ok()?;
        let mut fields = output.fields();
        let mut changed = Vec::new();
        while let (Some(head), Some(path)) = (fields.next(), fields.next()) {
            let [before, after] = parse_modes(head);
            let object = String::from_utf8_lossy(head).split(' ').nth(3).unwrap_or_default().to_owned();
            changed.push(ChangedEntry { before, after, object, path: path_of(path) });
        }
        Ok(changed)
    }

    /// Refuses changes that no task branch may make: control files, nested repositories, and paths that git cannot check out.
    fn check_forbidden_changes(&self, changed: &[ChangedEntry]) -> Result<Option<String>, RepositoryError> {
        let (mut control_files, mut repositories, mut invalid) = (Vec::new(), Vec::new(), Vec::new());
        for ChangedEntry { before, after, path, .. } in changed {
            let (is_repository, path) = (before != REPOSITORY_MODE && after == REPOSITORY_MODE, path.clone());
            if self.is_control_file(&path) {
                control_files.push(path);
            } else if is_repository {
                repositories.push(path);
            } else if text_of(&path).split('/').any(is_invalid_component) {
                invalid.push(path);
            }
        }
        Ok(if !control_files.is_empty() {
            Some(format!(
                "the task branch changes files that configure the team, and only the person may change them: {}. Undo that with git restore --staged --source={} -- FILE, and commit",
                list_files(&control_files),
                self.main.name_in_commands(&self.branch.name)?
            ))
        } else if !repositories.is_empty() {
            Some(format!(
                "the task branch contains nested repositories: {}. Run git rm --cached -- FOLDER and commit, or remove their .git to keep the files",
                list_files(&repositories)
            ))
        } else if !invalid.is_empty() {
            Some(format!("the task branch has paths that git cannot check out: {}", list_files(&invalid)))
        } else {
            None
        })
    }

    pub(super) fn is_control_file(&self, path: &Path) -> bool {
        is_control_file(&self.control_files, path)
    }

    /// Refuses a branch that removes lines which merges added after its creation, unless a commit gives the reason. A faulty rebase does
    /// this.
    /// `joined` are the lines of resolved conflicts.
    fn check_undone_merges(
        &self,
        worktree: &Worktree,
        [base, onto, tip, tree]: [&str; 4],
        joined: &HashSet<Vec<u8>>,
    ) -> Result<Option<String>, RepositoryError> {
        let Some(branch_base) = recorded_base(&worktree.root) else { return Ok(None) };
        if branch_base == onto || branch_base == base || !self.main.is_ancestor(&branch_base, onto)? {
            return Ok(None);
        }
        let mut removed = removed_lines(&self.main.diff(&branch_base, onto)?, &self.main.diff(onto, tree)?);
        removed.retain(|line| !joined.contains(line));
        let format = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        let range = format!("{onto}..{tip}");
        if removed.is_empty() || !self.main.git(["log", &format, &range]).ok()?.line().trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "the task branch removes lines that others added since it was created:\n{}\nPut them back. If they must go, give the reason in a commit's message: git commit --amend --no-edit --trailer '{DROPS_TRAILER}: WHY'",
            list_lines(&removed)
        )))
    }

    /// Refuses a merge without conflicts that still drops lines. A configured merge driver can do that.
    fn check_dropped_lines(&self, onto: &str, tip: &str, tree: &str) -> Result<Option<String>, RepositoryError> {
        let missing = self.main.missing(onto, tip, tree)?;
        if missing.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "this merge would drop lines, although git reports no conflict:\n{}\nMerge {} into the task branch (git merge {}), and keep all lines of both sides",
            list_lines(&missing),
            self.branch.name,
            self.main.name_in_commands(&self.branch.name)?
        )))
    }

    /// Describes a conflict for the teammate who resolves it.
    fn conflict(&self, onto: &str, tree: &str, files: &[PathBuf]) -> Result<String, RepositoryError> {
        let options = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"];
        let start = options.into_iter().chain([onto, tree, "--"]).map(OsString::from);
        let paths = files.iter().map(|file| pathspec("", file));
        let diff = self.main.git(start.chain(paths)).ok()?.out;
        let excerpt = &diff[..diff.len().min(CONFLICT_BYTES_MAX)];
        let rest = if excerpt.len() < diff.len() { "\n[...]" } else { "" };
        let target = &self.branch.name;
        Ok(format!(
            "the task branch and {target} conflict in {}. Your worktree is committed and no merge is unfinished there. Run git merge {} in it, edit these files so that they keep what both sides added, run git add and git commit --no-edit, and complete the task again.\n{}{rest}",
            list_files(files),
            self.main.name_in_commands(target)?,
            String::from_utf8_lossy(excerpt)
        ))
    }

    /// The place where merges are verified, as no command could change it. Anything else there is moved aside.
    fn find_scratch(&self) -> Result<Option<RepoPath>, RepositoryError> {
        let root = self.main.work_tree.join(merge_folder(&self.branch.team));
        match self.main.find_place(&root) {
            Found::Missing => Ok(None),
            Found::Place(at) if is_marked(&at) => Ok(Some(at)),
            Found::Place(_) | Found::Other(_) => self.main.move_aside(&root).map(|_| None),
        }
    }

    /// Removes the place where merges are verified. A launch begins with a new one.
    pub(super) fn remove_scratch(&self) -> Result<(), RepositoryError> {
        self.find_scratch()?.map_or(Ok(()), |at| self.main.remove_place(&at.work_tree))
    }

    pub(super) fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError> {
        let _merge_lock = self.merge_lock.lock();
        let root = self.main.work_tree.join(merge_folder(&self.branch.team));
        if let Some(at) = self.find_scratch()? {
            if reset_scratch(&at, &merge.commit).is_ok() {
                return Ok(root);
            }
            self.main.remove_place(&root)?;
        }
        self.main.make_place(&root, Head::Detached, &merge.commit, |_| Ok(()))?;
        Ok(root)
    }

    pub(super) fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<PublishOutcome, RepositoryError> {
        let _merge_lock = self.merge_lock.lock();
        if let Err(error) = self.branch.merge_commits_of_person() {
            // The launch reports it.
            tracing::warn!("{error}");
        }
        // The next launch ignores it, unless the branch moves to the commit.
        self.main.set_ref(&self.merged_ref(assignment), &merge.commit)?;
        let reason = format!("brigade: merge {}", assignment.identifier());
        self.branch.move_target(&merge.onto, &merge.commit, &reason)
    }
}

/// An entry of a tree that a merge changes.
pub(super) struct ChangedEntry {
    /// The mode before.
    before: String,
    /// The mode afterwards.
    pub(super) after: String,
    /// The object afterwards; for a submodule its commit.
    pub(super) object: String,
    pub(super) path: PathBuf,
}

/// The result of a merge of two commits.
pub(super) enum MergedTree {
    /// The merged tree.
    Clean(String),
    /// The tree has conflict markers in these files.
    Conflict { tree: String, files: Vec<PathBuf> },
    /// Git cannot merge them, for this reason.
    Failed(String),
}

/// Merges two commits without a checkout.
pub(super) fn merge_trees(main: &RepoPath, ours: &str, theirs: &str) -> Result<MergedTree, RepositoryError> {
    merge_trees_with(main, "merge.conflictStyle=merge", ours, theirs)
}

/// Merges two commits as [`merge_trees`], with a setting of git.
pub(super) fn merge_trees_with(
    main: &RepoPath,
    setting: &str,
    ours: &str,
    theirs: &str,
) -> Result<MergedTree, RepositoryError> {
    let output = main.git(["-c", setting, "merge-tree", "--write-tree", "--name-only", "-z", ours, theirs]).run()?;
    // The tree, the files with conflicts, an empty field, and then messages.
    let mut fields = output.out.split(|byte| *byte == 0).take_while(|field| !field.is_empty());
    let tree = String::from_utf8_lossy(fields.next().unwrap_or_default()).trim().to_owned();
    match output.code {
        0 => Ok(MergedTree::Clean(tree)),
        1 => Ok(MergedTree::Conflict { tree, files: fields.map(path_of).collect() }),
        _ => {
            let error = failure("merge".to_owned(), &output.err);
            if error.is_general() {
                return Err(error);
            }
            Ok(MergedTree::Failed(format!("git cannot merge the branch: {}", output.err.trim())))
        }
    }
}

/// The old and new modes in a line of raw output, `:<mode> <mode> <object> <object> <kind>`; see git-diff-tree(1).
pub(super) fn parse_modes(head: &[u8]) -> [String; 2] {
    let text = String::from_utf8_lossy(head);
    let mut modes = text.trim_start_matches(':').split(' ').map(str::to_owned);
    [modes.next().unwrap_or_default(), modes.next().unwrap_or_default()]
}

/// Resets the scratch worktree to a commit. Ignored files stay, so that builds are incremental.
fn reset_scratch(at: &RepoPath, commit: &str) -> Result<(), RepositoryError> {
    at.git(["checkout", "--quiet", "--force", "--detach", commit]).ok()?;
    // The second `-f` also removes nested repositories.
    at.git(["clean", "-f", "-f", "-d", "-q"]).ok().map(drop)
}

/// Returns true if git refuses to check out this name: it would be a git folder, or a path outside the worktree.
pub(super) fn is_invalid_component(name: &str) -> bool {
    // Some file systems ignore these characters.
    let is_significant = |c: &char| !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let plain: String = name.chars().filter(is_significant).collect::<String>().to_ascii_lowercase();
    let plain = plain.trim_end_matches([' ', '.']);
    [".", ".."].contains(&name) || [".git", "git~1"].contains(&plain) || plain.starts_with(".git:")
}

fn list_lines(lines: &[Vec<u8>]) -> String {
    let more = lines.len().saturating_sub(LINES_NAMED_MAX);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    let excerpt: Vec<String> =
        lines.iter().take(LINES_NAMED_MAX).map(|line| format!("  {}", String::from_utf8_lossy(line))).collect();
    format!("{}{more}", excerpt.join("\n"))
}

/// Returns true if a path is that of one of these control files, of one of Brigade's folders, or below it.
pub(super) fn is_control_file(control_files: &[PathBuf], path: &Path) -> bool {
    // On some systems names that differ only in case are the same file.
    let path = PathBuf::from(path.as_os_str().to_ascii_lowercase());
    let brigade_folders = [".agent", WORKTREES_FOLDER].map(Path::new);
    let mut control_files = control_files.iter().map(PathBuf::as_path).chain(brigade_folders);
    control_files.any(|control_file| path.starts_with(control_file.as_os_str().to_ascii_lowercase()))
}
