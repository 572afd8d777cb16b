//! Filters and merge drivers: they run in the sandbox, see the same files as without it, and a driver that cannot run
//! is an error.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use brigade::domain::agent::access::PathRule;
use brigade::git::{DriverOptions, GitRepository};
use brigade::ports::{CommandPlace, Repository, RepositoryError};
use brigade::sandbox::Level;
use brigade::sandbox::filter::{DriverKind, DriverSandbox};

use super::harness::{TestRepository, git_output, insert_after, open, sandbox, ten_lines};

/// A repository whose text files use the driver `x`, with these settings.
async fn repo_with(settings: &[(&str, &str)]) -> TestRepository {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitattributes"), "*.txt filter=x merge=x\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Attributes"]);
    for (key, value) in settings {
        repo.git(&["config", key, value]);
    }
    repo
}

fn is_confined() -> bool {
    sandbox(Path::new("/")).confinement().level == Level::Full
}

#[tokio::test]
async fn filter_changes_contents_and_writes_no_other_file() {
    let repo = repo_with(&[]).await;
    let escaped = repo.path().join("escaped");
    let clean = format!("(echo x > '{}') 2> /dev/null; tr a-z A-Z; echo %f", escaped.display());
    repo.git(&["config", "filter.x.clean", &clean]);
    let worktree =
        repo.worktree_with(1, |root| fs::write(root.join("it's 100% a \"b\".txt"), "small\n").unwrap()).await;
    let stored = repo.git(&["show", &format!("{}:it's 100% a \"b\".txt", worktree.branch)]);
    assert_eq!(stored, "SMALL\nit's 100% a \"b\".txt");
    assert!(!is_confined() || !escaped.exists());
}

#[tokio::test]
async fn merge_driver_gets_all_placeholders() {
    let repo = repo_with(&[]).await;
    let notice_text = repo.folder.path().with_extension("said");
    let driver = format!(
        "echo %L %P %% %S > '{}'; git merge-file -p --marker-size=%L \"%A\" %O '%B' > %A.new && mv %A.new %A",
        notice_text.display()
    );
    repo.git(&["config", "merge.x.driver", &driver]);
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "first")).await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 8", "second")).await;
    assert_eq!(repo.merge(&first).await, None);
    assert_eq!(repo.merge(&second).await, None);
    let merged = repo.team_file("f.txt");
    assert!(merged.contains("first\n") && merged.contains("second\n"), "{merged}");
    assert!(
        fs::read_to_string(&notice_text).unwrap().starts_with("7 f.txt % "),
        "{}",
        fs::read_to_string(&notice_text).unwrap()
    );
    let folder_names: Vec<_> =
        fs::read_dir(repo.path().join(".worktrees")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(folder_names.iter().all(|name| !name.to_string_lossy().starts_with(".driver-")), "{folder_names:?}");
    fs::remove_file(notice_text).unwrap();
}

#[tokio::test]
async fn failing_merge_driver_is_a_conflict() {
    let repo = repo_with(&[("merge.x.driver", "exit 1")]).await;
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "first")).await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 8", "second")).await;
    assert_eq!(repo.merge(&first).await, None);
    assert!(repo.refused_merge(&second).await.contains("conflict in f.txt"));
}

