//! The repository of a workspace, by `git` itself: a worktree and a branch for each task, and merges into one branch.
//!
//! Worktrees lie in `.worktrees/`, their branches are `brigade/<team>/task-<id>`. What must be known after a kill stands in refs,
//! which move in one transaction with the branch that is merged into: `refs/brigade/<team>/merged/task-<id>` for a merge that the
//! board does not know of yet, `refs/worktree/brigade-checkout` for the commit that the person's checkout is still at, whichever team's merge it was.
//!
//! It knows nothing of boards, models or verify commands.

mod boundaries;
mod branch;
mod bring;
mod checkout;
mod commits;
mod index;
pub mod inspection;
pub mod leftovers;
mod merges;
mod objects;
mod pipes;
mod removal;
mod run;
mod settings;
mod small;
mod sound;
mod tracked;
mod uncommitted;
mod worktrees;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::domain::access::PathRule;
use crate::domain::merge::short_commit;
use crate::domain::task::TaskId;
use crate::platform;
use crate::platform::reading::{self, Accept};
use crate::ports::{
    Assignment, Clock, Durability, Merge, MergeTry, Provision, Publish, Repository, RepositoryError, Worktree,
};
use crate::sandbox::Sandbox;
use crate::stores::file::worktree::WorktreeStore;
use crate::stores::fs::FileSystem;
use run::{At, git, git_in, text_of};
pub use settings::DriverOptions;
use settings::Settings;
use worktrees::failed;

/// Where worktrees lie in a workspace.
pub const WORKTREES_FOLDER: &str = ".worktrees";

/// What the names of all branches of tasks begin with.
const BRANCHES: &str = "brigade";

/// Where it stands which commit the person's checkout is still at: a ref, so that the commit is kept. Each worktree has its own; see
/// git-worktree(1), REFS.
const CHECKOUT_REF: &str = "refs/worktree/brigade-checkout";

/// In the checkout's git folder: locked while a git of ours is at work.
const AT_WORK_FILE: &str = "brigade-at-work";

/// The oldest git that merges without a checkout (`git merge-tree --write-tree`).
const VERSION_MIN: (u32, u32) = (2, 38);

/// The largest exclude file that is read, in bytes.
const EXCLUDE_BYTES_MAX: u64 = 1024 * 1024;

/// What git does not see in any worktree: the worktrees themselves, what Brigade keeps in them, and what it keeps of a run.
const EXCLUDED: [&str; 5] = ["/.worktrees/", "/.agent/", "/.tasks/", "/.team/", "/agent_state.json"];

/// The repository; see the module.
#[derive(Clone)]
pub struct GitRepository(Arc<Inner>);

struct Inner {
    team: String,
    /// The person's checkout.
    main: At,
    /// The branch that is merged into, without `refs/heads/`.
    into: String,
    /// What no branch may change, relative to the workspace.
    control_files: Vec<PathBuf>,
    states: WorktreeStore,
    clock: Arc<dyn Clock>,
    durability: Durability,
    /// What may lie about in the checkout.
    left: Mutex<bring::Left>,
    /// The commit up to which all objects are kept.
    kept: Mutex<Option<String>>,
    /// Held for each step of a merge: one whose caller is gone runs to its end, and the next one waits for it.
    merging: Mutex<()>,
    /// For each task, held while its worktree is made ready: whoever had it before may not have got to the end of that.
    readying: Mutex<HashMap<TaskId, Arc<Mutex<()>>>>,
    /// How often each worktree could not be made ready.
    failures: Mutex<HashMap<String, u32>>,
    /// Held while the list of worktrees changes or is read: git fails where it meets one that is half made.
    listing: Mutex<()>,
}

