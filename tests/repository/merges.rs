//! Merges: every line is accounted for in all combinations, and the branch is complete at every moment.

use std::fs;
use std::path::Path;

use brigade::ports::{MergeOutcome, PublishOutcome, Repository, Worktree, WorktreeOutcome};

use crate::harness::{TestRepository, edit, git, git_output, insert_after, notice_texts, task, ten_lines};
use crate::lines::{assert_no_lines_lost, missing};

/// The branches of a task, and the content of its refs.
fn refs(repo: &TestRepository) -> String {
    repo.git(&["for-each-ref", "--format=%(refname)", "refs/brigade"])
}

#[tokio::test]
async fn branches_changing_same_file_merge_with_all_lines() {
    let repo = TestRepository::new().await;
    let mut worktrees = Vec::new();
    for (id, behind) in [(1, "line 2"), (2, "line 5"), (3, "line 8")] {
        worktrees
            .push(repo.worktree_with(id, |root| insert_after(root, "f.txt", behind, &format!("of task {id}"))).await);
    }
    for worktree in &worktrees {
        assert_eq!(repo.merge(worktree).await, None);
        assert_eq!(repo.clean_up(worktree).await, None);
    }
    for id in 1..=3 {
        assert!(repo.team_file("f.txt").contains(&format!("of task {id}")));
    }
    assert_no_lines_lost(repo.path(), "brigade/crew");
    assert_eq!(fs::read_to_string(repo.team_worktree().join("f.txt")).unwrap().trim_end(), repo.team_file("f.txt"));
    assert_eq!((repo.checkout_status(), repo.team_status()), (String::new(), String::new()));
    repo.git(&["fsck", "--strict", "--no-dangling"]);
}

/// Two tasks add lines at the same place; the author of the second one merges with `resolve`.
async fn conflict(resolve: impl FnOnce(&Path)) -> (TestRepository, Worktree) {
    conflict_of(["first", "second"], resolve).await
}

/// The same, with these lines.
async fn conflict_of(lines: [&str; 2], resolve: impl FnOnce(&Path)) -> (TestRepository, Worktree) {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 5", lines[0])).await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 5", lines[1])).await;
    assert_eq!(repo.merge(&first).await, None);
    let before = repo.team_tip();
    let evidence = repo.refused_merge(&second).await;
    assert!(evidence.contains("conflict in f.txt") && evidence.contains("git merge brigade/crew"), "{evidence}");
    assert!(
        evidence.contains(&format!("+{}", lines[1].lines().next().unwrap())) && evidence.contains("<<<<<<<"),
        "{evidence}"
    );
    assert_eq!((repo.team_tip(), repo.checkout_status()), (before, String::new()), "the failed merge left changes");
    assert_ne!(git_output(&second.root, &["merge", "brigade/crew"]).0, Some(0));
    resolve(&second.root);
    git(&second.root, &["add", "-A"]);
    git(&second.root, &["commit", "-q", "--no-edit"]);
    repo.commit(&second).await;
    (repo, second)
}

fn without_marks(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with(['<', '=', '>'])).map(|line| format!("{line}\n")).collect()
}

/// Resolves the conflict by joining its lines.
fn join(root: &Path) {
    edit(root, "f.txt", |text| without_marks(&text).replace("second\nfirst\n", "first, second\n"));
}

