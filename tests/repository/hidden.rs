//! What a teammate's commands can hide from git, exchange under it, or claim to be somebody else's: none of it is merged or loses anything.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use brigade::ports::{MergeTry, Provision, Publish, Repository, Worktree};

use super::place::{Place, edit, git, put, task};

/// The folder git keeps for a worktree.
fn git_folder(place: &Place, worktree: &Worktree) -> PathBuf {
    place.path().join(".git/worktrees").join(worktree.root.file_name().unwrap())
}

/// Writes an object and gives its id.
fn object(folder: &Path, text: &str) -> String {
    fs::write(folder.join(".agent/object"), text).unwrap();
    git(folder, &["hash-object", "-w", ".agent/object"])
}

#[tokio::test]
async fn what_git_was_told_not_to_look_at_is_committed_and_kept() {
    for hide in ["--assume-unchanged", "--skip-worktree"] {
        let place = Place::new().await;
        let worktree = place.provision(1).await;
        git(&worktree.root, &["update-index", hide, "f.txt"]);
        put(&worktree.root, "f.txt", "line 2", "hidden");
        let left = place.clear(1, &worktree).await.unwrap();
        assert!(left.contains("changed and not committed"), "{hide}: {left}");
        git(&worktree.root, &["update-index", hide, "f.txt"]);
        assert_eq!(place.provision(1).await.left, Some((0, 1)), "{hide}");
        git(&worktree.root, &["update-index", hide, "f.txt"]);
        place.commit(1, &worktree).await;
        assert_eq!(place.merged(1, &worktree).await, None);
        assert!(place.on_main("f.txt").contains("hidden"), "{hide}");
    }
}

/// Two commits that part and meet again have two bases; git takes one of them for what changed, and both for what it merges.
#[tokio::test]
async fn a_change_of_the_config_is_seen_whatever_commits_it_came_by() {
    let place = Place::new().await;
    let first = place.provision(1).await;
    let root = &first.root;
    let begin = place.main();
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
    place.commit(1, &first).await;
    assert_eq!(place.merged(1, &first).await, None, "what it comes to is harmless");
    let second = place.provision(2).await;
    git(root, &["read-tree", &begin]);
    let t = commit(evil, Some("y.txt"), &[&x, &y], "1700000005");
    git(&second.root, &["reset", "-q", "--hard", &t]);
    place.commit(2, &second).await;
    if let MergeTry::Made(merge) = place.try_merge(2, &second).await {
        place.repository.publish(&merge, &task(2)).await.unwrap();
    }
    assert_eq!(place.on_main("brigade.toml"), "# the person's");
}

#[tokio::test]
async fn paths_that_git_checks_out_nowhere_are_refused() {
    for name in [".git", ".GIT", "..", "git~1", ".git ", ".g\u{200c}it"] {
        let place = Place::new().await;
        let worktree = place.provision(1).await;
        let blob = object(&worktree.root, "x");
        let tree = super::place::git_with(&worktree.root, &["mktree"], &format!("100644 blob {blob}\tconfig\n"));
        let old = git(&worktree.root, &["ls-tree", "HEAD"]);
        let tree = super::place::git_with(&worktree.root, &["mktree"], &format!("{old}\n040000 tree {tree}\t{name}\n"));
        let commit = git(&worktree.root, &["commit-tree", &tree, "-p", "HEAD", "-m", "Odd"]);
        git(&worktree.root, &["update-ref", &format!("refs/heads/{}", worktree.branch), &commit]);
        let refused = match place.repository.merge(&worktree, &task(1), "", &commit).await.unwrap() {
            MergeTry::Refused(reason) => reason,
            other => panic!("{name}: {other:?}"),
        };
        assert!(refused.contains("paths that git checks out nowhere"), "{name}: {refused}");
    }
}

