//! The team branch and its worktree: the person's checkout is never touched, and what a person does in the team worktree is kept.

use std::fs;
use std::path::Path;

use brigade::domain::task::TaskId;
use brigade::domain::team::next::OrderForm;
use brigade::git::{DriverOptions, GitRepository};
use brigade::ports::{PublishOutcome, RecordedMerge, Repository, Worktree, WorktreeOutcome};

use super::harness::{
    MERGE_TAKEN, TestRepository, edit, error_text, git, git_output, insert_after, notice_text, open, open_into,
    reported, steps_text, task, ten_lines,
};

/// Inserts a line after `line_before` in `f.txt` on a task's branch, and merges it.
async fn merge_a_line(repo: &TestRepository, id: u64, line_before: &str, line: &str) -> Option<String> {
    let worktree = repo.worktree_with(id, |root| insert_after(root, "f.txt", line_before, line)).await;
    repo.merge(&worktree).await
}

/// The branch of a checkout; empty if there is none.
fn branch_of(folder: &Path) -> String {
    git(folder, &["branch", "--show-current"])
}

/// A file in the team worktree.
fn team_file(repo: &TestRepository, file: &str) -> String {
    fs::read_to_string(repo.team_worktree().join(file)).unwrap()
}

/// The parts of the repository and of the person's checkout that Brigade must not change.
fn person_snapshot(repo: &TestRepository) -> Vec<Vec<u8>> {
    let files = ["config", "HEAD", "index", "info/exclude", "refs/heads/main", "logs/HEAD"];
    let read = |name: &&str| fs::read(repo.path().join(".git").join(name)).unwrap_or_default();
    let hooks = fs::read_dir(repo.path().join(".git/hooks")).into_iter().flatten().count();
    let status = git(repo.path(), &["status", "--porcelain", "--ignored"]).replace("!! .worktrees/", "");
    files.iter().map(read).chain([vec![u8::try_from(hooks).unwrap()], status.trim().into()]).collect()
}

#[tokio::test]
async fn merges_leave_checkout_of_person_unchanged() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join("own.txt"), "own\n").unwrap();
    edit(repo.path(), "f.txt", |text| format!("{text}unsaved\n"));
    repo.checkout_status();
    let before = person_snapshot(&repo);
    for id in 1..=2 {
        let worktree =
            repo.worktree_with(id, |root| insert_after(root, "f.txt", &format!("line {}", id * 3), "merged")).await;
        let merge = repo.create_merge(&worktree).await;
        repo.repository.check_out(&merge).await.unwrap();
        assert_eq!(repo.repository.publish(&merge, &task(id)).await.unwrap(), PublishOutcome::Done(None));
        assert_eq!(repo.clean_up(&worktree).await, None);
    }
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(person_snapshot(&repo), before);
    assert_eq!((branch_of(&repo.team_worktree()), repo.team_status()), ("brigade/crew".to_owned(), String::new()));
    assert_eq!(team_file(&repo, "f.txt").matches("merged\n").count(), 2);
}

#[tokio::test]
async fn run_time_folders_ignore_themselves() {
    let repo = TestRepository::new().await;
    for folder in [".team", ".tasks"] {
        fs::create_dir(repo.path().join(folder)).unwrap();
        fs::write(repo.path().join(folder).join("x"), "x").unwrap();
    }
    fs::write(repo.path().join(".tasks/README.md"), "mine").unwrap();
    repo.git(&["add", ".tasks/README.md"]);
    repo.git(&["commit", "-q", "-m", "Tasks"]);
    repo.provision(1).await;
    assert_eq!(repo.checkout_status(), "?? .tasks/x", "a folder with tracked files has no rules of Brigade");
    assert!(!repo.path().join(".tasks/.gitignore").exists());
    let rules = repo.path().join(".team/.gitignore");
    fs::write(&rules, "# mine\n").unwrap();
    repo.launch().await;
    assert_eq!(fs::read_to_string(&rules).unwrap(), "# mine\n");
}

