//! The set-up of worktrees: copied files, ports, and the command that has to run.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use brigade::domain::agent::access::PathRule;
use brigade::domain::team::team_spec::SetupSpec;
use brigade::ports::{PORTS_PER_WORKTREE, PendingSetup, Repository, Setup, SetupPlace, Worktree};
use brigade::sandbox::Sandbox;

use crate::harness::{TestRepository, edit, git, git_output, open_with_setup, task};
use crate::testkit::process::{guard, wait_until};

/// A repository with an ignored file `.env`, whose worktrees are set up like this.
async fn repository(setup: SetupSpec) -> TestRepository {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitignore"), ".env\nlocal/\n").unwrap();
    repo.commit_as_person();
    fs::write(repo.path().join(".env"), "KEY=1\n").unwrap();
    let repository = open_with_setup(repo.path(), setup).await.unwrap();
    TestRepository { repository, ..repo }
}

fn copies(files: &[&str]) -> SetupSpec {
    SetupSpec { copy: files.iter().map(Into::into).collect(), ..SetupSpec::default() }
}

async fn prepare(repo: &TestRepository, place: &SetupPlace) -> Setup {
    repo.repository.prepare_setup(place).await.unwrap()
}

async fn provision(repo: &TestRepository, id: u64) -> (Worktree, SetupPlace) {
    let worktree = repo.provision(id).await;
    let place = SetupPlace::Task(worktree.root.clone());
    prepare(repo, &place).await;
    (worktree, place)
}

/// Listens on a port as soon as it is free. A process that another test is starting may keep a closed listener open for a moment.
fn listen(address: &str, port: u16) -> io::Result<TcpListener> {
    let mut listener = TcpListener::bind((address, port));
    wait_until("the port is free", || {
        let is_used = listener.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        if is_used {
            listener = TcpListener::bind((address, port));
        }
        !is_used
    });
    listener
}

#[tokio::test]
async fn worktrees_have_stable_distinct_ports() {
    let repo = repository(SetupSpec::default()).await;
    let mut ports = Vec::new();
    for id in 1..=4 {
        let (_, place) = provision(&repo, id).await;
        ports.push((prepare(&repo, &place).await.port_base, place));
    }
    ports.push((prepare(&repo, &SetupPlace::Team).await.port_base, SetupPlace::Team));
    let distinct: HashSet<u16> = ports.iter().map(|(port, _)| *port).collect();
    assert_eq!(distinct.len(), 5, "{ports:?}");
    assert!(distinct.iter().all(|port| port % PORTS_PER_WORKTREE == 0), "the ranges do not overlap: {distinct:?}");
    // A program of the worktree listens there after a restart.
    let listener = listen("127.0.0.1", ports[0].0).unwrap();
    let again = open_with_setup(repo.path(), SetupSpec::default()).await.unwrap();
    for (port, place) in &ports {
        assert_eq!(again.prepare_setup(place).await.unwrap().port_base, *port);
    }
    drop(listener);
    // A new worktree at the same place avoids a port in use.
    let SetupPlace::Task(first) = &ports[0].1 else { panic!() };
    for address in ["127.0.0.1", "::1"] {
        let Ok(_listener) = listen(address, ports[0].0) else {
            assert_eq!(address, "::1");
            println!("skipped: this machine has no IPv6");
            continue;
        };
        fs::remove_dir_all(first).unwrap();
        let (_, place) = provision(&repo, 1).await;
        let port = prepare(&repo, &place).await.port_base;
        assert!(!distinct.contains(&port), "{port} is in use: {distinct:?}");
    }
}

