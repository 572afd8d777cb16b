//! The person takes the team's work over in another form: by a squash, a rebase, cherry-picks or by hand.

use std::fs;
use std::path::Path;

use brigade::domain::task::TaskId;
use brigade::git::{DriverOptions, GitRepository};
use brigade::ports::{RecordedMerge, Repository};

use super::harness::{
    LAUNCH, MERGE_TAKEN, TestRepository, edit, error_text, git, git_with, insert_after, notice_text, notice_texts, task,
};

/// A repository whose team branch has the merges of these tasks. Each task inserts its line.
async fn merged(tasks: &[(u64, &str, &str)]) -> TestRepository {
    let repo = TestRepository::new().await;
    for (key, value) in [("user.name", "Person"), ("user.email", "person@example.invalid")] {
        repo.git(&["config", key, value]);
    }
    for (id, after, line) in tasks {
        merge_task(&repo, *id, after, line).await;
    }
    repo
}

async fn merge_task(repo: &TestRepository, id: u64, after: &str, line: &str) {
    let worktree = repo.worktree_with(id, |root| insert_after(root, "f.txt", after, line)).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.clean_up(&worktree).await, None);
}

const TASKS: [(u64, &str, &str); 2] = [(1, "line 2", "first"), (2, "line 8", "second")];

fn squash(repo: &TestRepository) {
    repo.git(&["merge", "-q", "--squash", "brigade/crew"]);
    repo.git(&["commit", "-q", "-m", "Team work"]);
}

/// Changes the team's first line in review, so that an ordinary merge would conflict.
fn review(repo: &TestRepository) {
    edit(repo.path(), "f.txt", |text| text.replace("first\n", "first, reviewed\n"));
    repo.git(&["commit", "-q", "-a", "-m", "Review"]);
}

fn replay(repo: &TestRepository, range: &str) {
    repo.git(&["branch", "-q", "copy", range]);
    repo.git(&["rebase", "-q", "main", "copy"]);
    repo.git(&["switch", "-q", "main"]);
    repo.git(&["merge", "-q", "--ff-only", "copy"]);
}

fn commits_ahead(repo: &TestRepository) -> usize {
    GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap().commits_ahead
}

fn kept_refs(repo: &TestRepository) -> String {
    repo.git(&["for-each-ref", "--format=%(objectname) %(refname)", "refs/brigade/crew/taken"])
}

/// The launch starts the team branch from the person's commit, and keeps the old one.
async fn assert_starts_from_person(repo: &TestRepository, case: &str) {
    let (main, old) = (repo.git(&["rev-parse", "main"]), repo.team_tip());
    assert_eq!(commits_ahead(repo), 0, "{case}");
    GitRepository::check_launch(repo.path(), "crew").unwrap_or_else(|error| panic!("{case}: {error}"));
    let notices = repo.launch().await;
    let expected = format!(
        "main has the work of brigade/crew in another form, so brigade/crew starts from there ({}). refs/brigade/crew/taken/{} keeps its earlier commits",
        &main[..12],
        &old[..12]
    );
    assert_eq!(notices, [expected], "{case}");
    assert_eq!(repo.team_tip(), main, "{case}");
    assert_eq!(kept_refs(repo), format!("{old} refs/brigade/crew/taken/{}", &old[..12]), "{case}");
    let worktree = repo.team_worktree();
    assert_eq!((git(&worktree, &["rev-parse", "HEAD"]), repo.team_status()), (main, String::new()), "{case}");
    assert_eq!(repo.launch().await, [""; 0], "{case}");
    merge_task(repo, 9, "line 10", "after").await;
    assert_eq!(repo.git(&["log", "--format=%s", "main..brigade/crew"]).matches("Merge task").count(), 1, "{case}");
}

