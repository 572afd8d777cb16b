//! Merges. A merge is made without a checkout and checked for lost lines. The caller verifies it in a scratch worktree. One
//! transaction of refs then makes it visible.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::command::{RepoPath, failure, path_of, pathspec, text_of};
use super::commits::{list_files, message};
use super::index_flags::REPOSITORY_MODE;
use super::own_worktrees::is_marked;
use super::{RepositoryInner, checked_out_branch, identity};
use crate::domain::dropped_lines::{DROPS_TRAILER, LineChanges, missing_lines, removed_lines};
use crate::domain::worktree_name::{WORKTREES_FOLDER, merge_folder};
use crate::ports::{Assignment, Merge, MergeOutcome, PublishOutcome, RepositoryError, Worktree};

/// The most of a conflict's diff that a text contains, in bytes.
const CONFLICT_BYTES_MAX: usize = 6 * 1024;
/// Lines that a text contains. It gives only the number of the rest.
pub(super) const LINES_NAMED_MAX: usize = 20;

impl RepositoryInner {
    pub(super) fn merge(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
        tip: &str,
    ) -> Result<MergeOutcome, RepositoryError> {
        let _merge_lock = self.lock_merges();
        let [onto, work] = self.merge_inputs(tip)?;
        if let Some(problem) = self.pack_target(&onto)? {
            return Ok(MergeOutcome::Refused(problem));
        }
        let base = self.merge_base(&onto, tip)?;
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
        let subject = format!("Merge task {}: {}", assignment.task.0, assignment.subject);
        let call = self.main.git(["commit-tree", &tree, "-p", &onto, "-p", tip, "-F", "-"]);
        let made = call.input(message(&subject, summary, assignment)).variables(identity(assignment)).ok()?;
        let merge = Merge { onto, commit: made.line() };
        // Its objects are now fixed: the checked, the verified and the published commit are the same.
        if let Some(problem) = self.pack_commit(&merge.commit, &merge.onto)? {
            return Ok(MergeOutcome::Refused(problem));
        }
        // If nothing was merged since the branch's base, the merge equals the branch.
        let equals_branch = base == merge.onto && tree == work;
        Ok(match self.refusal(worktree, &merge.onto, [&base, tip, &tree], equals_branch)? {
            Some(refusal) => MergeOutcome::Refused(refusal),
            None => MergeOutcome::Created(merge),
        })
    }

    /// The reason why a merge of `tip` with the result `tree` must not be published. `base` is the merge base.
    fn refusal(
        &self,
        worktree: &Worktree,
        onto: &str,
        [base, tip, tree]: [&str; 3],
        equals_branch: bool,
    ) -> Result<Option<String>, RepositoryError> {
        if let Some(refusal) = self.check_forbidden_changes(onto, tree)? {
            return Ok(Some(refusal));
        }
        let merges = self.main.git(["rev-list", "--min-parents=2", tip, &format!("^{onto}")]).ok()?.line();
        let mut joined = HashSet::new();
        for commit in merges.lines() {
            match self.check_branch_merge(commit, tip)? {
                Ok(lines) => joined.extend(lines),
                Err(refusal) => return Ok(Some(refusal)),
            }
        }
        if !equals_branch && let Some(refusal) = self.check_dropped_lines(onto, tip, tree)? {
            return Ok(Some(refusal));
        }
        self.check_undone_merges(worktree, [base, onto, tip, tree], &joined)
    }

    /// The commit that is merged into, and the tree of `tip`.
    fn merge_inputs(&self, tip: &str) -> Result<[String; 2], RepositoryError> {
        let names = [format!("{}^{{commit}}", self.target_ref()), format!("{tip}^{{tree}}")];
        let output = self.main.git(["rev-parse"].into_iter().chain(names.iter().map(String::as_str))).ok()?.line();
        let ids: Vec<String> = output.lines().map(str::to_owned).collect();
        ids.try_into().map_err(|_| RepositoryError::Failed {
            action: "merge".to_owned(),
            reason: format!("git rev-parse printed no ids for {} and {tip}", self.target_branch),
        })
    }

    /// The merge base of two commits, or the empty tree if they have no common history.
    pub(super) fn merge_base(&self, ours: &str, theirs: &str) -> Result<String, RepositoryError> {
        let base = self.main.git(["merge-base", ours, theirs]).run()?;
        if base.code == 0 { Ok(base.line()) } else { Ok(self.main.git(["mktree"]).ok()?.line()) }
    }

