//! Git in a task's worktree works as agents know it: branches, stashes, tags, rewritten commits, remotes.

use std::fs;
use std::path::Path;

use brigade::sandbox::CommandExit;
use tempfile::TempDir;

use crate::harness::{TestRepository, git, open};
use crate::teammate::{PersonState, finish, publish, run, try_run};

/// Shell functions: a commit of a file each, an editor that changes nothing, and the end of a conflict that keeps both sides.
const FUNCTIONS: &str = "
a() { echo a > a.txt; git add a.txt; git commit -q -m A; }
b() { echo b > b.txt; git add b.txt; git commit -q -m B; }
mine() { sed -i 's/line 2/mine/' f.txt; git commit -q -a -m Mine; }
fails() { if \"$@\"; then exit 9; fi; }
both() { sed -i '/^<<<<<<<\\|^=======\\|^>>>>>>>/d' f.txt; git add f.txt; }
export GIT_EDITOR=true
";

/// A repository with two branches of the person, one of which changes line 2.
async fn repository() -> TestRepository {
    let repo = TestRepository::new().await;
    repo.git(&["switch", "-q", "-c", "wip"]);
    fs::write(repo.path().join("wip.txt"), "wip\n").unwrap();
    repo.commit_as_person();
    repo.git(&["switch", "-q", "-c", "conflicting", "main"]);
    edit_line(&repo, "the person's");
    repo.git(&["switch", "-q", "main"]);
    repo
}

/// Changes line 2 in a commit of the person.
fn edit_line(repo: &TestRepository, line: &str) {
    let path = repo.path().join("f.txt");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("line 2", line)).unwrap();
    repo.commit_as_person();
}

/// Runs the script in a task's worktree and merges the work. Then the team branch has these lines in these files, and this number of
/// commits of the teammate.
async fn assert_merged(script: &str, commits: usize, has: &[(&str, &str)]) -> TestRepository {
    let repo = repository().await;
    let worktree = repo.provision(1).await;
    let before = PersonState::of(&repo);
    run(&repo, &worktree, &format!("{FUNCTIONS}{script}"));
    let state = run(&repo, &worktree, "git status");
    assert!(!state.contains("in progress") && !state.contains("You are currently"), "{state}");
    finish(&repo, &worktree, || ()).await;
    for (file, text) in has {
        assert!(repo.team_file(file).lines().any(|line| line == *text), "{file}");
    }
    let count = repo.git(&["rev-list", "--count", "main..brigade/crew^2"]);
    assert_eq!(count, commits.to_string(), "{}", repo.git(&["log", "--oneline", "--graph", "brigade/crew"]));
    assert_eq!(PersonState::of(&repo), before);
    repo
}

/// Tests with a name, a script, the number of its commits and the lines that it leaves.
macro_rules! scripts {
    ($($name:ident: $script:literal, $commits:literal, [$($has:expr),*];)*) => {
        $(#[tokio::test]
        async fn $name() {
            assert_merged($script, $commits, &[$($has),*]).await;
        })*
    };
}

