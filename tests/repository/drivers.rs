//! Filters and merge drivers: they run in the sandbox, see what they saw without it, and one that cannot run is an error.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use brigade::domain::access::PathRule;
use brigade::ports::{Repository, RepositoryError};
use brigade::sandbox::Level;
use brigade::sandbox::filter::{DriverKind, DriverSandbox};
use brigade::stores::git::{DriverOptions, GitRepository};

use super::place::{Place, git, git_any, open, put, sandbox, task, ten};

/// A place whose text files have the driver `x`, with these settings.
async fn place_with(settings: &[(&str, &str)]) -> Place {
    let place = Place::new().await;
    fs::write(place.path().join(".gitattributes"), "*.txt filter=x merge=x\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Attributes"]);
    for (key, value) in settings {
        place.git(&["config", key, value]);
    }
    place
}

fn is_confined() -> bool {
    sandbox(Path::new("/")).confinement().level == Level::Full
}

#[tokio::test]
async fn filter_changes_contents_and_writes_nothing_else() {
    let place = place_with(&[]).await;
    let escaped = place.path().join("escaped");
    let clean =
        format!("(echo x > '{}') 2> /dev/null; (kill -9 $PPID) 2> /dev/null; tr a-z A-Z; echo %f", escaped.display());
    place.git(&["config", "filter.x.clean", &clean]);
    let worktree = place.done(1, |root| fs::write(root.join("it's 100% a \"b\".txt"), "small\n").unwrap()).await;
    let stored = place.git(&["show", &format!("{}:it's 100% a \"b\".txt", worktree.branch)]);
    assert_eq!(stored, "SMALL\nit's 100% a \"b\".txt");
    assert!(!is_confined() || !escaped.exists());
}

#[tokio::test]
async fn merge_driver_gets_all_that_git_gives_it() {
    let place = place_with(&[]).await;
    let said = place.folder.path().with_extension("said");
    let driver = format!(
        "echo %L %P %% %S > '{}'; git merge-file -p --marker-size=%L \"%A\" %O '%B' > %A.new && mv %A.new %A",
        said.display()
    );
    place.git(&["config", "merge.x.driver", &driver]);
    let first = place.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let second = place.done(2, |root| put(root, "f.txt", "line 8", "second")).await;
    assert_eq!(place.merged(1, &first).await, None);
    assert_eq!(place.merged(2, &second).await, None);
    let merged = place.on_main("f.txt");
    assert!(merged.contains("first\n") && merged.contains("second\n"), "{merged}");
    assert!(fs::read_to_string(&said).unwrap().starts_with("7 f.txt % "), "{}", fs::read_to_string(&said).unwrap());
    let left: Vec<_> =
        fs::read_dir(place.path().join(".worktrees")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".driver-")), "{left:?}");
    fs::remove_file(said).unwrap();
}

#[tokio::test]
async fn merge_driver_that_conflicts_is_a_conflict() {
    let place = place_with(&[("merge.x.driver", "exit 1")]).await;
    let first = place.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let second = place.done(2, |root| put(root, "f.txt", "line 8", "second")).await;
    assert_eq!(place.merged(1, &first).await, None);
    assert!(place.refused(2, &second).await.contains("conflict in f.txt"));
}

#[tokio::test]
async fn filter_that_fails_is_an_error_though_not_required() {
    let place = place_with(&[("filter.x.clean", "echo no such tool >&2; exit 3")]).await;
    let worktree = place.provision(1).await;
    fs::write(worktree.root.join("new.txt"), "x\n").unwrap();
    let error = place.repository.commit(&worktree, &task(1), "Done so.").await.unwrap_err().to_string();
    assert!(error.contains("no such tool") && error.contains("'x'"), "{error}");
}

/// A program that does not become the guard confines nothing.
#[tokio::test]
async fn driver_without_a_sandbox_is_an_error() {
    let place = place_with(&[("filter.x.clean", "cat")]).await;
    // The same contents, which git does not know before it filtered them.
    fs::write(place.path().join("f.txt"), ten()).unwrap();
    let look = || GitRepository::uncommitted(place.path(), None, DriverOptions::default());
    let error = look().unwrap_err().to_string();
    assert!(error.contains("cannot confine filters"), "{error}");
    let program = Some("/nonexistent/brigade".into());
    for sandbox in [None, Some(sandbox(place.path()))] {
        let drivers = DriverOptions { program: program.clone(), sandbox };
        assert!(GitRepository::uncommitted(place.path(), None, drivers).is_err());
    }
    place.git(&["config", "--unset", "filter.x.clean"]);
    assert_eq!(look().unwrap(), Vec::<PathBuf>::new());
}

