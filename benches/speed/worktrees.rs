//! Worktrees and merges on a repository of this project's size, compared with the same steps by git alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade::domain::git::worktree_name::WORKTREES_FOLDER;
use brigade::domain::task::TaskId;
use brigade::domain::team::team_spec::SetupSpec;
use brigade::embed::SystemClock;
use brigade::git::{GitOptions, GitRepository};
use brigade::ports::{
    Assignment, CommitOutcome, Durability, Merge, MergeOutcome, MergeRequest, PublishOutcome, Repository, Worktree,
    WorktreeOutcome,
};
use brigade::sandbox::Sandbox;
use brigade::stores::fs::RealFileSystem;

use super::report::{ROUNDS, Report, Target, format_figure, median, ms};
use super::workspace::{BenchWorkspace, spread_subfolders};

/// Repetitions of each measurement.
const REPETITIONS: u64 = 11;
/// The verify command of a merge, as long as a quick test.
const VERIFY: &str = "sleep 1";
/// The folder of the worktrees that git makes without Brigade.
const BARE_FOLDER: &str = ".bare";
/// The folders of this project that are copied into the repository.
const FOLDERS: [&str; 4] = ["src", "tests", "benches", "prompts"];

/// The large repository: many small files, and some whose content cannot be compressed.
const SMALL_FILES: usize = 20_000;
const LARGE_FILES: usize = 40;
const LARGE_FILE_BYTES: usize = 24 * 1024 * 1024;

pub fn measure(report: &mut Report) {
    let workspace = BenchWorkspace::new();
    let files: usize = FOLDERS
        .iter()
        .map(|folder| copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &workspace.join(folder)))
        .sum();
    let runtime = launch(workspace.path());
    let mut times = Times::default();
    let (mut merge_times, mut git_merge_times) = (Vec::new(), Vec::new());
    for number in 1..=REPETITIONS {
        let Made { bare, repository, worktree } = times.measure(&runtime, workspace.path(), number);
        for root in [workspace.path().join(&bare), worktree.root.clone()] {
            fs::write(root.join(format!("new-{number}-{}", root.ends_with(&bare))), "one\n").unwrap();
        }
        let started_at = Instant::now();
        bare_merge(workspace.path(), &bare, number);
        git_merge_times.push(ms(started_at.elapsed()));
        let started_at = Instant::now();
        runtime.block_on(merge(&repository, &worktree, number));
        merge_times.push(ms(started_at.elapsed()));
    }
    report.add(
        format!("a worktree of {files} files"),
        median(&times.brigade),
        "ms",
        Target::Below(150.0),
        times.comparison(),
    );
    times.report_disk(report);
    let comparison = format!(
        "by git alone {}, by Brigade {}",
        format_figure(median(&git_merge_times), "ms"),
        format_figure(median(&merge_times), "ms")
    );
    let more = (median(&merge_times) / median(&git_merge_times) - 1.0) * 100.0;
    report.add("extra time of a merge with a verify of 1 s", more, "%", Target::Below(5.0), comparison);
}

/// Worktrees of a repository of about 1 GB.
pub fn measure_large(report: &mut Report) {
    let workspace = BenchWorkspace::new();
    write_large_files(workspace.path());
    let runtime = launch(workspace.path());
    // Most large repositories are packed. A search for similar objects takes minutes and finds none.
    git(workspace.path(), &["repack", "-q", "-a", "-d", "--window=0"]);
    let mut times = Times::default();
    for number in 1..=ROUNDS as u64 {
        let Made { bare, repository, worktree } = times.measure(&runtime, workspace.path(), number);
        git(workspace.path(), &["worktree", "remove", "--force", &bare]);
        assert_eq!(runtime.block_on(repository.clean_up(&worktree)).unwrap(), None);
    }
    report.add(
        format!("a worktree of {} files and 1 GB, as a multiple of git worktree add", SMALL_FILES + LARGE_FILES),
        median(&times.brigade) / median(&times.git_worktree),
        "times",
        Target::AtMost(2.0),
        format!("Brigade: {}, {}", format_figure(median(&times.brigade), "ms"), times.comparison()),
    );
    times.report_disk(report);
}

