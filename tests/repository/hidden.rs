//! Changes that a teammate's commands hide from git, replace under it, or attribute to others: none is merged, and
//! nothing is lost.

use std::fs;
use std::path::Path;

use brigade::ports::{MergeOutcome, Repository};

use super::harness::{TestRepository, git, insert_after, leftover_work, reported, task};

/// Writes an object and returns its id.
fn object(folder: &Path, text: &str) -> String {
    fs::write(folder.join(".agent/object"), text).unwrap();
    git(folder, &["hash-object", "-w", ".agent/object"])
}

#[tokio::test]
async fn assume_unchanged_and_skip_worktree_are_committed() {
    for hide in ["--assume-unchanged", "--skip-worktree"] {
        let repo = TestRepository::new().await;
        let worktree = repo.provision(1).await;
        git(&worktree.root, &["update-index", hide, "f.txt"]);
        insert_after(&worktree.root, "f.txt", "line 2", "hidden");
        let reason = repo.clean_up(&worktree).await.unwrap();
        assert!(reason.contains("1 uncommitted files"), "{hide}: {reason}");
        git(&worktree.root, &["update-index", hide, "f.txt"]);
        assert_eq!(repo.provision(1).await.leftover_work, leftover_work(0, 1), "{hide}");
        git(&worktree.root, &["update-index", hide, "f.txt"]);
        repo.commit(&worktree).await;
        assert_eq!(repo.merge(&worktree).await, None);
        assert!(repo.team_file("f.txt").contains("hidden"), "{hide}");
    }
}

/// Two commits that branch and merge crosswise have two merge bases. Git uses one of them for the diff, and both for
/// the merge.
#[tokio::test]
async fn config_change_by_criss_cross_merge_is_not_merged() {
    let repo = TestRepository::new().await;
    let first = repo.provision(1).await;
    let root = &first.root;
    let begin = repo.team_tip();
    let commit = |config: &str, file: Option<&str>, parents: &[&str], date: &str| {
        git(root, &["read-tree", &begin]);
        let config = object(root, config);
        git(root, &["update-index", "--cacheinfo", &format!("100644,{config},brigade.toml")]);
        if let Some(file) = file {
            let blob = object(root, file);
            git(root, &["update-index", "--add", "--cacheinfo", &format!("100644,{blob},{file}")]);
        }
        let tree = git(root, &["write-tree"]);
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.invalid", "commit-tree", &tree]);
        command.args(parents.iter().flat_map(|parent| ["-p", parent])).args(["-m", "Same\n\nBrigade-Drops: no"]);
        command.env("GIT_COMMITTER_DATE", format!("{date} +0000")).current_dir(root);
        String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let evil = "# the person's\n[teams.evil]\n";
    let good = "# the person's\n";
    let e = commit(evil, None, &[&begin], "1700000001");
    let x = commit(evil, Some("x.txt"), &[&e], "2000000000");
    let y = commit(good, None, &[&e], "1700000003");
    let b = commit(good, Some("x.txt"), &[&x, &y], "1700000004");
    git(root, &["reset", "-q", "--hard", &b]);
    repo.commit(&first).await;
    assert_eq!(repo.merge(&first).await, None, "the harmless merge was refused");
    let second = repo.provision(2).await;
    git(root, &["read-tree", &begin]);
    let t = commit(evil, Some("y.txt"), &[&x, &y], "1700000005");
    git(&second.root, &["fetch", "-q", &first.root.display().to_string(), &t]);
    git(&second.root, &["reset", "-q", "--hard", &t]);
    repo.commit(&second).await;
    if let MergeOutcome::Created(merge) = repo.try_merge(&second).await {
        repo.repository.publish(&merge, &task(2)).await.unwrap();
    }
    assert_eq!(repo.team_file("brigade.toml"), "# the person's");
}

#[tokio::test]
async fn paths_git_never_checks_out_are_refused() {
    for name in [".git", ".GIT", "..", "git~1", ".git ", ".g\u{200c}it"] {
        let repo = TestRepository::new().await;
        let worktree = repo.provision(1).await;
        let blob = object(&worktree.root, "x");
        let tree = super::harness::git_with(&worktree.root, &["mktree"], &format!("100644 blob {blob}\tconfig\n"));
        let old = git(&worktree.root, &["ls-tree", "HEAD"]);
        let tree =
            super::harness::git_with(&worktree.root, &["mktree"], &format!("{old}\n040000 tree {tree}\t{name}\n"));
        let commit = git(&worktree.root, &["commit-tree", &tree, "-p", "HEAD", "-m", "Odd"]);
        git(&worktree.root, &["update-ref", &format!("refs/heads/{}", worktree.branch), &commit]);
        repo.git(&["fetch", "-q", &worktree.root.display().to_string(), &commit]);
        let refused = match repo.repository.merge(&worktree, reported(&commit)).await.unwrap() {
            MergeOutcome::Refused(reason) => reason,
            other => panic!("{name}: {other:?}"),
        };
        assert!(refused.contains("paths that git cannot check out"), "{name}: {refused}");
    }
}

/// Git does not compare an object with its name when it reads it, but when it fetches it.
#[tokio::test]
async fn exchanged_object_is_not_fetched() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    insert_after(&worktree.root, "f.txt", "line 2", "good");
    git(&worktree.root, &["commit", "-q", "-a", "-m", "Good"]);
    let loose = |id: &str| worktree.root.join(".git/objects").join(&id[..2]).join(&id[2..]);
    let blob = loose(&git(&worktree.root, &["rev-parse", "HEAD:f.txt"]));
    let other = loose(&object(&worktree.root, "BACKDOOR\n"));
    let good = fs::read(&blob).unwrap();
    let exchange = |content: &[u8]| {
        fs::remove_file(&blob).unwrap();
        fs::write(&blob, content).unwrap();
    };
    exchange(&fs::read(other).unwrap());
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("cannot fetch the commits of the worktree"), "{refused}");
    exchange(&good);
    repo.commit(&worktree).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert!(repo.team_file("f.txt").contains("good"));
}

#[tokio::test]
async fn merge_worktree_is_cleaned_between_verifies() {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "first")).await;
    let merge = repo.create_merge(&first).await;
    let scratch = repo.repository.check_out(&merge).await.unwrap();
    git(&scratch, &["init", "-q", "tools"]);
    fs::write(scratch.join("tools/check"), "exit 0\n").unwrap();
    repo.repository.check_out(&merge).await.unwrap();
    assert!(!scratch.join("tools").exists());
}

#[tokio::test]
async fn submodule_commits_keep_worktree_from_removal() {
    let repo = TestRepository::new().await;
    let library = tempfile::tempdir().unwrap();
    git(library.path(), &["init", "-q", "-b", "main", "."]);
    git(library.path(), &["commit", "-q", "--allow-empty", "-m", "Begin"]);
    let url = library.path().display().to_string();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "lib"]);
    repo.git(&["commit", "-q", "-m", "With a library"]);
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    git(&worktree.root, &["clone", "-q", &url, "lib"]);
    git(worktree.root.join("lib"), &["commit", "-q", "--allow-empty", "-m", "Only here"]);
    let reason = repo.clean_up(&worktree).await.unwrap();
    assert!(reason.contains("nested repository lib is not empty"), "{reason}");
    assert!(worktree.root.join("lib/.git").exists());
    fs::remove_dir_all(worktree.root.join("lib")).unwrap();
    fs::create_dir(worktree.root.join("lib")).unwrap();
    assert_eq!(repo.clean_up(&worktree).await, None);
}
