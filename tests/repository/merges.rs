//! Merges: every line accounted for, whatever the sides did; the branch is whole at every moment.

use std::fs;
use std::path::Path;

use brigade::ports::{MergeTry, Provision, Publish, Repository};

use crate::lines::{assert_all_there, missing};
use crate::place::{Place, edit, git, git_any, open, put, task};

/// The branches of a task in the repository, and what stands in its refs.
fn refs(place: &Place) -> String {
    place.git(&["for-each-ref", "--format=%(refname)", "refs/brigade"])
}

#[tokio::test]
async fn branches_that_touch_the_same_file_are_merged_with_all_their_lines() {
    let place = Place::new().await;
    let mut worktrees = Vec::new();
    for (id, behind) in [(1, "line 2"), (2, "line 5"), (3, "line 8")] {
        worktrees.push(place.done(id, |root| put(root, "f.txt", behind, &format!("of task {id}"))).await);
    }
    for (id, worktree) in (1..).zip(&worktrees) {
        assert_eq!(place.merged(id, worktree).await, None);
        assert_eq!(place.clear(id, worktree).await, None);
    }
    for id in 1..=3 {
        assert!(place.on_main("f.txt").contains(&format!("of task {id}")));
    }
    assert_all_there(place.path(), "main");
    assert_eq!(fs::read_to_string(place.path().join("f.txt")).unwrap().trim_end(), place.on_main("f.txt"));
    assert_eq!(place.status(), "");
    place.git(&["fsck", "--strict", "--no-dangling"]);
}

/// Two tasks put lines at the same place; the second one's author merges as `resolve` does.
async fn conflict(resolve: impl FnOnce(&Path)) -> (Place, brigade::ports::Worktree) {
    let place = Place::new().await;
    let first = place.done(1, |root| put(root, "f.txt", "line 5", "first")).await;
    let second = place.done(2, |root| put(root, "f.txt", "line 5", "second")).await;
    assert_eq!(place.merged(1, &first).await, None);
    let before = place.main();
    let evidence = place.refused(2, &second).await;
    assert!(evidence.contains("conflict in f.txt") && evidence.contains("git merge main"), "{evidence}");
    assert!(evidence.contains("+second") && evidence.contains("<<<<<<<"), "{evidence}");
    assert_eq!((place.main(), place.status()), (before, String::new()), "nothing is half merged");
    assert_ne!(git_any(&second.root, &["merge", "main"]).0, Some(0));
    resolve(&second.root);
    git(&second.root, &["add", "-A"]);
    git(&second.root, &["commit", "-q", "--no-edit"]);
    place.commit(2, &second).await;
    (place, second)
}

fn without_marks(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with(['<', '=', '>'])).map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn a_conflict_goes_to_its_author_and_is_merged_once_all_lines_are_kept() {
    let (place, second) = conflict(|root| edit(root, "f.txt", |text| without_marks(&text))).await;
    assert_eq!(place.merged(2, &second).await, None);
    let text = place.on_main("f.txt");
    assert!(text.contains("first\n") && text.contains("second\n"), "{text}");
    assert_all_there(place.path(), "main");
}

#[tokio::test]
async fn a_resolution_that_drops_the_others_lines_is_refused_until_it_says_so() {
    let (place, second) = conflict(|root| {
        git(root, &["checkout", "--ours", "f.txt"]);
    })
    .await;
    let refused = place.refused(2, &second).await;
    assert!(refused.contains("leaves out lines") && refused.contains("\n  first"), "{refused}");
    assert_all_there(place.path(), "main");
    git(&second.root, &["commit", "-q", "--amend", "--no-edit", "--trailer", "Brigade-Drops: second says it all"]);
    place.commit(2, &second).await;
    assert_eq!(place.merged(2, &second).await, None);
    assert!(!place.on_main("f.txt").contains("first"));
    assert_all_there(place.path(), "main");
}

#[tokio::test]
async fn the_checker_sees_a_line_that_a_merge_lost() {
    let place = Place::new().await;
    place.git(&["checkout", "-q", "-b", "side"]);
    put(place.path(), "f.txt", "line 5", "side");
    place.git(&["commit", "-q", "-a", "-m", "Side"]);
    place.git(&["checkout", "-q", "main"]);
    place.git(&["merge", "-q", "--no-ff", "-s", "ours", "side", "-m", "Lose it"]);
    let lost = missing(place.path(), "main");
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].1, ("f.txt".to_owned(), "side".to_owned()));
}