#[tokio::test]
async fn launch_merges_commits_of_person() {
    let repo = TestRepository::new().await;
    assert_eq!(repo.launch().await, [""; 0]);
    let main = || repo.git(&["rev-parse", "main"]);
    assert_eq!(repo.team_tip(), main());
    insert_after(repo.path(), "f.txt", "line 9", "person's");
    repo.commit_as_person();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(repo.team_tip(), main(), "the branch is fast-forwarded");
    assert_eq!(merge_a_line(&repo, 1, "line 2", "of the team").await, None);
    insert_after(repo.path(), "f.txt", "line 10", "last");
    repo.commit_as_person();
    let before = main();
    assert_eq!(repo.launch().await, [""; 0]);
    let text = team_file(&repo, "f.txt");
    assert!(["person's", "of the team", "last"].iter().all(|line| text.contains(line)), "{text}");
    assert_eq!(
        git(repo.team_worktree(), &["log", "-1", "--format=%an %s"]),
        "lead (crew) Merge main into brigade/crew"
    );
    let tip = repo.team_tip();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!((repo.team_tip(), main(), repo.team_status()), (tip, before, String::new()));
}

#[tokio::test]
async fn conflict_with_person_stops_launch_until_resolved() {
    let repo = TestRepository::new().await;
    assert_eq!(merge_a_line(&repo, 1, "line 5", "of the team").await, None);
    insert_after(repo.path(), "f.txt", "line 5", "person's");
    repo.commit_as_person();
    let (before, tip) = (person_snapshot(&repo), repo.team_tip());
    let refused = repo.refused_launch().await;
    let why = "cannot merge main into brigade/crew: conflict in f.txt. hint: `git merge brigade/crew` in your checkout";
    assert!(refused.contains(why) && refused.contains(MERGE_TAKEN), "{refused}");
    let checked = error_text(GitRepository::check_launch(repo.path(), "crew").unwrap_err());
    assert_eq!(checked.split_once("hint: ").unwrap().1, refused.split_once("hint: ").unwrap().1);
    assert_eq!((person_snapshot(&repo), repo.team_tip(), repo.team_status()), (before, tip, String::new()));
    // The person follows the hint. A launch in the middle of the merge loses nothing.
    assert_ne!(git_output(repo.path(), &["merge", "brigade/crew"]).0, Some(0));
    let conflicted = fs::read_to_string(repo.path().join("f.txt")).unwrap();
    repo.refused_launch().await;
    assert_eq!(fs::read_to_string(repo.path().join("f.txt")).unwrap(), conflicted);
    edit(repo.path(), "f.txt", |text| {
        text.lines().filter(|line| !line.starts_with(['<', '=', '>'])).map(|line| format!("{line}\n")).collect()
    });
    repo.git(&["commit", "-q", "-a", "--no-edit"]);
    assert_eq!(repo.launch().await, [""; 0]);
    let text = repo.team_file("f.txt");
    assert!(text.contains("of the team") && text.contains("person's"), "{text}");
}

