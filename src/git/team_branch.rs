//! The team branch: it starts at the person's commit, and only verified merges and the person's own commits move it.

use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::command::{RepoPath, failure, git, text_of};
use super::commits::list_files;
use super::fetching::Fetch;
use super::files::{self, failed};
use super::git_folder::GitFolder;
use super::merges::{MergedTree, merge_trees};
use super::places::POINTER_FILE;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::worktree_name::{
    TASK_BRANCHES, TEAM_BRANCHES, WORKTREES_FOLDER, WorktreeName, team_branch, team_folder,
};
use crate::domain::log::event::Notice;
use crate::domain::task::TaskId;
use crate::domain::team::name::LEAD;
use crate::domain::team::next::{Next, OrderForm};
use crate::ports::{Durability, PublishOutcome, RepositoryError, TEAMMATES_DOMAIN};
use crate::stores::file::links::refuse_link;

/// The folders that git keeps in a checkout's git folder during a rebase.
const REBASE_FOLDERS: [&str; 2] = ["rebase-merge", "rebase-apply"];
/// The first part of the branches that version 0.1.0 switched the person's checkout to.
const FORMER_CHECKOUT_BRANCHES: &str = "brigade-yours";

/// The branch that receives merges, after checks that merges can move it. `merge_into` is a branch that the person chose.
pub(super) fn checked_target(
    main: &RepoPath,
    team: &str,
    merge_into: Option<&BranchName>,
) -> Result<BranchName, RepositoryError> {
    let target = merge_into.cloned().unwrap_or_else(|| team_branch(team));
    refuse_link(&main.work_tree.join(WORKTREES_FOLDER)).map_err(|error| {
        RepositoryError::unusable_until(error.to_string(), format!("remove the link {WORKTREES_FOLDER}"))
    })?;
    let worktrees = main.work_tree.join(WORKTREES_FOLDER);
    if worktrees.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
        let reason = format!("cannot create worktrees: {WORKTREES_FOLDER} is not a folder");
        return Err(RepositoryError::unusable_until(reason, format!("`mv {WORKTREES_FOLDER} ELSEWHERE`")));
    }
    check_names(main, team)?;
    if let Some(workspace) = other_workspace(main, team) {
        let reason = format!(
            "cannot merge into {target}: another team {team}, in the workspace {}, has branches of the same names",
            workspace.display()
        );
        return Err(RepositoryError::unusable_until(reason, "rename this team"));
    }
    if merge_into.is_some() {
        check_chosen_branch(main, &target)?;
    }
    if let Some(MergeObstacle { reason, hint }) = merge_obstacle(main, &target, &main.work_tree.join(team_folder(team)))
    {
        let hint = match merge_into {
            Some(_) => format!("remove merge_into, so that merges go into {}, or {hint}", team_branch(team)),
            None => hint,
        };
        return Err(RepositoryError::unusable_until(format!("cannot merge into {target}: {reason}"), hint));
    }
    Ok(target)
}

/// Checks a branch that the person chose: it exists, and git takes its name in a command for nothing else, such as an option.
fn check_chosen_branch(main: &RepoPath, target: &BranchName) -> Result<(), RepositoryError> {
    let checked = main.git(["check-ref-format", "--branch", target.short()]).run()?;
    if checked.code != 0 || checked.line() != target.short() {
        let reason = format!("cannot merge into `{target}`: git does not take that as the name of a branch");
        return Err(RepositoryError::unusable_until(reason, "correct merge_into, or remove it"));
    }
    if main.checked_branch_commit(target)?.is_some() {
        return Ok(());
    }
    let reason = format!("cannot merge into `{target}`: there is no such branch");
    let hint = match BranchName::of_ref(target.short()) {
        Some(meant) if main.branch_commit(&meant)?.is_some() => format!("did you mean `{meant}`?"),
        _ => format!("`git branch {target}`, or remove merge_into"),
    };
    Err(RepositoryError::unusable_until(reason, hint))
}

/// The file in the repository with the workspace of a team: its linked checkouts share all branches.
fn workspace_file(main: &RepoPath, team: &str) -> PathBuf {
    main.common_dir.join(format!("brigade-workspace-{team}"))
}

/// The other workspace of this repository with a team of this name, if that team still has its worktree there. A copied repository names
/// that of the original.
fn other_workspace(main: &RepoPath, team: &str) -> Option<PathBuf> {
    let workspace = PathBuf::from(files::text(&workspace_file(main, team))?.trim_end());
    let is_other = !is_same_folder(&workspace, &main.work_tree)
        && main.checkouts().any(|checkout| is_same_folder(&checkout.place, &workspace));
    (is_other && workspace.join(team_folder(team)).is_dir()).then_some(workspace)
}

