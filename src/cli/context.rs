//! What commands share: where the workspace is, its config, its stores, the time.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Global;
use super::error::{CliError, CliResult};
use super::output::Output;
use super::running::{Running, heartbeat_in};
use super::session::line::as_typed;
use super::session::screen::Screen;
use crate::config::problem::ConfigError;
use crate::config::search::{check_owner, find_folder_upwards, find_upwards};
use crate::config::{CONFIG_FILE, Config, Durability, Surroundings, TeamFlags};
use crate::domain::name::Name;
use crate::domain::task::Task;
use crate::domain::time::UnixMs;
use crate::embed::{self, SystemClock};
use crate::ports::{Board, BoardView, Clock, Stores};
use crate::sandbox::protected::user_config_file;
use crate::sandbox::{Sandbox, WORKER_VARIABLE};
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::board::{BOARD_FOLDER, FileBoard};
use crate::stores::file::format::check_format;
use crate::stores::file::links::refuse_links;
use crate::stores::file::workers::FileWorkers;
use crate::stores::fs::RealFileSystem;
use crate::stores::open::{OpenOptions, Purpose, open_with};
use crate::team::patience::too_little_room;
use crate::team::spec::{MemberSpec, TeamSpec};
use crate::ui::text::with_flags;
use crate::ui::why::Candidate;

/// What a command is given.
#[derive(Debug, Clone)]
pub struct Context {
    global: Global,
    surroundings: Surroundings,
    /// Where its words go.
    pub output: Output,
    /// The session it is given in.
    screen: Option<Screen>,
    files: RealFileSystem,
}

impl Context {
    /// Takes in the flags, and what surrounds the process.
    ///
    /// # Errors
    /// The current folder is gone.
    pub fn new(global: Global, output: Output) -> CliResult<Self> {
        let current_folder = std::env::current_dir()
            .map_err(|error| CliError::usage(format!("the current folder cannot be used: {error}")))?;
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
            .filter(|(name, _)| name.starts_with("BRIGADE_"))
            .collect();
        let surroundings = Surroundings { current_folder, user_file: user_config_file(), variables };
        Ok(Self { global, surroundings, output, screen: None, files: RealFileSystem::for_command() })
    }

    /// The same for a command within a session: as wide as the terminal is now, and what is hinted at is typed there.
    #[must_use]
    pub fn in_session(&self, screen: &Screen) -> Self {
        let (output, screen) = (Output::new(false, self.output.color), Some(screen.clone()));
        Self { output, screen, files: RealFileSystem::default(), ..self.clone() }
    }

    /// The same for one more command.
    #[must_use]
    pub fn for_next_command(&self, output: Output) -> Self {
        Self { output, files: RealFileSystem::for_command(), ..self.clone() }
    }

    /// Why no work is taken in the workspace, where too little is free on its disk for this team.
    #[must_use]
    pub fn too_little_room(&self, team: Option<&TeamSpec>) -> Option<String> {
        let limits = team.map(|team| team.limits.clone()).unwrap_or_default();
        too_little_room(&self.workspace().ok()?, limits.free_bytes_min)
    }

    /// Whether it is for a command within a session.
    #[must_use]
    pub fn is_in_session(&self) -> bool {
        self.screen.is_some()
    }

    /// Prints at once what has to be read.
    ///
    /// # Errors
    /// Nobody can have read it.
    pub fn print_whole(&self, text: &str) -> io::Result<()> {
        match &self.screen {
            Some(screen) if screen.print_and_wait(text) => Ok(()),
            Some(_) => Err(io::Error::other("the terminal takes nothing")),
            None => self.output.print_whole(text),
        }
    }

    /// Says something besides the answer.
    pub fn note(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.print(text),
            None => self.output.note(text),
        }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> UnixMs {
        SystemClock.now()
    }

    /// The current folder.
    #[must_use]
    pub fn current_folder(&self) -> &Path {
        &self.surroundings.current_folder
    }

    /// What surrounds the process.
    #[must_use]
    pub fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// The config file: the one that was named, or the nearest upwards, from the workspace where one was named.
    ///
    /// # Errors
    /// Another user could have put the nearest one there; see [`check_owner`].
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

    /// The config file that was named.
    #[must_use]
    pub fn named_config(&self) -> Option<PathBuf> {
        let named = self.global.config.as_ref().filter(|path| !path.as_os_str().is_empty())?;
        Some(self.current_folder().join(named))
    }

    fn named_workspace(&self) -> Option<PathBuf> {
        let named = self.global.workspace.as_ref().filter(|path| !path.as_os_str().is_empty())?;
        Some(self.current_folder().join(named))
    }

    /// The flags that name config and workspace, as they were given: hints carry them, to work where they are read.
    #[must_use]
    pub fn flags(&self) -> String {
        let named = [("--config", &self.global.config), ("--workspace", &self.global.workspace)];
        let flag = |(flag, path): (&str, &Option<PathBuf>)| {
            let path = path.as_ref().filter(|path| !path.as_os_str().is_empty())?.to_string_lossy().into_owned();
            Some(format!("{flag} {}", shlex::try_quote(&path).ok()?))
        };
        named.into_iter().filter_map(flag).collect::<Vec<_>>().join(" ")
    }

