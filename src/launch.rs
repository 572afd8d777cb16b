//! A team with a terminal around it: signals go to the team, its events to the report.

use std::time::Duration;

use brigade::cli::error::{CliError, CliResult};
use brigade::cli::exit::Exit;
use brigade::cli::headless::Report;
use brigade::cli::launch::{Launch, Lifetime};
use brigade::cli::signals::Signals;
use brigade::cli::traces;
use brigade::cli::waiting::{Isolated, Waiting, spent_budget};
use brigade::domain::state::Mode;
use brigade::embed::Team;
use brigade::platform::threads;
use brigade::ports::Stores;
use brigade::team::Start;
use brigade::team::handle::End;
use brigade::team::spec::TeamSpec;
use brigade::ui::summary::ForYou;
use brigade::ui::text::one_line;

/// What a person can do once the budget is spent.
const BUDGET_REMEDY: &str = "raise the budget in brigade.toml and launch the team again, or count anew with `brigade cost --reset` while it does not run";

/// Launches a team, shows what it does, and says how the process ends.
///
/// # Errors
/// The workspace cannot be used, or the team not be launched.
pub fn launch(launch: Launch) -> CliResult<Exit> {
    traces::listen();
    let runtime = threads::runtime().map_err(|error| CliError::not_started(&error))?;
    let outcome = runtime.block_on(run(launch));
    // Blocking calls that hang (a dead network disk) must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn run(launch: Launch) -> CliResult<Exit> {
    let start = start_of(launch.lifetime, launch.plan);
    let isolated = Isolated::of(&launch.spec, &launch.workspace);
    let spec = launch.spec.clone();
    let team = Team::new(launch.spec)
        .start(start)
        .durability(launch.durability)
        .control_files(launch.control_files)
        .config_file(launch.named_config);
    let open = team.open(&launch.workspace).await?;
    let stores = open.stores().clone();
    let mut report = launch.report;
    for warning in open.warnings() {
        report.note(warning);
    }
    report.begin(&*stores.board.view().await?);
    let mut signals = Signals::listen(launch.session.is_some())?;
    let sandbox = open.sandbox().clone();
    let mut team = open.launch().await?;
    report.note_behind(isolated.as_ref().and_then(|isolated| isolated.uncommitted(sandbox)));
    report.note_behind(pause_note(&stores, launch.lifetime, &spec).await?);
    let outcome = match launch.session {
        Some(session) => session.follow(&mut team, &mut report, &mut signals).await?,
        None => {
            report.tell_what_waits(&for_you(&stores, isolated.as_ref()).await?);
            report.follow(&mut team, &mut signals, &stores).await?
        }
    };
    let exit = close(&stores, &mut report, outcome.trouble.as_deref(), isolated.as_ref()).await?;
    if outcome.end == End::BudgetSpent {
        report.note(&format!("nothing is lost: {BUDGET_REMEDY}; `brigade cost` shows who used what"));
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

/// What a team that is launched into a pause waits for: nothing would be seen of it otherwise.
async fn pause_note(stores: &Stores, lifetime: Lifetime, spec: &TeamSpec) -> CliResult<Option<String>> {
    let state = stores.state.read().await?;
    let Some(state) = state.filter(|state| matches!(lifetime, Lifetime::Obey(_)) && state.desired == Mode::Pause)
    else {
        return Ok(None);
    };
    if let Some(spent) = spent_budget(stores, spec, &state).await? {
        return Ok(Some(format!("the team is paused: {spent}: {BUDGET_REMEDY}, and then `brigade state continuous`")));
    }
    let reason = if state.note.is_empty() { String::new() } else { format!(" ({})", one_line(&state.note)) };
    Ok(Some(format!("agent_state.json says pause{reason}: `brigade state continuous` lets the team work")))
}

fn start_of(lifetime: Lifetime, plan: Vec<brigade::domain::task::NewTask>) -> Start {
    match lifetime {
        Lifetime::Session(mode) => Start { plan, mode: Some(mode), mode_without_file: None, one_session: true },
        Lifetime::Obey(mode) => Start { plan, mode, mode_without_file: Some(Mode::Continuous), one_session: false },
    }
}

/// What the person should know at the beginning and the end of a run.
async fn for_you(stores: &Stores, isolated: Option<&Isolated>) -> CliResult<ForYou> {
    let checkout = isolated.and_then(Isolated::behind);
    Ok(ForYou { checkout, ..Waiting::of(stores).await?.for_you() })
}

async fn close(
    stores: &Stores,
    report: &mut Report,
    trouble: Option<&str>,
    isolated: Option<&Isolated>,
) -> CliResult<Exit> {
    let for_you = for_you(stores, isolated).await?;
    report.close(&*stores.board.view().await?, trouble, for_you)
}