/// The reason why a merge must not move a branch, and the step that changes that.
pub(super) struct MergeObstacle {
    reason: String,
    hint: String,
}

/// Refuses branches in the place of a folder, and below the team branch: git stores a branch name as a path.
fn check_names(main: &RepoPath, team: &str) -> Result<(), RepositoryError> {
    let of_team = format!("{TASK_BRANCHES}/{team}");
    let names = [TEAM_BRANCHES, TASK_BRANCHES, &of_team];
    let patterns = names.map(|name| format!("refs/heads/{name}"));
    let found = main.refs(&patterns)?;
    let team_branch = team_branch(team);
    if let [(name, _), ..] = &main.refs(&[format!("{}/", team_branch.full())])?[..] {
        return Err(unusable_name(&format!("branch {team_branch}"), name.trim_start_matches("refs/heads/")));
    }
    match names.iter().zip(&patterns).find(|(_, pattern)| found.iter().any(|(name, _)| name == *pattern)) {
        Some((name, _)) => Err(unusable_name(&format!("branches {name}/…"), name)),
        None => Ok(()),
    }
}

/// The error for a branch whose name prevents another one.
fn unusable_name(new: &str, existing: &str) -> RepositoryError {
    let reason = format!("cannot create {new}: there is a branch `{existing}`");
    RepositoryError::unusable_until(reason, format!("`git branch -m {existing} OTHER`"))
}

/// Returns the reason why a merge must not move a branch. A rebase of it may be unfinished, or the person has it checked out: a commit
/// there would undo the merge. `team_worktree` is the one of earlier versions, which the next launch takes over.
pub(super) fn merge_obstacle(main: &RepoPath, target: &BranchName, team_worktree: &Path) -> Option<MergeObstacle> {
    let name = target.full();
    for Checkout { git_dir, place } in main.checkouts() {
        if is_being_rebased(&git_dir, &name) {
            return Some(MergeObstacle {
                reason: format!("a rebase of {target} is unfinished in {}", place.display()),
                hint: "`git rebase --continue` there, or `git rebase --abort`".to_owned(),
            });
        }
        if is_on_branch(&git_dir, target) && !is_same_folder(&place, team_worktree) {
            return Some(MergeObstacle {
                reason: format!("it is checked out in {}, where a commit would undo merges", place.display()),
                hint: format!("switch to another branch there: `git -C {} switch BRANCH`", place.display()),
            });
        }
    }
    None
}

/// A checkout of the person's repository.
struct Checkout {
    git_dir: PathBuf,
    /// Its folder, or its git folder if that is not known.
    place: PathBuf,
}

impl RepoPath {
    /// The existing checkouts of the person's repository, this one first.
    fn checkouts(&self) -> impl Iterator<Item = Checkout> {
        let linked = self.linked_git_dirs().filter(|git_dir| *git_dir != self.git_dir);
        // In a linked checkout, the first one is another checkout.
        let first = Some(self.common_dir.clone()).filter(|git_dir| *git_dir != self.git_dir && !is_bare(git_dir));
        let checkout = |git_dir: PathBuf| {
            let place = files::text(&git_dir.join(POINTER_FILE)).unwrap_or_else(|| git_dir.display().to_string());
            let place = PathBuf::from(place.trim_end().trim_end_matches("/.git"));
            Checkout { git_dir, place }
        };
        // Git still lists a removed worktree.
        [self.git_dir.clone()].into_iter().chain(first).chain(linked).map(checkout).filter(|own| own.place.is_dir())
    }

    /// The folder of a checkout that has this branch checked out.
    pub(super) fn checkout_of(&self, branch: &BranchName) -> Option<PathBuf> {
        self.checkouts().find(|checkout| is_on_branch(&checkout.git_dir, branch)).map(|checkout| checkout.place)
    }
}

fn is_on_branch(git_dir: &Path, branch: &BranchName) -> bool {
    files::text(&git_dir.join("HEAD")).is_some_and(|text| text.trim_end() == format!("ref: {}", branch.full()))
}