#[tokio::test]
async fn changes_in_team_worktree_are_kept_and_branch_moves() {
    type Change = fn(&Path);
    let cases: [(&str, Change, &str); 3] = [
        ("a changed file", |root| edit(root, "f.txt", |text| format!("{text}unsaved\n")), "f.txt"),
        ("an untracked file", |root| fs::write(root.join("new.txt"), "unsaved\n").unwrap(), "new.txt"),
        ("an ignored file", |root| fs::write(root.join("ignored.txt"), "unsaved\n").unwrap(), "ignored.txt"),
    ];
    for (case, change, file) in cases {
        let repo = TestRepository::new().await;
        fs::write(repo.path().join(".gitignore"), "ignored.txt\n").unwrap();
        repo.commit_as_person();
        let worktree = repo
            .worktree_with(1, |root| {
                insert_after(root, "f.txt", "line 2", "merged");
                fs::write(root.join("new.txt"), "merged\n").unwrap();
                fs::write(root.join("ignored.txt"), "merged\n").unwrap();
                git(root, &["add", "--force", "ignored.txt"]);
            })
            .await;
        change(&repo.team_worktree());
        let mine = team_file(&repo, file);
        let notice = repo.merge(&worktree).await.unwrap();
        assert!(notice.contains(file) && notice.contains(".worktrees/crew is not updated"), "{case}: {notice}");
        assert_eq!(
            (team_file(&repo, file), branch_of(&repo.team_worktree()).as_str()),
            (mine.clone(), "brigade/crew"),
            "{case}"
        );
        assert!(repo.team_file("f.txt").contains("merged"), "{case}");
        assert_eq!(merge_a_line(&repo, 2, "line 8", "second").await, None, "{case}: the notice is given once");
        assert!(repo.repository.update_team_worktree().await.unwrap().unwrap().contains(file), "{case}");
        let status = GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap();
        assert!(status.problems[0].reason.contains("not those of brigade/crew"), "{case}");
        // Another launch succeeds and changes nothing there.
        let again = TestRepository { repository: open(repo.path()).await.unwrap(), folder: repo.folder };
        assert_eq!(again.launch().await.len(), 1, "{case}");
        assert_eq!(team_file(&again, file), mine, "{case}");
        // After the change is moved away, a launch updates the files.
        fs::rename(again.team_worktree().join(file), again.path().join("elsewhere")).unwrap();
        git_output(&again.team_worktree(), &["checkout", "--", file]);
        assert_eq!(again.launch().await, [""; 0], "{case}");
        assert_eq!(
            (branch_of(&again.team_worktree()).as_str(), again.team_status().as_str()),
            ("brigade/crew", ""),
            "{case}"
        );
        assert!(team_file(&again, "f.txt").contains("second"), "{case}");
    }
}

#[tokio::test]
async fn other_changes_in_team_worktree_follow_merge() {
    let repo = TestRepository::new().await;
    fs::write(repo.path().join("g.txt"), "g\n").unwrap();
    repo.commit_as_person();
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "merged")).await;
    fs::write(repo.team_worktree().join("g.txt"), "unsaved\n").unwrap();
    fs::write(repo.team_worktree().join("own.txt"), "own\n").unwrap();
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.team_status(), " M g.txt\n?? own.txt");
    assert!(team_file(&repo, "f.txt").contains("merged"));
}

#[tokio::test]
async fn commit_of_person_in_team_worktree_is_on_branch() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
    let merge = repo.create_merge(&worktree).await;
    insert_after(&repo.team_worktree(), "f.txt", "line 8", "mine");
    git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Mine"]);
    assert_eq!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Moved);
    assert_eq!((branch_of(&repo.team_worktree()).as_str(), repo.team_status().as_str()), ("brigade/crew", ""));
    assert_eq!(repo.merge(&worktree).await, None);
    let text = repo.team_file("f.txt");
    assert!(text.contains("of the team") && text.contains("mine"), "{text}");
}

#[tokio::test]
async fn commit_on_no_branch_in_team_worktree_is_kept() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
    git(repo.team_worktree(), &["switch", "-q", "--detach"]);
    git(repo.team_worktree(), &["commit", "-q", "--allow-empty", "-m", "Mine"]);
    let mine = git(repo.team_worktree(), &["rev-parse", "HEAD"]);
    let merge = repo.create_merge(&worktree).await;
    assert_eq!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Moved, "it is merged first");
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(repo.git(&["branch", "--contains", &mine, "--format=%(refname:short)"]), "brigade/crew");
}