/// What a repository is opened with.
pub struct GitOptions {
    /// The team's name.
    pub team: String,
    /// The branch to merge into; `None` for the one that is checked out.
    pub into: Option<String>,
    /// What no branch may change, relative to the workspace.
    pub control_files: Vec<PathBuf>,
    /// The file system, for the worktrees' states.
    pub files: Arc<dyn FileSystem>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Whether a merge that was told is still there after a power cut.
    pub durability: Durability,
    /// A program that calls [`crate::sandbox::run_if_asked`]: it confines filters and merge drivers.
    pub program: Option<PathBuf>,
    /// The sandbox of the launch.
    pub sandbox: Sandbox,
}

impl GitRepository {
    /// Opens the repository of `workspace`, which must be its top folder. Nothing is changed.
    ///
    /// # Errors
    /// [`RepositoryError`]: git is missing or too old, there is no repository or no commit, or no branch is checked out.
    pub async fn open(workspace: &Path, options: GitOptions) -> Result<Self, RepositoryError> {
        let (workspace, wanted) = (workspace.to_owned(), options.into);
        let drivers = DriverOptions { program: options.program, sandbox: Some(options.sandbox) };
        let (main, into) = off_the_runtime(move || usable(&workspace, wanted, drivers)).await?;
        // A worktree's state is made anew where a power cut takes it.
        let states = WorktreeStore::new(options.files, Durability::Process, Arc::clone(&options.clock));
        let inner = Inner {
            team: options.team,
            main,
            into,
            control_files: options.control_files.into_iter().filter(|path| path.is_relative()).collect(),
            states,
            clock: options.clock,
            durability: options.durability,
            left: Mutex::new(bring::Left::Torn),
            kept: Mutex::new(None),
            merging: Mutex::new(()),
            readying: Mutex::default(),
            failures: Mutex::default(),
            listing: Mutex::new(()),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The branch that would be merged into, were a team with isolation launched in `workspace`. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn check(workspace: &Path, into: Option<String>) -> Result<String, RepositoryError> {
        Ok(usable(workspace, into, DriverOptions::default())?.1)
    }

    /// What keeps the files of `workspace` from being those of the branch that is merged into, where that is so. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn behind(workspace: &Path, into: Option<String>) -> Result<Option<String>, RepositoryError> {
        let (main, into) = usable(workspace, into, DriverOptions::default())?;
        match checkout::Stand::of(&main, &into)? {
            checkout::Stand::Here => {}
            checkout::Stand::Parted(branch) => {
                let contained = main.git(["merge-base", "--is-ancestor", &branch, &into]).yes_or_no()?;
                let how = checkout::how_to_follow(&branch, &into, !contained);
                return Ok(Some(format!(
                    "your checkout could not follow merges into {into} and is on the branch {branch}, as it was. {how}"
                )));
            }
            checkout::Stand::Elsewhere => {
                return Ok(Some(format!("{into}, which is merged into, is not checked out: see git switch {into}")));
            }
        }
        let Some(old) = checkout::behind(&main) else { return Ok(None) };
        let is_moved = checkout::last_merge(&main, &old, &format!("refs/heads/{into}"))?.is_some();
        Ok(is_moved.then(|| {
            let old = short_commit(&old);
            format!(
                "the files here are still those of {old}, while {into} was moved by merges: a commit made now would undo them. git status shows what is in the way; copy that elsewhere, take it out of the way (git checkout {old} -- FILE), and the next launch brings the files along"
            )
        }))
    }

    /// The branch that the checkout in `workspace` was put on because it could not follow merges, if it is on one. It reads one small file.
    #[must_use]
    pub fn parted(workspace: &Path) -> Option<String> {
        let head = small::text(&workspace.join(".git/HEAD"))?;
        let branch = head.trim_end().strip_prefix("ref: refs/heads/")?;
        checkout::parted_from(branch).map(|_| branch.to_owned())
    }

    /// The branches of a task of this team that are not merged into `into`, or into the branch that is checked out. It blocks.
    ///
    /// # Errors
    /// As [`GitRepository::open`].
    pub fn unmerged(
        workspace: &Path,
        team: &str,
        into: Option<String>,
        task: TaskId,
    ) -> Result<Vec<String>, RepositoryError> {
        let (main, into) = usable(workspace, into, DriverOptions::default())?;
        let branch = format!("refs/heads/brigade/{team}/task-{}", task.0);
        let not_merged = format!("--no-merged=refs/heads/{into}");
        let again = format!("{branch}-*");
        let found = main.git(["for-each-ref", "--format=%(refname:short)", &not_merged, &branch, &again]).ok()?;
        Ok(found.line().lines().map(str::to_owned).collect())
    }

    async fn blocking<R: Send + 'static>(
        &self,
        action: impl FnOnce(&Inner) -> Result<R, RepositoryError> + Send + 'static,
    ) -> Result<R, RepositoryError> {
        let inner = Arc::clone(&self.0);
        off_the_runtime(move || action(&inner)).await
    }
}

