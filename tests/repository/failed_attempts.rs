//! The worktree after a failed attempt: the next one starts at the team branch, and a branch keeps the work.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use brigade::domain::task::failed_attempt::FailedAttempt;
use brigade::domain::task::{Task, TaskId};
use brigade::git::GitRepository;
use brigade::ports::{Assignment, Repository, WorkInspector, Worktree, WorktreeOutcome};

use crate::harness::{TestRepository, git, git_output, insert_after, leftover_work, open, task};

const KEPT: &str = "brigade-tasks/crew/task-1-attempt-1";

/// Task 1 in this attempt. `failed` is its last failed attempt.
fn attempt(number: u32, failed: Option<u32>) -> Assignment {
    let reason = "verify failed".to_owned();
    let failed = failed.map(|attempt| FailedAttempt { attempt, owner: "bob".to_owned(), reason });
    Assignment { attempt: number, failed, ..task(1) }
}

async fn provision(repo: &TestRepository, assignment: &Assignment) -> Worktree {
    match repo.repository.provision(assignment).await.unwrap() {
        WorktreeOutcome::Ready(worktree) => worktree,
        merged @ WorktreeOutcome::Merged { .. } => panic!("already merged: {merged:?}"),
    }
}

/// Provisions the first attempt, lets it work, and records its end.
async fn fail_first_attempt(repo: &TestRepository, work: impl FnOnce(&Path)) -> Worktree {
    assert_eq!(repo.launch().await, [""; 0]);
    let worktree = provision(repo, &attempt(1, None)).await;
    work(&worktree.root);
    repo.repository.record_attempt_end(&worktree).await.unwrap();
    worktree
}

/// A committed change, a change that is not committed, and a new file.
fn work(root: &Path) {
    insert_after(root, "f.txt", "line 3", "committed");
    git(root, &["-c", "user.email=bob@brigade.invalid", "commit", "-q", "-a", "-m", "Half"]);
    insert_after(root, "f.txt", "line 4", "changed");
    fs::create_dir(root.join("new")).unwrap();
    fs::write(root.join("new/file.txt"), "new\n").unwrap();
}

fn branches(repo: &TestRepository) -> Vec<String> {
    let names = repo.git(&["for-each-ref", "--format=%(refname:short)", "refs/heads/brigade-tasks"]);
    names.lines().map(str::to_owned).collect()
}

/// Checks that a worktree has the files of the team branch, and nothing else.
fn assert_new(repo: &TestRepository, worktree: &Worktree) {
    assert_eq!(worktree.leftover_work, None);
    assert_eq!(git(&worktree.root, &["status", "--porcelain"]), "");
    assert_eq!(git(&worktree.root, &["rev-parse", "HEAD"]), repo.team_tip());
    assert_eq!(git(&worktree.root, &["branch", "--show-current"]), "brigade-tasks/crew/task-1");
    assert!(!worktree.root.join("new").exists());
}

fn assert_kept(repo: &TestRepository, branch: &str) {
    let text = repo.git(&["show", &format!("{branch}:f.txt")]);
    assert!(text.contains("committed\n") && text.contains("changed\n"), "{text}");
    assert_eq!(repo.git(&["show", &format!("{branch}:new/file.txt")]), "new");
}

#[tokio::test]
async fn retry_starts_at_team_branch_and_work_is_kept() {
    let repo = TestRepository::new().await;
    let first = fail_first_attempt(&repo, work).await;
    let other = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 8", "of another task")).await;
    assert_eq!(repo.merge(&other).await, None);
    let second = provision(&repo, &attempt(2, Some(1))).await;
    assert_eq!((&second.root, second.kept_branch.as_ref()), (&first.root, Some(&KEPT.into())));
    assert_eq!(second.warnings, [""; 0]);
    assert_new(&repo, &second);
    assert!(fs::read_to_string(second.root.join("f.txt")).unwrap().contains("of another task"));
    assert_kept(&repo, KEPT);
    let format = "--format=%an <%ae>|%s|%(trailers:separator=%x2c,key=Brigade-Attempt)";
    assert_eq!(
        repo.git(&["log", "-1", format, KEPT]),
        "bob (crew) <bob@brigade.invalid>|Attempt 1 failed: Do 1|Brigade-Attempt: 1"
    );
    insert_after(&second.root, "f.txt", "line 3", "right");
    repo.commit(&second).await;
    let unmerged = repo.repository.unmerged_work(&Task::new(TaskId(1), "Do 1")).await.unwrap();
    assert_eq!(unmerged.branches, ["brigade-tasks/crew/task-1"], "the kept branch is no work to merge");
    assert_eq!(repo.merge(&second).await, None);
    assert_eq!(repo.clean_up(&second).await, None);
    assert_eq!(branches(&repo), [KEPT, "brigade-tasks/crew/task-2"]);
}