#[tokio::test]
async fn a_branch_that_was_planted_for_a_later_task_moves_nobody_elses() {
    let place = Place::new().await;
    place.git(&["branch", "release"]);
    let before = place.main();
    let folder = place.path().join(".git/refs/heads/brigade/crew");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("task-2"), "ref: refs/heads/release\n").unwrap();
    symlink("../../release", folder.join("task-3")).unwrap();
    for id in [2, 3] {
        let worktree = place.done(id, |root| put(root, "f.txt", &format!("line {id}"), "new")).await;
        assert_eq!(worktree.name, format!(".worktrees/crew-task-{id}-2"));
        assert!(worktree.warnings.iter().any(|text| text.contains("stands for another one")), "{worktree:?}");
        assert_eq!(place.merged(id, &worktree).await, None);
    }
    assert_eq!(place.git(&["rev-parse", "release"]), before);
}

#[tokio::test]
async fn a_worktree_that_says_it_is_anothers_is_neither() {
    let place = Place::new().await;
    let (first, second) = (place.provision(1).await, place.provision(2).await);
    fs::write(second.root.join("precious.txt"), "x\n").unwrap();
    let pointer = git_folder(&place, &first).join("gitdir");
    fs::write(&pointer, format!("{}/.git\n", second.root.display())).unwrap();
    let refused = place.repository.commit(&second, &task(2), "").await.unwrap().unwrap_err();
    assert!(refused.contains("is no worktree any more"), "{refused}");
    assert!(place.clear(2, &second).await.unwrap().contains("stays"));
    // A pipe keeps nobody waiting.
    fs::remove_file(&pointer).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pointer, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    place.repository.take_up(Vec::new()).await.unwrap();
    place.commit(2, &second).await;
    assert_eq!(place.merged(2, &second).await, None);
    assert_eq!(place.on_main("precious.txt"), "x");
}

#[tokio::test]
async fn what_is_merged_is_what_was_looked_at_whatever_the_objects_are_exchanged_for() {
    let place = Place::new().await;
    place.repository.take_up(Vec::new()).await.unwrap();
    let loose = |id: &str| place.path().join(".git/objects").join(&id[..2]).join(&id[2..]);
    let before = place.git(&["rev-parse", "main:f.txt"]);
    assert!(!loose(&before).exists(), "what was there before is in a pack");
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "good")).await;
    let blob = git(&worktree.root, &["rev-parse", "HEAD:f.txt"]);
    let other = object(&worktree.root, "BACKDOOR\n");
    let exchange = |id: &str| {
        let path = loose(id);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // There may be none.
        let _ = fs::remove_file(&path);
        fs::copy(loose(&other), &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    };
    let good = fs::read(loose(&blob)).unwrap();
    exchange(&blob);
    let refused = place.refused(1, &worktree).await;
    assert!(refused.contains("not what they are named by"), "{refused}");
    fs::write(loose(&blob), good).unwrap();
    let merge = place.made(1, &worktree).await;
    for id in [&blob, &before, &merge.commit] {
        exchange(id);
    }
    let scratch = place.repository.check_out(&merge).await.unwrap();
    assert!(fs::read_to_string(scratch.join("f.txt")).unwrap().contains("good"));
    assert_eq!(place.repository.publish(&merge, &task(1)).await.unwrap(), Publish::Done(None));
    let text = fs::read_to_string(place.path().join("f.txt")).unwrap();
    assert!(text.contains("good") && !text.contains("BACKDOOR"), "{text}");
    assert!(place.on_main("f.txt").contains("good"));
}

#[tokio::test]
async fn what_a_verify_leaves_in_the_merge_is_gone_before_the_next() {
    let place = Place::new().await;
    let first = place.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let merge = place.made(1, &first).await;
    let scratch = place.repository.check_out(&merge).await.unwrap();
    git(&scratch, &["init", "-q", "tools"]);
    fs::write(scratch.join("tools/check"), "exit 0\n").unwrap();
    place.repository.check_out(&merge).await.unwrap();
    assert!(!scratch.join("tools").exists());
    // Nor is anything written through what was put into its git folder.
    let kept = place.path().join("kept.txt");
    fs::write(&kept, "as it was\n").unwrap();
    let log = place.path().join(".git/worktrees/crew-merge/logs/HEAD");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    // There may be none.
    let _ = fs::remove_file(&log);
    symlink(&kept, &log).unwrap();
    assert_eq!(place.repository.check_out(&merge).await.unwrap(), scratch);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was\n");
}

