//! A team at one moment: its state, its process and its members.

mod status;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

pub use status::{TeamStatus, choice_refusal, live_member, starts_at_next_launch};

use super::next::Next;
use crate::domain::log::event::TaskCounts;
use crate::domain::task::TaskId;
use crate::domain::team::budget::Budget;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::state::{Mode, SetBy};
use crate::domain::team::waiting_for::{self, WaitFields, WaitingFor};
use crate::domain::time::UnixMs;

/// A team at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TeamView {
    /// The name of the team.
    pub team: String,
    /// Its desired and its current state.
    #[serde(flatten)]
    pub state: TeamState,
    /// The counts of all tasks of the board, if they are known.
    #[serde(rename = "tally", skip_serializing_if = "Option::is_none")]
    pub task_counts: Option<TaskCounts>,
    /// The number of questions, plans and reviews that wait for the person.
    #[serde(rename = "for_you")]
    pub answers_needed: usize,
    /// The reason why the team has no session, if its goal is not met.
    #[serde(flatten, serialize_with = "waiting_for::with_kind", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<WaitFields>")]
    pub waiting_for: Option<WaitingFor>,
    /// Its process.
    #[serde(flatten)]
    pub process: TeamProcess,
    /// The lead, if it has a model and has reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<MemberView>,
    /// The members: those of the config, those that the lead spawned, and agents of other programs.
    pub members: Vec<MemberView>,
    /// The next steps: to continue the team, to answer what waits for the person, and to take its work over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

/// The state of a team: what a person or Brigade asked for, and what the team reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct TeamState {
    /// `None` before the first request.
    #[serde(rename = "desired_state")]
    pub desired: Option<Mode>,
    /// The state that the team reports.
    #[serde(rename = "current_state")]
    pub current: Option<Mode>,
    /// The author of the desired state.
    #[serde(rename = "setBy")]
    #[schemars(with = "String")]
    pub set_by: SetBy,
    /// The reason for the desired state.
    pub note: String,
}

impl TeamView {
    /// The lead, if it has a model, and the members.
    pub fn rows(&self) -> impl Iterator<Item = &MemberView> {
        self.lead.iter().chain(&self.members)
    }
}

/// The process of a team.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct TeamProcess {
    /// True if the team runs.
    pub running: bool,
    /// The id of the process, if it is known.
    pub pid: Option<u32>,
    /// The trouble of the process, if it has one.
    #[serde(flatten)]
    #[schemars(with = "HealthFields")]
    pub health: Option<LeadHealth>,
}

/// The trouble of a lead process that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadHealth {
    /// Suspended by Ctrl-Z or a signal.
    Suspended,
    /// Without a heartbeat for this time.
    Silent(Duration),
}

/// The fields of [`LeadHealth`], of which there is one.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it describes the JSON of the trouble of a process")]
pub(super) struct HealthFields {
    suspended: Option<bool>,
    silent_ms: Option<u64>,
}

/// One field: `suspended` or `silent_ms`.
impl Serialize for LeadHealth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(1))?;
        match self {
            Self::Suspended => fields.serialize_entry("suspended", &true)?,
            Self::Silent(silence) => {
                let silent_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
                fields.serialize_entry("silent_ms", &silent_ms)?;
            }
        }
        fields.end()
    }
}

/// A member at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct MemberView {
    /// The name.
    pub name: String,
    /// The role in the config.
    pub role: String,
    /// The phase that it reports.
    pub phase: ReportedPhase,
    /// The task it holds.
    pub task: Option<TaskId>,
    /// The number of its attempt at the task.
    pub attempt: Option<u32>,
    /// The subject of that task.
    pub subject: Option<String>,
    /// The start of the phase.
    pub since: Option<UnixMs>,
    /// The last heartbeat.
    pub heartbeat: Option<UnixMs>,
    /// The tokens it has used.
    pub tokens: u64,
    /// Their cost, in US dollars.
    pub cost_usd: f64,
    /// The most that it may use.
    #[serde(skip_serializing_if = "is_unlimited")]
    #[schemars(default)]
    pub budget: Budget,
    /// The reason of its wait. Programs get its kind too.
    #[serde(flatten, serialize_with = "waiting_for::with_kind")]
    #[schemars(with = "WaitFields")]
    pub waiting_for: Option<WaitingFor>,
    /// The model that answers in place of its own one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

fn is_unlimited(budget: &Budget) -> bool {
    !budget.is_set()
}

/// The status of a member, as people see it. The first variants are shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VisibleStatus {
    /// Its process is gone.
    Dead,
    /// It reports no progress.
    Stalled,
    /// It works on a task or on its mail.
    Working,
    /// It waits for a person, a limit, a model or an approval.
    Waiting,
    /// It ends its work.
    Stopping,
    /// It has not reported yet.
    Starting,
    /// It waits for mail or a claimable task.
    Idle,
    /// It does not run.
    Stopped,
}

impl VisibleStatus {
    /// Returns the status of a member.
    pub fn of(member: &MemberView) -> Self {
        Self::of_phase(member.phase, member.waiting_for.as_ref())
    }

    /// Returns the status of a member in this phase, which waits for something if `waiting_for` names it.
    pub fn of_phase(phase: ReportedPhase, waiting_for: Option<&WaitingFor>) -> Self {
        let waits = waiting_for.is_some_and(|reason| *reason != WaitingFor::MailOrTask);
        match phase {
            ReportedPhase::Dead => Self::Dead,
            ReportedPhase::Stalled => Self::Stalled,
            ReportedPhase::Work | ReportedPhase::Idle if waits => Self::Waiting,
            ReportedPhase::Work => Self::Working,
            ReportedPhase::Idle => Self::Idle,
            ReportedPhase::Stopping => Self::Stopping,
            ReportedPhase::Starting => Self::Starting,
            ReportedPhase::Stopped => Self::Stopped,
        }
    }

    /// Returns the word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Stalled => "stalled",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Stopping => "stopping",
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Stopped => "stopped",
        }
    }
}
