//! `brigade state`.

use crate::api::{Launch, OrderForm};
use crate::front::text::commands::hint;
use serde_json::value::RawValue;

use super::context::Context;
use super::error::CliResult;
use super::launch::mode_parser;
use super::order;
use super::output::CommandAnswer;
use crate::api::Order;
use crate::api::lead_status::LeadStatus;
use crate::api::state;
use crate::domain::team::state::{Mode, SharedState};
use crate::front::text::lines::one_line;
use crate::front::text::style::{BOLD, DIM, paint};
use crate::front::text::team::{process, setter};

/// Show or set the desired state of the team
///
/// continuous: a session whenever there is work. run_once: one session, then pause. run_cleanup: one session that tidies up, then
/// pause. pause: the team claims no tasks, and finishes those in progress.
#[derive(Debug, clap::Args)]
pub struct State {
    /// The desired state
    #[arg(value_parser = mode_parser(&Mode::ALL))]
    mode: Option<Mode>,
    /// The reason, shown to other people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "mode")]
    note: String,
}

impl State {
    /// Shows or sets the desired state.
    ///
    /// # Errors
    /// The state file cannot be read or written, or the lead cannot follow the state.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if let Some(mode) = self.mode {
            return order::give(context, Order::SetMode { mode, note: self.note }).await;
        }
        match state::read(&context.workspace).await? {
            Some(state) => answer(context, state, false).await,
            None => {
                let none = context.output.answer(&(), || "no desired state is set\n".to_owned())?;
                let (run, up) = (Launch::Run { team: None }, Launch::Up { team: None });
                let pause = OrderForm::SetMode { mode: Mode::Pause };
                Ok(none.note(hint![run, " or ", up, " starts the team; ", pause, " sets a state before"]))
            }
        }
    }
}

/// The state as the answer, after the person has set it or not.
pub(super) async fn answer(context: &Context, state: SharedState, is_set: bool) -> CliResult<CommandAnswer> {
    let lead_status = LeadStatus::with_state(&context.workspace).await.unwrap_or_default();
    let is_running = lead_status.team.is_some();
    let waiting_for = if is_running { state.waiting_for() } else { None };
    let waiting = waiting_for.map(|reason| format!("waits for {}\n", one_line(&reason.to_string())));
    let text = || process_line(context, &lead_status) + &text(&state) + &waiting.unwrap_or_default();
    let answer = context.output.answer(&RawValue::from_string(state.document.to_line()).ok(), text)?;
    let answer = answer.notes(state.unknown_desired_warning().map(|warning| one_line(&warning)));
    Ok(match (is_set, state.current) {
        _ if is_running => answer,
        (true, _) => answer.note("no team runs; the next one obeys this state"),
        (false, Mode::Pause) => answer,
        (false, _) => answer.note("no team runs: the last one was killed before it could report that it paused"),
    })
}

/// The line that says if the team runs; empty if no team is known.
fn process_line(context: &Context, lead_status: &LeadStatus) -> String {
    let only_team = || context.workspace.location.team_if_valid(None).map(|spec| spec.name.to_string());
    let Some(team) = lead_status.team_name(None).or_else(only_team) else { return String::new() };
    format!("{} {}\n", paint(BOLD, &one_line(&team)), process(&lead_status.process(&team, context.workspace.now())))
}

fn text(state: &SharedState) -> String {
    let desired = match &state.unknown_desired {
        Some(word) => format!("`{}`", one_line(word)),
        None => state.desired.to_string(),
    };
    let by = setter(&state.set_by).map(|by| format!(" by {by}")).unwrap_or_default();
    let note = if state.note.is_empty() { String::new() } else { format!(": {}", one_line(&state.note)) };
    format!("desired {}{}\ncurrent {}\n", paint(BOLD, &desired), paint(DIM, &format!("{by}{note}")), state.current)
}
