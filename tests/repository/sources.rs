//! Kinds of repositories that a person works in. In each of them a task's worktree is made, worked in, found again,
//! merged and removed, also while the person's git packs and removes objects.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use brigade::domain::agent::access::PathRule;
use brigade::domain::task::failed_attempt::FailedAttempt;
use brigade::domain::team::team_spec::SetupSpec;
use brigade::git::UNSIGNED_WORK;
use brigade::ports::{Assignment, PendingSetup, Repository, SetupPlace, Worktree, WorktreeOutcome};
use brigade::sandbox::CommandExit;
use tempfile::TempDir;

use crate::harness::{TestRepository, edit, git, leftover_work, open, open_with_setup, task, ten_lines};
use crate::teammate::{PersonState, finish, publish, run, run_with};

/// Works on two tasks and calls `between` after each step.
async fn assert_works_with(repo: &TestRepository, between: impl Fn()) {
    assert_eq!(repo.launch().await, [""; 0]);
    let before = PersonState::of(repo);
    between();
    for id in [1, 2] {
        let worktree = repo.provision(id).await;
        between();
        let script = format!(
            "printf 'one\\n' > {id}.txt; git add {id}.txt; git commit -q -m One; printf 'more\\n' > {id}-more.txt"
        );
        run(repo, &worktree, &script);
        between();
        let again = repo.provision(id).await;
        assert_eq!((again.leftover_work, &again.root), (leftover_work(1, 1), &worktree.root));
        assert_eq!(again.warnings, [""; 0]);
        between();
        finish(repo, &again, &between).await;
        for (file, text) in [(format!("{id}.txt"), "one"), (format!("{id}-more.txt"), "more")] {
            assert_eq!(repo.team_file(&file), text);
            assert_eq!(fs::read_to_string(repo.team_worktree().join(&file)).unwrap().trim_end(), text);
        }
    }
    assert_eq!(PersonState::of(repo), before);
    repo.git(&["fsck", "--connectivity-only", "--no-dangling"]);
}

async fn assert_works(repo: &TestRepository) {
    assert_works_with(repo, || ()).await;
}

/// A folder with a repository on `main` with three commits.
fn upstream(options: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    git(folder.path(), &[&["init", "-q", "-b", "main"], options, &["."]].concat());
    git(folder.path(), &["config", "uploadpack.allowFilter", "true"]);
    for text in ["first\n", "second\n", "third\n"] {
        commit_file(folder.path(), "history.txt", text);
    }
    commit_file(folder.path(), "f.txt", &ten_lines());
    folder
}

fn commit_file(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    git(folder, &["add", "--sparse", file]);
    git(folder, &["commit", "-q", "-m", &format!("Change {file}")]);
}

/// A clone of a repository, opened for a team.
async fn clone_of(source: &Path, options: &[&str]) -> TestRepository {
    let folder = tempfile::tempdir().unwrap();
    let (url, to) = (format!("file://{}", source.display()), folder.path().display().to_string());
    let allow = ["-c", "protocol.file.allow=always", "clone", "-q"];
    git(source, &[&allow, options, &[&url, &to]].concat());
    opened(folder).await
}

async fn opened(folder: TempDir) -> TestRepository {
    let repository = open(folder.path()).await.unwrap();
    TestRepository { folder, repository }
}

async fn opened_with_setup(repo: TestRepository, setup: SetupSpec) -> TestRepository {
    let repository = open_with_setup(repo.path(), setup).await.unwrap();
    TestRepository { repository, ..repo }
}

/// Removes all objects that git can remove, as a person or a scheduled job may do at any time.
fn collect_garbage(folder: &Path) {
    git(folder, &["reflog", "expire", "--expire=now", "--all"]);
    git(folder, &["pack-refs", "--all", "--prune"]);
    git(folder, &["repack", "-q", "-a", "-d"]);
    git(folder, &["gc", "--quiet", "--prune=now"]);
}

fn failed_once(id: u64) -> Assignment {
    let failed = FailedAttempt { attempt: 1, owner: "alice".into(), reason: "no".into() };
    Assignment { attempt: 2, failed: Some(failed), ..task(id) }
}

#[tokio::test]
async fn plain_repository_works() {
    assert_works(&TestRepository::new().await).await;
}

