//! What a teammate's commands can put where git looks, and a person's git would trip over: each is refused or has no effect.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use brigade::ports::{MergeTry, Repository, Worktree};
use brigade::stores::git::{DriverOptions, GitRepository};

use super::place::{Place, edit, put, task};

/// The folder git keeps for a worktree.
fn git_folder(place: &Place, worktree: &Worktree) -> PathBuf {
    let name = worktree.root.file_name().unwrap();
    place.path().join(".git/worktrees").join(name)
}

async fn refused_to_commit(place: &Place, worktree: &Worktree) -> String {
    place.repository.commit(worktree, &task(1), "Done so.").await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_branch_that_stands_for_another_moves_and_removes_nothing() {
    let place = Place::new().await;
    let worktree = place.provision(1).await;
    fs::write(worktree.root.join("new.txt"), "x\n").unwrap();
    let branch = place.path().join(".git/refs/heads").join(&worktree.branch);
    let before = place.main();
    fs::write(&branch, "ref: refs/heads/main\n").unwrap();
    let said = refused_to_commit(&place, &worktree).await;
    assert!(said.contains("stands for another one"), "{said}");
    fs::remove_file(&branch).unwrap();
    symlink(place.path().join(".git/refs/heads/main"), &branch).unwrap();
    assert!(refused_to_commit(&place, &worktree).await.contains("stands for another one"));
    let left = place.repository.clear(&worktree, &task(1)).await.unwrap();
    assert!(left.unwrap().contains("stays"), "it is left as it is");
    assert_eq!(place.main(), before);
}

#[tokio::test]
async fn links_in_a_git_folder_are_not_written_through() {
    let place = Place::new().await;
    let kept = place.path().join("kept.txt");
    fs::write(&kept, "as it was\n").unwrap();
    for name in ["COMMIT_EDITMSG", "logs/HEAD", "MERGE_MSG"] {
        let worktree = place.provision(1).await;
        fs::write(worktree.root.join("new.txt"), name).unwrap();
        let link = git_folder(&place, &worktree).join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        // It may have been there.
        let _ = fs::remove_file(&link);
        symlink(&kept, &link).unwrap();
        let said = refused_to_commit(&place, &worktree).await;
        assert!(said.contains("is neither a file nor a folder"), "{name}: {said}");
        fs::remove_file(&link).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was\n", "{name}");
    }
}

#[tokio::test]
async fn settings_of_a_repository_within_are_not_run_and_it_is_not_merged() {
    let place = Place::new().await;
    let worktree = place.provision(1).await;
    let within = worktree.root.join("sub");
    fs::create_dir(&within).unwrap();
    let ran = place.path().join("ran.txt");
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.invalid"]).args(arguments);
        assert!(command.current_dir(&within).status().unwrap().success(), "git {arguments:?}");
    };
    git(&["init", "-q", "."]);
    fs::write(within.join("f.txt"), "1\n").unwrap();
    git(&["add", "f.txt"]);
    git(&["commit", "-q", "-m", "Within"]);
    git(&["config", "filter.x.clean", &format!("touch {}; cat", ran.display())]);
    fs::write(within.join(".git/info/attributes"), "* filter=x\n").unwrap();
    let at = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        assert!(command.args(arguments).current_dir(&worktree.root).status().unwrap().success(), "git {arguments:?}");
    };
    at(&["add", "sub"]);
    fs::write(within.join("f.txt"), "2\n").unwrap();
    fs::write(worktree.root.join("new.txt"), "x\n").unwrap();
    let commit = place.commit(1, &worktree).await;
    assert!(!ran.exists(), "what its settings name was run");
    let refused = match place.repository.merge(&worktree, &task(1), "Done so.", &commit).await.unwrap() {
        MergeTry::Refused(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused.contains("repositories within: sub"), "{refused}");
    assert!(!ran.exists());
}

#[tokio::test]
async fn what_the_branch_gets_behind_the_commit_is_not_merged() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let reviewed = place.git(&["rev-parse", &worktree.branch]);
    fs::write(worktree.root.join("backdoor.txt"), "x\n").unwrap();
    place.commit(1, &worktree).await;
    let merged = place.repository.merge(&worktree, &task(1), "Done so.", reviewed.trim()).await.unwrap();
    let MergeTry::Made(merge) = merged else { panic!("{merged:?}") };
    place.repository.publish(&merge, &task(1)).await.unwrap();
    assert!(place.on_main("f.txt").contains("mine"));
    assert!(!place.git(&["ls-tree", "--name-only", "main"]).contains("backdoor.txt"));
    let left = place.repository.clear(&worktree, &task(1)).await.unwrap();
    assert!(left.unwrap().contains("commits that are not merged"));
}

