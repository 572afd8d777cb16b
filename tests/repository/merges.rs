//! Merges: every line is accounted for in all combinations, and the branch is complete at every moment.

use std::fs;
use std::path::Path;

use brigade::ports::{MergeOutcome, PublishOutcome, Repository};

use crate::harness::{TestRepository, edit, git, git_any, put, task, texts};
use crate::lines::{assert_no_lines_lost, missing};

/// The branches of a task, and the content of its refs.
fn refs(repo: &TestRepository) -> String {
    repo.git(&["for-each-ref", "--format=%(refname)", "refs/brigade"])
}

#[tokio::test]
async fn branches_changing_same_file_merge_with_all_lines() {
    let repo = TestRepository::new().await;
    let mut worktrees = Vec::new();
    for (id, behind) in [(1, "line 2"), (2, "line 5"), (3, "line 8")] {
        worktrees.push(repo.done(id, |root| put(root, "f.txt", behind, &format!("of task {id}"))).await);
    }
    for (id, worktree) in (1..).zip(&worktrees) {
        assert_eq!(repo.merged(id, worktree).await, None);
        assert_eq!(repo.clear(id, worktree).await, None);
    }
    for id in 1..=3 {
        assert!(repo.on_team("f.txt").contains(&format!("of task {id}")));
    }
    assert_no_lines_lost(repo.path(), "brigade/crew");
    assert_eq!(fs::read_to_string(repo.team().join("f.txt")).unwrap().trim_end(), repo.on_team("f.txt"));
    assert_eq!((repo.status(), repo.team_status()), (String::new(), String::new()));
    repo.git(&["fsck", "--strict", "--no-dangling"]);
}

/// Two tasks add lines at the same place; the author of the second one merges with `resolve`.
async fn conflict(resolve: impl FnOnce(&Path)) -> (TestRepository, brigade::ports::Worktree) {
    let repo = TestRepository::new().await;
    let first = repo.done(1, |root| put(root, "f.txt", "line 5", "first")).await;
    let second = repo.done(2, |root| put(root, "f.txt", "line 5", "second")).await;
    assert_eq!(repo.merged(1, &first).await, None);
    let before = repo.tip();
    let evidence = repo.refused(2, &second).await;
    assert!(evidence.contains("conflict in f.txt") && evidence.contains("git merge brigade/crew"), "{evidence}");
    assert!(evidence.contains("+second") && evidence.contains("<<<<<<<"), "{evidence}");
    assert_eq!((repo.tip(), repo.status()), (before, String::new()), "the failed merge left changes");
    assert_ne!(git_any(&second.root, &["merge", "brigade/crew"]).0, Some(0));
    resolve(&second.root);
    git(&second.root, &["add", "-A"]);
    git(&second.root, &["commit", "-q", "--no-edit"]);
    repo.commit(2, &second).await;
    (repo, second)
}

