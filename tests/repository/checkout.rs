//! The person's checkout next to a team that merges: none of their changes is lost, and none of their commits reverts a
//! merge.

use std::fs;

use brigade::ports::{PublishOutcome, Repository};
use brigade::stores::git::GitRepository;

use super::harness::{TestRepository, edit, git, git_with, open, put, texts};

/// Adds a line to `f.txt` on a task's branch, and merges it.
async fn merge_a_line(repo: &TestRepository, id: u64, behind: &str, line: &str) -> Option<String> {
    let worktree = repo.done(id, |root| put(root, "f.txt", behind, line)).await;
    repo.merged(id, &worktree).await
}

fn on(repo: &TestRepository) -> String {
    repo.git(&["branch", "--show-current"])
}

fn checkout_notice(repo: &TestRepository) -> Option<String> {
    GitRepository::checkout_problem(repo.path(), Some("main".to_owned())).unwrap()
}

#[tokio::test]
async fn changed_checkout_moves_to_own_branch_and_returns() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join("own.txt"), "own\n").unwrap();
    let onto = repo.main();
    assert_eq!(merge_a_line(&repo, 1, "line 2", "first").await, None, "a change in another place blocks the checkout");
    edit(repo.path(), "f.txt", |text| format!("{text}unsaved\n"));
    let stood = repo.main();
    let notice_text = merge_a_line(&repo, 2, "line 5", "second").await.unwrap();
    assert!(
        notice_text.contains("is on the branch brigade-yours/main") && notice_text.contains("f.txt"),
        "{notice_text}"
    );
    let text = fs::read_to_string(repo.path().join("f.txt")).unwrap();
    assert!(text.contains("unsaved") && text.contains("first") && !text.contains("second"), "{text}");
    assert_eq!((on(&repo).as_str(), repo.git(&["rev-parse", "HEAD"])), ("brigade-yours/main", stood));
    assert_eq!(repo.status(), " M f.txt\n?? own.txt");
    assert_eq!(merge_a_line(&repo, 3, "line 7", "third").await, None, "the notice is given once");
    assert!(checkout_notice(&repo).unwrap().contains("brigade-yours/main"), "the notice is given for each check");
    assert_eq!(GitRepository::target_branch(repo.path(), None).unwrap(), "main", "the branch of merges changed");
    assert_eq!(texts(repo.repository.recover_unfinished_merges(Vec::new()).await.unwrap()), [""; 0]);
    // They revert their change; the next merge updates the rest.
    edit(repo.path(), "f.txt", |text| text.replace("unsaved\n", ""));
    let notice_text = merge_a_line(&repo, 4, "line 9", "fourth").await.unwrap();
    assert!(notice_text.contains("on main again"), "{notice_text}");
    let text = fs::read_to_string(repo.path().join("f.txt")).unwrap();
    assert!(["first", "second", "third", "fourth"].iter().all(|line| text.contains(line)), "{text}");
    assert_eq!((on(&repo), repo.status(), checkout_notice(&repo)), ("main".to_owned(), "?? own.txt".to_owned(), None));
    assert!(!repo.git(&["branch", "--list"]).contains("yours"), "the set-aside branch is left");
    assert_ne!(repo.main(), onto);
}

#[tokio::test]
async fn commit_of_person_on_own_branch_undoes_no_merge() {
    let repo = TestRepository::new().await;
    edit(repo.path(), "f.txt", |text| format!("{text}mine\n"));
    let worktree = repo
        .done(1, |root| {
            put(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("new.txt"), "new\n").unwrap();
        })
        .await;
    assert!(repo.merged(1, &worktree).await.is_some());
    repo.git(&["commit", "-q", "-a", "-m", "Mine"]);
    assert_eq!(repo.on_main("new.txt"), "new");
    assert!(repo.on_main("f.txt").contains("of the team"));
    // With their commits the branch stays unchanged, also at the next launch. They merge it themselves.
    assert_eq!(texts(repo.repository.recover_unfinished_merges(Vec::new()).await.unwrap()), [""; 0]);
    assert_eq!((on(&repo).as_str(), repo.status()), ("brigade-yours/main", String::new()));
    repo.git(&["switch", "-q", "main"]);
    repo.git(&["merge", "-q", "--no-edit", "brigade-yours/main"]);
    let text = repo.on_main("f.txt");
    assert!(text.contains("of the team") && text.contains("mine"), "{text}");
    assert_eq!(checkout_notice(&repo), None);
    // A branch with commits that are not merged yet is left, and another name is used.
    repo.git(&["switch", "-q", "brigade-yours/main"]);
    repo.git(&["commit", "-q", "--allow-empty", "-m", "Mine alone"]);
    repo.git(&["switch", "-q", "main"]);
    edit(repo.path(), "f.txt", |text| format!("{text}more\n"));
    let notice_text = merge_a_line(&repo, 2, "line 5", "second").await.unwrap();
    assert!(notice_text.contains("is on the branch brigade-yours-2/main"), "{notice_text}");
}

