//! Worktrees: created, reused, edited by others.

use std::fs;
use std::process::Command;

use brigade::ports::{Repository, RepositoryError, WorktreeOutcome};

use crate::harness::{
    TestRepository, edit, git, git_output, insert_after, leftover_work, notice_texts, open, reported, task,
};

fn error_text(error: RepositoryError) -> String {
    error.to_string()
}

#[tokio::test]
async fn unusable_repository_error_names_reason() {
    let folder = tempfile::tempdir().unwrap();
    let none = error_text(open(folder.path()).await.err().unwrap());
    assert!(none.contains("is not in a git repository") && none.contains("git init"), "{none}");
    git(folder.path(), &["init", "-q", "-b", "main", "."]);
    let empty = error_text(open(folder.path()).await.err().unwrap());
    assert!(empty.contains("`main` has no commit"), "{empty}");
    git(folder.path(), &["commit", "-q", "--allow-empty", "-m", "Begin"]);
    fs::create_dir(folder.path().join("below")).unwrap();
    let below = error_text(open(&folder.path().join("below")).await.err().unwrap());
    assert!(below.contains("top folder of its repository"), "{below}");
    git(folder.path(), &["checkout", "-q", "--detach"]);
    assert!(open(folder.path()).await.is_ok(), "the team branch can start at a commit without a branch");
}

