//! Runs a team in a folder, from any program: connects the adapters to a [`TeamSpec`]. The command line uses it too.
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
//! A launch from a program asks no person: the program agrees to what the config and the files of the folder run, send, store and hand
//! over. Launch only teams and folders that you trust.
//!
//! The folder `examples` of the repository has more. This module uses no terminal: a [`TeamHandle`] reports the team's events.

#![warn(missing_docs)]

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

mod confinement;

use crate::agents::external::programs;
use crate::config::diagnostics::{ConfigError, Problem, problem_list};
use crate::config::{CONFIG_FILE, Config, Durability, Environment, TeamFlags};
use crate::domain::task::NewTask;
use crate::domain::task::plan::{self, PLAN_BYTES_MAX, PlanError};
use crate::domain::team::records::LeadRecord;
use crate::domain::team::state::Mode;
use crate::domain::team::team_spec::{Isolation, MemberSpec, TeamSpec};
use crate::domain::text::system_error;
use crate::domain::time::UnixMs;
use crate::git::GitRepository;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::threads;
use crate::ports::{Clock, CurrentLead, LeadHolder, StoreError, Stores, WaitLimit};
use crate::providers;
use crate::providers::traffic::{self, RECORDED, Recorder};
use crate::sandbox::protected_paths::create_home_folders;
use crate::sandbox::{self, Sandbox, SandboxError};
use crate::stores::accounts::AccountFiles;
use crate::stores::file::links::refuse_link;
use crate::stores::fs::RealFileSystem;
use crate::stores::workspace::{FILE, OpenMode, OpenOptions, OpenStores, StoreKind};
use crate::team::handle::TeamHandle;
use crate::team::{self, LaunchError, StartOptions};
use crate::tools::{self, Tool};

use confinement::open_repository;
pub use confinement::{default_control_files, open_sandbox};

/// The state of the work in a task's worktree, for programs that read or continue it; see [`worktree_states`].
pub use crate::domain::git::worktree_state::WorktreeState;
pub use crate::git::worktree_store::{WorktreeError, WorktreeStore};
/// Creates the client of a member's model.
pub use crate::team::model_connection::ModelConnector;

/// The stores of teams and commands.
pub static STORE: &StoreKind = &FILE;

/// The most problems of a plan in an error.
const PLAN_PROBLEMS_MAX: usize = 20;

/// Returns the store of the files in `.agent/` of worktrees. Its calls block; a write is durable when it returns.
pub fn worktree_states() -> WorktreeStore {
    WorktreeStore::new(Arc::new(RealFileSystem::default()), Durability::Power, Arc::new(SystemClock))
}

/// The system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMs {
        UnixMs(0).plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// The reason why a team cannot be launched.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The config is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The plan, the config or the folder cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The plan is invalid.
    #[error("{}", problem_list(.0))]
    Plan(Vec<Problem>),
    /// The folder cannot be used, or another process leads a team in it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The team cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Two tools have the same name.
    #[error("two tools have the name `{0}`")]
    DuplicateTool(String),
    /// This program cannot guard commands.
    #[error("cannot guard commands: {0}")]
    Guard(String),
    /// Commands cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// Runs `work` on a new runtime. Call this first in `main`.
///
/// Members' commands run under a guard process. The guard is this program, started again, and it must become the guard before it
/// does anything else. Without this function, call [`sandbox::run_if_guard`] first in `main`.
///
/// # Errors
/// The system provides no threads or no event queue.
pub fn run<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    sandbox::run_if_guard();
    Ok(threads::runtime()?.block_on(work))
}

/// Builds a tool for one member.
type MakeTool = Arc<dyn Fn() -> Arc<dyn Tool> + Send + Sync>;

/// A team and its launch options. By default it runs one session, stores everything in files, and uses Brigade's providers and
/// tools.
#[derive(Clone)]
pub struct Team {
    spec: TeamSpec,
    start_options: StartOptions,
    durability: Durability,
    /// Additional paths that no member's tool can write.
    extra_control_files: Vec<PathBuf>,
    /// The path of the config file, as the person named it.
    config: Option<PathBuf>,
    /// The connection to models; `None`: by the `PROVIDERS` table.
    connect: Option<ModelConnector>,
    tools: Vec<MakeTool>,
}

