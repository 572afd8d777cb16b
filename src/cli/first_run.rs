//! The first run in a workspace. A clone can contain commands, scripts of models, a plan, tasks, and members with mail and transcripts.
//! Before Brigade uses them for the first time, it lists them and asks the person at the terminal.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::launch;
use crate::domain::shell_blocks;
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::team_spec::TeamSpec;
use crate::embed;
use crate::platform::terminal;
use crate::providers;
use crate::stores::file::format::FORMAT_FILE;
use crate::stores::file::roster::ROSTER_FILE;
use crate::stores::git::GitRepository;
use crate::stores::workspace::{BOARD_FOLDER, OpenMode, TEAM_FOLDER};
use crate::team::restore_members;
use crate::team::supervisor::ModelConnector;
use crate::ui::style::{WARN, paint};
use crate::ui::text::{count, cut, one_line};

/// The most commands that are listed. The plan and the tasks contain all of them.
const COMMANDS_MAX: usize = 5;
/// The widest listed command or list of names, in columns.
const LINE_COLUMNS_MAX: usize = 90;
/// The widest `verify` command that is shown alone, in columns.
const VERIFY_COLUMNS_MAX: usize = 500;

/// The commands and addresses that a launch takes from files that git tracks.
#[derive(Debug, Default)]
struct TrackedContent {
    /// The scripts of models, the members, their mail and transcripts, the plan and the tasks, as lines for people.
    sources: Vec<String>,
    /// In the order of the files, each once.
    commands: Vec<String>,
    /// The addresses of models that the config names.
    addresses: BTreeSet<String>,
}

/// Before the first launch, lists the commands in tracked files. If `may_ask` is true, it asks the person.
///
/// # Errors
/// The launch would be refused, or the person does not agree. Then nothing was written.
pub(super) fn confirm(
    context: &Context,
    workspace: &Path,
    spec: &TeamSpec,
    plan: &[NewTask],
    may_ask: bool,
) -> CliResult<()> {
    if !is_first_run(workspace) {
        return Ok(());
    }
    let lines = TrackedContent::of(context, workspace, spec, plan)?.lines();
    if lines.is_empty() {
        return Ok(());
    }
    // A launch that would be refused asks nothing.
    super::on_one_thread(async { Ok(embed::check_launch(spec, workspace).await?) })?;
    context.note(&format!("{} files that git tracks tell the team what to run:", paint(WARN, "first run:")));
    for line in lines {
        context.note(&format!("  {line}"));
    }
    if !may_ask {
        context.note("The team starts without asking, because no person is at a terminal.");
        return Ok(());
    }
    if ask_for_consent(context, "Start the team? [y/N]")? {
        return Ok(());
    }
    Err(CliError::usage("cannot launch the team: you did not answer yes")
        .hint("read the listed files, then launch again"))
}

/// Before the first launch, shows the `verify` command of a task that git tracks, and asks the person at a terminal. In an
/// interactive session a team runs, so the person has already agreed.
///
/// # Errors
/// The person does not agree. Then nothing was run or written.
pub(super) fn confirm_verify(context: &Context, task: &Task, verify: &str) -> CliResult<()> {
    let workspace = context.location.workspace()?;
    let is_known = context.is_in_repl() || !is_first_run(&workspace);
    if is_known || !TrackedTasks::of(&workspace).has(task.id) {
        return Ok(());
    }
    let command = cut(&on_one_line(verify), VERIFY_COLUMNS_MAX);
    let text = format!("git tracks {}, and its verify command runs now: {command}", task.id);
    context.note(&format!("{} {text}", paint(WARN, "first run:")));
    if context.output.json || !may_ask() || ask_for_consent(context, "Run this command? [y/N]")? {
        return Ok(());
    }
    Err(CliError::usage(format!("cannot complete {}: you did not answer yes", task.id))
        .hint(format!("`brigade tasks show {}` shows the whole command", task.id.0)))
}

/// Returns true if a person at the terminal can answer a question.
pub(super) fn may_ask() -> bool {
    let is_at_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    // A background job must not read the terminal, because it belongs to the shell.
    is_at_terminal && terminal::is_in_foreground() && !is_ci()
}

