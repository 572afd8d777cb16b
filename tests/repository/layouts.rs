//! Kinds of repositories: linked, bare, sparse, with borrowed objects, with custom settings and branches.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use brigade::domain::agent::access::{Access, PathRule};
use brigade::git::GitRepository;
use brigade::git::inspection::{Inspection, inspect};
use brigade::ports::{CommandPlace, Repository};
use tempfile::TempDir;

use super::harness::{TestRepository, git, insert_after, open};

/// A checkout of `branch` linked to the repository in `common`.
async fn linked(common: &TempDir, branch: &str, settings: impl FnOnce(&std::path::Path)) -> TestRepository {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    git(common.path(), &["worktree", "add", "-q", &path, branch]);
    settings(folder.path());
    let repository = open(folder.path()).await.unwrap();
    TestRepository { folder, repository }
}

/// Asserts that work on a task is merged, and that the team worktree has it.
async fn assert_task_merges(repo: &TestRepository) {
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.clean_up(&worktree).await, None);
    assert!(fs::read_to_string(repo.team_worktree().join("f.txt")).unwrap().contains("of the team"));
    assert_eq!((repo.checkout_status(), repo.team_status()), (String::new(), String::new()));
}

/// A clone of a repository in a folder with this at the start of its name.
fn clone_in(source: &TestRepository, prefix: &[u8]) -> TempDir {
    let folder = tempfile::Builder::new().prefix(OsStr::from_bytes(prefix)).tempdir().unwrap();
    git(folder.path(), &["clone", "-q", &source.path().display().to_string(), "."]);
    folder
}

#[tokio::test]
async fn path_that_is_not_utf8_works() {
    let source = TestRepository::new().await;
    for prefix in [&b"caf\xe9 "[..], b"[a]{b}*?"] {
        let folder = clone_in(&source, prefix);
        let repository = open(folder.path()).await.unwrap();
        assert_task_merges(&TestRepository { folder, repository }).await;
    }
}

#[tokio::test]
async fn path_with_newline_is_refused_by_name() {
    let folder = clone_in(&TestRepository::new().await, b"new\nline");
    let refusal = open(folder.path()).await.err().unwrap().to_string();
    assert!(refusal.contains("/new\\nline") && refusal.contains("contains a newline. hint: move"), "{refusal}");
    assert_eq!(inspect(folder.path(), "agent_state.json"), Inspection::NotIgnored(version()));
}

/// Git's own words are the reason if it refuses a repository for another cause than a missing one.
#[tokio::test]
async fn broken_repository_is_not_called_missing() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".git/config"), "[core\n").unwrap();
    let state = inspect(repo.path(), "agent_state.json");
    assert!(matches!(&state, Inspection::Failed(reason) if reason.contains("bad config")), "{state:?}");
    let refusal = open(repo.path()).await.err().unwrap().to_string();
    assert!(refusal.contains("bad config"), "{refusal}");
    let none = tempfile::tempdir().unwrap();
    assert_eq!(inspect(none.path(), "agent_state.json"), Inspection::NoRepository(version()));
    assert!(open(none.path()).await.err().unwrap().to_string().contains("is not in a git repository"));
}

fn version() -> String {
    git(std::path::Path::new("."), &["--version"])
}

fn bare(source: &TestRepository) -> TempDir {
    let common = tempfile::tempdir().unwrap();
    git(source.path(), &["clone", "-q", "--bare", ".", &common.path().display().to_string()]);
    common
}

#[tokio::test]
async fn linked_worktree_of_bare_repository_works() {
    let source = TestRepository::new().await;
    assert_task_merges(&linked(&bare(&source), "main", |_| {}).await).await;
    // With settings for each worktree, the fact that the repository is bare is kept there.
    let common = bare(&source);
    git(common.path(), &["config", "extensions.worktreeConfig", "true"]);
    git(common.path(), &["config", "--unset", "core.bare"]);
    git(common.path(), &["config", "--worktree", "core.bare", "true"]);
    assert_task_merges(&linked(&common, "main", |_| {}).await).await;
}