#[tokio::test]
async fn killed_merge_is_before_or_after_at_launch() {
    // Killed before the branch moved, after it, and in the middle of writing the files.
    for step in 0..4 {
        let repo = TestRepository::new().await;
        let worktree = repo
            .worktree_with(1, |root| {
                insert_after(root, "f.txt", "line 2", "mine");
                fs::write(root.join("new.txt"), "one\ntwo\n").unwrap();
                fs::remove_file(root.join("brigade.toml")).unwrap_or_default();
                git(root, &["checkout", "-q", "--", "brigade.toml"]);
            })
            .await;
        let merge = repo.create_merge(&worktree).await;
        if step > 0 {
            repo.git(&["update-ref", "refs/heads/brigade/crew", &merge.commit, &merge.onto]);
            repo.git(&["update-ref", "refs/brigade/crew/merged/task-1", &merge.commit]);
        }
        if step > 1 {
            fs::write(repo.team_worktree().join(".git/brigade-switching"), &merge.commit).unwrap();
            fs::write(repo.team_worktree().join("new.txt"), if step == 2 { "" } else { "one\ntwo\n" }).unwrap();
            insert_after(&repo.team_worktree(), "f.txt", "line 2", "mine");
        }
        if step > 2 {
            // Git wrote its index, and was killed before it wrote HEAD.
            git(repo.team_worktree(), &["add", "-A"]);
        }
        let next = TestRepository { repository: open(repo.path()).await.unwrap(), folder: repo.folder };
        assert_eq!(next.launch().await, [""; 0], "{step}");
        assert_eq!(
            (branch_of(&next.team_worktree()).as_str(), next.team_status().as_str()),
            ("brigade/crew", ""),
            "{step}"
        );
        assert_eq!(team_file(&next, "f.txt").contains("mine"), step > 0);
        match next.repository.provision(&task(1)).await.unwrap() {
            WorktreeOutcome::Merged { work, worktree: Worktree { root, .. } } => {
                assert_eq!((work, root), (reported(&merge.commit), worktree.root));
                assert!(step > 0);
            }
            WorktreeOutcome::Ready(_) => assert_eq!(step, 0),
        }
    }
}

#[tokio::test]
async fn change_of_person_after_killed_switch_is_kept() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| fs::write(root.join("new.txt"), "one\ntwo\n").unwrap()).await;
    let merge = repo.create_merge(&worktree).await;
    repo.git(&["update-ref", "refs/heads/brigade/crew", &merge.commit, &merge.onto]);
    fs::write(repo.team_worktree().join(".git/brigade-switching"), &merge.commit).unwrap();
    fs::write(repo.team_worktree().join("new.txt"), "one\nand what the person wrote\n").unwrap();
    let notices = repo.launch().await;
    assert!(notices.len() == 1 && notices[0].contains("new.txt"), "{notices:?}");
    assert_eq!(team_file(&repo, "new.txt"), "one\nand what the person wrote\n");
}

#[tokio::test]
async fn failed_update_of_team_worktree_is_undone() {
    let repo = TestRepository::new().await;
    fs::create_dir(repo.path().join("shut")).unwrap();
    fs::write(repo.path().join("shut/x"), "x\n").unwrap();
    repo.commit_as_person();
    let worktree = repo
        .worktree_with(1, |root| {
            fs::write(root.join("a.txt"), "a\n").unwrap();
            insert_after(root, "f.txt", "line 2", "of the team");
            fs::write(root.join("shut/y"), "y\n").unwrap();
        })
        .await;
    let merge = repo.create_merge(&worktree).await;
    // Git fails at the second file, as on a full disk.
    repo.git(&["config", "filter.fails.smudge", "false"]);
    repo.git(&["config", "filter.fails.required", "true"]);
    let attributes = repo.team_worktree().join(".git/info/attributes");
    fs::write(&attributes, "shut/y filter=fails\n").unwrap();
    let published = repo.repository.publish(&merge, &task(1)).await.unwrap();
    assert!(matches!(published, PublishOutcome::Done(Some(_))), "{published:?}");
    fs::remove_file(attributes).unwrap();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!((branch_of(&repo.team_worktree()).as_str(), repo.team_status().as_str()), ("brigade/crew", ""));
    assert!(repo.team_worktree().join("a.txt").exists() && repo.team_worktree().join("shut/y").exists());
}

#[tokio::test]
async fn stale_index_lock_keeps_team_worktree_unchanged() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let lock = repo.team_worktree().join(".git/index.lock");
    fs::write(&lock, "").unwrap();
    let notice = repo.merge(&worktree).await.unwrap();
    assert!(notice.contains("index.lock"), "{notice}");
    assert_eq!(team_file(&repo, "f.txt"), ten_lines());
    fs::remove_file(&lock).unwrap();
    assert_eq!(repo.launch().await, [""; 0]);
    assert!(team_file(&repo, "f.txt").contains("mine"));
}

