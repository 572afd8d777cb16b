//! Files that git ignores: those of the task are moved into the workspace or stay in its worktree, all others are removed with it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use brigade::domain::git::ignored_files::FileList;
use brigade::domain::task::TaskId;
use brigade::domain::task::failed_attempt::FailedAttempt;
use brigade::domain::team::team_spec::SetupSpec;
use brigade::git::leftovers::{KeptOptions, KeptWorktree};
use brigade::git::{DriverOptions, GitOptions, GitRepository};
use brigade::ports::{Assignment, Repository, SetupPlace, Worktree, WorktreeOutcome};

use crate::harness::{TestRepository, git, insert_after, notice_texts, options, task};

/// Ignored paths of the repository. `Cargo.toml` is tracked in its top folder and in `crates/a`.
const RULES: &str = "reports/\n*.bin\n.env\nmade/\nbuild\ntarget\nnode_modules\n*cache*\n*.pyc\n";

/// A change in the worktree of a task.
type PlaceChange = fn(&Path);

/// A repository with these rules, whose worktrees are set up like this and whose tasks keep these files.
async fn repository(setup: SetupSpec, keep: &[&str]) -> TestRepository {
    let repo = TestRepository::new().await;
    write(repo.path(), ".gitignore", RULES);
    for file in ["Cargo.toml", "crates/a/Cargo.toml"] {
        write(repo.path(), file, "[package]\n");
    }
    repo.commit_as_person();
    write(repo.path(), ".env", "KEY=1\n");
    let keep = keep.iter().map(|pattern| (*pattern).to_owned()).collect();
    let repository =
        GitRepository::open(repo.path(), GitOptions { setup, keep, ..options(repo.path()) }).await.unwrap();
    TestRepository { repository, ..repo }
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn text(list: &FileList) -> String {
    list.to_string()
}

/// A worktree of task 1 that is set up.
async fn worktree(repo: &TestRepository) -> Worktree {
    let worktree = repo.provision(1).await;
    let place = SetupPlace::Task(worktree.root.clone());
    repo.repository.prepare_setup(&place).await.unwrap();
    worktree
}

/// Completes a task after this work, and returns the reason why its worktree stays.
async fn complete(repo: &TestRepository, worktree: &Worktree, work: impl FnOnce(&Path)) -> Option<String> {
    insert_after(&worktree.root, "f.txt", "line 2", "by the task");
    work(&worktree.root);
    repo.commit(worktree).await;
    assert_eq!(repo.merge(worktree).await, None);
    repo.clean_up(worktree).await
}

/// Options as those of `brigade clean`.
fn kept_options(repo: &TestRepository) -> KeptOptions {
    let GitOptions { program, sandbox, control_files, .. } = options(repo.path());
    KeptOptions { drivers: DriverOptions { program, launch_sandbox: Some(sandbox) }, control_files }
}

fn kept_worktrees(repo: &TestRepository) -> Vec<KeptWorktree> {
    GitRepository::kept_worktrees(repo.path(), &kept_options(repo), |_| true).unwrap()
}

fn kept(repo: &TestRepository) -> Vec<(String, Option<String>)> {
    kept_worktrees(repo).into_iter().map(|kept| (kept.folder, kept.files.map(|files| text(&files)))).collect()
}

/// The worktree of a failed attempt at task 1 with an ignored file and a changed one, after the next attempt began.
async fn failed_attempt(repo: &TestRepository) -> PathBuf {
    let first = worktree(repo).await;
    write(&first.root, "reports/q3.md", "work\n");
    insert_after(&first.root, "f.txt", "line 5", "by the failed attempt");
    repo.repository.record_attempt_end(&first).await.unwrap();
    let failed = FailedAttempt { attempt: 1, owner: "bob".to_owned(), reason: "verify failed".to_owned() };
    let second = Assignment { attempt: 2, failed: Some(failed), ..task(1) };
    let second = repo.repository.provision(&second).await.unwrap();
    assert!(matches!(second, WorktreeOutcome::Ready(_)), "{second:?}");
    repo.path().join(".worktrees/crew-task-1-attempt-1")
}

#[tokio::test]
async fn ignored_file_of_task_keeps_worktree() {
    let repo = repository(SetupSpec::default(), &[]).await;
    let place = worktree(&repo).await;
    let reason = complete(&repo, &place, |root| {
        write(root, "reports/q3.md", "hours of work\n");
        write(root, "x.bin", "x");
    })
    .await
    .unwrap();
    let list = "reports/ (14 bytes), x.bin (1 bytes)";
    assert!(reason.contains(&format!("git ignores files that the task made: {list}")), "{reason}");
    assert_eq!(kept(&repo), [(".worktrees/crew-task-1".to_owned(), Some(list.to_owned()))]);
    assert_eq!(repo.git(&["branch", "--list", "brigade-tasks/*"]), "", "its branch is merged and removed");
    // The next launch keeps it without a word.
    let launched = repo.repository.prepare_launch(vec![task(1)]).await.unwrap();
    assert_eq!(launched.notices, []);
    // The task is done again there.
    let again = repo.repository.provision(&Assignment { attempt: 2, ..task(1) }).await.unwrap();
    let WorktreeOutcome::Ready(again) = again else { panic!("{again:?}") };
    assert_eq!((&again.root, again.leftover_work), (&place.root, None));
    assert_eq!(fs::read_to_string(again.root.join("reports/q3.md")).unwrap(), "hours of work\n");
    assert_eq!(kept(&repo), [(".worktrees/crew-task-1".to_owned(), None)]);
    fs::remove_dir_all(again.root.join("reports")).unwrap();
    fs::remove_file(again.root.join("x.bin")).unwrap();
    assert_eq!(complete(&repo, &again, |root| insert_after(root, "f.txt", "line 9", "again")).await, None);
    assert_eq!(kept(&repo), []);
}

#[tokio::test]
async fn caches_are_no_work() {
    let cases: [(&str, PlaceChange, bool); 11] = [
        ("packages", |root| write(root, "node_modules/a/b.js", "x"), true),
        ("build beside its tool", |root| write(root, "target/debug/a", "x"), true),
        ("build in a folder", |root| write(root, "crates/a/target/a", "x"), true),
        ("build without its tool", |root| write(root, "docs/target/a", "x"), false),
        ("no build of this tool", |root| write(root, "build/a", "x"), false),
        ("tagged", |root| write(root, "my-cache/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n"), true),
        ("wrong tag", |root| write(root, "my-cache/CACHEDIR.TAG", "Signature: none\n"), false),
        ("byte code", |root| write(root, "a.pyc", "x"), true),
        ("a link to a file", |root| symlink("f.txt", root.join("l.bin")).unwrap(), false),
        ("an empty folder", |root| fs::create_dir_all(root.join("reports/empty")).unwrap(), true),
        (
            "a rule and a tool of the task",
            |root| {
                write(root, ".gitignore", &format!("{RULES}dist\n"));
                write(root, "package.json", "{}");
                write(root, "dist/a", "x");
            },
            false,
        ),
    ];
    for (case, work, is_cache) in cases {
        let repo = repository(SetupSpec::default(), &[]).await;
        let place = worktree(&repo).await;
        let reason = complete(&repo, &place, work).await;
        assert_eq!(reason.is_none(), is_cache, "{case}: {reason:?}");
        assert_eq!(place.root.exists(), !is_cache, "{case}");
    }
}

#[tokio::test]
async fn files_of_setup_are_no_work() {
    let cases: [(&str, PlaceChange, &str); 5] = [
        ("nothing", |_| {}, ""),
        ("a changed copy", |root| write(root, ".env", "KEY=2\n"), ".env (6 bytes)"),
        ("a changed file", |root| write(root, "made/a", "2"), "made/ (1 bytes)"),
        ("a new file", |root| write(root, "made/b", "22"), "made/ (2 bytes)"),
        ("a moved folder", |root| fs::rename(root.join("made"), root.join("my-cache")).unwrap(), "my-cache/ (1 bytes)"),
    ];
    for (case, work, list) in cases {
        let copy = vec![PathBuf::from(".env")];
        let setup = SetupSpec { command: Some("make".to_owned()), copy, ..SetupSpec::default() };
        let repo = repository(setup, &[]).await;
        let place = repo.provision(1).await;
        let setup_place = SetupPlace::Task(place.root.clone());
        let pending = repo.repository.prepare_setup(&setup_place).await.unwrap().pending.unwrap();
        write(&place.root, "made/a", "1");
        repo.repository.record_setup(&setup_place, &pending.key).await.unwrap();
        // A restart of Brigade prepares the worktree again.
        repo.repository.prepare_setup(&setup_place).await.unwrap();
        work(&place.root);
        let files = repo.repository.move_ignored_files(&place).await.unwrap();
        assert_eq!((text(&files.moved), text(&files.left)), (String::new(), list.to_owned()), "{case}");
    }
}

#[tokio::test]
async fn later_setup_adds_no_work_of_task_to_its_files() {
    let copies = || SetupSpec { copy: vec![PathBuf::from(".env")], ..SetupSpec::default() };
    let repo = repository(copies(), &[]).await;
    let place = worktree(&repo).await;
    write(&place.root, "reports/q3.md", "work\n");
    write(repo.path(), ".env", "KEY=3\n");
    let place = SetupPlace::Task(place.root.clone());
    repo.repository.prepare_setup(&place).await.unwrap();
    let files = repo.repository.move_ignored_files(&worktree(&repo).await).await.unwrap();
    assert_eq!(text(&files.left), "reports/ (5 bytes)", "the copy was written again by Brigade");
}

#[tokio::test]
async fn kept_files_move_beside_existing_ones() {
    let repo = repository(SetupSpec::default(), &["reports/**", "*.bin"]).await;
    write(repo.path(), "reports/a.md", "the person's\n");
    write(repo.path(), "reports/b.md.task-1", "the person's\n");
    write(repo.path(), "reports/b.md", "the person's\n");
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), repo.path().join("reports/linked")).unwrap();
    let place = worktree(&repo).await;
    for file in ["a.md", "b.md", "deep/c.md", "linked/d.md", "x/.git/e", "big.md"] {
        write(&place.root, &format!("reports/{file}"), &format!("{file}\n"));
    }
    fs::File::create(place.root.join("reports/big.md")).unwrap().set_len(100 * 1024 * 1024 + 1).unwrap();
    symlink("/etc/passwd", place.root.join("reports/link")).unwrap();
    write(&place.root, ".worktrees/a.bin", "x");
    let files = repo.repository.move_ignored_files(&place).await.unwrap();
    assert_eq!(
        text(&files.moved),
        "reports/deep/c.md (10 bytes), reports/a.md.task-1 (5 bytes), reports/b.md.task-1.2 (5 bytes)"
    );
    assert!(text(&files.left).starts_with("reports/ (100.0 MiB)"), "{:?}", files.left);
    let read = |file: &str| fs::read_to_string(repo.path().join("reports").join(file)).unwrap();
    assert_eq!(read("a.md") + &read("b.md") + &read("b.md.task-1"), "the person's\n".repeat(3));
    assert_eq!(read("a.md.task-1") + &read("b.md.task-1.2") + &read("deep/c.md"), "a.md\nb.md\ndeep/c.md\n");
    for file in ["linked/d.md", "x/.git/e", "big.md", "link"] {
        assert!(place.root.join("reports").join(file).symlink_metadata().is_ok(), "{file} stays");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(!repo.path().join(".worktrees/a.bin").exists(), "that folder is Brigade's");
    // A report after a kill names them again, and moves nothing twice.
    assert_eq!(repo.repository.move_ignored_files(&place).await.unwrap(), files);
}