/// Runs `action` where it may block; once begun it runs to its end, also when nobody waits any more.
async fn off_the_runtime<R: Send + 'static>(
    action: impl FnOnce() -> Result<R, RepositoryError> + Send + 'static,
) -> Result<R, RepositoryError> {
    tokio::task::spawn_blocking(action).await.unwrap_or_else(|error| {
        Err(RepositoryError::Failed { action: "work on the repository".to_owned(), reason: error.to_string() })
    })
}

/// The person's checkout, and the branch to merge into.
fn usable(workspace: &Path, into: Option<String>, drivers: DriverOptions) -> Result<(At, String), RepositoryError> {
    check_version()?;
    let main = find(workspace, drivers)?;
    if main.common_dir.join("reftable").exists() {
        let text =
            "isolation cannot use a repository that keeps its refs in tables: git refs migrate --ref-format=files";
        return Err(RepositoryError::Unusable(text.to_owned()));
    }
    let into = match into {
        Some(branch) => branch,
        None => {
            let branch = checked_out(&main)?.ok_or_else(|| {
                let text = "no branch is checked out, so there is none to merge into: check one out, or set merge_into";
                RepositoryError::Unusable(text.to_owned())
            })?;
            checkout::parted_from(&branch).map_or_else(|| branch.clone(), str::to_owned)
        }
    };
    if let Some(why) = checkout::barrier(&main, &into) {
        return Err(RepositoryError::Unusable(why));
    }
    // Names of branches are folders too.
    let above = format!("refs/heads/{BRANCHES}");
    if main.git(["show-ref", "--verify", "--quiet", &above]).yes_or_no()? {
        return Err(RepositoryError::Unusable(format!(
            "there is a branch `{BRANCHES}`, and the branches of tasks are {BRANCHES}/TEAM/task-ID, which git cannot have beside it: rename it (git branch -m {BRANCHES} OTHER)"
        )));
    }
    let head = format!("refs/heads/{into}^{{commit}}");
    if main.git(["rev-parse", "--verify", "--quiet", &head]).yes_or_no()? {
        return Ok((main, into));
    }
    let has_commits = main.git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).yes_or_no()?;
    Err(RepositoryError::Unusable(if has_commits {
        format!(
            "there is no branch `{into}` to merge into: make it (git branch {into}), or set merge_into to one that is there"
        )
    } else {
        format!("the branch `{into}` has no commit yet, and worktrees begin with one: git commit, then launch the team")
    }))
}

fn check_version() -> Result<(), RepositoryError> {
    let said = git(["--version"]).ok()?.line();
    let numbers = said.split_whitespace().nth(2).unwrap_or_default();
    let mut numbers = numbers.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= VERSION_MIN {
        return Ok(());
    }
    let (major, minor) = VERSION_MIN;
    Err(RepositoryError::NoGit(format!("isolation needs git {major}.{minor} or newer, and this is {said}")))
}

