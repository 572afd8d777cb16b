//! Worktrees: made, found again, edited behind the team's back.

use std::fs;

use brigade::ports::{Provision, Repository, RepositoryError};

use crate::place::{Place, edit, git, git_any, open, put, task};

fn why(error: RepositoryError) -> String {
    error.to_string()
}

#[tokio::test]
async fn where_worktrees_cannot_be_it_is_said_why() {
    let folder = tempfile::tempdir().unwrap();
    let none = why(open(folder.path()).await.err().unwrap());
    assert!(none.contains("needs a git repository") && none.contains("git init"), "{none}");
    git(folder.path(), &["init", "-q", "-b", "main", "."]);
    let empty = why(open(folder.path()).await.err().unwrap());
    assert!(empty.contains("`main` has no commit yet"), "{empty}");
    git(folder.path(), &["commit", "-q", "--allow-empty", "-m", "Begin"]);
    fs::create_dir(folder.path().join("below")).unwrap();
    let below = why(open(&folder.path().join("below")).await.err().unwrap());
    assert!(below.contains("top folder of its repository"), "{below}");
    git(folder.path(), &["checkout", "-q", "--detach"]);
    let detached = why(open(folder.path()).await.err().unwrap());
    assert!(detached.contains("no branch is checked out"), "{detached}");
}