#[tokio::test]
async fn resolved_conflict_keeping_all_lines_is_merged() {
    let (repo, second) = conflict(|root| edit(root, "f.txt", |text| without_marks(&text))).await;
    assert_eq!(repo.merge(&second).await, None);
    let text = repo.team_file("f.txt");
    assert!(text.contains("first\n") && text.contains("second\n"), "{text}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn resolution_dropping_lines_needs_trailer() {
    let (repo, second) = conflict(|root| {
        git(root, &["checkout", "--ours", "f.txt"]);
    })
    .await;
    let refused = repo.refused_merge(&second).await;
    assert!(refused.contains("drops lines that one side added"), "{refused}");
    assert!(refused.contains("\nf.txt, added by the merged branch:\n  first\n"), "{refused}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
    git(&second.root, &["commit", "-q", "--amend", "--no-edit", "--trailer", "Brigade-Drops: second says it all"]);
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    assert!(!repo.team_file("f.txt").contains("first"));
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn resolution_joining_lines_is_merged() {
    let (repo, second) = conflict(join).await;
    assert_eq!(repo.merge(&second).await, None);
    assert!(repo.team_file("f.txt").contains("\nfirst, second\n"));
}

#[tokio::test]
async fn later_commit_may_join_lines_of_conflict() {
    let (repo, second) =
        conflict_of(["import os, a, c", "import os, a, b"], |root| edit(root, "f.txt", |text| without_marks(&text)))
            .await;
    edit(&second.root, "f.txt", |text| text.replace("import os, a, b\nimport os, a, c\n", "import os, a, b, c\n"));
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    assert!(repo.team_file("f.txt").contains("\nimport os, a, b, c\n"));
}

#[tokio::test]
async fn later_commit_dropping_joined_words_is_refused() {
    let (repo, second) = conflict(join).await;
    edit(&second.root, "f.txt", |text| text.replace("first, second", "second"));
    repo.commit(&second).await;
    let refused = repo.refused_merge(&second).await;
    assert!(refused.contains("others added since it was created:\n  first\n"), "{refused}");
}

#[tokio::test]
async fn joined_lines_may_move_later() {
    let (repo, second) = conflict(join).await;
    git(&second.root, &["mv", "f.txt", "g.txt"]);
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    assert!(repo.team_file("g.txt").contains("\nfirst, second\n"));
}

#[tokio::test]
async fn dropped_lines_can_be_put_back_later() {
    for (before, after) in [("line 9\n", "line 9\nfirst\n"), ("second\n", "first second\n")] {
        let (repo, second) = conflict(|root| {
            git(root, &["checkout", "--ours", "f.txt"]);
        })
        .await;
        assert!(repo.refused_merge(&second).await.contains("\n  first\n"));
        // As the author does in the worktree; a commit on top of the merge has it.
        edit(&second.root, "f.txt", |text| text.replace(before, after));
        repo.commit(&second).await;
        assert_eq!(repo.merge(&second).await, None);
        assert!(repo.team_file("f.txt").contains(after));
    }
}

#[tokio::test]
async fn conflict_markers_are_not_merged() {
    let (repo, second) = conflict(|_| {}).await;
    let refused = repo.refused_merge(&second).await;
    assert!(refused.contains("conflict markers are left in f.txt"), "{refused}");
    edit(&second.root, "f.txt", |text| without_marks(&text));
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    // A file that is about markers.
    let third = repo
        .worktree_with(3, |root| fs::write(root.join("doc.md"), "<<<<<<< mine\n=======\n>>>>>>> yours\n").unwrap())
        .await;
    assert_eq!(repo.merge(&third).await, None);
}

#[tokio::test]
async fn separator_of_conflict_is_not_merged() {
    for separator in ["=======", "||||||| 1234567"] {
        let resolution = format!("line 5\nsecond\n{separator}\nfirst\n");
        let (repo, second) =
            conflict(|root| edit(root, "f.txt", |_| ten_lines().replace("line 5\n", &resolution))).await;
        let refused = repo.refused_merge(&second).await;
        assert!(refused.contains("conflict markers are left in f.txt"), "{separator}: {refused}");
        edit(&second.root, "f.txt", |text| text.replace(&format!("{separator}\n"), ""));
        repo.commit(&second).await;
        assert_eq!(repo.merge(&second).await, None);
    }
}

#[tokio::test]
async fn headings_that_look_like_separators_are_merged() {
    let resolution = "line 5\nSecond\n=======\nFirst\n=======\n";
    let (repo, second) = conflict_of(["First\n=======", "Second\n======="], |root| {
        edit(root, "f.txt", |_| ten_lines().replace("line 5\n", resolution));
    })
    .await;
    assert_eq!(repo.merge(&second).await, None);
    assert!(repo.team_file("f.txt").contains(resolution));
}

#[tokio::test]
async fn resolution_dropping_other_lines_is_refused() {
    // The change next to the conflict is one of the first task; git merges it.
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| {
        insert_after(root, "f.txt", "line 5", "first");
        insert_after(root, "f.txt", "line 9", "other");
    });
    let first = first.await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 5", "second")).await;
    assert_eq!(repo.merge(&first).await, None);
    repo.fetch_target(&second);
    assert_ne!(git_output(&second.root, &["merge", "brigade/crew"]).0, Some(0));
    edit(&second.root, "f.txt", |text| {
        without_marks(&text).replace("second\nfirst\n", "second first\n").replace("other\nline 10\n", "line 10\n")
    });
    fs::write(second.root.join("new.txt"), "new\n").unwrap();
    git(&second.root, &["add", "f.txt"]);
    git(&second.root, &["commit", "-q", "--no-edit"]);
    repo.commit(&second).await;
    let refused = repo.refused_merge(&second).await;
    assert!(refused.contains("\nf.txt, added by the merged branch:\n  other\n"), "{refused}");
    assert!(!refused.contains("  first"), "{refused}");
    // The reason may be in a later commit: remaining changes are committed on top of the merge.
    git(&second.root, &["commit", "-q", "--amend", "--no-edit", "--trailer", "Brigade-Drops: not needed"]);
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
}

/// Changes the file at a random place. Every line has words of its own.
fn change_at_random(root: &Path, random: &mut fastrand::Rng, name: &str) {
    edit(root, "f.txt", |text| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for change in 0..3 {
            let index = random.usize(..lines.len());
            match random.u8(..3) {
                0 => lines.insert(index, format!("{name}{change} shared")),
                1 => lines[index].push_str(&format!(" {name}{change}")),
                _ => lines[index] = format!("{name}{change}, {}", lines[index]),
            }
        }
        lines.join("\n") + "\n"
    });
}

/// Resolves all conflicts of a file: keeps all lines, or joins the lines of each conflict.
fn resolve_at_random(text: &str, random: &mut fastrand::Rng) -> String {
    let (mut lines, mut hunk) = (Vec::new(), None::<Vec<&str>>);
    for line in text.lines() {
        match &mut hunk {
            None if line.starts_with("<<<<<<< ") => hunk = Some(Vec::new()),
            None => lines.push(line.to_owned()),
            Some(of_hunk) if line.starts_with(">>>>>>> ") => {
                let of_hunk = of_hunk.iter().filter(|line| **line != "=======");
                match random.bool() {
                    true => lines.extend(of_hunk.map(|line| (*line).to_owned())),
                    false => lines.push(of_hunk.copied().collect::<Vec<_>>().join(" ")),
                }
                hunk = None;
            }
            Some(of_hunk) => of_hunk.push(line),
        }
    }
    lines.join("\n") + "\n"
}

#[tokio::test]
async fn random_resolutions_lose_nothing() {
    let (mut accepted, mut joined_later, mut refused) = (0, 0, 0);
    for seed in 0..32 {
        let mut random = fastrand::Rng::with_seed(seed);
        let repo = TestRepository::new().await;
        let first = repo.worktree_with(1, |root| change_at_random(root, &mut random, "first")).await;
        let second = repo.worktree_with(2, |root| change_at_random(root, &mut random, "second")).await;
        let sides = [&first, &second].map(|side| fs::read_to_string(side.root.join("f.txt")).unwrap());
        assert_eq!(repo.merge(&first).await, None);
        repo.fetch_target(&second);
        if git_output(&second.root, &["merge", "-q", "brigade/crew"]).0 == Some(0) {
            continue;
        }
        let (is_complete, is_later) = (random.bool(), random.bool());
        let marked = fs::read_to_string(second.root.join("f.txt")).unwrap();
        if is_later {
            // The merge keeps all lines. A commit after it joins them.
            fs::write(second.root.join("f.txt"), without_marks(&marked)).unwrap();
            git(&second.root, &["commit", "-q", "-a", "--no-edit"]);
        }
        let mut lines: Vec<String> = resolve_at_random(&marked, &mut random).lines().map(str::to_owned).collect();
        if !is_complete {
            lines.remove(random.usize(..lines.len()));
        }
        fs::write(second.root.join("f.txt"), lines.join("\n") + "\n").unwrap();
        if !is_later {
            git(&second.root, &["commit", "-q", "-a", "--no-edit"]);
        }
        repo.commit(&second).await;
        match repo.try_merge(&second).await {
            MergeOutcome::Created(_) if is_later => joined_later += 1,
            MergeOutcome::Created(_) => accepted += 1,
            other => {
                assert!(!is_complete, "seed {seed}: {other:?}");
                refused += 1;
                continue;
            }
        }
        let merged = fs::read_to_string(second.root.join("f.txt")).unwrap();
        let is_word = |letter: char| letter.is_alphanumeric();
        // After the merge, the author may remove lines that no other task added.
        let must_survive = |word: &&str| !is_later || word.starts_with("first");
        for word in sides.iter().flat_map(|side| side.split(|letter| !is_word(letter))).filter(must_survive) {
            assert!(
                merged.split(|letter| !is_word(letter)).any(|other| other == word),
                "seed {seed}: `{word}` is lost"
            );
        }
    }
    assert!(
        accepted > 4 && joined_later > 4 && refused > 2,
        "{accepted} accepted, {joined_later} of a later commit, {refused} refused"
    );
}

#[tokio::test]
async fn test_checker_finds_line_lost_by_merge() {
    let repo = TestRepository::new().await;
    repo.git(&["checkout", "-q", "-b", "side"]);
    insert_after(repo.path(), "f.txt", "line 5", "side");
    repo.git(&["commit", "-q", "-a", "-m", "Side"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.git(&["merge", "-q", "--no-ff", "-s", "ours", "side", "-m", "Lose it"]);
    let lost = missing(repo.path(), "main");
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].1, ("f.txt".to_owned(), "side".to_owned()));
}

#[tokio::test]
async fn merge_driver_dropping_lines_is_refused() {
    let repo = TestRepository::new().await;
    repo.git(&["config", "merge.mine.driver", "true"]);
    fs::write(repo.path().join(".gitattributes"), "f.txt merge=mine -diff\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Attributes"]);
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "first")).await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 8", "second")).await;
    assert_eq!(repo.merge(&first).await, None);
    let refused = repo.refused_merge(&second).await;
    assert!(refused.contains("would drop lines") && refused.contains("\n  second"), "{refused}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

#[tokio::test]
async fn renamed_file_keeps_lines_added_by_others() {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| {
        git(root, &["mv", "f.txt", "g.txt"]);
    });
    let first = first.await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 5", "second")).await;
    assert_eq!(repo.merge(&first).await, None);
    assert_eq!(repo.merge(&second).await, None);
    assert!(repo.team_file("g.txt").contains("second"));
}

