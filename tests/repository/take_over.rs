//! `brigade merge`: the person takes the team branch over. If git cannot merge, nothing is changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use brigade::git::take_over::TakeOver;
use brigade::git::{DriverOptions, GitRepository};
use brigade::ports::Repository;

use super::harness::{TestRepository, change_unnoticed, edit, git, git_output, insert_after, sandbox, steps_text};

/// A repository whose team branch has one merge.
async fn merged() -> TestRepository {
    let repo = TestRepository::new().await;
    for (key, value) in [("user.name", "Person"), ("user.email", "person@example.invalid")] {
        repo.git(&["config", key, value]);
    }
    let worktree = repo.worktree_with(1, |root| insert_after(root, "f.txt", "line 2", "of the team")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    assert_eq!(repo.clean_up(&worktree).await, None);
    repo
}

fn take_over(repo: &TestRepository) -> Result<TakeOver, String> {
    take_over_in(repo.path(), "brigade/crew")
}

fn take_over_in(folder: &Path, branch: &str) -> Result<TakeOver, String> {
    let drivers =
        DriverOptions { program: Some(env!("CARGO_BIN_EXE_brigade").into()), launch_sandbox: Some(sandbox(folder)) };
    GitRepository::take_over(folder, "crew", &branch.into(), &[], drivers).map_err(|error| error.to_string())
}

fn commits_ahead(repo: &TestRepository) -> usize {
    GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap().commits_ahead
}

/// Only the person works in the team worktree. A teammate can check out a copy of the team branch in its own.
#[tokio::test]
async fn commit_of_teammate_on_team_branch_is_not_taken() {
    let repo = merged().await;
    let worktree = repo.provision(2).await;
    git(&worktree.root, &["switch", "-q", "brigade/crew"]);
    git(&worktree.root, &["commit", "-q", "--allow-empty", "-m", "Not verified"]);
    let before = repo.team_tip();
    assert_eq!(take_over(&repo).unwrap().after, before);
    assert_eq!(repo.team_tip(), before);
}

#[tokio::test]
async fn take_over_fast_forwards_or_merges() {
    let repo = merged().await;
    assert_eq!(commits_ahead(&repo), 2);
    fs::write(repo.path().join("own.txt"), "unsaved\n").unwrap();
    let before = repo.git(&["rev-parse", "HEAD"]);
    let taken = take_over(&repo).unwrap();
    assert_eq!(
        taken,
        TakeOver { into: "main".into(), before, after: repo.team_tip(), is_taken: false, unsigned_commits: 0 }
    );
    assert_eq!((repo.checkout_status().as_str(), commits_ahead(&repo)), ("?? own.txt", 0));
    assert!(fs::read_to_string(repo.path().join("f.txt")).unwrap().contains("of the team"));
    let again = take_over(&repo).unwrap();
    assert_eq!(again.before, again.after, "there is nothing to merge");
    // Both sides have commits.
    let worktree = repo.worktree_with(2, |root| insert_after(root, "f.txt", "line 9", "more")).await;
    assert_eq!(repo.merge(&worktree).await, None);
    insert_after(repo.path(), "f.txt", "line 5", "mine");
    repo.git(&["commit", "-q", "-a", "-m", "Mine"]);
    let taken = take_over(&repo).unwrap();
    assert_eq!(repo.git(&["log", "-1", "--format=%an %s"]), "Person Merge branch 'brigade/crew'");
    assert_eq!(repo.git(&["rev-parse", "HEAD^2"]), repo.team_tip());
    assert_eq!(repo.git(&["rev-parse", "HEAD"]), taken.after);
    // The next launch continues from there.
    assert_eq!(repo.launch().await, [""; 0]);
    assert_eq!(repo.team_tip(), taken.after);
}

/// Adds a file to the team branch, where the person has an ignored one.
fn add_ignored_file(repo: &TestRepository) {
    fs::create_dir(repo.team_worktree().join("own")).unwrap();
    fs::write(repo.team_worktree().join("own/env"), "of the team\n").unwrap();
    git(repo.team_worktree(), &["add", "--force", "own/env"]);
    git(repo.team_worktree(), &["commit", "-q", "-m", "Env"]);
    fs::write(repo.path().join(".git/info/exclude"), "own\n").unwrap();
    fs::create_dir(repo.path().join("own")).unwrap();
    fs::write(repo.path().join("own/env"), "mine\n").unwrap();
}

#[tokio::test]
async fn failed_take_over_changes_nothing() {
    type Prepare = fn(&TestRepository);
    let cases: [(Prepare, &str, &str); 18] = [
        (|repo| edit(repo.path(), "f.txt", |text| text + "unsaved\n"), "uncommitted changes: f.txt", "git stash"),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 2", "mine");
                repo.commit_as_person();
                fs::write(repo.path().join("own.txt"), "unsaved\n").unwrap();
            },
            "it conflicts with main in f.txt. Nothing was changed",
            "`git merge brigade/crew`, resolve the conflicts",
        ),
        (|repo| add_ignored_file(repo), "it would overwrite untracked or ignored files: own/env", "move the files"),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                add_ignored_file(repo);
            },
            "it would overwrite untracked or ignored files: own/env",
            "move the files",
        ),
        (|repo| drop(repo.git(&["switch", "-q", "--detach"])), "no branch is checked out", "git switch BRANCH"),
        (
            |repo| {
                repo.git(&["switch", "-q", "-c", "side"]);
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                repo.git(&["switch", "-q", "main"]);
                repo.git(&["merge", "-q", "--no-ff", "--no-commit", "side"]);
            },
            "a git merge is unfinished",
            "git merge --abort",
        ),
        (
            |repo| {
                edit(repo.path(), "f.txt", |text| text + "unsaved\n");
                repo.git(&["add", "f.txt"]);
                repo.git(&["update-index", "--chmod=+x", "brigade.toml"]);
            },
            "uncommitted changes: f.txt. hint",
            "git stash",
        ),
        (
            |repo| {
                edit(repo.path(), "f.txt", |text| text + "unsaved\n");
                repo.git(&["update-index", "--assume-unchanged", "f.txt"]);
            },
            "f.txt",
            "git stash",
        ),
        (
            |repo| {
                // A stash that conflicts leaves an unmerged index, and no operation to continue.
                fs::write(repo.path().join("brigade.toml"), "stashed\n").unwrap();
                repo.git(&["stash", "-q"]);
                fs::write(repo.path().join("brigade.toml"), "committed\n").unwrap();
                repo.commit_as_person();
                assert_ne!(git_output(repo.path(), &["stash", "pop", "-q"]).0, Some(0));
            },
            "your index has conflicts in brigade.toml. hint",
            "`git add` the files",
        ),
        (
            |repo| fs::write(repo.path().join(".git/index.lock"), "").unwrap(),
            "index.lock. hint: wait until it has ended",
            "If no git runs, `rm ",
        ),
        (
            |repo| {
                repo.git(&["config", "user.name", ""]);
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
            },
            "empty ident name",
            "git config --global user.name NAME",
        ),
        (
            |repo| {
                insert_after(repo.path(), "f.txt", "line 9", "mine");
                repo.commit_as_person();
                repo.git(&["config", "merge.ff", "only"]);
            },
            "fast-forward",
            "git -c merge.ff=true merge brigade/crew",
        ),
        (|repo| drop(repo.git(&["update-ref", "-d", "refs/heads/brigade/crew"])), "there is no such branch", ""),
        (
            |repo| fs::write(repo.path().join(".git/refs/heads/main.lock"), "").unwrap(),
            "refs/heads/main.lock. hint: wait until it has ended",
            "If no git runs, `rm ",
        ),
        (
            |repo| fs::write(repo.path().join(".git/index"), "damaged\n").unwrap(),
            "git cannot read your index: ",
            "/.git/index && git reset`",
        ),
        (
            |repo| {
                repo.git(&["switch", "-q", "--detach"]);
                repo.git(&["bisect", "start"]);
            },
            "a git bisect is unfinished",
            "`git bisect reset`",
        ),
        (
            |repo| {
                fs::create_dir(repo.path().join(".git/rebase-apply")).unwrap();
                fs::write(repo.path().join(".git/rebase-apply/applying"), "").unwrap();
            },
            "a git am is unfinished",
            "`git am --continue`",
        ),
        (
            |repo| {
                repo.git(&["switch", "-q", "--orphan", "empty"]);
            },
            "your branch `empty` has no commit",
            "`git switch BRANCH`",
        ),
    ];
    for (prepare, reason, hint) in cases {
        let repo = merged().await;
        prepare(&repo);
        let state = || {
            let files = ["f.txt", "own/env", ".git/HEAD", ".git/refs/heads/main", ".git/index.lock"]
                .map(|file| fs::read(repo.path().join(file)).ok());
            // Git cannot read a damaged index.
            let status = git_output(repo.path(), &["status", "--porcelain"]);
            (files, status, repo.path().join(".git/MERGE_HEAD").exists())
        };
        let before = state();
        let error = take_over(&repo).map_or_else(|error| error, |taken| panic!("{reason}: {taken:?}"));
        assert!(error.contains(reason) && error.contains(hint), "{reason}: {error}");
        assert_eq!(state(), before, "{reason}");
    }
}