/// The times of worktrees that Brigade and git make in turn, and the disk space of their git folders.
#[derive(Default)]
struct Times {
    brigade: Vec<f64>,
    git_worktree: Vec<f64>,
    git_clone: Vec<f64>,
    brigade_kb: f64,
    git_worktree_kb: f64,
    git_clone_kb: f64,
}

/// The worktrees of one repetition that still exist.
struct Made {
    bare: String,
    repository: GitRepository,
    worktree: Worktree,
}

impl Times {
    fn measure(&mut self, runtime: &tokio::runtime::Runtime, root: &Path, number: u64) -> Made {
        let started_at = Instant::now();
        let bare = bare_worktree(root, number);
        self.git_worktree.push(ms(started_at.elapsed()));
        self.git_worktree_kb = own_kb(&git_folder(&root.join(&bare)));
        let clone = root.join(BARE_FOLDER).join(format!("clone-{number}"));
        let started_at = Instant::now();
        git(root, &["clone", "-q", "--local", ".", &clone.to_string_lossy()]);
        self.git_clone.push(ms(started_at.elapsed()));
        self.git_clone_kb = own_kb(&clone.join(".git"));
        fs::remove_dir_all(&clone).unwrap();
        let started_at = Instant::now();
        let (repository, worktree) = runtime.block_on(provision(root, number));
        self.brigade.push(ms(started_at.elapsed()));
        self.brigade_kb = own_kb(&git_folder(&worktree.root));
        Made { bare, repository, worktree }
    }

    fn comparison(&self) -> String {
        format!(
            "git worktree add alone: {}, git clone --local: {}",
            format_figure(median(&self.git_worktree), "ms"),
            format_figure(median(&self.git_clone), "ms")
        )
    }

    fn report_disk(&self, report: &mut Report) {
        let comparison = format!(
            "git worktree add: {}, git clone --local: {}",
            format_figure(self.git_worktree_kb, "KB"),
            format_figure(self.git_clone_kb, "KB")
        );
        report.add("disk space of its git folder", self.brigade_kb, "KB", Target::Nothing, comparison);
    }
}

/// Makes the folder a repository, launches a team there and makes room for worktrees.
fn launch(root: &Path) -> tokio::runtime::Runtime {
    git(root, &["init", "-q", "-b", "main", "."]);
    git(root, &["config", "user.name", "Bench"]);
    git(root, &["config", "user.email", "bench@example.invalid"]);
    // The commit would start `git gc` in the background.
    git(root, &["config", "gc.auto", "0"]);
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "Begin"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async { open(root).await.prepare_launch(Vec::new()).await }).unwrap();
    // Each repetition removes several worktrees.
    for folder in [BARE_FOLDER, WORKTREES_FOLDER] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        spread_subfolders(&folder);
    }
    runtime
}

fn write_large_files(root: &Path) {
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..SMALL_FILES {
        let folder = root.join(format!("src/{:03}", number / 100));
        fs::create_dir_all(&folder).unwrap();
        let line = format!("line {} of file {number}\n", random.u32(..));
        fs::write(folder.join(format!("{number}.txt")), line.repeat(random.usize(1..120))).unwrap();
    }
    let mut bytes = vec![0; LARGE_FILE_BYTES];
    fs::create_dir_all(root.join("assets")).unwrap();
    for number in 0..LARGE_FILES {
        random.fill(&mut bytes);
        fs::write(root.join(format!("assets/{number}.bin")), &bytes).unwrap();
    }
}

/// The git folder of a worktree.
fn git_folder(root: &Path) -> PathBuf {
    let output = Command::new("git").args(["rev-parse", "--absolute-git-dir"]).current_dir(root).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}

/// The disk space of a folder's files that are in no other folder, in KB.
fn own_kb(folder: &Path) -> f64 {
    let size = |entry: fs::DirEntry| {
        let metadata = entry.metadata().unwrap();
        match (metadata.is_dir(), metadata.nlink()) {
            (true, _) => own_kb(&entry.path()) + metadata.blocks() as f64 / 2.0,
            (false, 1) => metadata.blocks() as f64 / 2.0,
            (false, _) => 0.0,
        }
    };
    fs::read_dir(folder).unwrap().map(|entry| size(entry.unwrap())).sum()
}