/// Characters that have a meaning in settings, in lists of paths or in a shell.
#[tokio::test]
async fn workspace_with_unusual_path_works() {
    let folder = tempfile::Builder::new().prefix("a \"b' #c;d\\e:f é$(x)").tempdir().unwrap();
    git(folder.path(), &["init", "-q", "-b", "main", "."]);
    commit_file(folder.path(), "f.txt", &ten_lines());
    assert_works(&opened(folder).await).await;
}

#[tokio::test]
async fn sha256_repository_works() {
    let source = upstream(&["--object-format=sha256"]);
    let repo = clone_of(source.path(), &[]).await;
    assert_works_with(&repo, || collect_garbage(repo.path())).await;
    assert_eq!(repo.team_tip().len(), 64);
}

#[tokio::test]
async fn partial_clone_works() {
    let source = upstream(&[]);
    let repo = clone_of(source.path(), &["--filter=blob:none"]).await;
    let old = repo.git(&["rev-parse", "HEAD~3:history.txt"]);
    let is_missing = || repo.git(&["rev-list", "--objects", "--missing=print", "HEAD"]).contains(&format!("?{old}"));
    assert!(is_missing(), "the clone is not partial");
    assert_works_with(&repo, || collect_garbage(repo.path())).await;
    assert!(is_missing(), "a missing object was fetched");
    // The person's next commit comes without its contents, until it is checked out.
    commit_file(source.path(), "later.txt", "later\n");
    repo.git(&["pull", "-q", "--ff-only"]);
    repo.launch().await;
    let worktree = repo.provision(3).await;
    // A teammate's git fetches a missing object into the worktree's own folder.
    run(&repo, &worktree, "git show main~4:history.txt > old.txt");
    finish(&repo, &worktree, || ()).await;
    assert_eq!((repo.team_file("later.txt"), repo.team_file("old.txt")), ("later".to_owned(), "first".to_owned()));
}

#[tokio::test]
async fn shallow_clone_works_while_it_is_deepened() {
    for later in [&["--unshallow"][..], &["--depth=2"], &["--depth=1"]] {
        let source = upstream(&[]);
        let repo = clone_of(source.path(), &["--depth=1"]).await;
        let worktree = repo.provision(1).await;
        run(&repo, &worktree, "printf 'one\\n' > 1.txt; git add 1.txt; git commit -q -m One; git log --oneline");
        commit_file(source.path(), "later.txt", "later\n");
        repo.git(&[&["fetch", "-q"], later].concat());
        collect_garbage(repo.path());
        run(&repo, &worktree, "git status --porcelain; git log --oneline; git commit -q --allow-empty -m Two");
        finish(&repo, &worktree, || collect_garbage(repo.path())).await;
        assert_eq!(repo.team_file("1.txt"), "one", "{later:?}");
        let is_shallow = repo.git(&["rev-parse", "--is-shallow-repository"]);
        assert_eq!(is_shallow == "false", later == ["--unshallow"], "{later:?}");
        let worktree = repo.provision(2).await;
        run(&repo, &worktree, "printf 'two\\n' > 2.txt; git add 2.txt; git commit -q -m Two; git log --oneline");
        finish(&repo, &worktree, || ()).await;
        repo.git(&["fsck", "--no-dangling"]);
    }
}

#[tokio::test]
async fn shallow_clone_works() {
    let source = upstream(&[]);
    let repo = clone_of(source.path(), &["--depth=1"]).await;
    assert_works_with(&repo, || collect_garbage(repo.path())).await;
    assert_eq!(repo.git(&["rev-parse", "--is-shallow-repository"]), "true");
    assert_eq!(repo.git(&["rev-list", "--count", "main"]), "1");
}

