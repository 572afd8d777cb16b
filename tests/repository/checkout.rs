//! The person's checkout beside a team that merges: nothing of theirs is lost or written over, and nothing they commit undoes a merge.

use std::fs;

use brigade::ports::{Publish, Repository};
use brigade::stores::git::GitRepository;

use super::place::{Place, edit, git, git_with, open, put};

/// Adds a line to `f.txt` on a task's branch, and merges it.
async fn merge_a_line(place: &Place, id: u64, behind: &str, line: &str) -> Option<String> {
    let worktree = place.done(id, |root| put(root, "f.txt", behind, line)).await;
    place.merged(id, &worktree).await
}

fn on(place: &Place) -> String {
    place.git(&["branch", "--show-current"])
}

fn behind(place: &Place) -> Option<String> {
    GitRepository::behind(place.path(), Some("main".to_owned())).unwrap()
}

#[tokio::test]
async fn what_the_person_changed_stays_on_a_branch_of_its_own_and_comes_back_later() {
    let place = Place::new().await;
    fs::write(place.path().join("own.txt"), "own\n").unwrap();
    let onto = place.main();
    assert_eq!(merge_a_line(&place, 1, "line 2", "first").await, None, "what it does not touch is in nobody's way");
    edit(place.path(), "f.txt", |text| format!("{text}unsaved\n"));
    let stood = place.main();
    let said = merge_a_line(&place, 2, "line 5", "second").await.unwrap();
    assert!(said.contains("is on the branch brigade-yours/main") && said.contains("f.txt"), "{said}");
    let text = fs::read_to_string(place.path().join("f.txt")).unwrap();
    assert!(text.contains("unsaved") && text.contains("first") && !text.contains("second"), "{text}");
    assert_eq!((on(&place).as_str(), place.git(&["rev-parse", "HEAD"])), ("brigade-yours/main", stood));
    assert_eq!(place.status(), " M f.txt\n?? own.txt");
    assert_eq!(merge_a_line(&place, 3, "line 7", "third").await, None, "it is said once");
    assert!(behind(&place).unwrap().contains("brigade-yours/main"), "and whenever somebody asks");
    assert_eq!(GitRepository::check(place.path(), None).unwrap(), "main", "it is still what is merged into");
    assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    // They take their change back; the next merge brings the rest.
    edit(place.path(), "f.txt", |text| text.replace("unsaved\n", ""));
    let said = merge_a_line(&place, 4, "line 9", "fourth").await.unwrap();
    assert!(said.contains("on main again"), "{said}");
    let text = fs::read_to_string(place.path().join("f.txt")).unwrap();
    assert!(["first", "second", "third", "fourth"].iter().all(|line| text.contains(line)), "{text}");
    assert_eq!((on(&place), place.status(), behind(&place)), ("main".to_owned(), "?? own.txt".to_owned(), None));
    assert!(!place.git(&["branch", "--list"]).contains("yours"), "the branch is gone with its purpose");
    assert_ne!(place.main(), onto);
}

#[tokio::test]
async fn what_the_person_commits_meanwhile_undoes_nothing() {
    let place = Place::new().await;
    edit(place.path(), "f.txt", |text| format!("{text}mine\n"));
    let worktree = place
        .done(1, |root| {
            put(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("new.txt"), "new\n").unwrap();
        })
        .await;
    assert!(place.merged(1, &worktree).await.is_some());
    place.git(&["commit", "-q", "-a", "-m", "Mine"]);
    assert_eq!(place.on_main("new.txt"), "new");
    assert!(place.on_main("f.txt").contains("of the team"));
    // With commits of theirs it stays where it is, also at the next launch, and they bring it home themselves.
    assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!((on(&place).as_str(), place.status()), ("brigade-yours/main", String::new()));
    place.git(&["switch", "-q", "main"]);
    place.git(&["merge", "-q", "--no-edit", "brigade-yours/main"]);
    let text = place.on_main("f.txt");
    assert!(text.contains("of the team") && text.contains("mine"), "{text}");
    assert_eq!(behind(&place), None);
    // Where it has commits that are not home yet it is left, and another one taken.
    place.git(&["switch", "-q", "brigade-yours/main"]);
    place.git(&["commit", "-q", "--allow-empty", "-m", "Mine alone"]);
    place.git(&["switch", "-q", "main"]);
    edit(place.path(), "f.txt", |text| format!("{text}more\n"));
    let said = merge_a_line(&place, 2, "line 5", "second").await.unwrap();
    assert!(said.contains("is on the branch brigade-yours-2/main"), "{said}");
}

