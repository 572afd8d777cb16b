//! The context of a command: the workspace, its config, its stores and the clock.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Global;
use super::commands::{SHARED_COMMANDS, WORKSPACE_COMMANDS};
use super::error::{CliError, CliResult};
use super::output::Output;
use super::repl::screen::Printer;
use super::running_team::{RunningTeam, heartbeat_in};
use super::surface::Surface;
use super::team::{candidates, member_names};
use crate::config::diagnostics::ConfigError;
use crate::config::search::{check_owner, find_folder_upwards, find_upwards};
use crate::config::{Config, Durability, Environment, TeamFlags, UnknownVariable, VARIABLE_PREFIX};
use crate::domain::name::Name;
use crate::domain::suggestion::did_you_mean;
use crate::domain::system_error;
use crate::domain::task::Task;
use crate::domain::team_spec::TeamSpec;
use crate::domain::time::UnixMs;
use crate::embed::{self, STORE, SystemClock};
use crate::ports::{Board, BoardView, Clock, Stores, WaitLimit};
use crate::sandbox::protected_paths::user_config_file;
use crate::sandbox::{Sandbox, WORKER_VARIABLE};
use crate::service::messages::Outbox;
use crate::service::pending::PendingForPerson;
use crate::stores::workspace::{BOARD_FOLDER, OpenMode, OpenOptions, TEAM_FOLDER, Workspace};
use crate::team::retry_on_full::low_disk_reason;
use crate::ui::command_form::{CommandForm, GlobalFlags, shell_word};
use crate::ui::style::warning;
use crate::ui::task_context::TaskContext;
use crate::ui::text::{join_up_to, one_line, wrap};

/// The most names that an error lists.
const NAMES_MAX: usize = 20;
/// Spaces before the further lines of a note.
const NOTE_INDENT: usize = 4;

/// The global flags, the environment and the output of one command.
#[derive(Debug, Clone)]
pub struct Context {
    global: Global,
    environment: Environment,
    /// The output of the command.
    pub output: Output,
    surface: Surface,
    wait_limit: WaitLimit,
    durability: OnceLock<Durability>,
}

impl Context {
    /// Reads the current folder, the path of the user's config and the `BRIGADE_` variables.
    ///
    /// # Errors
    /// The current folder does not exist.
    pub fn new(mut global: Global, output: Output) -> CliResult<Self> {
        // An empty variable counts as none.
        for path in [&mut global.config, &mut global.workspace] {
            path.take_if(|path| path.as_os_str().is_empty());
        }
        let current_folder = std::env::current_dir()
            .map_err(|error| CliError::usage(format!("cannot use the current folder: {error}")))?;
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
            .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
            .collect();
        let environment = Environment { current_folder, user_file: user_config_file(), variables };
        Ok(Self {
            global,
            environment,
            output,
            surface: Surface::Streams,
            wait_limit: WaitLimit::for_command(),
            durability: OnceLock::new(),
        })
    }

    /// Returns a context for a command in an interactive session. It uses the current width of the terminal, and hints show slash commands.
    pub fn in_repl(&self, screen: &Printer) -> Self {
        let output = Output::new(false, self.output.color);
        let surface = Surface::Repl(screen.clone());
        Self { output, surface, wait_limit: WaitLimit::default(), durability: OnceLock::new(), ..self.clone() }
    }

    /// Returns a context for a command whose answer `brigade watch` shows in this many columns.
    pub fn in_watch(&self, columns: usize) -> Self {
        let output = Output { columns, json: false, ..self.output };
        Self { surface: Surface::Watch, ..self.for_next_command(output) }
    }

    /// The place where the output of the command appears.
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// Returns a context for the next command, with this output.
    pub fn for_next_command(&self, output: Output) -> Self {
        Self { output, wait_limit: WaitLimit::for_command(), durability: OnceLock::new(), ..self.clone() }
    }