impl Team {
    /// Creates a team from `spec`.
    pub fn new(spec: TeamSpec) -> Self {
        Self {
            spec,
            start_options: StartOptions { mode: Some(Mode::RunOnce), one_session: true, ..StartOptions::default() },
            durability: Durability::default(),
            extra_control_files: Vec::new(),
            config: None,
            connect: None,
            tools: Vec::new(),
        }
    }

    /// Loads the team `name` from a config file, or its only team. Environment variables and the user's config have no effect.
    ///
    /// # Errors
    /// [`EmbedError::Unreadable`] and [`EmbedError::Config`].
    pub fn of_config(file: &Path, name: Option<&str>) -> Result<Self, EmbedError> {
        let unreadable =
            |error: std::io::Error| EmbedError::Unreadable { path: file.into(), reason: system_error::reason(&error) };
        let named_path = std::path::absolute(file).map_err(unreadable)?;
        let file = file.canonicalize().map_err(unreadable)?;
        let current_folder = file.parent().map(Path::to_owned).unwrap_or_default();
        let config = Config::load(Some(&file), Environment { current_folder, ..Environment::default() })?;
        let resolved = config.team(&config.select(name)?, &TeamFlags::default())?;
        Ok(Self { durability: resolved.durability, config: Some(named_path), ..Self::new(resolved.spec) })
    }

    /// Sets the lead's goal.
    #[must_use]
    pub fn goal(mut self, goal: impl Into<String>) -> Self {
        self.spec.goal = Some(goal.into());
        self
    }

    /// Adds the tasks of a plan in Markdown. `name` distinguishes them from tasks of other plans: another launch adds no task
    /// again.
    ///
    /// # Errors
    /// [`EmbedError::Plan`].
    pub fn plan(mut self, name: &str, text: &str) -> Result<Self, EmbedError> {
        self.start_options.plan.extend(plan::parse(name, text).map_err(|errors| plan_error(name, &errors))?);
        Ok(self)
    }

    /// Replaces the start options: the tasks, the mode, and the end after one session. Tasks of earlier calls of [`Self::plan`] are
    /// replaced too.
    #[must_use]
    pub fn start_options(self, start_options: StartOptions) -> Self {
        Self { start_options, ..self }
    }

    /// Adds a tool for every member, the lead too. Its output is bounded and escaped, as that of all tools.
    #[must_use]
    pub fn tool<T: Tool + 'static>(mut self, make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        self.tools.push(Arc::new(move || tools::sanitized(Arc::new(make()))));
        self
    }

    /// Connects to models by `connect` instead of the `PROVIDERS` table. Members with another agent than
    /// [`AgentKind::Builtin`](crate::domain::team::team_spec::AgentKind) need none.
    #[must_use]
    pub fn models(self, connect: ModelConnector) -> Self {
        Self { connect: Some(connect), ..self }
    }

    /// Sets the failures that accepted work survives.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets additional paths that no member's tool can write, absolute or relative to the workspace.
    #[must_use]
    pub fn extra_control_files(self, extra_control_files: Vec<PathBuf>) -> Self {
        Self { extra_control_files, ..self }
    }

    /// Sets the config file that the person named. It can be a link. Without it, the config in the folder must not be a link.
    #[must_use]
    pub fn config_file(self, config: Option<PathBuf>) -> Self {
        Self { config, ..self }
    }

    /// Opens the folder as its leader, and launches nothing. No other process can lead a team there until the result is dropped.
    ///
    /// # Errors
    /// See [`EmbedError`].
    pub async fn open(mut self, folder: &Path) -> Result<OpenTeam, EmbedError> {
        if !sandbox::is_guard_ready() {
            let reason = "call brigade::embed::run or brigade::sandbox::run_if_guard first in main";
            return Err(EmbedError::Guard(reason.to_owned()));
        }
        let unusable = |error: std::io::Error| EmbedError::Unreadable {
            path: folder.into(),
            reason: system_error::reason(&error),
        };
        let folder = folder.canonicalize().map_err(unusable)?;
        self.check_tools()?;
        if self.start_options.plan.is_empty() {
            for plan in &self.spec.plans {
                self.start_options.plan.extend(read_plan(plan, &folder, AllowedKinds::FilesWithin(&folder))?);
            }
        }
        let config = folder.join(CONFIG_FILE);
        let real_folder = |path: &Path| path.parent().and_then(|folder| folder.canonicalize().ok());
        let is_named = |path: &PathBuf| path.ends_with(CONFIG_FILE) && real_folder(path).as_ref() == Some(&folder);
        if !self.config.as_ref().is_some_and(is_named) {
            refuse_link(&config)?;
        }
        // If the config is a link, the prompts are next to its target.
        let real_config = self.config.as_ref().and_then(|config| config.canonicalize().ok());
        let configs: Vec<PathBuf> = self.config.iter().cloned().chain(real_config).collect();
        let mut control_files = std::mem::take(&mut self.extra_control_files);
        for path in default_control_files(&folder, &configs, &self.spec.plans) {
            if !control_files.contains(&path) {
                control_files.push(path);
            }
        }
        if let Some(record) = &self.spec.record {
            let unusable = |error: std::io::Error| EmbedError::Unreadable {
                path: record.clone(),
                reason: system_error::reason(&error),
            };
            traffic::create_folder(record).map_err(unusable)?;
            control_files.push(record.clone());
        }
        let mode = OpenMode::Lead { team: self.spec.name.to_string() };
        let wait_limit = WaitLimit::default();
        let options = OpenOptions { mode, durability: self.durability, clock: Arc::new(SystemClock), wait_limit };
        let mut workspace = STORE.open(&folder, options).await?;
        workspace.warnings.extend(create_home_folders(&folder, &self.spec.writable));
        let sandbox = open_sandbox(&folder, &control_files, &self.spec.writable)?;
        workspace.warnings.extend(check_programs(&self.spec, &sandbox, &folder).await?);
        Ok(OpenTeam { team: self, workspace, sandbox, folder, control_files: control_files.into() })
    }

    /// Launches the team in this folder.
    ///
    /// # Errors
    /// See [`EmbedError`]. After an error, nothing runs.
    pub async fn launch(self, folder: &Path) -> Result<RunningTeam, EmbedError> {
        self.open(folder).await?.launch().await
    }

    fn check_tools(&self) -> Result<(), EmbedError> {
        let custom_tools = self.tools.iter().map(|make| make());
        for is_lead in [false, true] {
            let mut names = BTreeSet::new();
            for tool in tools::table::all_tools(is_lead).into_iter().chain(custom_tools.clone()) {
                let name = tool.spec().name;
                if !names.insert(name.clone()) {
                    return Err(EmbedError::DuplicateTool(name));
                }
            }
        }
        Ok(())
    }
}