/// Another name of the file stays in the worktree, where commands can write it.
#[tokio::test]
async fn moved_file_has_no_other_names() {
    let repo = repository(SetupSpec::default(), &["reports/**"]).await;
    let place = worktree(&repo).await;
    write(&place.root, "reports/a.md", "work\n");
    fs::create_dir(place.root.join("made")).unwrap();
    fs::hard_link(place.root.join("reports/a.md"), place.root.join("made/link")).unwrap();
    let files = repo.repository.move_ignored_files(&place).await.unwrap();
    assert_eq!((text(&files.moved), text(&files.left)), ("reports/a.md (5 bytes)".into(), "made/ (5 bytes)".into()));
    fs::write(place.root.join("made/link"), "of a later attempt\n").unwrap();
    assert_eq!(fs::read_to_string(repo.path().join("reports/a.md")).unwrap(), "work\n");
}

#[tokio::test]
async fn kept_file_that_git_would_publish_is_not_moved() {
    let repo = repository(SetupSpec::default(), &[".env", "x.bin", "reports/a"]).await;
    write(repo.path(), "reports/a", "the person's\n");
    let place = worktree(&repo).await;
    // The person's rules changed after the task began.
    write(repo.path(), ".gitignore", &RULES.replace("*.bin\n", ""));
    for file in [".env", "x.bin", "reports/a"] {
        write(&place.root, file, "of the task\n");
    }
    let files = repo.repository.move_ignored_files(&place).await.unwrap();
    assert_eq!(text(&files.moved), "reports/a.task-1 (12 bytes)");
    assert_eq!(
        files.problems().collect::<Vec<_>>(),
        [
            "cannot keep .env: it exists there, and git does not ignore .env.task-1 in the workspace",
            "cannot keep x.bin: git does not ignore x.bin in the workspace",
        ]
    );
    assert_eq!(text(&files.left), ".env (12 bytes), x.bin (12 bytes)");
    assert_eq!(repo.git(&["status", "--porcelain", "--", ".env*", "*.bin"]), "");
}