/// The person's checkout: `workspace` must be the top folder of a repository's working tree.
fn find(workspace: &Path, drivers: DriverOptions) -> Result<At, RepositoryError> {
    let place = text_of(workspace);
    let arguments = ["rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir", "--show-toplevel"];
    let said = git_in(workspace, arguments).run()?;
    let text = said.line();
    let lines: Vec<&str> = text.lines().collect();
    let [git_dir, common_dir, top] = lines[..] else {
        let is_none = said.err.trim().is_empty() || said.err.contains("not a git repository");
        let text = if is_none {
            format!("isolation needs a git repository, and {place} is in none: git init")
        } else {
            format!("isolation cannot use the repository of {place}: {}", said.err.trim())
        };
        return Err(RepositoryError::Unusable(text));
    };
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if whole(Path::new(top)) != whole(workspace) {
        let text = format!(
            "isolation needs the workspace to be the top folder of its repository: it is {place}, and the repository's is {top}"
        );
        return Err(RepositoryError::Unusable(text));
    }
    let git_dir = PathBuf::from(git_dir);
    let at_work = git_dir.join(AT_WORK_FILE);
    let settings = Settings::new(Path::new(common_dir), workspace, drivers);
    Ok(At { git_dir, common_dir: common_dir.into(), work_tree: workspace.to_owned(), at_work, settings })
}

/// The branch that is checked out there, if one is.
fn checked_out(at: &At) -> Result<Option<String>, RepositoryError> {
    // See gitrepository-layout(5); where refs are kept in another way the file names a branch that cannot be.
    let head = small::text(&at.git_dir.join("HEAD")).unwrap_or_default();
    if let Some(branch) = head.trim_end().strip_prefix("ref: refs/heads/").filter(|branch| *branch != ".invalid") {
        return Ok(Some(branch.to_owned()));
    }
    let said = at.git(["symbolic-ref", "--quiet", "HEAD"]).run()?;
    Ok(said.line().strip_prefix("refs/heads/").map(str::to_owned))
}

impl Inner {
    fn merging(&self) -> MutexGuard<'_, ()> {
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held while a task's worktree is made ready.
    fn readying(&self, task: TaskId) -> Arc<Mutex<()>> {
        Arc::clone(self.readying.lock().unwrap_or_else(PoisonError::into_inner).entry(task).or_default())
    }

    fn listing(&self) -> MutexGuard<'_, ()> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The commit a name stands for.
    fn commit_of(&self, name: &str) -> Result<String, RepositoryError> {
        Ok(self.main.git(["rev-parse", "--verify", "--end-of-options", &format!("{name}^{{commit}}")]).ok()?.line())
    }