scripts! {
    new_branch: "git checkout -q -b feature/login; a", 1, [("a.txt", "a")];
    branch_that_is_merged_back: "git switch -q -c side; a; git switch -q -; git merge -q side", 1, [("a.txt", "a")];
    branch_with_merge_commit:
        "git switch -q -c side; a; git switch -q -; b; git merge -q --no-edit side; git branch -q -d side",
        3, [("a.txt", "a"), ("b.txt", "b")];
    // Git renames the branch, and then cannot write the settings.
    renamed_branch: "a; fails git branch -m my-work; b", 2, [("a.txt", "a"), ("b.txt", "b")];
    detached_head: "git checkout -q --detach; a", 1, [("a.txt", "a")];
    amend:
        "a; echo more >> a.txt; git commit -q -a --amend --no-edit; git commit -q --amend -m Better",
        1, [("a.txt", "a"), ("a.txt", "more")];
    soft_reset: "a; b; git reset -q --soft HEAD~2; git commit -q -m Both", 1, [("a.txt", "a"), ("b.txt", "b")];
    stash_and_pop:
        "sed -i 's/line 2/mine/' f.txt; echo n > new.txt; git stash -q -u; grep -q 'line 2' f.txt; a
         git stash pop -q; git add -A; git commit -q -m Popped",
        2, [("a.txt", "a"), ("f.txt", "mine"), ("new.txt", "n")];
    tags: "a; git tag v1; git tag -a v2 -m Two; git describe | grep -q v2; git tag -d v1", 1, [("a.txt", "a")];
    cherry_pick_of_own_commit:
        "git switch -q -c side; a; git switch -q -; b; git cherry-pick side; git branch -q -D side",
        2, [("a.txt", "a"), ("b.txt", "b")];
    cherry_pick_of_persons_commit: "git cherry-pick wip; a", 2, [("a.txt", "a"), ("wip.txt", "wip")];
    cherry_pick_with_conflict:
        "mine; fails git cherry-pick conflicting; both; git cherry-pick --continue",
        2, [("f.txt", "mine"), ("f.txt", "the person's")];
    cherry_pick_given_up: "mine; fails git cherry-pick conflicting; git cherry-pick --abort", 1, [("f.txt", "mine")];
    rebase:
        "git switch -q -c side; a; git switch -q -; b; git switch -q side; git rebase -q @{-1}",
        2, [("a.txt", "a"), ("b.txt", "b")];
    interactive_rebase:
        "a; b; GIT_SEQUENCE_EDITOR='sed -i 2s/^pick/fixup/' git rebase -q -i HEAD~2",
        1, [("a.txt", "a"), ("b.txt", "b")];
    rebase_with_conflict:
        "git switch -q -c side; mine; git switch -q -; sed -i 's/line 2/other/' f.txt; git commit -q -a -m Other
         git switch -q side; fails git rebase @{-1}; both; git rebase --continue",
        2, [("f.txt", "mine"), ("f.txt", "other")];
    revert: "a; b; git revert --no-edit HEAD~1; test ! -e a.txt", 3, [("b.txt", "b")];
    rare_commands:
        "a; b; git bisect start HEAD HEAD~2; git bisect run true; git bisect reset; git reflog | grep -q B
         git notes add -m Note; git gc -q; git fsck; git worktree add -q own -b own; git worktree remove own",
        2, [("a.txt", "a"), ("b.txt", "b")];
    // A person's git would follow them.
    settings_are_refused: "fails git config core.fsmonitor false; fails git config --unset core.bare; a", 1, [("a.txt", "a")];
}

/// A stash or branch that remains is no part of the work: its author decides, and after the report nothing is removed.
#[tokio::test]
async fn report_with_work_left_behind_is_refused() {
    for (leave, take, drop) in [
        ("echo no > f.txt; git stash -q", "git stash pop", "git stash drop"),
        (
            "git checkout -q -b side; echo no > no.txt; git add .; git commit -q -m No; git checkout -q -",
            "git merge side",
            "git branch -D side",
        ),
    ] {
        let repo = repository().await;
        let worktree = repo.provision(1).await;
        run(&repo, &worktree, &format!("{FUNCTIONS} {leave}; a"));
        let refused = repo.refused_commit(&worktree).await;
        assert!(refused.contains(take) && refused.contains(drop), "{refused}");
        run(&repo, &worktree, drop);
        publish(&repo, &worktree, || ()).await;
        assert_eq!((repo.team_file("a.txt").as_str(), repo.team_file("f.txt").contains("line 2")), ("a", true));
        run(&repo, &worktree, leave);
        let reason = repo.clean_up(&worktree).await.unwrap();
        assert!(reason.contains("not merged") && worktree.root.exists(), "{reason}");
    }
}

/// Git would look for another repository above the folder, and find the person's.
#[tokio::test]
async fn damaged_git_folder_is_not_replaced_by_persons() {
    let repo = repository().await;
    let worktree = repo.provision(1).await;
    let output = run(&repo, &worktree, "rm .git/HEAD; git status || true; git -C ../.. status --short");
    assert_eq!(output.lines().count(), 1, "{output}");
    assert!(output.starts_with("fatal: not a git repository"), "{output}");
}

/// The person has the branch of a task, and may commit there.
#[tokio::test]
async fn persons_commit_on_task_branch_is_not_overwritten() {
    let repo = repository().await;
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, &format!("{FUNCTIONS} a"));
    repo.commit(&worktree).await;
    repo.git(&["switch", "-q", worktree.branch.short()]);
    fs::write(repo.path().join("of-person.txt"), "x\n").unwrap();
    repo.commit_as_person();
    repo.git(&["switch", "-q", "-"]);
    run(&repo, &worktree, "git commit -q --amend -m 'Another message'");
    let refused = repo.refused_commit(&worktree).await;
    assert!(refused.contains("a person committed on brigade-tasks/crew/task-1"), "{refused}");
    let pull = refused.split("Run ").nth(1).unwrap().split(" in the worktree").next().unwrap();
    run(&repo, &worktree, &format!("{pull} -q"));
    publish(&repo, &worktree, || ()).await;
    assert_eq!(repo.team_file("of-person.txt"), "x");
}

