//! The team that runs in a workspace, and the process of its lead.

use crate::api::next::OrderForm;
use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::location::Location;
use super::refusal::{ApiResult, Refusal, RefusalCode};
use super::team::{LeadHealth, TeamProcess};
use super::workspace::Workspace;
use crate::domain::team::records::LeadRecord;
use crate::domain::team::state::{Mode, SharedState};
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::one_line;
use crate::domain::time::UnixMs;
use crate::platform::{self, processes};
use crate::ports::{CurrentLead, LeadObstacle, Stores};
use crate::sandbox::WORKER_VARIABLE;
use crate::stores::workspace::OpenMode;

/// The process of a team's lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadProcess {
    /// The name of the team.
    pub team: String,
    /// The id of the process.
    pub pid: u32,
    /// True if `pid` is certainly the lead's process, so that it may be signalled. On systems without start times of processes it is
    /// always true.
    pub is_certain: bool,
    /// The machine that the lead runs on, if its record names one.
    pub host: Option<String>,
    /// The last heartbeat of the lead, if known.
    pub heartbeat: Option<UnixMs>,
    /// True if the system reports the process as suspended.
    pub is_suspended: bool,
}

/// The age of the last heartbeat after which a lead counts as silent. A lead writes one every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl LeadProcess {
    /// The reason why the lead does not work, if known: its process is suspended, or its last heartbeat is too old.
    pub fn health(&self, now: UnixMs) -> Option<LeadHealth> {
        if self.is_suspended {
            return Some(LeadHealth::Suspended);
        }
        let silence = self.heartbeat.map(|heartbeat| now.since(heartbeat)).filter(|silence| *silence > SILENCE_MAX);
        silence.map(LeadHealth::Silent)
    }
}

/// The time at which a member reads a message that is sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// At the next turn, or at once if the member is idle.
    Now,
    /// After a person or a program ends the pause of the team.
    AfterPause,
    /// At the next launch of a team.
    AtNextLaunch,
}

/// A team whose desired state is `pause`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// True if the team runs. Otherwise the pause concerns its next launch.
    pub is_running: bool,
    /// The reason in the state file; can be empty.
    pub reason: String,
}

/// The team that runs in a workspace, and the contents of its state file.
#[derive(Debug, Clone, Default)]
pub struct LeadStatus {
    /// The process of its lead.
    pub lead: Option<LeadProcess>,
    /// The ids of all live workers.
    pub workers: Vec<String>,
    /// The mark of the team, if this process is a command of that team and its sandbox hides the workers; see
    /// [`crate::sandbox::WORKER_VARIABLE`].
    pub surrounding_team_mark: Option<String>,
    /// The obstacle that keeps every team from running, if there is one.
    pub lead_obstacle: Option<LeadObstacle>,
    /// The state file.
    pub state: Option<SharedState>,
}

impl LeadStatus {
    /// The name of the team.
    pub fn team(&self) -> Option<&str> {
        Some(self.lead.as_ref()?.team.as_str())
    }

    /// The team that a command is about: the named one, the running one, or the last one that ran.
    pub fn team_name(&self, named: Option<&String>) -> Option<String> {
        named.map(String::as_str).or(self.team()).map(str::to_owned).or_else(|| self.state.as_ref()?.team())
    }

    /// The running team's configuration, or that of the config's only team.
    pub fn spec(&self, location: &Location) -> Option<TeamSpec> {
        location.team_if_valid(self.team()).or_else(|| location.team_if_valid(None))
    }

    /// The process of the team with this name.
    pub fn process(&self, team: &str, now: UnixMs) -> TeamProcess {
        match self.lead.as_ref().filter(|lead| lead.team == team) {
            Some(lead) => TeamProcess { running: true, pid: Some(lead.pid), health: lead.health(now) },
            None => TeamProcess::default(),
        }
    }

    /// The lead of another team than the one of this name, if one runs.
    pub fn other_lead(&self, team: &str) -> Option<&LeadProcess> {
        self.lead.as_ref().filter(|lead| lead.team != team)
    }

    /// The desired state, if the state file was read and exists.
    pub fn desired(&self) -> Option<Mode> {
        Some(self.state.as_ref()?.desired)
    }

    /// Returns true if the member of the running team was stopped or died. The state must be known.
    pub fn has_stopped(&self, name: &str) -> bool {
        let (Some(team), Some(state)) = (self.team(), &self.state) else { return false };
        let mut reports = state.teammates_of(team).into_iter();
        reports.any(|(known, report)| known.eq_ignore_ascii_case(name) && report.is_gone())
    }