#[tokio::test]
async fn missing_driver_program_is_named() {
    let repo = repo_with(&[
        ("filter.x.process", "'/no/such tool' --process"),
        ("filter.x.clean", "never-run"),
        ("filter.unused.clean", "never-run"),
        ("merge.x.driver", "no-such-merge %A"),
    ])
    .await;
    let missing: Vec<String> =
        GitRepository::missing_drivers(repo.path()).unwrap().iter().map(ToString::to_string).collect();
    let filter = "f.txt has the attribute filter=x, for which git runs `/no/such tool` (filter.x.process), and there is no such program";
    let merge = "f.txt has the attribute merge=x, for which git runs `no-such-merge` (merge.x.driver), and there is no such program";
    assert_eq!(missing, [filter, merge]);
    let refusal = open(repo.path()).await.err().unwrap().to_string();
    assert!(
        refusal.starts_with(&format!("cannot use isolation: {filter}. hint: install `/no/such tool`")),
        "{refusal}"
    );
    repo.git(&["config", "--unset", "filter.x.process"]);
    for command in
        ["exit 3", "$TOOL x", "A=1 never-run", "cat | never-run", "./tool %f", "if true; then cat; fi", "false"]
    {
        fs::write(repo.path().join("tool"), "#!/bin/sh\nexit 1\n").unwrap();
        fs::set_permissions(repo.path().join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
        repo.git(&["config", "filter.x.clean", command]);
        let missing = GitRepository::missing_drivers(repo.path()).unwrap();
        assert!(missing.iter().all(|driver| !driver.is_filter), "{command}: {missing:?}");
    }
    open(repo.path()).await.unwrap();
}

#[tokio::test]
async fn failing_optional_filter_is_an_error() {
    let repo = repo_with(&[("filter.x.clean", "echo no such tool >&2; exit 3")]).await;
    let worktree = repo.provision(1).await;
    fs::write(worktree.root.join("new.txt"), "x\n").unwrap();
    let error = repo.repository.commit(&worktree, "Done so.").await.unwrap_err().to_string();
    assert!(error.contains("no such tool") && error.contains("'x'"), "{error}");
}

/// A program that does not become the guard confines nothing.
#[tokio::test]
async fn driver_without_a_sandbox_is_an_error() {
    let repo = repo_with(&[("filter.x.clean", "cat")]).await;
    // The same contents; git must filter them to compare.
    fs::write(repo.path().join("f.txt"), ten_lines()).unwrap();
    let look = || GitRepository::uncommitted(repo.path(), DriverOptions::default());
    let error = look().unwrap_err().to_string();
    assert!(error.contains("cannot confine filters"), "{error}");
    let program = Some("/nonexistent/brigade".into());
    for sandbox in [None, Some(sandbox(repo.path()))] {
        let drivers = DriverOptions { program: program.clone(), launch_sandbox: sandbox };
        assert!(GitRepository::uncommitted(repo.path(), drivers).is_err());
    }
    repo.git(&["config", "--unset", "filter.x.clean"]);
    assert_eq!(look().unwrap(), Vec::<PathBuf>::new());
}

/// A driver and all processes it started end together with its git.
#[test]
fn driver_ends_with_its_git() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, lock) = (folder.path().join("begun"), folder.path().join("lock"));
    let level = if is_confined() { Level::Full } else { Level::Off };
    let program = Some(env!("CARGO_BIN_EXE_brigade").into());
    let sandbox = DriverSandbox { program, level, rules: Vec::new(), scratch: "scratch".into() };
    fs::write(&lock, "").unwrap();
    // Every running process holds the lock.
    let command = format!("exec 9< '{}'; flock -s 9; touch '{}'; sleep 600 & wait", lock.display(), begun.display());
    let wrapped = String::from_utf8(sandbox.wrap(DriverKind::Process, command.as_bytes())).unwrap();
    let mut git = Command::new("sh").args(["-c", &format!("({wrapped}) & wait")]).spawn().unwrap();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let started_at = std::time::Instant::now();
        while !is_so() {
            assert!(started_at.elapsed().as_secs() < 60, "{what}");
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

/// An empty `process` disables a filter, as in git.
#[tokio::test]
async fn disabled_filter_changes_nothing() {
    let repo = repo_with(&[("filter.x.clean", "exit 1"), ("filter.x.process", "")]).await;
    let worktree = repo.worktree_with(1, |root| fs::write(root.join("a.txt"), "a\n").unwrap()).await;
    assert_eq!(repo.git(&["show", &format!("{}:a.txt", worktree.branch)]), "a");
}

#[tokio::test]
async fn filter_added_later_runs_in_sandbox() {
    let repo = repo_with(&[]).await;
    let include = repo.folder.path().with_extension("cfg");
    fs::write(&include, "[filter \"y\"]\n").unwrap();
    repo.git(&["config", "include.path", include.to_str().unwrap()]);
    let first = repo.worktree_with(1, |root| fs::write(root.join("a.txt"), "a\n").unwrap()).await;
    assert_eq!(repo.git(&["show", &format!("{}:a.txt", first.branch)]), "a");
    let escaped = repo.path().join("escaped");
    let clean = format!("tr a-z A-Z; (echo x > {}) 2> /dev/null || true", escaped.display());
    fs::write(&include, format!("[filter \"x\"]\n\tclean = \"{clean}\"\n")).unwrap();
    let second = repo.worktree_with(2, |root| fs::write(root.join("b.txt"), "b\n").unwrap()).await;
    assert_eq!(repo.git(&["show", &format!("{}:b.txt", second.branch)]), "B");
    assert!(!is_confined() || !escaped.exists());
    assert!(
        repo.repository
            .boundaries(CommandPlace::NoTask)
            .contains(&PathRule::read_only(include.canonicalize().unwrap())),
        "commands can write it"
    );
    // A command could make this file.
    fs::remove_file(&include).unwrap();
    let Err(RepositoryError::Unusable { reason: refused, .. }) = open(repo.path()).await else {
        panic!("the repository was opened")
    };
    assert!(refused.contains("which is not a file") && refused.contains(include.to_str().unwrap()), "{refused}");
}

/// Values that do not fit into a line of text reach git unchanged.
#[tokio::test]
async fn git_settings_keep_values_and_precedence() {
    let repo = repo_with(&[]).await;
    let config = repo.path().join(".git/config");
    let text = fs::read_to_string(&config).unwrap();
    let more = "[filter \"a=b.c \\\"d\\\" é\"]\n\tclean = \"sed 's/x/a\\n\\tb/'\"\n[core]\n\tautocrlf\n[core]\n\tautocrlf = false\n\tattributesFile =\n[filter \"x\"]\n\tclean = \"tr -d '#;'  \" ; not this\n";
    fs::write(&config, text + more).unwrap();
    fs::write(repo.path().join(".gitattributes"), "*.txt filter=x\n").unwrap();
    repo.git(&["commit", "-q", "-a", "-m", "Attributes"]);
    let worktree = repo.worktree_with(1, |root| fs::write(root.join("a.txt"), "#a;\r\n").unwrap()).await;
    let bytes = repo.git(&["cat-file", "-s", &format!("{}:a.txt", worktree.branch)]);
    assert_eq!(bytes, "a\r\n".len().to_string());
}

#[tokio::test]
async fn missing_object_of_partial_clone_is_not_fetched() {
    let repo = TestRepository::new().await;
    let ran = repo.folder.path().with_extension("ran");
    let program = repo.folder.path().with_extension("sh");
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (key, value) in [
        ("remote.origin.url", format!("ext::{}", program.display())),
        ("remote.origin.promisor", "true".into()),
        ("protocol.ext.allow", "always".into()),
        ("core.alternateRefsCommand", program.display().to_string()),
    ] {
        repo.git(&["config", key, &value]);
    }
    let blob = repo.git(&["rev-parse", "main:f.txt"]);
    let repo = TestRepository { repository: open(repo.path()).await.unwrap(), ..repo };
    fs::remove_file(repo.path().join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    let notice_text = repo.refused_launch().await;
    assert!(!ran.exists(), "a program named by the remote ran");
    assert!(notice_text.contains("git fetch --refetch --no-filter"), "{notice_text}");
    fs::remove_file(program).unwrap();
}

fn is_installed(program: &str) -> bool {
    let is_installed = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_installed {
        println!("skipped: {program} is not installed");
    }
    is_installed
}

#[tokio::test]
async fn git_lfs_keeps_large_files_out_of_git() {
    if !is_installed("git-lfs") {
        return;
    }
    let repo = TestRepository::new().await;
    repo.git(&["lfs", "install", "--local", "--skip-repo"]);
    fs::write(repo.path().join(".gitattributes"), "*.bin filter=lfs diff=lfs merge=lfs -text\n").unwrap();
    fs::write(repo.path().join("old.bin"), "of the person\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Track"]);
    let worktree = repo.provision(1).await;
    assert_eq!(fs::read_to_string(worktree.root.join("old.bin")).unwrap(), "of the person\n");
    fs::write(worktree.root.join("new.bin"), "of the team\n").unwrap();
    fs::write(worktree.root.join("old.bin"), "changed\n").unwrap();
    repo.commit(&worktree).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert!(repo.team_file("new.bin").starts_with("version https://git-lfs"), "{}", repo.team_file("new.bin"));
    assert_eq!(fs::read_to_string(repo.team_worktree().join("new.bin")).unwrap(), "of the team\n");
    assert_eq!(fs::read_to_string(repo.team_worktree().join("old.bin")).unwrap(), "changed\n");
    assert_eq!(repo.team_status(), "");
    assert_eq!(repo.clean_up(&worktree).await, None);
    // Another clone finds them where LFS keeps them.
    assert!(repo.git(&["lfs", "fsck"]).contains("OK"));
}

#[tokio::test]
async fn git_crypt_keeps_secrets_encrypted() {
    if !is_installed("git-crypt") {
        return;
    }
    let repo = TestRepository::new().await;
    assert!(Command::new("git-crypt").arg("init").current_dir(repo.path()).status().unwrap().success());
    fs::write(repo.path().join(".gitattributes"), "secret.* filter=git-crypt diff=git-crypt\n").unwrap();
    fs::write(repo.path().join("secret.old"), "of the person\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Lock"]);
    // Older versions of git-crypt find no keys in a worktree, with or without Brigade.
    let plain = repo.folder.path().with_extension("plain");
    let (code, _) = git_output(repo.path(), &["worktree", "add", "-q", "--detach", plain.to_str().unwrap()]);
    if code != Some(0) {
        let notice_text = repo.refused_launch().await;
        assert!(
            notice_text.contains("'\"git-crypt\" smudge' failed"),
            "a file was checked out unfiltered: {notice_text}"
        );
        return;
    }
    repo.git(&["worktree", "remove", plain.to_str().unwrap()]);
    let worktree = repo.provision(1).await;
    assert_eq!(fs::read_to_string(worktree.root.join("secret.old")).unwrap(), "of the person\n");
    fs::write(worktree.root.join("secret.new"), "of the team\n").unwrap();
    repo.commit(&worktree).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(fs::read_to_string(repo.team_worktree().join("secret.new")).unwrap(), "of the team\n");
    let stored = Command::new("git")
        .args(["cat-file", "blob", "brigade/crew:secret.new"])
        .current_dir(repo.path())
        .output()
        .unwrap();
    assert!(stored.stdout.starts_with(b"\0GITCRYPT\0"), "{:?}", stored.stdout);
    assert_eq!(repo.team_status(), "");
}