/// Refuses a launch if the person's branch cannot be merged into `target` now.
pub(super) fn check_person_branch(
    main: &RepoPath,
    target: &BranchName,
    branch: Option<&BranchName>,
) -> Result<(), RepositoryError> {
    if main.unfinished_operation() == Some("rebase") {
        let reason = format!("cannot merge your branch into {target}: a rebase is unfinished in your checkout");
        return Err(RepositoryError::unusable_until(reason, "`git rebase --continue`, or `git rebase --abort`"));
    }
    let is_former = |branch: &&BranchName| branch.short().starts_with(FORMER_CHECKOUT_BRANCHES);
    if let Some(former) = branch.filter(is_former)
        && let Some((_, own)) = former.short().split_once('/')
    {
        let reason = format!(
            "cannot merge your branch into {target}: your checkout is on {former}, where version 0.1.0 put it; the merges are on {own}"
        );
        let hint = format!(
            "commit or stash your changes, then `git switch {own}` and `git merge {}`",
            main.name_in_commands(former)?
        );
        return Err(RepositoryError::unusable_until(reason, hint));
    }
    Ok(())
}

fn is_being_rebased(git_dir: &Path, name: &str) -> bool {
    let head = |folder: &str| files::text(&git_dir.join(folder).join("head-name"));
    REBASE_FOLDERS.iter().filter_map(|folder| head(folder)).any(|head| head.trim_end() == name)
}

fn is_same_folder(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

fn is_bare(git_dir: &Path) -> bool {
    let git_dir = text_of(git_dir);
    let output = git(["--git-dir", &git_dir, "rev-parse", "--is-bare-repository"]).run();
    output.is_ok_and(|output| output.line() == "true")
}

/// The branch that receives a team's merges.
pub(super) struct TeamBranch {
    pub(super) team: String,
    /// The person's checkout.
    pub(super) main: RepoPath,
    pub(super) name: BranchName,
    pub(super) durability: Durability,
    /// Its last commit that this process knows. `None` before the launch.
    pub(super) last_commit: Mutex<Option<String>>,
    /// The last reported reason why the team worktree is not updated.
    pub(super) reported_problem: Mutex<Option<String>>,
}

/// A commit of the person that the team branch gets.
pub(super) struct PersonCommit<'a> {
    pub(super) commit: &'a str,
    /// A commit with the same content, which is merged. It may also descend from work of the team that the person has in another form.
    pub(super) content: &'a str,
    /// The description.
    pub(super) name: &'a str,
    pub(super) is_in_team_worktree: bool,
}

/// The next steps of a person whose branch conflicts with the team branch.
pub(super) fn resolve_steps(main: &RepoPath, team: &str) -> Result<Vec<Next>, RepositoryError> {
    let branch = main.name_in_commands(&team_branch(team))?;
    let merge =
        format!("`git merge {branch}` in your checkout, resolve the conflicts, commit, and launch the team again");
    Ok(vec![merge.into(), OrderForm::MergeTaken { team: team.to_owned() }.into()])
}

/// The result of merging the person's commit.
enum PersonMerge {
    /// The team branch had the commit.
    NotNeeded,
    /// The team branch has moved. A problem with the team worktree's files is a notice.
    Merged(Option<Notice>),
}

impl TeamBranch {
    pub(super) fn new(main: RepoPath, team: String, name: BranchName, durability: Durability) -> Self {
        Self { team, main, name, durability, last_commit: Mutex::default(), reported_problem: Mutex::default() }
    }

    pub(super) fn target_ref(&self) -> String {
        self.name.full()
    }

    /// Creates the team branch at the person's commit, unless it exists, and records the workspace of the team.
    pub(super) fn create_team_branch(&self) -> Result<(), RepositoryError> {
        files::replace(&workspace_file(&self.main, &self.team), &format!("{}\n", self.main.work_tree.display()))?;
        let target = self.target_ref();
        if let Some(commit) = self.main.checked_branch_commit(&self.name)? {
            *self.last_commit.lock() = Some(commit);
            return Ok(());
        }
        let commit = self.main.head()?;
        *self.last_commit.lock() = Some(commit.clone());
        let reason = "brigade: the team branch starts here";
        let options = ["update-ref", "--no-deref", "--create-reflog", "-m", reason];
        self.main.git(options.into_iter().chain([target.as_str(), &commit, ""])).ok().map(drop)
    }

    /// The commit of the branch that receives merges.
    pub(super) fn target_commit(&self) -> Result<String, RepositoryError> {
        self.main.branch_commit(&self.name)?.ok_or_else(|| {
            let target = &self.name;
            let last = self.last_commit.lock().as_deref().map(short_commit).unwrap_or_default().to_owned();
            let reason = format!("cannot merge into {target}: the branch does not exist any more");
            RepositoryError::unusable_until(reason, format!("`git branch {target} {last}`"))
        })
    }