#[tokio::test]
async fn removed_or_foreign_team_worktree_is_handled() {
    let repo = TestRepository::new().await;
    assert_eq!(merge_a_line(&repo, 1, "line 2", "first").await, None);
    fs::remove_dir_all(repo.team_worktree()).unwrap();
    let worktree = repo.repository.provision(&task(2)).await.unwrap();
    let WorktreeOutcome::Ready(worktree) = worktree else { panic!("{worktree:?}") };
    insert_after(&worktree.root, "f.txt", "line 8", "second");
    repo.commit(&worktree).await;
    assert!(repo.merge(&worktree).await.unwrap().contains(".worktrees/crew is missing"));
    assert_eq!(repo.launch().await, [""; 0]);
    assert!(team_file(&repo, "f.txt").contains("second"));
    fs::remove_dir_all(repo.team_worktree()).unwrap();
    fs::create_dir(repo.team_worktree()).unwrap();
    fs::write(repo.team_worktree().join("precious.txt"), "x").unwrap();
    let notices = repo.launch().await;
    assert_eq!(notices, ["something else was in .worktrees/crew; it is in .worktrees/crew.aside-1 now"]);
    assert_eq!(team_file(&repo, "../crew.aside-1/precious.txt"), "x");
}

#[tokio::test]
async fn branch_below_team_branch_stops_launch() {
    let repo = TestRepository::new().await;
    repo.git(&["branch", "brigade/other/task-1"]);
    let path = ".worktrees/crew-task-3";
    repo.git(&["worktree", "add", "-q", "-b", "brigade/crew/task-3", path]);
    let worktree = repo.path().join(path);
    insert_after(&worktree, "f.txt", "line 5", "not committed");
    let refused = open(repo.path()).await.err().unwrap().to_string();
    assert!(
        refused.contains("cannot create branch brigade/crew: there is a branch `brigade/crew/task-3`"),
        "{refused}"
    );
    assert!(refused.contains("`git branch -m brigade/crew/task-3 OTHER`"), "{refused}");
    // The work of the former name continues under the name of today.
    repo.git(&["branch", "-m", "brigade/crew/task-3", "brigade-tasks/crew/task-3"]);
    assert!(open(repo.path()).await.is_ok());
    assert_eq!(repo.launch().await, [""; 0]);
    let again = repo.provision(3).await;
    assert_eq!((&again.root, again.leftover_work), (&worktree, super::harness::leftover_work(0, 1)));
    repo.commit(&again).await;
    assert_eq!(repo.merge(&again).await, None);
    assert!(repo.team_file("f.txt").contains("\nnot committed"));
}

#[tokio::test]
async fn checkout_on_former_branch_stops_launch() {
    let repo = TestRepository::new().await;
    repo.git(&["switch", "-q", "-c", "brigade-yours/main"]);
    let refused = repo.refused_launch().await;
    assert!(refused.contains("`git switch main` and `git merge brigade-yours/main`"), "{refused}");
}