#[tokio::test]
async fn commits_in_a_submodules_folder_are_not_removed_with_the_worktree() {
    let place = Place::new().await;
    let library = tempfile::tempdir().unwrap();
    git(library.path(), &["init", "-q", "-b", "main", "."]);
    git(library.path(), &["commit", "-q", "--allow-empty", "-m", "Begin"]);
    let url = library.path().display().to_string();
    place.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "lib"]);
    place.git(&["commit", "-q", "-m", "With a library"]);
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(place.merged(1, &worktree).await, None);
    git(&worktree.root, &["clone", "-q", &url, "lib"]);
    git(&worktree.root.join("lib"), &["commit", "-q", "--allow-empty", "-m", "Only here"]);
    let left = place.clear(1, &worktree).await.unwrap();
    assert!(left.contains("something in lib"), "{left}");
    assert!(worktree.root.join("lib/.git").exists());
    fs::remove_dir_all(worktree.root.join("lib")).unwrap();
    fs::create_dir(worktree.root.join("lib")).unwrap();
    assert_eq!(place.clear(1, &worktree).await, None);
}

#[tokio::test]
async fn a_file_of_gits_that_is_huge_fills_no_memory() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let heads = git_folder(&place, &worktree).join("MERGE_HEAD");
    fs::File::create(&heads).unwrap().set_len(1 << 40).unwrap();
    edit(&worktree.root, "f.txt", |text| text + "more\n");
    // It merges nothing, and is read no further than a merge's heads go.
    place.commit(1, &worktree).await;
    assert!(matches!(place.repository.provision(&task(1)).await.unwrap(), Provision::Ready(_)));
}

#[tokio::test]
async fn what_a_person_commits_meanwhile_is_kept_before_anything_is_merged_onto_it() {
    let place = Place::new().await;
    place.repository.take_up(Vec::new()).await.unwrap();
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "good")).await;
    put(place.path(), "f.txt", "line 9", "person's");
    place.git(&["commit", "-q", "-a", "-m", "Person"]);
    let blob = place.git(&["rev-parse", "main:f.txt"]);
    let path = place.path().join(".git/objects").join(&blob[..2]).join(&blob[2..]);
    let other = object(&worktree.root, "BACKDOOR\n");
    let good = fs::read(&path).unwrap();
    let exchange = |bytes: &[u8]| {
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    exchange(&fs::read(place.path().join(".git/objects").join(&other[..2]).join(&other[2..])).unwrap());
    let refused = place.refused(1, &worktree).await;
    assert!(refused.contains("not what they are named by"), "{refused}");
    exchange(&good);
    assert_eq!(place.merged(1, &worktree).await, None);
    assert!(place.on_main("f.txt").contains("person's"));
}

#[tokio::test]
async fn one_object_that_is_broken_keeps_the_others_from_nothing() {
    let place = Place::new().await;
    let empty = place.path().join(".git/objects/ab");
    fs::create_dir_all(&empty).unwrap();
    fs::write(empty.join("cdefabcdefabcdefabcdefabcdefabcdefabcd"), "").unwrap();
    let told = place.repository.take_up(Vec::new()).await.unwrap();
    assert!(told.len() == 1 && told[0].contains("abcdefabcdefabcdefabcdefabcdefabcdefabcd"), "{told:?}");
    let blob = place.git(&["rev-parse", "main:f.txt"]);
    fs::remove_file(place.path().join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    assert!(place.on_main("f.txt").contains("line 1"), "it is in a pack");
}