#[tokio::test]
async fn worktree_has_branch_and_state_ignored_by_git() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(3).await;
    assert_eq!(
        (worktree.name.as_str(), worktree.branch.short()),
        (".worktrees/crew-task-3", "brigade-tasks/crew/task-3")
    );
    assert_eq!((worktree.into.short(), worktree.leftover_work, worktree.warnings.len()), ("brigade/crew", None, 0));
    assert_eq!(git(&worktree.root, &["symbolic-ref", "--short", "HEAD"]), "brigade-tasks/crew/task-3");
    let state = fs::read_to_string(repo.state_path(&worktree)).unwrap();
    assert!(state.contains("\"issueId\": \"3\"") && state.contains("\"issueIdentifier\": \"crew/task-3\""), "{state}");
    assert_eq!(repo.checkout_status(), "", "the person's checkout is clean");
    assert_eq!(git(&worktree.root, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn worktree_is_found_with_its_work_after_crash() {
    let repo = TestRepository::new().await;
    let first = repo.provision(3).await;
    insert_after(&first.root, "f.txt", "line 3", "mine");
    git(&first.root, &["commit", "-q", "-a", "-m", "Half"]);
    fs::write(first.root.join("new.txt"), "not committed\n").unwrap();
    // Files that a killed git leaves.
    for lock in ["index.lock", "ORIG_HEAD.lock"] {
        fs::write(first.root.join(".git").join(lock), "").unwrap();
    }
    let again = repo.provision(3).await;
    assert_eq!((&again.root, again.leftover_work), (&first.root, leftover_work(1, 1)));
    assert_eq!(again.warnings.len(), 2, "{:?}", again.warnings);
    assert_eq!(git_output(&again.root, &["merge", "main"]).0, Some(0), "git does not work there");
    assert_eq!(fs::read_to_string(again.root.join("new.txt")).unwrap(), "not committed\n");
    repo.commit(&again).await;
}

#[tokio::test]
async fn worktree_of_other_task_is_kept_and_path_avoided() {
    let repo = TestRepository::new().await;
    let first = repo.provision(3).await;
    fs::write(first.root.join("theirs.txt"), "theirs\n").unwrap();
    edit(&first.root, ".agent/state.json", |text| text.replace("crew/task-3", "crew/task-9"));
    let second = repo.provision(3).await;
    assert_eq!(
        (second.name.as_str(), second.branch.short()),
        (".worktrees/crew-task-3-2", "brigade-tasks/crew/task-3-2")
    );
    assert!(second.warnings[0].contains("names `crew/task-9`"), "{:?}", second.warnings);
    assert_eq!(fs::read_to_string(first.root.join("theirs.txt")).unwrap(), "theirs\n");
    let state = fs::read_to_string(repo.state_path(&first)).unwrap();
    assert!(state.contains("crew/task-9"), "{state}");
    assert_eq!(repo.provision(3).await.root, second.root, "the worktree was not reused");
    insert_after(&second.root, "f.txt", "line 3", "mine");
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    assert_eq!(
        repo.clean_up(&first).await.unwrap(),
        ".worktrees/crew-task-3 stays: its state file does not name this task"
    );
    assert!(first.root.is_dir());
}

#[tokio::test]
async fn invalid_worktree_state_is_replaced_with_warning() {
    let repo = TestRepository::new().await;
    let first = repo.provision(3).await;
    fs::write(first.root.join("new.txt"), "mine\n").unwrap();
    fs::write(repo.state_path(&first), "{ torn").unwrap();
    let again = repo.provision(3).await;
    assert_eq!(again.root, first.root);
    assert!(again.warnings[0].contains("invalid"), "{:?}", again.warnings);
    let state = fs::read_to_string(repo.state_path(&first)).unwrap();
    assert!(state.contains("crew/task-3"), "{state}");
    assert_eq!(fs::read_to_string(first.root.join("new.txt")).unwrap(), "mine\n");
}

#[tokio::test]
async fn foreign_folder_in_worktrees_is_not_touched() {
    let repo = TestRepository::new().await;
    let folder = repo.path().join(".worktrees/crew-task-3");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("precious.txt"), "x").unwrap();
    git(repo.path(), &["worktree", "add", "-q", "-b", "own", ".worktrees/crew-task-3-2"]);
    std::os::unix::fs::symlink("/", repo.path().join(".worktrees/crew-task-3-3")).unwrap();
    let worktree = repo.provision(3).await;
    assert_eq!(worktree.name, ".worktrees/crew-task-3-4");
    assert_eq!(worktree.warnings.len(), 3, "{:?}", worktree.warnings);
    assert_eq!(fs::read_to_string(folder.join("precious.txt")).unwrap(), "x");
    assert!(!repo.path().join(".worktrees/crew-task-3-2/.agent").exists());
}

#[tokio::test]
async fn worktree_half_made_by_killed_git_is_recreated() {
    let repo = TestRepository::new().await;
    let first = repo.provision(3).await;
    // The state in the middle of a checkout: some files missing, no index.
    let making = repo.path().join(".worktrees/.making-crew-task-3");
    fs::rename(&first.root, &making).unwrap();
    fs::remove_file(making.join(".git/index")).unwrap();
    fs::remove_file(making.join("f.txt")).unwrap();
    let again = repo.provision(3).await;
    assert_eq!((&again.root, again.leftover_work, again.warnings.len()), (&first.root, None, 0));
    assert!(!making.exists());
    assert!(again.root.join("f.txt").exists());
    assert_eq!(git(&again.root, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn broken_merge_worktree_is_recreated() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.create_merge(&worktree).await;
    let scratch = repo.repository.check_out(&merge).await.unwrap();
    fs::remove_file(scratch.join(".git/HEAD")).unwrap();
    assert_eq!(repo.repository.check_out(&merge).await.unwrap(), scratch);
    assert!(fs::read_to_string(scratch.join("f.txt")).unwrap().contains("mine"));
    assert_eq!(repo.launch().await, [""; 0]);
    assert!(!scratch.exists());
    repo.repository.check_out(&merge).await.unwrap();
    fs::remove_dir_all(scratch.join(".git")).unwrap();
    assert_eq!(repo.repository.check_out(&merge).await.unwrap(), scratch);
}

#[tokio::test]
async fn removed_worktree_is_recreated_from_branch() {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    fs::remove_dir_all(&first.root).unwrap();
    let again = repo.provision(3).await;
    assert_eq!((&again.root, again.leftover_work), (&first.root, leftover_work(1, 0)));
    assert!(fs::read_to_string(again.root.join("f.txt")).unwrap().contains("mine"));
}

#[tokio::test]
async fn branch_checked_out_elsewhere_is_not_moved() {
    let repo = TestRepository::new().await;
    git(repo.path(), &["worktree", "add", "-q", "-b", "brigade-tasks/crew/task-3", "elsewhere"]);
    let before = repo.git(&["rev-parse", "brigade-tasks/crew/task-3"]);
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    assert_eq!(repo.git(&["rev-parse", "brigade-tasks/crew/task-3"]), before);
    let commit = git(&worktree.root, &["rev-parse", "HEAD"]);
    assert!(matches!(
        repo.repository.merge(&worktree, reported(&commit)).await.unwrap(),
        brigade::ports::MergeOutcome::Created(_)
    ));
}

#[tokio::test]
async fn commit_of_brigade_carries_task_trailers() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(3).await;
    insert_after(&worktree.root, "f.txt", "line 3", "own");
    let message = "Own\n\nSigned-off-by: x <x@y>";
    git(&worktree.root, &["-c", "user.email=alice@brigade.invalid", "commit", "-q", "-a", "-m", message]);
    fs::write(worktree.root.join("left.txt"), "left\n").unwrap();
    let own = git(&worktree.root, &["rev-parse", "HEAD"]);
    let tip = repo.commit(&worktree).await;
    assert_eq!(git(&worktree.root, &["rev-parse", "HEAD", "HEAD^"]), format!("{tip}\n{own}"));
    assert_eq!(git(&worktree.root, &["status", "--porcelain"]), "");
    let log = git(
        &worktree.root,
        &[
            "log",
            "--format=%an <%ae>|%(trailers:separator=%x2c,key=Brigade-Task,key=Brigade-Teammate,key=Brigade-Attempt)",
            "main..",
        ],
    );
    let trailers = "Brigade-Task: 3,Brigade-Teammate: alice,Brigade-Attempt: 1";
    let expected = format!("alice (crew) <alice@brigade.invalid>|{trailers}\nPerson <alice@brigade.invalid>|");
    assert_eq!(log, expected);
    assert_eq!(repo.commit(&worktree).await, tip, "the second call made a commit");
}

#[tokio::test]
async fn work_survives_leaving_or_renaming_task_branch() {
    const COMMIT: &[&str] = &["-c", "user.email=alice@brigade.invalid", "commit", "-q", "-a", "-m", "More"];
    const LEAVE: &[&str] = &["update-ref", "-d", "refs/heads/brigade-tasks/crew/task-3"];
    for (deeds, commits) in [
        (vec![&["switch", "-q", "-c", "other"][..], COMMIT], 2),
        (vec![COMMIT, &["branch", "-q", "-m", "other"]], 2),
        (vec![&["checkout", "-q", "--detach"], COMMIT], 2),
        (vec![COMMIT, &["checkout", "-q", "--detach"], LEAVE], 2),
        // The commit is gone with the branch; its changes are still in the files.
        (vec![COMMIT, LEAVE], 2),
        (vec![&["checkout", "-q", "--detach"], &["reset", "-q", "--hard", "main"]], 1),
    ] {
        let repo = TestRepository::new().await;
        let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
        repo.commit(&worktree).await;
        insert_after(&worktree.root, "f.txt", "line 9", "also mine");
        for deed in &deeds {
            git(&worktree.root, deed);
        }
        let was_reset = deeds.last().is_some_and(|deed| deed.contains(&"reset"));
        let again = repo.provision(3).await;
        assert_eq!(again.root, worktree.root, "{deeds:?}");
        assert_eq!(again.warnings.len(), 1, "the warning is missing: {:?}", again.warnings);
        let tip = repo.commit(&again).await;
        assert_eq!(repo.git(&["rev-parse", "brigade-tasks/crew/task-3"]), tip);
        assert_eq!(repo.git(&["rev-list", "--count", &format!("main..{tip}")]), commits.to_string(), "{deeds:?}");
        let text = repo.git(&["show", &format!("{tip}:f.txt")]);
        assert!(text.contains("\nmine\n"), "{deeds:?}: {text}");
        assert_eq!(text.contains("\nalso mine\n"), !was_reset, "{deeds:?}: {text}");
    }
}

#[tokio::test]
async fn commit_on_other_branch_is_refused() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    let tip = repo.commit(&worktree).await;
    git(&worktree.root, &["switch", "-q", "-c", "other", "main"]);
    insert_after(&worktree.root, "f.txt", "line 9", "elsewhere");
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("the branch other is checked out"), "{refused}");
    assert!(fs::read_to_string(worktree.root.join("f.txt")).unwrap().contains("elsewhere"));
    git(&worktree.root, &["commit", "-q", "-a", "-m", "Elsewhere"]);
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("the branch other is checked out"), "changes there would be lost: {refused}");
    git(&worktree.root, &["reset", "-q", "--hard", "main"]);
    assert_eq!(repo.commit(&worktree).await, tip, "without changes the branch is not switched back");
    assert_eq!(git(&worktree.root, &["branch", "--show-current"]), "brigade-tasks/crew/task-3");
    git(&worktree.root, &["checkout", "-q", "--detach", "main"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "On no branch"]);
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("no branch is checked out"), "{refused}");
}