#[tokio::test]
async fn what_git_ignores_or_does_not_know_is_not_written_over() {
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
        let place = Place::new().await;
        fs::write(place.path().join(".gitignore"), "/data/\n.env\n").unwrap();
        place.git(&["add", "-A"]);
        place.git(&["commit", "-q", "-m", "Ignore"]);
        persons(place.path());
        let worktree = place.provision(1).await;
        teams(&worktree.root);
        super::place::git(&worktree.root, &["add", "--force", "--", ":(exclude).agent", "."]);
        place.commit(1, &worktree).await;
        let said = place.merged(1, &worktree).await.unwrap();
        assert!(said.contains(kept) && said.contains("brigade-yours/main"), "{case}: {said}");
        assert_eq!(fs::read_to_string(place.path().join(kept)).unwrap(), "the person's", "{case}");
        // Out of the way, it comes along.
        fs::rename(place.path().join(kept.split('/').next().unwrap()), place.path().join("elsewhere")).unwrap();
        let said = place.repository.take_up(Vec::new()).await.unwrap().concat();
        assert!(said.contains("on main again"), "{case}: {said}");
        assert_eq!((on(&place).as_str(), place.status().trim_end_matches('/')), ("main", "?? elsewhere"), "{case}");
    }
}

#[tokio::test]
async fn where_no_branch_is_left_for_the_checkout_nothing_is_written_over() {
    let place = Place::new().await;
    fs::write(place.path().join(".gitignore"), ".env\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Ignore"]);
    let tip = place.main();
    let ends = (2..=99).map(|number| format!("-{number}")).chain([String::new()]);
    let taken: String = ends.map(|end| format!("create refs/heads/brigade-yours{end}/main/x {tip}\n")).collect();
    git_with(place.path(), &["update-ref", "--stdin"], &taken);
    fs::write(place.path().join(".env"), "the person's").unwrap();
    let worktree = place.provision(1).await;
    fs::write(worktree.root.join(".env"), "theirs").unwrap();
    super::place::git(&worktree.root, &["add", "--force", ".env"]);
    place.commit(1, &worktree).await;
    let said = place.merged(1, &worktree).await.unwrap();
    assert!(said.contains("a commit made there now would undo the merge"), "{said}");
    assert_eq!(fs::read_to_string(place.path().join(".env")).unwrap(), "the person's");
    assert!(behind(&place).is_some(), "it is said until it is mended");
}

#[tokio::test]
async fn a_branch_the_checkout_was_on_before_is_taken_again_where_all_of_it_is_merged() {
    let place = Place::new().await;
    place.git(&["branch", "brigade-yours/main"]);
    edit(place.path(), "f.txt", |text| format!("{text}unsaved\n"));
    let said = merge_a_line(&place, 1, "line 2", "first").await.unwrap();
    assert!(said.contains("is on the branch brigade-yours/main"), "{said}");
    assert_eq!(place.git(&["rev-parse", "HEAD"]), place.git(&["rev-parse", "main~1"]));
}