#[tokio::test]
async fn keep_is_stronger_than_table_of_caches() {
    let keep = ["target/release/x", "a.pyc", "node_modules/.cache/**", "crates/a/target"];
    let repo = repository(SetupSpec::default(), &keep).await;
    let place = worktree(&repo).await;
    for file in ["target/release/x", "target/debug/x", "a.pyc", "b.pyc", "node_modules/.cache/a/b", "crates/a/target/c"]
    {
        write(&place.root, file, "x");
    }
    let files = repo.repository.move_ignored_files(&place).await.unwrap();
    let moved =
        "a.pyc (1 bytes), crates/a/target/c (1 bytes), node_modules/.cache/a/b (1 bytes), target/release/x (1 bytes)";
    assert_eq!((text(&files.moved).as_str(), text(&files.left).as_str()), (moved, ""));
    assert!(repo.path().join("node_modules/.cache/a/b").exists() && !repo.path().join("target/debug").exists());
}

#[tokio::test]
async fn failed_attempt_leaves_its_ignored_files() {
    let repo = repository(SetupSpec::default(), &["reports/**"]).await;
    let first = worktree(&repo).await;
    write(&first.root, "reports/q3.md", "work\n");
    repo.repository.record_attempt_end(&first).await.unwrap();
    let failed = FailedAttempt { attempt: 1, owner: "bob".to_owned(), reason: "verify failed".to_owned() };
    let second = Assignment { attempt: 2, failed: Some(failed), ..task(1) };
    let WorktreeOutcome::Ready(second) = repo.repository.provision(&second).await.unwrap() else { panic!() };
    let aside = ".worktrees/crew-task-1-attempt-1";
    assert!(second.warnings.concat().contains(&format!("{aside}: git ignores")), "{:?}", second.warnings);
    assert!(!second.root.join("reports").exists() && !repo.path().join("reports").exists());
    assert_eq!(fs::read_to_string(repo.path().join(aside).join("reports/q3.md")).unwrap(), "work\n");
    let is_completed = |_: TaskId| false;
    let kept = GitRepository::kept_worktrees(repo.path(), &kept_options(&repo), is_completed).unwrap();
    assert_eq!(kept.iter().map(|kept| (kept.attempt, kept.folder.as_str())).collect::<Vec<_>>(), [(Some(1), aside)]);
    GitRepository::remove_kept_worktree(repo.path(), &kept_options(&repo), &kept[0]).unwrap();
    assert!(!repo.path().join(aside).exists());
}

