//! A teammate that uses git in its task's worktree, and the person beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade::domain::agent::access::PathRule;
use brigade::ports::{CommandPlace, MergeOutcome, PublishOutcome, Repository, Worktree};
use brigade::sandbox::{CommandExit, Sandbox};
use brigade::service::merge::git_variables;

use crate::harness::{TestRepository, git, reported};
use crate::testkit::process::{files_below, guard};

/// The end of a command that hangs.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(120);

/// Runs a script in the task's worktree as a command of its teammate, and returns its exit and output.
pub fn try_run(repo: &TestRepository, worktree: &Worktree, script: &str) -> (CommandExit, String) {
    run_with(repo, worktree, script, &[])
}

/// Runs a script as [`try_run`], with further rules.
pub fn run_with(repo: &TestRepository, worktree: &Worktree, script: &str, rules: &[PathRule]) -> (CommandExit, String) {
    let mut all = repo.repository.boundaries(CommandPlace::Task(worktree));
    all.extend_from_slice(rules);
    let sandbox = Sandbox::open(guard(), &worktree.root, all).unwrap();
    // Git copies no submodule from this machine without the last variable.
    let variables = git_variables(worktree).into_iter().chain([("GIT_ALLOW_PROTOCOL", "file".to_owned())]);
    let variables: Vec<_> = variables.map(|(name, value)| (name.to_owned(), value)).collect();
    let script = format!("exec 2>&1\nset -e\n{script}");
    sandbox.output_with(&script, &worktree.root, &variables, COMMAND_TIME_MAX).unwrap()
}

/// Runs a script as [`try_run`]. It must succeed.
pub fn run(repo: &TestRepository, worktree: &Worktree, script: &str) -> String {
    let (exit, output) = try_run(repo, worktree, script);
    assert_eq!(exit, CommandExit::Code(0), "{script}\n{output}");
    output.trim_end().to_owned()
}

/// Reports the work, merges, publishes and cleans up. Calls `between` after each step.
pub async fn finish(repo: &TestRepository, worktree: &Worktree, between: impl Fn()) {
    publish(repo, worktree, &between).await;
    assert_eq!(repo.clean_up(worktree).await, None);
    assert!(!worktree.root.exists());
    between();
    assert_eq!(repo.team_status(), "");
}

/// Reports the work, merges and publishes it. Calls `between` after each step.
pub async fn publish(repo: &TestRepository, worktree: &Worktree, between: impl Fn()) {
    let commit = repo.commit(worktree).await;
    between();
    let merge = match repo.repository.merge(worktree, reported(&commit)).await.unwrap() {
        MergeOutcome::Created(merge) => merge,
        other => panic!("{} is not merged: {other:?}", worktree.name),
    };
    between();
    repo.repository.check_out(&merge).await.unwrap();
    between();
    let published = repo.repository.publish(&merge, &worktree.assignment).await.unwrap();
    assert_eq!(published, PublishOutcome::Done(None));
    between();
}

/// Everything of the person's that Brigade leaves as it is: checkout, branches, tags, settings, hooks and exclude file.
#[derive(Debug, PartialEq, Eq)]
pub struct PersonState {
    head: String,
    status: String,
    refs: Vec<String>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl PersonState {
    pub fn of(repo: &TestRepository) -> Self {
        let is_of_person = |line: &&str| !line.contains(" refs/heads/brigade") && !line.contains(" refs/brigade");
        let refs = repo.git(&["for-each-ref", "--format=%(objectname) %(refname)"]);
        let git_dir = common_dir(repo.path());
        let mut files = vec![git_dir.join("config"), git_dir.join("config.worktree"), git_dir.join("info/exclude")];
        files.extend(files_below(&git_dir.join("hooks")));
        Self {
            head: fs::read_to_string(repo.git(&["rev-parse", "--absolute-git-dir"]) + "/HEAD").unwrap(),
            status: repo.git(&["status", "--porcelain"]),
            refs: refs.lines().filter(is_of_person).map(str::to_owned).collect(),
            // A file may be missing.
            files: files.into_iter().map(|file| (file.clone(), fs::read(&file).unwrap_or_default())).collect(),
        }
    }
}

/// The git folder that all checkouts of a repository share.
pub fn common_dir(folder: &Path) -> PathBuf {
    git(folder, &["rev-parse", "--path-format=absolute", "--git-common-dir"]).into()
}