#[tokio::test]
async fn branch_in_rebase_or_other_checkout_is_not_moved() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.create_merge(&worktree).await;
    let before = repo.team_tip();
    let publish = || async { repo.repository.publish(&merge, &task(1)).await };
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("other").display().to_string();
    repo.git(&["worktree", "add", "-q", "--force", &path, "brigade/crew"]);
    let rebase = repo.path().join(".git/worktrees/other/rebase-merge");
    fs::create_dir(&rebase).unwrap();
    fs::write(rebase.join("head-name"), "refs/heads/brigade/crew\n").unwrap();
    let refused = publish().await.unwrap_err().to_string();
    assert!(refused.contains("a rebase of brigade/crew is unfinished in"), "{refused}");
    fs::remove_dir_all(&rebase).unwrap();
    let refused = publish().await.unwrap_err().to_string();
    assert!(refused.contains(&format!("it is checked out in {path}")), "{refused}");
    assert!(open(repo.path()).await.is_err());
    repo.git(&["worktree", "remove", "--force", &path]);
    let path = other.path().join("workspace").display().to_string();
    repo.git(&["worktree", "add", "-q", "--detach", &path]);
    let refused = open(Path::new(&path)).await.err().unwrap().to_string();
    let workspace = repo.path().display();
    assert!(refused.contains(&format!("another team crew, in the workspace {workspace}, has")), "{refused}");
    let copy = other.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-r").args([repo.path(), &copy]).status().unwrap();
    assert!(copied.success());
    open(&copy).await.unwrap().prepare_launch(Vec::new()).await.unwrap();
    assert!(refused.ends_with("hint: rename this team"), "{refused}");
    assert_eq!(repo.team_tip(), before);
    assert_eq!(publish().await.unwrap(), PublishOutcome::Done(None));
    // A rebase of the person's branch stops the next launch only.
    fs::create_dir(repo.path().join(".git/rebase-merge")).unwrap();
    assert!(repo.refused_launch().await.contains("a rebase is unfinished in your checkout"));
}

#[tokio::test]
async fn chosen_branch_gets_only_verified_merges() {
    let repo = TestRepository::new().await;
    let missing = open_into(repo.path(), "develop").await.err().unwrap().to_string();
    assert!(missing.contains("there is no such branch") && missing.contains("`git branch develop`"), "{missing}");
    let refused = open_into(repo.path(), "main").await.err().unwrap().to_string();
    assert!(refused.contains("cannot merge into main: it is checked out in"), "{refused}");
    assert!(refused.contains("hint: remove merge_into, so that merges go into brigade/crew, or switch"), "{refused}");
    repo.git(&["branch", "develop"]);
    let repo = TestRepository { repository: open_into(repo.path(), "develop").await.unwrap(), folder: repo.folder };
    insert_after(repo.path(), "f.txt", "line 9", "person's");
    repo.commit_as_person();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(merge_a_line(&repo, 1, "line 2", "of the team").await, None);
    let text = repo.git(&["show", "develop:f.txt"]);
    assert!(text.contains("of the team") && !text.contains("person's"), "{text}");
    assert_eq!(branch_of(&repo.team_worktree()), "develop");
    // Without `merge_into`, the worktree returns to the team branch.
    let repo = TestRepository { repository: open(repo.path()).await.unwrap(), folder: repo.folder };
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!((branch_of(&repo.team_worktree()).as_str(), repo.team_status().as_str()), ("brigade/crew", ""));
    assert!(repo.team_file("f.txt").contains("person's"));
}

#[tokio::test]
async fn branch_does_not_move_without_ref_of_merge() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| fs::write(root.join("new.txt"), "new\n").unwrap()).await;
    let merge = repo.create_merge(&worktree).await;
    let before = repo.team_tip();
    fs::write(repo.path().join(".git/refs/brigade/crew/merged"), "in the way").unwrap();
    repo.repository.publish(&merge, &task(1)).await.unwrap_err();
    assert_eq!((repo.team_tip(), repo.team_worktree().join("new.txt").exists()), (before, false));
    fs::remove_file(repo.path().join(".git/refs/brigade/crew/merged")).unwrap();
    assert_eq!(repo.repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Done(None));
    assert_eq!((branch_of(&repo.team_worktree()).as_str(), repo.team_status().as_str()), ("brigade/crew", ""));
}

