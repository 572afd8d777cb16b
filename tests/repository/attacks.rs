//! Files that a teammate's commands put where git reads, to mislead a person's git: each is refused or has no effect.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use brigade::git::{DriverOptions, GitRepository};
use brigade::ports::{CommitOutcome, MergeOutcome, Repository, WorktreeOutcome};

use super::harness::{TestRepository, edit, insert_after, reported, task};
use crate::testkit::process::files_below;

/// Git runs in the sandbox of the worktree there, so it can write through a link only what the teammate can.
#[tokio::test]
async fn link_in_git_folder_changes_no_file_of_person() {
    let repo = TestRepository::new().await;
    let target_file = repo.path().join("kept.txt");
    fs::write(&target_file, "as it was\n").unwrap();
    for (id, name) in
        (1..).zip(["index", "COMMIT_EDITMSG", "logs/HEAD", "objects/info/packs", "refs/heads/brigade/crew"])
    {
        let worktree = repo.provision(id).await;
        fs::write(worktree.root.join("new.txt"), name).unwrap();
        let link = worktree.root.join(".git").join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        // It may exist.
        let _ = fs::remove_file(&link);
        symlink(&target_file, &link).unwrap();
        // Git may refuse to work there.
        let _ = repo.repository.commit(&worktree, "Done so.").await;
        let _ = repo.repository.provision(&task(id)).await;
        assert_eq!(fs::read_to_string(&target_file).unwrap(), "as it was\n", "{name}");
    }
}

/// Brigade itself writes and removes files in the git folder of a place.
#[tokio::test]
async fn linked_folder_in_git_folder_changes_no_other_one() {
    for (id, name) in (1..).zip(["info", "objects", "refs", "refs/heads", "refs/heads/brigade"]) {
        let repo = TestRepository::new().await;
        let worktree = repo.provision(id).await;
        let other = tempfile::tempdir().unwrap();
        let in_other = |path: &str| other.path().join(path);
        for folder in ["info", "heads/brigade-tasks/crew", "brigade-tasks/crew", "crew"] {
            fs::create_dir_all(in_other(folder)).unwrap();
        }
        let files = ["info/exclude", "heads/main.lock", "brigade-tasks/crew/task-1", "crew.lock"];
        for file in files {
            fs::write(in_other(file), "as it was\n").unwrap();
        }
        let before = files_below(other.path());
        let folder = worktree.root.join(".git").join(name);
        // It may be missing.
        let _ = fs::remove_dir_all(&folder);
        symlink(other.path(), &folder).unwrap();
        fs::write(repo.path().join(".git/info/exclude"), "of the person\n").unwrap();
        for _ in 0..4 {
            // The worktree may be refused, and then another one is used.
            let _ = repo.repository.provision(&task(id)).await;
        }
        let next = repo.worktree_with(9, |root| insert_after(root, "f.txt", "line 2", "next")).await;
        assert_eq!(repo.merge(&next).await, None);
        assert_eq!(files_below(other.path()), before, "{name}");
        for file in files {
            assert_eq!(fs::read_to_string(in_other(file)).unwrap(), "as it was\n", "{name}: {file}");
        }
    }
}

/// A clone or an archive may contain links where Brigade writes small files of its own.
#[tokio::test]
async fn link_in_place_of_mark_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let target_file = outside.path().join("kept.txt");
    fs::write(&target_file, "as it was\n").unwrap();
    for name in [".worktrees/.making-crew-task-1", ".worktrees/crew/.git/brigade-switching", ".agent/updating"] {
        let repo = TestRepository::new().await;
        if name.starts_with(".agent") {
            fs::create_dir(repo.path().join(".agent")).unwrap();
            symlink(&target_file, repo.path().join(name)).unwrap();
            repo.commit_as_person();
        }
        repo.launch().await;
        if !name.starts_with(".agent") {
            symlink(&target_file, repo.path().join(name)).unwrap();
        }
        // A call may be refused. The second one updates the worktree.
        let _ = repo.repository.provision(&task(1)).await;
        if let Ok(WorktreeOutcome::Ready(worktree)) = repo.repository.provision(&task(1)).await {
            insert_after(&worktree.root, "f.txt", "line 2", "of the team");
            let _ = repo.repository.commit(&worktree, "Done so.").await;
            if let MergeOutcome::Created(merge) = repo.try_merge(&worktree).await {
                repo.repository.publish(&merge, &task(1)).await.unwrap();
            }
        }
        assert_eq!(fs::read_to_string(&target_file).unwrap(), "as it was\n", "{name}");
    }
}

#[tokio::test]
async fn nested_repository_is_not_run_or_merged() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    let within = worktree.root.join("sub");
    fs::create_dir(&within).unwrap();
    let ran = repo.path().join("ran.txt");
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
    let commit = repo.commit(&worktree).await;
    assert!(!ran.exists(), "a program named in its settings ran");
    let refused = match repo.repository.merge(&worktree, reported(&commit)).await.unwrap() {
        MergeOutcome::Refused(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused.contains("nested repositories: sub"), "{refused}");
    assert!(!ran.exists());
}

