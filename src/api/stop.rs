//! Stops the running team, or one of its teammates.

use crate::api::next::{Next, OrderForm};
use crate::api::question::Question;
use crate::domain::team::state::Mode;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::lead_status::{LeadProcess, LeadStatus};
use super::members;
use super::refusal::{ApiResult, Refusal};
use super::workspace::Workspace;
use crate::config::{Config, TeamFlags};
use crate::domain::task::{Task, TaskStatus};
use crate::domain::team::name::Name;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::text::one_line;
use crate::platform;
use crate::platform::processes::EndRequest;
use crate::ports::LeadObstacle;
use crate::stores::file::links::refuse_links;
use crate::stores::workspace::OpenMode;

/// The interval between checks while the team stops.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time between the two signals of an immediate stop, so that the team can handle the first one.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_millis(200);

/// A team that has stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StoppedTeam {
    /// The name of the team.
    pub team: String,
    /// The process of its lead, which has ended.
    pub pid: u32,
}

/// The result of a request that a teammate stops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TeammateStop {
    /// No team runs, so the teammate does not run either.
    NoTeam,
    /// The teammate had stopped before.
    AlreadyStopped {
        /// The time at which it starts again.
        next_start: NextStart,
    },
    /// The teammate was asked to stop.
    Asked {
        /// The id of the message.
        id: String,
        /// The time at which it stops.
        when: StopTime,
        /// The time at which it starts again.
        next_start: NextStart,
    },
}

/// The time at which a teammate that was asked to stop does so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopTime {
    /// Now; its turn is ended.
    EndsTurn,
    /// Now; it is idle.
    Idle,
    /// After its turn.
    AfterTurn,
}

/// The time at which a stopped teammate starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NextStart {
    /// At the next launch, because it is in the config.
    NextLaunch,
    /// As soon as the lead spawns it.
    Spawn,
}

impl NextStart {
    /// The next start of the teammate of this name. A launch starts the members of the config only.
    pub fn of(workspace: &Workspace, name: &str) -> Self {
        let has_member = |config: &Config| {
            let names = config.team_names().into_iter();
            let mut teams = names.filter_map(|team| config.team(&team, &TeamFlags::default()).ok());
            teams.any(|team| team.spec.members.iter().any(|member| member.name.is_same(name)))
        };
        match workspace.location.config_if_valid() {
            Some(config) if !has_member(&config) => Self::Spawn,
            _ => Self::NextLaunch,
        }
    }
}

/// Stops the running team and waits until its process has ended, at most this long. The team finishes its running turns and releases
/// its claims; with `now` it does not wait for the turns. Returns the team; `None` if no team runs.
///
/// # Errors
/// The lead's process cannot be signalled from here, or it still runs after the wait. The request to stop remains.
pub async fn stop_team(workspace: &Workspace, now: bool, wait: Duration) -> ApiResult<Option<StoppedTeam>> {
    let Some((status, lead)) = running_lead(workspace).await? else { return Ok(None) };
    if lead.pid == std::process::id() {
        let message = "cannot stop the team from its own interactive session";
        return Err(Refusal::invalid(message).next(OrderForm::EndSession));
    }
    if status.surrounding_team_mark.is_some() {
        return Err(Refusal::refused("cannot stop the team from one of its commands")
            .steps(["in another terminal".into(), OrderForm::Stop { now: false }.into()]));
    }
    let request = if now { EndRequest::Insistent } else { EndRequest::InOrder };
    signal(&lead, request)?;
    if now {
        sleep(SECOND_SIGNAL_AFTER).await;
        if still_leads(workspace, &lead).await? {
            signal(&lead, request)?;
        }
    }
    let deadline = Instant::now() + wait;
    while still_leads(workspace, &lead).await? {
        if Instant::now() >= deadline {
            return Err(still_runs(workspace, &lead, now, wait).await?);
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(Some(StoppedTeam { team: lead.team, pid: lead.pid }))
}

/// Sends a teammate of the running team a request to stop, from the person. It stops after its turn; with `now` its turn is ended.
/// Others can claim its task.
///
/// # Errors
/// There is no such teammate, or its inbox cannot be written.
pub async fn stop_teammate(workspace: &Workspace, name: &str, now: bool) -> ApiResult<TeammateStop> {
    if running_lead(workspace).await?.is_none() {
        members::find_name(workspace, name, &[]).await?;
        return Ok(TeammateStop::NoTeam);
    }
    if Name::new(name).is_ok_and(|name| name.is_reserved()) {
        let message = format!("cannot stop `{}`: it is not a teammate", one_line(name));
        return Err(Refusal::invalid(message).next(OrderForm::Stop { now: false }));
    }
    // Reading and sending need no lock. The running team has opened the inboxes.
    refuse_links(&workspace.folder()?)?;
    let stores = workspace.stores(OpenMode::ReadOnly).await?;
    let next_start = NextStart::of(workspace, name);
    let reports = stores.state.read().await?.map(|state| state.teammates()).unwrap_or_default();
    let report = reports.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, report)| report);
    if report.is_some_and(|report| report.is_gone()) {
        return Ok(TeammateStop::AlreadyStopped { next_start });
    }
    let id = workspace.outbox(&stores).send_stop_request(name, now).await?;
    let is_idle =
        report.is_some_and(|report| report.phase == ReportedPhase::Idle) && !holds_task(workspace, name).await?;
    let when = match (now, is_idle) {
        (true, _) => StopTime::EndsTurn,
        (false, true) => StopTime::Idle,
        (false, false) => StopTime::AfterTurn,
    };
    Ok(TeammateStop::Asked { id, when, next_start })
}