#[tokio::test]
async fn crash_after_failed_attempt_resumes_in_worktree() {
    let repo = TestRepository::new().await;
    fail_first_attempt(&repo, work).await;
    let second = provision(&repo, &attempt(2, Some(1))).await;
    fs::write(second.root.join("half.txt"), "half\n").unwrap();
    let third = provision(&repo, &attempt(3, Some(1))).await;
    assert_eq!((third.leftover_work, &third.kept_branch), (leftover_work(0, 1), &None));
    assert!(third.root.join("half.txt").exists());
    repo.repository.record_attempt_end(&second).await.unwrap();
    let end = fs::read_to_string(third.root.join(".agent/end")).unwrap_or_default();
    assert!(!end.starts_with("2 "), "attempt 3 works there");
    repo.repository.record_attempt_end(&third).await.unwrap();
    let fourth = provision(&repo, &attempt(4, Some(3))).await;
    assert_new(&repo, &fourth);
    assert_eq!(branches(&repo), ["brigade-tasks/crew/task-1", KEPT, "brigade-tasks/crew/task-1-attempt-3"]);
}

#[tokio::test]
async fn worktree_changed_by_person_is_continued() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("an edit", |root| insert_after(root, "f.txt", "line 9", "person's")),
        ("an edit in a new folder", |root| fs::write(root.join("new/file.txt"), "person's\n").unwrap()),
        ("a new file", |root| fs::write(root.join("new/other.txt"), "person's\n").unwrap()),
        ("a removed file", |root| fs::remove_file(root.join("new/file.txt")).unwrap()),
        ("a commit", |root| drop(git(root, &["commit", "-q", "-a", "-m", "The person's"]))),
    ];
    for (case, change) in changes {
        let repo = TestRepository::new().await;
        let first = fail_first_attempt(&repo, work).await;
        change(&first.root);
        let second = provision(&repo, &attempt(2, Some(1))).await;
        assert!(second.leftover_work.is_some() && second.kept_branch.is_none(), "{case}: {second:?}");
        assert!(second.warnings[0].contains("was changed after the attempt failed"), "{case}: {:?}", second.warnings);
        assert!(fs::read_to_string(second.root.join("f.txt")).unwrap().contains("changed"), "{case}");
        // If that attempt fails, the next one starts in a new worktree, and the person's change is kept.
        repo.repository.record_attempt_end(&second).await.unwrap();
        assert_new(&repo, &provision(&repo, &attempt(3, Some(2))).await);
        assert_eq!(branches(&repo), ["brigade-tasks/crew/task-1", "brigade-tasks/crew/task-1-attempt-2"], "{case}");
    }
}

#[tokio::test]
async fn commits_of_person_are_never_rewritten() {
    let repo = TestRepository::new().await;
    let first = fail_first_attempt(&repo, work).await;
    git(&first.root, &["commit", "-q", "-a", "-m", "The person's"]);
    let of_person = git(&first.root, &["rev-parse", "HEAD"]);
    let second = provision(&repo, &attempt(2, Some(1))).await;
    insert_after(&second.root, "f.txt", "line 9", "more");
    git(&second.root, &["-c", "user.email=alice@brigade.invalid", "commit", "-q", "-a", "-m", "More"]);
    let tip = repo.commit(&second).await;
    assert_eq!(git_output(repo.path(), &["merge-base", "--is-ancestor", &of_person, &tip]).0, Some(0));
    let log = repo.git(&["log", "--format=%s", "main..brigade-tasks/crew/task-1"]);
    assert_eq!(log, "Do 1\nMore\nThe person's\nHalf");
    assert_eq!(repo.merge(&second).await, None);
    assert_eq!(git_output(repo.path(), &["merge-base", "--is-ancestor", &of_person, "brigade/crew"]).0, Some(0));

    // A commit that a person makes during the attempt is kept with it.
    let repo = TestRepository::new().await;
    let mut of_person = String::new();
    fail_first_attempt(&repo, |root| {
        work(root);
        git(root, &["commit", "-q", "-a", "-m", "The person's"]);
        of_person = git(root, &["rev-parse", "HEAD"]);
    })
    .await;
    provision(&repo, &attempt(2, Some(1))).await;
    assert_eq!(git_output(repo.path(), &["merge-base", "--is-ancestor", &of_person, KEPT]).0, Some(0));
}

