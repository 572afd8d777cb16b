//! The desired state of the team.

use super::lead_status::LeadStatus;
use super::refusal::{ApiResult, Refusal};
use super::workspace::Workspace;
use crate::domain::team::state::{DesiredStateChange, Mode, SetBy, SharedState, StateUpdate};
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::one_line;
use crate::stores::workspace::OpenMode;

/// Reads the state file; `None` if there is none.
///
/// # Errors
/// The workspace does not exist, or the file cannot be read.
pub async fn read(workspace: &Workspace) -> ApiResult<Option<SharedState>> {
    Ok(workspace.stores(OpenMode::ReadOnly).await?.state.read().await?)
}

/// Sets the desired state for the person, with a reason for others. A running team follows it; the next one does too. Returns the state
/// file after the change. After a crash the file has the old or the new state.
///
/// # Errors
/// The lead cannot follow the state, or the file cannot be read or written.
pub async fn set_mode(workspace: &Workspace, mode: Mode, note: String) -> ApiResult<SharedState> {
    if mode == Mode::RunCleanup
        && let Some(team) = LeadStatus::of(workspace).await?.spec(&workspace.location)
    {
        check_lead_has_model(&team, None, true)?;
    }
    let stores = workspace.stores(OpenMode::Write).await?;
    let desired = DesiredStateChange { mode, by: SetBy::Person, note, only_if: None };
    Ok(stores.state.update(StateUpdate { report: None, desired: Some(desired) }).await?)
}

/// Refuses a goal of the person, or a cleanup session, for a lead without a model: it would be ignored.
///
/// # Errors
/// The lead has no model.
pub fn check_lead_has_model(spec: &TeamSpec, goal: Option<&str>, is_cleanup: bool) -> ApiResult<()> {
    let (action, alternative) = match goal.filter(|goal| !goal.trim().is_empty()) {
        Some(goal) => (format!("plan the goal `{}`", one_line(goal)), "leave the goal out"),
        None if is_cleanup => ("lead a cleanup session".to_owned(), "run it without a cleanup mode"),
        None => return Ok(()),
    };
    if spec.lead.has_model() {
        return Ok(());
    }
    let message = format!("cannot {action}: the lead's provider `{}` has no model", spec.lead.model.provider);
    let table = format!("[teams.{}.lead]", one_line(spec.name.as_str()));
    Err(Refusal::invalid(message).next(format!("set provider and model in {table}, or {alternative}")))
}