/// Commits as a teammate does.
fn commit_as_teammate(folder: &std::path::Path, name: &str, arguments: &[&str]) {
    let address = format!("user.email={name}@brigade.invalid");
    git(folder, &[&["-c", &address, "commit", "-q"], arguments].concat());
}

#[tokio::test]
async fn checked_out_branch_of_others_is_not_merged() {
    let repo = TestRepository::new().await;
    repo.git(&["branch", "wip"]);
    let worktree = repo.provision(3).await;
    git(&worktree.root, &["switch", "-q", "wip"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "The person's"]);
    for looked_at in [&["switch", "-q", "wip"][..], &["switch", "-q", "--detach", "wip"]] {
        git(&worktree.root, looked_at);
        let refused = repo.refused_commit(&worktree).await;
        assert!(refused.contains("The work belongs on brigade-tasks/crew/task-3"), "{looked_at:?}: {refused}");
    }
    commit_as_teammate(&worktree.root, "alice", &["--allow-empty", "-m", "On top of it"]);
    repo.refused_commit(&worktree).await;
}

#[tokio::test]
async fn task_branch_checked_out_by_person_is_not_moved() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    let tip = repo.commit(&worktree).await;
    git(&worktree.root, &["switch", "-q", "-c", "other"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "More"]);
    repo.git(&["switch", "-q", "brigade-tasks/crew/task-3"]);
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("the branch other is checked out"), "{refused}");
    assert_eq!(repo.git(&["rev-parse", "HEAD"]), tip);
    assert_eq!(repo.git(&["status", "--porcelain"]), "");
    // A branch that is not a task's stays too, although it has no commits.
    repo.git(&["branch", "release", "main"]);
    repo.git(&["update-ref", "refs/heads/brigade/crew", "brigade-tasks/crew/task-3"]);
    git(&worktree.root, &["symbolic-ref", "HEAD", "refs/heads/release"]);
    git(&worktree.root, &["reset", "-q", "--hard"]);
    let before = repo.git(&["rev-parse", "release"]);
    repo.provision(3).await;
    assert_eq!(repo.git(&["rev-parse", "release"]), before);
}

