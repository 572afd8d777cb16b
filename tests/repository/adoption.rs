//! Worktrees of earlier versions, which were linked ones: the next launch turns them into places, with all that is in them.

use std::fs;

use brigade::domain::team::team_spec::SetupSpec;
use brigade::ports::{Repository, SetupPlace, Worktree};

use crate::harness::{
    TestRepository, git, git_output, insert_after, leftover_work, link_place, open_with_setup, ten_lines,
};

/// Leave to copy submodules from this machine, and to fill in all of them.
const SUBMODULES: [&str; 5] = ["-c", "protocol.file.allow=always", "-c", "submodule.active=.", "submodule"];

/// Asserts that nothing of a linked worktree is left, and that git finds no error.
fn assert_adopted(repo: &TestRepository) {
    let linked = fs::read_dir(repo.path().join(".git/worktrees")).into_iter().flatten();
    assert_eq!(linked.count(), 0);
    repo.git(&["fsck"]);
    for entry in fs::read_dir(repo.path().join(".worktrees")).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(name == ".gitignore" || !name.starts_with('.'), "{name}");
        if entry.path().is_dir() {
            git(entry.path(), &["fsck"]);
        }
    }
}

/// Merges the work of a task and removes its worktree.
async fn finish(repo: &TestRepository, worktree: &Worktree) {
    repo.commit(worktree).await;
    assert_eq!(repo.merge(worktree).await, None);
    assert_eq!(repo.clean_up(worktree).await, None);
}

#[tokio::test]
async fn linked_worktree_keeps_index_and_files() {
    let repo = TestRepository::new().await;
    let root = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 1", "committed")).await.root;
    insert_after(&root, "f.txt", "line 3", "staged");
    git(&root, &["add", "f.txt"]);
    insert_after(&root, "f.txt", "line 5", "unstaged");
    fs::write(root.join("new.txt"), "new\n").unwrap();
    let state = || {
        [&["status"][..], &["diff"], &["diff", "--cached"], &["log", "--format=%H %s"]].map(|words| git(&root, words))
    };
    let before = state();
    let linked = link_place(repo.path(), "crew-task-1");
    assert_eq!(state(), before, "the linked worktree is the same");
    // Git locks a worktree that it makes with this reason. Here the person did.
    fs::write(linked.join("locked"), "initializing").unwrap();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_adopted(&repo);
    assert_eq!(state(), before);
    let worktree = repo.provision(1).await;
    assert_eq!(worktree.leftover_work, leftover_work(1, 2));
    finish(&repo, &worktree).await;
    assert!(repo.team_file("f.txt").contains("unstaged") && repo.team_file("new.txt") == "new");
}

/// Each operation stops at a conflict. It is finished in the place as git says.
#[tokio::test]
async fn unfinished_operations_are_finished_after_adoption() {
    for operation in ["merge", "rebase", "cherry-pick"] {
        let repo = TestRepository::new().await;
        let root = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 5", "mine")).await.root;
        git(&root, &["branch", "other", "HEAD~1"]);
        git(&root, &["switch", "-q", "other"]);
        insert_after(&root, "f.txt", "line 5", "theirs");
        git(&root, &["-c", "user.email=a@brigade.invalid", "commit", "-q", "-a", "-m", "Theirs"]);
        git(&root, &["switch", "-q", "brigade-tasks/crew/task-1"]);
        let (code, text) = git_output(&root, &["-c", "user.email=a@brigade.invalid", operation, "other"]);
        assert_ne!(code, Some(0), "{text}");
        let status = git(&root, &["status"]);
        link_place(repo.path(), "crew-task-1");
        assert_eq!(repo.launch().await, [""; 0]);
        // No branch of the person has the commit of the other side.
        repo.git(&["gc", "-q", "--prune=now"]);
        assert_adopted(&repo);
        assert_eq!(git(&root, &["status"]), status, "{operation}");
        let worktree = repo.provision(1).await;
        let is_merging = worktree.leftover_work.as_ref().is_some_and(|work| work.is_merging);
        assert_eq!(is_merging, operation == "merge");
        let resolved = ten_lines().replace("line 5\n", "line 5\nmine\ntheirs\n");
        fs::write(root.join("f.txt"), resolved).unwrap();
        git(&root, &["add", "f.txt"]);
        git(&root, &["-c", "user.email=a@brigade.invalid", "-c", "core.editor=true", operation, "--continue"]);
        assert_eq!(git(&root, &["branch", "--show-current"]), "brigade-tasks/crew/task-1", "{operation}");
        finish(&repo, &worktree).await;
        assert!(repo.team_file("f.txt").contains("line 5\nmine\ntheirs"));
    }
}

