//! `brigade stop`.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::arguments::number;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use crate::api::lead_status::{LeadProcess, LeadStatus};
use crate::api::members;
use crate::config::{Config, TeamFlags};
use crate::domain::task::{Task, TaskStatus};
use crate::domain::team::name::Name;
use crate::domain::team::phase::ReportedPhase;
use crate::platform;
use crate::platform::processes::EndRequest;
use crate::ports::LeadObstacle;
use crate::stores::file::links::refuse_links;
use crate::stores::workspace::OpenMode;
use crate::ui::lead_status::other_team;
use crate::ui::text::one_line;

/// The interval between checks while the team stops.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time between the two signals of `--now`, so that the team can handle the first one.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_millis(200);
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
        let lead_status = LeadStatus::of(&context.workspace).await?;
        if let Some(LeadObstacle { reason, remedy }) = &lead_status.lead_obstacle {
            return Err(CliError::refused(format!("cannot stop a team: {reason}")).hint(remedy));
        }
        let Some(lead) = lead_status.lead.clone() else {
            if let Some(name) = &self.name {
                members::find_name(&context.workspace, name, &[]).await?;
            }
            let done = context.output.answer(&serde_json::json!({ "stopped": false }), String::new)?;
            return Ok(done.note("no team runs in this workspace"));
        };
        match &self.name {
            Some(name) => {
                let asked = ask(context, name, self.now).await;
                asked.map_err(|error| team_as_teammate(context, &lead_status, name).unwrap_or(error))
            }
            None => self.stop_team(context, &lead_status, &lead).await,
        }
    }

    async fn stop_team(
        &self,
        context: &Context,
        lead_status: &LeadStatus,
        lead: &LeadProcess,
    ) -> CliResult<CommandAnswer> {
        if lead.pid == std::process::id() {
            let message = "cannot stop the team from its own interactive session";
            return Err(CliError::usage(message).hint("`/quit` stops the team; `/stop NAME` stops a teammate"));
        }
        let team = &lead.team;
        if lead_status.surrounding_team_mark.is_some() {
            return Err(CliError::refused("cannot stop the team from one of its commands")
                .hint("stop it from another terminal: `brigade stop`"));
        }
        let request = if self.now { EndRequest::Insistent } else { EndRequest::InOrder };
        signal(lead, request)?;
        if self.now {
            sleep(SECOND_SIGNAL_AFTER).await;
            if still_leads(context, lead).await? {
                signal(lead, request)?;
            }
        }
        let deadline = Instant::now() + Duration::from_secs(self.wait);
        while still_leads(context, lead).await? {
            if Instant::now() >= deadline {
                let message = format!(
                    "cannot confirm the stop: team {} (pid {}) still runs after {} s; it was asked to stop",
                    one_line(team),
                    lead.pid,
                    self.wait
                );
                let pid = lead.pid;
                let hint = if LeadStatus::of(&context.workspace).await?.lead.is_some_and(|lead| lead.is_suspended) {
                    format!(
                        "it is suspended: type `fg` in its terminal, or `kill -KILL {pid}`; the next launch continues its work"
                    )
                } else if self.now {
                    "`brigade team` shows what it does".to_owned()
                } else {
                    "`brigade stop --now` does not wait for running turns".to_owned()
                };
                return Err(CliError::refused(message).hint(hint));
            }
            sleep(POLL_INTERVAL).await;
        }
        let data = serde_json::json!({ "stopped": true, "team": team, "pid": lead.pid });
        context.output.answer(&data, || format!("team {} is stopped\n", one_line(team)))
    }
}