#[tokio::test]
async fn borrowed_objects_work() {
    let source = upstream(&[]);
    for is_relative in [false, true] {
        let further = clone_of(source.path(), &[]).await;
        let folder = tempfile::tempdir().unwrap();
        git(further.path(), &["clone", "-q", "--shared", ".", &folder.path().display().to_string()]);
        // The repository that objects are borrowed from borrows some itself.
        fs::write(
            further.path().join(".git/objects/info/alternates"),
            format!("{}/.git/objects\n", source.path().display()),
        )
        .unwrap();
        git(further.path(), &["repack", "-q", "-a", "-d", "-l"]);
        if is_relative {
            let name = further.path().file_name().unwrap().to_str().unwrap().to_owned();
            let text = format!("../../../{name}/.git/objects\n");
            fs::write(folder.path().join(".git/objects/info/alternates"), text).unwrap();
        }
        let repo = opened(folder).await;
        assert_works_with(&repo, || git_gc_of_borrower(repo.path())).await;
    }
}

/// As [`collect_garbage`], without copies of the borrowed objects.
fn git_gc_of_borrower(folder: &Path) {
    git(folder, &["pack-refs", "--all"]);
    git(folder, &["repack", "-q", "-a", "-d", "-l"]);
    git(folder, &["gc", "--quiet", "--prune=now"]);
}

#[tokio::test]
async fn git_folder_on_other_file_system_works() {
    let memory = Path::new("/dev/shm");
    let folder = tempfile::tempdir().unwrap();
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    if device(memory).is_none() || device(memory) == device(folder.path()) {
        println!("skipped: /dev/shm is missing, or on the same file system");
        return;
    }
    let git_dir = tempfile::tempdir_in(memory).unwrap();
    let inner = git_dir.path().join("repository").display().to_string();
    git(folder.path(), &["init", "-q", "-b", "main", "--separate-git-dir", &inner, "."]);
    commit_file(folder.path(), "f.txt", &ten_lines());
    let repo = opened(folder).await;
    assert_works_with(&repo, || collect_garbage(repo.path())).await;
}

/// The settings of a submodule's repository name its checkout.
#[tokio::test]
async fn workspace_that_is_a_submodule_works() {
    let (lib, whole) = (upstream(&[]), upstream(&[]));
    let folder = tempfile::Builder::new().prefix("lib").tempdir_in(whole.path()).unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    fs::remove_dir(folder.path()).unwrap();
    add_submodule(whole.path(), &lib.path().display().to_string(), &name);
    assert!(git(folder.path(), &["config", "core.worktree"]).ends_with(&name));
    let repo = opened(folder).await;
    assert_works(&repo).await;
    assert_eq!(git(whole.path(), &["status", "--porcelain", "--ignore-submodules=none"]), "");
}

/// Adds a submodule with a commit. Git copies none from this machine without leave.
fn add_submodule(folder: &Path, url: &str, path: &str) {
    git(folder, &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, path]);
    git(folder, &["commit", "-q", "-m", "Submodule"]);
}

/// Runs the pending setup of a task's worktree as Brigade does: as a command there, with the folders that it names.
async fn set_up(repo: &TestRepository, worktree: &Worktree) {
    let place = SetupPlace::Task(worktree.root.clone());
    let Some(PendingSetup { command, key, writable, .. }) =
        repo.repository.prepare_setup(&place).await.unwrap().pending
    else {
        return;
    };
    let rules: Vec<PathRule> = writable.into_iter().map(PathRule::writable).collect();
    let (exit, output) = run_with(repo, worktree, &command, &rules);
    assert_eq!(exit, CommandExit::Code(0), "{command}: {output}");
    repo.repository.record_setup(&place, &key).await.unwrap();
}

fn with_submodules() -> SetupSpec {
    SetupSpec { submodules: true, ..SetupSpec::default() }
}