/// The team branch has new work of another task, which conflicts.
#[tokio::test]
async fn team_branch_is_merged_after_refused_merge() {
    for how in ["git merge -q brigade/crew", "git rebase -q brigade/crew"] {
        let repo = repository().await;
        let (first, second) = (repo.provision(1).await, repo.provision(2).await);
        run(&repo, &first, &format!("{FUNCTIONS} mine"));
        run(&repo, &second, "sed -i 's/line 2/yours/' f.txt; git commit -q -a -m Yours");
        finish(&repo, &second, || ()).await;
        repo.commit(&first).await;
        let refused = repo.refused_merge(&first).await;
        assert!(refused.contains("conflict in f.txt"), "{refused}");
        let goes_on = if how.contains("rebase") { "git rebase --continue" } else { "git commit -q --no-edit" };
        run(&repo, &first, &format!("{FUNCTIONS} fails {how}; both; {goes_on}"));
        finish(&repo, &first, || ()).await;
        let merged = repo.team_file("f.txt");
        assert!(merged.contains("mine\n") && merged.contains("yours\n"), "{how}: {merged}");
    }
}

/// A clone of the person's, beside the repository that it comes from.
async fn clone_with_remote() -> (TempDir, TestRepository) {
    let source = repository().await;
    let folder = tempfile::tempdir().unwrap();
    git(source.path(), &["clone", "-q", source.path().to_str().unwrap(), folder.path().to_str().unwrap()]);
    let repository = open(folder.path()).await.unwrap();
    (source.folder, TestRepository { folder, repository })
}

fn commit_at(folder: &Path, file: &str) -> String {
    fs::write(folder.join(file), "upstream\n").unwrap();
    git(folder, &["add", file]);
    git(folder, &["commit", "-q", "-m", "Upstream"]);
    git(folder, &["rev-parse", "HEAD"])
}

#[tokio::test]
async fn fetched_commits_are_merged_unchanged() {
    let (source, repo) = clone_with_remote().await;
    let worktree = repo.provision(1).await;
    let before = PersonState::of(&repo);
    let upstream = commit_at(source.path(), "upstream.txt");
    run(&repo, &worktree, &format!("{FUNCTIONS} a; git fetch -q origin; git merge -q --no-edit origin/main; b"));
    finish(&repo, &worktree, || ()).await;
    for (file, text) in [("a.txt", "a"), ("b.txt", "b"), ("upstream.txt", "upstream")] {
        assert_eq!(repo.team_file(file), text);
    }
    repo.git(&["merge-base", "--is-ancestor", &upstream, "brigade/crew"]);
    assert_eq!(PersonState::of(&repo), before);
}

#[tokio::test]
async fn pull_with_rebase_works() {
    let (source, repo) = clone_with_remote().await;
    let worktree = repo.provision(1).await;
    let upstream = commit_at(source.path(), "upstream.txt");
    run(&repo, &worktree, &format!("{FUNCTIONS} a; git pull -q --rebase origin main"));
    finish(&repo, &worktree, || ()).await;
    assert_eq!((repo.team_file("a.txt"), repo.team_file("upstream.txt")), ("a".to_owned(), "upstream".to_owned()));
    repo.git(&["merge-base", "--is-ancestor", &upstream, "brigade/crew"]);
}

/// A branch of a remote is looked at, and taken over on the branch of the task.
#[tokio::test]
async fn branch_of_remote_can_be_switched_to() {
    let (_source, repo) = clone_with_remote().await;
    let worktree = repo.provision(1).await;
    run(
        &repo,
        &worktree,
        &format!("{FUNCTIONS} git switch -q wip; grep -q wip wip.txt; git checkout -q -b mine origin/wip; a"),
    );
    let refused = repo.refused_commit(&worktree).await;
    let switch = format!("git switch {}", worktree.branch);
    assert!(refused.contains(&format!("{switch} and merge")), "{refused}");
    run(&repo, &worktree, &format!("{switch}; git merge -q mine"));
    finish(&repo, &worktree, || ()).await;
    assert_eq!((repo.team_file("a.txt"), repo.team_file("wip.txt")), ("a".to_owned(), "wip".to_owned()));
}

/// A branch that is sent to the remote before the report.
#[tokio::test]
async fn own_branch_can_be_pushed() {
    let (source, repo) = clone_with_remote().await;
    let worktree = repo.provision(1).await;
    let (exit, output) =
        try_run(&repo, &worktree, &format!("{FUNCTIONS} git checkout -q -b mine; a; git push -q -u origin mine"));
    assert_eq!(exit, CommandExit::Code(0), "{output}");
    assert_eq!(git(source.path(), &["show", "mine:a.txt"]), "a");
    finish(&repo, &worktree, || ()).await;
    assert_eq!(repo.team_file("a.txt"), "a");
}
