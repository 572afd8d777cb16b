//! Merges that point to objects outside of the repository: commits of submodules, and objects of Git LFS.

use std::fs;
use std::path::{Path, PathBuf};

use brigade::ports::Worktree;

use super::harness::{TestRepository, git, git_output, git_with};

/// A pointer of Git LFS to an object that does not exist.
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

/// A repository with the submodule `sub`, whose remote is the returned folder.
async fn with_submodule() -> (TestRepository, PathBuf) {
    let repo = TestRepository::new().await;
    let remote = repo.path().join(".git/remote-of-sub");
    git(repo.path(), &["init", "-q", "-b", "main", remote.to_str().unwrap()]);
    fs::write(remote.join("lib.txt"), "1\n").unwrap();
    git(&remote, &["add", "-A"]);
    git(&remote, &["commit", "-q", "-m", "Library"]);
    let url = remote.to_str().unwrap();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    repo.commit_as_person();
    (repo, remote)
}

/// Checks out the submodule in a worktree.
fn update_submodule(folder: &Path) {
    git(folder, &["-c", "protocol.file.allow=always", "-c", "submodule.active=.", "submodule", "--quiet", "update"]);
}

/// Commits in the submodule of a worktree, and points the task at that commit.
fn commit_in_submodule(worktree: &Worktree) -> String {
    update_submodule(&worktree.root);
    let sub = worktree.root.join("sub");
    fs::write(sub.join("new.txt"), "of the task\n").unwrap();
    git(&sub, &["add", "-A"]);
    git(&sub, &["commit", "-q", "-m", "New"]);
    git(&worktree.root, &["add", "sub"]);
    git(&worktree.root, &["commit", "-q", "-m", "Use it"]);
    git(&sub, &["rev-parse", "HEAD"])
}

#[tokio::test]
async fn submodule_commit_of_task_is_taken_with_merge() {
    let (repo, remote) = with_submodule().await;
    let worktree = repo.provision(1).await;
    let commit = commit_in_submodule(&worktree);
    repo.commit(&worktree).await;
    assert_eq!(repo.merge(&worktree).await, None);
    // Neither the worktree nor the remote is needed any more.
    fs::remove_dir_all(&worktree.root).unwrap();
    fs::remove_dir_all(remote).unwrap();
    let modules = repo.path().join(".git/modules/sub");
    git(&modules, &["gc", "-q", "--prune=now"]);
    assert_eq!(git(&modules, &["rev-parse", &format!("refs/brigade/crew/links/{commit}")]), commit);
    repo.git(&["merge", "-q", "--ff-only", "brigade/crew"]);
    repo.git(&["submodule", "--quiet", "update"]);
    assert_eq!(fs::read_to_string(repo.path().join("sub/new.txt")).unwrap(), "of the task\n");
}

#[tokio::test]
async fn submodule_commit_that_is_nowhere_is_refused() {
    let (repo, _) = with_submodule().await;
    let worktree = repo.provision(1).await;
    let gone = "1234567890".repeat(4);
    git(&worktree.root, &["update-index", "--cacheinfo", &format!("160000,{gone},sub")]);
    git(&worktree.root, &["commit", "-q", "-m", "Use it"]);
    repo.commit(&worktree).await;
    let refused = repo.refused_merge(&worktree).await;
    let reason = "sets the submodule sub to the commit 123456789012, which no person could get after the merge: your worktree has no copy";
    assert!(refused.contains(reason), "{refused}");
    update_submodule_without_commit(&worktree);
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("which no person could get after the merge: ") && refused.contains(&gone), "{refused}");
}

/// A copy of the submodule in the worktree that lacks the commit of the task.
fn update_submodule_without_commit(worktree: &Worktree) {
    git(&worktree.root, &["update-index", "--cacheinfo", &format!("160000,{},sub", head_of_sub(worktree))]);
    update_submodule(&worktree.root);
}

/// The commit of the submodule on the team branch.
fn head_of_sub(worktree: &Worktree) -> String {
    git(&worktree.root, &["rev-parse", "refs/heads/brigade/crew:sub"])
}

#[tokio::test]
async fn submodule_without_copy_of_person_is_refused() {
    let (repo, remote) = with_submodule().await;
    let worktree = repo.provision(1).await;
    let commit = commit_in_submodule(&worktree);
    repo.commit(&worktree).await;
    let modules = repo.path().join(".git/modules");
    fs::rename(&modules, repo.path().join(".git/moved")).unwrap();
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("ask the person to run git submodule update --init sub"), "{refused}");
    fs::rename(repo.path().join(".git/moved"), &modules).unwrap();
    // A link in the worktree is not followed.
    let copy = worktree.root.join(".git/modules/sub");
    fs::rename(&copy, repo.path().join(".git/elsewhere")).unwrap();
    std::os::unix::fs::symlink(repo.path().join(".git/elsewhere"), &copy).unwrap();
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("your worktree has no copy of the submodule"), "{refused}");
    assert_ne!(git_output(&modules.join("sub"), &["cat-file", "-e", &commit]).0, Some(0));
    fs::remove_file(&copy).unwrap();
    fs::rename(repo.path().join(".git/elsewhere"), &copy).unwrap();
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(git_output(&modules.join("sub"), &["cat-file", "-e", &commit]).0, Some(0));
    assert!(remote.exists());
}

#[tokio::test]
async fn lfs_pointer_without_object_is_refused() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitattributes"), "*.bin filter=lfs\n").unwrap();
    repo.commit_as_person();
    fs::create_dir(repo.path().join(".git/lfs")).unwrap();
    let worktree = repo.provision(1).await;
    let pointer = git_with(&worktree.root, &["hash-object", "-w", "--stdin"], POINTER);
    for name in ["one.bin", "example.txt"] {
        git(&worktree.root, &["update-index", "--add", "--cacheinfo", &format!("100644,{pointer},{name}")]);
        fs::write(worktree.root.join(name), POINTER).unwrap();
    }
    git(&worktree.root, &["commit", "-q", "-m", "Pointers"]);
    repo.commit(&worktree).await;
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("pointers of Git LFS whose objects are missing: one.bin."), "{refused}");
    let object = repo.path().join(".git/lfs/objects/4d/7a").join(&POINTER[54..118]);
    assert!(object.ends_with("4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"));
    fs::create_dir_all(object.parent().unwrap()).unwrap();
    fs::write(object, "").unwrap();
    assert_eq!(repo.merge(&worktree).await, None);
}