#[tokio::test]
async fn ignored_and_untracked_files_are_not_overwritten() {
    type Put = fn(&std::path::Path);
    let cases: [(&str, Put, Put, &str); 4] = [
        (
            "a folder that is ignored",
            |root| {
                fs::create_dir_all(root.join("data/deep")).unwrap();
                fs::write(root.join("data/deep/p.txt"), "the person's").unwrap();
            },
            |root| fs::write(root.join("data"), "hello").unwrap(),
            "data/deep/p.txt",
        ),
        (
            "a file that is ignored",
            |root| fs::write(root.join(".env"), "the person's").unwrap(),
            |root| fs::write(root.join(".env"), "theirs").unwrap(),
            ".env",
        ),
        (
            "a file where a folder is wanted",
            |root| fs::write(root.join("data"), "the person's").unwrap(),
            |root| {
                fs::create_dir(root.join("data")).unwrap();
                fs::write(root.join("data/x"), "theirs").unwrap();
            },
            "data",
        ),
        (
            "a file that git does not know",
            |root| fs::write(root.join("notes.txt"), "the person's").unwrap(),
            |root| fs::write(root.join("notes.txt"), "theirs").unwrap(),
            "notes.txt",
        ),
    ];
    for (case, persons, teams, kept) in cases {
        let repo = TestRepository::new().await;
        fs::write(repo.path().join(".gitignore"), "/data/\n.env\n").unwrap();
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-q", "-m", "Ignore"]);
        persons(repo.path());
        let worktree = repo.provision(1).await;
        teams(&worktree.root);
        super::harness::git(&worktree.root, &["add", "--force", "--", ":(exclude).agent", "."]);
        repo.commit(1, &worktree).await;
        let notice_text = repo.merged(1, &worktree).await.unwrap();
        assert!(notice_text.contains(kept) && notice_text.contains("brigade-yours/main"), "{case}: {notice_text}");
        assert_eq!(fs::read_to_string(repo.path().join(kept)).unwrap(), "the person's", "{case}");
        // The file is moved away, so the checkout follows.
        fs::rename(repo.path().join(kept.split('/').next().unwrap()), repo.path().join("elsewhere")).unwrap();
        let notice_text = texts(repo.repository.recover_unfinished_merges(Vec::new()).await.unwrap()).concat();
        assert!(notice_text.contains("on main again"), "{case}: {notice_text}");
        assert_eq!((on(&repo).as_str(), repo.status().trim_end_matches('/')), ("main", "?? elsewhere"), "{case}");
    }
}

#[tokio::test]
async fn no_free_branch_name_overwrites_nothing() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitignore"), ".env\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Ignore"]);
    let tip = repo.main();
    let ends = (2..=99).map(|number| format!("-{number}")).chain([String::new()]);
    let taken: String = ends.map(|end| format!("create refs/heads/brigade-yours{end}/main/x {tip}\n")).collect();
    git_with(repo.path(), &["update-ref", "--stdin"], &taken);
    fs::write(repo.path().join(".env"), "the person's").unwrap();
    let worktree = repo.provision(1).await;
    fs::write(worktree.root.join(".env"), "theirs").unwrap();
    super::harness::git(&worktree.root, &["add", "--force", ".env"]);
    repo.commit(1, &worktree).await;
    let notice_text = repo.merged(1, &worktree).await.unwrap();
    assert!(notice_text.contains("a commit there now would undo the merge"), "{notice_text}");
    assert_eq!(fs::read_to_string(repo.path().join(".env")).unwrap(), "the person's");
    assert!(checkout_notice(&repo).is_some(), "the notice is given until the checkout follows");
}

#[tokio::test]
async fn merged_checkout_branch_is_reused() {
    let repo = TestRepository::new().await;
    repo.git(&["branch", "brigade-yours/main"]);
    edit(repo.path(), "f.txt", |text| format!("{text}unsaved\n"));
    let notice_text = merge_a_line(&repo, 1, "line 2", "first").await.unwrap();
    assert!(notice_text.contains("is on the branch brigade-yours/main"), "{notice_text}");
    assert_eq!(repo.git(&["rev-parse", "HEAD"]), repo.git(&["rev-parse", "main~1"]));
}