/// A person and a team, each with a commit of their own after a common one, and local changes of the person.
struct Branches {
    before: fn(&Path),
    of_team: fn(&Path),
    /// `None` if the person's branch has no commit of its own.
    of_person: Option<fn(&Path)>,
    local: fn(&Path),
}

fn commit_all(folder: &Path, message: &str) {
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "--allow-empty", "-m", message]);
}

impl Branches {
    /// A repository whose `main` is checked out, next to `brigade/crew`.
    async fn create(&self) -> TestRepository {
        let repo = TestRepository::new().await;
        for (key, value) in [("user.name", "Person"), ("user.email", "person@example.invalid")] {
            repo.git(&["config", key, value]);
        }
        (self.before)(repo.path());
        commit_all(repo.path(), "Before");
        repo.git(&["switch", "-q", "-c", "brigade/crew"]);
        (self.of_team)(repo.path());
        commit_all(repo.path(), "Of the team");
        repo.git(&["switch", "-q", "main"]);
        if let Some(of_person) = self.of_person {
            of_person(repo.path());
            commit_all(repo.path(), "Of the person");
        }
        (self.local)(repo.path());
        repo
    }
}

/// Everything that a merge changes: the commit, the index, the files with their kinds and modes, and what git makes of them.
fn state_of(folder: &Path) -> Vec<String> {
    let questions: [&[&str]; 6] = [
        &["log", "-1", "--format=%T %an %ae %cn %B"],
        &["rev-parse", "ORIG_HEAD", "HEAD^1"],
        &["rev-parse", "HEAD^2^{tree}", "HEAD~1^{tree}"],
        &["ls-files", "--stage", "-t"],
        &["status", "--porcelain", "--ignored", "-uall"],
        &["stash", "list"],
    ];
    let mut state: Vec<String> =
        questions.iter().map(|question| git_output(folder, question).1.replace("HEAD^2^{tree}", "")).collect();
    let files = std::process::Command::new("sh")
        .args(["-c", "find . -path ./.git -prune -o -printf '%p %y %m %l\\n' | sort; find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(files.status.success());
    state.push(String::from_utf8(files.stdout).unwrap());
    state
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn add_many_kinds(folder: &Path) {
    for name in
        ["kept.txt", "gone.txt", "renamed.txt", "run.sh", "link", "file", "folder/a", "folder/b/c", "staged.txt"]
    {
        write(folder, name, &format!("{name}\n").repeat(5));
    }
    write(folder, "crlf.txt", "a\r\nb\r\n");
    write(folder, ".gitattributes", "crlf.txt text eol=crlf\n");
    write(folder, ".gitignore", "*.ignored\n");
}

fn change_many_kinds(folder: &Path) {
    fs::remove_file(folder.join("gone.txt")).unwrap();
    fs::rename(folder.join("renamed.txt"), folder.join("new name\u{e9}\n.txt")).unwrap();
    fs::set_permissions(folder.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(folder.join("link")).unwrap();
    symlink("kept.txt", folder.join("link")).unwrap();
    fs::remove_file(folder.join("file")).unwrap();
    write(folder, "file/inside/x", "x\n");
    fs::remove_dir_all(folder.join("folder")).unwrap();
    write(folder, "folder", "a file now\n");
    write(folder, "crlf.txt", "a\r\nb\r\nc\r\n");
    write(folder, "more.crlf", "x\r\n");
    write(folder, ".gitattributes", "crlf.txt text eol=crlf\n*.crlf text eol=crlf\n");
    insert_after(folder, "f.txt", "line 2", "of the team");
}

fn change_locally(folder: &Path) {
    write(folder, "kept.txt", "unsaved\n");
    write(folder, "staged.txt", "staged\n");
    write(folder, "added.txt", "added\n");
    git(folder, &["add", "staged.txt", "added.txt"]);
    write(folder, "note.txt", "untracked\n");
    write(folder, "x.ignored", "ignored\n");
}

fn add_submodule(folder: &Path, commit: char) {
    let entry = format!("160000,{},sub", commit.to_string().repeat(40));
    git(folder, &["update-index", "--add", "--cacheinfo", &entry]);
}

#[tokio::test]
async fn take_over_does_what_git_merge_does() {
    let change_f: fn(&Path) = |folder| insert_after(folder, "f.txt", "line 9", "of the person");
    let cases: [(&str, Branches); 7] = [
        (
            "fast-forward",
            Branches { before: add_many_kinds, of_team: change_many_kinds, of_person: None, local: change_locally },
        ),
        (
            "merge",
            Branches {
                before: add_many_kinds,
                of_team: change_many_kinds,
                of_person: Some(change_f),
                local: |folder| {
                    write(folder, "kept.txt", "unsaved\n");
                    write(folder, "note.txt", "untracked\n");
                },
            },
        ),
        (
            "no fast-forward",
            Branches {
                before: add_many_kinds,
                of_team: change_many_kinds,
                of_person: None,
                local: |folder| {
                    git(folder, &["config", "merge.ff", "false"]);
                    git(folder, &["config", "merge.log", "true"]);
                },
            },
        ),
        (
            "sparse",
            Branches {
                before: add_many_kinds,
                of_team: |folder| {
                    write(folder, "folder/a", "changed\n");
                    write(folder, "folder/new", "new\n");
                    write(folder, "shown/new", "new\n");
                },
                of_person: None,
                local: |folder| {
                    git(folder, &["sparse-checkout", "set", "shown"]);
                },
            },
        ),
        (
            "submodule",
            Branches {
                before: |folder| add_submodule(folder, '1'),
                of_team: |folder| {
                    add_submodule(folder, '2');
                    write(folder, "new.txt", "new\n");
                    git(folder, &["add", "new.txt"]);
                    git(folder, &["commit", "-q", "-m", "Submodule"]);
                },
                of_person: None,
                local: |folder| fs::create_dir_all(folder.join("sub")).unwrap(),
            },
        ),
        (
            "same content on both sides",
            Branches {
                before: |_| {},
                of_team: |folder| {
                    write(folder, "same.txt", "same\n");
                    write(folder, "more.txt", "more\n");
                },
                of_person: Some(|folder| write(folder, "same.txt", "same\n")),
                local: |_| {},
            },
        ),
        (
            "split index",
            Branches {
                before: |folder| drop(git(folder, &["config", "core.splitIndex", "true"])),
                of_team: change_f,
                of_person: None,
                local: |folder| drop(git(folder, &["update-index", "--split-index"])),
            },
        ),
    ];
    for (case, branches) in cases {
        let repo = branches.create().await;
        let other = tempfile::tempdir().unwrap();
        let copied = std::process::Command::new("cp").arg("-a").arg(repo.path().join(".")).arg(other.path()).status();
        assert!(copied.unwrap().success());
        git(other.path(), &["merge", "-q", "--no-edit", "brigade/crew"]);
        let taken = take_over(&repo).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(taken.after, repo.git(&["rev-parse", "main"]), "{case}");
        let (ours, theirs) = (state_of(repo.path()), state_of(other.path()));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{case}");
        }
        assert!(!repo.path().join(".git/index.lock").exists(), "{case}");
        assert_eq!(fs::read_to_string(repo.path().join(".git/brigade-merge")).unwrap(), "", "{case}");
        repo.git(&["fsck", "--no-dangling", "--connectivity-only"]);
    }
}

#[tokio::test]
async fn take_over_works_in_linked_checkout() {
    let local: fn(&Path) = |_| {};
    let branches = Branches {
        before: add_many_kinds,
        of_team: change_many_kinds,
        of_person: Some(|folder| write(folder, "own.txt", "own\n")),
        local,
    };
    let repo = branches.create().await;
    let linked = repo.path().with_extension("linked");
    repo.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap(), "main"]);
    let main = repo.git(&["rev-parse", "main"]);
    let taken = take_over_in(&linked, "brigade/crew").unwrap();
    assert_eq!((taken.into.short(), &taken.before), ("side", &main));
    assert_eq!(git(&linked, &["rev-parse", "side"]), taken.after);
    assert_eq!((git(&linked, &["status", "--porcelain"]).as_str(), repo.checkout_status().as_str()), ("", ""));
    assert_eq!(repo.git(&["rev-parse", "main"]), main);
    assert!(git(&linked, &["reflog", "-1", "--format=%gs"]).starts_with("brigade: merge brigade/crew"));
    fs::remove_dir_all(&linked).unwrap();
}

#[tokio::test]
async fn take_over_sees_change_of_same_size_and_time() {
    let repo = merged().await;
    change_unnoticed(&repo.path().join("f.txt"), &repo.path().join(".git/index"), "line 8", "LINE 8");
    assert!(take_over(&repo).unwrap_err().contains("uncommitted changes: f.txt"));
    assert!(fs::read_to_string(repo.path().join("f.txt")).unwrap().contains("LINE 8"));
}

/// A kill between the new index and the move of the branch, also in the middle of git's own move: its locks are left.
#[tokio::test]
async fn take_over_finishes_after_killed_update_of_branch() {
    let repo = merged().await;
    let (before, after) = (repo.git(&["rev-parse", "main"]), repo.team_tip());
    repo.git(&["read-tree", "-m", "-u", &before, &after]);
    let record = repo.path().join(".git/brigade-merge");
    fs::write(&record, format!("{{\"branch\":\"main\",\"before\":\"{before}\",\"after\":\"{after}\"}}")).unwrap();
    fs::hard_link(&record, repo.path().join(".git/index.lock")).unwrap();
    for lock in ["refs/heads/main.lock", "HEAD.lock"] {
        fs::write(repo.path().join(".git").join(lock), format!("{after}\n")).unwrap();
    }
    assert_eq!(
        take_over(&repo),
        Ok(TakeOver { into: "main".into(), before, after, is_taken: false, unsigned_commits: 0 })
    );
    assert_eq!(repo.checkout_status(), "");
    assert_eq!(fs::read(&record).unwrap(), b"");
    // Killed between the last two steps.
    fs::hard_link(&record, repo.path().join(".git/index.lock")).unwrap();
    take_over(&repo).unwrap();
    repo.git(&["add", "-A"]);
}

/// An archive may contain any file in its `.git`.
#[tokio::test]
async fn planted_record_of_merge_changes_no_other_file() {
    let (repo, outside) = (merged().await, tempfile::tempdir().unwrap());
    let target = outside.path().join("mine.txt");
    fs::write(&target, "mine\n").unwrap();
    for name in ["brigade-merge", "brigade-at-work"] {
        let planted = repo.path().join(".git").join(name);
        let _ = fs::remove_file(&planted);
        symlink(&target, &planted).unwrap();
        let launched = repo.repository.prepare_launch(Vec::new()).await;
        assert!(name != "brigade-at-work" || launched.is_err(), "{name}");
        assert!(name != "brigade-merge" || take_over(&repo).is_err(), "{name}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine\n", "{name}");
        fs::remove_file(&planted).unwrap();
    }
    symlink(&target, repo.path().join(".git/brigade-merge-index")).unwrap();
    // A record that names a commit which the branch would lose.
    let before = repo.git(&["rev-parse", "main"]);
    let other = repo.git(&["commit-tree", "main^{tree}", "-m", "Unrelated"]);
    let record = format!("{{\"branch\":\"main\",\"before\":\"{before}\",\"after\":\"{other}\"}}");
    fs::write(repo.path().join(".git/brigade-merge"), record).unwrap();
    assert_eq!(
        take_over(&repo),
        Ok(TakeOver { into: "main".into(), before, after: repo.team_tip(), is_taken: false, unsigned_commits: 0 })
    );
    assert_eq!(fs::read_to_string(&target).unwrap(), "mine\n");
}

#[tokio::test]
async fn launch_check_finds_conflict_and_rebase() {
    let check =
        |repo: &TestRepository| GitRepository::check_launch(repo.path(), "crew").map_err(|error| error.to_string());
    let repo = merged().await;
    assert_eq!(check(&repo), Ok(()));
    insert_after(repo.path(), "f.txt", "line 9", "mine");
    repo.commit_as_person();
    assert_eq!(check(&repo), Ok(()), "the branches can be merged");
    insert_after(repo.path(), "f.txt", "line 2", "mine");
    repo.commit_as_person();
    let conflict = check(&repo).unwrap_err();
    assert!(conflict.starts_with("cannot merge your branch into brigade/crew: conflict in f.txt"), "{conflict}");
    fs::create_dir(repo.path().join(".git/rebase-merge")).unwrap();
    assert!(check(&repo).unwrap_err().contains("a rebase is unfinished in your checkout"));
}

/// Git keeps the index of a linked checkout in the git folder of the repository.
#[tokio::test]
async fn damaged_index_of_linked_checkout_is_named() {
    let repo = merged().await;
    let linked = tempfile::tempdir().unwrap();
    let folder = linked.path().join("linked");
    repo.git(&["worktree", "add", "-q", "-b", "side", folder.to_str().unwrap()]);
    fs::write(repo.path().join(".git/worktrees/linked/index"), "damaged\n").unwrap();
    let error = take_over_in(&folder, "brigade/crew").unwrap_err();
    assert!(error.contains("/.git/worktrees/linked/index && git reset`"), "{error}");
}

/// A launch does not create a branch that the person chose.
#[tokio::test]
async fn missing_merge_into_is_created_by_the_person() {
    let repo = merged().await;
    let error = take_over_in(repo.path(), "release").unwrap_err();
    let expected = "there is no such branch. hint: `git branch release` creates it from yours, or remove merge_into";
    assert!(error.ends_with(expected), "{error}");
}

#[tokio::test]
async fn moved_team_branch_names_the_next_step() {
    let repo = merged().await;
    let hints = || {
        let status = GitRepository::team_branch_status(repo.path(), "crew", None, &[]).unwrap();
        status.problems.into_iter().map(|problem| steps_text(&problem.next)).collect::<Vec<_>>()
    };
    repo.git(&["update-ref", "refs/heads/brigade/crew", "main"]);
    assert_eq!(hints(), ["the next launch updates them"]);
    fs::write(repo.team_worktree().join("mine.txt"), "mine\n").unwrap();
    assert!(hints()[0].contains("status` shows changes"), "{:?}", hints());
    fs::remove_file(repo.team_worktree().join("mine.txt")).unwrap();
    repo.launch().await;
    assert_eq!(hints(), Vec::<String>::new());
}