/// A submodule with an absolute, and one with a relative URL, which the person has checked out or not.
#[tokio::test]
async fn submodules_are_filled_in_and_follow_person() {
    for is_recursive in [true, false] {
        for is_relative in [false, true] {
            let parent = tempfile::tempdir().unwrap();
            let (lib, whole) = (parent.path().join("lib"), parent.path().join("whole"));
            for folder in [&lib, &whole] {
                git(parent.path(), &["init", "-q", "-b", "main", folder.to_str().unwrap()]);
                commit_file(folder, "f.txt", &ten_lines());
            }
            // Git resolves a relative URL against that of the remote.
            git(&whole, &["remote", "add", "origin", whole.to_str().unwrap()]);
            let url = if is_relative { "../lib".to_owned() } else { lib.display().to_string() };
            add_submodule(&whole, &url, "lib");
            let options: &[&str] = if is_recursive { &["--recurse-submodules"] } else { &[] };
            let repo = opened_with_setup(clone_of(&whole, options).await, with_submodules()).await;
            repo.launch().await;
            let before = PersonState::of(&repo);
            let worktree = repo.provision(1).await;
            set_up(&repo, &worktree).await;
            run(&repo, &worktree, "grep -q 'line 1' lib/f.txt; echo x > 1.txt; git add 1.txt; git commit -q -m One");
            finish(&repo, &worktree, || collect_garbage(repo.path())).await;
            assert_eq!(PersonState::of(&repo), before);
            // The person moves it to a new commit.
            commit_file(&lib, "new.txt", "new\n");
            let new = git(&lib, &["rev-parse", "HEAD"]);
            repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--remote"]);
            repo.git(&["commit", "-q", "-a", "-m", "Newer lib"]);
            repo.launch().await;
            let worktree = repo.provision(2).await;
            set_up(&repo, &worktree).await;
            run(&repo, &worktree, "grep -q new lib/new.txt; echo x > 2.txt; git add 2.txt; git commit -q -m Two");
            finish(&repo, &worktree, || ()).await;
            assert_eq!(repo.git(&["rev-parse", "brigade/crew:lib"]), new);
            assert_eq!(repo.checkout_status(), "");
        }
    }
}

#[tokio::test]
async fn submodules_without_setting_stay_as_they_are() {
    let lib = upstream(&[]);
    let repo = TestRepository::new().await;
    add_submodule(repo.path(), &lib.path().display().to_string(), "lib");
    let linked = repo.git(&["rev-parse", "HEAD:lib"]);
    assert_works(&repo).await;
    assert_eq!(repo.git(&["rev-parse", "brigade/crew:lib"]), linked);
    assert_eq!(fs::read_dir(repo.team_worktree().join("lib")).unwrap().count(), 0);
    assert!(repo.path().join("lib/f.txt").exists());
}

/// A teammate moves a submodule to a commit that others can get.
#[tokio::test]
async fn submodule_moved_by_teammate_is_merged() {
    let lib = upstream(&[]);
    let repo = opened_with_setup(TestRepository::new().await, with_submodules()).await;
    add_submodule(repo.path(), &lib.path().display().to_string(), "lib");
    let worktree = repo.provision(1).await;
    set_up(&repo, &worktree).await;
    run(&repo, &worktree, "git -C lib checkout -q HEAD~1; git commit -q -a -m 'Older lib'");
    publish(&repo, &worktree, || ()).await;
    assert_eq!(repo.git(&["rev-parse", "brigade/crew:lib"]), git(lib.path(), &["rev-parse", "HEAD~1"]));
}

/// A repository with the folders `in` and `out`, of which the person has checked out one.
async fn sparse(options: &[&str]) -> TestRepository {
    let repo = TestRepository::new().await;
    commit_file(repo.path(), "in/x", "x\n");
    commit_file(repo.path(), "out/x", "x\n");
    repo.git(&[&["sparse-checkout", "set"], options].concat());
    assert!(!repo.path().join("out").exists());
    opened(repo.folder).await
}

#[tokio::test]
async fn sparse_checkouts_work_and_stay_sparse() {
    for options in [&["--cone", "in"][..], &["--no-cone", "/*", "!/out/"]] {
        let repo = sparse(options).await;
        assert_works_with(&repo, || {
            collect_garbage(repo.path());
            assert!(!repo.path().join("out").exists(), "{options:?}");
        })
        .await;
        let worktree = repo.provision(3).await;
        assert!(worktree.root.join("in/x").exists() && !worktree.root.join("out").exists(), "{options:?}");
        // A file in a left-out folder.
        run(&repo, &worktree, "mkdir out; echo new > out/new; git add --sparse out/new; git commit -q -m New");
        finish(&repo, &worktree, || ()).await;
        assert_eq!((repo.team_file("out/new"), repo.team_file("out/x")), ("new".to_owned(), "x".to_owned()));
        assert!(!repo.path().join("out").exists());
        assert_eq!(repo.checkout_status(), "");
        // The person's choice changes.
        repo.git(&["sparse-checkout", "disable"]);
        repo.launch().await;
        assert!(repo.provision(4).await.root.join("in/x").exists());
    }
}

