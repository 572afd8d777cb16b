//! Git LFS: contents are in files beside the objects, so that a commit alone does not hold the work. A filter stands in for git-lfs,
//! with its pointers, its folder and its look into repositories that objects are borrowed from.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use brigade::domain::task::failed_attempt::FailedAttempt;
use brigade::ports::{Assignment, CommitOutcome, MergeOutcome, Repository, WorktreeOutcome};
use tempfile::TempDir;

use crate::harness::{TestRepository, open, reported, task};
use crate::teammate::{PersonState, common_dir, finish, run};

const FILTER: &str = r#"#!/bin/sh
# Usage: filter clean|smudge. Stands in for git-lfs.
set -e
store="$(git rev-parse --git-common-dir)/lfs"
path() { echo "objects/$(echo "$1" | cut -c1-2)/$(echo "$1" | cut -c3-4)/$1"; }
case $1 in
clean)
    mkdir -p "$store/tmp"
    new=$(mktemp "$store/tmp/XXXXXX")
    cat > "$new"
    if head -c 100 "$new" | grep -q '^version https://git-lfs'; then cat "$new"; rm "$new"; exit; fi
    id=$(sha256sum < "$new" | cut -d ' ' -f 1)
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %s\n' "$id" "$(wc -c < "$new" | tr -d ' ')"
    mkdir -p "$store/$(dirname "$(path "$id")")"
    mv "$new" "$store/$(path "$id")"
    ;;
smudge)
    pointer=$(cat)
    id=$(echo "$pointer" | sed -n 's/^oid sha256://p')
    # A conflict is no pointer.
    if [ "$(echo "$pointer" | wc -l)" -ne 3 ] || [ -z "$id" ]; then echo "$pointer"; exit; fi
    objects=$(git rev-parse --git-path objects)
    for folder in "$store" $(sed 's,$,/../lfs,' "$objects/info/alternates" 2> /dev/null); do
        if [ -e "$folder/$(path "$id")" ]; then exec cat "$folder/$(path "$id")"; fi
    done
    echo "cannot find the content $id" >&2
    exit 2
    ;;
esac
"#;

/// A repository whose `*.bin` are kept by the filter, with one such file of the person's.
async fn repository() -> (TempDir, TestRepository) {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("filter");
    fs::write(&program, FILTER).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let repo = TestRepository::new().await;
    for part in ["clean", "smudge"] {
        let command = format!("'{}' {part}", program.display());
        repo.git(&["config", &format!("filter.lfs.{part}"), &command]);
    }
    repo.git(&["config", "filter.lfs.required", "true"]);
    fs::write(repo.path().join(".gitattributes"), "*.bin filter=lfs diff=lfs merge=lfs -text\n").unwrap();
    fs::write(repo.path().join("old.bin"), "of the person\n").unwrap();
    repo.commit_as_person();
    let repository = open(repo.path()).await.unwrap();
    (programs, TestRepository { repository, ..repo })
}

/// The file with the content of a pointer, in the repository's own folder.
fn content_path(repo: &TestRepository, pointer: &str) -> PathBuf {
    let id = pointer.lines().find_map(|line| line.strip_prefix("oid sha256:"));
    let id = id.unwrap_or_else(|| panic!("this is no pointer: {pointer}"));
    common_dir(repo.path()).join("lfs/objects").join(&id[..2]).join(&id[2..4]).join(id)
}

/// Asserts that a commit has a pointer whose content is in the person's repository.
fn assert_content(repo: &TestRepository, commit: &str, file: &str, text: &str) {
    let path = content_path(repo, &repo.git(&["show", &format!("{commit}:{file}")]));
    let content =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{commit} {file} {}: {error}", path.display()));
    assert_eq!(content, text, "{commit} {file}");
}

fn assert_team_file(repo: &TestRepository, file: &str, text: &str) {
    assert_content(repo, "brigade/crew", file, text);
    assert_eq!(fs::read_to_string(repo.team_worktree().join(file)).unwrap(), text, "{file}");
}

#[tokio::test]
async fn lfs_contents_outlive_their_worktree() {
    let (_programs, repo) = repository().await;
    repo.launch().await;
    let before = PersonState::of(&repo);
    let worktree = repo.provision(1).await;
    assert_eq!(fs::read_to_string(worktree.root.join("old.bin")).unwrap(), "of the person\n");
    // Two contents in commits, one of which no later commit has, and one that Brigade commits.
    let script = "echo first > new.bin; git add new.bin; git commit -q -m First
        echo second > new.bin; git commit -q -a -m Second; git status --porcelain; echo changed > old.bin";
    run(&repo, &worktree, script);
    finish(&repo, &worktree, || ()).await;
    assert_team_file(&repo, "new.bin", "second\n");
    assert_team_file(&repo, "old.bin", "changed\n");
    assert_eq!(repo.git(&["log", "--format=%H", "--grep=^First", "brigade/crew"]).lines().count(), 1);
    let first = repo.git(&["log", "--format=%H", "--grep=^First", "brigade/crew"]);
    assert_content(&repo, &first, "new.bin", "first\n");
    assert_eq!(PersonState::of(&repo), before);
    // The next task builds on it, and the person takes it over.
    let worktree = repo.provision(2).await;
    run(&repo, &worktree, "cat new.bin old.bin > all.bin; git add all.bin; git commit -q -m All");
    finish(&repo, &worktree, || ()).await;
    assert_team_file(&repo, "all.bin", "second\nchanged\n");
    repo.git(&["merge", "-q", "--no-edit", "brigade/crew"]);
    assert_eq!(fs::read_to_string(repo.path().join("all.bin")).unwrap(), "second\nchanged\n");
    assert_eq!(repo.checkout_status(), "");
}