    /// Replaces the error of a call that failed because the team branch does not exist any more.
    pub(super) fn with_cause(&self, error: RepositoryError) -> RepositoryError {
        let is_launched = self.last_commit.lock().is_some();
        let cause = || match self.main.checked_branch_commit(&self.name) {
            Ok(Some(_)) => None,
            Ok(None) => self.target_commit().err(),
            Err(cause) => Some(cause),
        };
        if is_launched { cause().unwrap_or(error) } else { error }
    }

    /// Merges the person's commit into the team branch. If the person's branch has all work of the team branch in another form, the team
    /// branch starts from there, unless tasks are in progress that are not `completed`. A branch that the person chose gets only verified
    /// merges.
    pub(super) fn merge_person_branch(&self, completed: &[TaskId]) -> Result<Vec<Notice>, RepositoryError> {
        if self.name != team_branch(&self.team) {
            return Ok(Vec::new());
        }
        let person_branch = self.main.checked_out_branch()?;
        check_person_branch(&self.main, &self.name, person_branch.as_ref())?;
        let theirs = self.main.head()?;
        let name = person_branch.map_or_else(|| short_commit(&theirs).to_owned(), |branch| branch.to_string());
        let onto = self.target_commit()?;
        let taken = self.main.find_taken(&onto, &theirs)?;
        if taken.as_ref() == Some(&onto) {
            return self.follow_taken(&onto, &theirs, &name, completed);
        }
        let content = taken.as_ref().map(|taken| self.main.joined_with(&theirs, taken)).transpose()?;
        let content = content.as_deref().unwrap_or(&theirs);
        let commit = PersonCommit { commit: &theirs, content, name: &name, is_in_team_worktree: false };
        match self.merge_of_person(&commit)? {
            PersonMerge::NotNeeded => Ok(Vec::new()),
            PersonMerge::Merged(notice) => {
                let note = taken.map(|taken| {
                    let (target, taken) = (&self.name, short_commit(&taken));
                    Notice::Info(format!(
                        "{name} has the work of {target} up to {taken} in another form; the rest stays on {target}"
                    ))
                });
                Ok(note.into_iter().chain(notice).collect())
            }
        }
    }

    /// Merges the commits that the person made in the team worktree.
    pub(super) fn merge_commits_of_person(&self) -> Result<Vec<Notice>, RepositoryError> {
        let Some(at) = self.find_team_worktree() else { return Ok(Vec::new()) };
        let (target, folder) = (&self.name, self.team_worktree().name);
        let mut notices = Vec::new();
        for theirs in self.commits_of_person(&at)? {
            if let Fetch::Refused(reason) = self.main.fetch_from(&at, &theirs)? {
                return Err(RepositoryError::Failed { action: format!("take over the commits in {folder}"), reason });
            }
            let name = short_commit(&theirs);
            let commit = PersonCommit { commit: &theirs, content: &theirs, name, is_in_team_worktree: true };
            if let PersonMerge::Merged(notice) = self.merge_of_person(&commit)? {
                notices.push(Notice::Info(format!("the commit {name} in {folder} is merged into {target}")));
                notices.extend(notice);
            }
        }
        Ok(notices)
    }

    /// Merges a commit of the person into the team branch.
    fn merge_of_person(&self, commit: &PersonCommit<'_>) -> Result<PersonMerge, RepositoryError> {
        let PersonCommit { commit: theirs, name, .. } = commit;
        let onto = self.target_commit()?;
        if self.main.is_ancestor(theirs, &onto)? {
            return Ok(PersonMerge::NotNeeded);
        }
        let new = if self.main.is_ancestor(&onto, theirs)? {
            (*theirs).to_owned()
        } else {
            self.create_merge_of_person(&onto, commit)?
        };
        Ok(PersonMerge::Merged(self.move_to(&onto, &new, name)?))
    }

    /// Moves the team branch to a commit with those of the person. Returns a problem with the team worktree.
    pub(super) fn move_to(&self, onto: &str, new: &str, name: &str) -> Result<Option<Notice>, RepositoryError> {
        match self.move_target(onto, new, &format!("brigade: merge {name}"))? {
            PublishOutcome::Done(notice) => Ok(notice),
            PublishOutcome::Moved => {
                let action = format!("merge {name} into {}", self.name);
                Err(RepositoryError::Failed { action, reason: "others moved the branch meanwhile".to_owned() })
            }
        }
    }