#[tokio::test]
async fn a_worktree_has_its_branch_and_its_state_and_git_does_not_see_it() {
    let place = Place::new().await;
    let worktree = place.provision(3).await;
    assert_eq!((worktree.name.as_str(), worktree.branch.as_str()), (".worktrees/crew-task-3", "brigade/crew/task-3"));
    assert_eq!((worktree.into.as_str(), worktree.left, worktree.warnings.len()), ("main", None, 0));
    assert_eq!(git(&worktree.root, &["symbolic-ref", "--short", "HEAD"]), "brigade/crew/task-3");
    let state = fs::read_to_string(place.state(&worktree)).unwrap();
    assert!(state.contains("\"issueId\": \"3\"") && state.contains("\"issueIdentifier\": \"crew/task-3\""), "{state}");
    assert_eq!(place.status(), "", "the person's checkout is clean");
    assert_eq!(git(&worktree.root, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn after_a_crash_the_worktree_is_found_again_with_all_that_is_in_it() {
    let place = Place::new().await;
    let first = place.provision(3).await;
    put(&first.root, "f.txt", "line 3", "mine");
    git(&first.root, &["commit", "-q", "-a", "-m", "Half"]);
    fs::write(first.root.join("new.txt"), "not committed\n").unwrap();
    // What git leaves when it is killed.
    for lock in ["index.lock", "ORIG_HEAD.lock"] {
        fs::write(place.path().join(".git/worktrees/crew-task-3").join(lock), "").unwrap();
    }
    let again = place.provision(3).await;
    assert_eq!((&again.root, again.left), (&first.root, Some((1, 1))));
    assert_eq!(again.warnings.len(), 2, "{:?}", again.warnings);
    assert_eq!(git_any(&again.root, &["merge", "main"]).0, Some(0), "git works there again");
    assert_eq!(fs::read_to_string(again.root.join("new.txt")).unwrap(), "not committed\n");
    place.commit(3, &again).await;
}

#[tokio::test]
async fn a_worktree_of_another_task_is_left_as_it_is_and_another_path_used() {
    let place = Place::new().await;
    let first = place.provision(3).await;
    fs::write(first.root.join("theirs.txt"), "theirs\n").unwrap();
    edit(&first.root, ".agent/state.json", |text| text.replace("crew/task-3", "crew/task-9"));
    let second = place.provision(3).await;
    assert_eq!((second.name.as_str(), second.branch.as_str()), (".worktrees/crew-task-3-2", "brigade/crew/task-3-2"));
    assert!(second.warnings[0].contains("belongs to `crew/task-9`"), "{:?}", second.warnings);
    assert_eq!(fs::read_to_string(first.root.join("theirs.txt")).unwrap(), "theirs\n");
    let state = fs::read_to_string(place.state(&first)).unwrap();
    assert!(state.contains("crew/task-9"), "{state}");
    assert_eq!(place.provision(3).await.root, second.root, "and found again");
    put(&second.root, "f.txt", "line 3", "mine");
    place.commit(3, &second).await;
    assert_eq!(place.merged(3, &second).await, None);
    assert_eq!(
        place.clear(3, &first).await.unwrap(),
        ".worktrees/crew-task-3 stays: its state does not say that it is this task's"
    );
    assert!(first.root.is_dir());
}

#[tokio::test]
async fn a_malformed_state_is_replaced_after_a_warning_and_the_work_stays() {
    let place = Place::new().await;
    let first = place.provision(3).await;
    fs::write(first.root.join("new.txt"), "mine\n").unwrap();
    fs::write(place.state(&first), "{ torn").unwrap();
    let again = place.provision(3).await;
    assert_eq!(again.root, first.root);
    assert!(again.warnings[0].contains("malformed"), "{:?}", again.warnings);
    let state = fs::read_to_string(place.state(&first)).unwrap();
    assert!(state.contains("crew/task-3"), "{state}");
    assert_eq!(fs::read_to_string(first.root.join("new.txt")).unwrap(), "mine\n");
}

#[tokio::test]
async fn what_is_no_worktree_of_ours_is_never_touched() {
    let place = Place::new().await;
    let folder = place.path().join(".worktrees/crew-task-3");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("precious.txt"), "x").unwrap();
    git(place.path(), &["worktree", "add", "-q", "-b", "own", ".worktrees/crew-task-3-2"]);
    std::os::unix::fs::symlink("/", place.path().join(".worktrees/crew-task-3-3")).unwrap();
    let worktree = place.provision(3).await;
    assert_eq!(worktree.name, ".worktrees/crew-task-3-4");
    assert_eq!(worktree.warnings.len(), 3, "{:?}", worktree.warnings);
    assert_eq!(fs::read_to_string(folder.join("precious.txt")).unwrap(), "x");
    assert!(!place.path().join(".worktrees/crew-task-3-2/.agent").exists());
}

#[tokio::test]
async fn a_worktree_that_a_killed_git_left_half_made_is_made_anew() {
    let place = Place::new().await;
    let first = place.provision(3).await;
    // As far as git had come: the files not all there, no index, its own lock, no state of ours.
    let kept = place.path().join(".git/worktrees/crew-task-3");
    fs::write(kept.join("locked"), "initializing").unwrap();
    fs::remove_file(kept.join("index")).unwrap();
    fs::remove_file(first.root.join("f.txt")).unwrap();
    fs::remove_file(first.root.join(".git")).unwrap();
    fs::remove_dir_all(first.root.join(".agent")).unwrap();
    let again = place.provision(3).await;
    assert_eq!((&again.root, again.left), (&first.root, None));
    assert_eq!(again.warnings.len(), 1, "{:?}", again.warnings);
    assert!(again.root.join("f.txt").exists());
    assert_eq!(git(&again.root, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn a_scratch_worktree_that_is_half_there_keeps_no_team_from_beginning() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = place.made(1, &worktree).await;
    let scratch = place.repository.check_out(&merge).await.unwrap();
    fs::remove_file(scratch.join(".git")).unwrap();
    assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert!(!scratch.exists());
    place.repository.check_out(&merge).await.unwrap();
    fs::remove_dir_all(&scratch).unwrap();
    fs::write(place.path().join(".git/worktrees/crew-merge/locked"), "initializing").unwrap();
    assert_eq!(place.repository.check_out(&merge).await.unwrap(), scratch);
}

#[tokio::test]
async fn a_worktree_that_was_removed_is_made_again_with_its_branch() {
    let place = Place::new().await;
    let first = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
    fs::remove_dir_all(&first.root).unwrap();
    let again = place.provision(3).await;
    assert_eq!((&again.root, again.left), (&first.root, Some((1, 0))));
    assert!(fs::read_to_string(again.root.join("f.txt")).unwrap().contains("mine"));
}

#[tokio::test]
async fn a_git_file_that_leads_elsewhere_is_mended_and_leads_nothing_of_ours_astray() {
    let place = Place::new().await;
    let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
    fs::write(worktree.root.join(".git"), format!("gitdir: {}/.git\n", place.path().display())).unwrap();
    let before = place.main();
    put(&worktree.root, "f.txt", "line 4", "more");
    place.commit(3, &worktree).await;
    assert_eq!(place.main(), before, "nothing was committed to the person's branch");
    let again = place.provision(3).await;
    assert_eq!((again.left, again.warnings.len()), (Some((2, 0)), 1), "{:?}", again.warnings);
    assert_eq!(git(&again.root, &["symbolic-ref", "--short", "HEAD"]), "brigade/crew/task-3");
}

#[tokio::test]
async fn a_branch_that_somebody_checked_out_elsewhere_is_left_to_them() {
    let place = Place::new().await;
    git(place.path(), &["worktree", "add", "-q", "-b", "brigade/crew/task-3", "elsewhere"]);
    let worktree = place.provision(3).await;
    assert_eq!(worktree.branch, "brigade/crew/task-3-2");
}

#[tokio::test]
async fn commits_carry_name_and_task_also_those_the_teammate_made() {
    let place = Place::new().await;
    let worktree = place.provision(3).await;
    put(&worktree.root, "f.txt", "line 3", "own");
    git(&worktree.root, &["commit", "-q", "-a", "-m", "Own\n\nSigned-off-by: x <x@y>"]);
    fs::write(worktree.root.join("left.txt"), "left\n").unwrap();
    let tip = place.commit(3, &worktree).await;
    assert_eq!(git(&worktree.root, &["rev-parse", "HEAD"]), tip);
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
    let wanted = format!("alice (crew) <alice@brigade.invalid>|{trailers}\nPerson <person@example.invalid>|{trailers}");
    assert_eq!(log, wanted);
    assert_eq!(place.commit(3, &worktree).await, tip, "nothing more to do");
}

#[tokio::test]
async fn a_branch_that_was_left_renamed_or_deleted_goes_on_with_all_that_was_done() {
    const COMMIT: &[&str] = &["-c", "user.email=alice@brigade.invalid", "commit", "-q", "-a", "-m", "More"];
    const LEAVE: &[&str] = &["update-ref", "-d", "refs/heads/brigade/crew/task-3"];
    for (deeds, commits) in [
        (vec![&["switch", "-q", "-c", "other"][..], COMMIT], 2),
        (vec![COMMIT, &["branch", "-q", "-m", "other"]], 2),
        (vec![&["checkout", "-q", "--detach"], COMMIT], 2),
        (vec![COMMIT, &["checkout", "-q", "--detach"], LEAVE], 2),
        // The commits are gone with the branch; what they had is still in the files.
        (vec![COMMIT, LEAVE], 1),
        (vec![&["checkout", "-q", "--detach"], &["reset", "-q", "--hard", "main"]], 1),
    ] {
        let place = Place::new().await;
        let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
        place.commit(3, &worktree).await;
        put(&worktree.root, "f.txt", "line 9", "also mine");
        for deed in &deeds {
            git(&worktree.root, deed);
        }
        let was_reset = deeds.last().is_some_and(|deed| deed.contains(&"reset"));
        let again = place.provision(3).await;
        assert_eq!(again.root, worktree.root, "{deeds:?}");
        assert_eq!(again.warnings.len(), 1, "it is said: {:?}", again.warnings);
        let tip = place.commit(3, &again).await;
        assert_eq!(place.git(&["rev-parse", "brigade/crew/task-3"]), tip);
        assert_eq!(place.git(&["rev-list", "--count", &format!("main..{tip}")]), commits.to_string(), "{deeds:?}");
        let text = place.git(&["show", &format!("{tip}:f.txt")]);
        assert!(text.contains("\nmine\n"), "{deeds:?}: {text}");
        assert_eq!(text.contains("\nalso mine\n"), !was_reset, "{deeds:?}: {text}");
    }
}

#[tokio::test]
async fn what_belongs_to_another_branch_is_not_committed() {
    let place = Place::new().await;
    let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
    let tip = place.commit(3, &worktree).await;
    git(&worktree.root, &["switch", "-q", "-c", "other", "main"]);
    put(&worktree.root, "f.txt", "line 9", "elsewhere");
    let refused = place.repository.commit(&worktree, &task(3), "").await.unwrap().unwrap_err();
    assert!(refused.contains("the branch other is checked out"), "{refused}");
    assert!(fs::read_to_string(worktree.root.join("f.txt")).unwrap().contains("elsewhere"));
    git(&worktree.root, &["commit", "-q", "-a", "-m", "Elsewhere"]);
    let refused = place.repository.commit(&worktree, &task(3), "").await.unwrap().unwrap_err();
    assert!(refused.contains("the branch other is checked out"), "what is done there is not left behind: {refused}");
    git(&worktree.root, &["reset", "-q", "--hard", "main"]);
    assert_eq!(place.commit(3, &worktree).await, tip, "with nothing to lose it is switched back");
    assert_eq!(git(&worktree.root, &["branch", "--show-current"]), "brigade/crew/task-3");
    git(&worktree.root, &["checkout", "-q", "--detach", "main"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "On no branch"]);
    let refused = place.repository.commit(&worktree, &task(3), "").await.unwrap().unwrap_err();
    assert!(refused.contains("no branch is checked out"), "{refused}");
}

/// Commits as a teammate does.
fn commit_as_teammate(folder: &std::path::Path, name: &str, arguments: &[&str]) {
    let address = format!("user.email={name}@brigade.invalid");
    git(folder, &[&["-c", &address, "commit", "-q"], arguments].concat());
}

#[tokio::test]
async fn what_was_only_looked_at_is_not_merged() {
    let place = Place::new().await;
    place.git(&["branch", "wip"]);
    let other = place.provision(2).await;
    fs::write(other.root.join("two.txt"), "not verified\n").unwrap();
    git(&other.root, &["add", "two.txt"]);
    commit_as_teammate(&other.root, "bob", &["-m", "Two"]);
    let worktree = place.provision(3).await;
    git(&worktree.root, &["switch", "-q", "wip"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "The person's"]);
    for looked_at in [
        &["switch", "-q", "wip"][..],
        &["switch", "-q", "--detach", "wip"],
        &["switch", "-q", "--detach", "brigade/crew/task-2"],
    ] {
        git(&worktree.root, looked_at);
        let refused = place.repository.commit(&worktree, &task(3), "").await.unwrap().unwrap_err();
        assert!(refused.contains("your work belongs on brigade/crew/task-3"), "{looked_at:?}: {refused}");
    }
    commit_as_teammate(&worktree.root, "alice", &["--allow-empty", "-m", "On top of it"]);
    assert!(place.repository.commit(&worktree, &task(3), "").await.unwrap().is_err());
}

#[tokio::test]
async fn a_branch_that_a_person_works_on_is_not_moved() {
    let place = Place::new().await;
    let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
    let tip = place.commit(3, &worktree).await;
    git(&worktree.root, &["switch", "-q", "-c", "other"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "More"]);
    place.git(&["switch", "-q", "brigade/crew/task-3"]);
    let refused = place.repository.commit(&worktree, &task(3), "").await.unwrap().unwrap_err();
    assert!(refused.contains("the branch other is checked out"), "{refused}");
    assert_eq!(place.git(&["rev-parse", "HEAD"]), tip);
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    // Nor is one that is not a task's, though nothing of its own is on it.
    place.git(&["branch", "release", "main"]);
    place.git(&["branch", "-f", "main", "brigade/crew/task-3"]);
    git(&worktree.root, &["symbolic-ref", "HEAD", "refs/heads/release"]);
    git(&worktree.root, &["reset", "-q", "--hard"]);
    let before = place.git(&["rev-parse", "release"]);
    place.provision(3).await;
    assert_eq!(place.git(&["rev-parse", "release"]), before);
}

#[tokio::test]
async fn conflicts_in_the_middle_are_not_committed() {
    let place = Place::new().await;
    let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
    place.commit(3, &worktree).await;
    put(place.path(), "f.txt", "line 3", "person's");
    place.git(&["commit", "-q", "-a", "-m", "Theirs"]);
    assert_ne!(git_any(&worktree.root, &["merge", "main"]).0, Some(0), "they conflict");
    let refused = place.repository.commit(&worktree, &task(3), "").await.unwrap().unwrap_err();
    assert!(refused.contains("conflicts are not resolved in f.txt"), "{refused}");
}

#[tokio::test]
async fn what_is_merged_and_clean_is_removed_and_nothing_else() {
    let place = Place::new().await;
    let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
    let left = place.clear(3, &worktree).await.unwrap();
    assert!(left.contains("commits that are not merged"), "{left}");
    assert_eq!(place.merged(3, &worktree).await, None);
    fs::write(worktree.root.join("dirty.txt"), "x").unwrap();
    let left = place.clear(3, &worktree).await.unwrap();
    assert!(left.starts_with(".worktrees/crew-task-3 stays:"), "{left}");
    assert_eq!(fs::read_to_string(worktree.root.join("dirty.txt")).unwrap(), "x");
    fs::remove_file(worktree.root.join("dirty.txt")).unwrap();
    assert_eq!(place.clear(3, &worktree).await, None);
    assert!(!worktree.root.exists());
    assert_eq!(place.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
}

#[tokio::test]
async fn many_at_once_each_get_their_own() {
    let place = Place::new().await;
    let many: Vec<_> = (1..=12)
        .map(|id| {
            let repository = place.repository.clone();
            tokio::spawn(async move { repository.provision(&task(id)).await })
        })
        .collect();
    for (id, one) in (1..).zip(many) {
        match one.await.unwrap() {
            Ok(Provision::Ready(worktree)) => assert_eq!(worktree.name, format!(".worktrees/crew-task-{id}")),
            other => panic!("{other:?}"),
        }
    }
}

/// What lies in the folder of worktrees, and what git keeps for them.
fn all_there(place: &Place) -> Vec<String> {
    let folders = [place.path().join(".worktrees"), place.path().join(".git/worktrees")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_removal_that_was_broken_off_is_finished_by_the_next_launch() {
    // Killed behind the renaming, and in the middle of each folder.
    for step in 0..3 {
        let place = Place::new().await;
        let worktree = place.done(3, |root| put(root, "f.txt", "line 3", "mine")).await;
        assert_eq!(place.merged(3, &worktree).await, None);
        let gone = place.path().join(".worktrees/.gone-crew-task-3");
        fs::rename(&worktree.root, &gone).unwrap();
        if step > 0 {
            fs::remove_file(place.path().join(".git/worktrees/crew-task-3/HEAD")).unwrap();
        }
        if step > 1 {
            fs::remove_dir_all(place.path().join(".git/worktrees/crew-task-3")).unwrap();
            fs::remove_dir_all(gone.join(".agent")).unwrap();
        }
        assert_eq!(place.repository.take_up(vec![task(3)]).await.unwrap(), [""; 0], "{step}");
        assert_eq!(all_there(&place), [""; 0], "{step}");
        assert_eq!(place.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main", "{step}");
    }
}

#[tokio::test]
async fn what_a_git_killed_at_its_first_step_leaves_is_no_reason_for_another_name() {
    let place = Place::new().await;
    let half = |place: &Place| {
        fs::create_dir_all(place.path().join(".worktrees/crew-task-3")).unwrap();
        let git_dir = place.path().join(".git/worktrees/crew-task-3");
        fs::create_dir_all(&git_dir).unwrap();
        fs::write(git_dir.join("locked"), "initializing").unwrap();
        fs::write(git_dir.join("gitdir"), "").unwrap();
    };
    half(&place);
    let worktree = place.provision(3).await;
    assert_eq!((worktree.name.as_str(), worktree.warnings.len()), (".worktrees/crew-task-3", 0));
    let next = Place::new().await;
    half(&next);
    assert_eq!(next.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!(next.provision(3).await.name, ".worktrees/crew-task-3");
    assert_eq!(all_there(&next), ["crew-task-3", "crew-task-3"]);
}

#[tokio::test]
async fn a_worktree_whose_update_was_broken_off_has_nothing_of_it() {
    let place = Place::new().await;
    let worktree = place.provision(3).await;
    fs::write(worktree.root.join(".agent/updating"), place.main()).unwrap();
    // Half a checkout: one file is cut short, one is there that the commit does not have.
    fs::write(worktree.root.join("f.txt"), "").unwrap();
    fs::write(worktree.root.join("new.txt"), "").unwrap();
    let again = place.provision(3).await;
    assert_eq!(again.left, None);
    assert_eq!(git(&again.root, &["status", "--porcelain"]), "");
    // What somebody left who worked there stays.
    fs::write(again.root.join("f.txt"), "mine").unwrap();
    assert_eq!(place.provision(3).await.left, Some((0, 1)));
    // Whatever another program says in the state.
    edit(&worktree.root, ".agent/state.json", |text| text.replace("\"working\"", "\"updating\""));
    assert_eq!(place.provision(3).await.left, Some((0, 1)));
    assert_eq!(fs::read_to_string(again.root.join("f.txt")).unwrap(), "mine");
}

#[tokio::test]
async fn a_worktree_that_was_never_begun_with_is_made_anew_whatever_is_missing_in_it() {
    for is_known in [true, false] {
        let place = Place::new().await;
        let path = place.path().join(".worktrees/crew-task-1");
        place.git(&["worktree", "add", "-q", "-b", "brigade/crew/task-1", &path.display().to_string()]);
        fs::write(place.path().join(".worktrees/.making-crew-task-1"), "").unwrap();
        fs::remove_file(path.join("f.txt")).unwrap();
        if !is_known {
            // A git that tidies up after itself begins with what it knows of it.
            fs::remove_dir_all(place.path().join(".git/worktrees/crew-task-1")).unwrap();
        }
        let worktree = place.provision(1).await;
        assert_eq!(worktree.root, path);
        assert_eq!(fs::read_to_string(path.join("f.txt")).unwrap(), super::place::ten());
        assert!(worktree.warnings.concat().contains("was not finished by a git that was killed"));
        let left: Vec<_> = fs::read_dir(place.path().join(".worktrees")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[tokio::test]
async fn what_an_attempt_had_to_leave_goes_with_the_task_where_nothing_is_in_it() {
    let place = Place::new().await;
    let first = place.provision(1).await.root;
    let state = first.join(".agent/state.json");
    let own = fs::read_to_string(&state).unwrap();
    fs::write(&state, own.replace("crew/task-1", "crew/task-7")).unwrap();
    let second = place.provision(1).await;
    assert!(second.name.ends_with("task-1-2"), "{}", second.name);
    fs::write(&state, own).unwrap();
    let third = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(third.root, first);
    assert_eq!(place.merged(1, &third).await, None);
    assert_eq!(place.clear(1, &third).await, None);
    assert!(!first.exists() && !second.root.exists());
    assert_eq!(place.git(&["branch", "--list", "--format=%(refname:short)"]), "main");
}

#[cfg(unix)]
#[tokio::test]
async fn a_launch_waits_for_the_gits_of_the_one_before() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new().await;
    // A filter that a checkout does not get past; it can write nothing of the repository.
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
    fs::write(place.path().join(".gitattributes"), "f.txt filter=slow\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Slow"]);
    place.git(&["config", "filter.slow.smudge", &filter.display().to_string()]);
    let before = place.repository.clone();
    let making = tokio::spawn(async move { before.provision(&task(1)).await });
    while !begun.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let next = open(place.path()).await.unwrap();
    let taking_up = tokio::spawn(async move { next.take_up(Vec::new()).await });
    // It cannot be seen to wait but by not being done.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!taking_up.is_finished());
    fs::write(&goes_on, "").unwrap();
    assert_eq!(taking_up.await.unwrap().unwrap(), [""; 0]);
    assert!(matches!(making.await.unwrap().unwrap(), Provision::Ready(_)));
}

#[tokio::test]
async fn what_a_power_cut_left_of_a_worktrees_git_folder_is_made_good() {
    type Spoil = fn(&Place, &std::path::Path);
    let cases: [(&str, Spoil); 7] = [
        ("an empty index", |_, git_dir| fs::write(git_dir.join("index"), "").unwrap()),
        ("a spoiled index", |_, git_dir| fs::write(git_dir.join("index"), "no index").unwrap()),
        ("an empty HEAD", |_, git_dir| fs::write(git_dir.join("HEAD"), "").unwrap()),
        ("a spoiled HEAD", |_, git_dir| fs::write(git_dir.join("HEAD"), "no head").unwrap()),
        ("a base that is no commit", |place, _| {
            let base = place.path().join(".worktrees/crew-task-1/.agent/base");
            fs::write(base, "f".repeat(40) + "\n").unwrap();
        }),
        ("an empty branch", |place, _| {
            fs::write(place.path().join(".git/refs/heads/brigade/crew/task-1"), "").unwrap()
        }),
        ("a state that is a folder", |place, _| {
            let state = place.path().join(".worktrees/crew-task-1/.agent/state.json");
            fs::remove_file(&state).unwrap();
            fs::create_dir_all(state.join("below")).unwrap();
        }),
    ];
    for (case, spoil) in cases {
        let place = Place::new().await;
        let first = place.done(1, |root| put(root, "f.txt", "line 2", "committed")).await;
        put(&first.root, "f.txt", "line 4", "not committed");
        spoil(&place, &place.path().join(".git/worktrees/crew-task-1"));
        // As often as whoever claims a task tries.
        let mut tries = 0;
        let again = loop {
            match place.repository.provision(&task(1)).await {
                Ok(Provision::Ready(worktree)) => break worktree,
                other => assert!(tries < 2, "{case}: {other:?}"),
            }
            tries += 1;
        };
        assert!(first.root.join("f.txt").exists(), "{case}");
        if again.root == first.root {
            let text = fs::read_to_string(again.root.join("f.txt")).unwrap();
            assert!(text.contains("not committed") && text.contains("\ncommitted"), "{case}: {text}");
        } else {
            let told = again.warnings.concat();
            assert!(told.contains("another one is used") || told.contains("is not used"), "{case}: {told}");
        }
        put(&again.root, "f.txt", "line 8", "done");
        place.commit(1, &again).await;
        assert_eq!(place.merged(1, &again).await, None, "{case}");
        assert!(place.on_main("f.txt").contains("\ndone"), "{case}");
    }
}

#[tokio::test]
async fn work_in_a_worktree_that_was_marked_as_being_made_is_kept() {
    let place = Place::new().await;
    let path = place.path().join(".worktrees/crew-task-1");
    place.git(&["worktree", "add", "-q", "-b", "brigade/crew/task-1", &path.display().to_string()]);
    fs::write(place.path().join(".worktrees/.making-crew-task-1"), "").unwrap();
    fs::write(path.join("mine.txt"), "mine").unwrap();
    let worktree = place.provision(1).await;
    assert_ne!(worktree.root, path);
    assert!(worktree.warnings.concat().contains("somebody has worked in it"), "{:?}", worktree.warnings);
    assert_eq!(fs::read_to_string(path.join("mine.txt")).unwrap(), "mine");
}

#[tokio::test]
async fn what_git_knows_of_a_worktree_that_is_gone_keeps_no_task_from_its_own() {
    let place = Place::new().await;
    let left = place.path().join(".git/worktrees/crew-task-1");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("locked"), "initializing").unwrap();
    let pointer = place.path().join(".worktrees/crew-task-1/.git");
    fs::write(left.join("gitdir"), format!("{}\n", pointer.display())).unwrap();
    fs::write(left.join("commondir"), "").unwrap();
    assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    for id in [1, 2] {
        assert_eq!(place.provision(id).await.warnings, [""; 0]);
    }
}