    /// A hint with those flags; in a session, with the commands as they are typed there.
    #[must_use]
    pub fn hint(&self, text: &str) -> String {
        if self.screen.is_some() { as_typed(text) } else { with_flags(text, &self.flags()) }
    }

    /// The workspace: the one that was named, the config's folder, or where there is no config the nearest one upwards that has a
    /// board or a team's files.
    ///
    /// # Errors
    /// There is neither, or it is no folder.
    pub fn workspace(&self) -> CliResult<PathBuf> {
        let folder = match (self.named_workspace(), self.named_config()) {
            (Some(folder), _) => Some(folder),
            (None, Some(file)) if !file.metadata().is_ok_and(|there| !there.is_dir()) => {
                let named = self.global.config.as_deref().unwrap_or(&file).display();
                return Err(CliError::usage(format!("there is no config file {named}")));
            }
            (None, Some(file)) => file.parent().map(Path::to_owned),
            (None, None) => self.found_workspace()?,
        };
        let Some(folder) = folder else {
            let message = format!("no {CONFIG_FILE} in {} or any folder above it", self.current_folder().display());
            let hint = "run `brigade init` to begin here, or say where: --workspace DIR, --config FILE";
            return Err(CliError::usage(message).hint(hint));
        };
        let shown = folder.display();
        match folder.canonicalize() {
            Ok(folder) if folder.is_dir() => Ok(folder),
            Ok(_) => Err(CliError::usage(format!("the workspace {shown} is not a folder"))),
            Err(error) => Err(CliError::usage(format!("the workspace {shown} cannot be used: {error}"))),
        }
    }

    /// The workspace that is found upwards; its board must be as trusted as its config.
    fn found_workspace(&self) -> CliResult<Option<PathBuf>> {
        let (here, boards) = (self.current_folder(), [BOARD_FOLDER, TEAM_FOLDER]);
        let Some(file) = find_upwards(here)? else { return Ok(find_folder_upwards(here, &boards)?) };
        let folder = file.parent().unwrap_or(here);
        boards.iter().try_for_each(|name| check_owner(&folder.join(name), here))?;
        Ok(Some(folder.to_owned()))
    }

    /// What no tool of a member may write; see [`embed::control_files`].
    ///
    /// # Errors
    /// There is no workspace.
    pub fn control_files(&self, plan: Option<&Path>) -> CliResult<Vec<PathBuf>> {
        let workspace = self.workspace()?;
        let configs: Vec<PathBuf> =
            self.config_file()?.into_iter().chain(self.surroundings.user_file.clone()).collect();
        Ok(embed::control_files(&workspace, &configs, plan))
    }

    /// The sandbox of commands in the workspace.
    ///
    /// # Errors
    /// There is no workspace, or a control file cannot be protected.
    pub fn sandbox(&self, team: Option<&TeamSpec>) -> CliResult<Sandbox> {
        let control_files = self.control_files(team.and_then(|team| team.plan.as_deref()))?;
        let writable = team.map(|team| team.writable.as_slice()).unwrap_or_default();
        embed::sandbox(&self.workspace()?, &control_files, writable)
            .map_err(|error| CliError::refused(error.to_string()))
    }

