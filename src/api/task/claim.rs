//! A claim by command, with a lease.

use crate::api::next::OrderForm;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::change::acting_name;
use crate::api::outcome::{TaskDocument, task_document};
use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal};
use crate::domain::task::{Task, TaskId, TaskStatus, trimmed_words};
use crate::domain::team::name::{LEAD, Name};
use crate::service::claims::claim_with_lease;
use crate::stores::workspace::OpenMode;

/// A wish to claim a task.
#[derive(Debug, Clone)]
pub struct ClaimOrder {
    /// The task; `None` for the best claimable one: highest priority, then lowest number.
    pub task: Option<TaskId>,
    /// The name that claims it. It can be that of no member.
    pub name: String,
    /// The length of the lease.
    pub lease: Duration,
    /// The capabilities of that name; empty for those in the config.
    pub capabilities: Vec<String>,
}

/// The end of a claim.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimOutcome {
    /// The task is claimed under this name until its lease ends. Its attempt is the fence of every later change.
    Claimed {
        /// The task.
        #[serde(serialize_with = "task_document")]
        #[schemars(with = "TaskDocument")]
        task: Box<Task>,
        /// The name.
        #[schemars(with = "String")]
        name: Name,
        /// The length of the lease, in seconds.
        lease_s: u64,
    },
    /// No task is claimable.
    Nothing {
        /// The name.
        #[schemars(with = "String")]
        name: Name,
        /// True if a task is pending.
        is_any_pending: bool,
    },
}

/// Claims a task by the same rules as a teammate. After a crash the claim ends with its lease.
///
/// # Errors
/// The named task is not claimable, or the name is reserved.
pub async fn claim(workspace: &Workspace, order: ClaimOrder) -> ApiResult<ClaimOutcome> {
    let name = acting_name(&order.name)?;
    if name.is_same(LEAD) {
        return Err(Refusal::invalid("cannot claim as `lead`: the lead works on no tasks")
            .next(OrderForm::Claim { task: None, by: None }));
    }
    let stores = workspace.stores(OpenMode::Write).await?;
    let capabilities = capabilities(&name, trimmed_words(&order.capabilities), workspace);
    if let Some(task) = claim_with_lease(&stores, order.task, &name, capabilities, order.lease).await? {
        return Ok(ClaimOutcome::Claimed { task: Box::new(task), name, lease_s: order.lease.as_secs() });
    }
    let view = stores.board.view().await?;
    let is_any_pending = view.tasks.values().any(|task| task.status == TaskStatus::Pending);
    Ok(ClaimOutcome::Nothing { name, is_any_pending })
}

/// The given capabilities, else those in the config.
fn capabilities(name: &Name, given: Vec<String>, workspace: &Workspace) -> Vec<String> {
    if !given.is_empty() {
        return given;
    }
    let location = &workspace.location;
    let config = location.config_if_valid();
    let teams = config
        .iter()
        .flat_map(|config| config.team_names().into_iter().filter_map(|team| location.team_if_valid(Some(&team))));
    let mut members = teams.flat_map(|team| team.members);
    members.find(|member| member.name == *name).map(|member| member.capabilities()).unwrap_or_default()
}