#[tokio::test]
async fn unresolved_conflict_is_not_committed() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    repo.commit(&worktree).await;
    insert_after(repo.path(), "f.txt", "line 3", "person's");
    repo.git(&["commit", "-q", "-a", "-m", "Theirs"]);
    git(&worktree.root, &["fetch", "-q", "../..", "main"]);
    assert_ne!(git_output(&worktree.root, &["merge", "FETCH_HEAD"]).0, Some(0), "the branches conflict");
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("unresolved conflicts in f.txt"), "{refused}");
}

#[tokio::test]
async fn only_merged_and_clean_worktree_is_removed() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    let reason = repo.clean_up(&worktree).await.unwrap();
    assert!(reason.contains("unmerged commits"), "{reason}");
    assert_eq!(repo.merge(&worktree).await, None);
    fs::write(worktree.root.join("dirty.txt"), "x").unwrap();
    let reason = repo.clean_up(&worktree).await.unwrap();
    assert!(reason.starts_with(".worktrees/crew-task-3 stays:"), "{reason}");
    assert_eq!(fs::read_to_string(worktree.root.join("dirty.txt")).unwrap(), "x");
    fs::remove_file(worktree.root.join("dirty.txt")).unwrap();
    assert_eq!(repo.clean_up(&worktree).await, None);
    assert!(!worktree.root.exists());
    assert_eq!(repo.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/brigade/crew\nrefs/heads/main");
}