/// Checks that a team can be launched in this folder, and changes nothing. Its models and its repository must be usable, and no other
/// process may lead a team there. It starts no program that the team names.
///
/// # Errors
/// [`EmbedError::Launch`] and [`EmbedError::Store`], as the launch would return them.
pub async fn check_launch(spec: &TeamSpec, folder: &Path) -> Result<(), EmbedError> {
    let connect: ModelConnector = Arc::new(providers::connect);
    team::check_models(spec, &connect)?;
    if spec.isolation == Isolation::Worktree {
        let merge_into = spec.merge_into.as_ref();
        GitRepository::team_branch_status(folder, spec.name.as_str(), merge_into, &[]).map_err(LaunchError::from)?;
    }
    let clock = Arc::new(SystemClock);
    let wait_limit = WaitLimit::default();
    let options = OpenOptions { mode: OpenMode::ReadOnly, durability: Durability::default(), clock, wait_limit };
    let stores = STORE.open(folder, options).await?.stores;
    if let CurrentLead::Known(LeadRecord { team, pid, .. }) = stores.leadership.current().await? {
        return Err(StoreError::AlreadyLed(LeadHolder { team, process: format!("pid {pid}") }).into());
    }
    Ok(())
}

/// Checks the installed programs of external agents. Returns warnings.
async fn check_programs(spec: &TeamSpec, sandbox: &Sandbox, folder: &Path) -> Result<Vec<String>, LaunchError> {
    let members: Vec<MemberSpec> = std::iter::once(&spec.lead).chain(&spec.members).cloned().collect();
    let (sandbox, folder) = (sandbox.clone(), folder.to_owned());
    let check = move || programs::check_programs(members.iter(), &sandbox, &folder);
    // It can only fail at the end of the runtime.
    let checked = tokio::task::spawn_blocking(check).await.unwrap_or_else(|_| Ok(programs::ProgramReport::default()));
    let report = checked.map_err(|error| LaunchError::Program { reason: error.problem, hint: error.hint })?;
    Ok(report.warnings)
}

/// A team that leads its folder, but does not run yet.
pub struct OpenTeam {
    team: Team,
    workspace: OpenStores,
    sandbox: Sandbox,
    folder: PathBuf,
    control_files: Arc<[PathBuf]>,
}