#[tokio::test]
async fn delete_and_change_of_file_is_a_conflict() {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| fs::remove_file(root.join("f.txt")).unwrap()).await;
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 5", "second")).await;
    assert_eq!(repo.merge(&first).await, None);
    assert!(repo.refused_merge(&second).await.contains("conflict in f.txt"));
}

#[tokio::test]
async fn branch_changing_control_files_is_refused() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| edit(root, "brigade.toml", |_| "mine\n".to_owned())).await;
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("brigade.toml"), "{refused}");
    // Another file here; the same file on a file system that ignores case.
    let worktree = repo.worktree_with(2, |root| fs::write(root.join("Brigade.toml"), "mine\n").unwrap()).await;
    let refused = repo.refused_merge(&worktree).await;
    assert!(refused.contains("Brigade.toml"), "{refused}");
}

#[tokio::test]
async fn branch_moved_during_merge_is_merged_again() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.create_merge(&worktree).await;
    insert_after(&repo.team_worktree(), "f.txt", "line 8", "person's");
    git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Person"]);
    let before = repo.team_tip();
    assert_eq!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Moved);
    assert_eq!(repo.git(&["rev-parse", "brigade/crew^"]), before, "it has the commit of the person now");
    assert_eq!(repo.provision(1).await.root, worktree.root, "the task counts as merged");
    assert_eq!(repo.merge(&worktree).await, None);
    let text = repo.team_file("f.txt");
    assert!(text.contains("mine") && text.contains("person's"), "{text}");
    assert_no_lines_lost(repo.path(), "brigade/crew");
}

