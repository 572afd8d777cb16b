//! The agreement of the person to what the files of a workspace run, send, store and hand over.
//!
//! A clone or an archive can contain a config, a plan, scripts of models, prompts, tasks and a `.team` folder. Brigade lists what
//! they do before it uses them, and asks. It records the list outside of the workspace, and asks again when the list changes, by
//! a pull, an agent or the person. The reasons are in `docs/decisions/consent.md`.

use crate::api::Question as ApiQuestion;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod list;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::launch::Lifetime;
use super::surface::Surface;
use crate::api::members;
use crate::api::task;
use crate::api::trust::record_own;
use crate::config::resolve::Resolved;
use crate::config::{Config, TeamFlags};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::TeamSpec;
use crate::embed::{self, PlanFile};
use crate::front::text::commands::{hint, line, shell_word};
use crate::front::text::lines::{count, one_line};
use crate::front::text::style::{WARN, paint};
use crate::git::GitRepository;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::terminal;
use crate::sandbox::environment::TRUST_VARIABLE;
use crate::stores::file::roster::ROSTER_FILE;
use crate::stores::trust::TrustStore;
use crate::stores::workspace::{BOARD_FOLDER, TEAM_FOLDER};
use list::{ConsentList, Line, Standing};

/// The most lines of a list that are shown. The settings come first; the named files contain the rest.
const LINES_SHOWN_MAX: usize = 60;
/// The most entries below a `.team` that came with a workspace.
const TEAM_ENTRIES_MAX: usize = 100_000;

/// The flag by which a person agrees without being asked.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct TrustFlag {
    /// Agree to everything that the workspace's files run, send, store and hand over, without a question
    #[arg(long)]
    trust: bool,
}

/// The command that needs an agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Run,
    Up,
    Merge,
}

impl Purpose {
    pub(super) fn of(lifetime: Lifetime) -> Self {
        if matches!(lifetime, Lifetime::Session(_)) { Self::Run } else { Self::Up }
    }

    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Up => "up",
            Self::Merge => "merge",
        }
    }
}

/// A team for which an agreement is needed.
pub(super) struct Question<'a> {
    pub(super) config: &'a Config,
    pub(super) resolved: &'a Resolved,
    pub(super) workspace: &'a Path,
    pub(super) purpose: Purpose,
    pub(super) trust: TrustFlag,
    /// True if the output is for people.
    pub(super) is_text: bool,
}

impl Question<'_> {
    fn team(&self) -> &Name {
        &self.resolved.spec.name
    }

    /// Asks the person about the list, unless there is an agreement, and records the answer.
    fn confirm(&self, context: &Context, list: &ConsentList) -> CliResult<()> {
        let store = TrustStore::of_user();
        let agreed = store.agreement(self.workspace, self.team().as_str());
        let standing = list.standing(agreed.as_ref());
        if list.lines.is_empty() || standing == Standing::Agreed {
            return Ok(());
        }
        if !self.trust.trust && !is_trusted_by_variable(context) {
            self.ask(context, list, standing)?;
        }
        let mut agreement = list.agreement(context.workspace.now());
        if self.purpose == Purpose::Merge {
            // A merge asks about no work. The agreement to it stays.
            agreement.lines.extend(agreed.into_iter().flat_map(|agreed| agreed.lines).filter(|line| line.work));
        }
        if let Err(error) = store.record(self.workspace, self.team().as_str(), agreement) {
            context.note(&format!("cannot record your agreement, so you are asked again next time: {error}"));
        }
        Ok(())
    }

    fn ask(&self, context: &Context, list: &ConsentList, standing: Standing) -> CliResult<()> {
        if self.purpose != Purpose::Merge {
            // A launch that would be refused asks nothing.
            super::on_one_thread(async { Ok(embed::check_launch(&self.resolved.spec, self.workspace).await?) })?;
        }
        note_reason(context, list, standing);
        let (verb, team) = (self.purpose.verb(), shell_word(self.team().as_str()));
        let action = if self.purpose == Purpose::Merge { "merge" } else { "launch the team" };
        if !self.is_text || !may_ask(context) {
            let message = format!("cannot {action}: you have not agreed to the list above, and no person can be asked");
            let command = line(format!("{verb} {team} --trust"));
            let hint = hint!["read the files, then ", command, format!(", or set {TRUST_VARIABLE}=1")];
            return Err(CliError::usage(message).hint(hint));
        }
        let question = if self.purpose == Purpose::Merge { "Merge? [y/N]" } else { "Start the team? [y/N]" };
        if ask_for_consent(context, question)? {
            return Ok(());
        }
        let hint = hint!["read the listed files, then ", line(format!("{verb} {team}")), " again"];
        Err(CliError::usage(format!("cannot {action}: you did not answer yes")).hint(hint))
    }
}