/// A driver ends with the git that started it, and with all it started.
#[test]
fn driver_dies_with_git() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, lock) = (folder.path().join("begun"), folder.path().join("lock"));
    let level = if is_confined() { Level::Full } else { Level::Off };
    let program = Some(env!("CARGO_BIN_EXE_brigade").into());
    let sandbox = DriverSandbox { program, level, rules: Vec::new(), scratch: "scratch".into() };
    fs::write(&lock, "").unwrap();
    // Whoever lives holds the lock.
    let command = format!("exec 9< '{}'; flock -s 9; touch '{}'; sleep 600 & wait", lock.display(), begun.display());
    let wrapped = String::from_utf8(sandbox.wrapped(DriverKind::Process, command.as_bytes())).unwrap();
    let mut git = Command::new("sh").args(["-c", &format!("({wrapped}) & wait")]).spawn().unwrap();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed().as_secs() < 60, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    until("it begins", &|| begun.exists());
    let file = fs::File::open(&lock).unwrap();
    assert!(file.try_lock().is_err());
    git.kill().unwrap();
    git.wait().unwrap();
    if level == Level::Full {
        until("everything ends", &|| file.try_lock().is_ok());
    }
}

/// An empty `process` switches a filter off, as git has it.
#[tokio::test]
async fn filter_that_is_switched_off_changes_nothing() {
    let place = place_with(&[("filter.x.clean", "exit 1"), ("filter.x.process", "")]).await;
    let worktree = place.done(1, |root| fs::write(root.join("a.txt"), "a\n").unwrap()).await;
    assert_eq!(place.git(&["show", &format!("{}:a.txt", worktree.branch)]), "a");
}

#[tokio::test]
async fn filter_that_comes_later_runs_in_the_sandbox_too() {
    let place = place_with(&[]).await;
    let include = place.folder.path().with_extension("cfg");
    fs::write(&include, "[filter \"y\"]\n").unwrap();
    place.git(&["config", "include.path", include.to_str().unwrap()]);
    let first = place.done(1, |root| fs::write(root.join("a.txt"), "a\n").unwrap()).await;
    assert_eq!(place.git(&["show", &format!("{}:a.txt", first.branch)]), "a");
    let escaped = place.path().join("escaped");
    let clean = format!("tr a-z A-Z; (echo x > {}) 2> /dev/null || true", escaped.display());
    fs::write(&include, format!("[filter \"x\"]\n\tclean = \"{clean}\"\n")).unwrap();
    let second = place.done(2, |root| fs::write(root.join("b.txt"), "b\n").unwrap()).await;
    assert_eq!(place.git(&["show", &format!("{}:b.txt", second.branch)]), "B");
    assert!(!is_confined() || !escaped.exists());
    assert!(
        place.repository.boundaries(None).contains(&PathRule::read_only(include.canonicalize().unwrap())),
        "commands cannot write it"
    );
    // A command could make this one.
    fs::remove_file(&include).unwrap();
    let Err(RepositoryError::Unusable(refused)) = open(place.path()).await else { panic!("it is opened") };
    assert!(refused.contains("which is no file") && refused.contains(include.to_str().unwrap()), "{refused}");
}

/// Values that a line of text cannot hold reach git as they are.
#[tokio::test]
async fn settings_keep_their_values_and_precedence() {
    let place = place_with(&[]).await;
    let config = place.path().join(".git/config");
    let text = fs::read_to_string(&config).unwrap();
    let more = "[filter \"a=b.c \\\"d\\\" é\"]\n\tclean = \"sed 's/x/a\\n\\tb/'\"\n[core]\n\tautocrlf\n[core]\n\tautocrlf = false\n\tattributesFile =\n[filter \"x\"]\n\tclean = \"tr -d '#;'  \" ; not this\n";
    fs::write(&config, text + more).unwrap();
    fs::write(place.path().join(".gitattributes"), "*.txt filter=x\n").unwrap();
    place.git(&["commit", "-q", "-a", "-m", "Attributes"]);
    let worktree = place.done(1, |root| fs::write(root.join("a.txt"), "#a;\r\n").unwrap()).await;
    let bytes = place.git(&["cat-file", "-s", &format!("{}:a.txt", worktree.branch)]);
    assert_eq!(bytes, "a\r\n".len().to_string());
}