/// Another task's author, or a person, may merge it by its id.
#[tokio::test]
async fn merge_that_is_not_verified_does_not_count() {
    let repo = TestRepository::new().await;
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "first")).await;
    let trial = repo.create_merge(&first).await;
    let second = repo.provision(2).await;
    git(&second.root, &["merge", "-q", "--no-ff", &trial.commit]);
    repo.commit(&second).await;
    assert_eq!(repo.merge(&second).await, None);
    assert_eq!(repo.git(&["merge-base", "--is-ancestor", &trial.commit, "brigade/crew"]), "");
    assert!(matches!(repo.repository.provision(&task(1)).await.unwrap(), WorktreeOutcome::Ready(_)));
    repo.launch().await;
    assert_eq!(refs(&repo), "refs/brigade/crew/merged/task-2", "a launch removes those of earlier verifies");
}

#[tokio::test]
async fn refs_of_completed_task_are_removed_at_launch() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(refs(&repo), "refs/brigade/crew/merged/task-1\nrefs/brigade/crew/trial/task-1");
    assert_eq!(notice_texts(repo.repository.prepare_launch(vec![task(1)]).await.unwrap().notices), [""; 0]);
    assert_eq!(repo.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/brigade/crew\nrefs/heads/main");
    assert!(!worktree.root.exists());
}

#[tokio::test]
async fn merge_worktree_keeps_ignored_files_between_merges() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join(".gitignore"), "build/\n").unwrap();
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "Ignore"]);
    let first = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "first")).await;
    let merge = repo.create_merge(&first).await;
    let scratch = repo.repository.check_out(&merge).await.unwrap();
    fs::create_dir(scratch.join("build")).unwrap();
    fs::write(scratch.join("build/cache"), "x").unwrap();
    fs::write(scratch.join("litter.txt"), "x").unwrap();
    edit(&scratch, "f.txt", |_| "spoiled by a verify\n".to_owned());
    assert!(matches!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Done(None)));
    let second = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 8", "second")).await;
    let merge = repo.create_merge(&second).await;
    assert_eq!(repo.repository.check_out(&merge).await.unwrap(), scratch);
    let text = fs::read_to_string(scratch.join("f.txt")).unwrap();
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert!(scratch.join("build/cache").exists() && !scratch.join("litter.txt").exists());
    repo.launch().await;
    assert!(!scratch.exists(), "a new launch kept the folder");
}

#[tokio::test]
async fn merged_branch_is_not_merged_again() {
    let repo = TestRepository::new().await;
    let worktree = repo.provision(1).await;
    assert_eq!(repo.try_merge(&worktree).await, MergeOutcome::UpToDate(repo.team_tip()));
}