/// Git leaves out the files of a folder that it cannot read, here because of a path that is too long.
#[tokio::test]
async fn worktree_with_unreadable_folder_stays() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    let script = "for n in $(seq 25); do mkdir $1 && cd -P $1 || exit; done; echo hours > work";
    let mut nest = Command::new("sh");
    nest.args(["-c", script, "sh", &"d".repeat(200)]).current_dir(&worktree.root);
    assert!(nest.status().unwrap().success());
    for ignored in ["", "d*\n"] {
        fs::write(worktree.root.join(".git/info/exclude"), ignored).unwrap();
        let kept = repo.repository.clean_up(&worktree).await;
        let reason = kept.map_or_else(|error| error.to_string(), Option::unwrap_or_default);
        assert!(reason.contains("could not open directory"), "{ignored:?}: {reason}");
        assert!(worktree.root.exists());
    }
}

#[tokio::test]
async fn concurrent_provisions_get_distinct_worktrees() {
    let repo = TestRepository::new().await;
    assert_eq!(repo.launch().await, [""; 0]);
    let many: Vec<_> = (1..=12)
        .map(|id| {
            let repository = repo.repository.clone();
            tokio::spawn(async move { repository.provision(&task(id)).await })
        })
        .collect();
    for (id, one) in (1..).zip(many) {
        match one.await.unwrap() {
            Ok(WorktreeOutcome::Ready(worktree)) => assert_eq!(worktree.name, format!(".worktrees/crew-task-{id}")),
            other => panic!("{other:?}"),
        }
    }
}

/// The files of tasks in the folder of worktrees, and git's data for them.
fn worktree_folders(repo: &TestRepository) -> Vec<String> {
    let folders = [repo.path().join(".worktrees"), repo.path().join(".git/worktrees")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("task")).collect()
}

#[tokio::test]
async fn interrupted_removal_is_completed_at_launch() {
    // Killed after the rename, and in the middle of the folder.
    for step in 0..2 {
        let repo = TestRepository::new().await;
        let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 3", "mine")).await;
        assert_eq!(repo.merge(&worktree).await, None);
        let gone = repo.path().join(".worktrees/.gone-crew-task-3");
        fs::rename(&worktree.root, &gone).unwrap();
        if step > 0 {
            fs::remove_dir_all(gone.join(".git")).unwrap();
        }
        assert_eq!(
            notice_texts(repo.repository.prepare_launch(vec![task(3)]).await.unwrap().notices),
            [""; 0],
            "{step}"
        );
        assert_eq!(worktree_folders(&repo), [""; 0], "{step}");
        assert_eq!(
            repo.git(&["for-each-ref", "--format=%(refname)"]),
            "refs/heads/brigade/crew\nrefs/heads/main",
            "{step}"
        );
    }
}