#[tokio::test]
async fn killed_retry_loses_nothing_and_is_completed() {
    // Killed after each of these: the branch exists, the worktree is renamed, the task's branch is deleted. Then the next claim continues,
    // or the one after a second kill.
    for (step, next) in (0..4).flat_map(|step| [(step, 2), (step, 3)]) {
        let repo = TestRepository::new().await;
        let first = fail_first_attempt(&repo, work).await;
        git(&first.root, &["add", "-A"]);
        let tree = git(&first.root, &["write-tree"]);
        git(&first.root, &["reset", "-q"]);
        let commit = git(&first.root, &["commit-tree", &tree, "-p", "HEAD", "-m", "Attempt 1 failed"]);
        if step > 0 {
            repo.git(&["fetch", "-q", &first.root.display().to_string(), &commit]);
            repo.git(&["update-ref", &format!("refs/heads/{KEPT}"), &commit]);
        }
        if step > 1 {
            fs::rename(&first.root, repo.path().join(".worktrees/.gone-crew-task-1")).unwrap();
        }
        if step > 2 {
            repo.git(&["update-ref", "-d", "refs/heads/brigade-tasks/crew/task-1"]);
        }
        let repo = TestRepository { repository: open(repo.path()).await.unwrap(), folder: repo.folder };
        assert_eq!(repo.launch().await, [""; 0], "{step}");
        assert_new(&repo, &provision(&repo, &attempt(next, Some(1))).await);
        assert_kept(&repo, KEPT);
        assert_eq!(branches(&repo), ["brigade-tasks/crew/task-1", KEPT], "{step}, {next}");
        assert!(!repo.path().join(".worktrees/.gone-crew-task-1").exists());
    }
}

#[tokio::test]
async fn unfinished_merge_is_kept_and_not_met_again() {
    let repo = TestRepository::new().await;
    assert_eq!(repo.launch().await, [""; 0]);
    let first = provision(&repo, &attempt(1, None)).await;
    insert_after(&first.root, "f.txt", "line 5", "mine");
    git(&first.root, &["commit", "-q", "-a", "-m", "Mine"]);
    let other = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 5", "theirs")).await;
    assert_eq!(repo.merge(&other).await, None);
    repo.fetch_target(&first);
    assert_ne!(git_output(&first.root, &["merge", "brigade/crew"]).0, Some(0), "the branches conflict");
    repo.repository.record_attempt_end(&first).await.unwrap();
    let second = provision(&repo, &attempt(2, Some(1))).await;
    assert_new(&repo, &second);
    let text = repo.git(&["show", &format!("{KEPT}:f.txt")]);
    assert!(text.contains("<<<<<<<") && text.contains("mine") && text.contains("theirs"), "{text}");
    assert_eq!(repo.git(&["rev-parse", &format!("{KEPT}^2")]), repo.team_tip(), "it merges the team branch");
    insert_after(&second.root, "f.txt", "line 5", "mine");
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
}

