//! `brigade merge`: the person takes the team branch over. If git cannot merge, nothing is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use brigade::stores::git::GitRepository;
use brigade::stores::git::take_over::TakeOver;

use super::harness::{TestRepository, edit, git, insert_after};

/// A repository whose team branch has one merge.
async fn merged() -> TestRepository {
    let repo = TestRepository::new().await;
    for (key, value) in [("user.name", "Person"), ("user.email", "person@example.invalid")] {
        repo.git(&["config", key, value]);
    }
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.clean_up(&worktree).await, None);
    repo
}

fn take_over(repo: &TestRepository) -> Result<TakeOver, String> {
    GitRepository::take_over(repo.path(), "brigade/crew").map_err(|error| error.to_string())
}

fn commits_ahead(repo: &TestRepository) -> usize {
    GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap().commits_ahead
}

#[tokio::test]
async fn take_over_fast_forwards_or_merges() {
    let repo = merged().await;
    assert_eq!(commits_ahead(&repo), 2);
    fs::write(repo.path().join("own.txt"), "unsaved\n").unwrap();
    let before = repo.git(&["rev-parse", "HEAD"]);
    let taken = take_over(&repo).unwrap();
    assert_eq!(taken, TakeOver { into: "main".into(), before, after: repo.team_tip() });
    assert_eq!((repo.checkout_status().as_str(), commits_ahead(&repo)), ("?? own.txt", 0));
    assert!(fs::read_to_string(repo.path().join("f.txt")).unwrap().contains("of the team"));
    let again = take_over(&repo).unwrap();
    assert_eq!(again.before, again.after, "there is nothing to merge");
    // Both sides have commits.
    let worktree = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 9", "more")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    insert_after(repo.path(), "f.txt", "line 5", "mine");
    repo.git(&["commit", "-q", "-a", "-m", "Mine"]);
    let taken = take_over(&repo).unwrap();
    assert_eq!(repo.git(&["log", "-1", "--format=%an %s"]), "Person Merge branch 'brigade/crew'");
    assert_eq!(repo.git(&["rev-parse", "HEAD^2"]), repo.team_tip());
    assert_eq!(repo.git(&["rev-parse", "HEAD"]), taken.after);
    // The next launch continues from there.
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(repo.team_tip(), taken.after);
}

/// Adds a file to the team branch, where the person has an ignored one.
fn add_ignored_file(repo: &TestRepository) {
    fs::create_dir(repo.team_worktree().join("own")).unwrap();
    fs::write(repo.team_worktree().join("own/env"), "of the team\n").unwrap();
    git(repo.team_worktree(), &["add", "--force", "own/env"]);
    git(repo.team_worktree(), &["commit", "-q", "-m", "Env"]);
    fs::write(repo.path().join(".git/info/exclude"), "own\n").unwrap();
    fs::create_dir(repo.path().join("own")).unwrap();
    fs::write(repo.path().join("own/env"), "mine\n").unwrap();
}

#[tokio::test]
async fn failed_take_over_changes_nothing() {
    type Prepare = fn(&TestRepository);
    let cases: [(Prepare, &str, &str); 9] = [
        (
            |repo| edit(repo.path(), "f.txt", |text| text + "unsaved\n"),
            "uncommitted changes or untracked files: f.txt",
            "git stash",
        ),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 2", "mine");
                repo.commit_as_person();
                fs::write(repo.path().join("own.txt"), "unsaved\n").unwrap();
            },
            "it conflicts with main in f.txt. Nothing was changed",
            "`git merge brigade/crew`, resolve the conflicts",
        ),
        (|repo| add_ignored_file(repo), "it would overwrite untracked or ignored files: own/env", "move the files"),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                add_ignored_file(repo);
            },
            "it would overwrite untracked or ignored files: own/env",
            "move the files",
        ),
        (|repo| drop(repo.git(&["switch", "-q", "--detach"])), "no branch is checked out", "git switch BRANCH"),
        (
            |repo| {
                repo.git(&["switch", "-q", "-c", "side"]);
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                repo.git(&["switch", "-q", "main"]);
                repo.git(&["merge", "-q", "--no-ff", "--no-commit", "side"]);
            },
            "a merge is unfinished",
            "git merge --abort",
        ),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                let hook = repo.path().join(".git/hooks/pre-merge-commit");
                fs::create_dir_all(hook.parent().unwrap()).unwrap();
                fs::write(&hook, "#!/bin/sh\necho not today\nexit 1\n").unwrap();
                fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
            },
            "not today",
            "git merge brigade/crew",
        ),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                repo.git(&["config", "merge.ff", "only"]);
            },
            "fast-forward",
            "",
        ),
        (|repo| drop(repo.git(&["update-ref", "-d", "refs/heads/brigade/crew"])), "there is no such branch", ""),
    ];
    for (prepare, reason, hint) in cases {
        let repo = merged().await;
        prepare(&repo);
        let state = || {
            let files = ["f.txt", "own/env", ".git/HEAD", ".git/refs/heads/main"]
                .map(|file| fs::read(repo.path().join(file)).ok());
            (files, repo.checkout_status(), repo.path().join(".git/MERGE_HEAD").exists())
        };
        let before = state();
        let error = take_over(&repo).unwrap_err();
        assert!(error.contains(reason) && error.contains(hint), "{reason}: {error}");
        assert_eq!(state(), before, "{reason}");
    }
}

#[tokio::test]
async fn launch_check_finds_conflict_and_rebase() {
    let check =
        |repo: &TestRepository| GitRepository::check_launch(repo.path(), "crew").map_err(|error| error.to_string());
    let repo = merged().await;
    assert_eq!(check(&repo), Ok(()));
    insert_after(repo.path(), "f.txt", "line 9", "mine");
    repo.commit_as_person();
    assert_eq!(check(&repo), Ok(()), "the branches can be merged");
    insert_after(repo.path(), "f.txt", "line 2", "mine");
    repo.commit_as_person();
    let conflict = check(&repo).unwrap_err();
    assert!(conflict.starts_with("cannot merge your branch into brigade/crew: conflict in f.txt"), "{conflict}");
    fs::create_dir(repo.path().join(".git/rebase-merge")).unwrap();
    assert!(check(&repo).unwrap_err().contains("a rebase is unfinished in your checkout"));
}