    /// The reason why the team takes no work, if its disk has too little free space.
    pub fn low_disk_reason(&self, team: Option<&TeamSpec>) -> Option<String> {
        let limits = team.map(|team| team.limits.clone()).unwrap_or_default();
        low_disk_reason(&self.workspace().ok()?, limits.free_bytes_min)
    }

    /// Returns true for a command in an interactive session.
    pub fn is_in_repl(&self) -> bool {
        matches!(self.surface, Surface::Repl(_))
    }

    /// Prints a text immediately. A closed pipe is an error, because the text would be lost.
    ///
    /// # Errors
    /// Stdout or the terminal cannot be written.
    pub fn print_required(&self, text: &str) -> io::Result<()> {
        self.surface.print_required(&self.output, text)
    }

    /// Prints a line to stderr, or to the screen of the interactive session. It is not part of the answer, and `brigade watch` does not
    /// show it.
    pub fn note(&self, text: &str) {
        self.surface.note(&self.output, &wrap(text, self.output.on_stderr().columns, NOTE_INDENT));
    }

    /// Warnings about variables that may be misspelt settings. In an interactive session there are none: the launch has checked the
    /// variables.
    pub fn variable_warnings(&self) -> Vec<String> {
        if self.is_in_repl() {
            return Vec::new();
        }
        let warning = |unknown: UnknownVariable| {
            let meant = unknown.meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            warning(&format!("unknown variable `{}`{meant}", one_line(&unknown.name)))
        };
        self.environment.unknown_variables().into_iter().map(warning).collect()
    }

    /// The current time.
    pub fn now(&self) -> UnixMs {
        SystemClock.now()
    }