/// Before a launch, asks the person about everything that the files of the workspace do, unless the person agreed to it before.
///
/// # Errors
/// The launch would be refused, or the person does not agree. Then nothing was written.
pub(super) fn confirm_launch(context: &Context, question: &Question<'_>, plans: &[PlanFile]) -> CliResult<()> {
    let (workspace, spec) = (question.workspace, &question.resolved.spec);
    let mut list = ConsentList::of_settings(question.config, question.resolved, workspace);
    plans.iter().for_each(|plan| list.add_plan(spec, plan, workspace));
    add_work(&mut list, context, workspace, spec)?;
    question.confirm(context, &list)?;
    record_own(workspace);
    Ok(())
}

/// Before a merge, asks the person about the settings of the team, unless the person agreed to them before.
///
/// # Errors
/// The person does not agree. Then nothing was changed.
pub(super) fn confirm_merge(context: &Context, team: &TeamSpec, trust: TrustFlag) -> CliResult<()> {
    let (config, workspace) = (context.workspace.location.config()?, context.workspace.location.workspace()?);
    let resolved = config.team(team.name.as_str(), &TeamFlags::default())?;
    let list = ConsentList::of_settings(&config, &resolved, &workspace);
    let is_text = !context.output.json;
    let (config, resolved, workspace) = (&config, &resolved, &*workspace);
    Question { config, resolved, workspace, purpose: Purpose::Merge, trust, is_text }.confirm(context, &list)
}

/// Before the `verify` command of a task runs, asks the person about it, unless the person agreed to it before or the task was
/// created here. In an interactive session a team runs, so the person has already agreed.
///
/// # Errors
/// The person does not agree. Then nothing was run or written.
pub(super) fn confirm_verify(context: &Context, task: &Task, verify: &str) -> CliResult<()> {
    let workspace = context.workspace.location.workspace()?;
    let store = TrustStore::of_user();
    let is_own = store.is_own(&workspace) && !Tracked::of(&workspace, &[BOARD_FOLDER]).has(task_file(task.id));
    if context.is_in_repl() || is_own || is_trusted_by_variable(context) {
        return Ok(());
    }
    let line = Line::verify(task.id, verify);
    let names = context.workspace.location.config_if_valid().map(|config| config.team_names()).unwrap_or_default();
    let agreements = names.iter().filter_map(|name| store.agreement(&workspace, name));
    if agreements.flat_map(|agreement| agreement.lines).any(|agreed| agreed.digest == line.digest) {
        return Ok(());
    }
    let what = "you have not agreed yet to this command, which came with the board:";
    context.note(&format!("{} {what}\n  {}", paint(WARN, "new:"), line.shown()));
    let show = ApiQuestion::Task { task: task.id };
    if context.output.json || !may_ask(context) {
        let message = format!("cannot complete {}: you have not agreed to its verify command", task.id);
        let hint = hint![show, format!(" shows it; set {TRUST_VARIABLE}=1 to run it")];
        return Err(CliError::usage(message).hint(hint));
    }
    if ask_for_consent(context, "Run this command? [y/N]")? {
        return Ok(());
    }
    Err(CliError::usage(format!("cannot complete {}: you did not answer yes", task.id))
        .hint(hint![show, " shows the whole command"]))
}