#[tokio::test]
async fn commit_after_reviewed_one_is_not_merged() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let reviewed = repo.git(&["rev-parse", &worktree.branch.full()]);
    fs::write(worktree.root.join("backdoor.txt"), "x\n").unwrap();
    repo.commit(&worktree).await;
    let merged = repo.repository.merge(&worktree, reported(&reviewed)).await.unwrap();
    let MergeOutcome::Created(merge) = merged else { panic!("{merged:?}") };
    repo.repository.publish(&merge, &task(1)).await.unwrap();
    assert!(repo.team_file("f.txt").contains("mine"));
    assert!(!repo.git(&["ls-tree", "--name-only", "brigade/crew"]).contains("backdoor.txt"));
    let reason = repo.repository.clean_up(&worktree).await.unwrap();
    assert!(reason.unwrap().contains("unmerged commits"));
}

#[tokio::test]
async fn rebase_dropping_merged_lines_needs_trailer() {
    let repo = TestRepository::new().await;
    let first = repo.provision(1).await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 2", "of the second")).await;
    assert_eq!(repo.merge(&second).await, None);
    insert_after(&first.root, "f.txt", "line 3", "of the first");
    let at = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.invalid"]).args(arguments);
        assert!(command.current_dir(&first.root).status().unwrap().success(), "git {arguments:?}");
    };
    at(&["commit", "-q", "-a", "-m", "First"]);
    repo.fetch_target(&first);
    at(&["rebase", "-q", "-X", "theirs", "brigade/crew"]);
    edit(&first.root, "f.txt", |text| text.replace("of the second\n", ""));
    repo.commit(&first).await;
    let refused = repo.refused_merge(&first).await;
    assert!(refused.contains("others added since it was created") && refused.contains("of the second"), "{refused}");
    at(&["commit", "-q", "--amend", "--no-edit", "--trailer", "Brigade-Drops: it was wrong"]);
    repo.commit(&first).await;
    assert_eq!(repo.merge(&first).await, None);
    assert!(repo.team_file("f.txt").contains("of the first"));
}

#[tokio::test]
async fn replaced_object_and_agent_files_are_not_merged() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.create_merge(&worktree).await;
    let evil = repo.git(&["commit-tree", "-m", "evil", "main^{tree}"]);
    repo.git(&["update-ref", &format!("refs/replace/{}", merge.commit), evil.trim()]);
    repo.repository.publish(&merge, &task(1)).await.unwrap();
    assert!(
        fs::read_to_string(repo.team_worktree().join("f.txt")).unwrap().contains("mine"),
        "the team worktree differs from the verified files"
    );
    repo.git(&["update-ref", "-d", &format!("refs/replace/{}", merge.commit)]);
    let other = repo.provision(2).await;
    let at = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        assert!(command.args(arguments).current_dir(&other.root).status().unwrap().success(), "git {arguments:?}");
    };
    let blob = repo.git(&["hash-object", "-w", "f.txt"]);
    at(&["update-index", "--add", "--cacheinfo", &format!("100644,{},.agent/state.json", blob.trim())]);
    let commit = repo.repository.commit(&other, "Done so.").await.unwrap();
    if let CommitOutcome::Committed(commit) = commit
        && let MergeOutcome::Refused(text) = repo.repository.merge(&other, reported(&commit)).await.unwrap()
    {
        assert!(text.contains(".agent/state.json"), "{text}");
    }
    assert!(!repo.git(&["ls-tree", "-r", "--name-only", "brigade/crew"]).contains(".agent"));
}

fn make_pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn special_file_in_worktree_error_names_it() {
    let repo = TestRepository::new().await;
    for (id, name) in ["f.txt", ".gitignore", ".gitattributes", "a/.gitignore"].into_iter().enumerate() {
        let worktree = repo.provision(id as u64 + 1).await;
        let path = worktree.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.with_file_name("new.txt"), "new\n").unwrap();
        make_pipe(&path);
        let notice_text = match repo.repository.commit(&worktree, "Done.").await {
            Ok(CommitOutcome::Refused(reason)) => reason,
            Ok(CommitOutcome::Committed(commit)) => panic!("{commit} is committed"),
            Err(error) => error.to_string(),
        };
        assert!(notice_text.contains(name) && notice_text.contains("is a pipe"), "{name}: {notice_text}");
    }
    let worktree = repo.provision(9).await;
    fs::remove_file(worktree.root.join("f.txt")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(worktree.root.join("f.txt")).unwrap();
    let notice_text = repo.refused_commit(&worktree).await;
    assert!(notice_text.contains("f.txt") && notice_text.contains("a socket"), "{notice_text}");
}

/// Git waits for a pipe in place of each of these files.
#[tokio::test]
async fn pipe_read_by_git_is_named() {
    let repo = TestRepository::new().await;
    let outside = tempfile::tempdir().unwrap();
    let included = outside.path().join("included");
    fs::write(&included, "").unwrap();
    repo.git(&["config", "include.path", included.to_str().unwrap()]);
    let object = repo.git(&["rev-parse", "HEAD"]);
    let object = repo.path().join(".git/objects").join(&object[..2]).join(&object[2..]);
    let files = [".git/index", ".git/config", ".git/HEAD", ".git/info/exclude", ".gitignore"];
    for path in files.map(|name| repo.path().join(name)).into_iter().chain([object, included]) {
        let before = fs::read(&path);
        make_pipe(&path);
        let looked = GitRepository::uncommitted(repo.path(), DriverOptions::default());
        fs::remove_file(&path).unwrap();
        if let Ok(before) = before {
            fs::write(&path, before).unwrap();
        }
        let error = looked.unwrap_err();
        assert!(error.to_string().contains(&format!("{} is a pipe", path.display())), "{}: {error}", path.display());
    }
    GitRepository::uncommitted(repo.path(), DriverOptions::default()).unwrap();
}
