//! The texts that a person reads about the commits of a task.

use std::fs;

use brigade::git::GitRepository;

use crate::harness::{TestRepository, git, insert_after};

const TEAM_BRANCH: &str = "brigade/crew";

#[tokio::test]
async fn review_diff_shows_only_work_of_task() {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "by first")).await;
    let second = repo.provision(2).await;
    insert_after(&second.root, "f.txt", "line 8", "by second");
    let commit = repo.commit(&second).await;
    repo.merge(&first).await;
    let diff = |summary| GitRepository::review_diff(repo.path(), Some(&TEAM_BRANCH.into()), &commit, summary).unwrap();
    let before = diff(None);
    assert!(before.contains("\n+by second\n") && !before.contains("+by first"), "{before}");
    assert!(diff(Some(80)).contains("1 file changed, 1 insertion(+)"), "{}", diff(Some(80)));
    assert_eq!(repo.merge(&second).await, None);
    insert_after(repo.path(), "f.txt", "line 9", "later");
    repo.git(&["commit", "-q", "-a", "-m", "Later"]);
    assert_eq!(diff(None), before, "after the merge");
    assert!(GitRepository::review_diff(repo.path(), Some(&TEAM_BRANCH.into()), "--output=x", None).is_err());
    let missing = GitRepository::review_diff(repo.path(), Some(&TEAM_BRANCH.into()), &"1".repeat(40), None)
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("cannot show the diff: the repository does not have the commit"), "{missing}");
}

#[tokio::test]
async fn review_diff_runs_no_program_of_the_repository() {
    let repo = TestRepository::new().await;
    let program = format!("touch {}; cat", repo.path().join("ran").display());
    for setting in ["diff.external", "diff.evil.textconv", "diff.evil.command", "core.pager", "pager.diff"] {
        repo.git(&["config", setting, &program]);
    }
    let worktree = repo
        .worktree_with(1, |root| {
            fs::write(root.join(".gitattributes"), "* diff=evil\n").unwrap();
            insert_after(root, "f.txt", "line 1", "more");
        })
        .await;
    let commit = repo.git(&["rev-parse", &worktree.branch.full()]);
    let diff = GitRepository::review_diff(repo.path(), Some(&TEAM_BRANCH.into()), commit.trim(), None).unwrap();
    assert!(diff.contains("+more") && !repo.path().join("ran").exists(), "{diff}");
}

#[tokio::test]
async fn merge_tells_reasons_for_dropped_lines() {
    let repo = TestRepository::new().await;
    let worktree = repo
        .worktree_with(1, |root| {
            insert_after(root, "f.txt", "line 1", "more");
            git(root, &["commit", "-q", "-a", "-m", "More", "-m", "Brigade-Drops: the old list was wrong"]);
            insert_after(root, "f.txt", "line 2", "even more");
        })
        .await;
    let merge = repo.create_merge(&worktree).await;
    let reasons = |commit: &str| GitRepository::dropped_line_reasons(repo.path(), commit).unwrap();
    assert_eq!(reasons(&merge.commit), ["the old list was wrong"]);
    assert!(reasons(&merge.onto).is_empty(), "no merge");
    assert!(reasons("--all").is_empty());
}
