//! Refs whose short names are those of Brigade's branches: tags, remote branches, and branches called `refs/heads/…`. None of them is
//! taken for a branch of Brigade, and none is changed.

use brigade::git::{DriverOptions, GitRepository};
use brigade::ports::Repository;

use super::harness::{TestRepository, git, git_output, insert_after, open, open_into, sandbox};

/// Refs that git prefers to a branch of the same short name, or finds if there is no such branch.
const DECOYS: [&str; 7] = [
    "refs/tags/brigade/crew",
    "refs/tags/brigade-tasks/crew/task-1",
    "refs/tags/main",
    "refs/tags/refs/heads/brigade/crew",
    "refs/heads/refs/heads/brigade/crew",
    "refs/heads/refs/heads/brigade-tasks/crew/task-1",
    "refs/remotes/brigade/crew",
];

/// Creates the decoys at a commit with an empty tree, and returns it.
fn create_decoys(repo: &TestRepository) -> String {
    let tree = repo.git(&["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let other = repo.git(&["commit-tree", &tree, "-m", "Other"]);
    DECOYS.iter().for_each(|name| drop(repo.git(&["update-ref", name, &other])));
    other
}

fn assert_decoys_stay(repo: &TestRepository, other: &str) {
    for name in DECOYS {
        assert_eq!(repo.git(&["show-ref", "--verify", "--hash", name]), other, "{name}");
    }
}

fn take_over(repo: &TestRepository) -> Result<String, String> {
    let program = Some(env!("CARGO_BIN_EXE_brigade").into());
    let drivers = DriverOptions { program, launch_sandbox: Some(sandbox(repo.path())) };
    let taken = GitRepository::take_over(repo.path(), "crew", &"brigade/crew".into(), &[], drivers);
    taken.map(|taken| taken.after).map_err(|error| error.to_string())
}

#[tokio::test]
async fn decoys_of_team_branch_are_no_branches() {
    let repo = TestRepository::new().await;
    let other = create_decoys(&repo);
    let begin = repo.git(&["rev-parse", "HEAD"]);
    let status = || GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap();
    assert_eq!(status().commits_ahead, 0, "there is no team branch yet");
    let worktree = repo.provision(1).await;
    assert_eq!(repo.team_tip(), begin, "it starts at the person's commit");
    insert_after(&worktree.root, "f.txt", "line 2", "of the team");
    repo.commit(&worktree).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.clean_up(&worktree).await, None);
    let (code, _) = git_output(repo.path(), &["show-ref", "--verify", "refs/heads/brigade-tasks/crew/task-1"]);
    assert_ne!(code, Some(0), "the task branch is removed");
    let status = status();
    assert_eq!((status.commits_ahead, status.name_in_commands.as_str()), (2, "refs/heads/brigade/crew"));
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(take_over(&repo), Ok(repo.team_tip()));
    assert_eq!(repo.git(&["rev-parse", "HEAD"]), repo.team_tip());
    assert_decoys_stay(&repo, &other);
}

#[tokio::test]
async fn conflict_text_has_full_name_if_ambiguous() {
    for is_ambiguous in [false, true] {
        let repo = TestRepository::new().await;
        let [first, second] = [repo.provision(1).await, repo.provision(2).await];
        for (worktree, line) in [(&first, "one"), (&second, "two")] {
            insert_after(&worktree.root, "f.txt", "line 2", line);
            repo.commit(worktree).await;
        }
        assert_eq!(repo.merge(&first).await, None);
        if is_ambiguous {
            create_decoys(&repo);
        }
        let refused = repo.refused_merge(&second).await;
        let name = if is_ambiguous { "refs/heads/brigade/crew" } else { "brigade/crew" };
        assert!(refused.contains(&format!("Run git merge {name} in it")), "{refused}");
        assert_eq!(git_output(&second.root, &["merge", name]).0, Some(1), "it is the conflict");
    }
}

#[tokio::test]
async fn merges_go_into_branch_beside_tag_of_its_name() {
    let repo = TestRepository::new().await;
    let other = create_decoys(&repo);
    repo.git(&["switch", "-q", "-c", "work"]);
    let repo = TestRepository { repository: open_into(repo.path(), "main").await.unwrap(), ..repo };
    assert_eq!(repo.launch().await, [""; 0]);
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert!(repo.git(&["show", "refs/heads/main:f.txt"]).contains("of the team"));
    let team_worktree = repo.team_worktree();
    assert_eq!(git(&team_worktree, &["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(
        (git(&team_worktree, &["rev-parse", "HEAD"]), repo.team_status()),
        (repo.git(&["rev-parse", "refs/heads/main"]), String::new())
    );
    assert_decoys_stay(&repo, &other);
}

#[tokio::test]
async fn merge_into_that_is_no_branch_name_is_refused() {
    let repo = TestRepository::new().await;
    repo.git(&["switch", "-q", "-c", "work"]);
    // Plumbing creates even these.
    for name in ["refs/heads/-x", "refs/heads/HEAD"] {
        repo.git(&["update-ref", name, "HEAD"]);
    }
    let expected = [
        ("-x", "git does not take that as the name of a branch"),
        ("HEAD", "git does not take that as the name of a branch"),
        ("@{-1}", "git does not take that as the name of a branch"),
        ("main@{0}", "git does not take that as the name of a branch"),
        ("main~1", "git does not take that as the name of a branch"),
        ("refs/heads/main", "there is no such branch. hint: did you mean `main`?"),
        ("gone", "there is no such branch. hint: `git branch gone`"),
    ];
    for (name, reason) in expected {
        let error = open_into(repo.path(), name).await.err().unwrap().to_string();
        assert!(error.starts_with(&format!("cannot merge into `{name}`: {reason}")), "{error}");
    }
}

#[tokio::test]
async fn odd_branch_of_person_is_taken_over_into() {
    for name in ["-x", "HEAD", "refs/heads/main", "main"] {
        let repo = TestRepository::new().await;
        repo.git(&["tag", "main", "HEAD"]);
        let full = format!("refs/heads/{name}");
        repo.git(&["update-ref", &full, "HEAD"]);
        repo.git(&["symbolic-ref", "HEAD", &full]);
        let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
        assert_eq!(repo.merge(&worktree).await, None);
        assert_eq!(take_over(&repo), Ok(repo.team_tip()), "{name}");
        assert_eq!(repo.git(&["show-ref", "--verify", "--hash", &full]), repo.team_tip(), "{name}");
        assert_eq!(repo.git(&["symbolic-ref", "HEAD"]), full);
    }
}

/// A tag called `HEAD` is not the commit of a branch that has none.
#[tokio::test]
async fn branch_without_commit_is_not_tag_head() {
    let repo = TestRepository::new().await;
    repo.git(&["update-ref", "refs/tags/HEAD", "HEAD"]);
    repo.git(&["symbolic-ref", "HEAD", "refs/heads/unborn"]);
    let error = open(repo.path()).await.err().unwrap().to_string();
    assert!(error.contains("the branch `unborn` has no commit"), "{error}");
}

#[tokio::test]
async fn missing_object_of_packed_branch_is_named() {
    let repo = TestRepository::new().await;
    assert_eq!(repo.launch().await, [""; 0]);
    let gone = "1234567890".repeat(4);
    let packed = format!("{gone} refs/heads/brigade/crew\n");
    std::fs::write(repo.path().join(".git/packed-refs"), packed).unwrap();
    std::fs::remove_file(repo.path().join(".git/refs/heads/brigade/crew")).unwrap();
    let error = repo.repository.prepare_launch(Vec::new()).await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("cannot read brigade/crew: the object of its commit {gone} is missing")),
        "{error}"
    );
}