fn without_marks(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with(['<', '=', '>'])).map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn resolved_conflict_keeping_all_lines_is_merged() {
    let (repo, second) = conflict(|root| edit(root, "f.txt", |text| without_marks(&text))).await;
    assert_eq!(repo.merged(2, &second).await, None);
    let text = repo.on_team("f.txt");
    assert!(text.contains("first\n") && text.contains("second\n"), "{text}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn resolution_dropping_lines_needs_trailer() {
    let (repo, second) = conflict(|root| {
        git(root, &["checkout", "--ours", "f.txt"]);
    })
    .await;
    let refused = repo.refused(2, &second).await;
    assert!(refused.contains("drops lines") && refused.contains("\n  first"), "{refused}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
    git(&second.root, &["commit", "-q", "--amend", "--no-edit", "--trailer", "Brigade-Drops: second says it all"]);
    repo.commit(2, &second).await;
    assert_eq!(repo.merged(2, &second).await, None);
    assert!(!repo.on_team("f.txt").contains("first"));
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn test_checker_finds_line_lost_by_merge() {
    let repo = TestRepository::new().await;
    repo.git(&["checkout", "-q", "-b", "side"]);
    put(repo.path(), "f.txt", "line 5", "side");
    repo.git(&["commit", "-q", "-a", "-m", "Side"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.git(&["merge", "-q", "--no-ff", "-s", "ours", "side", "-m", "Lose it"]);
    let lost = missing(repo.path(), "main");
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].1, ("f.txt".to_owned(), "side".to_owned()));
}

#[tokio::test]
async fn merge_driver_dropping_lines_is_refused() {
    let repo = TestRepository::new().await;
    repo.git(&["config", "merge.mine.driver", "true"]);
    fs::write(repo.path().join(".gitattributes"), "f.txt merge=mine -diff\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Attributes"]);
    let first = repo.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let second = repo.done(2, |root| put(root, "f.txt", "line 8", "second")).await;
    assert_eq!(repo.merged(1, &first).await, None);
    let refused = repo.refused(2, &second).await;
    assert!(refused.contains("would drop lines") && refused.contains("\n  second"), "{refused}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn renamed_file_keeps_lines_added_by_others() {
    let repo = TestRepository::new().await;
    let first = repo.done(1, |root| {
        git(root, &["mv", "f.txt", "g.txt"]);
    });
    let first = first.await;
    let second = repo.done(2, |root| put(root, "f.txt", "line 5", "second")).await;
    assert_eq!(repo.merged(1, &first).await, None);
    assert_eq!(repo.merged(2, &second).await, None);
    assert!(repo.on_team("g.txt").contains("second"));
}

#[tokio::test]
async fn delete_and_change_of_file_is_a_conflict() {
    let repo = TestRepository::new().await;
    let first = repo.done(1, |root| fs::remove_file(root.join("f.txt")).unwrap()).await;
    let second = repo.done(2, |root| put(root, "f.txt", "line 5", "second")).await;
    assert_eq!(repo.merged(1, &first).await, None);
    assert!(repo.refused(2, &second).await.contains("conflict in f.txt"));
}

#[tokio::test]
async fn branch_changing_control_files_is_refused() {
    let repo = TestRepository::new().await;
    let worktree = repo.done(1, |root| edit(root, "brigade.toml", |_| "mine\n".to_owned())).await;
    let refused = repo.refused(1, &worktree).await;
    assert!(refused.contains("brigade.toml"), "{refused}");
    // Another file here; the same file on a file system that ignores case.
    let worktree = repo.done(2, |root| fs::write(root.join("Brigade.toml"), "mine\n").unwrap()).await;
    let refused = repo.refused(2, &worktree).await;
    assert!(refused.contains("Brigade.toml"), "{refused}");
}

#[tokio::test]
async fn branch_moved_during_merge_is_merged_again() {
    let repo = TestRepository::new().await;
    let worktree = repo.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.made(1, &worktree).await;
    put(&repo.team(), "f.txt", "line 8", "person's");
    git(repo.team(), &["commit", "-q", "-a", "-m", "Person"]);
    let before = repo.tip();
    assert_eq!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Moved);
    assert_eq!((repo.tip(), refs(&repo)), (before, String::new()));
    assert_eq!(repo.merged(1, &worktree).await, None);
    let text = repo.on_team("f.txt");
    assert!(text.contains("mine") && text.contains("person's"), "{text}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn refs_of_completed_task_are_removed_at_launch() {
    let repo = TestRepository::new().await;
    let worktree = repo.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(repo.merged(1, &worktree).await, None);
    assert_eq!(refs(&repo), "refs/brigade/crew/merged/task-1");
    assert_eq!(texts(repo.repository.prepare_launch(vec![task(1)]).await.unwrap().notices), [""; 0]);
    assert_eq!(repo.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/brigade/crew\nrefs/heads/main");
    assert!(!worktree.root.exists());
}

#[tokio::test]
async fn merge_worktree_keeps_ignored_files_between_merges() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitignore"), "build/\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Ignore"]);
    let first = repo.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let merge = repo.made(1, &first).await;
    let scratch = repo.repository.check_out(&merge).await.unwrap();
    fs::create_dir(scratch.join("build")).unwrap();
    fs::write(scratch.join("build/cache"), "x").unwrap();
    fs::write(scratch.join("litter.txt"), "x").unwrap();
    edit(&scratch, "f.txt", |_| "spoiled by a verify\n".to_owned());
    assert!(matches!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Done(None)));
    let second = repo.done(2, |root| put(root, "f.txt", "line 8", "second")).await;
    let merge = repo.made(2, &second).await;
    assert_eq!(repo.repository.check_out(&merge).await.unwrap(), scratch);
    let text = fs::read_to_string(scratch.join("f.txt")).unwrap();
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert!(scratch.join("build/cache").exists() && !scratch.join("litter.txt").exists());
    repo.launch().await;
    assert!(!scratch.exists(), "a new launch kept the folder");
}

#[tokio::test]
async fn merged_branch_is_not_merged_again() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    assert_eq!(repo.try_merge(1, &worktree).await, MergeOutcome::UpToDate(repo.tip()));
}
