//! A team at one moment: its state, its process and its members.

mod status;

use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

pub use status::{TeamStatus, choice_refusal, live_member, starts_at_next_launch};

use crate::domain::log::event::TaskCounts;
use crate::domain::task::TaskId;
use crate::domain::team::budget::Budget;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::state::{Mode, SetBy};
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::time::UnixMs;

/// A team at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TeamView {
    pub team: String,
    #[serde(flatten)]
    pub state: TeamState,
    /// The counts of all tasks of the board, if they are known.
    #[serde(rename = "tally", skip_serializing_if = "Option::is_none")]
    pub task_counts: Option<TaskCounts>,
    /// The number of questions, plans and reviews that wait for the person.
    #[serde(rename = "for_you")]
    pub answers_needed: usize,
    /// The reason why the team has no session, if its goal is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    #[serde(flatten)]
    pub process: TeamProcess,
    /// The lead, if it has a model and has reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<MemberView>,
    pub members: Vec<MemberView>,
}

/// The state of a team: what a person or Brigade asked for, and what the team reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamState {
    /// `None` before the first request.
    #[serde(rename = "desired_state")]
    pub desired: Option<Mode>,
    #[serde(rename = "current_state")]
    pub current: Option<Mode>,
    /// The author of the desired state.
    #[serde(rename = "setBy")]
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamProcess {
    /// True if the team runs.
    pub running: bool,
    /// The id of the process, if it is known.
    pub pid: Option<u32>,
    /// The trouble of the process, if it has one.
    #[serde(flatten)]
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
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct MemberView {
    pub name: String,
    pub role: String,
    pub phase: ReportedPhase,
    /// The task it holds.
    pub task: Option<TaskId>,
    pub attempt: Option<u32>,
    /// The subject of that task.
    pub subject: Option<String>,
    /// The start of the phase.
    pub since: Option<UnixMs>,
    pub heartbeat: Option<UnixMs>,
    /// The tokens it has used.
    pub tokens: u64,
    pub cost_usd: f64,
    /// The most that it may use.
    #[serde(skip_serializing_if = "is_unlimited")]
    pub budget: Budget,
    pub waiting_for: Option<WaitingFor>,
    /// The model that answers in place of its own one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

fn is_unlimited(budget: &Budget) -> bool {
    !budget.is_set()
}
