//! `brigade stop`.

use super::arguments::number;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::order;
use super::output::CommandAnswer;
use crate::api::Order;
use crate::api::OrderForm;
use crate::api::lead_status::LeadStatus;
use crate::domain::text::one_line;
use crate::front::text::commands::hint;
use crate::front::text::lead_status::other_team;

/// The default of `--wait`, in seconds.
const WAIT_DEFAULT_S: u64 = 300;

/// Stop the running team, or one teammate, from any terminal
///
/// The team finishes its running turns, releases its claims and exits; `--now` does not wait for the turns. A teammate gets a
/// message and stops after its turn; `--now` ends its turn. Others can claim its task.
#[derive(Debug, clap::Args)]
pub struct Stop {
    /// The teammate [default: the whole team]
    name: Option<String>,
    /// Do not wait for running turns
    #[arg(long)]
    now: bool,
    /// The longest wait for the team to exit, in seconds, from 0 to 86400
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_DEFAULT_S, value_parser = number::<u64>(0..=86_400))]
    wait: u64,
}

impl Stop {
    /// Stops the team or the teammate.
    ///
    /// # Errors
    /// The teammate does not exist, or the team did not stop in time.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let Self { name, now, wait } = self;
        let Some(name) = name else { return order::give(context, Order::StopTeam { now, wait_s: wait }).await };
        match order::give(context, Order::StopTeammate { name: name.clone(), now }).await {
            Err(error) => Err(team_as_teammate(context, &name).await.unwrap_or(error)),
            answer => answer,
        }
    }
}

/// Returns the error for a team in place of a teammate, while a team runs.
async fn team_as_teammate(context: &Context, name: &str) -> Option<CliError> {
    let config = context.workspace.location.config_if_valid()?;
    let is_team = config.team_names().iter().any(|team| team.as_str() == name);
    let status = LeadStatus::of(&context.workspace).await.ok()?;
    if !is_team || status.lead.is_none() {
        return None;
    }
    let note = match status.other_lead(name) {
        Some(lead) => other_team(lead, name),
        None => "it is the team, not a teammate".to_owned(),
    };
    Some(
        CliError::refused(format!("cannot stop `{}`: {note}", one_line(name)))
            .hint(hint![OrderForm::Stop { now: false }, " stops the running team"]),
    )
}