    /// Returns when a message to a member is read. The state must be known.
    pub fn delivery(&self) -> Delivery {
        match (&self.lead, self.desired()) {
            (None, _) => Delivery::AtNextLaunch,
            (Some(_), Some(Mode::Pause)) => Delivery::AfterPause,
            (Some(_), _) => Delivery::Now,
        }
    }

    /// Returns the pause, if the desired state is `pause`. The state must be known.
    pub fn pause(&self) -> Option<Pause> {
        let state = self.state.as_ref().filter(|state| state.desired == Mode::Pause)?;
        Some(Pause { is_running: self.lead.is_some(), reason: state.note.clone() })
    }

    /// Refuses an action that needs a workspace without a running team.
    ///
    /// # Errors
    /// A team runs.
    pub fn refuse_if_running(&self, action: &str) -> ApiResult<()> {
        let Some(lead) = &self.lead else { return Ok(()) };
        let message = format!("cannot {action}: team {} (pid {}) runs here", one_line(&lead.team), lead.pid);
        Err(Refusal { code: RefusalCode::AlreadyLed, ..Refusal::refused(message) }.next(OrderForm::Stop { now: false }))
    }

    /// The running team, if there is one, and the contents of the state file.
    ///
    /// # Errors
    /// The workspace does not exist or cannot be read.
    pub async fn with_state(workspace: &Workspace) -> ApiResult<Self> {
        let stores = workspace.stores(OpenMode::ReadOnly).await?;
        let state = stores.state.read().await?;
        let mut lead_status = Self::in_stores(&stores, workspace).await?;
        if let Some(lead) = &mut lead_status.lead {
            // The newer heartbeat counts: the state file has one, and the worker's record has one.
            lead.heartbeat = lead.heartbeat.max(state.as_ref().and_then(|state| heartbeat_in(state, &lead.team)));
        }
        Ok(Self { state, ..lead_status })
    }

    /// The running team, if there is one, without the state file.
    ///
    /// # Errors
    /// The workspace does not exist or cannot be read.
    pub async fn of(workspace: &Workspace) -> ApiResult<Self> {
        Self::in_stores(&workspace.stores(OpenMode::ReadOnly).await?, workspace).await
    }

    async fn in_stores(stores: &Stores, workspace: &Workspace) -> ApiResult<Self> {
        // Outside of a team's commands there is no such mark.
        let surrounding_mark = workspace.location.environment().variables.get(WORKER_VARIABLE).map(String::as_str);
        let live = stores.workers.survey(&BTreeSet::new()).await?.live;
        let leader = match stores.leadership.current().await? {
            CurrentLead::Obstructed(obstacle) => {
                let workers = live.into_keys().collect();
                return Ok(Self { lead_obstacle: Some(obstacle), workers, ..Self::default() });
            }
            CurrentLead::Known(leader) => Some(leader),
            // A command in the team's sandbox sees neither the lead's process nor the workers.
            CurrentLead::None(last) => last.filter(|leader| surrounding_mark == Some(leader.mark().as_str())),
        };
        let mark = leader.as_ref().map(LeadRecord::mark).filter(|mark| surrounding_mark == Some(mark.as_str()));
        let surrounding_team_mark = if live.is_empty() { mark } else { None };
        let lead = leader.map(|leader| {
            let record = live.values().flatten().find(|worker| worker.pid == leader.pid);
            let is_on_this_host = record.is_some_and(|record| record.host == platform::host_name());
            let local_pid = if is_on_this_host { i32::try_from(leader.pid).ok() } else { None };
            let process = local_pid.and_then(processes::process);
            let is_running = processes::is_running(leader.pid, leader.started_ms, &leader.boot);
            LeadProcess {
                is_certain: is_running == Some(true) || processes::own_start_ms() == 0,
                is_suspended: process.is_some_and(|process| process.is_suspended),
                host: record.map(|record| record.host.clone()),
                heartbeat: record.map(|record| record.heartbeat),
                team: leader.team,
                pid: leader.pid,
            }
        });
        Ok(Self { lead, workers: live.into_keys().collect(), surrounding_team_mark, ..Self::default() })
    }
}

/// The newest heartbeat of the team in the state file.
fn heartbeat_in(state: &SharedState, team: &str) -> Option<UnixMs> {
    if state.team().as_deref() != Some(team) {
        return None;
    }
    let reports = state.teammates().into_values().chain(state.lead());
    reports.filter_map(|report| UnixMs::from_iso(&report.heartbeat)).max()
}