#[tokio::test]
async fn what_lies_in_the_folder_of_a_submodule_is_not_removed_with_it() {
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
        let place = Place::new().await;
        let within = place.path().join("within");
        git(place.path(), &["init", "-q", "within"]);
        git(&within, &["commit", "-q", "--allow-empty", "-m", "Within"]);
        place.git(&["add", "within"]);
        place.git(&["commit", "-q", "-m", "A repository within"]);
        fs::write(within.join("own.txt"), "the person's").unwrap();
        let worktree = place.provision(1).await;
        git(&worktree.root, &["rm", "-q", "--cached", "within"]);
        fs::remove_dir(worktree.root.join("within")).unwrap();
        teams(&worktree.root.join("within"));
        place.commit(1, &worktree).await;
        let said = place.merged(1, &worktree).await.unwrap();
        assert!(said.contains("within") && said.contains("brigade-yours/main"), "{said}");
        assert_eq!(fs::read_to_string(within.join("own.txt")).unwrap(), "the person's");
        assert!(within.join(".git").is_dir());
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_whose_name_is_no_text_is_not_written_over() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.cfg");
    let place = Place::new().await;
    fs::write(place.path().join(".gitignore"), "*.cfg\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Ignore"]);
    fs::write(place.path().join(name), "the person's").unwrap();
    let worktree = place.provision(1).await;
    fs::write(worktree.root.join(name), "theirs").unwrap();
    git(&worktree.root, &["add", "--force", "--", "*.cfg"]);
    place.commit(1, &worktree).await;
    let said = place.merged(1, &worktree).await.unwrap();
    assert!(said.contains("brigade-yours/main"), "{said}");
    assert_eq!(fs::read_to_string(place.path().join(name)).unwrap(), "the person's");
}

/// A checkout whose branch was moved by a merge of `new/a.txt`, and none of whose files was brought along, as a kill between the two leaves
/// it; the repository is opened anew.
async fn left_behind(place: &Place) -> brigade::stores::git::GitRepository {
    let old = place.main();
    let worktree = place
        .done(1, |root| {
            fs::create_dir(root.join("new")).unwrap();
            fs::write(root.join("new/a.txt"), "a\n").unwrap();
            put(root, "f.txt", "line 2", "merged");
        })
        .await;
    assert_eq!(place.merged(1, &worktree).await, None);
    place.git(&["update-ref", "refs/worktree/brigade-checkout", &old]);
    place.git(&["read-tree", &old]);
    fs::remove_dir_all(place.path().join("new")).unwrap();
    place.git(&["checkout-index", "-f", "-u", "f.txt"]);
    open(place.path()).await.unwrap()
}

#[tokio::test]
async fn what_a_link_of_the_persons_leads_to_is_not_put_back() {
    let place = Place::new().await;
    let repository = left_behind(&place).await;
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("a.txt"), "a\n").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), place.path().join("new")).unwrap();
    let told = repository.take_up(Vec::new()).await.unwrap().concat();
    assert!(told.contains("brigade-yours/main"), "{told}");
    assert_eq!(fs::read_to_string(elsewhere.path().join("a.txt")).unwrap(), "a\n");
}

#[tokio::test]
async fn a_checkout_half_done_waits_for_a_killed_gits_lock_to_be_removed() {
    let place = Place::new().await;
    let repository = left_behind(&place).await;
    // Half of it was written when git was killed.
    put(place.path(), "f.txt", "line 2", "merged");
    let lock = place.path().join(".git/index.lock");
    fs::write(&lock, "").unwrap();
    let told = repository.take_up(Vec::new()).await.unwrap().concat();
    assert!(told.contains("index.lock is there") && told.contains("remove that file"), "{told}");
    assert_eq!(on(&place), "main");
    assert!(behind(&place).is_some());
    fs::remove_file(&lock).unwrap();
    assert_eq!(repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!((place.status().as_str(), on(&place).as_str(), behind(&place)), ("", "main", None));
    assert_eq!(fs::read_to_string(place.path().join("new/a.txt")).unwrap(), "a\n");
}

#[tokio::test]
async fn what_the_person_commits_while_a_merge_is_verified_is_merged_onto() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "of the team")).await;
    let merge = place.made(1, &worktree).await;
    put(place.path(), "f.txt", "line 8", "mine");
    place.git(&["commit", "-q", "-a", "-m", "Mine"]);
    assert_eq!(place.repository.publish(&merge, &super::place::task(1)).await.unwrap(), Publish::Moved);
    assert_eq!((on(&place).as_str(), place.status().as_str(), behind(&place)), ("main", "", None));
    assert_eq!(place.merged(1, &worktree).await, None);
    let text = fs::read_to_string(place.path().join("f.txt")).unwrap();
    assert!(text.contains("of the team") && text.contains("mine"), "{text}");
    assert_eq!(place.status(), "");
}