#[tokio::test]
async fn a_merge_driver_that_drops_lines_without_a_conflict_is_not_believed() {
    let place = Place::new().await;
    place.git(&["config", "merge.mine.driver", "true"]);
    fs::write(place.path().join(".gitattributes"), "f.txt merge=mine -diff\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Attributes"]);
    let first = place.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let second = place.done(2, |root| put(root, "f.txt", "line 8", "second")).await;
    assert_eq!(place.merged(1, &first).await, None);
    let refused = place.refused(2, &second).await;
    assert!(refused.contains("would drop lines") && refused.contains("\n  second"), "{refused}");
    assert_all_there(place.path(), "main");
}

#[tokio::test]
async fn a_file_that_was_renamed_keeps_the_lines_others_added_to_it() {
    let place = Place::new().await;
    let first = place.done(1, |root| {
        git(root, &["mv", "f.txt", "g.txt"]);
    });
    let first = first.await;
    let second = place.done(2, |root| put(root, "f.txt", "line 5", "second")).await;
    assert_eq!(place.merged(1, &first).await, None);
    assert_eq!(place.merged(2, &second).await, None);
    assert!(place.on_main("g.txt").contains("second"));
}

#[tokio::test]
async fn what_one_deleted_and_another_changed_is_a_conflict() {
    let place = Place::new().await;
    let first = place.done(1, |root| fs::remove_file(root.join("f.txt")).unwrap()).await;
    let second = place.done(2, |root| put(root, "f.txt", "line 5", "second")).await;
    assert_eq!(place.merged(1, &first).await, None);
    assert!(place.refused(2, &second).await.contains("conflict in f.txt"));
}

#[tokio::test]
async fn a_branch_that_changes_control_files_is_refused() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| edit(root, "brigade.toml", |_| "mine\n".to_owned())).await;
    let refused = place.refused(1, &worktree).await;
    assert!(refused.contains("brigade.toml"), "{refused}");
    // Another file here, the same one where case does not count.
    let worktree = place.done(2, |root| fs::write(root.join("Brigade.toml"), "mine\n").unwrap()).await;
    let refused = place.refused(2, &worktree).await;
    assert!(refused.contains("Brigade.toml"), "{refused}");
}

#[tokio::test]
async fn who_moves_the_branch_meanwhile_loses_nothing() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = place.made(1, &worktree).await;
    put(place.path(), "f.txt", "line 8", "person's");
    place.git(&["commit", "-q", "-a", "-m", "Person"]);
    let before = place.main();
    assert_eq!(place.repository.publish(&merge, &task(1)).await.unwrap(), Publish::Moved);
    assert_eq!((place.main(), refs(&place)), (before, String::new()));
    assert_eq!(place.merged(1, &worktree).await, None);
    let text = place.on_main("f.txt");
    assert!(text.contains("mine") && text.contains("person's"), "{text}");
    assert_all_there(place.path(), "main");
}

#[tokio::test]
async fn a_kill_between_the_branch_and_the_checkout_is_made_good_by_the_next_launch() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    let merge = place.made(1, &worktree).await;
    // What the one transaction leaves when the process ends right behind it.
    let (onto, commit) = (merge.onto.as_str(), merge.commit.as_str());
    place.git(&["update-ref", "refs/heads/main", commit, onto]);
    place.git(&["update-ref", "refs/brigade/crew/merged/task-1", commit]);
    place.git(&["update-ref", "refs/worktree/brigade-checkout", onto]);
    assert_ne!(place.status(), "", "the checkout is behind");
    assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0]);
    assert_eq!(place.status(), "");
    assert!(fs::read_to_string(place.path().join("f.txt")).unwrap().contains("mine"));
    // Who claims the task next is told that it is done.
    match place.repository.provision(&task(1)).await.unwrap() {
        Provision::Merged { commit: found, summary, worktree: found_in } => {
            assert_eq!((found.as_str(), summary.as_str(), &found_in.root), (commit, "Done so.", &worktree.root));
        }
        other @ Provision::Ready(_) => panic!("{other:?}"),
    }
    assert_eq!(place.clear(1, &worktree).await, None);
    assert_eq!(refs(&place), "");
}