/// Returns true if the person agreed to the settings of this team, so that programs that they name may be started.
pub(super) fn is_agreed(context: &Context, config: &Config, resolved: &Resolved) -> bool {
    let Ok(workspace) = context.workspace.location.workspace() else { return false };
    let list = ConsentList::of_settings(config, resolved, &workspace);
    let agreed = TrustStore::of_user().agreement(&workspace, resolved.spec.name.as_str());
    list.lines.is_empty() || list.standing(agreed.as_ref()) == Standing::Agreed || is_trusted_by_variable(context)
}

/// Records the agreement to a new team, if each line of its list comes from these files, which `brigade init` wrote.
pub(super) fn record_written(context: &Context, team: &Name, config: &Path, written: &[PathBuf]) {
    let record = || -> Option<()> {
        let workspace = config.parent()?.canonicalize().ok()?;
        let loaded = Config::load_found(Some(config), context.workspace.location.environment().clone()).ok()?;
        let resolved = loaded.team(team.as_str(), &TeamFlags::default()).ok()?;
        let mut list = ConsentList::of_settings(&loaded, &resolved, &workspace);
        let plans = embed::read_plans(&resolved.spec.plans, &workspace, AllowedKinds::within_folder_of(config)).ok()?;
        plans.iter().for_each(|plan| list.add_plan(&resolved.spec, plan, &workspace));
        let is_written = |line: &Line| line.file.as_ref().is_some_and(|file| written.contains(file));
        if list.lines.iter().all(is_written) {
            let store = TrustStore::of_user();
            store.record(&workspace, team.as_str(), list.agreement(context.workspace.now())).ok()?;
        }
        Some(())
    };
    if record().is_none() {
        tracing::info!("the agreement to the new team is not recorded; its first launch asks");
    }
}

fn is_trusted_by_variable(context: &Context) -> bool {
    context.workspace.location.environment().variables.get(TRUST_VARIABLE).is_some_and(|value| value == "1")
}

/// Says why the person is asked, and shows the list or its difference.
fn note_reason(context: &Context, list: &ConsentList, standing: Standing) {
    let lines: Vec<String> = match standing {
        Standing::Changed { since, removed, added } => {
            let since = since.to_clock_or_date(context.workspace.now());
            let text = format!("the workspace's files do something else than you agreed to at {since}:");
            context.note(&format!("{} {text}", paint(WARN, "changed:")));
            let removed = removed.into_iter().map(|line| format!("- {line}"));
            removed.chain(added.into_iter().map(|line| format!("+ {line}"))).collect()
        }
        Standing::New | Standing::Agreed => {
            let text = "you have not agreed yet to what the files of this workspace do:";
            context.note(&format!("{} {text}", paint(WARN, "new:")));
            list.lines.iter().map(Line::shown).collect()
        }
    };
    for line in lines.iter().take(LINES_SHOWN_MAX) {
        context.note(&format!("  {}", one_line(line)));
    }
    let left = lines.len().saturating_sub(LINES_SHOWN_MAX);
    if left > 0 {
        context.note(&format!("  and {} more: read the files above before you agree", count(left, "line")));
    }
}

/// Returns true if a person at the terminal can answer a question.
pub(super) fn may_ask(context: &Context) -> bool {
    let is_at_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    // A background job must not read the terminal, because it belongs to the shell. Sessions read it themselves.
    let owns_terminal = terminal::is_in_foreground() && matches!(context.surface(), Surface::Streams);
    is_at_terminal && owns_terminal && !is_ci()
}

/// Returns true in continuous integration. Even at a terminal no person answers there.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !["", "0", "false"].iter().any(|no| value == *no))
}