/// The branch of a failed attempt outlives its worktree too.
#[tokio::test]
async fn lfs_contents_of_failed_attempt_are_kept() {
    let (_programs, repo) = repository().await;
    let worktree = repo.provision(1).await;
    run(&repo, &worktree, "echo one > one.bin; git add one.bin; git commit -q -m One; echo two > two.bin");
    repo.repository.record_attempt_end(&worktree).await.unwrap();
    let failed = FailedAttempt { attempt: 1, owner: "alice".into(), reason: "no".into() };
    let next = Assignment { attempt: 2, failed: Some(failed), ..task(1) };
    let WorktreeOutcome::Ready(next) = repo.repository.provision(&next).await.unwrap() else { panic!() };
    let kept = next.kept_branch.clone().unwrap();
    assert!(!next.root.join("one.bin").exists());
    assert_content(&repo, &kept.full(), "one.bin", "one\n");
    assert_content(&repo, &kept.full(), "two.bin", "two\n");
    // The next attempt takes a file from it.
    run(
        &repo,
        &next,
        &format!("git fetch -q ../.. {kept}; git checkout -q FETCH_HEAD -- one.bin; git commit -q -m Again"),
    );
    finish(&repo, &next, || ()).await;
    assert_team_file(&repo, "one.bin", "one\n");
}

/// Contents that a merge makes: of a resolved conflict.
#[tokio::test]
async fn lfs_contents_of_resolved_conflict_are_merged() {
    let (_programs, repo) = repository().await;
    let (first, second) = (repo.provision(1).await, repo.provision(2).await);
    run(&repo, &first, "echo first > old.bin; git commit -q -a -m First");
    run(&repo, &second, "echo second > old.bin; git commit -q -a -m Second");
    finish(&repo, &first, || ()).await;
    repo.commit(&second).await;
    let refused = repo.refused_merge(&second).await;
    assert!(refused.contains("old.bin"), "{refused}");
    let script = "git merge -q brigade/crew && exit 9; printf 'first\\nsecond\\n' > old.bin; git add old.bin
        git commit -q -m Both -m 'Brigade-Drops: old.bin has both contents'";
    run(&repo, &second, script);
    finish(&repo, &second, || ()).await;
    assert_team_file(&repo, "old.bin", "first\nsecond\n");
}

/// A pointer whose content is nowhere is not published: no checkout could have it.
#[tokio::test]
async fn pointer_without_content_is_not_published() {
    let (_programs, repo) = repository().await;
    let worktree = repo.provision(1).await;
    let before = repo.team_tip();
    let id = "ab".repeat(32);
    let script = format!(
        "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:{id}\\nsize 3\\n' > none.bin
         git add none.bin; git commit -q -m None"
    );
    run(&repo, &worktree, &script);
    let refused = match repo.repository.commit(&worktree, "Done so.").await {
        Ok(CommitOutcome::Committed(commit)) => match repo.repository.merge(&worktree, reported(&commit)).await {
            Ok(MergeOutcome::Created(merge)) => repo.repository.check_out(&merge).await.unwrap_err().to_string(),
            Ok(MergeOutcome::Refused(reason)) => reason,
            Ok(other) => panic!("{other:?}"),
            Err(error) => error.to_string(),
        },
        Ok(CommitOutcome::Refused(reason)) => reason,
        Err(error) => error.to_string(),
    };
    assert!(refused.contains(&id) || refused.contains("none.bin"), "{refused}");
    assert_eq!(repo.team_tip(), before);
    // Other tasks are merged.
    let other = repo.provision(2).await;
    run(&repo, &other, "echo x > x.bin; git add x.bin; git commit -q -m X");
    finish(&repo, &other, || ()).await;
    assert_team_file(&repo, "x.bin", "x\n");
}

/// A member's command writes its own contents only: those of the person stay as they are.
#[tokio::test]
async fn lfs_contents_of_person_are_not_changed_by_commands() {
    let (_programs, repo) = repository().await;
    let worktree = repo.provision(1).await;
    let path = content_path(&repo, &repo.git(&["show", "main:old.bin"]));
    let script =
        format!("echo bad > '{}' && exit 9; echo x > x.bin; git add x.bin; git commit -q -m X", path.display());
    run(&repo, &worktree, &script);
    assert_eq!(fs::read_to_string(&path).unwrap(), "of the person\n");
    // A content under the name of another, which an honest filter never writes.
    let forged = common_dir(&worktree.root).join("lfs/objects").join(path.strip_prefix(lfs_objects(&repo)).unwrap());
    run(
        &repo,
        &worktree,
        &format!("mkdir -p '{}'; echo bad > '{}'", forged.parent().unwrap().display(), forged.display()),
    );
    let commit = repo.commit(&worktree).await;
    // A merge may be refused, but nothing of the person's is replaced.
    if let Ok(MergeOutcome::Created(merge)) = repo.repository.merge(&worktree, reported(&commit)).await {
        let _ = repo.repository.publish(&merge, &task(1)).await.unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "of the person\n");
}

fn lfs_objects(repo: &TestRepository) -> PathBuf {
    common_dir(repo.path()).join("lfs/objects")
}