/// Returns true in continuous integration. Even at a terminal no person answers there.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !["", "0", "false"].iter().any(|no| value == *no))
}

/// Asks a question and returns true if the person answers `y` or `yes`.
pub(super) fn ask_for_consent(context: &Context, question: &str) -> CliResult<bool> {
    context.note(question);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| CliError::usage(format!("cannot read the answer: {error}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Returns true if no team of this user ran here before. Every launch writes `.team/FORMAT`. If git tracks files in `.team`, the file
/// may have come with a clone and proves nothing.
fn is_first_run(workspace: &Path) -> bool {
    let has_run = workspace.join(TEAM_FOLDER).join(FORMAT_FILE).is_file();
    !has_run || is_team_folder_tracked(workspace)
}

/// Returns true if git tracks files in `.team`, or if git fails.
fn is_team_folder_tracked(workspace: &Path) -> bool {
    GitRepository::tracked(workspace, &[TEAM_FOLDER]).map_or(true, |tracked| !tracked.is_empty())
}

/// Returns true if the config may name programs that the person has not seen: git tracks it, and no team of this user ran here before.
pub(super) fn is_config_unseen(context: &Context) -> bool {
    let is_config_tracked = context.location.config_file().ok().flatten().is_some_and(|file| is_tracked(&file));
    is_config_tracked && context.location.workspace().is_ok_and(|workspace| is_first_run(&workspace))
}

/// Returns true if git tracks this file, or if git fails.
fn is_tracked(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return true;
    };
    GitRepository::tracked(folder, &[name]).map_or(true, |tracked| !tracked.is_empty())
}

impl TrackedContent {
    fn of(context: &Context, workspace: &Path, spec: &TeamSpec, plan: &[NewTask]) -> CliResult<Self> {
        let mut tracked = Self::default();
        tracked.add_scripts(context, spec);
        let mut runs_blocks = launch::runs_blocks(spec);
        if is_team_folder_tracked(workspace) {
            let spec = super::on_one_thread(spec_with_spawned(context, spec))?;
            runs_blocks = launch::runs_blocks(&spec);
            tracked.add_team_folder(workspace, &spec);
        }
        if context.location.config_file()?.is_some_and(|file| is_tracked(&file)) {
            tracked.add_commands(spec.setup.command.clone());
            tracked.add_commands(spec.done_when.clone());
            tracked.add_commands(spec.notify.command.clone());
            for member in std::iter::once(&spec.lead).chain(&spec.members) {
                tracked.add_commands(member.model.command.clone());
                tracked.addresses.extend(member.model.base_url.clone());
            }
            tracked.addresses.extend(spec.notify.url.clone());
        }
        if let Some(file) = spec.plan.as_ref().filter(|file| is_tracked(file)) {
            let file = context.location.display(file);
            tracked.sources.push(format!("the plan {file} ({})", count(plan.len(), "task")));
            for task in plan {
                tracked.add_task_commands(task.verify.as_deref(), &task.description, runs_blocks);
            }
        }
        let tasks = TrackedTasks::of(workspace);
        if tasks.is_empty() {
            return Ok(tracked);
        }
        let view = super::on_one_thread(async { Ok(context.board(OpenMode::ReadOnly).await?.view().await?) })?;
        let open = view.tasks.values().filter(|task| task.status != TaskStatus::Completed && tasks.has(task.id));
        let mut number = 0;
        for task in open {
            number += 1;
            tracked.add_task_commands(task.verify.as_deref(), &task.description, runs_blocks);
        }
        if number > 0 {
            tracked.sources.push(format!("{} in {BOARD_FOLDER}", count(number, "task")));
        }
        Ok(tracked)
    }

    fn add_scripts(&mut self, context: &Context, spec: &TeamSpec) {
        let is_path = |provider: &str| providers::provider(provider).is_some_and(|known| known.model_is_path);
        let members = std::iter::once(&spec.lead).chain(&spec.members);
        let scripts: BTreeSet<&Path> = members
            .filter(|member| is_path(&member.model.provider))
            .map(|member| Path::new(&member.model.model))
            .collect();
        let tracked = scripts.into_iter().filter(|file| is_tracked(file));
        let lines = tracked.map(|file| format!("the script {}", context.location.display(file)));
        self.sources.extend(lines);
    }

    /// Adds the members, the mail and the transcripts that a launch would take from `.team`. `spec` has these members.
    fn add_team_folder(&mut self, workspace: &Path, spec: &TeamSpec) {
        let spawned = spec.members.iter().filter(|member| member.is_spawned);
        let members = spawned.map(|member| {
            let model = [member.model.provider.as_str(), &member.model.model].join(" ");
            format!("{} ({})", member.name, model.trim_end())
        });
        self.add_names("member", ROSTER_FILE, &members.collect::<Vec<_>>());
        for (what, folder) in [("mail file", "inbox"), ("mail file", "inbox/.taken"), ("transcript", "transcripts")] {
            self.add_names(what, folder, &files_with_content(&workspace.join(TEAM_FOLDER).join(folder)));
        }
    }

    fn add_names(&mut self, what: &str, place: &str, names: &[String]) {
        if !names.is_empty() {
            let line = format!("{} in {TEAM_FOLDER}/{place}: {}", count(names.len(), what), names.join(", "));
            self.sources.push(cut(&one_line(&line), LINE_COLUMNS_MAX));
        }
    }

    fn add_task_commands(&mut self, verify: Option<&str>, description: &str, runs_blocks: bool) {
        if runs_blocks {
            self.add_commands(shell_blocks::shell_blocks(description));
        }
        self.add_commands(verify.map(str::to_owned));
    }

    fn add_commands(&mut self, commands: impl IntoIterator<Item = String>) {
        for command in commands {
            if !self.commands.contains(&command) {
                self.commands.push(command);
            }
        }
    }

    /// One line for each source, command and address. Empty if git tracks none of them.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.sources.iter().map(|source| one_line(source)).collect();
        if !self.commands.is_empty() {
            lines.push(format!("{}:", count(self.commands.len(), "command")));
        }
        let named = self.commands.iter().take(COMMANDS_MAX);
        lines.extend(named.map(|command| format!("  {}", cut(&on_one_line(command), LINE_COLUMNS_MAX))));
        let left = self.commands.len().saturating_sub(COMMANDS_MAX);
        if left > 0 {
            lines.push(format!("  and {left} more: read the files above before you agree"));
        }
        let addresses = self.addresses.iter().map(|address| one_line(address));
        lines.extend(addresses.map(|address| format!("models at {address}, which get the provider's key")));
        lines
    }
}

/// Returns the team with the members that a launch would take from `.team`.
async fn spec_with_spawned(context: &Context, spec: &TeamSpec) -> CliResult<TeamSpec> {
    let stores = context.stores(OpenMode::ReadOnly).await?;
    let connect: ModelConnector = Arc::new(providers::connect);
    Ok(restore_members(spec.clone(), &stores, &connect).await?.0)
}

/// Returns the sorted names of the files and links in `folder` that are not hidden and not empty.
fn files_with_content(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.metadata().is_ok_and(|metadata| !metadata.is_dir() && metadata.len() > 0));
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// A command on one line, with `⏎` for each line break. A space would hide the end of a comment.
fn on_one_line(command: &str) -> String {
    let lines: Vec<String> = command.lines().map(one_line).collect();
    lines.join(" ⏎ ")
}

/// The files of the board that git tracks. `None` if git fails: then all files may be tracked.
struct TrackedTasks(Option<Vec<PathBuf>>);

impl TrackedTasks {
    fn of(workspace: &Path) -> Self {
        Self(GitRepository::tracked(workspace, &[BOARD_FOLDER]).ok())
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }

    fn has(&self, id: TaskId) -> bool {
        // Git lists a submodule only by its folder.
        let names = [id.file_name(), BOARD_FOLDER.to_owned()];
        let is_named = |file: &PathBuf| {
            file.file_name().is_some_and(|file| names.iter().any(|name| file.eq_ignore_ascii_case(name)))
        };
        self.0.as_ref().is_none_or(|files| files.iter().any(is_named))
    }
}