#[tokio::test]
async fn linked_worktree_on_no_branch_keeps_its_commits() {
    let repo = TestRepository::new().await;
    let root = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 1", "on the branch")).await.root;
    git(&root, &["switch", "-q", "--detach", "HEAD~1"]);
    insert_after(&root, "f.txt", "line 9", "on no branch");
    git(&root, &["-c", "user.email=a@brigade.invalid", "commit", "-q", "-a", "-m", "On no branch"]);
    fs::write(root.join("staged.txt"), "staged\n").unwrap();
    git(&root, &["add", "staged.txt"]);
    let commit = git(&root, &["rev-parse", "HEAD"]);
    link_place(repo.path(), "crew-task-1");
    assert_eq!(repo.launch().await, [""; 0]);
    repo.git(&["gc", "-q", "--prune=now"]);
    assert_adopted(&repo);
    let worktree = repo.provision(1).await;
    assert!(worktree.warnings[0].contains("run git switch brigade-tasks/crew/task-1"), "{:?}", worktree.warnings);
    git(&root, &["switch", "-q", "brigade-tasks/crew/task-1"]);
    git(&root, &["-c", "user.email=a@brigade.invalid", "commit", "-q", "-m", "Staged"]);
    git(&root, &["-c", "user.email=a@brigade.invalid", "merge", "-q", "--no-edit", &commit]);
    finish(&repo, &worktree).await;
    let text = repo.team_file("f.txt");
    assert!(text.contains("on the branch") && text.contains("on no branch"), "{text}");
    assert_eq!(repo.team_file("staged.txt"), "staged");
}

#[tokio::test]
async fn changes_in_linked_team_worktree_stay() {
    let repo = TestRepository::new().await;
    repo.launch().await;
    let linked = link_place(repo.path(), "crew");
    insert_after(&repo.team_worktree(), "f.txt", "line 2", "committed by the person");
    git(repo.team_worktree(), &["commit", "-q", "-a", "-m", "Mine"]);
    insert_after(&repo.team_worktree(), "f.txt", "line 4", "changed by the person");
    let diff = git(repo.team_worktree(), &["diff"]);
    fs::write(linked.join("index.lock"), "of a killed git").unwrap();
    fs::write(repo.path().join("person.txt"), "for the team\n").unwrap();
    repo.commit_as_person();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_adopted(&repo);
    assert_eq!(git(repo.team_worktree(), &["diff"]), diff);
    assert!(repo.team_file("f.txt").contains("committed by the person"));
    assert_eq!(fs::read_to_string(repo.team_worktree().join("person.txt")).unwrap(), "for the team\n");
}

/// Worktrees of the person may have the same names, elsewhere.
#[tokio::test]
async fn linked_worktrees_of_person_stay() {
    let repo = TestRepository::new().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let state = || {
        let list = repo.git(&["worktree", "list", "--porcelain"]);
        ["crew", "crew-task-1", "crew.merge"]
            .iter()
            .fold(list, |list, name| list + &git(elsewhere.path().join(name), &["status", "--branch", "--porcelain"]))
    };
    for name in ["crew", "crew-task-1", "crew.merge"] {
        let root = elsewhere.path().join(name);
        repo.git(&["worktree", "add", "-q", root.to_str().unwrap()]);
        fs::write(root.join("staged.txt"), "staged\n").unwrap();
        git(&root, &["add", "staged.txt"]);
    }
    // The person moved a worktree of the team elsewhere, and git follows the link to it.
    repo.provision(2).await;
    link_place(repo.path(), "crew-task-2");
    let moved = repo.path().join(".worktrees/crew-task-2");
    fs::rename(&moved, elsewhere.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("moved"), &moved).unwrap();
    let before = (state(), git(&moved, &["status", "--branch"]));
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!((state(), git(&moved, &["status", "--branch"])), before);
}

