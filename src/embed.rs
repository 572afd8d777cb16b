//! A team in a folder, for any program: adapters put together around a [`TeamSpec`]. The command line launches this way too.
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     brigade::embed::run(async {
//!         let team = brigade::embed::Team::of_config("brigade.toml".as_ref(), None)?;
//!         println!("{}", team.launch(".".as_ref()).await?.wait().await?.summary);
//!         Ok(())
//!     })?
//! }
//! ```
//!
//! The examples of the repository show more. It knows nothing of terminals: what a team does is heard from its [`TeamHandle`].

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::problem::ConfigError;
use crate::config::{CONFIG_FILE, Config, Durability, Surroundings, TeamFlags};
use crate::domain::access::PathRule;
use crate::domain::plan::{self, PLAN_BYTES_MAX, PlanErrors};
use crate::domain::state::Mode;
use crate::domain::task::NewTask;
use crate::domain::time::UnixMs;
use crate::models;
use crate::platform::reading::{self, Accept};
use crate::platform::threads;
use crate::ports::{Clock, Repository, StoreError, Stores};
use crate::sandbox::protected::{home_rules, make_home_folders};
use crate::sandbox::{self, Sandbox, SandboxError};
use crate::stores::file::links::refuse_link;
use crate::stores::file::{LOCK_FILES, WORKERS_FOLDER};
use crate::stores::fs::RealFileSystem;
use crate::stores::git::{GitOptions, GitRepository};
use crate::stores::open::{OpenOptions, Purpose, Workspace, open};
use crate::team::handle::TeamHandle;
use crate::team::members::Connect;
use crate::team::spec::{Isolation, TeamSpec};
use crate::team::{self, LaunchError, Start};
use crate::tools::{self, Tool};

/// Brigade's own files in a workspace.
const CONTROL_FILES: [&str; 4] = ["agent_state.json", ".tasks", ".team", CONFIG_FILE];

/// Folders whose files become the state file while commands run: see `stores::file::shared`.
const STATE_FILE_FOLDERS: [&str; 2] = [".team/spare", ".team/aside"];

/// The system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMs {
        UnixMs(0).plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// Why a team cannot be launched.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The plan cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// Its file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The plan's text is no plan: with its file's name before each line.
    #[error("{0}")]
    Plan(String),
    /// The folder cannot be used, or another process leads it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The team cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Two tools of one name: a model could not tell them apart.
    #[error("there are two tools of the name `{0}`")]
    ToolTwice(String),
    /// Commands could not be guarded by this program.
    #[error("commands cannot be guarded: {0}")]
    Guard(String),
    /// Commands cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// Does `work` on a runtime of its own: all that a `main` which launches teams has to do.
///
/// Commands of members run under a guard, which is this very program, started again. It has to become the guard before it does
/// anything else, so call this, or [`sandbox::run_if_asked`], first.
///
/// # Errors
/// The system gives no threads or no event queue.
pub fn run<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    sandbox::run_if_asked();
    Ok(threads::runtime()?.block_on(work))
}

/// Makes a tool for one member.
type MakeTool = Arc<dyn Fn() -> Arc<dyn Tool> + Send + Sync>;

/// A team, and all that is to be known about how it runs. By default it runs one session, on files, with Brigade's own
/// providers and tools.
#[derive(Clone)]
pub struct Team {
    spec: TeamSpec,
    start: Start,
    durability: Durability,
    control_files: Vec<PathBuf>,
    /// The config file as it was named.
    config: Option<PathBuf>,
    connect: Connect,
    tools: Vec<MakeTool>,
}

impl Team {
    /// The team of this specification.
    #[must_use]
    pub fn new(spec: TeamSpec) -> Self {
        Self {
            spec,
            start: Start { mode: Some(Mode::RunOnce), one_session: true, ..Start::default() },
            durability: Durability::default(),
            control_files: Vec::new(),
            config: None,
            connect: Arc::new(models::connect),
            tools: Vec::new(),
        }
    }

    /// The team `name` of a config file, or its only one. No variables and no user's file count: what the file says holds.
    ///
    /// # Errors
    /// [`EmbedError::Config`].
    pub fn of_config(file: &Path, name: Option<&str>) -> Result<Self, EmbedError> {
        let unreadable =
            |error: std::io::Error| EmbedError::Unreadable { path: file.into(), reason: error.to_string() };
        let named = std::path::absolute(file).map_err(unreadable)?;
        let file = file.canonicalize().map_err(unreadable)?;
        let current_folder = file.parent().map(Path::to_owned).unwrap_or_default();
        let config = Config::load(Some(&file), Surroundings { current_folder, ..Surroundings::default() })?;
        let resolved = config.team(&config.select(name)?, &TeamFlags::default())?;
        Ok(Self { durability: resolved.durability, config: Some(named), ..Self::new(resolved.spec) })
    }

    /// The same, with a goal for its lead.
    #[must_use]
    pub fn goal(mut self, goal: impl Into<String>) -> Self {
        self.spec.goal = Some(goal.into());
        self
    }

    /// The same, with the tasks of a plan in Markdown. `name` tells them from those of other plans: launching again adds
    /// none of them twice.
    ///
    /// # Errors
    /// [`EmbedError::Plan`].
    pub fn plan(mut self, name: &str, text: &str) -> Result<Self, EmbedError> {
        self.start.plan.extend(plan::parse(name, text).map_err(|errors| of_plan(name, &errors))?);
        Ok(self)
    }

    /// The same, begun otherwise: with other tasks, in another mode, for longer than one session.
    #[must_use]
    pub fn start(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// The same, with one more tool for every member, the lead too. What it says is bounded and made harmless as what all
    /// tools say.
    #[must_use]
    pub fn tool<T: Tool + 'static>(mut self, make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        self.tools.push(Arc::new(move || tools::guarded(Arc::new(make()))));
        self
    }

    /// The same, its models reached by `connect` instead of the PROVIDERS table.
    #[must_use]
    pub fn models(self, connect: Connect) -> Self {
        Self { connect, ..self }
    }

    /// The same, with what its accepted work survives.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// The same, with more that no tool of a member may write, absolute or relative to the workspace.
    #[must_use]
    pub fn control_files(self, control_files: Vec<PathBuf>) -> Self {
        Self { control_files, ..self }
    }

    /// The same, read from this config file, which the person named. It may be a link; a config that nobody named may not.
    #[must_use]
    pub fn config_file(self, config: Option<PathBuf>) -> Self {
        Self { config, ..self }
    }

    /// Opens the folder to lead it: nobody else can until what this returns is dropped. Nothing is launched yet.
    ///
    /// # Errors
    /// See [`EmbedError`].
    pub async fn open(mut self, folder: &Path) -> Result<OpenTeam, EmbedError> {
        if !sandbox::was_asked() {
            let why = "let main call brigade::embed::run, or brigade::sandbox::run_if_asked, first";
            return Err(EmbedError::Guard(why.to_owned()));
        }
        let unusable =
            |error: std::io::Error| EmbedError::Unreadable { path: folder.into(), reason: error.to_string() };
        let folder = folder.canonicalize().map_err(unusable)?;
        self.check_tools()?;
        if let (Some(plan), true) = (&self.spec.plan, self.start.plan.is_empty()) {
            self.start.plan = read_plan(plan, &folder, Accept::FilesWithin(&folder))?;
        }
        let config = folder.join(CONFIG_FILE);
        let real_folder = |path: &Path| path.parent().and_then(|folder| folder.canonicalize().ok());
        let is_named = |path: &PathBuf| path.ends_with(CONFIG_FILE) && real_folder(path).as_ref() == Some(&folder);
        if !self.config.as_ref().is_some_and(is_named) {
            refuse_link(&config)?;
        }
        // Its prompts lie beside what it leads to.
        let real_config = self.config.as_ref().and_then(|config| config.canonicalize().ok());
        let configs: Vec<PathBuf> = self.config.iter().cloned().chain(real_config).collect();
        let own = control_files(&folder, &configs, self.spec.plan.as_deref());
        self.control_files
            .extend(own.into_iter().filter(|path| !self.control_files.contains(path)).collect::<Vec<_>>());
        let purpose = Purpose::Lead { team: self.spec.name.to_string() };
        let options = OpenOptions { purpose, durability: self.durability, clock: Arc::new(SystemClock) };
        let mut workspace = open(&folder, options).await?;
        workspace.warnings.extend(make_home_folders(&folder, &self.spec.writable));
        let sandbox = sandbox(&folder, &self.control_files, &self.spec.writable)?;
        Ok(OpenTeam { team: self, workspace, sandbox, folder })
    }

    /// Launches the team in this folder.
    ///
    /// # Errors
    /// See [`EmbedError`]. Nothing was started then.
    pub async fn launch(self, folder: &Path) -> Result<RunningTeam, EmbedError> {
        self.open(folder).await?.launch().await
    }

    fn check_tools(&self) -> Result<(), EmbedError> {
        let own = self.tools.iter().map(|make| make());
        for is_lead in [false, true] {
            let mut names = BTreeSet::new();
            for tool in tools::table::tools_of(is_lead).into_iter().chain(own.clone()) {
                let name = tool.spec().name;
                if !names.insert(name.clone()) {
                    return Err(EmbedError::ToolTwice(name));
                }
            }
        }
        Ok(())
    }
}

/// A team in a folder that nobody else leads.
pub struct OpenTeam {
    team: Team,
    workspace: Workspace,
    sandbox: Sandbox,
    folder: PathBuf,
}

impl OpenTeam {
    /// What the person should know: no file events, locks that are not to be trusted.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.workspace.warnings
    }

    /// The folder's stores.
    #[must_use]
    pub fn stores(&self) -> &Stores {
        &self.workspace.stores
    }

    /// The sandbox of its commands.
    #[must_use]
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Launches it.
    ///
    /// # Errors
    /// [`EmbedError::Launch`]. Nothing was started then.
    pub async fn launch(self) -> Result<RunningTeam, EmbedError> {
        let Self { team, workspace, sandbox, folder } = self;
        let own = team.tools;
        let repository = repository(&team.spec, &folder, &team.control_files, team.durability, &sandbox).await?;
        let surroundings = team::Surroundings {
            stores: workspace.stores.clone(),
            clock: Arc::new(SystemClock),
            control_files: team.control_files.into(),
            sandbox,
            workspace: folder,
            connect: team.connect,
            count_tokens: models::tokens::count,
            repository,
            tools_of: Arc::new(move |is_lead| {
                tools::table::tools_of(is_lead).into_iter().chain(own.iter().map(|make| make())).collect()
            }),
        };
        let handle = team::launch(team.spec, team.start, surroundings).await?;
        Ok(RunningTeam { handle, workspace })
    }
}

