//! Worktrees and merges on a repository of this project's size, compared with the same steps by git alone.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade::domain::task::TaskId;
use brigade::domain::team_spec::SetupSpec;
use brigade::domain::worktree_name::WORKTREES_FOLDER;
use brigade::embed::SystemClock;
use brigade::ports::{
    Assignment, Durability, Merge, MergeOutcome, MergeRequest, PublishOutcome, Repository, Worktree, WorktreeOutcome,
};
use brigade::sandbox::Sandbox;
use brigade::stores::fs::RealFileSystem;
use brigade::stores::git::{GitOptions, GitRepository};

use super::report::{Report, Target, format_figure, median, ms};
use super::workspace::{BenchWorkspace, spread_subfolders};

/// Repetitions of each measurement.
const REPETITIONS: u64 = 11;
/// The verify command of a merge, as long as a quick test.
const VERIFY: &str = "sleep 1";
/// The folder of the worktrees that git makes without Brigade.
const BARE_FOLDER: &str = ".bare";
/// The folders of this project that are copied into the repository.
const FOLDERS: [&str; 4] = ["src", "tests", "benches", "prompts"];

pub fn measure(report: &mut Report) {
    let workspace = BenchWorkspace::new();
    let files: usize = FOLDERS
        .iter()
        .map(|folder| copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &workspace.join(folder)))
        .sum();
    git(workspace.path(), &["init", "-q", "-b", "main", "."]);
    git(workspace.path(), &["config", "user.name", "Bench"]);
    git(workspace.path(), &["config", "user.email", "bench@example.invalid"]);
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async { open(workspace.path()).await.prepare_launch(Vec::new()).await }).unwrap();
    // Each repetition removes two worktrees.
    for folder in [BARE_FOLDER, WORKTREES_FOLDER] {
        let folder = workspace.join(folder);
        fs::create_dir_all(&folder).unwrap();
        spread_subfolders(&folder);
    }
    let (mut worktree_times, mut git_worktree_times) = (Vec::new(), Vec::new());
    let (mut merge_times, mut git_merge_times) = (Vec::new(), Vec::new());
    for number in 1..=REPETITIONS {
        let started_at = Instant::now();
        let bare = bare_worktree(workspace.path(), number);
        git_worktree_times.push(ms(started_at.elapsed()));
        let started_at = Instant::now();
        let (repository, worktree) = runtime.block_on(provision(workspace.path(), number));
        worktree_times.push(ms(started_at.elapsed()));
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
    let comparison = format!("git worktree add alone: {}", format_figure(median(&git_worktree_times), "ms"));
    report.add(format!("a worktree of {files} files"), median(&worktree_times), "ms", Target::Below(150.0), comparison);
    let comparison = format!(
        "by git alone {}, by Brigade {}",
        format_figure(median(&git_merge_times), "ms"),
        format_figure(median(&merge_times), "ms")
    );
    let more = (median(&merge_times) / median(&git_merge_times) - 1.0) * 100.0;
    report.add("extra time of a merge with a verify of 1 s", more, "%", Target::Below(5.0), comparison);
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
    let commit = repository.commit(worktree, "Work.").await.unwrap().unwrap();
    let request = MergeRequest { commit, summary: "Work.".to_owned(), is_reported: true, reviewed_by: None };
    let merge: Merge = match repository.merge(worktree, request).await.unwrap() {
        MergeOutcome::Created(merge) => merge,
        other => panic!("{other:?}"),
    };
    verify(&repository.check_out(&merge).await.unwrap());
    assert_eq!(repository.publish(&merge, &assignment).await.unwrap(), PublishOutcome::Done(None));
    assert_eq!(repository.clean_up(worktree).await.unwrap(), None);
}