    /// Refuses changes that no task branch may make: control files, nested repositories, and paths that git cannot check out.
    fn check_forbidden_changes(&self, onto: &str, tree: &str) -> Result<Option<String>, RepositoryError> {
        let output = self.main.git(["diff-tree", "-r", "-z", "--raw", "--no-renames", onto, tree]).ok()?;
        let (mut control_files, mut repositories, mut invalid) = (Vec::new(), Vec::new(), Vec::new());
        let mut fields = output.fields();
        while let (Some(head), Some(path)) = (fields.next(), fields.next()) {
            let ([before, after], path) = (parse_modes(head), path_of(path));
            let is_repository = before != REPOSITORY_MODE && after == REPOSITORY_MODE;
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
                self.target_branch
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

    fn is_control_file(&self, path: &Path) -> bool {
        // On some systems names that differ only in case are the same file.
        let path = PathBuf::from(path.as_os_str().to_ascii_lowercase());
        let brigade_folders = [".agent", WORKTREES_FOLDER].map(Path::new);
        let mut control_files = self.control_files.iter().map(PathBuf::as_path).chain(brigade_folders);
        control_files.any(|control_file| path.starts_with(control_file.as_os_str().to_ascii_lowercase()))
    }

    /// Refuses a branch that silently undoes merges since its base: it took them in and dropped them again, as a faulty rebase does.
    /// `joined` are the lines of resolved conflicts.
    fn check_undone_merges(
        &self,
        worktree: &Worktree,
        [base, onto, tip, tree]: [&str; 4],
        joined: &HashSet<Vec<u8>>,
    ) -> Result<Option<String>, RepositoryError> {
        let Some(branch_base) = self.base_commit(worktree) else { return Ok(None) };
        if branch_base == onto || branch_base == base || !self.is_ancestor(&branch_base, onto)? {
            return Ok(None);
        }
        let mut removed = removed_lines(&self.diff(&branch_base, onto)?, &self.diff(onto, tree)?);
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
        let missing = self.missing(onto, tip, tree)?;
        Ok((!missing.is_empty()).then(|| {
            format!(
                "this merge would drop lines, although git reports no conflict:\n{}\nMerge {} into the task branch (git merge {}), and keep all lines of both sides",
                list_lines(&missing),
                self.target_branch,
                self.target_branch
            )
        }))
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
        Ok(self.main.git(start.chain(files.iter().map(|file| pathspec("", file)))).ok()?.out)
    }

    /// Describes a conflict for the teammate who resolves it.
    fn conflict(&self, onto: &str, tree: &str, files: &[PathBuf]) -> Result<String, RepositoryError> {
        let options = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"];
        let start = options.into_iter().chain([onto, tree, "--"]).map(OsString::from);
        let paths = files.iter().map(|file| pathspec("", file));
        let diff = self.main.git(start.chain(paths)).ok()?.out;
        let excerpt = &diff[..diff.len().min(CONFLICT_BYTES_MAX)];
        let rest = if excerpt.len() < diff.len() { "\n[...]" } else { "" };
        let target = &self.target_branch;
        Ok(format!(
            "the task branch and {target} conflict in {}. Your worktree is committed and no merge is unfinished there. Run git merge {target} in it, edit these files so that they keep what both sides added, run git add and git commit --no-edit, and complete the task again.\n{}{rest}",
            list_files(files),
            String::from_utf8_lossy(excerpt)
        ))
    }

    /// The worktree where merges are verified. It has no branch; with one, a person works there.
    pub(super) fn find_scratch(&self) -> Result<Option<RepoPath>, RepositoryError> {
        let is_own = |at: &RepoPath| Ok(is_marked(at) && checked_out_branch(at)?.is_none());
        self.find_own_worktree(&merge_folder(&self.team), is_own)
    }

    pub(super) fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError> {
        let _merge_lock = self.lock_merges();
        let name = merge_folder(&self.team);
        if let Some(at) = self.find_scratch()? {
            if self.tampering(&at).is_none() && reset_scratch(&at, &merge.commit).is_ok() {
                return Ok(at.work_tree);
            }
            self.discard_worktree(&at)?;
        }
        self.create_own_worktree(&name, &["--detach", &merge.commit])?;
        Ok(self.main.work_tree.join(name))
    }

    pub(super) fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<PublishOutcome, RepositoryError> {
        let _merge_lock = self.lock_merges();
        let merged = format!("option no-deref\nupdate {} {}\n", self.merged_ref(assignment), merge.commit);
        let reason = format!("brigade: merge {}", assignment.identifier());
        self.move_target(&merge.onto, &merge.commit, &merged, &reason)
    }
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

/// Returns `true` if git refuses to check out this name: it would be a git folder, or a path outside the worktree.
fn is_invalid_component(name: &str) -> bool {
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