/// Rules and attributes that are in no commit.
#[tokio::test]
async fn own_rules_and_settings_hold_in_worktrees() {
    let repo = TestRepository::new().await;
    edit(repo.path(), ".git/info/exclude", |text| text + "*.private\n");
    fs::write(repo.path().join(".git/info/attributes"), "*.up filter=up\n").unwrap();
    repo.git(&["config", "filter.up.clean", "tr a-z A-Z"]);
    repo.git(&["config", "core.excludesFile", repo.path().join(".git/more-rules").to_str().unwrap()]);
    fs::write(repo.path().join(".git/more-rules"), "*.secret\n").unwrap();
    let repo = opened(repo.folder).await;
    let worktree = repo.provision(1).await;
    run(
        &repo,
        &worktree,
        "echo x | tee a.private a.secret b.up > c.up; git add -A; rm a.private a.secret; git reset -q c.up; git commit -q -m Up",
    );
    finish(&repo, &worktree, || ()).await;
    assert_eq!(repo.git(&["ls-tree", "--name-only", "brigade/crew"]), "b.up\nbrigade.toml\nc.up\nf.txt");
    assert_eq!((repo.team_file("b.up"), repo.team_file("c.up")), ("X".to_owned(), "X".to_owned()));
}

/// A hook of the repository, and one of the folder that its settings name.
#[tokio::test]
async fn hooks_of_repository_run_for_teammates() {
    for is_named in [false, true] {
        let repo = TestRepository::new().await;
        let folder = repo.path().join(if is_named { "own-hooks" } else { ".git/hooks" });
        fs::create_dir_all(&folder).unwrap();
        program(&folder, "commit-msg", "#!/bin/sh\necho 'Checked: yes' >> \"$1\"\n");
        if is_named {
            repo.commit_as_person();
            repo.git(&["config", "core.hooksPath", "own-hooks"]);
        }
        let repo = opened(repo.folder).await;
        let worktree = repo.provision(1).await;
        run(&repo, &worktree, "echo x > 1.txt; git add 1.txt; git commit -q -m One");
        assert!(run(&repo, &worktree, "git log -1 --format=%B").contains("Checked: yes"), "is named: {is_named}");
        finish(&repo, &worktree, || ()).await;
        assert_eq!(repo.team_file("1.txt"), "x");
    }
}

/// A program that signs as gpg does.
fn signer(folder: &Path) -> String {
    let script = "#!/bin/sh\ncat > /dev/null\necho '[GNUPG:] SIG_CREATED ' >&2\nprintf -- '-----BEGIN PGP SIGNATURE-----\\n\\nx\\n-----END PGP SIGNATURE-----\\n'\n";
    program(folder, "signer", script)
}