    pub(super) fn create_merge_of_person(
        &self,
        onto: &str,
        commit: &PersonCommit<'_>,
    ) -> Result<String, RepositoryError> {
        let PersonCommit { commit: theirs, content, name, .. } = commit;
        let target = &self.name;
        let refused = |why: String| {
            let reason = format!("cannot merge {name} into {target}: {why}");
            match self.conflict_steps(onto, commit) {
                Ok(next) => RepositoryError::Unusable { reason, next },
                Err(error) => error,
            }
        };
        let tree = match merge_trees(&self.main, onto, content)? {
            MergedTree::Clean(tree) => tree,
            MergedTree::Conflict { files, .. } => return Err(refused(format!("conflict in {}", list_files(&files)))),
            MergedTree::Failed(reason) => return Err(refused(reason)),
        };
        if !self.main.missing(onto, content, &tree)?.is_empty() {
            return Err(refused("the merge would drop lines, although git reports no conflict".to_owned()));
        }
        let author = [format!("{LEAD} ({})", self.team), format!("{LEAD}{TEAMMATES_DOMAIN}")];
        let text = format!("Merge {name} into {target}\n");
        self.main.commit_tree([&tree, &text], &[onto, theirs], author)
    }

    /// The next steps after a conflict. A conflict with the person's branch is resolved in the person's checkout, one with a commit in the
    /// team worktree there.
    fn conflict_steps(&self, onto: &str, commit: &PersonCommit<'_>) -> Result<Vec<Next>, RepositoryError> {
        let folder = self.team_worktree().name;
        let is_merging = self.find_team_worktree().is_some_and(|at| at.git_dir.join("MERGE_HEAD").exists());
        if is_merging {
            let step = format!(
                "a merge is unfinished in {folder}: resolve it and run `git -C {folder} commit`, then launch the team again"
            );
            Ok(vec![step.into()])
        } else if commit.is_in_team_worktree {
            let other = short_commit(onto);
            let step =
                format!("`git -C {folder} merge {other}`, resolve and commit it there, then launch the team again");
            Ok(vec![step.into()])
        } else {
            resolve_steps(&self.main, &self.team)
        }
    }

    /// Moves the team branch from `onto` to `commit`, and then updates the files of the team worktree.
    pub(super) fn move_target(
        &self,
        onto: &str,
        commit: &str,
        reason: &str,
    ) -> Result<PublishOutcome, RepositoryError> {
        let target = self.target_ref();
        let obstacle = merge_obstacle(&self.main, &self.name, &self.team_worktree().root);
        if let Some(MergeObstacle { reason, hint }) = obstacle {
            let reason = format!("{reason}. hint: {hint}");
            return Err(RepositoryError::Failed { action: format!("move the branch {}", self.name), reason });
        }
        let start = ["update-ref", "--no-deref", "--create-reflog", "-m", reason];
        let output = self.main.git(start.iter().chain(&[target.as_str(), commit, onto])).run()?;
        // A git that fails may have moved it before.
        let is_moved = output.code == 0 || self.target_commit()? == *commit;
        if is_moved {
            if self.durability == Durability::Power {
                self.sync(&self.main.common_dir.join(&target))?;
            }
            *self.last_commit.lock() = Some(commit.to_owned());
            self.show_in_places(commit);
            // A problem with the files there does not affect the branch.
            Ok(PublishOutcome::Done(self.notice_of_team_worktree()))
        } else if self.target_commit()? == *onto {
            Err(failure(format!("move the branch {}", self.name), &output.err))
        } else {
            Ok(PublishOutcome::Moved)
        }
    }

    /// Shows the commit of the branch in the places of the team's tasks, so that the branch is known there by its name.
    fn show_in_places(&self, commit: &str) {
        for folder in files::entries(&self.main.work_tree.join(WORKTREES_FOLDER)) {
            let name = format!("{WORKTREES_FOLDER}/{}", folder.file_name().unwrap_or_default().to_string_lossy());
            if WorktreeName::of_folder(&name).is_some_and(|name| name.team == self.team)
                && let Some(at) = self.main.place_at(&folder)
            {
                self.show_in(&at, commit);
            }
        }
    }

    /// Shows the commit of the branch in a place, unless that has it checked out, or git changes it there at this moment.
    pub(super) fn show_in(&self, at: &RepoPath, commit: &str) {
        let is_checked_out = is_on_branch(&at.git_dir, &self.name);
        let set = || GitFolder::open(&at.git_dir)?.set_ref(&self.target_ref(), commit);
        if !is_checked_out && let Err(error) = set() {
            tracing::debug!("cannot show {} in {}: {error}", self.name, at.work_tree.display());
        }
    }

    /// Makes a changed ref survive a power cut.
    pub(super) fn sync(&self, path: &Path) -> Result<(), RepositoryError> {
        let folder = path.parent().unwrap_or(&self.main.common_dir);
        let synced = [path, folder].into_iter().try_for_each(|path| File::open(path)?.sync_all());
        synced.map_err(|error| failed("sync", path, &error))
    }
}