impl OpenTeam {
    /// Warnings for the person, such as missing file events or unreliable locks.
    pub fn warnings(&self) -> &[String] {
        &self.workspace.warnings
    }

    /// The stores of the folder.
    pub fn stores(&self) -> &Stores {
        &self.workspace.stores
    }

    /// The sandbox of the team's commands.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Launches the team.
    ///
    /// # Errors
    /// [`EmbedError::Launch`]. After an error, nothing runs.
    pub async fn launch(self) -> Result<RunningTeam, EmbedError> {
        let Self { team, workspace, sandbox, folder, control_files } = self;
        let custom_tools = team.tools;
        let repository = open_repository(&team.spec, &folder, &control_files, team.durability, &sandbox).await?;
        let connect = team.connect.unwrap_or_else(|| Arc::new(providers::connector(sandbox.clone(), &folder)));
        let connect = with_traffic(connect, team.spec.record.as_deref(), &folder);
        let dependencies = team::TeamDependencies {
            stores: workspace.stores.clone(),
            clock: Arc::new(SystemClock),
            control_files,
            sandbox,
            workspace: folder,
            connect,
            accounts: AccountFiles::of_user().map(|files| Arc::new(files) as _),
            repository,
            tool_factory: Arc::new(move |user| {
                tools::table::tools_for(user).into_iter().chain(custom_tools.iter().map(|make| make())).collect()
            }),
            webhook: Arc::new(providers::webhook::HttpWebhook),
        };
        let handle = team::launch(team.spec, team.start_options, dependencies).await?;
        Ok(RunningTeam { handle, workspace })
    }
}

/// Connects to models as `connect` does, records their answers in `record`, and answers from recordings for members of the provider
/// `recorded`.
fn with_traffic(connect: ModelConnector, record: Option<&Path>, folder: &Path) -> ModelConnector {
    let folder = folder.to_owned();
    let recorder = record.map(|record| Arc::new(Recorder::new(record, &folder)));
    Arc::new(move |spec| match &recorder {
        _ if spec.provider == RECORDED => traffic::replay(spec, &folder),
        Some(recorder) => Ok(Recorder::record(recorder, connect(spec)?)),
        None => connect(spec),
    })
}

/// A running team: a [`TeamHandle`] that keeps its folder open. Wait for the team's end before you drop it.
pub struct RunningTeam {
    handle: TeamHandle,
    workspace: OpenStores,
}

impl RunningTeam {
    /// Warnings for the person; see [`OpenTeam::warnings`].
    pub fn warnings(&self) -> &[String] {
        &self.workspace.warnings
    }

    /// The stores of the folder, for reading board, mail and transcripts.
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

/// Reads the tasks of a plan file. Its path in the workspace, or its full path outside, distinguishes them from tasks of other
/// plans.
///
/// # Errors
/// [`EmbedError::Unreadable`] and [`EmbedError::Plan`].
pub fn read_plan(path: &Path, workspace: &Path, accept: AllowedKinds<'_>) -> Result<Vec<NewTask>, EmbedError> {
    let text = reading::read_text(path, accept, PLAN_BYTES_MAX as u64)
        .map_err(|error| EmbedError::Unreadable { path: path.to_owned(), reason: system_error::reason(&error) })?;
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = canonical.strip_prefix(workspace).unwrap_or(&canonical).to_string_lossy();
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    plan::parse(&name, &text).map_err(|errors| plan_error(&file_name, &errors))
}

/// A plan file and its tasks.
pub struct PlanFile {
    /// The path as it was named.
    pub path: PathBuf,
    /// Its tasks.
    pub tasks: Vec<NewTask>,
}

/// Reads plan files in this order.
///
/// # Errors
/// As [`read_plan`].
pub fn read_plans(paths: &[PathBuf], workspace: &Path, accept: AllowedKinds<'_>) -> Result<Vec<PlanFile>, EmbedError> {
    let read = |path: &PathBuf| Ok(PlanFile { path: path.clone(), tasks: read_plan(path, workspace, accept)? });
    paths.iter().map(read).collect()
}

fn plan_error(name: &str, errors: &[PlanError]) -> EmbedError {
    let problem = |error: &PlanError| Problem::in_line(name, error.line, error.problem.clone());
    EmbedError::Plan(errors.iter().take(PLAN_PROBLEMS_MAX).map(problem).collect())
}