#[tokio::test]
async fn copied_file_is_in_worktree_and_not_in_commits() {
    let repo = repository(copies(&[".env", "local/key"])).await;
    fs::create_dir(repo.path().join("local")).unwrap();
    fs::write(repo.path().join("local/key"), "secret\n").unwrap();
    let (worktree, place) = provision(&repo, 1).await;
    assert_eq!(fs::read_to_string(worktree.root.join(".env")).unwrap(), "KEY=1\n");
    assert_eq!(fs::read_to_string(worktree.root.join("local/key")).unwrap(), "secret\n");
    // The teammate's version stays, a file that it removed returns, and its rules must still ignore both.
    fs::write(worktree.root.join(".env"), "KEY=2\n").unwrap();
    fs::remove_file(worktree.root.join("local/key")).unwrap();
    prepare(&repo, &place).await;
    assert_eq!(fs::read_to_string(worktree.root.join(".env")).unwrap(), "KEY=2\n");
    assert_eq!(fs::read_to_string(worktree.root.join("local/key")).unwrap(), "secret\n");
    for rules in ["", "local/\n"] {
        fs::write(worktree.root.join(".gitignore"), rules).unwrap();
        let refused = repo.refused_commit(&worktree).await;
        assert!(refused.contains("keeps Brigade from copying .env"), "{refused}");
    }
    fs::write(worktree.root.join(".gitignore"), "local/\n.env\n").unwrap();
    fs::write(worktree.root.join("new.txt"), "new\n").unwrap();
    let commit = repo.commit(&worktree).await;
    assert_eq!(repo.git(&["show", "--format=", "--name-only", &commit]), ".gitignore\nnew.txt");
    let failed = brigade::ports::Assignment {
        attempt: 2,
        failed: Some(brigade::domain::task::failed_attempt::FailedAttempt {
            attempt: 1,
            owner: "alice".into(),
            reason: "no".into(),
        }),
        ..task(1)
    };
    repo.repository.provision(&failed).await.unwrap();
    let kept = repo.git(&["ls-tree", "-r", "--name-only", "brigade-tasks/crew/task-1-attempt-1"]);
    assert!(kept.contains("new.txt") && !kept.contains("env") && !kept.contains("key"), "{kept}");
}

#[tokio::test]
async fn commit_of_copied_file_is_refused_until_undone() {
    let repo = repository(copies(&[".env"])).await;
    let (worktree, _) = provision(&repo, 1).await;
    edit(&worktree.root, "f.txt", |text| text + "mine\n");
    git(&worktree.root, &["add", "-f", "f.txt", ".env"]);
    git(&worktree.root, &["commit", "-q", "-m", "With the key"]);
    git(&worktree.root, &["rm", "-q", "--cached", ".env"]);
    git(&worktree.root, &["commit", "-q", "-m", "Without it, but it is in the history"]);
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("contain .env, which Brigade copied"), "{refused}");
    let start = refused.find("git reset").unwrap();
    let advice = &refused[start..start + refused[start..].find(" in it").unwrap()];
    let undone = std::process::Command::new("sh").args(["-c", advice]).current_dir(&worktree.root).status().unwrap();
    assert!(undone.success(), "{advice}");
    repo.commit(&worktree).await;
    repo.merge(&worktree).await;
    assert!(repo.team_file("f.txt").ends_with("mine"));
    assert_eq!(repo.git(&["log", "--format=%h", "brigade/crew", "--", ".env"]), "");
}