#[tokio::test]
async fn partial_clone_that_lacks_an_object_is_not_fetched() {
    let place = Place::new().await;
    let ran = place.folder.path().with_extension("ran");
    let program = place.folder.path().with_extension("sh");
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (key, value) in [
        ("remote.origin.url", format!("ext::{}", program.display())),
        ("remote.origin.promisor", "true".into()),
        ("protocol.ext.allow", "always".into()),
        ("core.alternateRefsCommand", program.display().to_string()),
    ] {
        place.git(&["config", key, &value]);
    }
    let blob = place.git(&["rev-parse", "main:f.txt"]);
    let place = Place { repository: open(place.path()).await.unwrap(), ..place };
    fs::remove_file(place.path().join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    let said = place.repository.provision(&task(1)).await.unwrap_err().to_string();
    assert!(!ran.exists(), "what the remote names was run");
    assert!(said.contains("git fetch --refetch --no-filter"), "{said}");
    fs::remove_file(program).unwrap();
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

#[tokio::test]
async fn git_lfs_keeps_large_files_out_of_git() {
    if !is_installed("git-lfs") {
        return;
    }
    let place = Place::new().await;
    place.git(&["lfs", "install", "--local", "--skip-repo"]);
    fs::write(place.path().join(".gitattributes"), "*.bin filter=lfs diff=lfs merge=lfs -text\n").unwrap();
    fs::write(place.path().join("old.bin"), "of the person\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Track"]);
    let worktree = place.provision(1).await;
    assert_eq!(fs::read_to_string(worktree.root.join("old.bin")).unwrap(), "of the person\n");
    fs::write(worktree.root.join("new.bin"), "of the team\n").unwrap();
    fs::write(worktree.root.join("old.bin"), "changed\n").unwrap();
    place.commit(1, &worktree).await;
    assert_eq!(place.merged(1, &worktree).await, None);
    assert!(place.on_main("new.bin").starts_with("version https://git-lfs"), "{}", place.on_main("new.bin"));
    assert_eq!(fs::read_to_string(place.path().join("new.bin")).unwrap(), "of the team\n");
    assert_eq!(fs::read_to_string(place.path().join("old.bin")).unwrap(), "changed\n");
    assert_eq!(place.status(), "");
    assert_eq!(place.clear(1, &worktree).await, None);
    // Another clone finds them where LFS keeps them.
    assert!(place.git(&["lfs", "fsck"]).contains("OK"));
}

#[tokio::test]
async fn git_crypt_keeps_secrets_encrypted() {
    if !is_installed("git-crypt") {
        return;
    }
    let place = Place::new().await;
    assert!(Command::new("git-crypt").arg("init").current_dir(place.path()).status().unwrap().success());
    fs::write(place.path().join(".gitattributes"), "secret.* filter=git-crypt diff=git-crypt\n").unwrap();
    fs::write(place.path().join("secret.old"), "of the person\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Lock"]);
    // Its older versions find no keys in a worktree: that is git-crypt's, with and without Brigade.
    let plain = place.folder.path().with_extension("plain");
    let (code, _) = git_any(place.path(), &["worktree", "add", "-q", "--detach", plain.to_str().unwrap()]);
    if code != Some(0) {
        let said = place.repository.provision(&task(1)).await.unwrap_err().to_string();
        assert!(said.contains("'\"git-crypt\" smudge' failed"), "nothing is checked out unfiltered: {said}");
        return;
    }
    place.git(&["worktree", "remove", plain.to_str().unwrap()]);
    let worktree = place.provision(1).await;
    assert_eq!(fs::read_to_string(worktree.root.join("secret.old")).unwrap(), "of the person\n");
    fs::write(worktree.root.join("secret.new"), "of the team\n").unwrap();
    place.commit(1, &worktree).await;
    assert_eq!(place.merged(1, &worktree).await, None);
    assert_eq!(fs::read_to_string(place.path().join("secret.new")).unwrap(), "of the team\n");
    let stored =
        Command::new("git").args(["cat-file", "blob", "main:secret.new"]).current_dir(place.path()).output().unwrap();
    assert!(stored.stdout.starts_with(b"\0GITCRYPT\0"), "{:?}", stored.stdout);
    assert_eq!(git(place.path(), &["status", "--porcelain"]), "");
}