#[tokio::test]
async fn kept_worktree_with_other_work_is_not_removed() {
    let commit = |root: &Path, switch: &[&str]| {
        git(root, &[&["switch", "-q"], switch].concat());
        write(root, "n.txt", "by a person\n");
        git(root, &["add", "n.txt"]);
        git(root, &["-c", "user.name=p", "-c", "user.email=p@localhost", "commit", "-q", "-m", "n", "--", "n.txt"]);
    };
    type Change<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Change<'_>, &str); 4] = [
        ("a branch", &|root| commit(root, &["-c", "mine"]), "the branch mine in it has commits that are not merged"),
        ("no branch", &|root| commit(root, &["--detach"]), "is checked out in it and not merged"),
        ("a change", &|root| insert_after(root, "f.txt", "line 7", "by a person"), "it has 1 uncommitted files"),
        ("a new file", &|root| write(root, "n.txt", "by a person\n"), "it has 1 uncommitted files"),
    ];
    for (is_failed, (case, change, reason)) in [false, true].into_iter().flat_map(|is| cases.map(|case| (is, case))) {
        let repo = repository(SetupSpec::default(), &[]).await;
        let root = if is_failed {
            failed_attempt(&repo).await
        } else {
            let place = worktree(&repo).await;
            complete(&repo, &place, |root| write(root, "reports/q3.md", "work\n")).await.unwrap();
            place.root
        };
        write(&root, "reports/q4.md", "later\n");
        let find = || kept_worktrees(&repo).into_iter().find(|kept| root.ends_with(&kept.folder)).unwrap();
        let kept = find();
        let listed = (kept.files.as_ref().map(text), kept.other_work.as_deref());
        assert_eq!(listed, (Some("reports/ (11 bytes)".to_owned()), None), "{case} {is_failed}: counted again");
        change(&root);
        let error = GitRepository::remove_kept_worktree(repo.path(), &kept_options(&repo), &kept).unwrap_err();
        let after = find();
        for text in [error.to_string(), after.other_work.clone().unwrap_or_default()] {
            // Its own change counts again when the commit below it is another one.
            let reason = if is_failed { "uncommitted files" } else { reason };
            assert!(text.contains(reason), "{case} {is_failed}: {text}");
        }
        assert!(root.join("reports/q4.md").exists() && after.files.is_none(), "{case} {is_failed}");
        if !is_failed {
            let launched = repo.repository.prepare_launch(vec![task(1)]).await.unwrap();
            let notices = notice_texts(launched.notices).concat();
            assert!(notices.contains("crew-task-1 stays: ") && notices.contains(reason), "{case}: {notices}");
        }
    }
}

#[tokio::test]
async fn update_of_worktree_overwrites_no_ignored_file() {
    let repo = repository(SetupSpec::default(), &[]).await;
    let first = worktree(&repo).await;
    write(&first.root, "x.bin", "of the task");
    let other = repo.worktree_with(2, |root| {
        write(root, "x.bin", "of another task");
        git(root, &["add", "--force", "x.bin"]);
    });
    assert_eq!(repo.merge(&other.await).await, None);
    let again = repo.repository.provision(&Assignment { attempt: 2, ..task(1) }).await;
    assert_eq!(fs::read_to_string(first.root.join("x.bin")).unwrap(), "of the task", "{again:?}");
}