#[tokio::test]
async fn removed_submodule_folder_keeps_files_of_person() {
    type Put = fn(&std::path::Path);
    let cases: [Put; 3] = [
        |path| fs::write(path, "a file now").unwrap(),
        |path| std::os::unix::fs::symlink("f.txt", path).unwrap(),
        |path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("own.txt"), "theirs").unwrap();
        },
    ];
    for teams in cases {
        let repo = TestRepository::new().await;
        let within = repo.path().join("within");
        git(repo.path(), &["init", "-q", "within"]);
        git(&within, &["commit", "-q", "--allow-empty", "-m", "Within"]);
        repo.git(&["add", "within"]);
        repo.git(&["commit", "-q", "-m", "A repository within"]);
        fs::write(within.join("own.txt"), "the person's").unwrap();
        let worktree = repo.provision(1).await;
        git(&worktree.root, &["rm", "-q", "--cached", "within"]);
        fs::remove_dir(worktree.root.join("within")).unwrap();
        teams(&worktree.root.join("within"));
        repo.commit(1, &worktree).await;
        let notice_text = repo.merged(1, &worktree).await.unwrap();
        assert!(notice_text.contains("within") && notice_text.contains("brigade-yours/main"), "{notice_text}");
        assert_eq!(fs::read_to_string(within.join("own.txt")).unwrap(), "the person's");
        assert!(within.join(".git").is_dir());
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn file_with_non_utf8_name_is_not_overwritten() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.cfg");
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitignore"), "*.cfg\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Ignore"]);
    fs::write(repo.path().join(name), "the person's").unwrap();
    let worktree = repo.provision(1).await;
    fs::write(worktree.root.join(name), "theirs").unwrap();
    git(&worktree.root, &["add", "--force", "--", "*.cfg"]);
    repo.commit(1, &worktree).await;
    let notice_text = repo.merged(1, &worktree).await.unwrap();
    assert!(notice_text.contains("brigade-yours/main"), "{notice_text}");
    assert_eq!(fs::read_to_string(repo.path().join(name)).unwrap(), "the person's");
}

/// A checkout whose branch was moved by a merge of `new/a.txt` and whose files were not updated. A kill between the
/// two steps leaves it so. The repository is opened again.
async fn stale_checkout(repo: &TestRepository) -> brigade::stores::git::GitRepository {
    let old = repo.main();
    let worktree = repo
        .done(1, |root| {
            fs::create_dir(root.join("new")).unwrap();
            fs::write(root.join("new/a.txt"), "a\n").unwrap();
            put(root, "f.txt", "line 2", "merged");
        })
        .await;
    assert_eq!(repo.merged(1, &worktree).await, None);
    repo.git(&["update-ref", "refs/worktree/brigade-checkout", &old]);
    repo.git(&["read-tree", &old]);
    fs::remove_dir_all(repo.path().join("new")).unwrap();
    repo.git(&["checkout-index", "-f", "-u", "f.txt"]);
    open(repo.path()).await.unwrap()
}

#[tokio::test]
async fn target_of_link_of_person_is_not_changed() {
    let repo = TestRepository::new().await;
    let repository = stale_checkout(&repo).await;
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("a.txt"), "a\n").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), repo.path().join("new")).unwrap();
    let notices = texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()).concat();
    assert!(notices.contains("brigade-yours/main"), "{notices}");
    assert_eq!(fs::read_to_string(elsewhere.path().join("a.txt")).unwrap(), "a\n");
}

#[tokio::test]
async fn partial_checkout_waits_for_stale_index_lock() {
    let repo = TestRepository::new().await;
    let repository = stale_checkout(&repo).await;
    // Git was killed after half of the file.
    put(repo.path(), "f.txt", "line 2", "merged");
    let lock = repo.path().join(".git/index.lock");
    fs::write(&lock, "").unwrap();
    let notices = texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()).concat();
    assert!(notices.contains("index.lock exists") && notices.contains("remove that file"), "{notices}");
    assert_eq!(on(&repo), "main");
    assert!(checkout_notice(&repo).is_some());
    fs::remove_file(&lock).unwrap();
    assert_eq!(texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()), [""; 0]);
    assert_eq!((repo.status().as_str(), on(&repo).as_str(), checkout_notice(&repo)), ("", "main", None));
    assert_eq!(fs::read_to_string(repo.path().join("new/a.txt")).unwrap(), "a\n");
}

