//! Adapters put together: stores, models, tools, clock and signals around a team; its events go to the report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use brigade::cli::context::SystemClock;
use brigade::cli::error::{CliError, CliResult};
use brigade::cli::exit::Exit;
use brigade::cli::headless::Report;
use brigade::cli::launch::{Launch, Lifetime};
use brigade::cli::signals::Signals;
use brigade::cli::traces;
use brigade::domain::state::Mode;
use brigade::platform::guard;
use brigade::ports::{Clock, Repository, Stores};
use brigade::stores::fs::RealFileSystem;
use brigade::stores::git::{GitOptions, GitRepository};
use brigade::stores::open::{OpenOptions, Purpose, Workspace, open};
use brigade::team::handle::End;
use brigade::team::spec::{Isolation, TeamSpec};
use brigade::team::{self, LaunchError, Start, Surroundings};
use brigade::ui::text::one_line;
use brigade::{models, tools};

/// What a person can do once the budget is spent.
const BUDGET_SPENT: &str = "nothing is lost: raise the budget in brigade.toml, or count anew with `brigade cost --reset`, and launch the team again; `brigade cost` shows who used what";

/// Launches a team, shows what it does, and says how the process ends.
///
/// # Errors
/// The workspace cannot be used, or the team not be launched.
pub fn launch(launch: Launch) -> CliResult<Exit> {
    traces::listen();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::refused(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(run(launch));
    // Blocking calls that hang (a dead network disk) must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn run(launch: Launch) -> CliResult<Exit> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let purpose = Purpose::Lead { team: launch.spec.name.to_string() };
    let options = OpenOptions { purpose, durability: launch.durability, clock: Arc::clone(&clock) };
    let workspace = open(&launch.workspace, options).await?;
    let mut report = launch.report;
    for warning in &workspace.warnings {
        report.note(warning);
    }
    let start = start_of(launch.lifetime, launch.plan);
    let repository = repository(&launch.spec, &launch.workspace, &launch.control_files, &clock)?;
    let surroundings = Surroundings {
        stores: workspace.stores.clone(),
        clock,
        control_files: launch.control_files.into(),
        guard: guard::own_guard().map_err(|error| CliError::refused(format!("cannot guard commands: {error}")))?,
        workspace: launch.workspace,
        connect: Arc::new(models::connect),
        tools_of: Arc::new(tools::table::tools_of),
        count_tokens: models::tokens::count,
        repository,
    };
    report.begin(&*workspace.stores.board.view().await?);
    let mut signals = Signals::listen()?;
    let mut team = team::launch(launch.spec, start, surroundings).await.map_err(not_launched)?;
    if let Some(note) = pause_note(&workspace, launch.lifetime).await? {
        report.note(&note);
    }
    let outcome = match launch.session {
        Some(session) => session.follow(&mut team, &mut report, &mut signals).await?,
        None => report.follow(&mut team, &mut signals).await?,
    };
    let exit = close(&workspace, &mut report, outcome.trouble.as_deref()).await?;
    if outcome.end == End::BudgetSpent {
        report.note(BUDGET_SPENT);
    }
    Ok(match outcome.end {
        End::Interrupted => Exit::Interrupted,
        End::BudgetSpent => Exit::BudgetSpent,
        // A run that could not do what it was for is no success, whatever the board says.
        End::GivenUp => Exit::Unfinished,
        End::SessionOver if outcome.trouble.is_some() => Exit::Unfinished,
        End::SessionOver => exit,
    })
}

/// The repository of a team with isolation.
fn repository(
    spec: &TeamSpec,
    workspace: &Path,
    control_files: &[PathBuf],
    clock: &Arc<dyn Clock>,
) -> CliResult<Option<Arc<dyn Repository>>> {
    if spec.isolation == Isolation::None {
        return Ok(None);
    }
    let options = GitOptions {
        team: spec.name.to_string(),
        into: spec.merge_into.clone(),
        control_files: control_files.to_vec(),
        files: Arc::new(RealFileSystem::default()),
        clock: Arc::clone(clock),
    };
    let opened = GitRepository::open(workspace, options);
    Ok(Some(Arc::new(opened.map_err(|error| CliError::usage(error.to_string()))?)))
}

/// What a team that is launched into a pause waits for: nothing would be seen of it otherwise.
async fn pause_note(workspace: &Workspace, lifetime: Lifetime) -> CliResult<Option<String>> {
    let state = workspace.stores.state.read().await?;
    let Some(state) = state.filter(|state| matches!(lifetime, Lifetime::Obey(_)) && state.desired == Mode::Pause)
    else {
        return Ok(None);
    };
    let reason = if state.note.is_empty() { String::new() } else { format!(" ({})", one_line(&state.note)) };
    Ok(Some(format!("agent_state.json says pause{reason}: `brigade state continuous` lets the team work")))
}

fn start_of(lifetime: Lifetime, plan: Vec<brigade::domain::task::NewTask>) -> Start {
    match lifetime {
        Lifetime::Session(mode) => Start { plan, mode: Some(mode), mode_without_file: None, one_session: true },
        Lifetime::Obey(mode) => Start { plan, mode, mode_without_file: Some(Mode::Continuous), one_session: false },
    }
}

async fn close(workspace: &Workspace, report: &mut Report, trouble: Option<&str>) -> CliResult<Exit> {
    let stores: &Stores = &workspace.stores;
    report.close(&*stores.board.view().await?, trouble)
}

fn not_launched(error: LaunchError) -> CliError {
    match error {
        LaunchError::Store(error) => error.into(),
        error => CliError::usage(error.to_string()),
    }
}
