//! `brigade clean`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::{Context, shown};
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::output::Answer;
use crate::domain::task::TaskId;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::board::{BOARD_FOLDER, SPOILED_FOLDER};
use crate::stores::file::state::STATE_FILE;
use crate::stores::file::workers::lead::occupy;
use crate::stores::fs::RealFileSystem;
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
/// could not be read. Tasks, mail that waits, the present log and transcripts stay, unless asked for.
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
            let held = occupy(Arc::new(RealFileSystem::default()), &workspace, CLEANER)?;
            context.stores(Purpose::Act).await?.workers.survey().await?;
            for item in &items {
                remove(&item.path)?;
            }
            drop(held);
        }
        let data = serde_json::json!({ "removed": self.yes, "bytes": total, "files": items });
        let answer = context.output.answer(&data, || {
            let verb = if self.yes { "removed" } else { "would remove" };
            let line = |item: &Item| format!("{verb} {}\n", one_line(&shown(&item.path, context.current_folder())));
            items.iter().map(line).collect()
        })?;
        let size = format!("{}, {}", count(items.len(), "file"), bytes(total));
        Ok(match (items.is_empty(), self.yes) {
            (true, _) => answer.note(paint(DIM, "nothing to clean")),
            (false, true) => answer.note(paint(DIM, &size)),
            (false, false) => answer.note(format!("{size}; brigade clean{} --yes removes them", self.flags())),
        })
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