    /// The outbox of the person's messages.
    pub fn outbox<'a>(&self, stores: &'a Stores) -> Outbox<'a> {
        Outbox { stores, now: self.now(), events: None }
    }

    /// The current folder of the process.
    pub fn current_folder(&self) -> &Path {
        &self.environment.current_folder
    }

    /// The current folder, the user's config file and the variables of the process.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The config file: the one from `--config`, or the nearest one upwards. The search starts in the folder from `--workspace`, then in
    /// the current folder.
    ///
    /// # Errors
    /// Another user could have created the nearest file; see [`check_owner`].
    pub fn config_file(&self) -> CliResult<Option<PathBuf>> {
        if let Some(named) = self.named_config() {
            return Ok(Some(named));
        }
        let of_workspace = self.named_workspace().as_deref().map(find_upwards).transpose()?.flatten();
        Ok(match of_workspace {
            Some(file) => Some(file),
            None => find_upwards(self.current_folder())?,
        })
    }

    /// The config file from `--config`.
    pub fn named_config(&self) -> Option<PathBuf> {
        Some(self.current_folder().join(self.global.config.as_ref()?))
    }

    fn named_workspace(&self) -> Option<PathBuf> {
        Some(self.current_folder().join(self.global.workspace.as_ref()?))
    }

    /// The flags `--config` and `--workspace` as they were typed. Hints repeat them.
    fn flags(&self) -> GlobalFlags {
        let named = [("--config", &self.global.config), ("--workspace", &self.global.workspace)];
        let flags = named
            .into_iter()
            .filter_map(|(flag, path)| Some(format!("{flag} {}", shell_word(&path.as_ref()?.to_string_lossy()))));
        GlobalFlags { flags: flags.collect::<Vec<_>>().join(" "), commands: &WORKSPACE_COMMANDS }
    }

    /// The form of the commands in hints.
    pub fn command_form(&self) -> CommandForm {
        match &self.surface {
            Surface::Repl(_) => CommandForm::Repl(&SHARED_COMMANDS),
            _ => CommandForm::Shell(self.flags()),
        }
    }

    /// Returns a hint with its commands in this form.
    pub fn hint(&self, text: &str) -> String {
        self.command_form().render(text)
    }

    /// The workspace: the folder from `--workspace`, else the folder of the config. Without a config it is the nearest folder upwards
    /// that has a board or the files of a team.
    ///
    /// # Errors
    /// No workspace was found, or it is not a folder.
    pub fn workspace(&self) -> CliResult<PathBuf> {
        let folder = match (self.named_workspace(), self.named_config()) {
            (Some(folder), _) => Some(folder),
            (None, Some(file)) => {
                let reason = match file.metadata() {
                    Ok(about) if about.is_dir() => Some("it is a folder".to_owned()),
                    about => about.err().map(|error| system_error::reason(&error)),
                };
                if let Some(reason) = reason {
                    let path = self.global.config.clone().unwrap_or(file);
                    return Err(ConfigError::Unreadable { path, reason }.into());
                }
                file.parent().map(Path::to_owned)
            }
            (None, None) => self.found_workspace()?,
        };
        let Some(folder) = folder else {
            return Err(ConfigError::NotFound(self.current_folder().to_owned()).into());
        };
        let unusable = |reason: String| {
            let message = format!("cannot use the workspace {}: {reason}", folder.display());
            CliError::usage(message).hint("name its folder with --workspace DIR or BRIGADE_WORKSPACE")
        };
        match folder.canonicalize() {
            Ok(folder) if folder.is_dir() => Ok(folder),
            Ok(_) => Err(unusable("it is not a folder".to_owned())),
            Err(error) => Err(unusable(system_error::reason(&error))),
        }
    }

    /// The nearest workspace upwards. The owner of its board is checked like the owner of its config.
    fn found_workspace(&self) -> CliResult<Option<PathBuf>> {
        let here = self.current_folder();
        let boards = [BOARD_FOLDER, TEAM_FOLDER];
        let Some(file) = find_upwards(here)? else { return Ok(find_folder_upwards(here, &boards)?) };
        let folder = file.parent().unwrap_or(here);
        boards.iter().try_for_each(|name| check_owner(&folder.join(name), here))?;
        Ok(Some(folder.to_owned()))
    }

    /// The files that no tool of a member may write; see [`embed::default_control_files`].
    ///
    /// # Errors
    /// The workspace does not exist.
    pub fn control_files(&self, plan: Option<&Path>) -> CliResult<Vec<PathBuf>> {
        let workspace = self.workspace()?;
        let configs: Vec<PathBuf> = self.config_file()?.into_iter().chain(self.environment.user_file.clone()).collect();
        Ok(embed::default_control_files(&workspace, &configs, plan))
    }

    /// The sandbox of commands in the workspace.
    ///
    /// # Errors
    /// The workspace does not exist, or a control file cannot be protected.
    pub fn sandbox(&self, team: Option<&TeamSpec>) -> CliResult<Sandbox> {
        let control_files = self.control_files(team.and_then(|team| team.plan.as_deref()))?;
        let writable = team.map(|team| team.writable.as_slice()).unwrap_or_default();
        embed::open_sandbox(&self.workspace()?, &control_files, writable)
            .map_err(|error| CliError::refused(error.to_string()))
    }

    /// The folder for a new config: the one from `--workspace`, or the current folder. A missing folder is created.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn new_workspace(&self) -> CliResult<PathBuf> {
        let folder = self.named_workspace().unwrap_or_else(|| self.current_folder().to_owned());
        std::fs::create_dir_all(&folder)
            .map_err(|error| CliError::usage(format!("cannot use {}: {error}", folder.display())))?;
        Ok(folder)
    }

    /// Loads the config.
    ///
    /// # Errors
    /// The config does not exist or is invalid.
    pub fn config(&self) -> CliResult<Config> {
        let file = self.config_file()?;
        if file.is_none() && self.environment.user_file.as_deref().is_none_or(|path| !path.is_file()) {
            let folder = self.current_folder().to_owned();
            return Err(ConfigError::NotFound(folder).into());
        }
        Ok(self.load(file.as_deref())?)
    }

    fn load(&self, file: Option<&Path>) -> Result<Config, ConfigError> {
        let load = if self.global.config.is_some() { Config::load } else { Config::load_found };
        load(file, self.environment.clone())
    }

    /// The config, for commands that also work without a valid one.
    pub fn config_if_valid(&self) -> Option<Config> {
        self.load(self.config_file().ok()?.as_deref()).ok()
    }

    /// Opens the workspace. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn open(&self, mode: OpenMode) -> CliResult<Workspace> {
        let wait_limit = self.wait_limit.clone();
        let options = OpenOptions { mode, durability: self.durability(), clock: Arc::new(SystemClock), wait_limit };
        Ok(STORE.open(&self.workspace()?, options).await?)
    }

    /// Opens all stores of the workspace. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn stores(&self, mode: OpenMode) -> CliResult<Stores> {
        Ok(self.open(mode).await?.stores)
    }

    /// Opens the board. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn board(&self, mode: OpenMode) -> CliResult<Arc<dyn Board>> {
        Ok(self.stores(mode).await?.board)
    }

    /// Returns the ids of the live workers; `None` if they cannot be read. Also `None` if no worker has a claim, because then they do not
    /// matter.
    pub async fn live_workers(&self, view: &BoardView) -> Option<HashSet<String>> {
        let has_worker = |task: &Task| task.claim.as_ref().is_some_and(|claim| claim.expires.is_none());
        if !view.tasks.values().any(|task| has_worker(task)) {
            return None;
        }
        let running_team = self.running_team().await.ok()?;
        let Some(mark) = running_team.surrounding_team_mark else {
            return Some(running_team.workers.into_iter().collect());
        };
        // In the team's sandbox a command does not see the workers. There, all workers of the team count as live.
        let claims = view.tasks.values().filter_map(|task| task.claim.as_ref());
        Some(claims.map(|claim| claim.worker.clone()).filter(|worker| worker.starts_with(&mark)).collect())
    }

    /// The facts that views of tasks need: the members, the live workers and the open approvals.
    ///
    /// # Errors
    /// The approvals cannot be read.
    pub async fn task_context<'v>(&self, view: &'v BoardView) -> CliResult<TaskContext<'v>> {
        let pending = PendingForPerson::of(&self.stores(OpenMode::ReadOnly).await?).await?;
        Ok(TaskContext {
            live_workers: self.live_workers(view).await,
            approvals: pending.approvals,
            questions: pending.questions,
            candidates: self.team_if_valid(None).as_ref().map(candidates).unwrap_or_default(),
            ..TaskContext::of(view, self.now())
        })
    }

    /// The tasks in progress whose worker has died.
    pub async fn abandoned_tasks<'v>(&self, view: &'v BoardView) -> Vec<&'v Task> {
        let live_workers = self.live_workers(view).await;
        let task_context = TaskContext { live_workers, ..TaskContext::of(view, self.now()) };
        let tasks = view.tasks.values().map(Arc::as_ref);
        tasks.filter(|task| task_context.is_abandoned(task)).collect()
    }

    /// The running team, if there is one, and the contents of the state file.
    ///
    /// # Errors
    /// The workspace does not exist or cannot be read.
    pub async fn running_team_with_state(&self) -> CliResult<RunningTeam> {
        let stores = self.stores(OpenMode::ReadOnly).await?;
        let state = stores.state.read().await?;
        let mut running_team = self.running_team_in(&stores).await?;
        if let Some(lead) = &mut running_team.lead {
            // The newer heartbeat counts: the state file has one, and the worker's record has one.
            lead.heartbeat = lead.heartbeat.max(state.as_ref().and_then(|state| heartbeat_in(state, &lead.team)));
        }
        Ok(RunningTeam { desired: state.as_ref().map(|state| state.desired), state, ..running_team })
    }

    /// The running team, if there is one, without the state file.
    ///
    /// # Errors
    /// The workspace does not exist or cannot be read.
    pub async fn running_team(&self) -> CliResult<RunningTeam> {
        self.running_team_in(&self.stores(OpenMode::ReadOnly).await?).await
    }

    async fn running_team_in(&self, stores: &Stores) -> CliResult<RunningTeam> {
        let surrounding_mark = self.environment.variables.get(WORKER_VARIABLE);
        RunningTeam::of(stores, surrounding_mark.map(String::as_str)).await
    }

    /// Opens the inboxes of the config's only team if no team runs, because mail can be sent before the first launch. The roster adds
    /// teammates that the lead spawned and agents of other programs. A running team has opened the inboxes of its members. Returns
    /// the team.
    ///
    /// # Errors
    /// The inboxes cannot be opened.
    pub async fn open_inboxes(&self, stores: &Stores) -> CliResult<Option<TeamSpec>> {
        let running_team = self.running_team().await?;
        let team = self.team_if_valid(running_team.team.as_deref());
        if running_team.lead.is_none()
            && let Some(team) = &team
        {
            let roster = stores.roster.read().await?;
            stores.mailbox.open_inboxes(&member_names(team, &roster)).await?;
        }
        Ok(team)
    }

    /// The names of the teammates: first the members in the config, then those in the roster, which also has teammates that a lead
    /// spawned.
    pub async fn teammates(&self) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(config) = self.config_if_valid() {
            for team in config.team_names() {
                let Ok(team) = config.team(&team, &TeamFlags::default()) else { continue };
                names.extend(team.spec.members.iter().map(|member| member.name.to_string()));
            }
        }
        if let Ok(stores) = self.stores(OpenMode::ReadOnly).await {
            let roster = stores.roster.read().await.unwrap_or_default();
            names.extend(roster.into_iter().map(|member| member.name));
        }
        let mut known = HashSet::new();
        names.retain(|name| !Name::new(name).is_ok_and(|name| name.is_reserved()) && known.insert(name.to_lowercase()));
        names
    }

    /// The name of the teammate, or of one of these `others`, that a person typed. Without any known name every name is accepted.
    ///
    /// # Errors
    /// There is no such member.
    pub async fn member_named(&self, typed: &str, others: &[&str]) -> CliResult<String> {
        let typed = typed.trim_start_matches('@');
        let mut names = self.teammates().await;
        names.extend(others.iter().map(|name| (*name).to_owned()));
        if let Some(name) = names.iter().find(|name| name.eq_ignore_ascii_case(typed)) {
            return Ok(name.clone());
        }
        if names.is_empty() {
            return Ok(typed.to_owned());
        }
        let known = one_line(&join_up_to(names.iter(), NAMES_MAX));
        let message = format!("cannot find the teammate `{}`: there are {known}", one_line(typed));
        let hint = did_you_mean(typed, names.iter().map(String::as_str));
        Err(CliError { hint, ..CliError::refused(message) })
    }

    /// The durability from the config, or the stronger one if the config is missing or invalid. The config is read once.
    fn durability(&self) -> Durability {
        let of_config = || self.config_if_valid().map_or(Durability::Power, |config| config.durability());
        *self.durability.get_or_init(of_config)
    }

    /// The running team's configuration, or that of the config's only team.
    pub fn team_of(&self, running_team: &RunningTeam) -> Option<TeamSpec> {
        self.team_if_valid(running_team.team.as_deref()).or_else(|| self.team_if_valid(None))
    }

    /// The team with this name, or the only team of the config. `None` if the config is missing or invalid.
    pub fn team_if_valid(&self, name: Option<&str>) -> Option<TeamSpec> {
        let config = self.config_if_valid()?;
        let name = config.select(name).ok()?;
        Some(config.team(&name, &TeamFlags::default()).ok()?.spec)
    }
}

/// A path as people read it: relative if it is below the current folder.
pub fn display_path(path: &Path, current_folder: &Path) -> String {
    match path.strip_prefix(current_folder) {
        Ok(relative) if relative.as_os_str().is_empty() => ".".to_owned(),
        Ok(relative) => relative.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}