fn signal(lead: &LeadProcess, request: EndRequest) -> CliResult<()> {
    if let Some(host) = lead.host.as_ref().filter(|host| **host != platform::host_name()) {
        let message = format!("cannot stop the team: it runs on {}, not on this machine", one_line(host));
        return Err(CliError::refused(message).hint("`brigade state pause` pauses it from here"));
    }
    if !lead.is_certain {
        let message = format!(
            "cannot stop the team: \
             .team/lead.json names process {} as its lead, which does not run on this machine, and .team/lead.lock is held",
            lead.pid
        );
        return Err(CliError::refused(message).hint("`brigade state pause` pauses the team on any machine"));
    }
    match platform::processes::ask_to_end(lead.pid, request) {
        // The process ended in the meantime.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::refused(format!("cannot signal process {}: {error}", lead.pid)))
        }
        _ => Ok(()),
    }
}

async fn still_leads(context: &Context, lead: &LeadProcess) -> CliResult<bool> {
    Ok(LeadStatus::of(&context.workspace).await?.lead.is_some_and(|now| (&now.team, now.pid) == (&lead.team, lead.pid)))
}

/// Returns the error for a team in place of a teammate.
fn team_as_teammate(context: &Context, lead_status: &LeadStatus, name: &str) -> Option<CliError> {
    let config = context.workspace.location.config_if_valid()?;
    let is_team = config.team_names().iter().any(|team| team.as_str() == name);
    if !is_team {
        return None;
    }
    let note = match lead_status.other_lead(name) {
        Some(lead) => other_team(lead, name),
        None => "it is the team, not a teammate".to_owned(),
    };
    Some(
        CliError::refused(format!("cannot stop `{}`: {note}", one_line(name)))
            .hint("`brigade stop` stops the running team"),
    )
}

/// Sends one teammate a request to stop, from `human`.
async fn ask(context: &Context, name: &str, now: bool) -> CliResult<CommandAnswer> {
    if Name::new(name).is_ok_and(|name| name.is_reserved()) {
        let message = format!("cannot stop `{}`: it is not a teammate", one_line(name));
        return Err(CliError::usage(message).hint("`brigade stop` without a name stops the whole team"));
    }
    // Reading and sending need no lock. The running team has opened the inboxes.
    refuse_links(&context.workspace.location.workspace()?)?;
    let stores = context.workspace.stores(OpenMode::ReadOnly).await?;
    let reports = stores.state.read().await?.map(|state| state.teammates()).unwrap_or_default();
    let report = reports.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, report)| report);
    if report.is_some_and(|report| report.is_gone()) {
        let done = context.output.answer(&serde_json::json!({ "asked": null, "stopped": name }), String::new)?;
        return Ok(done.note(format!("{} is already stopped; {}", one_line(name), next_start(context, name))));
    }
    let id = context.workspace.outbox(&stores).send_stop_request(name, now).await?;
    let data = serde_json::json!({ "asked": name, "id": id, "now": now });
    let is_idle =
        report.is_some_and(|report| report.phase == ReportedPhase::Idle) && !holds_task(context, name).await?;
    let when = match (now, is_idle) {
        (true, _) => "stops now",
        (false, true) => "stops",
        (false, false) => "stops after its turn",
    };
    context.output.answer(&data, || format!("{} {when}; {}\n", one_line(name), next_start(context, name)))
}

/// Returns when a stopped teammate starts again. A launch starts those of the config only.
pub(super) fn next_start(context: &Context, name: &str) -> &'static str {
    let has_member = |config: &Config| {
        let teams = config.team_names().into_iter().filter_map(|team| config.team(&team, &TeamFlags::default()).ok());
        teams.into_iter().any(|team| team.spec.members.iter().any(|member| member.name.is_same(name)))
    };
    match context.workspace.location.config_if_valid() {
        Some(config) if !has_member(&config) => "it starts again if the lead spawns it",
        _ => "the next launch starts it again",
    }
}

/// Returns true if the teammate works on a task. The board says it before the team reports it.
async fn holds_task(context: &Context, name: &str) -> CliResult<bool> {
    let view = context.workspace.board(OpenMode::ReadOnly).await?.view().await?;
    let is_owner = |task: &Task| task.owner.as_ref().is_some_and(|owner| owner.eq_ignore_ascii_case(name));
    Ok(view.tasks.values().any(|task| task.status == TaskStatus::InProgress && is_owner(task)))
}