#[tokio::test]
async fn commit_of_person_during_verify_forces_new_merge() {
    let repo = TestRepository::new().await;
    let worktree = repo.done(1, |root| put(root, "f.txt", "line 2", "of the team")).await;
    let merge = repo.made(1, &worktree).await;
    put(repo.path(), "f.txt", "line 8", "mine");
    repo.git(&["commit", "-q", "-a", "-m", "Mine"]);
    assert_eq!(repo.repository.publish(&merge, &super::harness::task(1)).await.unwrap(), PublishOutcome::Moved);
    assert_eq!((on(&repo).as_str(), repo.status().as_str(), checkout_notice(&repo)), ("main", "", None));
    assert_eq!(repo.merged(1, &worktree).await, None);
    let text = fs::read_to_string(repo.path().join("f.txt")).unwrap();
    assert!(text.contains("of the team") && text.contains("mine"), "{text}");
    assert_eq!(repo.status(), "");
}

#[tokio::test]
async fn partial_ref_update_keeps_checkout_consistent() {
    let repo = TestRepository::new().await;
    let worktree = repo
        .done(1, |root| {
            put(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("new.txt"), "new\n").unwrap();
        })
        .await;
    let merge = repo.made(1, &worktree).await;
    // A file is in the place of the merge marker's name: git fails there when the branch is already moved, or before.
    fs::create_dir_all(repo.path().join(".git/logs/refs/brigade/crew")).unwrap();
    fs::write(repo.path().join(".git/logs/refs/brigade/crew/merged"), "in the way").unwrap();
    let published = repo.repository.publish(&merge, &super::harness::task(1)).await;
    if repo.main() == merge.commit {
        assert_eq!(published.unwrap(), PublishOutcome::Done(None));
        assert!(repo.path().join("new.txt").exists());
    } else {
        assert!(published.is_err());
        assert!(!repo.path().join("new.txt").exists());
    }
    assert_eq!((repo.status().as_str(), checkout_notice(&repo)), ("", None));
}

#[tokio::test]
async fn failed_checkout_is_completed_at_next_launch() {
    let repo = TestRepository::new().await;
    fs::create_dir(repo.path().join("shut")).unwrap();
    fs::write(repo.path().join("shut/x"), "x\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "A folder"]);
    let worktree = repo
        .done(1, |root| {
            fs::write(root.join("a.txt"), "a\n").unwrap();
            put(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("shut/y"), "y\n").unwrap();
        })
        .await;
    let merge = repo.made(1, &worktree).await;
    // As on a full disk: the first file is written, then no more.
    repo.git(&["config", "filter.fails.smudge", "false"]);
    repo.git(&["config", "filter.fails.required", "true"]);
    fs::create_dir_all(repo.path().join(".git/info")).unwrap();
    fs::write(repo.path().join(".git/info/attributes"), "shut/y filter=fails\n").unwrap();
    let PublishOutcome::Done(told) = repo.repository.publish(&merge, &super::harness::task(1)).await.unwrap() else {
        panic!("the branch moved")
    };
    assert!(told.is_some());
    fs::remove_file(repo.path().join(".git/info/attributes")).unwrap();
    let notice_text = texts(repo.repository.recover_unfinished_merges(Vec::new()).await.unwrap()).concat();
    assert!(notice_text.is_empty() || notice_text.contains("on main again"), "{notice_text}");
    assert_eq!((on(&repo).as_str(), repo.status().as_str(), checkout_notice(&repo)), ("main", "", None));
    assert!(repo.path().join("a.txt").exists() && repo.path().join("shut/y").exists());
}

#[tokio::test]
async fn commit_on_stale_checkout_reports_dropped_lines() {
    let repo = TestRepository::new().await;
    let repository = stale_checkout(&repo).await;
    fs::write(repo.path().join("mine.txt"), "mine\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Mine"]);
    let notices = texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()).concat();
    assert!(notices.contains("remove 2 merged lines"), "{notices}");
}

#[tokio::test]
async fn checkout_note_of_unmade_merge_is_ignored() {
    let repo = TestRepository::new().await;
    let git_dir = repo.path().join(".git");
    fs::create_dir_all(git_dir.join("refs/worktree")).unwrap();
    fs::write(git_dir.join("refs/worktree/brigade-checkout"), repo.main() + "\n").unwrap();
    put(repo.path(), "f.txt", "line 2", "mine");
    repo.git(&["commit", "-q", "-a", "-m", "Mine"]);
    put(repo.path(), "f.txt", "line 3", "not committed");
    assert_eq!(checkout_notice(&repo), None);
    let repository = open(repo.path()).await.unwrap();
    assert_eq!(texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()), [""; 0]);
    assert_eq!((on(&repo).as_str(), repo.status().as_str()), ("main", " M f.txt"));
    assert!(!git_dir.join("refs/worktree/brigade-checkout").exists());
}