#[tokio::test]
async fn work_in_another_form_is_recognised() {
    type Take = fn(&TestRepository);
    let cases: [(&str, Take); 8] = [
        ("squash", squash),
        ("squash on other commits", |repo| {
            insert_after(repo.path(), "f.txt", "line 5", "person's");
            repo.commit_as_person();
            squash(repo);
        }),
        ("rebase", |repo| {
            insert_after(repo.path(), "f.txt", "line 5", "person's");
            repo.commit_as_person();
            replay(repo, "brigade/crew");
        }),
        ("cherry-picks", |repo| {
            let commits = repo.git(&["rev-list", "--reverse", "--no-merges", "main..brigade/crew"]);
            for commit in commits.lines() {
                repo.git(&["cherry-pick", commit]);
            }
        }),
        ("squash in a renamed file", |repo| {
            repo.git(&["mv", "f.txt", "g.txt"]);
            repo.commit_as_person();
            squash(repo);
        }),
        ("squash on a branch that is merged", |repo| {
            repo.git(&["switch", "-q", "-c", "side"]);
            squash(repo);
            repo.git(&["switch", "-q", "main"]);
            fs::write(repo.path().join("own.txt"), "own\n").unwrap();
            repo.commit_as_person();
            repo.git(&["merge", "-q", "--no-edit", "side"]);
        }),
        ("squash of a part after a merge", |repo| {
            repo.git(&["merge", "-q", "--no-edit", "brigade/crew~1"]);
            squash(repo);
        }),
        ("equal content by hand", |repo| {
            insert_after(repo.path(), "f.txt", "line 5", "for now");
            repo.commit_as_person();
            repo.git(&["checkout", "-q", "brigade/crew", "--", "f.txt"]);
            repo.git(&["commit", "-q", "-m", "By hand"]);
        }),
    ];
    for (case, take) in cases {
        for is_reviewed in [false, true] {
            let repo = merged(&TASKS).await;
            take(&repo);
            if is_reviewed && repo.path().join("f.txt").exists() {
                edit(repo.path(), "f.txt", |text| text.replace("second\n", "second, reviewed\n"));
                repo.git(&["commit", "-q", "-a", "-m", "Review"]);
            }
            assert_starts_from_person(&repo, &format!("{case}, reviewed: {is_reviewed}")).await;
        }
    }
}

/// So many commits are not compared, but the squash is found.
#[tokio::test]
async fn squash_of_very_many_commits_is_recognised() {
    let repo = merged(&TASKS).await;
    let mut commits = String::new();
    for number in 0..2_001 {
        commits += "commit refs/heads/brigade/crew\ncommitter T <t@example.invalid> 1700000000 +0000\ndata 0\n";
        commits += if number == 0 { "from refs/heads/brigade/crew^0\n" } else { "" };
        commits += &format!("M 644 inline many.txt\ndata <<END\n{number}\nEND\n\n");
    }
    git_with(repo.path(), &["fast-import", "--quiet"], &commits);
    squash(&repo);
    assert_eq!(commits_ahead(&repo), 0);
}

#[tokio::test]
async fn work_that_is_not_taken_is_merged() {
    type Change = fn(&TestRepository);
    let cases: [(&str, Change); 3] = [
        ("another change", |repo| insert_after(repo.path(), "f.txt", "line 5", "person's")),
        ("a part", |repo| insert_after(repo.path(), "f.txt", "line 2", "first")),
        ("another file", |repo| fs::write(repo.path().join("own.txt"), "own\n").unwrap()),
    ];
    for (case, change) in cases {
        let repo = merged(&TASKS).await;
        let old = repo.team_tip();
        change(&repo);
        repo.commit_as_person();
        repo.launch().await;
        repo.git(&["merge-base", "--is-ancestor", &old, "brigade/crew"]);
        assert_eq!(kept_refs(&repo), "", "{case}");
        assert!(repo.team_file("f.txt").contains("first\n") && repo.team_file("f.txt").contains("second\n"), "{case}");
    }
}

/// Git gives both commits the same patch id.
#[tokio::test]
async fn same_line_in_another_block_is_not_taken() {
    let repo = TestRepository::new().await;
    let block = |name: &str, line: &str| format!("[{name}]\nhost = a\nport = 1\nuser = b\n{line}\n");
    let write = |root: &Path, lines: [&str; 2]| {
        fs::write(root.join("blocks.txt"), block("first", lines[0]) + &block("second", lines[1])).unwrap();
    };
    write(repo.path(), ["", ""]);
    repo.commit_as_person();
    let worktree = repo.worktree_with(1, |root| write(root, ["", "limit = 5"])).await;
    assert_eq!(repo.merge(&worktree).await, None);
    write(repo.path(), ["limit = 5", ""]);
    repo.commit_as_person();
    repo.launch().await;
    assert_eq!(kept_refs(&repo), "");
    assert_eq!(repo.team_file("blocks.txt").matches("limit = 5").count(), 2);
}