    /// The commit a ref is at, if there is one.
    fn ref_at(&self, name: &str) -> Result<Option<String>, RepositoryError> {
        let said = self.main.git(["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).run()?;
        Ok((said.code == 0).then(|| said.line()))
    }

    /// The commits of several refs, for each that is there, by one call.
    fn refs_at(&self, names: &[&str]) -> Result<HashMap<String, String>, RepositoryError> {
        let said = self.main.git(["for-each-ref", "--format=%(objectname) %(refname)"].iter().chain(names)).ok()?;
        let lines = said.line();
        Ok(lines
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(commit, name)| (name.into(), commit.into()))
            .collect())
    }

    fn is_ancestor(&self, old: &str, new: &str) -> Result<bool, RepositoryError> {
        self.main.git(["merge-base", "--is-ancestor", old, new]).yes_or_no()
    }

    fn target_ref(&self) -> String {
        format!("refs/heads/{}", self.into)
    }

    /// Where it stands that a task's work was merged, until the board knows.
    fn merged_ref(&self, assignment: &Assignment) -> String {
        format!("refs/brigade/{}/merged/task-{}", self.team, assignment.task.0)
    }

    /// Has git not see what is Brigade's, in no file that is anybody's to commit.
    fn exclude(&self) -> Result<(), RepositoryError> {
        let path = self.main.common_dir.join("info/exclude");
        let old = match reading::read(&path, Accept::FilesHere, EXCLUDE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other,
        };
        let written = old.and_then(|old| {
            let is_known =
                |line: &&str| old.split(|byte| *byte == b'\n').any(|old| old.trim_ascii() == line.as_bytes());
            let missing: Vec<&str> = EXCLUDED.into_iter().filter(|line| !is_known(line)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            fs::create_dir_all(self.main.common_dir.join("info"))?;
            let gap = if old.is_empty() || old.ends_with(b"\n") { "" } else { "\n" };
            let lines = format!("{gap}{}\n", missing.join("\n"));
            // What the person has in it is not written anew.
            platform::open_for_appending(&path)?.write_all(lines.as_bytes())
        });
        written.map_err(|error| failed("write", &path, &error))
    }

    /// What cannot be taken up now is told, and is no reason not to begin.
    fn take_up(&self, completed: &[Assignment]) -> Result<Vec<String>, RepositoryError> {
        self.main.await_others()?;
        let or_told = |error: RepositoryError| Some(error.to_string());
        let mut told: Vec<String> = Vec::new();
        {
            let _merging = self.merging();
            told.extend(self.exclude().err().and_then(or_told));
            told.extend(self.finish_removals().err().and_then(or_told));
            told.extend(self.remove_scratch().err().and_then(or_told));
            told.extend(self.keep_all().unwrap_or_else(|error| vec![error.to_string()]));
            told.extend(self.follow().unwrap_or_else(or_told));
        }
        let prefix = format!("refs/brigade/{}/merged/", self.team);
        let named = self.main.git(["for-each-ref", "--format=%(refname)", &prefix]).ok()?.line();
        for assignment in completed {
            // The board was told, and the rest was not come to.
            let is_named = named.lines().any(|name| name == self.merged_ref(assignment));
            if let Some(worktree) = self.left_of(assignment, is_named) {
                told.extend(self.clear(&worktree, assignment).unwrap_or_else(or_told));
            }
        }
        Ok(told)
    }
}

/// How a teammate signs.
fn identity(assignment: &Assignment) -> [(&'static str, String); 4] {
    let [name, email] = assignment.signature();
    [
        ("GIT_AUTHOR_NAME", name.clone()),
        ("GIT_AUTHOR_EMAIL", email.clone()),
        ("GIT_COMMITTER_NAME", name),
        ("GIT_COMMITTER_EMAIL", email),
    ]
}

#[async_trait]
impl Repository for GitRepository {
    async fn take_up(&self, completed: Vec<Assignment>) -> Result<Vec<String>, RepositoryError> {
        self.blocking(move |inner| inner.take_up(&completed)).await
    }

    async fn provision(&self, assignment: &Assignment) -> Result<Provision, RepositoryError> {
        let assignment = assignment.clone();
        self.blocking(move |inner| inner.provision(&assignment)).await
    }

    async fn commit(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
    ) -> Result<Result<String, String>, RepositoryError> {
        let (worktree, assignment, summary) = (worktree.clone(), assignment.clone(), summary.to_owned());
        self.blocking(move |inner| inner.commit(&worktree, &assignment, &summary)).await
    }

    async fn merge(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
        commit: &str,
    ) -> Result<MergeTry, RepositoryError> {
        let (worktree, assignment, summary) = (worktree.clone(), assignment.clone(), summary.to_owned());
        let commit = commit.to_owned();
        self.blocking(move |inner| inner.merge(&worktree, &assignment, &summary, &commit)).await
    }

    async fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError> {
        let merge = merge.clone();
        self.blocking(move |inner| inner.check_out(&merge)).await
    }

    async fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<Publish, RepositoryError> {
        let (merge, assignment) = (merge.clone(), assignment.clone());
        self.blocking(move |inner| inner.publish(&merge, &assignment)).await
    }

    async fn clear(&self, worktree: &Worktree, assignment: &Assignment) -> Result<Option<String>, RepositoryError> {
        let (worktree, assignment) = (worktree.clone(), assignment.clone());
        self.blocking(move |inner| inner.clear(&worktree, &assignment)).await
    }

    fn boundaries(&self, worktree: Option<&Worktree>) -> Vec<PathRule> {
        self.0.boundaries(worktree)
    }
}
