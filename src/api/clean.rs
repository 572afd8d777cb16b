//! Finds old run-time files, branches and worktrees, and removes them.

use crate::api::next::OrderForm;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lead_status::LeadStatus;
use super::refusal::{ApiResult, Refusal};
use super::workspace::Workspace;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::text::units::join_up_to;
use crate::git::leftovers::KeptOptions;
pub use crate::git::leftovers::{KeptAttempt, KeptWorktree, Leftover};
pub use crate::git::set_aside::TakenCommits;
use crate::git::{DriverOptions, GitRepository};
use crate::service::workers;
use crate::stores::file::board::QUARANTINE_FOLDER;
use crate::stores::file::state::STATE_FILE;
use crate::stores::workspace::{BOARD_FOLDER, OpenMode, TEAM_FOLDER};

/// The most files of one clean-up.
const ENTRIES_MAX: usize = 100_000;

/// The most tasks that a refusal names.
const NAMED_MAX: usize = 5;

/// The name of the lead during the clean-up. No team can start meanwhile.
const CLEANER: &str = "brigade-clean";

/// The things to clean, in addition to records of dead workers, rotated logs and invalid files that were set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// The transcripts, and the mail in delivery.
    pub all: bool,
    /// The task board with all its tasks.
    pub board: bool,
    /// The branches that keep the work of failed attempts.
    pub attempts: bool,
    /// The refs that keep a team's commits which the person took over in another form.
    pub taken: bool,
    /// The worktrees that are kept for files which git ignores.
    pub worktrees: bool,
}

/// An old file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OldFile {
    /// Its path.
    #[serde(serialize_with = "crate::config::path_as_text")]
    #[schemars(with = "String")]
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The things that a clean-up found. Those that it selects were removed, if `removed` is true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Cleanup {
    /// True if the selected things were removed.
    pub removed: bool,
    /// The size of all files.
    pub bytes: u64,
    /// The selected files.
    pub files: Vec<OldFile>,
    /// The worktrees and branches of deleted tasks. A clean-up never removes them.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub leftovers: Vec<Leftover>,
    /// The branches that keep the work of failed attempts.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub attempts: Vec<KeptAttempt>,
    /// The refs that keep commits of a team.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub taken: Vec<TakenCommits>,
    /// The worktrees that are kept.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub worktrees: Vec<KeptWorktree>,
    /// The selection.
    #[serde(skip)]
    pub selection: Selection,
}

impl Cleanup {
    /// The selected branches.
    pub fn selected_attempts(&self) -> &[KeptAttempt] {
        if self.selection.attempts { &self.attempts } else { &[] }
    }

    /// The selected refs.
    pub fn selected_taken(&self) -> &[TakenCommits] {
        if self.selection.taken { &self.taken } else { &[] }
    }

    /// The selected worktrees.
    pub fn selected_worktrees(&self) -> impl Iterator<Item = &KeptWorktree> {
        self.worktrees.iter().filter(|kept| self.is_selected(kept))
    }

    /// The worktrees that stay.
    pub fn other_worktrees(&self) -> impl Iterator<Item = &KeptWorktree> {
        self.worktrees.iter().filter(|kept| !self.is_selected(kept))
    }

    fn is_selected(&self, kept: &KeptWorktree) -> bool {
        self.selection.worktrees && kept.files.is_some()
    }

    /// Returns true if nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.selected_attempts().is_empty()
            && self.selected_taken().is_empty()
            && self.selected_worktrees().next().is_none()
    }
}

/// Finds what a clean-up of this selection would remove.
///
/// # Errors
/// A team runs, the workspace cannot be read, or the board is selected and a task is claimed under a lease.
pub async fn find(workspace: &Workspace, selection: Selection) -> ApiResult<Cleanup> {
    let folder = workspace.folder()?;
    let status = LeadStatus::of(workspace).await?;
    status.refuse_if_running("clean")?;
    if selection.board {
        refuse_if_leased(workspace).await?;
    }
    let files = old_files(&folder, &status.workers, selection);
    let view = workspace.board(OpenMode::ReadOnly).await?.view().await?;
    let is_completed = |task: TaskId| view.tasks.get(&task).is_some_and(|task| task.status == TaskStatus::Completed);
    let options = kept_options(workspace)?;
    Ok(Cleanup {
        removed: false,
        bytes: files.iter().map(|file| file.bytes).sum(),
        files,
        // Without a repository there are none of these.
        leftovers: leftovers(&folder, |task| view.tasks.contains_key(&task) || view.is_invalid(task)),
        attempts: GitRepository::kept_attempts(&folder).unwrap_or_default(),
        taken: GitRepository::taken_commits(&folder).unwrap_or_default(),
        worktrees: GitRepository::kept_worktrees(&folder, &options, is_completed).unwrap_or_default(),
        selection,
    })
}