/// The person took the first task and changed it in review, and the team went on.
#[tokio::test]
async fn rest_of_partly_taken_work_stays() {
    let repo = merged(&TASKS[..1]).await;
    squash(&repo);
    review(&repo);
    merge_task(&repo, 2, "line 8", "second").await;
    assert_eq!(commits_ahead(&repo), 2);
    let old = repo.team_tip();
    let notices = repo.launch().await;
    assert!(notices.len() == 1 && notices[0].ends_with("the rest stays on brigade/crew"), "{notices:?}");
    let text = repo.team_file("f.txt");
    assert!(text.contains("first, reviewed\n") && text.contains("second\n") && !text.contains("first\n"), "{text}");
    repo.git(&["merge-base", "--is-ancestor", &old, "brigade/crew"]);
    repo.git(&["merge", "-q", "--ff-only", "brigade/crew"]);
}

/// A task that is in progress is based on commits that the person took by a squash. Its merge must not bring these back.
#[tokio::test]
async fn task_in_progress_continues_after_squash() {
    for has_commits in [false, true] {
        let repo = merged(&TASKS).await;
        let worktree = repo.provision(3).await;
        insert_after(&worktree.root, "f.txt", "line 5", "third");
        if has_commits {
            repo.commit(&worktree).await;
        }
        squash(&repo);
        // The review removes one line of the team, and changes another.
        review(&repo);
        edit(repo.path(), "f.txt", |text| text.replace("second\n", ""));
        repo.git(&["commit", "-q", "-a", "-m", "Without the second"]);
        let notices = repo.launch().await;
        assert!(notices.len() == 1 && notices[0].ends_with("are based on them: #3"), "{notices:?}");
        assert_eq!(repo.git(&["diff", "main", "brigade/crew"]), "");
        let worktree = repo.provision(3).await;
        repo.commit(&worktree).await;
        assert_eq!(repo.merge(&worktree).await, None);
        let text = repo.team_file("f.txt");
        assert!(text.contains("third\n") && text.contains("first, reviewed\n") && !text.contains("second"), "{text}");
        assert_eq!(repo.clean_up(&worktree).await, None);
        // The next squash is recognised, and nothing is in progress.
        squash(&repo);
        assert_starts_from_person(&repo, "second squash").await;
    }
}