/// Asks a question and returns true if the person answers `y` or `yes`. An answer that was typed before the question does not count.
pub(super) fn ask_for_consent(context: &Context, question: &str) -> CliResult<bool> {
    terminal::discard_input();
    context.note(question);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| CliError::usage(format!("cannot read the answer: {error}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Adds board, members and all other files of `.team`: all of them if they are not the user's own, else those that git tracks, because a
/// pull can have brought them.
fn add_work(list: &mut ConsentList, context: &Context, workspace: &Path, spec: &TeamSpec) -> CliResult<()> {
    let [board, team_folder] = [BOARD_FOLDER, TEAM_FOLDER].map(|name| workspace.join(name));
    if !board.is_dir() && !team_folder.is_dir() {
        return Ok(());
    }
    let foreign = match TrustStore::of_user().is_own(workspace) {
        true => Tracked::of(workspace, &[BOARD_FOLDER, TEAM_FOLDER]),
        false => Tracked(None),
    };
    let mut spec = spec.clone();
    if foreign.has(Path::new(TEAM_FOLDER).join(ROSTER_FILE)) && team_folder.is_dir() {
        spec = super::on_one_thread(async { Ok(members::with_spawned(&context.workspace, spec).await?) })?;
        spec.members.iter().filter(|member| member.is_spawned).for_each(|member| list.add_spawned(member, workspace));
    }
    if foreign.has_below(TEAM_FOLDER) {
        for file in files_of_team(&team_folder)? {
            let path = Path::new(TEAM_FOLDER).join(&file);
            // The members have lines of their own.
            if foreign.has(&path) && file != Path::new(ROSTER_FILE) {
                list.add_file(&file, &workspace.join(path), workspace);
            }
        }
    }
    if foreign.is_empty() || !board.is_dir() {
        return Ok(());
    }
    let view = super::on_one_thread(async { Ok(task::board(&context.workspace).await?) })?;
    let is_listed = |task: &&Arc<Task>| task.status != TaskStatus::Completed && foreign.has(task_file(task.id));
    for task in view.tasks.values().filter(is_listed) {
        list.add_task(&spec, task.id, (&task.subject, &task.description, task.verify.as_deref()));
    }
    Ok(())
}

/// Returns all files and links below `.team` that are not empty, sorted, relative to it. Follows no link.
///
/// # Errors
/// There are more than [`TEAM_ENTRIES_MAX`], or a folder cannot be read. Then a launch could use a file that no list shows.
fn files_of_team(team_folder: &Path) -> CliResult<Vec<PathBuf>> {
    let refused = |folder: &Path, error: io::Error| {
        let message = format!("cannot list the files of {TEAM_FOLDER}: cannot read {}: {error}", folder.display());
        CliError::usage(message).hint(format!("move {TEAM_FOLDER} away, if you do not need its mail and transcripts"))
    };
    let mut files = Vec::new();
    let mut folders = vec![team_folder.to_owned()];
    let mut left = TEAM_ENTRIES_MAX;
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        let entries = reading::list(&folder, left).map_err(|error| refused(&folder, error))?;
        left -= entries.len();
        for path in entries.iter().map(DirEntry::path) {
            let metadata = path.symlink_metadata().map_err(|error| refused(&path, error))?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.len() > 0 {
                files.push(path.strip_prefix(team_folder).unwrap_or(&path).to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn task_file(id: TaskId) -> PathBuf {
    Path::new(BOARD_FOLDER).join(id.file_name())
}

/// The files of some folders that git tracks, in lower case. `None` for all files: git fails, or the workspace is not the user's own.
struct Tracked(Option<HashSet<OsString>>);

impl Tracked {
    fn of(workspace: &Path, folders: &[&str]) -> Self {
        let tracked = GitRepository::tracked(workspace, folders).ok();
        Self(tracked.map(|files| files.iter().map(|file| file.as_os_str().to_ascii_lowercase()).collect()))
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(HashSet::is_empty)
    }

    /// Returns true if git tracks a file below this folder of the workspace.
    fn has_below(&self, folder: &str) -> bool {
        self.0.as_ref().is_none_or(|files| files.iter().any(|file| Path::new(file).starts_with(folder)))
    }

    /// Returns true if git tracks this file, in any case of its letters, or a folder above it: git lists a submodule by its folder.
    fn has(&self, file: impl AsRef<Path>) -> bool {
        let file = PathBuf::from(file.as_ref().as_os_str().to_ascii_lowercase());
        self.0.as_ref().is_none_or(|files| file.ancestors().any(|above| files.contains(above.as_os_str())))
    }
}