/// A team at work: a [`TeamHandle`] that holds its folder. Wait for it before this is dropped.
pub struct RunningTeam {
    handle: TeamHandle,
    workspace: Workspace,
}

impl RunningTeam {
    /// What the person should know; see [`OpenTeam::warnings`].
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.workspace.warnings
    }

    /// The folder's stores, to look at board, mail and transcripts with.
    #[must_use]
    pub fn stores(&self) -> &Stores {
        &self.workspace.stores
    }
}

impl Deref for RunningTeam {
    type Target = TeamHandle;

    fn deref(&self) -> &TeamHandle {
        &self.handle
    }
}

impl DerefMut for RunningTeam {
    fn deref_mut(&mut self) -> &mut TeamHandle {
        &mut self.handle
    }
}

/// The repository of a team with isolation.
async fn repository(
    spec: &TeamSpec,
    folder: &Path,
    control_files: &[PathBuf],
    durability: Durability,
    commands: &Sandbox,
) -> Result<Option<Arc<dyn Repository>>, LaunchError> {
    if spec.isolation == Isolation::None {
        return Ok(None);
    }
    let options = GitOptions {
        team: spec.name.to_string(),
        into: spec.merge_into.clone(),
        control_files: control_files.to_vec(),
        files: Arc::new(RealFileSystem::default()),
        clock: Arc::new(SystemClock),
        durability,
        program: sandbox::filter::own_program_path(),
        sandbox: commands.clone(),
    };
    Ok(Some(Arc::new(GitRepository::open(folder, options).await?)))
}