/// Removes what a clean-up of this selection finds, and ends the commands that dead workers left running. If nothing is found, it changes
/// nothing. After a crash, a repetition removes the rest.
///
/// # Errors
/// As [`find`], or something cannot be removed.
pub async fn remove(workspace: &Workspace, selection: Selection) -> ApiResult<Cleanup> {
    let mut found = find(workspace, selection).await?;
    found.removed = true;
    if found.is_empty() {
        return Ok(found);
    }
    let folder = workspace.folder()?;
    let options = kept_options(workspace)?;
    let led = workspace.open(OpenMode::Lead { team: CLEANER.to_owned() }).await?;
    workers::end_dead(led.stores.workers.as_ref(), &BTreeSet::new()).await?;
    for file in &found.files {
        remove_file(&file.path)?;
    }
    for branch in found.selected_attempts() {
        GitRepository::remove_kept_attempt(&folder, branch)?;
    }
    for taken in found.selected_taken() {
        GitRepository::remove_taken_commits(&folder, taken)?;
    }
    for kept in found.selected_worktrees() {
        GitRepository::remove_kept_worktree(&folder, &options, kept)?;
    }
    let view = led.stores.board.view().await?;
    found.leftovers = leftovers(&folder, |task| {
        // All tasks of a removed board are deleted.
        !selection.board && (view.tasks.contains_key(&task) || view.is_invalid(task))
    });
    Ok(found)
}

/// The worktrees and branches of tasks that do not exist; none without a repository.
fn leftovers(folder: &Path, exists: impl Fn(TaskId) -> bool) -> Vec<Leftover> {
    GitRepository::leftovers(folder, exists).unwrap_or_default()
}

/// Refuses to remove a board with tasks that other programs hold under a lease.
async fn refuse_if_leased(workspace: &Workspace) -> ApiResult<()> {
    let view = workspace.board(OpenMode::ReadOnly).await?.view().await?;
    let is_leased = |task: &&Arc<Task>| {
        task.claim.as_ref().and_then(|claim| claim.expires).is_some_and(|end| end > workspace.now())
    };
    let leased: Vec<TaskId> = view.tasks.values().filter(is_leased).map(|task| task.id).collect();
    if leased.is_empty() {
        return Ok(());
    }
    let named = join_up_to(leased.iter(), NAMED_MAX);
    Err(Refusal::refused(format!("cannot clean the board: tasks are claimed under a lease: {named}"))
        .next(OrderForm::Release { tasks: leased, force: true }))
}

/// The files to remove, except those of the live workers.
fn old_files(folder: &Path, live_workers: &[String], selection: Selection) -> Vec<OldFile> {
    let team = folder.join(TEAM_FOLDER);
    let tasks = folder.join(BOARD_FOLDER);
    let is_of_live_worker = |name: &str| live_workers.iter().any(|worker| name.starts_with(worker.as_str()));
    let is_malformed = |name: &str| name.contains(".malformed-");
    let is_rotated = |name: &str| name.starts_with("events.") && name != "events.jsonl";
    let mut items = Vec::new();
    let mut add = |folder: &Path, is_selected: &dyn Fn(&str) -> bool| list(folder, is_selected, &mut items);
    add(&team.join("workers"), &|name| !name.starts_with('.') && !is_of_live_worker(name));
    add(&team.join("inbox"), &|name| name.starts_with(".spoiled"));
    add(&team.join("inbox/.spoiled"), &|_| true);
    add(&team.join("transcripts/.spoiled"), &|_| true);
    add(&team, &|name| is_malformed(name) || is_rotated(name));
    add(&tasks.join(QUARANTINE_FOLDER), &|_| true);
    add(folder, &|name| name.starts_with(STATE_FILE) && is_malformed(name));
    if selection.all {
        add(&team.join("transcripts"), &|_| true);
        add(&team.join("inbox/.taken"), &|_| true);
    }
    if selection.board {
        add(&tasks, &|name| TaskId::from_file_name(name).is_some());
    }
    items
}

/// The options for the inspection of worktrees that are kept.
fn kept_options(workspace: &Workspace) -> ApiResult<KeptOptions> {
    let sandbox = workspace.location.sandbox(None)?;
    let drivers = DriverOptions::of_launch(sandbox);
    Ok(KeptOptions { drivers, control_files: workspace.location.control_files(&[])? })
}

/// Adds the selected files of a folder. A missing folder has none.
fn list(folder: &Path, is_selected: &dyn Fn(&str) -> bool, items: &mut Vec<OldFile>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut found: Vec<OldFile> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_selected))
        .filter_map(|entry| {
            let metadata = fs::symlink_metadata(entry.path()).ok().filter(|metadata| !metadata.is_dir())?;
            Some(OldFile { path: entry.path(), bytes: metadata.len() })
        })
        .take(ENTRIES_MAX.saturating_sub(items.len()))
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    items.append(&mut found);
}

fn remove_file(path: &Path) -> ApiResult<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Refusal::refused(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}