#[tokio::test]
async fn sparse_checkout_stays_sparse_and_paths_are_merged() {
    let source = TestRepository::new().await;
    for folder in ["in", "out"] {
        fs::create_dir(source.path().join(folder)).unwrap();
        fs::write(source.path().join(folder).join("x"), "x\n").unwrap();
    }
    source.git(&["add", "-A"]);
    source.git(&["commit", "-q", "-m", "Folders"]);
    let common = bare(&source);
    source.git(&["sparse-checkout", "set", "in"]);
    let linked = linked(&common, "main", |path| drop(git(path, &["sparse-checkout", "set", "in"]))).await;
    for repo in [source, linked] {
        let worktree = repo.provision(1).await;
        fs::create_dir_all(worktree.root.join("out")).unwrap();
        fs::write(worktree.root.join("out/new"), "new\n").unwrap();
        insert_after(&worktree.root, "f.txt", "line 2", "of the team");
        repo.commit(&worktree).await;
        assert_eq!(repo.merge(&worktree).await, None);
        let all = repo.git(&["ls-tree", "-r", "--name-only", "brigade/crew"]);
        assert!(all.contains("out/new") && all.contains("out/x"), "{all}");
        assert!(!repo.path().join("out").exists(), "the checkout is not sparse any more");
        assert_eq!((repo.checkout_status(), repo.team_status()), (String::new(), String::new()));
    }
}

#[tokio::test]
async fn boundaries_without_worktree_are_read_only() {
    let repo = TestRepository::new().await;
    repo.provision(1).await;
    let boundaries = repo.repository.boundaries(CommandPlace::NoTask);
    let root = repo.path().canonicalize().unwrap();
    for folder in [&root, &root.join(".git")] {
        assert!(boundaries.contains(&PathRule::read_only(folder)), "{}: {boundaries:?}", folder.display());
    }
    assert!(boundaries.iter().all(|rule| rule.access == Access::ReadOnly), "{boundaries:?}");
}

#[tokio::test]
async fn alternate_object_folders_are_read_only() {
    let source = TestRepository::new().await;
    let folder = tempfile::tempdir().unwrap();
    git(source.path(), &["clone", "-q", "--shared", ".", &folder.path().display().to_string()]);
    let further = tempfile::tempdir().unwrap();
    fs::write(
        source.path().join(".git/objects/info/alternates"),
        format!("# from elsewhere\n\"{}\"\n", further.path().display()),
    )
    .unwrap();
    let repository = open(folder.path()).await.unwrap();
    let repo = TestRepository { folder, repository };
    let worktree = repo.provision(1).await;
    let boundaries = repo.repository.boundaries(CommandPlace::Task(&worktree));
    for objects in [source.path().join(".git/objects"), further.path().to_owned()] {
        assert!(boundaries.contains(&PathRule::read_only(&objects)), "{}: {boundaries:?}", objects.display());
    }
}

#[tokio::test]
async fn conflicting_branch_name_is_avoided_or_refused() {
    let repo = TestRepository::new().await;
    repo.git(&["branch", "brigade-tasks/crew/task-1/below"]);
    let worktree = repo.provision(1).await;
    assert_eq!(worktree.branch, "brigade-tasks/crew/task-1-2");
    assert!(
        worktree.warnings.concat().contains("there is a branch brigade-tasks/crew/task-1/below"),
        "{:?}",
        worktree.warnings
    );
    insert_after(&worktree.root, "f.txt", "line 2", "mine");
    repo.commit(&worktree).await;
    assert_eq!(repo.merge(&worktree).await, None);
    let other = TestRepository::new().await;
    other.git(&["branch", "brigade"]);
    let refused = GitRepository::team_branch_status(other.path(), "crew", None, &[]).unwrap_err().to_string();
    assert!(refused.contains("git branch -m brigade"), "{refused}");
}
