//! Changes that a teammate's commands hide from git, replace under it, or attribute to others: none is merged, and
//! nothing is lost.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use brigade::ports::{MergeOutcome, PublishOutcome, Repository, Worktree, WorktreeOutcome};

use super::harness::{TestRepository, edit, git, insert_after, leftover_work, reported, task};

/// The folder that git keeps for a worktree.
fn git_folder(repo: &TestRepository, worktree: &Worktree) -> PathBuf {
    repo.path().join(".git/worktrees").join(worktree.root.file_name().unwrap())
}

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
        let refused = match repo.repository.merge(&worktree, reported(&commit)).await.unwrap() {
            MergeOutcome::Refused(reason) => reason,
            other => panic!("{name}: {other:?}"),
        };
        assert!(refused.contains("paths that git cannot check out"), "{name}: {refused}");
    }
}

#[tokio::test]
async fn planted_task_branch_moves_no_other_branch() {
    let repo = TestRepository::new().await;
    repo.git(&["branch", "release"]);
    repo.launch().await;
    let before = repo.team_tip();
    let folder = repo.path().join(".git/refs/heads/brigade-tasks/crew");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("task-2"), "ref: refs/heads/release\n").unwrap();
    symlink("../../release", folder.join("task-3")).unwrap();
    for id in [2, 3] {
        let worktree = repo.worktree_with(id, |root| insert_after(root, "f.txt", &format!("line {id}"), "new")).await;
        assert_eq!(worktree.name, format!(".worktrees/crew-task-{id}-2"));
        assert!(worktree.warnings.iter().any(|text| text.contains("points to another branch")), "{worktree:?}");
        assert_eq!(repo.merge(&worktree).await, None);
    }
    assert_eq!(repo.git(&["rev-parse", "release"]), before);
}

#[tokio::test]
async fn worktree_with_swapped_git_folder_is_refused() {
    let repo = TestRepository::new().await;
    let (first, second) = (repo.provision(1).await, repo.provision(2).await);
    fs::write(second.root.join("precious.txt"), "x\n").unwrap();
    let pointer = git_folder(&repo, &first).join("gitdir");
    fs::write(&pointer, format!("{}/.git\n", second.root.display())).unwrap();
    let refused = repo.repository.commit(&second, "").await.unwrap().unwrap_err();
    assert!(refused.contains("is not a worktree any more"), "{refused}");
    assert!(repo.clean_up(&second).await.unwrap().contains("stays"));
    // A pipe makes no call wait.
    fs::remove_file(&pointer).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pointer, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    repo.launch().await;
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    assert_eq!(repo.team_file("precious.txt"), "x");
}

#[tokio::test]
async fn exchanged_objects_do_not_change_verified_merge() {
    let repo = TestRepository::new().await;
    repo.launch().await;
    let loose = |id: &str| repo.path().join(".git/objects").join(&id[..2]).join(&id[2..]);
    let before = repo.git(&["rev-parse", "brigade/crew:f.txt"]);
    assert!(!loose(&before).exists(), "the older objects are not in a pack");
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "good")).await;
    let blob = git(&worktree.root, &["rev-parse", "HEAD:f.txt"]);
    let other = object(&worktree.root, "BACKDOOR\n");
    let exchange = |id: &str| {
        let path = loose(id);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // It may be missing.
        let _ = fs::remove_file(&path);
        fs::copy(loose(&other), &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    };
    let good = fs::read(loose(&blob)).unwrap();
    exchange(&blob);
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("do not match their ids"), "{refused}");
    fs::write(loose(&blob), good).unwrap();
    let merge = repo.create_merge(&worktree).await;
    for id in [&blob, &before, &merge.commit] {
        exchange(id);
    }
    let scratch = repo.repository.check_out(&merge).await.unwrap();
    assert!(fs::read_to_string(scratch.join("f.txt")).unwrap().contains("good"));
    assert_eq!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Done(None));
    let text = fs::read_to_string(repo.team_worktree().join("f.txt")).unwrap();
    assert!(text.contains("good") && !text.contains("BACKDOOR"), "{text}");
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
    // No write goes through a link in its git folder either.
    let target_file = repo.path().join("kept.txt");
    fs::write(&target_file, "as it was\n").unwrap();
    let log = repo.path().join(".git/worktrees/crew.merge/logs/HEAD");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    // It may be missing.
    let _ = fs::remove_file(&log);
    symlink(&target_file, &log).unwrap();
    assert_eq!(repo.repository.check_out(&merge).await.unwrap(), scratch);
    assert_eq!(fs::read_to_string(&target_file).unwrap(), "as it was\n");
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

#[tokio::test]
async fn huge_merge_head_file_is_read_bounded() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let heads = git_folder(&repo, &worktree).join("MERGE_HEAD");
    fs::File::create(&heads).unwrap().set_len(1 << 40).unwrap();
    edit(&worktree.root, "f.txt", |text| text + "more\n");
    // The file is no valid merge head, and is read only up to the size of one.
    repo.commit(&worktree).await;
    assert!(matches!(repo.repository.provision(&task(1)).await.unwrap(), WorktreeOutcome::Ready(_)));
}

#[tokio::test]
async fn exchanged_object_of_person_is_not_merged() {
    let repo = TestRepository::new().await;
    repo.launch().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "good")).await;
    insert_after(&repo.team_worktree(), "f.txt", "line 9", "person's");
    git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Person"]);
    let blob = repo.git(&["rev-parse", "brigade/crew:f.txt"]);
    let path = repo.path().join(".git/objects").join(&blob[..2]).join(&blob[2..]);
    let other = object(&worktree.root, "BACKDOOR\n");
    let good = fs::read(&path).unwrap();
    let exchange = |bytes: &[u8]| {
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    exchange(&fs::read(repo.path().join(".git/objects").join(&other[..2]).join(&other[2..])).unwrap());
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("do not match their ids"), "{refused}");
    exchange(&good);
    assert_eq!(repo.merge(&worktree).await, None);
    assert!(repo.team_file("f.txt").contains("person's"));
}

#[tokio::test]
async fn broken_object_does_not_stop_packing_of_others() {
    let repo = TestRepository::new().await;
    let empty = repo.path().join(".git/objects/ab");
    fs::create_dir_all(&empty).unwrap();
    fs::write(empty.join("cdefabcdefabcdefabcdefabcdefabcdefabcd"), "").unwrap();
    let notices = repo.launch().await;
    assert!(notices.len() == 1 && notices[0].contains("abcdefabcdefabcdefabcdefabcdefabcdefabcd"), "{notices:?}");
    let blob = repo.git(&["rev-parse", "brigade/crew:f.txt"]);
    fs::remove_file(repo.path().join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    assert!(repo.team_file("f.txt").contains("line 1"), "the object is not in a pack");
}