#[tokio::test]
async fn foreign_worktree_in_own_folder_is_refused() {
    for name in ["crew", "crew.merge"] {
        type Occupy = fn(&Path, &str);
        let cases: [(&str, Occupy, bool); 4] = [
            ("a branch", |root, name| drop(git(root, &["worktree", "add", "-q", "-b", "mine", name])), true),
            ("a commit", |root, name| drop(git(root, &["worktree", "add", "-q", "--detach", name])), true),
            ("a folder", |root, name| fs::create_dir(root.join(name)).unwrap(), false),
            (
                "a link",
                |root, name| {
                    git(root, &["worktree", "add", "-q", "--detach", "elsewhere"]);
                    std::os::unix::fs::symlink(root.join("elsewhere"), root.join(name)).unwrap();
                },
                false,
            ),
        ];
        for (case, occupy, is_linked) in cases {
            let repo = TestRepository::new().await;
            let folder = format!(".worktrees/{name}");
            fs::create_dir(repo.path().join(".worktrees")).unwrap();
            occupy(repo.path(), &folder);
            let mut root = repo.path().join(&folder);
            // A commit that no branch has, and a file of the person.
            if root.join("f.txt").exists() {
                git(&root, &["commit", "-q", "--allow-empty", "-m", "Mine"]);
            }
            fs::write(root.join("own.txt"), "own\n").unwrap();
            let state = |root: &Path| {
                (
                    fs::read(root.join("own.txt")).unwrap(),
                    fs::read(root.join("f.txt")).ok(),
                    git(root, &["rev-parse", "HEAD"]),
                )
            };
            let before = state(&root);
            if is_linked {
                let launched = repo.repository.prepare_launch(Vec::new()).await;
                let text = launched.map_or_else(
                    |error| error.to_string(),
                    |launched| notice_text(launched.notices.into_iter().next().unwrap()),
                );
                assert!(text.contains(&format!("`git worktree move {folder} ELSEWHERE`")), "{case}: {text}");
            } else {
                repo.launch().await;
                root.set_file_name(format!("{name}.aside-1"));
            }
            assert_eq!(state(&root), before, "{case}");
        }
    }
    let repo = TestRepository::new().await;
    let worktrees = repo.path().join(".worktrees");
    fs::write(&worktrees, "notes").unwrap();
    let refused = open(repo.path()).await.err().unwrap().to_string();
    assert!(refused.contains("cannot create worktrees: .worktrees is not a folder"), "{refused}");
    fs::remove_file(&worktrees).unwrap();
    std::os::unix::fs::symlink(repo.path().join("elsewhere"), worktrees).unwrap();
    let refused = open(repo.path()).await.err().unwrap().to_string();
    assert!(refused.contains(".worktrees: it is a symbolic link"), "{refused}");
}

#[tokio::test]
async fn detached_commit_of_person_is_merged_at_launch() {
    // The person's commit conflicts with a later merge, or it does not.
    for line in ["line 8", "line 2"] {
        let repo = TestRepository::new().await;
        let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
        insert_after(&repo.team_worktree(), "f.txt", line, "mine");
        assert!(repo.merge(&worktree).await.unwrap().contains("is not updated"));
        git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Mine"]);
        let mine = git(repo.team_worktree(), &["rev-parse", "HEAD"]);
        let status = GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap();
        assert!(status.problems[0].reason.contains("is not on brigade/crew"));
        if line == "line 2" {
            let refused = repo.refused_launch().await;
            assert!(
                refused.contains(&format!("`git -C .worktrees/crew merge {}`", &repo.team_tip()[..12])),
                "{refused}"
            );
            git_output(&repo.team_worktree(), &["merge", "-q", &repo.team_tip()]);
            edit(&repo.team_worktree(), "f.txt", |_| "of the team\nmine\n".to_owned());
            git(repo.team_worktree(), &["add", "f.txt"]);
            let refused = repo.refused_launch().await;
            assert!(refused.contains("run `git -C .worktrees/crew commit`"), "{refused}");
            git(repo.team_worktree(), &["commit", "-q", "--no-edit"]);
        }
        let notices = repo.launch().await;
        assert!(
            notices.len() == 1 && notices[0].contains(" in .worktrees/crew is merged into brigade/crew"),
            "{notices:?}"
        );
        assert_eq!((branch_of(&repo.team_worktree()).as_str(), repo.team_status().as_str()), ("brigade/crew", ""));
        repo.git(&["merge-base", "--is-ancestor", &mine, "brigade/crew"]);
        let text = repo.team_file("f.txt");
        assert!(text.contains("of the team") && text.contains("mine"), "{text}");
        assert_eq!(repo.launch().await, [""; 0]);
    }
}