#[tokio::test]
async fn remains_of_killed_git_do_not_change_worktree_name() {
    let repo = TestRepository::new().await;
    let half = |repo: &TestRepository| {
        fs::create_dir_all(repo.path().join(".worktrees/crew-task-3")).unwrap();
        let git_dir = repo.path().join(".git/worktrees/crew-task-3");
        fs::create_dir_all(&git_dir).unwrap();
        fs::write(git_dir.join("locked"), "initializing").unwrap();
        fs::write(git_dir.join("gitdir"), "").unwrap();
    };
    half(&repo);
    let worktree = repo.provision(3).await;
    assert_eq!((worktree.name.as_str(), worktree.warnings.len()), (".worktrees/crew-task-3", 0));
    let next = TestRepository::new().await;
    half(&next);
    assert_eq!(next.launch().await, [""; 0]);
    assert_eq!(next.provision(3).await.name, ".worktrees/crew-task-3");
    assert_eq!(worktree_folders(&next), ["crew-task-3"]);
}

#[tokio::test]
async fn interrupted_worktree_update_is_reset() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(3).await;
    fs::write(worktree.root.join(".agent/updating"), repo.team_tip()).unwrap();
    // Half a checkout: one file is cut short, one is not in the commit.
    fs::write(worktree.root.join("f.txt"), "").unwrap();
    fs::write(worktree.root.join("new.txt"), "").unwrap();
    let again = repo.provision(3).await;
    assert_eq!(again.leftover_work, None);
    assert_eq!(git(&again.root, &["status", "--porcelain"]), "");
    // Changes that a person made there stay.
    fs::write(again.root.join("f.txt"), "mine").unwrap();
    assert_eq!(repo.provision(3).await.leftover_work, leftover_work(0, 1));
    // With any content that another program writes into the state file.
    edit(&worktree.root, ".agent/state.json", |text| text.replace("\"working\"", "\"updating\""));
    assert_eq!(repo.provision(3).await.leftover_work, leftover_work(0, 1));
    assert_eq!(fs::read_to_string(again.root.join("f.txt")).unwrap(), "mine");
}

#[tokio::test]
async fn empty_worktree_of_earlier_attempt_is_removed() {
    let repo = TestRepository::new().await;
    let first = repo.provision(1).await.root;
    let state = first.join(".agent/state.json");
    let own = fs::read_to_string(&state).unwrap();
    fs::write(&state, own.replace("crew/task-1", "crew/task-7")).unwrap();
    let second = repo.provision(1).await;
    assert!(second.name.ends_with("task-1-2"), "{}", second.name);
    fs::write(&state, own).unwrap();
    let third = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(third.root, first);
    assert_eq!(repo.merge(&third).await, None);
    assert_eq!(repo.clean_up(&third).await, None);
    assert!(!first.exists() && !second.root.exists());
    assert_eq!(repo.git(&["branch", "--list", "--format=%(refname:short)"]), "brigade/crew\nmain");
}

#[tokio::test]
async fn launch_waits_for_git_processes_of_previous_run() {
    use std::os::unix::fs::PermissionsExt;
    let repo = TestRepository::new().await;
    // A filter that blocks a checkout; it can write nothing of the repository.
    let outside = tempfile::tempdir().unwrap();
    let (begun, goes_on) = (outside.path().join("begun"), outside.path().join("goes-on"));
    let filter = outside.path().join("slow");
    let text = format!(
        "#!/bin/sh\ntouch '{}'\nwhile [ ! -e '{}' ]; do sleep 0.01; done\ncat\n",
        begun.display(),
        goes_on.display()
    );
    fs::write(&filter, text).unwrap();
    fs::set_permissions(&filter, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(repo.path().join(".gitattributes"), "f.txt filter=slow\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Slow"]);
    assert_eq!(repo.launch().await, [""; 0]);
    repo.git(&["config", "filter.slow.smudge", &filter.display().to_string()]);
    let before = repo.repository.clone();
    let making = tokio::spawn(async move { before.provision(&task(1)).await });
    while !begun.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let next = open(repo.path()).await.unwrap();
    let taking_up = tokio::spawn(async move { next.prepare_launch(Vec::new()).await });
    // The only sign of waiting is that it is not done.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!taking_up.is_finished());
    fs::write(&goes_on, "").unwrap();
    // The launch removes what is not whole. Here its maker still runs, and can write while the launch removes.
    let notices = notice_texts(taking_up.await.unwrap().unwrap().notices);
    assert!(notices.iter().all(|text| text.contains(".making-crew-task-1")), "{notices:?}");
    let _ = making.await.unwrap();
}

