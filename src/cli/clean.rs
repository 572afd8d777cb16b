//! `brigade clean`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::{Context, shown};
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::output::Answer;
use crate::domain::dependencies::TaskLookup;
use crate::domain::task::TaskId;
use crate::ports::Board as _;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::board::{BOARD_FOLDER, QUARANTINE_FOLDER};
use crate::stores::file::state::STATE_FILE;
use crate::stores::file::workers::ProcessId;
use crate::stores::file::workers::leader_lock::acquire_leader_lock;
use crate::stores::fs::RealFileSystem;
use crate::stores::git::GitRepository;
use crate::stores::git::orphans::Leftover;
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;
use crate::ui::style::{DIM, paint};
use crate::ui::text::{bytes, count, one_line};

/// The most files of one run.
const ENTRIES_MAX: usize = 100_000;

/// The holder's name of the leader lock during the cleaning: no team can start meanwhile.
const CLEANER: &str = "brigade-clean";

/// List old run-time files, or remove them with --yes
///
/// These are records of dead workers, rotated logs, and invalid files that were set aside. With --yes it also ends commands that
/// dead workers left running. Worktrees and branches of deleted tasks are named. Tasks, unread mail, the current log and transcripts stay.
#[derive(Debug, clap::Args)]
pub struct Clean {
    /// Remove the files
    #[arg(long, short)]
    yes: bool,
    /// Also the transcripts and mail in delivery: teammates forget everything
    #[arg(long)]
    all: bool,
    /// Also the task board with all its tasks
    #[arg(long)]
    board: bool,
}

/// A file to remove.
#[derive(Debug, serde::Serialize)]
struct Item {
    #[serde(serialize_with = "crate::config::path_as_text")]
    path: PathBuf,
    bytes: u64,
}

impl Clean {
    /// Lists or removes the files.
    ///
    /// # Errors
    /// A team runs, or a file cannot be removed.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        let workspace = context.workspace()?;
        let running_team = context.running_team()?;
        if let Some(lead) = &running_team.lead {
            let message = format!("cannot clean: team {} (pid {}) runs here", one_line(&lead.team), lead.pid);
            return Err(CliError { exit: Exit::Occupied, ..CliError::refused(message) }.hint("`brigade stop`"));
        }
        let items = self.items(&workspace, &running_team.workers);
        let total: u64 = items.iter().map(|item| item.bytes).sum();
        if self.yes && !items.is_empty() {
            let held =
                acquire_leader_lock(Arc::new(RealFileSystem::default()), &workspace, &ProcessId::own(), CLEANER)?;
            let stores = context.stores(OpenMode::Write).await?;
            stores.workers.reap_dead_workers().await?;
            for item in &items {
                remove(&item.path)?;
            }
            drop(held);
        }
        let left = self.leftovers(context, &workspace).await?;
        let data = serde_json::json!({ "removed": self.yes, "bytes": total, "files": items, "leftovers": left });
        let answer = context.output.answer(&data, || {
            let verb = if self.yes { "removed" } else { "would remove" };
            let line = |item: &Item| format!("{verb} {}\n", one_line(&shown(&item.path, context.current_folder())));
            items.iter().map(line).collect()
        })?;
        let size = format!("{}, {}", count(items.len(), "file"), bytes(total));
        let answer = left.iter().fold(answer, |answer, left| answer.note(of_leftover(left)));
        Ok(match (items.is_empty(), self.yes) {
            (true, _) if !left.is_empty() => answer,
            (true, _) => answer.note(paint(DIM, "nothing to clean")),
            (false, true) => answer.note(paint(DIM, &size)),
            (false, false) => answer.note(format!("{size}; `brigade clean{} --yes` removes them", self.flags())),
        })
    }

    /// The worktrees and branches of deleted tasks; none without a repository.
    async fn leftovers(&self, context: &Context, workspace: &Path) -> CliResult<Vec<Leftover>> {
        let view = context.board_read_only()?.view().await?;
        let is_board_removed = self.board && self.yes;
        let is_there = |task: TaskId| !is_board_removed && (view.tasks.contains_key(&task) || view.is_invalid(task));
        Ok(GitRepository::leftovers(workspace, is_there).unwrap_or_default())
    }

    /// The given options that select files, for the hint.
    fn flags(&self) -> String {
        let flags = [(self.all, " --all"), (self.board, " --board")];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
    }

    fn items(&self, workspace: &Path, living: &[String]) -> Vec<Item> {
        let team = workspace.join(TEAM_FOLDER);
        let tasks = workspace.join(BOARD_FOLDER);
        let is_of_living = |name: &str| living.iter().any(|worker| name.starts_with(worker.as_str()));
        let is_malformed = |name: &str| name.contains(".malformed-");
        let is_rotated = |name: &str| name.starts_with("events.") && name != "events.jsonl";
        let mut items = Vec::new();
        let mut add = |folder: &Path, wanted: &dyn Fn(&str) -> bool| list(folder, wanted, &mut items);
        add(&team.join("workers"), &|name| !name.starts_with('.') && !is_of_living(name));
        add(&team.join("inbox"), &|name| name.starts_with(".spoiled"));
        add(&team.join("inbox/.spoiled"), &|_| true);
        add(&team.join("transcripts/.spoiled"), &|_| true);
        add(&team, &|name| is_malformed(name) || is_rotated(name));
        add(&tasks.join(QUARANTINE_FOLDER), &|_| true);
        add(workspace, &|name| name.starts_with(STATE_FILE) && is_malformed(name));
        if self.all {
            add(&team.join("transcripts"), &|_| true);
            add(&team.join("inbox/.taken"), &|_| true);
        }
        if self.board {
            add(&tasks, &|name| TaskId::from_file_name(name).is_some());
        }
        items
    }
}

/// The line about a deleted task's worktree and branch, with the commands that remove them.
fn of_leftover(left: &Leftover) -> String {
    let places = [left.folder.clone(), left.branch.as_ref().map(|branch| format!("branch {branch}"))];
    let places = places.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let folder = left.folder.as_ref().map(|folder| format!("git worktree remove --force {}", shell_word(folder)));
    let branch = left.branch.as_ref().map(|branch| format!("git branch -D {}", shell_word(branch)));
    let how = [folder, branch].into_iter().flatten().collect::<Vec<_>>().join(" && ");
    one_line(&format!("work of deleted {} is still in the repository: {places} (remove it: `{how}`)", left.task))
}

/// Adds the plain files of a folder whose names are wanted. A missing folder has none.
fn list(folder: &Path, wanted: &dyn Fn(&str) -> bool, items: &mut Vec<Item>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut found: Vec<Item> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(wanted))
        .filter_map(|entry| {
            let metadata = fs::symlink_metadata(entry.path()).ok().filter(|metadata| !metadata.is_dir())?;
            Some(Item { path: entry.path(), bytes: metadata.len() })
        })
        .take(ENTRIES_MAX.saturating_sub(items.len()))
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    items.append(&mut found);
}

fn remove(path: &Path) -> CliResult<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::refused(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}