    /// Where a new config goes: the workspace that was named, which is made where it is missing, or the current folder.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new_workspace(&self) -> CliResult<PathBuf> {
        let folder = self.named_workspace().unwrap_or_else(|| self.current_folder().to_owned());
        std::fs::create_dir_all(&folder)
            .map_err(|error| CliError::usage(format!("{} cannot be used: {error}", folder.display())))?;
        Ok(folder)
    }

    /// The config.
    ///
    /// # Errors
    /// There is none, or things are wrong in it.
    pub fn config(&self) -> CliResult<Config> {
        let file = self.config_file()?;
        if file.is_none() && self.surroundings.user_file.as_deref().is_none_or(|path| !path.is_file()) {
            let folder = self.current_folder().to_owned();
            return Err(ConfigError::NotFound(folder).into());
        }
        Ok(self.load(file.as_deref())?)
    }

    fn load(&self, file: Option<&Path>) -> Result<Config, ConfigError> {
        let is_named = self.global.config.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
        let load = if is_named { Config::load } else { Config::load_found };
        load(file, self.surroundings.clone())
    }

    /// The config, for commands that do their work without it too.
    #[must_use]
    pub fn config_if_valid(&self) -> Option<Config> {
        self.load(self.config_file().ok()?.as_deref()).ok()
    }

    /// The board, to look at: nothing is made or mended.
    ///
    /// # Errors
    /// There is no workspace, or a newer Brigade's files are in it.
    pub fn board_to_look_at(&self) -> CliResult<FileBoard> {
        let (files, workspace) = (Arc::new(self.files.clone()), self.workspace()?);
        check_format(&*files, &workspace.join(TEAM_FOLDER))?;
        Ok(FileBoard::look(files, &workspace, Arc::new(SystemClock)))
    }

    /// The board, to work on.
    ///
    /// # Errors
    /// There is no workspace, or the board cannot be opened.
    pub fn board(&self) -> CliResult<Arc<dyn Board>> {
        let (changes, _) = tokio::sync::broadcast::channel(1);
        let (files, workspace) = (Arc::new(self.files.clone()), self.workspace()?);
        refuse_links(&workspace)?;
        check_format(&*files, &workspace.join(TEAM_FOLDER))?;
        let durability = self.durability();
        Ok(Arc::new(FileBoard::open(files, &workspace, durability, Arc::new(SystemClock), changes)?))
    }

    /// All stores of the workspace, to act by hand or to look. Call it within the runtime.
    ///
    /// # Errors
    /// There is no workspace, or one cannot be opened.
    pub async fn stores(&self, purpose: Purpose) -> CliResult<Stores> {
        let (durability, clock) = (self.durability(), Arc::new(SystemClock));
        let options = OpenOptions { purpose, durability, clock };
        Ok(open_with(self.files.clone(), &self.workspace()?, options).await?.stores)
    }

    /// The workers of the workspace, looked at from outside.
    ///
    /// # Errors
    /// There is no workspace.
    pub fn workers(&self) -> CliResult<FileWorkers> {
        let files = Arc::new(RealFileSystem::default());
        Ok(FileWorkers::visit(files, Arc::new(SystemClock), &self.workspace()?.join(TEAM_FOLDER)))
    }

    /// The workers that live, where a claim of one stands on the board: they need not be asked for otherwise.
    #[must_use]
    pub fn live_workers(&self, view: &BoardView) -> Option<HashSet<String>> {
        let has_worker = |task: &Task| task.claim.as_ref().is_some_and(|claim| claim.expires.is_none());
        view.tasks.values().any(|task| has_worker(task)).then_some(())?;
        let running = self.who_runs().ok()?;
        let Some(mark) = running.hidden_workers else { return Some(running.workers.into_iter().collect()) };
        let claims = view.tasks.values().filter_map(|task| task.claim.as_ref());
        Some(claims.map(|claim| claim.worker.clone()).filter(|worker| worker.starts_with(&mark)).collect())
    }

    /// The team that runs here, if one does, and what the state file says.
    ///
    /// # Errors
    /// There is no workspace, or it cannot be read.
    pub async fn running(&self) -> CliResult<Running> {
        let state = self.stores(Purpose::Look).await?.state.read().await?;
        let mut running = self.who_runs()?;
        if let Some(lead) = &mut running.lead {
            // The younger of what the state file and the worker's record say.
            lead.heartbeat = lead.heartbeat.max(state.as_ref().and_then(|state| heartbeat_in(state, &lead.team)));
        }
        Ok(Running { desired: state.as_ref().map(|state| state.desired), state, ..running })
    }

    /// The team that runs here, if one does, without the state.
    ///
    /// # Errors
    /// There is no workspace, or it cannot be read.
    pub fn who_runs(&self) -> CliResult<Running> {
        let own_mark = self.surroundings.variables.get(WORKER_VARIABLE);
        Running::of(&self.workspace()?, &self.workers()?, own_mark.map(String::as_str))
    }

    /// Opens the inboxes of the only team while none runs: mail may be sent before a team first does. A team that runs has
    /// opened those of its members, and of those its lead took in besides. Returns the team.
    ///
    /// # Errors
    /// They cannot be opened.
    pub async fn open_inboxes(&self, stores: &Stores) -> CliResult<Option<TeamSpec>> {
        let running = self.who_runs()?;
        let team = self.team_if_valid(running.team.as_deref());
        if let Some(team) = team.as_ref().filter(|_| running.lead.is_none()) {
            stores.mailbox.open_inboxes(&member_names(team)).await?;
        }
        Ok(team)
    }

    /// What accepted work survives here; the stronger where the config does not say, or is wrong.
    fn durability(&self) -> Durability {
        self.config_if_valid().map_or(Durability::Power, |config| config.durability())
    }

    /// The team that is meant, as far as the config says: the one of this name, or the only one.
    #[must_use]
    pub fn team_if_valid(&self, name: Option<&str>) -> Option<TeamSpec> {
        let config = self.config_if_valid()?;
        let name = config.select(name).ok()?;
        Some(config.team(&name, &TeamFlags::default()).ok()?.spec)
    }
}

/// Who could work on tasks in this team, were it launched.
#[must_use]
pub fn candidates(team: &TeamSpec) -> Vec<Candidate> {
    let candidate = |member: &MemberSpec| Candidate {
        name: member.name.to_string(),
        capabilities: member.can_do(),
        is_there: true,
        waits_for: None,
    };
    team.members.iter().map(candidate).collect()
}

/// The names of a team's members.
#[must_use]
pub fn member_names(team: &TeamSpec) -> Vec<Name> {
    team.members.iter().map(|member| member.name.clone()).collect()
}

/// A path as people read it: relative to the current folder where it is below that.
#[must_use]
pub fn shown(path: &Path, current_folder: &Path) -> String {
    match path.strip_prefix(current_folder) {
        Ok(relative) if relative.as_os_str().is_empty() => ".".to_owned(),
        Ok(relative) => relative.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}