fn program(folder: &Path, name: &str, script: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A teammate's git signs as the person's does. Brigade keeps such a commit and all that it contains, and signs none itself.
#[tokio::test]
async fn signed_commit_of_teammate_is_kept() {
    let programs = tempfile::tempdir().unwrap();
    let repo = TestRepository::new().await;
    repo.git(&["config", "gpg.program", &signer(programs.path())]);
    repo.git(&["config", "commit.gpgSign", "true"]);
    commit_file(repo.path(), "signed.txt", "signed\n");
    assert!(repo.git(&["cat-file", "commit", "HEAD"]).contains("gpgsig "));
    let repo = opened(repo.folder).await;
    assert_eq!(repo.launch().await, [UNSIGNED_WORK]);
    let worktree = repo.provision(1).await;
    let commits = ["--no-gpg-sign -m Zero", "-m One", "--no-gpg-sign -m Two"];
    for options in commits {
        run(&repo, &worktree, &format!("git commit -q --allow-empty {options}"));
    }
    let signed = run(&repo, &worktree, "git rev-parse HEAD^");
    finish(&repo, &worktree, || ()).await;
    let signed = signed.trim();
    assert!(repo.git(&["cat-file", "commit", signed]).contains("gpgsig "));
    let log = repo.git(&["log", "--format=%s", "main..brigade/crew^2"]);
    assert_eq!(log, "Two\nOne\nZero");
    let commits = repo.git(&["rev-list", "main..brigade/crew"]);
    let with_signature = |commit: &&str| repo.git(&["cat-file", "commit", commit]).contains("gpgsig ");
    assert_eq!(commits.lines().filter(with_signature).collect::<Vec<_>>(), [signed]);
    repo.git(&["config", "commit.gpgSign", "false"]);
    assert_works(&repo).await;
}

/// Copied files, the setup command and ports, in a worktree that outlives launches and the person's clean-up.
#[tokio::test]
async fn setup_copies_and_ports_survive_launches() {
    let repo = TestRepository::new().await;
    commit_file(repo.path(), ".gitignore", ".env\nbuilt\n");
    fs::write(repo.path().join(".env"), "KEY=1\n").unwrap();
    let setup =
        || SetupSpec { command: Some("echo done >> built".into()), copy: vec![".env".into()], submodules: true };
    let repo = opened_with_setup(repo, setup()).await;
    let worktree = repo.provision(1).await;
    let place = SetupPlace::Task(worktree.root.clone());
    set_up(&repo, &worktree).await;
    let port = repo.repository.prepare_setup(&place).await.unwrap().port_base;
    run(&repo, &worktree, "grep -q KEY=1 .env; echo x > 1.txt; git add -A; git commit -q -m One");
    collect_garbage(repo.path());
    let repo = opened_with_setup(repo, setup()).await;
    repo.launch().await;
    let again = repo.provision(1).await;
    assert_eq!(again.leftover_work, leftover_work(1, 0));
    let prepared = repo.repository.prepare_setup(&place).await.unwrap();
    assert_eq!((prepared.port_base, prepared.pending), (port, None));
    assert_eq!(fs::read_to_string(again.root.join("built")).unwrap(), "done\n");
    finish(&repo, &again, || collect_garbage(repo.path())).await;
    assert_eq!(repo.git(&["ls-tree", "--name-only", "brigade/crew"]), ".gitignore\n1.txt\nbrigade.toml\nf.txt");
}

#[tokio::test]
async fn person_collects_garbage_between_all_steps() {
    let repo = TestRepository::new().await;
    repo.git(&["switch", "-q", "-c", "feature"]);
    commit_file(repo.path(), "feature.txt", "feature\n");
    repo.git(&["tag", "mark"]);
    assert_works_with(&repo, || collect_garbage(repo.path())).await;
}

/// The worktree starts from a branch that the person then deletes, beside another one, and removes all objects of both.
#[tokio::test]
async fn person_deletes_branches_between_all_steps() {
    let repo = TestRepository::new().await;
    repo.git(&["switch", "-q", "-c", "feature"]);
    commit_file(repo.path(), "feature.txt", "feature\n");
    repo.git(&["switch", "-q", "-c", "other", "main"]);
    commit_file(repo.path(), "other.txt", "other\n");
    repo.git(&["tag", "mark"]);
    repo.git(&["switch", "-q", "feature"]);
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, "echo x > 1.txt; git add 1.txt; git commit -q -m One");
    repo.git(&["switch", "-q", "main"]);
    repo.git(&["branch", "-q", "-D", "feature", "other"]);
    repo.git(&["tag", "-d", "mark"]);
    collect_garbage(repo.path());
    // The teammate's git still works, although it knew those branches.
    run(
        &repo,
        &worktree,
        "git status; git log --oneline; git commit -q --amend -m Again; git gc -q; git fsck --connectivity-only HEAD",
    );
    let again = repo.provision(1).await;
    assert_eq!(again.leftover_work, leftover_work(1, 0));
    run(&repo, &worktree, "echo x > 2.txt; git add 2.txt; git commit -q -m Two; git log --oneline");
    finish(&repo, &worktree, || collect_garbage(repo.path())).await;
    assert_eq!((repo.team_file("2.txt"), repo.team_file("feature.txt")), ("x".to_owned(), "feature".to_owned()));
}

