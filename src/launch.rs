//! Launches a team with a terminal: passes signals to the team, and its events to the report.
//!
//! It is part of the library because async code is compiled where it is run: in the program it would be compiled alone, after the library.

use std::time::Duration;

use crate::api::cost::spent_budget;
use crate::api::lead_status::Pause;
use crate::api::merge::TeamBranch;
use crate::api::pending::PendingView;
use crate::api::{OrderForm, Question};
use crate::domain::agent::transcript::Usage;
use crate::domain::task::NewTask;
use crate::domain::team::state::Mode;
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::one_line;
use crate::embed::Team;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::exit::Exit;
use crate::front::cli::launch::{LaunchRequest, Lifetime};
use crate::front::cli::signals::Signals;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::lead_status;
use crate::front::text::pending::{PendingNotes, uncommitted};
use crate::platform::{processes, threads};
use crate::ports::{BoardView, Stores};
use crate::service::pending::PendingForPerson;
use crate::team::StartOptions;
use crate::team::handle::TeamEnd;

/// The hint for a person if the next request does not fit the budget. If nothing is used, a reset does not help.
fn budget_remedy(used: Usage) -> Hint {
    let raise = Hint::from("raise the budget in brigade.toml and launch the team again");
    if used == Usage::default() {
        return raise;
    }
    hint![raise, ", or stop the team and reset the counters with ", OrderForm::ResetCost]
}

/// Launches a team, shows its events and returns the exit code.
///
/// # Errors
/// The workspace cannot be used, or the team cannot be launched.
pub fn launch(launch: LaunchRequest) -> CliResult<Exit> {
    // Each command of a member takes several files, and many systems permit only 256 or 1024.
    processes::raise_open_files_limit();
    let runtime = threads::runtime().map_err(|error| CliError::not_started(&error))?;
    let outcome = runtime.block_on(run(launch));
    // Blocking calls that hang (a dead network disk) must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn run(launch: LaunchRequest) -> CliResult<Exit> {
    let options = start_options(launch.lifetime, launch.plan, launch.goal);
    let team_branch = TeamBranch::of(&launch.spec, &launch.workspace);
    let spec = launch.spec.clone();
    let team = Team::new(launch.spec)
        .start_options(options)
        .durability(launch.durability)
        .extra_control_files(launch.control_files)
        .config_file(launch.named_config);
    let open = team.open(&launch.workspace).await?;
    let stores = open.stores().clone();
    let mut run_output = launch.run_output;
    for warning in open.warnings() {
        run_output.note(warning.as_str());
    }
    run_output.add_initial_state(&*stores.board.view().await?, &PendingForPerson::of(&stores).await?);
    let paths = team_branch.as_ref().and_then(|branch| branch.uncommitted(open.sandbox().clone()).ok());
    if let Some(text) = uncommitted(&paths.unwrap_or_default()) {
        run_output.note(text);
    }
    let mut signals = Signals::listen(launch.repl.is_some())?;
    let usage_before = usage_so_far(&stores, &spec).await?;
    let mut team = open.launch().await?;
    run_output.note_later(pause_note(&stores, launch.lifetime, &spec).await?);
    let outcome = match launch.repl {
        Some(repl) => repl.follow(&mut team, &mut run_output, &mut signals).await?,
        None => {
            // The launch has reported merges that the branch lacks.
            run_output.print_pending(&pending_notes(&stores, team_branch.as_ref(), None).await?);
            run_output.follow(&mut team, &mut signals, &stores).await?
        }
    };
    let view = stores.board.view().await?;
    let pending = pending_notes(&stores, team_branch.as_ref(), Some(&view)).await?;
    let used = usage_so_far(&stores, &spec).await?;
    let exit = run_output.close(&view, &outcome, used.minus(usage_before), pending)?;
    if let Some(remedy) = remedy_of(outcome.end, used) {
        run_output.note(hint!["no work is lost: ", remedy]);
    }
    Ok(exit)
}

/// Returns the usage of all launches of the team, as `brigade cost` shows it while none runs.
async fn usage_so_far(stores: &Stores, spec: &TeamSpec) -> CliResult<Usage> {
    let mut totals = stores.ledger.read().await?;
    totals.settle_open_requests();
    Ok(totals.usage_of(spec.name.as_str()))
}

/// The steps after a team that could not continue.
fn remedy_of(end: TeamEnd, used: Usage) -> Option<Hint> {
    match end {
        TeamEnd::BudgetSpent => {
            Some(hint![budget_remedy(used), "; ", Question::Cost, " shows the usage of each member"])
        }
        TeamEnd::ModelOutOfReach => Some(
            "run the team again when the model answers; `model_outage_max_ms` in [limits] sets how long a run waits"
                .into(),
        ),
        TeamEnd::WrongModelSetting => {
            let correct = "correct the setting, the key or the login, and run the team again; ";
            Some(hint![correct, Question::Config, " names the source of each setting"])
        }
        TeamEnd::SessionOver | TeamEnd::Interrupted | TeamEnd::LeadershipLost => None,
    }
}

/// The note for a team that starts paused. Otherwise nothing would show why it does not work.
async fn pause_note(stores: &Stores, lifetime: Lifetime, spec: &TeamSpec) -> CliResult<Option<Hint>> {
    let state = stores.state.read().await?;
    let Some(state) =
        state.filter(|state| matches!(lifetime, Lifetime::FollowState(_)) && state.desired == Mode::Pause)
    else {
        return Ok(None);
    };
    if let Some(spent) = spent_budget(stores, spec, &state).await? {
        let remedy = budget_remedy(usage_so_far(stores, spec).await?);
        let paused = format!("the team is paused: {}: ", one_line(&spent));
        return Ok(Some(hint![paused, remedy, ", then run ", lead_status::continuous()]));
    }
    Ok(Some(lead_status::pause(&Pause { is_running: true, reason: state.note })))
}

fn start_options(lifetime: Lifetime, plan: Vec<NewTask>, goal: Option<String>) -> StartOptions {
    let options = StartOptions { plan, goal, ..StartOptions::default() };
    match lifetime {
        Lifetime::Session(mode) => StartOptions { mode: Some(mode), one_session: true, ..options },
        Lifetime::FollowState(mode) => StartOptions { mode, mode_without_file: Some(Mode::Continuous), ..options },
    }
}

/// The questions, approvals and mail that wait for the person, and the state of the team branch.
async fn pending_notes(
    stores: &Stores,
    team_branch: Option<&TeamBranch>,
    view: Option<&BoardView>,
) -> CliResult<PendingNotes> {
    let status = team_branch.and_then(|branch| branch.status(view).ok());
    let pending = PendingForPerson::of(stores).await?;
    Ok(PendingNotes::of(PendingView::of(&pending), status.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_remedy_names_reset_only_after_use() {
        let used = Usage { output_tokens: 1, ..Usage::default() };
        assert!(budget_remedy(used).to_string().contains("`brigade cost --reset`"));
        assert!(!budget_remedy(Usage::default()).to_string().contains("--reset"));
    }
}