#[tokio::test]
async fn a_branch_that_was_moved_by_half_a_transaction_has_the_checkout_follow() {
    let place = Place::new().await;
    let worktree = place
        .done(1, |root| {
            put(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("new.txt"), "new\n").unwrap();
        })
        .await;
    let merge = place.made(1, &worktree).await;
    // Where the mark of the merge would be named: git fails there when the branch is moved already, or before.
    fs::create_dir_all(place.path().join(".git/logs/refs/brigade/crew")).unwrap();
    fs::write(place.path().join(".git/logs/refs/brigade/crew/merged"), "in the way").unwrap();
    let published = place.repository.publish(&merge, &super::place::task(1)).await;
    if place.main() == merge.commit {
        assert_eq!(published.unwrap(), Publish::Done(None));
        assert!(place.path().join("new.txt").exists());
    } else {
        assert!(published.is_err());
        assert!(!place.path().join("new.txt").exists());
    }
    assert_eq!((place.status().as_str(), behind(&place)), ("", None));
}

#[tokio::test]
async fn a_checkout_that_git_failed_in_comes_along_later_with_nothing_of_it_left() {
    let place = Place::new().await;
    fs::create_dir(place.path().join("shut")).unwrap();
    fs::write(place.path().join("shut/x"), "x\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "A folder"]);
    let worktree = place
        .done(1, |root| {
            fs::write(root.join("a.txt"), "a\n").unwrap();
            put(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("shut/y"), "y\n").unwrap();
        })
        .await;
    let merge = place.made(1, &worktree).await;
    // As a full disk: what comes first is written, and then no more.
    place.git(&["config", "filter.fails.smudge", "false"]);
    place.git(&["config", "filter.fails.required", "true"]);
    fs::create_dir_all(place.path().join(".git/info")).unwrap();
    fs::write(place.path().join(".git/info/attributes"), "shut/y filter=fails\n").unwrap();
    let Publish::Done(told) = place.repository.publish(&merge, &super::place::task(1)).await.unwrap() else {
        panic!("nobody moved the branch")
    };
    assert!(told.is_some());
    fs::remove_file(place.path().join(".git/info/attributes")).unwrap();
    let said = place.repository.take_up(Vec::new()).await.unwrap().concat();
    assert!(said.is_empty() || said.contains("on main again"), "{said}");
    assert_eq!((on(&place).as_str(), place.status().as_str(), behind(&place)), ("main", "", None));
    assert!(place.path().join("a.txt").exists() && place.path().join("shut/y").exists());
}

#[tokio::test]
async fn a_commit_made_before_the_files_came_along_is_told_for_what_it_takes_out() {
    let place = Place::new().await;
    let repository = left_behind(&place).await;
    fs::write(place.path().join("mine.txt"), "mine\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Mine"]);
    let told = repository.take_up(Vec::new()).await.unwrap().concat();
    assert!(told.contains("takes out 2 lines that the team had merged"), "{told}");
}

