//! The outcomes of orders.

use schemars::JsonSchema;
use serde::ser::{Serialize, Serializer};

use super::clean::Cleanup;
use super::cost::CostView;
use super::merge::{Merged, SetAside};
use super::request::GivenAnswer;
use super::send::Sent;
use super::stop::{StoppedTeam, TeammateStop};
use super::task::{ClaimOutcome, DeletedTask, document};
use crate::domain::task::Task;
use crate::domain::task::transition::Action;
use crate::domain::team::state::SharedState;

/// The outcome of an order.
#[derive(Debug, Clone, serde::Serialize, JsonSchema)]
#[serde(tag = "outcome", content = "data", rename_all = "snake_case")]
pub enum Outcome {
    /// The task was added.
    Added(
        #[serde(serialize_with = "task_document")]
        #[schemars(with = "TaskDocument")]
        Box<Task>,
    ),
    /// The tasks were changed.
    Changed {
        /// The change, in the words of the rules.
        #[serde(serialize_with = "verb")]
        #[schemars(with = "String")]
        action: Action,
        /// The tasks after it.
        #[serde(serialize_with = "task_documents")]
        #[schemars(with = "Vec<TaskDocument>")]
        tasks: Vec<Task>,
    },
    /// The end of a claim.
    Claim(ClaimOutcome),
    /// The tasks were deleted.
    Deleted(Vec<DeletedTask>),
    /// The messages were sent.
    Sent(Sent),
    /// The request was answered.
    Answered(GivenAnswer),
    /// The desired state was set.
    ModeSet(
        #[serde(serialize_with = "state_document")]
        #[schemars(with = "serde_json::Value")]
        Box<SharedState>,
    ),
    /// The team has stopped; `null` if no team ran.
    TeamStopped(Option<StoppedTeam>),
    /// The result of a request that a teammate stops.
    TeammateStopped {
        /// The name of the teammate.
        name: String,
        /// The result.
        #[serde(flatten)]
        stop: TeammateStop,
    },
    /// The branch of the team was merged.
    Merged(Box<Merged>),
    /// The work of the team was recorded as taken over.
    SetAside(SetAside),
    /// The selected things were removed.
    Cleaned(Box<Cleanup>),
    /// The counters are reset.
    CostReset(Box<CostView>),
}

/// A task as the board's file has it, with the fields that a file omits while they have their defaults. See `.tasks/README.md`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it describes the JSON of a task")]
pub(super) struct TaskDocument {
    id: u64,
    subject: String,
    status: String,
    owner: Option<String>,
    attempt: u32,
}

pub(super) fn task_document<S: Serializer>(task: &Task, serializer: S) -> Result<S::Ok, S::Error> {
    document(task).serialize(serializer)
}

fn task_documents<S: Serializer>(tasks: &[Task], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tasks.iter().map(document))
}

fn state_document<S: Serializer>(state: &SharedState, serializer: S) -> Result<S::Ok, S::Error> {
    state.document.serialize(serializer)
}

fn verb<S: Serializer>(action: &Action, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(action.verb())
}