/// The sandbox of commands in `workspace`: these control files, the user's config and the programs of the home folder are read-only
/// there, but for folders in `writable`; lock files are hidden. It blocks for some milliseconds.
///
/// # Errors
/// [`SandboxError`]: a path that exists cannot be protected, or the guard cannot be started.
pub fn sandbox(workspace: &Path, control_files: &[PathBuf], writable: &[PathBuf]) -> Result<Sandbox, SandboxError> {
    let guard = sandbox::own_guard().map_err(|error| SandboxError::Guard(error.to_string()))?;
    let mut rules: Vec<PathRule> =
        STATE_FILE_FOLDERS.iter().map(|folder| PathRule::read_only_files(workspace.join(folder))).collect();
    // A config that the person named may be a link; every other control file was refused as one.
    let real = |file: PathBuf| file.canonicalize().unwrap_or(file);
    let controls = control_files.iter().map(|file| real(workspace.join(file)));
    // A link that leads nowhere can be the user's config only, which the rules for the home folder protect. A config that does not exist
    // is not this launch's: a link that a command makes there keeps no command from running, and the next launch refuses it.
    let is_own = |file: &PathBuf| file.starts_with(workspace) && !file.ends_with(CONFIG_FILE);
    let is_protected = |file: &PathBuf| !file.is_symlink() && (file.exists() || is_own(file));
    rules.extend(controls.filter(is_protected).map(PathRule::read_only));
    let locks = LOCK_FILES.iter().chain([&WORKERS_FOLDER]);
    rules.extend(locks.map(|path| PathRule::hidden(workspace.join(path))));
    rules.extend(home_rules(workspace, writable));
    let mut known = BTreeSet::new();
    rules.retain(|rule| known.insert(rule.path.clone()));
    Sandbox::open(guard, workspace, rules)
}

