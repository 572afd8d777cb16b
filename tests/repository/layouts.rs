//! Repositories as people have them: linked, bare, sparse, borrowing objects, with settings and branches of their own.

use std::fs;

use brigade::domain::access::PathRule;
use brigade::ports::Repository;
use brigade::stores::git::GitRepository;
use tempfile::TempDir;

use super::place::{Place, git, open, put};

/// A checkout of `branch` that is linked to the repository in `common`.
async fn linked(common: &TempDir, branch: &str, settings: impl FnOnce(&std::path::Path)) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    git(common.path(), &["worktree", "add", "-q", &path, branch]);
    settings(folder.path());
    let repository = open(folder.path()).await.unwrap();
    Place { folder, repository }
}

/// Work on a task is merged, and the checkout has it.
async fn holds(place: &Place) {
    let worktree = place.done(1, |root| put(root, "f.txt", "line 2", "of the team")).await;
    assert_eq!(place.merged(1, &worktree).await, None);
    assert_eq!(place.clear(1, &worktree).await, None);
    assert!(fs::read_to_string(place.path().join("f.txt")).unwrap().contains("of the team"));
    assert_eq!(place.status(), "");
}

fn bare(source: &Place) -> TempDir {
    let common = tempfile::tempdir().unwrap();
    git(source.path(), &["clone", "-q", "--bare", ".", &common.path().display().to_string()]);
    common
}

#[tokio::test]
async fn a_checkout_of_a_repository_without_one_of_its_own_is_as_good_as_any() {
    let source = Place::new().await;
    holds(&linked(&bare(&source), "main", |_| {}).await).await;
    // Where worktrees have settings of their own, that it has none stands there.
    let common = bare(&source);
    git(common.path(), &["config", "extensions.worktreeConfig", "true"]);
    git(common.path(), &["config", "--unset", "core.bare"]);
    git(common.path(), &["config", "--worktree", "core.bare", "true"]);
    holds(&linked(&common, "main", |_| {}).await).await;
}

#[tokio::test]
async fn what_a_sparse_checkout_leaves_out_is_worked_on_all_the_same() {
    let source = Place::new().await;
    for folder in ["in", "out"] {
        fs::create_dir(source.path().join(folder)).unwrap();
        fs::write(source.path().join(folder).join("x"), "x\n").unwrap();
    }
    source.git(&["add", "-A"]);
    source.git(&["commit", "-q", "-m", "Folders"]);
    let common = bare(&source);
    source.git(&["sparse-checkout", "set", "in"]);
    let linked = linked(&common, "main", |path| drop(git(path, &["sparse-checkout", "set", "in"]))).await;
    for place in [source, linked] {
        let worktree = place.provision(1).await;
        fs::create_dir_all(worktree.root.join("out")).unwrap();
        fs::write(worktree.root.join("out/new"), "new\n").unwrap();
        put(&worktree.root, "f.txt", "line 2", "of the team");
        place.commit(1, &worktree).await;
        assert_eq!(place.merged(1, &worktree).await, None);
        let all = place.git(&["ls-tree", "-r", "--name-only", "main"]);
        assert!(all.contains("out/new") && all.contains("out/x"), "{all}");
        assert!(!place.path().join("out").exists(), "it stays as sparse as it was");
        assert_eq!(place.status(), "");
    }
}

#[tokio::test]
async fn settings_that_the_teammate_added_are_not_the_checkouts() {
    let place = Place::new().await;
    place.git(&["config", "extensions.worktreeConfig", "true"]);
    place.git(&["config", "--worktree", "diff.algorithm", "histogram"]);
    let worktree = place.provision(1).await;
    git(&worktree.root, &["config", "--worktree", "filter.own.clean", "touch /tmp/never"]);
    put(&worktree.root, "f.txt", "line 2", "mine");
    let refused = place.repository.commit(&worktree, &super::place::task(1), "").await.unwrap().unwrap_err();
    assert!(refused.contains("git settings of its own"), "{refused}");
    git(&worktree.root, &["config", "--worktree", "--unset", "filter.own.clean"]);
    place.commit(1, &worktree).await;
}

#[tokio::test]
async fn objects_that_are_borrowed_are_not_a_commands_to_write() {
    let source = Place::new().await;
    let folder = tempfile::tempdir().unwrap();
    git(source.path(), &["clone", "-q", "--shared", ".", &folder.path().display().to_string()]);
    let further = tempfile::tempdir().unwrap();
    fs::write(
        source.path().join(".git/objects/info/alternates"),
        format!("# from elsewhere\n\"{}\"\n", further.path().display()),
    )
    .unwrap();
    let repository = open(folder.path()).await.unwrap();
    let place = Place { folder, repository };
    let worktree = place.provision(1).await;
    let boundaries = place.repository.boundaries(Some(&worktree));
    for objects in [source.path().join(".git/objects"), further.path().to_owned()] {
        assert!(boundaries.contains(&PathRule::read_only(&objects)), "{}: {boundaries:?}", objects.display());
    }
}

#[tokio::test]
async fn packs_are_whole_however_small_the_person_wants_them() {
    let place = Place::new().await;
    place.git(&["config", "pack.packSizeLimit", "1m"]);
    let worktree = place
        .done(1, |root| {
            for file in ["a", "b", "c"] {
                let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(900_000).collect();
                fs::write(root.join(file), noise).unwrap();
            }
        })
        .await;
    assert_eq!(place.merged(1, &worktree).await, None);
}

#[tokio::test]
async fn branches_in_the_way_of_the_teams_are_told_or_gone_around() {
    let place = Place::new().await;
    place.git(&["branch", "brigade/crew/task-1/below"]);
    let worktree = place.provision(1).await;
    assert_eq!(worktree.branch, "brigade/crew/task-1-2");
    assert!(worktree.warnings.concat().contains("there are branches below"), "{:?}", worktree.warnings);
    put(&worktree.root, "f.txt", "line 2", "mine");
    place.commit(1, &worktree).await;
    assert_eq!(place.merged(1, &worktree).await, None);
    let other = Place::new().await;
    other.git(&["branch", "brigade"]);
    let refused = GitRepository::check(other.path(), None).unwrap_err().to_string();
    assert!(refused.contains("git branch -m brigade"), "{refused}");
}

#[tokio::test]
async fn what_the_person_has_git_not_see_stays_as_it_is() {
    let place = Place::new().await;
    let file = place.path().join(".git/info/exclude");
    fs::write(&file, b"# mine\ncaf\xe9.txt").unwrap();
    place.provision(1).await;
    let text = fs::read(&file).unwrap();
    assert_eq!(text, b"# mine\ncaf\xe9.txt\n/.worktrees/\n/.agent/\n/.tasks/\n/.team/\n/agent_state.json\n");
    place.provision(2).await;
    assert_eq!(fs::read(&file).unwrap(), text, "once");
}
