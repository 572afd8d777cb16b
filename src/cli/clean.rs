//! `brigade clean`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::{Context, shown};
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::output::Answer;
use crate::domain::graph::TaskLookup;
use crate::domain::task::TaskId;
use crate::ports::Board as _;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::board::{BOARD_FOLDER, SPOILED_FOLDER};
use crate::stores::file::state::STATE_FILE;
use crate::stores::file::workers::Incarnation;
use crate::stores::file::workers::lead::occupy;
use crate::stores::fs::RealFileSystem;
use crate::stores::git::GitRepository;
use crate::stores::git::leftovers::Leftover;
use crate::stores::open::Purpose;
use crate::ui::style::{DIM, paint};
use crate::ui::text::{bytes, count, one_line};

/// Files that are looked at; a workspace with more is cleaned in several goes.
const ENTRIES_MAX: usize = 100_000;

/// The name under which a workspace is held while it is cleaned, so that no team starts meanwhile.
const CLEANER: &str = "brigade-clean";

/// List old run-time files, and remove them with --yes
///
/// Records of workers that are gone (commands they left running are ended), rotated logs, and files set aside because they
/// could not be read. What is left of tasks that are gone in the repository is named. Tasks, mail that waits, the present log and transcripts stay, unless asked for.
#[derive(Debug, clap::Args)]
pub struct Clean {
    /// Remove them
    #[arg(long, short)]
    yes: bool,
    /// The transcripts too, and mail that was on its way into them: teammates will remember nothing
    #[arg(long)]
    all: bool,
    /// The task board too: all its tasks are gone then
    #[arg(long)]
    board: bool,
}

/// Something that would be removed.
#[derive(Debug, serde::Serialize)]
struct Item {
    #[serde(serialize_with = "crate::config::path_as_text")]
    path: PathBuf,
    bytes: u64,
}

impl Clean {
    /// Lists or removes.
    ///
    /// # Errors
    /// A team runs, or the system would not.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        let workspace = context.workspace()?;
        let running = context.who_runs()?;
        if let Some(lead) = &running.lead {
            let message = format!("team {} (pid {}) runs in this workspace", one_line(&lead.team), lead.pid);
            return Err(CliError { exit: Exit::Occupied, ..CliError::refused(message) }.hint("brigade stop"));
        }
        let items = self.items(&workspace, &running.workers);
        let total: u64 = items.iter().map(|item| item.bytes).sum();
        if self.yes && !items.is_empty() {
            let held = occupy(Arc::new(RealFileSystem::default()), &workspace, &Incarnation::own(), CLEANER)?;
            let stores = context.stores(Purpose::Act).await?;
            stores.workers.survey().await?;
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
            (false, false) => answer.note(format!("{size}; brigade clean{} --yes removes them", self.flags())),
        })
    }

    /// What is left in the repository, if it is one, of tasks that are gone.
    async fn leftovers(&self, context: &Context, workspace: &Path) -> CliResult<Vec<Leftover>> {
        let view = context.board_to_look_at()?.view().await?;
        let is_gone_now = self.board;
        let is_there = |task: TaskId| !is_gone_now && (view.tasks.contains_key(&task) || view.is_spoiled(task));
        // Without a repository there is nothing of the kind.
        Ok(GitRepository::leftovers(workspace, is_there).unwrap_or_default())
    }

    /// The flags that say what is to be removed, as they were typed.
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
        add(&tasks.join(SPOILED_FOLDER), &|_| true);
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

/// What is left of a task, and how it is removed.
fn of_leftover(left: &Leftover) -> String {
    let places = [left.folder.clone(), left.branch.as_ref().map(|branch| format!("branch {branch}"))];
    let places = places.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let folder = left.folder.as_ref().map(|folder| format!("git worktree remove --force {folder}"));
    let branch = left.branch.as_ref().map(|branch| format!("git branch -D {branch}"));
    let how = [folder, branch].into_iter().flatten().collect::<Vec<_>>().join(" && ");
    one_line(&format!("work of {} stays in the repository: {places} (to drop it: {how})", left.task))
}

/// Plain files of a folder whose names are wanted; nothing where there is no such folder.
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