#[tokio::test]
async fn worktree_git_folder_is_repaired_after_power_cut() {
    type Spoil = fn(&TestRepository, &std::path::Path);
    let cases: [(&str, Spoil); 7] = [
        ("an empty index", |_, git_dir| fs::write(git_dir.join("index"), "").unwrap()),
        ("a damaged index", |_, git_dir| fs::write(git_dir.join("index"), "no index").unwrap()),
        ("an empty HEAD", |_, git_dir| fs::write(git_dir.join("HEAD"), "").unwrap()),
        ("a damaged HEAD", |_, git_dir| fs::write(git_dir.join("HEAD"), "no head").unwrap()),
        ("a base that is no commit", |repo, _| {
            let base = repo.path().join(".worktrees/crew-task-1/.agent/base");
            fs::write(base, "f".repeat(40) + "\n").unwrap();
        }),
        ("an empty branch", |repo, _| {
            fs::write(repo.path().join(".worktrees/crew-task-1/.git/refs/heads/brigade-tasks/crew/task-1"), "").unwrap()
        }),
        ("a state that is a folder", |repo, _| {
            let state = repo.path().join(".worktrees/crew-task-1/.agent/state.json");
            fs::remove_file(&state).unwrap();
            fs::create_dir_all(state.join("below")).unwrap();
        }),
    ];
    for (case, spoil) in cases {
        let repo = TestRepository::new().await;
        let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "committed")).await;
        insert_after(&first.root, "f.txt", "line 4", "not committed");
        spoil(&repo, &first.root.join(".git"));
        // As many times as a claimer of the task retries.
        let mut tries = 0;
        let again = loop {
            match repo.repository.provision(&task(1)).await {
                Ok(WorktreeOutcome::Ready(worktree)) => break worktree,
                other => assert!(tries < 2, "{case}: {other:?}"),
            }
            tries += 1;
        };
        assert!(first.root.join("f.txt").exists(), "{case}");
        if again.root == first.root {
            let text = fs::read_to_string(again.root.join("f.txt")).unwrap();
            assert!(text.contains("not committed") && text.contains("\ncommitted"), "{case}: {text}");
        } else {
            let warnings = again.warnings.concat();
            assert!(
                warnings.contains("another worktree is used") || warnings.contains("is not used"),
                "{case}: {warnings}"
            );
        }
        insert_after(&again.root, "f.txt", "line 8", "done");
        repo.commit(&again).await;
        assert_eq!(repo.merge(&again).await, None, "{case}");
        assert!(repo.team_file("f.txt").contains("\ndone"), "{case}");
    }
}

#[tokio::test]
async fn stale_git_worktree_record_blocks_no_task() {
    let repo = TestRepository::new().await;
    let git_folder = repo.path().join(".git/worktrees/crew-task-1");
    fs::create_dir_all(&git_folder).unwrap();
    fs::write(git_folder.join("locked"), "initializing").unwrap();
    let pointer = repo.path().join(".worktrees/crew-task-1/.git");
    fs::write(git_folder.join("gitdir"), format!("{}\n", pointer.display())).unwrap();
    fs::write(git_folder.join("commondir"), "").unwrap();
    assert_eq!(repo.launch().await, [""; 0]);
    for id in [1, 2] {
        assert_eq!(repo.provision(id).await.warnings, [""; 0]);
    }
}