#[tokio::test]
async fn file_that_cannot_be_copied_stops_launch() {
    for (copy, expected) in [
        ("missing", "cannot copy missing into worktrees: "),
        ("f.txt", "cannot copy f.txt into worktrees: git does not ignore it there"),
        ("plain", "cannot copy plain into worktrees: git does not ignore it there"),
        ("outside", "cannot copy outside into worktrees: "),
    ] {
        let repo = repository(copies(&[copy])).await;
        fs::write(repo.path().join("plain"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", repo.path().join("outside")).unwrap();
        let refused = repo.refused_launch().await;
        assert!(refused.contains(expected), "{refused}");
    }
}

#[tokio::test]
async fn copied_file_follows_no_link() {
    let repo = repository(copies(&["local/key"])).await;
    fs::create_dir(repo.path().join("local")).unwrap();
    fs::write(repo.path().join("local/key"), "secret\n").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let worktree = repo.provision(1).await;
    std::os::unix::fs::symlink(elsewhere.path(), worktree.root.join("local")).unwrap();
    let refused = repo.repository.prepare_setup(&SetupPlace::Task(worktree.root)).await.unwrap_err().to_string();
    assert!(refused.contains("local"), "{refused}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

fn command(text: &str) -> SetupSpec {
    SetupSpec { command: Some(text.to_owned()), copy: vec![".env".into()], submodules: false }
}

#[tokio::test]
async fn setup_runs_until_it_succeeded_and_after_changes() {
    let repo = repository(command("make")).await;
    let (worktree, place) = provision(&repo, 1).await;
    let pending = async || prepare(&repo, &place).await.pending;
    let PendingSetup { command, key, .. } = pending().await.unwrap();
    assert_eq!(command, "make");
    assert!(pending().await.is_some(), "it was not recorded");
    repo.repository.record_setup(&place, &key).await.unwrap();
    assert_eq!(pending().await, None);
    edit(&worktree.root, "f.txt", |text| text + "mine\n");
    repo.commit(&worktree).await;
    assert_eq!(pending().await, None, "its teammate keeps it up to date");
    fs::write(repo.path().join(".env"), "KEY=3\n").unwrap();
    assert!(pending().await.is_some());
    assert_eq!(fs::read_to_string(worktree.root.join(".env")).unwrap(), "KEY=3\n");
}

/// Merges a change of the task, and returns its pending set-up.
async fn pending_of_merge(repo: &TestRepository, id: u64, change: impl FnOnce(&Path)) -> Option<PendingSetup> {
    let worktree = repo.worktree_with(id, change).await;
    let merge = repo.create_merge(&worktree).await;
    repo.repository.check_out(&merge).await.unwrap();
    let place = SetupPlace::Merge(merge);
    let Setup { pending, .. } = prepare(repo, &place).await;
    if let Some(PendingSetup { key, .. }) = &pending {
        repo.repository.record_setup(&place, key).await.unwrap();
    }
    pending
}

#[tokio::test]
async fn merge_is_set_up_again_if_top_folder_changed() {
    let repo = repository(command("make")).await;
    let in_folder = |folder: &Path, name: &str| {
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("src").join(name), "x").unwrap();
    };
    let first = pending_of_merge(&repo, 1, |folder| in_folder(folder, "a")).await.unwrap();
    assert!(!first.is_changed_by_task);
    assert_eq!(pending_of_merge(&repo, 2, |folder| in_folder(folder, "b")).await, None);
    let changed = pending_of_merge(&repo, 3, |folder| fs::write(folder.join("lock.json"), "x").unwrap()).await.unwrap();
    assert!(changed.is_changed_by_task);
}

#[tokio::test]
async fn failed_submodules_skip_whole_setup_command() {
    let setup = SetupSpec { command: Some("true; touch ran".into()), submodules: true, ..SetupSpec::default() };
    let repo = repository(setup).await;
    let (worktree, place) = provision(&repo, 1).await;
    let PendingSetup { command, .. } = prepare(&repo, &place).await.pending.unwrap();
    let broken = command.replacen("git ", "git --no-such-option ", 1);
    let status = std::process::Command::new("sh").args(["-c", &broken]).current_dir(&worktree.root).status().unwrap();
    assert!(!status.success() && !worktree.root.join("ran").exists(), "{command}");
}

/// The sandbox refuses to make a link writable.
#[tokio::test]
async fn linked_folder_of_submodules_is_not_made_writable() {
    let repo = repository(SetupSpec { submodules: true, ..SetupSpec::default() }).await;
    let (worktree, place) = provision(&repo, 1).await;
    let modules = worktree.root.join(".git/modules");
    fs::rename(&modules, worktree.root.join(".git/other")).unwrap();
    symlink(repo.path().join(".git/hooks"), &modules).unwrap();
    assert_eq!(prepare(&repo, &place).await.pending.unwrap().writable, vec![modules.clone()]);
    let refused = Sandbox::open(guard(), &worktree.root, vec![PathRule::writable(modules)]).err().unwrap();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
}

/// A submodule of the repository. `git submodule` needs leave to copy from this machine.
#[tokio::test]
async fn worktree_with_changed_submodule_is_kept() {
    let lib = TestRepository::new().await;
    let repo = repository(SetupSpec { submodules: true, ..SetupSpec::default() }).await;
    let allow = ["-c", "protocol.file.allow=always"];
    let url = lib.path().to_string_lossy().into_owned();
    repo.git(&[&allow[..], &["submodule", "--quiet", "add", &url, "lib"]].concat());
    repo.commit_as_person();
    let config = fs::read_to_string(repo.path().join(".git/config")).unwrap();
    for id in [1, 2] {
        let (worktree, place) = provision(&repo, id).await;
        let PendingSetup { command, key, .. } = prepare(&repo, &place).await.pending.unwrap();
        let update = command.replacen("git ", "git -c protocol.file.allow=always ", 1);
        let (code, text) = {
            let words: Vec<&str> = update.split(' ').skip(1).collect();
            git_output(&worktree.root, &words)
        };
        assert_eq!(code, Some(0), "{text}");
        std::thread::sleep(Duration::from_millis(20));
        repo.repository.record_setup(&place, &key).await.unwrap();
        assert!(worktree.root.join("lib/f.txt").exists());
        fs::write(worktree.root.join(format!("{id}.txt")), "x").unwrap();
        if id == 2 {
            // The clock of files has steps of some milliseconds.
            std::thread::sleep(Duration::from_millis(20));
            fs::write(worktree.root.join("lib/f.txt"), "changed").unwrap();
        }
        repo.commit(&worktree).await;
        repo.merge(&worktree).await;
        let kept = repo.clean_up(&worktree).await;
        assert_eq!(kept.is_some(), id == 2, "{kept:?}");
        assert_eq!(worktree.root.exists(), id == 2);
    }
    assert_eq!(fs::read_to_string(repo.path().join(".git/config")).unwrap(), config);
}