#[tokio::test]
async fn work_on_other_branch_is_kept_too() {
    let repo = TestRepository::new().await;
    fail_first_attempt(&repo, |root| {
        work(root);
        git(root, &["stash", "-q", "--include-untracked", "-m", "Older"]);
        insert_after(root, "f.txt", "line 2", "stashed");
        git(root, &["stash", "-q", "-m", "Newer"]);
        git(root, &["switch", "-q", "--detach", "main"]);
        insert_after(root, "f.txt", "line 9", "elsewhere");
        git(root, &["commit", "-q", "-a", "-m", "Elsewhere"]);
        insert_after(root, "f.txt", "line 1", "last");
    })
    .await;
    repo.git(&["switch", "-q", "brigade-tasks/crew/task-1"]);
    repo.git(&["commit", "-q", "--allow-empty", "-m", "Of the person"]);
    repo.git(&["switch", "-q", "main"]);
    assert_new(&repo, &provision(&repo, &attempt(2, Some(1))).await);
    let text = repo.git(&["show", &format!("{KEPT}:f.txt")]);
    assert!(text.contains("elsewhere") && text.contains("last"), "{text}");
    let subjects = repo.git(&["log", "--format=%s", &format!("main..{KEPT}")]);
    for subject in ["Half", "Elsewhere", "Older", "Newer", "Of the person"] {
        assert!(subjects.contains(subject), "{subject}: {subjects}");
    }
}

#[tokio::test]
async fn worktree_with_nested_repository_stays() {
    let repo = TestRepository::new().await;
    let first = fail_first_attempt(&repo, |root| {
        fs::create_dir(root.join("nested")).unwrap();
        git(root.join("nested"), &["init", "-q", "."]);
        fs::write(root.join("nested/precious.txt"), "x").unwrap();
        git(root.join("nested"), &["add", "-A"]);
        git(root.join("nested"), &["commit", "-q", "-m", "Nested"]);
    })
    .await;
    let second = provision(&repo, &attempt(2, Some(1))).await;
    assert_eq!(second.name, ".worktrees/crew-task-1-2");
    assert!(second.warnings[0].contains("stays unchanged (the nested repository nested is not empty)"), "{second:?}");
    assert!(first.root.join("nested/precious.txt").exists());
    assert_eq!(git(&second.root, &["rev-parse", "HEAD"]), repo.team_tip());
}

#[tokio::test]
async fn socket_in_worktree_does_not_block_retry() {
    let repo = TestRepository::new().await;
    fail_first_attempt(&repo, |root| {
        fs::remove_file(root.join("f.txt")).unwrap();
        drop(UnixListener::bind(root.join("f.txt")).unwrap());
    })
    .await;
    let second = provision(&repo, &attempt(2, Some(1))).await;
    assert_eq!(fs::read_to_string(second.root.join("f.txt")).unwrap(), crate::harness::ten_lines());
}

#[tokio::test]
async fn failed_attempt_without_work_leaves_no_branch() {
    let repo = TestRepository::new().await;
    fail_first_attempt(&repo, |_| {}).await;
    let second = provision(&repo, &attempt(2, Some(1))).await;
    assert_eq!(second.kept_branch, None);
    assert_new(&repo, &second);
    assert_eq!(branches(&repo), ["brigade-tasks/crew/task-1"]);
}

#[tokio::test]
async fn kept_branch_of_same_name_is_not_overwritten() {
    let repo = TestRepository::new().await;
    fail_first_attempt(&repo, work).await;
    let other = repo.git(&["commit-tree", "main^{tree}", "-p", "main", "-m", "Of an earlier board"]);
    repo.git(&["update-ref", &format!("refs/heads/{KEPT}"), &other]);
    let second = provision(&repo, &attempt(2, Some(1))).await;
    assert_eq!(second.kept_branch, Some("brigade-tasks/crew/task-1-attempt-1-2".into()));
    assert_eq!(repo.git(&["rev-parse", KEPT]), other);
    assert_kept(&repo, "brigade-tasks/crew/task-1-attempt-1-2");
    let kept = GitRepository::kept_attempts(repo.path()).unwrap();
    assert_eq!(kept.iter().map(|kept| (kept.task, kept.attempt)).collect::<Vec<_>>(), [(TaskId(1), 1); 2]);
    GitRepository::remove_kept_attempt(repo.path(), &kept[0]).unwrap();
    repo.git(&["switch", "-q", "brigade-tasks/crew/task-1-attempt-1-2"]);
    let error = GitRepository::remove_kept_attempt(repo.path(), &kept[1]).unwrap_err().to_string();
    assert!(error.contains("it is checked out in"), "{error}");
}