#[tokio::test]
async fn what_was_noted_for_a_merge_that_never_came_is_nothing() {
    let place = Place::new().await;
    let git_dir = place.path().join(".git");
    fs::create_dir_all(git_dir.join("refs/worktree")).unwrap();
    fs::write(git_dir.join("refs/worktree/brigade-checkout"), place.main() + "\n").unwrap();
    put(place.path(), "f.txt", "line 2", "mine");
    place.git(&["commit", "-q", "-a", "-m", "Mine"]);
    put(place.path(), "f.txt", "line 3", "not committed");
    assert_eq!(behind(&place), None);
    let repository = open(place.path()).await.unwrap();
    assert_eq!(repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!((on(&place).as_str(), place.status().as_str()), ("main", " M f.txt"));
    assert!(!git_dir.join("refs/worktree/brigade-checkout").exists());
}

#[tokio::test]
async fn a_checkout_that_the_person_brought_along_stays_where_it_is() {
    let place = Place::new().await;
    let repository = left_behind(&place).await;
    place.git(&["reset", "-q", "--hard", "main"]);
    fs::write(place.path().join("staged.txt"), "staged\n").unwrap();
    place.git(&["add", "-A"]);
    fs::write(place.path().join("new/a.txt"), "mine\n").unwrap();
    assert_eq!(repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!((on(&place).as_str(), behind(&place)), ("main", None));
    assert_eq!(place.status(), " M new/a.txt\nA  staged.txt");
}

#[tokio::test]
async fn a_file_begun_with_other_line_ends_is_not_the_persons() {
    let place = Place::new().await;
    let repository = left_behind(&place).await;
    place.git(&["config", "core.autocrlf", "true"]);
    fs::write(place.path().join("f.txt"), "line 1\r\nline 2\r\nmer").unwrap();
    let told = repository.take_up(Vec::new()).await.unwrap().concat();
    assert_eq!((told.as_str(), on(&place).as_str(), place.status().as_str()), ("", "main", ""));
}

#[tokio::test]
async fn a_checkout_of_another_branch_stays_where_it_is() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    place.git(&["checkout", "-q", "-b", "elsewhere"]);
    assert_eq!(place.merged(1, &worktree).await, None);
    assert!(behind(&place).unwrap().contains("main, which is merged into, is not checked out"));
    assert!(place.on_main("f.txt").contains("mine"));
    let text = fs::read_to_string(place.path().join("f.txt")).unwrap();
    assert_eq!((text, place.status()), (super::place::ten(), String::new()));
}

#[tokio::test]
async fn what_the_person_took_out_of_a_file_is_not_put_back() {
    let place = Place::new().await;
    fs::write(place.path().join("f.txt"), "line 1\n").unwrap();
    let said = merge_a_line(&place, 1, "line 10", "more").await.unwrap();
    assert!(said.contains("brigade-yours/main"), "{said}");
    assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!(fs::read_to_string(place.path().join("f.txt")).unwrap(), "line 1\n");
    assert_eq!(on(&place), "brigade-yours/main");
}

#[tokio::test]
async fn a_branch_that_a_person_rebases_or_has_elsewhere_is_not_moved() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = place.made(1, &worktree).await;
    let before = place.main();
    let git_dir = place.path().join(".git");
    fs::create_dir(git_dir.join("rebase-merge")).unwrap();
    fs::write(git_dir.join("rebase-merge/head-name"), "refs/heads/main\n").unwrap();
    let refused = place.repository.publish(&merge, &super::place::task(1)).await.unwrap_err().to_string();
    assert!(refused.contains("a rebase of main is under way"), "{refused}");
    assert!(GitRepository::check(place.path(), Some("main".to_owned())).is_err());
    fs::remove_dir_all(git_dir.join("rebase-merge")).unwrap();
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("other").display().to_string();
    place.git(&["worktree", "add", "-q", "--detach", &path]);
    fs::create_dir(git_dir.join("worktrees/other/rebase-merge")).unwrap();
    fs::write(git_dir.join("worktrees/other/rebase-merge/head-name"), "refs/heads/main\n").unwrap();
    let refused = place.repository.publish(&merge, &super::place::task(1)).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("a rebase of main is under way in {path}")), "{refused}");
    place.git(&["worktree", "remove", "--force", &path]);
    place.git(&["switch", "-q", "-c", "dev"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("main").display().to_string();
    place.git(&["worktree", "add", "-q", &path, "main"]);
    let refused = place.repository.publish(&merge, &super::place::task(1)).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("main is checked out in {path} too")), "{refused}");
    assert_eq!(place.main(), before);
    place.git(&["worktree", "remove", "--force", &path]);
    assert_eq!(place.repository.publish(&merge, &super::place::task(1)).await.unwrap(), Publish::Done(None));
}
