//! A repository with a commit, and the operations of a team on it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use brigade::domain::git::branch_name::BranchName;
use brigade::domain::log::event::Notice;
use brigade::domain::task::TaskId;
use brigade::domain::team::next::Next;
use brigade::domain::team::team_spec::SetupSpec;
use brigade::git::{GitOptions, GitRepository};
use brigade::ports::{
    Assignment, CommitOutcome, Durability, LeftoverWork, Merge, MergeOutcome, MergeRequest, PublishOutcome, Repository,
    RepositoryError, Worktree, WorktreeOutcome,
};
use brigade::sandbox::Sandbox;
use brigade::stores::fs::RealFileSystem;

use crate::testkit::clock::ManualClock;
pub use crate::testkit::process::git;
use crate::testkit::process::{git_command, guard};

pub struct TestRepository {
    pub folder: tempfile::TempDir,
    pub repository: GitRepository,
}

/// Runs git in `folder` with `input` and returns its output. It must exit 0.
pub fn git_with(folder: &Path, arguments: &[&str], input: &str) -> String {
    let mut command = git_command(folder, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "git {arguments:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs git in `folder`, and returns its exit code and output.
pub fn git_output(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = git_command(folder, arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text.trim_end().to_owned())
}

pub fn sandbox(folder: &Path) -> Sandbox {
    Sandbox::open(guard(), folder, Vec::new()).unwrap()
}

pub async fn open(folder: &Path) -> Result<GitRepository, RepositoryError> {
    open_with(folder, None).await
}

/// Opens the repository of a team that merges into a branch of the person's choice.
pub async fn open_into(folder: &Path, branch: &str) -> Result<GitRepository, RepositoryError> {
    open_with(folder, Some(branch.into())).await
}

/// Opens the repository of a team whose worktrees are set up like this.
pub async fn open_with_setup(folder: &Path, setup: SetupSpec) -> Result<GitRepository, RepositoryError> {
    GitRepository::open(folder, GitOptions { setup, ..options(folder) }).await
}

async fn open_with(folder: &Path, merge_into: Option<BranchName>) -> Result<GitRepository, RepositoryError> {
    GitRepository::open(folder, GitOptions { merge_into, ..options(folder) }).await
}

pub fn options(folder: &Path) -> GitOptions {
    GitOptions {
        team: "crew".into(),
        merge_into: None,
        control_files: vec!["brigade.toml".into()],
        setup: SetupSpec::default(),
        keep: Vec::new(),
        setup_timeout: Duration::from_secs(60),
        files: Arc::new(RealFileSystem::default()),
        clock: Arc::new(ManualClock::default()),
        durability: Durability::default(),
        program: Some(env!("CARGO_BIN_EXE_brigade").into()),
        sandbox: sandbox(folder),
    }
}

/// The steps that name a launch, and the work as taken over.
pub const LAUNCH: &str = r#"{"launch":"run","team":"crew"}"#;
pub const MERGE_TAKEN: &str = r#"{"order":"merge_taken","team":"crew"}"#;

pub fn notice_text(notice: Notice) -> String {
    match notice {
        Notice::Info(text) => text,
        Notice::Warning { text, next } if next.is_empty() => text,
        Notice::Warning { text, next } => format!("{text}. hint: {}", steps_text(&next)),
    }
}

/// The steps, those that Brigade has as their data.
pub fn steps_text(steps: &[Next]) -> String {
    let text = |step: &Next| match step {
        Next::Outside { outside } => outside.clone(),
        typed => serde_json::to_string(typed).unwrap(),
    };
    steps.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The error and its steps.
pub fn error_text(error: RepositoryError) -> String {
    notice_text(error.into())
}

pub fn notice_texts(notices: Vec<Notice>) -> Vec<String> {
    notices.into_iter().map(notice_text).collect()
}

pub fn task(id: u64) -> Assignment {
    Assignment {
        team: "crew".into(),
        task: TaskId(id),
        subject: format!("Do {id}"),
        attempt: 1,
        teammate: "alice".into(),
        worker: "w1".into(),
        failed: None,
    }
}

/// The merge of a commit whose agent reported its work.
pub fn reported(commit: &str) -> MergeRequest {
    let (commit, summary) = (commit.trim().to_owned(), "Done so.".to_owned());
    MergeRequest { commit, summary, is_reported: true, reviewed_by: Some("bob".to_owned()) }
}

/// Changes a file so that only its content shows it: size and time are as before, and as new as the index of its repository.
pub fn change_unnoticed(file: &Path, index: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let folder = file.parent().unwrap();
    git(folder, &["config", "core.trustctime", "false"]);
    let time = file.metadata().unwrap().modified().unwrap();
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from));
    fs::write(file, text.replace(from, to)).unwrap();
    for path in [file, index] {
        fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
}

/// Ten lines that tests change.
pub fn ten_lines() -> String {
    (1..=10).map(|number| format!("line {number}\n")).collect()
}

impl TestRepository {
    /// A repository whose branch `main` has `f.txt` with ten lines and a `brigade.toml`.
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "-b", "main", "."]);
        fs::write(folder.path().join("f.txt"), ten_lines()).unwrap();
        fs::write(folder.path().join("brigade.toml"), "# the person's\n").unwrap();
        git(folder.path(), &["add", "-A"]);
        git(folder.path(), &["commit", "-q", "-m", "Begin"]);
        let repository = open(folder.path()).await.unwrap();
        Self { folder, repository }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn git(&self, arguments: &[&str]) -> String {
        git(self.path(), arguments)
    }

    /// The commit of the team branch.
    pub fn team_tip(&self) -> String {
        self.git(&["rev-parse", "refs/heads/brigade/crew"])
    }

    /// The content of a file on the team branch.
    pub fn team_file(&self, file: &str) -> String {
        self.git(&["show", &format!("brigade/crew:{file}")])
    }

    /// The team worktree.
    pub fn team_worktree(&self) -> PathBuf {
        self.path().join(".worktrees/crew")
    }

    /// Files in the team worktree that are neither committed nor ignored.
    pub fn team_status(&self) -> String {
        git(self.team_worktree(), &["status", "--porcelain"])
    }

    /// Launches the team and returns the notices.
    pub async fn launch(&self) -> Vec<String> {
        notice_texts(self.repository.prepare_launch(Vec::new()).await.unwrap().notices)
    }

    /// Launches the team, which must be refused. Returns the error.
    pub async fn refused_launch(&self) -> String {
        error_text(self.repository.prepare_launch(Vec::new()).await.unwrap_err())
    }

    /// Commits all changes in the person's checkout.
    pub fn commit_as_person(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "The person's"]);
    }

    /// Provisions the task's worktree. The first call launches the team.
    pub async fn provision(&self, id: u64) -> Worktree {
        if !self.team_worktree().exists() {
            assert_eq!(self.launch().await, [""; 0]);
        }
        match self.repository.provision(&task(id)).await.unwrap() {
            WorktreeOutcome::Ready(worktree) => worktree,
            merged @ WorktreeOutcome::Merged { .. } => panic!("already merged: {merged:?}"),
        }
    }

    /// Commits the changes in the worktree. This must succeed.
    pub async fn commit(&self, worktree: &Worktree) -> String {
        committed(self.repository.commit(worktree, "Done so.").await.unwrap())
    }

    /// Commits the worktree, which is refused. Returns the reason.
    pub async fn refused_commit(&self, worktree: &Worktree) -> String {
        match self.repository.commit(worktree, "Done so.").await.unwrap() {
            CommitOutcome::Refused(reason) => reason,
            CommitOutcome::Committed(commit) => panic!("{commit} is committed"),
        }
    }

    /// Provisions the task's worktree, and makes and commits a change there.
    pub async fn worktree_with(&self, id: u64, change: impl FnOnce(&Path)) -> Worktree {
        let worktree = self.provision(id).await;
        change(&worktree.root);
        self.commit(&worktree).await;
        worktree
    }

    pub async fn try_merge(&self, worktree: &Worktree) -> MergeOutcome {
        let commit = self.git(&["rev-parse", &worktree.branch.full()]);
        self.repository.merge(worktree, reported(&commit)).await.unwrap()
    }

    /// Creates the merge of the task, without publishing it.
    pub async fn create_merge(&self, worktree: &Worktree) -> Merge {
        match self.try_merge(worktree).await {
            MergeOutcome::Created(merge) => merge,
            other => panic!("{} is not merged: {other:?}", worktree.name),
        }
    }

    /// Tries to merge the task, which must be refused. Returns the reason.
    pub async fn refused_merge(&self, worktree: &Worktree) -> String {
        match self.try_merge(worktree).await {
            MergeOutcome::Refused(reason) => reason,
            other => panic!("{} is merged: {other:?}", worktree.name),
        }
    }

    /// Merges and publishes. Returns the notice about the team worktree.
    pub async fn merge(&self, worktree: &Worktree) -> Option<String> {
        let merge = self.create_merge(worktree).await;
        match self.repository.publish(&merge, &worktree.assignment).await.unwrap() {
            PublishOutcome::Done(notice) => notice.map(notice_text),
            PublishOutcome::Moved => panic!("the branch moved"),
        }
    }

    /// Gets the team branch's newest commit into a worktree, as a teammate would.
    pub fn fetch_target(&self, worktree: &Worktree) {
        git(&worktree.root, &["fetch", "-q", "../..", "+brigade/crew:brigade/crew"]);
    }

    pub async fn clean_up(&self, worktree: &Worktree) -> Option<String> {
        self.repository.clean_up(worktree).await.unwrap()
    }

    pub fn state_path(&self, worktree: &Worktree) -> PathBuf {
        worktree.root.join(".agent/state.json")
    }

    /// Files in the person's checkout that are neither committed nor ignored.
    pub fn checkout_status(&self) -> String {
        self.git(&["status", "--porcelain"])
    }
}