/// What no tool of a member may write: Brigade's own files in the workspace, relative to it, and what says how the team
/// runs, wherever it lies. Of the latter, a plan and prompts inside the workspace are its contents like any other file.
#[must_use]
pub fn control_files(workspace: &Path, configs: &[PathBuf], plan: Option<&Path>) -> Vec<PathBuf> {
    let whole = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let inside = |path: &Path| path.strip_prefix(workspace).ok().map(Path::to_owned);
    let mut controls: Vec<PathBuf> = CONTROL_FILES.map(PathBuf::from).into();
    for config in configs {
        let prompts = config.parent().map(|folder| whole(folder.join("prompts")));
        let config = whole(config.clone());
        controls.push(inside(&config).unwrap_or(config));
        controls.extend(prompts.filter(|prompts| inside(prompts).is_none()));
    }
    controls.extend(plan.map(|plan| whole(plan.to_owned())).filter(|plan| inside(plan).is_none()));
    // A folder that has the workspace in it cannot be read-only.
    controls.retain(|path| !workspace.starts_with(path));
    let mut known = BTreeSet::new();
    controls.retain(|path| known.insert(path.clone()));
    controls
}

/// The tasks of a plan file. What tells them from those of others is its path in the workspace, or its whole path where it
/// lies outside.
///
/// # Errors
/// [`EmbedError::Unreadable`] and [`EmbedError::Plan`].
pub fn read_plan(path: &Path, workspace: &Path, accept: Accept<'_>) -> Result<Vec<NewTask>, EmbedError> {
    let text = reading::read_text(path, accept, PLAN_BYTES_MAX as u64)
        .map_err(|error| EmbedError::Unreadable { path: path.to_owned(), reason: error.to_string() })?;
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = whole.strip_prefix(workspace).unwrap_or(&whole).to_string_lossy();
    let shown = path.file_name().unwrap_or_default().to_string_lossy();
    plan::parse(&name, &text).map_err(|errors| of_plan(&shown, &errors))
}

fn of_plan(name: &str, errors: &PlanErrors) -> EmbedError {
    let lines: Vec<String> = errors.0.iter().map(|error| format!("{name}, {error}")).collect();
    EmbedError::Plan(lines.join("\n"))
}