/// Git or an earlier version was killed while it made or removed them.
#[tokio::test]
async fn unfinished_linked_worktrees_are_removed() {
    let repo = TestRepository::new().await;
    repo.launch().await;
    for id in 1..=5 {
        repo.provision(id).await;
        link_place(repo.path(), &format!("crew-task-{id}"));
    }
    let linked = link_place(repo.path(), "crew");
    let worktree = |name: &str| repo.path().join(".worktrees").join(name);
    // In the middle of the checkout.
    for name in ["crew", "crew-task-1"] {
        fs::write(linked.with_file_name(name).join("locked"), "initializing").unwrap();
        fs::remove_file(linked.with_file_name(name).join("index")).unwrap();
        fs::remove_file(worktree(name).join("f.txt")).unwrap();
    }
    fs::remove_dir_all(worktree("crew-task-1/.agent")).unwrap();
    fs::remove_dir_all(worktree("crew/.agent")).unwrap();
    // Before the path of the worktree was written.
    fs::write(linked.with_file_name("crew-task-2").join("gitdir"), "").unwrap();
    fs::remove_dir_all(worktree("crew-task-2")).unwrap();
    // The same, and something else is in its place by now.
    fs::write(linked.with_file_name("crew-task-5").join("gitdir"), "").unwrap();
    fs::write(linked.with_file_name("crew-task-5").join("locked"), "initializing").unwrap();
    fs::remove_dir_all(worktree("crew-task-5")).unwrap();
    fs::create_dir(worktree("crew-task-5")).unwrap();
    fs::write(worktree("crew-task-5/other.txt"), "other").unwrap();
    // In the middle of the removal.
    fs::rename(worktree("crew-task-3"), worktree(".gone-crew-task-3")).unwrap();
    // After the checkout, before the state file.
    fs::remove_dir_all(worktree("crew-task-4/.agent")).unwrap();
    fs::write(worktree(".making-crew-task-4"), "").unwrap();
    fs::write(worktree(".making-crew-task-1"), "").unwrap();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_adopted(&repo);
    let names = fs::read_dir(worktree("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, [".gitignore", "crew", "crew-task-4", "crew-task-5"]);
    assert!(worktree("crew-task-5/other.txt").exists());
    assert_eq!(repo.team_status(), "");
    for id in 1..=4 {
        let ready = repo.provision(id).await;
        assert_eq!((ready.name, ready.warnings), (format!(".worktrees/crew-task-{id}"), Vec::new()));
        assert_eq!(git(&ready.root, &["status", "--porcelain"]), "");
    }
}

#[tokio::test]
async fn linked_worktree_that_cannot_be_adopted_is_named() {
    let repo = TestRepository::new().await;
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 1", "committed")).await;
    // A command of the earlier version could write there.
    let linked = link_place(repo.path(), "crew-task-1");
    fs::create_dir(linked.join("config")).unwrap();
    let notices = repo.launch().await;
    assert!(notices.len() == 1 && notices[0].contains("config"), "{notices:?}");
    let second = repo.provision(1).await;
    assert_eq!(second.name, ".worktrees/crew-task-1-2");
    assert!(second.warnings[0].contains(".worktrees/crew-task-1 stays unchanged"), "{:?}", second.warnings);
    assert!(git(&worktree.root, &["show", "HEAD:f.txt"]).contains("committed"));
    fs::remove_dir(linked.join("config")).unwrap();
    fs::create_dir(link_place(repo.path(), "crew").join("config")).unwrap();
    let refused = repo.refused_launch().await;
    assert!(refused.contains("config"), "{refused}");
}

/// The repository has a submodule, which has another one. The person and the teammate changed files in both.
#[tokio::test]
async fn submodules_of_linked_worktrees_are_connected() {
    let [inner, outer, repo] = [TestRepository::new().await, TestRepository::new().await, TestRepository::new().await];
    for (whole, part) in [(&outer, &inner), (&repo, &outer)] {
        let url = part.path().to_str().unwrap();
        whole.git(&[&SUBMODULES[..], &["--quiet", "add", "--name", "libs/part", url, "lib"]].concat());
        whole.commit_as_person();
    }
    let setup = SetupSpec { submodules: true, ..SetupSpec::default() };
    let repo = TestRepository { repository: open_with_setup(repo.path(), setup).await.unwrap(), ..repo };
    let worktree = repo.provision(1).await;
    let roots = [worktree.root.clone(), repo.team_worktree()];
    let update = |root| git(root, &[&SUBMODULES[..], &["--quiet", "update", "--recursive"]].concat());
    let state = || {
        roots.each_ref().map(|root| {
            let of =
                |folder: &str| git(root.join(folder), &["status", "--branch"]) + &git(root.join(folder), &["diff"]);
            [of(""), of("lib"), of("lib/lib"), git(root, &["submodule", "status", "--recursive"])]
        })
    };
    for (name, root) in ["crew-task-1", "crew"].iter().zip(&roots) {
        link_place(repo.path(), name);
        update(root);
        insert_after(&root.join("lib"), "f.txt", "line 1", "changed");
        insert_after(&root.join("lib/lib"), "f.txt", "line 1", "changed");
    }
    let before = state();
    assert_eq!(repo.launch().await, [""; 0]);
    assert_adopted(&repo);
    assert_eq!(state(), before);
    roots.iter().for_each(|root| drop(update(root)));
    assert_eq!(state(), before);
    repo.repository.prepare_setup(&SetupPlace::Task(worktree.root.clone())).await.unwrap();
    fs::write(worktree.root.join("done.txt"), "done\n").unwrap();
    repo.commit(&worktree).await;
    repo.merge(&worktree).await;
    let kept = repo.clean_up(&worktree).await.unwrap();
    assert!(kept.contains(".worktrees/crew-task-1 stays: it has submodules"), "{kept}");
}