pub fn edit(folder: &Path, file: &str, change: impl FnOnce(String) -> String) {
    let path = folder.join(file);
    let text = fs::read_to_string(&path).unwrap_or_default();
    fs::write(path, change(text)).unwrap();
}

/// Inserts `line` after the line `line_before`.
pub fn insert_after(folder: &Path, file: &str, line_before: &str, line: &str) {
    edit(folder, file, |text| text.replace(&format!("{line_before}\n"), &format!("{line_before}\n{line}\n")));
}

/// The work that an earlier attempt left in a worktree.
pub fn leftover_work(commits: usize, files: usize) -> Option<LeftoverWork> {
    Some(LeftoverWork { commits, files, is_merging: false })
}

/// Returns the commit.
pub fn committed(outcome: CommitOutcome) -> String {
    match outcome {
        CommitOutcome::Committed(commit) => commit,
        CommitOutcome::Refused(reason) => panic!("not committed: {reason}"),
    }
}

/// The files of a place's git folder that a linked one has not, or gets from git.
const FILES_OF_PLACES: [&str; 10] =
    ["HEAD", "brigade-created", "commondir", "config", "hooks", "info", "logs", "objects", "packed-refs", "refs"];

/// Turns the place `name` into a linked worktree, as an earlier version made it. Index, files and unfinished operation stay as they are.
/// Returns the linked git folder.
pub fn link_place(workspace: &Path, name: &str) -> PathBuf {
    let root = workspace.join(".worktrees").join(name);
    let (place, linked) = (root.with_file_name("place"), workspace.join(".git/worktrees").join(name));
    let objects = root.join(".git/objects");
    for own in fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("info"))
    {
        let copied = Command::new("cp").arg("-R").arg(own).arg(workspace.join(".git/objects")).status().unwrap();
        assert!(copied.success());
    }
    let commit = git(&root, &["rev-parse", "HEAD"]);
    let branch = git(&root, &["branch", "--show-current"]);
    fs::rename(&root, &place).unwrap();
    let add = ["worktree", "add", "-q", "--no-checkout"];
    let on = if branch.is_empty() { vec!["--detach"] } else { vec!["-B", &branch] };
    git(workspace, &[&add[..], &on, &[root.to_str().unwrap(), &commit]].concat());
    for entry in fs::read_dir(place.join(".git")).unwrap().map(|entry| entry.unwrap()) {
        if !FILES_OF_PLACES.iter().any(|file| entry.file_name() == *file) {
            fs::rename(entry.path(), linked.join(entry.file_name())).unwrap();
        }
    }
    fs::remove_dir_all(place.join(".git")).unwrap();
    fs::rename(root.join(".git"), place.join(".git")).unwrap();
    fs::remove_dir(&root).unwrap();
    fs::rename(&place, &root).unwrap();
    if name == "crew" {
        // Those of tasks had none: their state files name them.
        fs::write(linked.join("brigade-created"), "").unwrap();
    }
    linked
}