/// The running team and its lead; `None` if no team runs.
async fn running_lead(workspace: &Workspace) -> ApiResult<Option<(LeadStatus, LeadProcess)>> {
    let status = LeadStatus::of(workspace).await?;
    if let Some(LeadObstacle { reason, remedy }) = &status.lead_obstacle {
        return Err(Refusal::refused(format!("cannot stop a team: {reason}")).next(remedy.clone()));
    }
    Ok(status.lead.clone().map(|lead| (status, lead)))
}

/// The refusal for a team that still runs after the wait.
async fn still_runs(workspace: &Workspace, lead: &LeadProcess, now: bool, wait: Duration) -> ApiResult<Refusal> {
    let LeadProcess { team, pid, .. } = lead;
    let message = format!(
        "cannot confirm the stop: team {} (pid {pid}) still runs after {} s; it was asked to stop",
        one_line(team),
        wait.as_secs()
    );
    let next = if LeadStatus::of(workspace).await?.lead.is_some_and(|lead| lead.is_suspended) {
        format!("it is suspended: type `fg` in its terminal, or `kill -KILL {pid}`; the next launch continues its work")
            .into()
    } else if now {
        Next::from(Question::Team)
    } else {
        OrderForm::Stop { now: true }.into()
    };
    Ok(Refusal::refused(message).next(next))
}

fn signal(lead: &LeadProcess, request: EndRequest) -> ApiResult<()> {
    if let Some(host) = lead.host.as_ref().filter(|host| **host != platform::host_name()) {
        let message = format!("cannot stop the team: it runs on {}, not on this machine", one_line(host));
        return Err(Refusal::refused(message).next(OrderForm::SetMode { mode: Mode::Pause }));
    }
    if !lead.is_certain {
        let message = format!(
            "cannot stop the team: \
             .team/lead.json names process {} as its lead, which does not run on this machine, and .team/lead.lock is held",
            lead.pid
        );
        return Err(Refusal::refused(message).next(OrderForm::SetMode { mode: Mode::Pause }));
    }
    match platform::processes::ask_to_end(lead.pid, request) {
        // The process ended in the meantime.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Refusal::refused(format!("cannot signal process {}: {error}", lead.pid)))
        }
        _ => Ok(()),
    }
}

async fn still_leads(workspace: &Workspace, lead: &LeadProcess) -> ApiResult<bool> {
    Ok(LeadStatus::of(workspace).await?.lead.is_some_and(|now| (&now.team, now.pid) == (&lead.team, lead.pid)))
}

/// Returns true if the teammate works on a task. The board says it before the team reports it.
async fn holds_task(workspace: &Workspace, name: &str) -> ApiResult<bool> {
    let view = workspace.board(OpenMode::ReadOnly).await?.view().await?;
    let is_owner = |task: &Task| task.owner.as_ref().is_some_and(|owner| owner.eq_ignore_ascii_case(name));
    Ok(view.tasks.values().any(|task| task.status == TaskStatus::InProgress && is_owner(task)))
}