fn copy(from: &Path, to: &Path) -> usize {
    fs::create_dir_all(to).unwrap();
    let entries = fs::read_dir(from).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => fs::copy(entry.path(), to.join(entry.file_name())).map(|_| 1).unwrap(),
        })
        .sum()
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    let status = command.args(arguments).current_dir(folder).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "git {arguments:?}");
}

fn bare_worktree(root: &Path, number: u64) -> String {
    let path = format!("{BARE_FOLDER}/{number}");
    git(root, &["worktree", "add", "-q", "-b", &format!("bare-{number}"), &path, "main"]);
    path
}

/// The same steps as a script: commit, merge in a separate worktree, verify, move the branch and the checkout, clean
/// up.
fn bare_merge(root: &Path, path: &str, number: u64) {
    let (worktree, branch, scratch) =
        (root.join(path), format!("bare-{number}"), root.join(BARE_FOLDER).join("scratch"));
    git(&worktree, &["add", "-A"]);
    git(&worktree, &["commit", "-q", "-m", "Work"]);
    if !scratch.exists() {
        git(root, &["worktree", "add", "-q", "--detach", &scratch.to_string_lossy(), "main"]);
    }
    git(&scratch, &["checkout", "-q", "--detach", "main"]);
    git(&scratch, &["merge", "-q", "--no-ff", "-m", "Merge", &branch]);
    verify(&scratch);
    git(&scratch, &["update-ref", "refs/heads/merged", "HEAD"]);
    git(root, &["merge", "-q", "--ff-only", "merged"]);
    git(root, &["worktree", "remove", path]);
    git(root, &["branch", "-q", "-d", &branch]);
}

fn verify(folder: &Path) {
    assert!(Command::new("sh").args(["-c", VERIFY]).current_dir(folder).status().unwrap().success());
}

fn assignment(number: u64) -> Assignment {
    Assignment {
        team: "bench".to_owned(),
        task: TaskId(number),
        subject: "Work".to_owned(),
        attempt: 1,
        teammate: "m1".to_owned(),
        worker: "w1".to_owned(),
        failed: None,
    }
}

async fn open(root: &Path) -> GitRepository {
    let options = GitOptions {
        team: "bench".to_owned(),
        merge_into: None,
        control_files: vec!["brigade.toml".into()],
        setup: SetupSpec::default(),
        keep: Vec::new(),
        setup_timeout: Duration::ZERO,
        files: Arc::new(RealFileSystem::default()),
        clock: Arc::new(SystemClock),
        durability: Durability::default(),
        program: Some(env!("CARGO_BIN_EXE_brigade").into()),
        sandbox: Sandbox::without_guard(),
    };
    GitRepository::open(root, options).await.unwrap()
}

async fn provision(root: &Path, number: u64) -> (GitRepository, Worktree) {
    let repository = open(root).await;
    match repository.provision(&assignment(number)).await.unwrap() {
        WorktreeOutcome::Ready(worktree) => (repository, worktree),
        other @ WorktreeOutcome::Merged { .. } => panic!("{other:?}"),
    }
}

async fn merge(repository: &GitRepository, worktree: &Worktree, number: u64) {
    let assignment = assignment(number);
    let commit = match repository.commit(worktree, "Work.").await.unwrap() {
        CommitOutcome::Committed(commit) => commit,
        refused @ CommitOutcome::Refused(_) => panic!("{refused:?}"),
    };
    let request = MergeRequest { commit, summary: "Work.".to_owned(), is_reported: true, reviewed_by: None };
    let merge: Merge = match repository.merge(worktree, request).await.unwrap() {
        MergeOutcome::Created(merge) => merge,
        other => panic!("{other:?}"),
    };
    verify(&repository.check_out(&merge).await.unwrap());
    assert_eq!(repository.publish(&merge, &assignment).await.unwrap(), PublishOutcome::Done(None));
    assert_eq!(repository.clean_up(worktree).await.unwrap(), None);
}
