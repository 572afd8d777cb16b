//! Locks in the place of a task: those of a killed git are removed at the report, those of a living one are waited for.

use std::fs;
use std::time::Duration;

use brigade::ports::Repository;

use crate::harness::{TestRepository, committed, insert_after};
use crate::testkit::process::{git_command, wait_until};

#[tokio::test]
async fn report_removes_locks_of_killed_git() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    insert_after(&worktree.root, "f.txt", "line 2", "work");
    let git_dir = worktree.root.join(".git");
    let locks = ["index.lock", "HEAD.lock", "packed-refs.lock", "packed-refs.new", "config.lock", "shallow.lock"];
    let of_branch = format!("refs/heads/{}.lock", worktree.branch.short());
    for lock in locks.into_iter().chain([of_branch.as_str()]) {
        fs::write(git_dir.join(lock), "").unwrap();
    }
    repo.commit(&worktree).await;
    for lock in locks.into_iter().chain([of_branch.as_str()]) {
        assert!(!git_dir.join(lock).exists(), "{lock}");
    }
    assert_eq!(repo.merge(&worktree).await, None);
    assert!(repo.team_file("f.txt").contains("work"));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn report_waits_for_lock_of_living_git() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    insert_after(&worktree.root, "f.txt", "line 2", "work");
    let (lock, go) = (worktree.root.join(".git/index.lock"), repo.path().join(".git/go"));
    let editor = format!("while ! test -e '{}'; do sleep 0.02; done; echo Own >", go.display());
    // Git holds the lock of its index while the editor is open.
    let mut living = git_command(&worktree.root, &["commit", "-q", "-a"]).env("GIT_EDITOR", editor).spawn().unwrap();
    wait_until("git holds its lock", || lock.exists());
    let mut report = tokio::spawn({
        let (repository, worktree) = (repo.repository.clone(), worktree.clone());
        async move { repository.commit(&worktree, "Done so.").await }
    });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut report).await;
    assert!(early.is_err(), "{early:?}");
    assert!(lock.exists(), "the lock is not removed");
    fs::write(&go, "").unwrap();
    assert!(living.wait().unwrap().success());
    committed(report.await.unwrap().unwrap());
    assert_eq!(repo.git(&["log", "-1", "--format=%s", worktree.branch.short()]), "Own");
}