/// The person rewrites its branch and removes the old commits, on which the team works.
#[tokio::test]
async fn person_resets_branch_between_steps() {
    let repo = TestRepository::new().await;
    commit_file(repo.path(), "draft.txt", "draft\n");
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, "echo x > 1.txt; git add 1.txt; git commit -q -m One");
    repo.git(&["commit", "-q", "--amend", "-m", "Rewritten"]);
    repo.git(&["reset", "-q", "--hard", "HEAD~1"]);
    collect_garbage(repo.path());
    run(&repo, &worktree, "git log --oneline; git gc -q; echo x > 2.txt; git add 2.txt; git commit -q -m Two");
    finish(&repo, &worktree, || collect_garbage(repo.path())).await;
    assert_eq!((repo.team_file("1.txt"), repo.team_file("2.txt")), ("x".to_owned(), "x".to_owned()));
}

/// A teammate takes a branch of the person's into its work, and the person removes it for good before the report. The work cannot be
/// merged any more, and neither stops the team nor is removed.
#[tokio::test]
async fn removed_branch_in_work_is_an_error() {
    let repo = TestRepository::new().await;
    repo.git(&["switch", "-q", "-c", "other"]);
    commit_file(repo.path(), "other.txt", "other\n");
    repo.git(&["switch", "-q", "main"]);
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, "echo x > 1.txt; git add 1.txt; git commit -q -m One; git merge -q --no-edit other");
    repo.git(&["branch", "-q", "-D", "other"]);
    collect_garbage(repo.path());
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("cannot fetch the commits of the worktree"), "{refused}");
    let other = loop {
        match repo.repository.provision(&task(1)).await {
            Ok(WorktreeOutcome::Ready(other)) => break other,
            Ok(merged) => panic!("{merged:?}"),
            Err(error) => assert!(!error.is_general(), "{error}"),
        }
    };
    assert!(other.root != worktree.root && other.warnings.concat().contains("stays unchanged"), "{other:?}");
    for (file, text) in [("1.txt", "x\n"), ("other.txt", "other\n")] {
        assert_eq!(fs::read_to_string(worktree.root.join(file)).unwrap(), text);
    }
    run(&repo, &other, "echo y > 2.txt; git add 2.txt; git commit -q -m Two");
    publish(&repo, &other, || ()).await;
}

/// Moves the workspace to another folder, as between two launches.
async fn moved(repo: TestRepository) -> TestRepository {
    let folder = tempfile::tempdir().unwrap();
    fs::rename(repo.folder.keep(), folder.path()).unwrap();
    opened(folder).await
}

#[tokio::test]
async fn worktrees_move_with_their_workspace() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, "echo x > 1.txt; git add 1.txt; git commit -q -m One; echo y > 2.txt");
    let repo = moved(repo).await;
    repo.launch().await;
    let again = repo.provision(1).await;
    assert_eq!((again.leftover_work, again.name.as_str()), (leftover_work(1, 1), ".worktrees/crew-task-1"));
    run(&repo, &again, "git status; git log --oneline; git show HEAD:f.txt; git add 2.txt; git commit -q -m Two");
    // Moved again before the report.
    let repo = moved(repo).await;
    repo.launch().await;
    let again = repo.provision(1).await;
    finish(&repo, &again, || collect_garbage(repo.path())).await;
    assert_eq!((repo.team_file("1.txt"), repo.team_file("2.txt")), ("x".to_owned(), "y".to_owned()));
    assert_works(&repo).await;
}

/// The branch with the work of a failed attempt holds everything, although its worktree is gone.
#[tokio::test]
async fn kept_branch_of_failed_attempt_is_whole() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, "echo x > 1.txt; git add 1.txt; git commit -q -m One; echo y > 2.txt");
    collect_garbage(repo.path());
    repo.repository.record_attempt_end(&worktree).await.unwrap();
    let WorktreeOutcome::Ready(next) = repo.repository.provision(&failed_once(1)).await.unwrap() else { panic!() };
    let kept = next.kept_branch.clone().unwrap();
    assert!(!next.root.join("1.txt").exists());
    collect_garbage(repo.path());
    for (file, text) in [("1.txt", "x"), ("2.txt", "y")] {
        assert_eq!(repo.git(&["show", &format!("{kept}:{file}")]), text);
    }
    run(&repo, &next, "echo z > 3.txt; git add 3.txt; git commit -q -m Three");
    finish(&repo, &next, || ()).await;
    assert_eq!(repo.git(&["show", &format!("{kept}:1.txt")]), "x");
}
