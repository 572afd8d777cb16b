//! The life of a team: the stages at which it changes files, and the work of its teammates.

use std::fs;
use std::path::{Path, PathBuf};

use brigade::domain::task::failed_attempt::FailedAttempt;
use brigade::git::GitRepository;
use brigade::ports::{
    Assignment, Merge, MergeOutcome, Repository, RepositoryError, SetupPlace, Worktree, WorktreeOutcome,
};

use crate::harness::{committed, git, insert_after, link_place, open, reported, task};

/// The stages in the life of a team, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The first launch creates the team worktree.
    FirstLaunch,
    /// The worktree of task 1 is created.
    NewWorktree,
    /// The worktree of task 1, without own work, is updated to the team branch, which has task 2.
    UpdatedWorktree,
    /// The next attempt continues in the worktree with its work.
    ResumedWorktree,
    /// The attempt fails.
    EndedAttempt,
    /// A new worktree is created, and a branch keeps the work of the failed attempt.
    NewAttempt,
    Commit,
    Merge,
    /// The merge is checked out to be verified.
    CheckOut,
    Publish,
    CleanUp,
    /// The next launch merges a commit of the person, and removes the worktree of task 2.
    NextLaunch,
    /// The next launch takes over the worktrees of an earlier version.
    Adoption,
}

pub const STAGES: [Stage; 13] = [
    Stage::FirstLaunch,
    Stage::NewWorktree,
    Stage::UpdatedWorktree,
    Stage::ResumedWorktree,
    Stage::EndedAttempt,
    Stage::NewAttempt,
    Stage::Commit,
    Stage::Merge,
    Stage::CheckOut,
    Stage::Publish,
    Stage::CleanUp,
    Stage::NextLaunch,
    Stage::Adoption,
];

/// The team in a workspace, and the state of task 1.
pub struct Life {
    folder: PathBuf,
    pub repository: GitRepository,
    worktree: Option<Worktree>,
    merge: Option<Merge>,
}

/// Task 1 in this attempt. The first attempt has failed if `has_failed`.
pub fn attempt(number: u32, has_failed: bool) -> Assignment {
    let failed = FailedAttempt { attempt: 1, owner: "alice".to_owned(), reason: "verify failed".to_owned() };
    Assignment { attempt: number, failed: has_failed.then_some(failed), ..task(1) }
}

/// Writes a committed line, an uncommitted one and a new file.
fn write_work(root: &Path, name: &str) {
    insert_after(root, "f.txt", "line 3", &format!("committed {name}"));
    git(root, &["-c", "user.email=alice@brigade.invalid", "commit", "-q", "-a", "-m", "Half"]);
    insert_after(root, "f.txt", "line 4", &format!("changed {name}"));
    fs::create_dir_all(root.join("new")).unwrap();
    fs::write(root.join("new").join(name), format!("new {name}\n")).unwrap();
}

/// Asserts that `read` finds all that [`write_work`] wrote.
pub fn assert_work(name: &str, place: &str, read: impl Fn(&str) -> String) {
    let (text, new) = (read("f.txt"), read(&format!("new/{name}")));
    let has_lines = text.contains(&format!("committed {name}")) && text.contains(&format!("changed {name}"));
    assert!(has_lines && new.trim_end() == format!("new {name}"), "the work `{name}` is lost in {place}: {text}{new}");
}

impl Life {
    pub async fn open(folder: &Path) -> Result<Self, RepositoryError> {
        let repository = open(folder).await?;
        Ok(Self { folder: folder.to_owned(), repository, worktree: None, merge: None })
    }

    fn worktree(&self) -> &Worktree {
        self.worktree.as_ref().unwrap()
    }

    /// Does what others do before a stage: people, agents, and the rest of the team.
    pub async fn prepare(&self, stage: Stage) -> Result<(), RepositoryError> {
        match stage {
            Stage::UpdatedWorktree => {
                let other = self.ready(&task(2)).await?;
                insert_after(&other.root, "f.txt", "line 8", "of task 2");
                let merge = self.created(&other).await?;
                self.repository.publish(&merge, &other.assignment).await?;
            }
            Stage::ResumedWorktree => write_work(&self.worktree().root, "first"),
            Stage::Commit => {
                write_work(&self.worktree().root, "second");
                // As `git gc` of the person does: deleting a ref rewrites the packed refs from now on.
                git(&self.folder, &["pack-refs", "--all"]);
            }
            Stage::NextLaunch => {
                fs::write(self.folder.join("person.txt"), "person's\n").unwrap();
                git(&self.folder, &["add", "person.txt"]);
                git(&self.folder, &["commit", "-q", "-m", "The person's", "--", "person.txt"]);
                let next = self.ready(&task(3)).await?;
                write_work(&next.root, "third");
            }
            Stage::Adoption => {
                let next = self.folder.join(".worktrees/crew-task-3");
                git(&next, &["fetch", "-q", "../..", "main"]);
                git(&next, &["merge", "-q", "--no-commit", "--no-ff", "FETCH_HEAD"]);
                link_place(&self.folder, "crew");
                link_place(&self.folder, "crew-task-3");
            }
            _ => {}
        }
        Ok(())
    }

    /// Does what Brigade does in a stage.
    pub async fn enter(&mut self, stage: Stage) -> Result<(), RepositoryError> {
        let repository = &self.repository;
        match stage {
            Stage::FirstLaunch => drop(repository.prepare_launch(Vec::new()).await?),
            Stage::NewWorktree => self.worktree = Some(self.ready(&attempt(1, false)).await?),
            Stage::UpdatedWorktree | Stage::ResumedWorktree => {
                self.worktree = Some(self.ready(&attempt(1, false)).await?);
            }
            Stage::EndedAttempt => repository.record_attempt_end(self.worktree()).await?,
            Stage::NewAttempt => self.worktree = Some(self.ready(&attempt(2, true)).await?),
            Stage::Commit => drop(committed(repository.commit(self.worktree(), "Done so.").await?)),
            Stage::Merge => self.merge = Some(self.created(self.worktree()).await?),
            Stage::CheckOut => {
                let merge = self.merge.clone().unwrap();
                repository.check_out(&merge).await?;
                repository.prepare_setup(&SetupPlace::Merge(merge)).await?;
            }
            Stage::Publish => {
                repository.publish(self.merge.as_ref().unwrap(), &self.worktree().assignment).await?;
                repository.update_team_worktree().await?;
            }
            Stage::CleanUp => drop(repository.clean_up(self.worktree()).await?),
            Stage::NextLaunch | Stage::Adoption => {
                let next = open(&self.folder).await?;
                next.prepare_launch(vec![attempt(2, true), task(2)]).await?;
            }
        }
        Ok(())
    }

    async fn ready(&self, assignment: &Assignment) -> Result<Worktree, RepositoryError> {
        match self.repository.provision(assignment).await? {
            WorktreeOutcome::Ready(worktree) => {
                self.repository.prepare_setup(&SetupPlace::Task(worktree.root.clone())).await?;
                Ok(worktree)
            }
            merged @ WorktreeOutcome::Merged { .. } => panic!("already merged: {merged:?}"),
        }
    }

    /// Commits all of the worktree and creates its merge.
    pub async fn created(&self, worktree: &Worktree) -> Result<Merge, RepositoryError> {
        let commit = committed(self.repository.commit(worktree, "Done so.").await?);
        match self.repository.merge(worktree, reported(&commit)).await? {
            MergeOutcome::Created(merge) => Ok(merge),
            other => panic!("{} is not merged: {other:?}", worktree.name),
        }
    }
}