#[tokio::test]
async fn missing_team_branch_is_named_with_remedy() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "mine")).await;
    let merge = repo.create_merge(&worktree).await;
    let before = repo.team_tip();
    repo.git(&["branch", "-m", "brigade/crew", "renamed"]);
    let remedy =
        format!("brigade/crew: the branch does not exist any more. hint: `git branch brigade/crew {}`", &before[..12]);
    let repository = &repo.repository;
    let errors = [
        repository.provision(&task(2)).await.unwrap_err(),
        repository.merge(&worktree, reported(&merge.commit)).await.unwrap_err(),
        repository.publish(&merge, &task(1)).await.unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains(&remedy), "{error}");
    }
    // As the hint says.
    repo.git(&["branch", "brigade/crew", &before]);
    assert_eq!(repository.publish(&merge, &task(1)).await.unwrap(), PublishOutcome::Done(None));
    assert_eq!(branch_of(&repo.team_worktree()), "brigade/crew");
}

#[tokio::test]
async fn missing_commit_object_is_no_unborn_branch() {
    for branch in ["main", "brigade/crew"] {
        let repo = TestRepository::new().await;
        repo.launch().await;
        let commit = "5".repeat(40);
        fs::write(repo.path().join(".git/refs/heads").join(branch), format!("{commit}\n")).unwrap();
        let expected = format!("the object of its commit {commit} is missing");
        let taken =
            GitRepository::take_over(repo.path(), "crew", &"brigade/crew".into(), &[], DriverOptions::default());
        let error = taken.unwrap_err().to_string();
        assert!(error.contains(&expected) && !error.contains("git add"), "{error}");
    }
}

#[tokio::test]
async fn merges_missing_on_team_branch_are_reported() {
    let repo = TestRepository::new().await;
    let mut recorded = Vec::new();
    for (id, line) in [(1, "line 2"), (2, "line 8")] {
        assert_eq!(merge_a_line(&repo, id, line, "merged").await, None);
        recorded.push(RecordedMerge { task: TaskId(id), commit: repo.team_tip() });
    }
    let reported = async || {
        let notice = repo.repository.lost_merges(recorded.clone()).await.unwrap().map(notice_text);
        let status = GitRepository::team_branch_status(repo.path(), "crew", None, &recorded).unwrap();
        let problem = status.problems.iter().find(|problem| problem.reason.starts_with("merges"));
        let problem = problem.map(|problem| format!("{}. hint: {}", problem.reason, steps_text(&problem.next)));
        assert_eq!(notice, problem);
        notice.unwrap_or_default()
    };
    let short = |number: usize| recorded[number].commit[..12].to_owned();
    assert_eq!(reported().await, "");
    repo.git(&["update-ref", "refs/heads/brigade/crew", "main"]);
    let both = format!("merges of completed tasks are not on brigade/crew: #1 ({}), #2 ({})", short(0), short(1));
    let command = format!("git branch -f brigade/crew {}", short(1));
    let text = reported().await;
    assert!(text.starts_with(&both) && text.contains(&format!("`{command}` adds them")), "{text}");
    // As the hint says.
    repo.git(&command.split(' ').skip(1).collect::<Vec<_>>());
    assert_eq!(reported().await, "");
    repo.git(&["branch", "-m", "brigade/crew", "renamed"]);
    let text = reported().await;
    let command = format!("git branch brigade/crew {}", short(1));
    assert!(text.starts_with(&both) && text.contains(&format!("`{command}`")), "{text}");
    // The person has the work, and then lost its objects.
    repo.git(&["merge", "-q", "renamed"]);
    assert_eq!(reported().await, "");
    let gone = [RecordedMerge { task: TaskId(7), commit: "7".repeat(40) }];
    let problems = GitRepository::team_branch_status(repo.path(), "crew", None, &gone).unwrap().problems;
    assert!(problems[0].reason.ends_with("#7 (777777777777)"), "{problems:?}");
    assert_eq!(problems[0].next[1], OrderForm::Reopen { tasks: vec![TaskId(7)] }.into(), "{problems:?}");
}
