//! `brigade clean`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::location;
use super::output::CommandAnswer;
use crate::api::lead_status::LeadStatus;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::git::leftovers::{KeptAttempt, KeptOptions, KeptWorktree, Leftover};
use crate::git::set_aside::TakenCommits;
use crate::git::{DriverOptions, GitRepository};
use crate::sandbox::filter::own_program_path;
use crate::service::workers;
use crate::stores::file::board::QUARANTINE_FOLDER;
use crate::stores::file::state::STATE_FILE;
use crate::stores::workspace::{BOARD_FOLDER, OpenMode, TEAM_FOLDER};
use crate::ui::command_form::shell_word;
use crate::ui::style::{DIM, paint};
use crate::ui::text::{bytes, count, join_up_to, one_line};

/// The most files of one run.
const ENTRIES_MAX: usize = 100_000;

/// The most tasks that an error names.
const NAMED_MAX: usize = 5;

/// The name of the lead during the clean-up. No team can start meanwhile.
const CLEANER: &str = "brigade-clean";

/// List old run-time files, or remove them with --yes
///
/// These are records of dead workers, rotated logs, and invalid files that were set aside. With --yes it also ends commands that
/// dead workers left running. The list names worktrees and branches of deleted tasks, branches with the work of failed attempts,
/// worktrees of completed tasks that are kept, and refs with commits of a team that you took over in another form.
/// Tasks, unread mail, the current log and transcripts stay.
#[derive(Debug, clap::Args)]
pub struct Clean {
    /// Remove the files
    #[arg(long, short)]
    yes: bool,
    /// Also remove the transcripts and the mail in delivery: teammates forget everything
    #[arg(long)]
    all: bool,
    /// Also remove the task board with all its tasks
    #[arg(long)]
    board: bool,
    /// Also remove the branches that keep the work of failed attempts
    #[arg(long)]
    attempts: bool,
    /// Also remove the refs that keep a team's commits which you took over in another form, such as a squash
    #[arg(long)]
    taken: bool,
    /// Also remove the worktrees that are kept for files which git ignores, with these files
    #[arg(long)]
    worktrees: bool,
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
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let workspace = context.workspace.location.workspace()?;
        let lead_status = LeadStatus::of(&context.workspace).await?;
        lead_status.refuse_if_running("clean")?;
        self.refuse_if_leased(context).await?;
        let items = self.items(&workspace, &lead_status.workers);
        let total: u64 = items.iter().map(|item| item.bytes).sum();
        let kept = GitRepository::kept_attempts(&workspace).unwrap_or_default();
        let branches = if self.attempts { kept.as_slice() } else { &[] };
        let all_taken = GitRepository::taken_commits(&workspace).unwrap_or_default();
        let taken = if self.taken { all_taken.as_slice() } else { &[] };
        let options = kept_options(context)?;
        let worktrees = self.kept_worktrees(context, &workspace, &options).await?;
        let (removable, stays): (Vec<&KeptWorktree>, Vec<_>) =
            worktrees.iter().partition(|kept| self.worktrees && kept.files.is_some());
        let is_empty = items.is_empty() && branches.is_empty() && taken.is_empty() && removable.is_empty();
        if self.yes && !is_empty {
            let led = context.workspace.open(OpenMode::Lead { team: CLEANER.to_owned() }).await?;
            workers::end_dead(led.stores.workers.as_ref(), &BTreeSet::new()).await?;
            for item in &items {
                remove(&item.path)?;
            }
            for branch in branches {
                GitRepository::remove_kept_attempt(&workspace, branch)?;
            }
            for taken in taken {
                GitRepository::remove_taken_commits(&workspace, taken)?;
            }
            for kept in &removable {
                GitRepository::remove_kept_worktree(&workspace, &options, kept)?;
            }
        }
        let leftovers = self.leftovers(context, &workspace).await?;
        let data = serde_json::json!({
            "removed": self.yes, "bytes": total, "files": items, "leftovers": leftovers, "attempts": kept,
            "taken": all_taken,
            "worktrees": worktrees,
        });
        let answer = context.output.answer(&data, || {
            let verb = if self.yes { "removed" } else { "would remove" };
            let line = |item: &Item| {
                format!("{verb} {}\n", one_line(&location::display(&context.workspace.location, &item.path)))
            };
            let branch_line = |kept: &KeptAttempt| format!("{verb} branch {}\n", one_line(kept.branch.short()));
            let taken_line = |taken: &TakenCommits| format!("{verb} ref {}\n", one_line(&taken.name));
            let folder_line = |kept: &&KeptWorktree| format!("{verb} {}\n", one_line(&kept.folder));
            let lines = items.iter().map(line).chain(branches.iter().map(branch_line));
            lines.chain(taken.iter().map(taken_line)).chain(removable.iter().map(folder_line)).collect()
        })?;
        let mut size = format!("{}, {}", count(items.len(), "file"), bytes(total));
        if !branches.is_empty() {
            let word = if branches.len() == 1 { "branch" } else { "branches" };
            size.push_str(&format!(", {} {word}", branches.len()));
        }
        if !taken.is_empty() {
            size.push_str(&format!(", {}", count(taken.len(), "ref")));
        }
        if !removable.is_empty() {
            size.push_str(&format!(", {}", count(removable.len(), "worktree")));
        }
        let notes = leftovers.iter().map(leftover_note).chain(self.kept_notes(&kept));
        let notes: Vec<String> = notes.chain(self.taken_notes(&all_taken)).chain(worktree_notes(&stays)).collect();
        let has_notes = !notes.is_empty();
        let answer = answer.notes(notes);
        Ok(match (is_empty, self.yes) {
            (true, _) if has_notes => answer,
            (true, _) => answer.note(paint(DIM, "nothing to clean")),
            (false, true) => answer.note(paint(DIM, &size)),
            (false, false) => answer.note(format!("{size}; `brigade clean{} --yes` removes them", self.flags())),
        })
    }

    /// Refuses to remove a board with tasks that other programs hold under a lease.
    async fn refuse_if_leased(&self, context: &Context) -> CliResult<()> {
        if !self.board {
            return Ok(());
        }
        let view = context.workspace.board(OpenMode::ReadOnly).await?.view().await?;
        let is_leased = |task: &&Arc<Task>| {
            task.claim.as_ref().and_then(|claim| claim.expires).is_some_and(|end| end > context.workspace.now())
        };
        let leased: Vec<TaskId> = view.tasks.values().filter(is_leased).map(|task| task.id).collect();
        let Some(first) = leased.first() else { return Ok(()) };
        let named = join_up_to(leased.iter(), NAMED_MAX);
        Err(CliError::refused(format!("cannot clean the board: tasks are claimed under a lease: {named}"))
            .hint(format!("release them, such as: `brigade tasks release {} --force`", first.0)))
    }

    /// The worktrees and branches of deleted tasks; none without a repository.
    async fn leftovers(&self, context: &Context, workspace: &Path) -> CliResult<Vec<Leftover>> {
        let view = context.workspace.board(OpenMode::ReadOnly).await?.view().await?;
        let is_board_removed = self.board && self.yes;
        let exists = |task: TaskId| !is_board_removed && (view.tasks.contains_key(&task) || view.is_invalid(task));
        Ok(GitRepository::leftovers(workspace, exists).unwrap_or_default())
    }

    /// The worktrees that are kept; none without a repository.
    async fn kept_worktrees(
        &self,
        context: &Context,
        workspace: &Path,
        options: &KeptOptions,
    ) -> CliResult<Vec<KeptWorktree>> {
        let view = context.workspace.board(OpenMode::ReadOnly).await?.view().await?;
        let is_completed =
            |task: TaskId| view.tasks.get(&task).is_some_and(|task| task.status == TaskStatus::Completed);
        Ok(GitRepository::kept_worktrees(workspace, options, is_completed).unwrap_or_default())
    }

    /// The lines about branches with the work of failed attempts, unless they are removed.
    fn kept_notes(&self, kept: &[KeptAttempt]) -> Vec<String> {
        if self.attempts || kept.is_empty() {
            return Vec::new();
        }
        let line =
            |kept: &KeptAttempt| format!("attempt {} at {} is kept on branch {}", kept.attempt, kept.task, kept.branch);
        let hint = "`brigade clean --attempts --yes` removes these branches".to_owned();
        kept.iter().map(line).chain([hint]).collect()
    }

    /// The lines about commits that the person took over in another form, unless they are removed.
    fn taken_notes(&self, all_taken: &[TakenCommits]) -> Vec<String> {
        if self.taken || all_taken.is_empty() {
            return Vec::new();
        }
        let line = |taken: &TakenCommits| {
            one_line(&format!("commits of a team that you took over in another form are kept by {}", taken.name))
        };
        let hint = "`brigade clean --taken --yes` removes these refs".to_owned();
        all_taken.iter().map(line).chain([hint]).collect()
    }

    /// The given options that select files, for the hint.
    fn flags(&self) -> String {
        let flags = [
            (self.all, " --all"),
            (self.board, " --board"),
            (self.attempts, " --attempts"),
            (self.taken, " --taken"),
            (self.worktrees, " --worktrees"),
        ];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
    }

    /// The files to remove, except those of the live workers.
    fn items(&self, workspace: &Path, live_workers: &[String]) -> Vec<Item> {
        let team = workspace.join(TEAM_FOLDER);
        let tasks = workspace.join(BOARD_FOLDER);
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

/// The options for the inspection of worktrees that are kept.
fn kept_options(context: &Context) -> CliResult<KeptOptions> {
    let sandbox = context.workspace.location.sandbox(None)?;
    let drivers = DriverOptions { program: own_program_path(), launch_sandbox: Some(sandbox) };
    Ok(KeptOptions { drivers, control_files: context.workspace.location.control_files(&[])? })
}

/// The line about a deleted task's worktree and branch, with the commands that remove them.
fn leftover_note(leftover: &Leftover) -> String {
    let places = [leftover.folder.clone(), leftover.branch.as_ref().map(|branch| format!("branch {branch}"))];
    let places = places.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let folder = leftover.folder.as_ref().map(|folder| format!("rm -rf {}", shell_word(folder)));
    let branch = leftover.branch.as_ref().map(|branch| format!("git branch -D {}", shell_word(branch.short())));
    let how = [folder, branch].into_iter().flatten().collect::<Vec<_>>().join(" && ");
    one_line(&format!("work of deleted {} is still there: {places} (remove it: `{how}`)", leftover.task))
}

/// The lines about worktrees that stay, with the commands that remove them.
fn worktree_notes(kept: &[&KeptWorktree]) -> Vec<String> {
    let line = |kept: &&KeptWorktree| {
        let KeptWorktree { task, attempt, folder, files, other_work } = kept;
        let of = attempt.map_or_else(|| format!("completed {task}"), |attempt| format!("attempt {attempt} at {task}"));
        let files = files.as_ref().filter(|files| !files.is_empty());
        let files = files.map(|files| format!(", with files that git ignores: {files}")).unwrap_or_default();
        one_line(&match other_work {
            Some(reason) => format!("{folder} of {of} is kept: {reason}"),
            None => format!("{folder} of {of} is kept{files} (remove it: `rm -rf {}`)", shell_word(folder)),
        })
    };
    let mut lines: Vec<String> = kept.iter().map(line).collect();
    if kept.iter().any(|kept| kept.files.is_some()) {
        lines.push("`brigade clean --worktrees --yes` removes the worktrees with files that git ignores".to_owned());
    }
    lines
}

/// Adds the selected files of a folder. A missing folder has none.
fn list(folder: &Path, is_selected: &dyn Fn(&str) -> bool, items: &mut Vec<Item>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut found: Vec<Item> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_selected))
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
