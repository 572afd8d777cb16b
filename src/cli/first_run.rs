//! The first launch of a workspace. A clone brings commands, a plan and tasks along; they are named before they run for the
//! first time, and a person at a terminal is asked.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::context::{Context, shown};
use super::error::{CliError, CliResult};
use crate::config::settings::PROVIDER_DEFAULT;
use crate::domain::task::{NewTask, TaskId, TaskStatus};
use crate::models::runbook;
use crate::ports::Board as _;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::board::BOARD_FOLDER;
use crate::stores::file::format::FORMAT_FILE;
use crate::stores::git::GitRepository;
use crate::team::spec::TeamSpec;
use crate::ui::style::{WARN, paint};
use crate::ui::text::{count, cut, one_line};

/// The most commands that are named; the plan and the tasks have all of them.
const COMMANDS_MAX: usize = 8;
/// The most columns of one of them.
const COMMAND_COLUMNS_MAX: usize = 60;

/// What git tracks of all that a launch is about to run.
#[derive(Debug, Default)]
struct Tracked {
    /// The plan and the tasks, in words.
    sources: Vec<String>,
    commands: BTreeSet<String>,
    /// Where models are reached that the config names.
    addresses: BTreeSet<String>,
}

/// Names what git tracks of all that a first launch is about to run, and asks the person, where one may be asked.
///
/// # Errors
/// The person does not agree. Nothing was written then.
pub(super) fn confirm(
    context: &Context,
    workspace: &Path,
    spec: &TeamSpec,
    plan: &[NewTask],
    may_ask: bool,
) -> CliResult<()> {
    if !is_first(workspace) {
        return Ok(());
    }
    let tracked = Tracked::of(context, workspace, spec, plan)?;
    let Some(line) = tracked.line() else { return Ok(()) };
    context.note(&format!("{} {line}", paint(WARN, "first run:")));
    if !may_ask {
        return Ok(());
    }
    context.note("Run these commands? [y/N]");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| CliError::usage(format!("cannot read the answer: {error}")))?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(CliError::usage("cannot launch the team: you did not answer yes")
        .hint("read the files that are named, then launch again"))
}

/// Whether no team of this user ran here before: there is no `.team/FORMAT`, which every launch writes, or git tracks something in
/// `.team`, so that it came with a clone. A clone has no file that git does not track.
fn is_first(workspace: &Path) -> bool {
    let has_run = workspace.join(TEAM_FOLDER).join(FORMAT_FILE).is_file();
    // Where git does not say, the file may have come with a clone.
    !has_run || GitRepository::tracked(workspace, &[TEAM_FOLDER]).map_or(true, |tracked| !tracked.is_empty())
}

/// Whether git tracks this file. Where git does not say it may.
fn is_tracked(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return true;
    };
    GitRepository::tracked(folder, &[name]).map_or(true, |tracked| !tracked.is_empty())
}

impl Tracked {
    fn of(context: &Context, workspace: &Path, spec: &TeamSpec, plan: &[NewTask]) -> CliResult<Self> {
        let mut tracked = Self::default();
        let runs_blocks = spec.members.iter().any(|member| member.model.provider == PROVIDER_DEFAULT);
        if context.config_file()?.is_some_and(|file| is_tracked(&file)) {
            tracked.commands.extend(spec.done_when.clone());
            let members = std::iter::once(&spec.lead).chain(&spec.members);
            tracked.addresses.extend(members.filter_map(|member| member.model.base_url.clone()));
        }
        if let Some(file) = spec.plan.as_ref().filter(|file| is_tracked(file)) {
            let file = shown(file, context.current_folder());
            tracked.sources.push(format!("the plan {file} ({})", count(plan.len(), "task")));
            for task in plan {
                tracked.take(task.verify.as_deref(), &task.description, runs_blocks);
            }
        }
        let tasks = match GitRepository::tracked(workspace, &[BOARD_FOLDER]) {
            Ok(files) if files.is_empty() => return Ok(tracked),
            Ok(files) => Some(files),
            Err(_) => None,
        };
        // Of a submodule git lists the folder alone.
        let is_named = |file: &Path, name: &str| file.file_name().is_some_and(|file| file.eq_ignore_ascii_case(name));
        let has = |name: &str| tasks.as_ref().is_none_or(|files| files.iter().any(|file| is_named(file, name)));
        let is_of_board = |id: TaskId| has(&id.file_name()) || has(BOARD_FOLDER);
        let view = super::on_one_thread(async { Ok(context.board_to_look_at()?.view().await?) })?;
        let open = view.tasks.values().filter(|task| task.status != TaskStatus::Completed && is_of_board(task.id));
        let mut number = 0;
        for task in open {
            number += 1;
            tracked.take(task.verify.as_deref(), &task.description, runs_blocks);
        }
        if number > 0 {
            tracked.sources.push(format!("{} in {BOARD_FOLDER}", count(number, "task")));
        }
        Ok(tracked)
    }

    /// Takes in the commands of a task.
    fn take(&mut self, verify: Option<&str>, description: &str, runs_blocks: bool) {
        self.commands.extend(verify.map(str::to_owned));
        if runs_blocks {
            self.commands.extend(runbook::shell_blocks(description));
        }
    }

    /// All of it on one line; `None` where nothing is tracked.
    fn line(&self) -> Option<String> {
        let named = self.commands.iter().take(COMMANDS_MAX).map(|text| cut(&one_line(text), COMMAND_COLUMNS_MAX));
        let mut commands: Vec<String> = named.map(|command| format!("`{command}`")).collect();
        let left = self.commands.len().saturating_sub(COMMANDS_MAX);
        if left > 0 {
            commands.push(format!("{left} more"));
        }
        let mut parts: Vec<String> = self.sources.iter().map(|source| one_line(source)).collect();
        if !commands.is_empty() {
            parts.push(format!("the commands {}", commands.join(", ")));
        }
        if !self.addresses.is_empty() {
            let addresses: Vec<String> = self.addresses.iter().map(|address| one_line(address)).collect();
            parts.push(format!("models at {}, which get the provider's key", addresses.join(", ")));
        }
        (!parts.is_empty()).then(|| format!("from files that git tracks this team takes {}", parts.join("; ")))
    }
}