#[tokio::test]
async fn a_rebase_that_drops_what_others_merged_meanwhile_is_refused_until_it_says_so() {
    let place = Place::new().await;
    let first = place.provision(1).await;
    let second = place.done(2, |root| put(root, "f.txt", "line 2", "of the second")).await;
    assert_eq!(place.merged(2, &second).await, None);
    put(&first.root, "f.txt", "line 3", "of the first");
    let at = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.invalid"]).args(arguments);
        assert!(command.current_dir(&first.root).status().unwrap().success(), "git {arguments:?}");
    };
    at(&["commit", "-q", "-a", "-m", "First"]);
    at(&["rebase", "-q", "-X", "theirs", "main"]);
    edit(&first.root, "f.txt", |text| text.replace("of the second\n", ""));
    place.commit(1, &first).await;
    let refused = place.refused(1, &first).await;
    assert!(refused.contains("others added since you began") && refused.contains("of the second"), "{refused}");
    at(&["commit", "-q", "--amend", "--no-edit", "--trailer", "Brigade-Drops: it was wrong"]);
    assert_eq!(place.merged(1, &first).await, None);
    assert!(place.on_main("f.txt").contains("of the first"));
}

#[tokio::test]
async fn replaced_objects_and_brigades_own_files_are_not_merged() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = place.made(1, &worktree).await;
    let evil = place.git(&["commit-tree", "-m", "evil", "main^{tree}"]);
    place.git(&["update-ref", &format!("refs/replace/{}", merge.commit), evil.trim()]);
    place.repository.publish(&merge, &task(1)).await.unwrap();
    assert!(
        fs::read_to_string(place.path().join("f.txt")).unwrap().contains("mine"),
        "the checkout is what was verified"
    );
    place.git(&["update-ref", "-d", &format!("refs/replace/{}", merge.commit)]);
    let other = place.provision(2).await;
    let at = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        assert!(command.args(arguments).current_dir(&other.root).status().unwrap().success(), "git {arguments:?}");
    };
    let blob = place.git(&["hash-object", "-w", "f.txt"]);
    at(&["update-index", "--add", "--cacheinfo", &format!("100644,{},.agent/state.json", blob.trim())]);
    let commit = place.repository.commit(&other, &task(2), "Done so.").await.unwrap();
    if let Ok(commit) = commit
        && let MergeTry::Refused(text) = place.repository.merge(&other, &task(2), "Done so.", &commit).await.unwrap()
    {
        assert!(text.contains(".agent/state.json"), "{text}");
    }
    assert!(!place.git(&["ls-tree", "-r", "--name-only", "main"]).contains(".agent"));
}

fn make_pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn special_file_in_a_worktree_is_named() {
    let place = Place::new().await;
    for (id, name) in ["f.txt", ".gitignore", ".gitattributes", "a/.gitignore"].into_iter().enumerate() {
        let worktree = place.provision(id as u64 + 1).await;
        let path = worktree.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.with_file_name("new.txt"), "new\n").unwrap();
        make_pipe(&path);
        let committed = place.repository.commit(&worktree, &task(id as u64 + 1), "Done.").await;
        let said = committed.map_or_else(|error| error.to_string(), |inner| inner.unwrap_err());
        assert!(said.contains(name) && said.contains("a pipe, not a plain file"), "{name}: {said}");
    }
    let worktree = place.provision(9).await;
    fs::remove_file(worktree.root.join("f.txt")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(worktree.root.join("f.txt")).unwrap();
    let said = place.repository.commit(&worktree, &task(9), "Done.").await.unwrap().unwrap_err();
    assert!(said.contains("f.txt") && said.contains("a socket"), "{said}");
}

/// Git starts another git to check out the files, and that one waits for the pipe.
#[tokio::test]
async fn pipe_that_a_git_of_git_reads_is_named() {
    let place = Place::new().await;
    let path = place.path().join(".git/info/attributes");
    make_pipe(&path);
    let error = place.repository.provision(&task(1)).await.unwrap_err();
    assert!(error.to_string().contains(&format!("{} is a pipe", path.display())), "{error}");
}

/// Git waits for a pipe in place of each of these files.
#[tokio::test]
async fn pipe_that_git_reads_is_named() {
    let place = Place::new().await;
    let outside = tempfile::tempdir().unwrap();
    let included = outside.path().join("included");
    fs::write(&included, "").unwrap();
    place.git(&["config", "include.path", included.to_str().unwrap()]);
    let object = place.git(&["rev-parse", "HEAD"]);
    let object = place.path().join(".git/objects").join(&object[..2]).join(&object[2..]);
    let files = [".git/index", ".git/config", ".git/HEAD", ".git/info/exclude", ".gitignore"];
    for path in files.map(|name| place.path().join(name)).into_iter().chain([object, included]) {
        let before = fs::read(&path);
        make_pipe(&path);
        let looked = GitRepository::uncommitted(place.path(), None, DriverOptions::default());
        fs::remove_file(&path).unwrap();
        if let Ok(before) = before {
            fs::write(&path, before).unwrap();
        }
        let error = looked.unwrap_err();
        assert!(error.to_string().contains(&format!("{} is a pipe", path.display())), "{}: {error}", path.display());
    }
    GitRepository::uncommitted(place.path(), None, DriverOptions::default()).unwrap();
}