/// A completed task whose worktree a kill left is no task in progress, and it is removed.
#[tokio::test]
async fn worktree_of_completed_task_is_removed_after_squash() {
    let repo = merged(&TASKS).await;
    let worktree = repo.worktree_with(3, |root| insert_after(root, "f.txt", "line 5", "third")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    squash(&repo);
    let main = repo.git(&["rev-parse", "main"]);
    let launched = repo.repository.prepare_launch(vec![task(3)]).await.unwrap();
    assert_eq!(launched.notices.len(), 1, "{:?}", launched.notices);
    assert_eq!((repo.team_tip(), worktree.root.exists()), (main, false));
}

/// Commits and changes in the team worktree are work of the person.
#[tokio::test]
async fn team_worktree_keeps_work_of_person_after_squash() {
    let repo = merged(&TASKS).await;
    squash(&repo);
    insert_after(&repo.team_worktree(), "f.txt", "line 5", "mine");
    git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Mine"]);
    repo.launch().await;
    assert!(repo.team_file("f.txt").contains("mine\n"));
    let repo = merged(&TASKS).await;
    squash(&repo);
    review(&repo);
    insert_after(&repo.team_worktree(), "f.txt", "line 5", "mine");
    let notices = repo.launch().await;
    assert!(notices.iter().any(|notice| notice.contains("it would overwrite uncommitted changes")), "{notices:?}");
    assert_eq!(repo.team_tip(), repo.git(&["rev-parse", "main"]));
    assert!(fs::read_to_string(repo.team_worktree().join("f.txt")).unwrap().contains("mine\n"));
}

fn record_taken(repo: &TestRepository) -> Result<Vec<String>, String> {
    let notices = GitRepository::record_taken(repo.path(), "crew", &[], &[], DriverOptions::default());
    notices.map(notice_texts).map_err(error_text)
}

#[tokio::test]
async fn person_records_work_as_taken() {
    let repo = merged(&TASKS).await;
    let old = repo.team_tip();
    assert!(record_taken(&repo).unwrap_err().contains("main has no commit that it lacks"));
    // A squash with an edit in the same commit is not recognised.
    repo.git(&["merge", "-q", "--squash", "brigade/crew"]);
    edit(repo.path(), "f.txt", |text| text.replace("first\n", "first, reviewed\n"));
    repo.git(&["commit", "-q", "-a", "-m", "Team work"]);
    assert_eq!(commits_ahead(&repo), 4);
    let refused = repo.refused_launch().await;
    assert!(refused.contains(MERGE_TAKEN), "{refused}");
    // Work of the person in the team worktree.
    insert_after(&repo.team_worktree(), "f.txt", "line 5", "mine");
    assert!(
        record_taken(&repo).unwrap_err().contains("work of yours in .worktrees/crew: uncommitted changes in f.txt")
    );
    git(repo.team_worktree(), &["switch", "-q", "--detach"]);
    git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Mine"]);
    assert!(record_taken(&repo).unwrap_err().contains("work of yours in .worktrees/crew: the commit "));
    git(repo.team_worktree(), &["switch", "-q", "brigade/crew"]);
    let main = repo.git(&["rev-parse", "main"]);
    let texts = record_taken(&repo).unwrap();
    assert!(texts.len() == 1 && texts[0].contains("refs/brigade/crew/taken/"), "{texts:?}");
    assert_eq!((repo.team_tip(), kept_refs(&repo)), (main, format!("{old} refs/brigade/crew/taken/{}", &old[..12])));
    assert_eq!(record_taken(&repo), Ok(Vec::new()));
    assert_eq!(repo.launch().await, [""; 0]);
}

/// The person deletes the branch after a squash, as many do. Its merges are not lost, also after their commits are gone.
#[tokio::test]
async fn merges_on_deleted_branch_count_as_taken() {
    let repo = merged(&TASKS).await;
    let recorded = [RecordedMerge { task: TaskId(2), commit: repo.team_tip() }];
    let take_over = |recorded: &[RecordedMerge]| {
        let taken =
            GitRepository::take_over(repo.path(), "crew", &"brigade/crew".into(), recorded, DriverOptions::default());
        taken.map_err(error_text)
    };
    repo.git(&["update-ref", "-d", "refs/heads/brigade/crew"]);
    let refused = take_over(&recorded).unwrap_err();
    let restore = format!("git branch brigade/crew {}", &recorded[0].commit[..12]);
    assert!(refused.contains("merges of completed tasks are not on brigade/crew: #2") && refused.contains(&restore));
    assert!(take_over(&[]).unwrap_err().ends_with(LAUNCH));
    repo.git(&restore.split(' ').skip(1).collect::<Vec<_>>());
    assert!(take_over(&recorded).is_ok());
    repo.git(&["reset", "-q", "--hard", "HEAD~2"]);
    squash(&repo);
    let taken = take_over(&recorded).unwrap();
    assert!(taken.is_taken && taken.before == taken.after, "{taken:?}");
    repo.git(&["update-ref", "-d", "refs/heads/brigade/crew"]);
    assert!(take_over(&recorded).unwrap_err().contains("Your branch has its work already, in another form"));
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(repo.repository.lost_merges(recorded.to_vec()).await.unwrap(), None);
    assert!(kept_refs(&repo).starts_with(&recorded[0].commit));
    // The person no longer wants the commits.
    let kept = GitRepository::taken_commits(repo.path()).unwrap();
    assert_eq!(kept.len(), 1);
    GitRepository::remove_taken_commits(repo.path(), &kept[0]).unwrap();
    assert_eq!(kept_refs(&repo), "");
    repo.git(&["reflog", "expire", "--expire=now", "--all"]);
    repo.git(&["gc", "-q", "--prune=now"]);
    assert_eq!(repo.repository.lost_merges(recorded.to_vec()).await.unwrap(), None);
}

/// The person squashed with changes, and deleted the branch.
#[tokio::test]
async fn person_records_merges_of_deleted_branch() {
    let repo = merged(&TASKS).await;
    let recorded = [
        RecordedMerge { task: TaskId(2), commit: repo.team_tip() },
        RecordedMerge { task: TaskId(3), commit: "3".repeat(40) },
    ];
    repo.git(&["update-ref", "-d", "refs/heads/brigade/crew"]);
    let lost = async || repo.repository.lost_merges(recorded.to_vec()).await.unwrap().map(notice_text);
    let text = lost().await.unwrap();
    assert!(text.contains("#2") && text.contains("#3") && text.contains(MERGE_TAKEN), "{text}");
    GitRepository::record_taken(repo.path(), "crew", &[], &recorded, DriverOptions::default()).unwrap();
    assert!(kept_refs(&repo).starts_with(&recorded[0].commit));
    assert_eq!(lost().await, None);
}

/// A team that never ran has nothing to set aside, and one without its branch only what the board records.
#[tokio::test]
async fn work_of_missing_branch_is_not_taken() {
    let repo = TestRepository::new().await;
    let refused = record_taken(&repo).unwrap_err();
    assert!(
        refused.starts_with("cannot set aside brigade/crew: there is no such branch. hint: ")
            && refused.ends_with(LAUNCH),
        "{refused}"
    );
    let gone = [RecordedMerge { task: TaskId(3), commit: "3".repeat(40) }];
    let record = || GitRepository::record_taken(repo.path(), "crew", &[], &gone, DriverOptions::default());
    let texts = notice_texts(record().unwrap());
    assert!(texts.len() == 1 && texts[0].contains("do not exist any more, count as taken over"), "{texts:?}");
    assert!(record().unwrap_err().to_string().contains("there is no such branch"));
}

#[tokio::test]
async fn long_list_of_taken_commits_is_kept() {
    let repo = merged(&TASKS).await;
    let gone = [RecordedMerge { task: TaskId(3), commit: "3".repeat(40) }];
    let list = repo.path().join(".git/brigade-taken-crew");
    let listed: String = (0..10_000).map(|number| format!("{number:040}\n")).collect();
    fs::write(&list, format!("{listed}{}\n", gone[0].commit)).unwrap();
    assert_eq!(repo.repository.lost_merges(gone.to_vec()).await.unwrap(), None);
    squash(&repo);
    let old = repo.team_tip();
    repo.launch().await;
    let text = fs::read_to_string(&list).unwrap();
    assert!(text.starts_with(&old) && text.contains(&listed) && text.contains(&gone[0].commit));
    // A list that cannot be read is not an empty one.
    fs::remove_file(&list).unwrap();
    fs::create_dir(&list).unwrap();
    let error = repo.repository.lost_merges(gone.to_vec()).await.unwrap_err().to_string();
    assert!(error.contains("cannot read") && error.contains("brigade-taken-crew ELSEWHERE`"), "{error}");
}

/// The merges are on the rebased branch in another form.
#[tokio::test]
async fn merges_on_rebased_team_branch_are_not_lost() {
    let repo = merged(&TASKS).await;
    let recorded = [RecordedMerge { task: TaskId(2), commit: repo.team_tip() }];
    fs::write(repo.path().join("own.txt"), "own\n").unwrap();
    repo.commit_as_person();
    repo.git(&["switch", "-q", "brigade/crew"]);
    repo.git(&["rebase", "-q", "main"]);
    repo.git(&["switch", "-q", "main"]);
    assert_ne!(repo.team_tip(), recorded[0].commit);
    let status = || GitRepository::team_branch_status(repo.path(), "crew", None, &recorded).unwrap().problems;
    let reasons: Vec<String> = status().into_iter().map(|problem| problem.reason).collect();
    assert!(!reasons.iter().any(|reason| reason.starts_with("merges")), "{reasons:?}");
    assert_eq!(repo.repository.lost_merges(recorded.to_vec()).await.unwrap(), None);
    // Without the second task, its merge is lost.
    repo.git(&["update-ref", "refs/heads/brigade/crew", "brigade/crew~1"]);
    fs::remove_file(repo.path().join(".git/brigade-taken-crew")).unwrap();
    repo.git(&["update-ref", "-d", kept_refs(&repo).split(' ').nth(1).unwrap()]);
    assert!(repo.repository.lost_merges(recorded.to_vec()).await.unwrap().is_some());
}