/// What a checkout that was broken off leaves: the branch moved by two merges, some files of the first one written and one of them
/// torn, the index as it was before.
async fn broken_off(torn: &str) -> Place {
    let place = Place::new().await;
    let onto = place.main();
    let begin = fs::read_to_string(place.path().join("f.txt")).unwrap();
    let first = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    place.merged(1, &first).await;
    let after_first = fs::read_to_string(place.path().join("f.txt")).unwrap();
    let second = place
        .done(2, |root| {
            put(root, "f.txt", "line 8", "also mine");
            fs::write(root.join("new.txt"), "one\ntwo\n").unwrap();
        })
        .await;
    place.merged(2, &second).await;
    place.git(&["update-ref", "refs/worktree/brigade-checkout", &onto]);
    place.git(&["read-tree", &onto]);
    assert_ne!(begin, after_first);
    fs::write(place.path().join("f.txt"), after_first).unwrap();
    fs::write(place.path().join("new.txt"), torn).unwrap();
    // A launch knows nothing of what the process before it was at.
    Place { repository: open(place.path()).await.unwrap(), ..place }
}

#[tokio::test]
async fn a_checkout_that_was_broken_off_is_finished_by_the_next_launch() {
    for torn in ["", "one\n", "one\ntwo\n"] {
        let place = broken_off(torn).await;
        assert_eq!(place.repository.take_up(Vec::new()).await.unwrap(), [""; 0], "{torn:?}");
        assert_eq!(place.status(), "", "{torn:?}");
        assert_eq!(fs::read_to_string(place.path().join("new.txt")).unwrap(), "one\ntwo\n");
        assert!(fs::read_to_string(place.path().join("f.txt")).unwrap().contains("also mine"));
        assert!(!refs(&place).contains("checkout"), "{torn:?}");
    }
}

#[tokio::test]
async fn what_the_person_wrote_into_a_checkout_that_was_broken_off_stays() {
    let place = broken_off("one\nand what the person wrote\n").await;
    let told = place.repository.take_up(Vec::new()).await.unwrap();
    assert!(told.len() == 1 && told[0].contains("new.txt"), "{told:?}");
    let text = fs::read_to_string(place.path().join("new.txt")).unwrap();
    assert_eq!(text, "one\nand what the person wrote\n");
    // What the merge had written is back to what the index says, so that nothing of it is taken for the person's.
    assert_eq!(place.git(&["diff", "--name-only"]), "");
}

#[tokio::test]
async fn a_kill_behind_the_boards_completion_leaves_nothing_but_refs_that_the_next_launch_removes() {
    let place = Place::new().await;
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(place.merged(1, &worktree).await, None);
    assert_eq!(refs(&place), "refs/brigade/crew/merged/task-1");
    assert_eq!(place.repository.take_up(vec![task(1)]).await.unwrap(), [""; 0]);
    assert_eq!(place.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
    assert!(!worktree.root.exists());
}

#[tokio::test]
async fn the_scratch_worktree_holds_the_merge_and_what_git_ignores() {
    let place = Place::new().await;
    fs::write(place.path().join(".gitignore"), "build/\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Ignore"]);
    let first = place.done(1, |root| put(root, "f.txt", "line 2", "first")).await;
    let merge = place.made(1, &first).await;
    let scratch = place.repository.check_out(&merge).await.unwrap();
    fs::create_dir(scratch.join("build")).unwrap();
    fs::write(scratch.join("build/cache"), "x").unwrap();
    fs::write(scratch.join("litter.txt"), "x").unwrap();
    edit(&scratch, "f.txt", |_| "spoiled by a verify\n".to_owned());
    assert!(matches!(place.repository.publish(&merge, &task(1)).await.unwrap(), Publish::Done(None)));
    let second = place.done(2, |root| put(root, "f.txt", "line 8", "second")).await;
    let merge = place.made(2, &second).await;
    assert_eq!(place.repository.check_out(&merge).await.unwrap(), scratch);
    let text = fs::read_to_string(scratch.join("f.txt")).unwrap();
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert!(scratch.join("build/cache").exists() && !scratch.join("litter.txt").exists());
    place.repository.take_up(Vec::new()).await.unwrap();
    assert!(!scratch.exists(), "a new launch begins with none");
}

#[tokio::test]
async fn what_is_merged_already_is_not_merged_again() {
    let place = Place::new().await;
    let worktree = place.provision(1).await;
    assert_eq!(place.try_merge(1, &worktree).await, MergeTry::Nothing(place.main()));
}