#[tokio::test]
async fn checkout_updated_by_person_is_kept() {
    let repo = TestRepository::new().await;
    let repository = stale_checkout(&repo).await;
    repo.git(&["reset", "-q", "--hard", "main"]);
    fs::write(repo.path().join("staged.txt"), "staged\n").unwrap();
    repo.git(&["add", "-A"]);
    fs::write(repo.path().join("new/a.txt"), "mine\n").unwrap();
    assert_eq!(texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()), [""; 0]);
    assert_eq!((on(&repo).as_str(), checkout_notice(&repo)), ("main", None));
    assert_eq!(repo.status(), " M new/a.txt\nA  staged.txt");
}

#[tokio::test]
async fn partial_file_with_crlf_is_not_taken_as_change() {
    let repo = TestRepository::new().await;
    let repository = stale_checkout(&repo).await;
    repo.git(&["config", "core.autocrlf", "true"]);
    fs::write(repo.path().join("f.txt"), "line 1\r\nline 2\r\nmer").unwrap();
    let notices = texts(repository.recover_unfinished_merges(Vec::new()).await.unwrap()).concat();
    assert_eq!((notices.as_str(), on(&repo).as_str(), repo.status().as_str()), ("", "main", ""));
}

#[tokio::test]
async fn checkout_of_other_branch_is_not_moved() {
    let repo = TestRepository::new().await;
    let worktree = repo.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    repo.git(&["checkout", "-q", "-b", "elsewhere"]);
    assert_eq!(repo.merged(1, &worktree).await, None);
    assert!(checkout_notice(&repo).unwrap().contains("the target branch main is not checked out"));
    assert!(repo.on_main("f.txt").contains("mine"));
    let text = fs::read_to_string(repo.path().join("f.txt")).unwrap();
    assert_eq!((text, repo.status()), (super::harness::ten(), String::new()));
}

#[tokio::test]
async fn lines_removed_by_person_are_not_restored() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join("f.txt"), "line 1\n").unwrap();
    let notice_text = merge_a_line(&repo, 1, "line 10", "more").await.unwrap();
    assert!(notice_text.contains("brigade-yours/main"), "{notice_text}");
    assert_eq!(texts(repo.repository.recover_unfinished_merges(Vec::new()).await.unwrap()), [""; 0]);
    assert_eq!(fs::read_to_string(repo.path().join("f.txt")).unwrap(), "line 1\n");
    assert_eq!(on(&repo), "brigade-yours/main");
}

#[tokio::test]
async fn branch_in_rebase_or_other_worktree_is_not_moved() {
    let repo = TestRepository::new().await;
    let worktree = repo.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.made(1, &worktree).await;
    let before = repo.main();
    let git_dir = repo.path().join(".git");
    fs::create_dir(git_dir.join("rebase-merge")).unwrap();
    fs::write(git_dir.join("rebase-merge/head-name"), "refs/heads/main\n").unwrap();
    let refused = repo.repository.publish(&merge, &super::harness::task(1)).await.unwrap_err().to_string();
    assert!(refused.contains("a rebase of main is unfinished"), "{refused}");
    assert!(GitRepository::target_branch(repo.path(), Some("main".to_owned())).is_err());
    fs::remove_dir_all(git_dir.join("rebase-merge")).unwrap();
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("other").display().to_string();
    repo.git(&["worktree", "add", "-q", "--detach", &path]);
    fs::create_dir(git_dir.join("worktrees/other/rebase-merge")).unwrap();
    fs::write(git_dir.join("worktrees/other/rebase-merge/head-name"), "refs/heads/main\n").unwrap();
    let refused = repo.repository.publish(&merge, &super::harness::task(1)).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("a rebase of main is unfinished in {path}")), "{refused}");
    repo.git(&["worktree", "remove", "--force", &path]);
    repo.git(&["switch", "-q", "-c", "dev"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("main").display().to_string();
    repo.git(&["worktree", "add", "-q", &path, "main"]);
    let refused = repo.repository.publish(&merge, &super::harness::task(1)).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("main is also checked out in {path}")), "{refused}");
    assert_eq!(repo.main(), before);
    repo.git(&["worktree", "remove", "--force", &path]);
    assert_eq!(repo.repository.publish(&merge, &super::harness::task(1)).await.unwrap(), PublishOutcome::Done(None));
}
