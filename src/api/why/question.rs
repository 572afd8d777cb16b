//! The question why a task is in its state.

use serde::Serialize;

use super::{Reason, explain};
use crate::api::ApiResult;
use crate::api::cost::spent_budget;
use crate::api::lead_status::LeadStatus;
use crate::api::members::candidates;
use crate::api::task::{ClaimCandidate, Presence, TaskContext, TeamCondition, load_context};
use crate::api::team::starts_at_next_launch;
use crate::api::workspace::Workspace;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::time::UnixMs;
use crate::git::GitRepository;
use crate::ports::StoreError;
use crate::stores::workspace::OpenMode;

/// A task and the reasons for its state.
#[derive(Debug, Clone, Serialize)]
pub struct Why {
    /// The number of the task.
    pub task: TaskId,
    /// Its subject; empty if it has no valid file.
    pub subject: String,
    /// False if its invalid file was set aside.
    pub is_on_board: bool,
    /// The time to which the reasons apply.
    pub at: UnixMs,
    /// The reasons, those of the task itself first.
    pub reasons: Vec<Reason>,
}

/// Explains the state of a task. It changes nothing.
///
/// # Errors
/// There is no such task, or the workspace cannot be read.
pub async fn why(workspace: &Workspace, id: TaskId) -> ApiResult<Why> {
    let stores = workspace.stores(OpenMode::ReadOnly).await?;
    let view = stores.board.view().await?;
    let lead_status = LeadStatus::with_state(workspace).await?;
    let team = lead_status.spec(&workspace.location);
    let lead = lead_status.lead.as_ref();
    let context = TaskContext {
        candidates: current_members(team.as_ref(), &lead_status),
        quarantined_tasks: stores.board.quarantined_tasks().await?,
        team: TeamCondition {
            lead_health: lead.and_then(|lead| Some((lead.health(workspace.now())?, lead.pid))),
            running: lead_status.team().map(str::to_owned),
            desired: lead_status.desired(),
            spent_budget: match (&team, &lead_status.state) {
                (Some(team), Some(state)) => spent_budget(&stores, team, state).await?,
                _ => None,
            },
            disk_shortage: workspace.location.low_disk_reason(team.as_ref()),
        },
        dropped: dropped_line_reasons(workspace, view.task(id)),
        is_worktree_removed: is_worktree_removed(workspace, view.task(id))?,
        ..load_context(workspace, &view).await?
    };
    let is_on_board = view.tasks.contains_key(&id) || view.is_invalid(id);
    if !is_on_board && !context.quarantined_tasks.contains_key(&id) {
        return Err(StoreError::NoTask(id.into()).into());
    }
    let subject = view.tasks.get(&id).map(|task| task.subject.clone()).unwrap_or_default();
    Ok(Why { task: id, subject, is_on_board, at: context.now, reasons: explain(id, &context) })
}

/// The reasons for removed lines in the merge of a completed task. They are extra information: an error only means that there are none.
fn dropped_line_reasons(workspace: &Workspace, task: Option<&Task>) -> Vec<String> {
    let commit = task.and_then(|task| task.result.as_ref()).and_then(|result| result.commit.as_deref());
    let (Some(commit), Ok(folder)) = (commit, workspace.folder()) else { return Vec::new() };
    GitRepository::dropped_line_reasons(&folder, commit).unwrap_or_default()
}

/// The members as they are now: in a running team, without those that stopped or are new in the config, and with those that its lead
/// added.
fn current_members(team: Option<&TeamSpec>, lead_status: &LeadStatus) -> Vec<ClaimCandidate> {
    let mut candidates = team.map(candidates).unwrap_or_default();
    let (Some(name), Some(state)) = (lead_status.team(), &lead_status.state) else { return candidates };
    let reports = state.teammates_of(name);
    for candidate in &mut candidates {
        if starts_at_next_launch(team, &reports, &candidate.name) {
            candidate.presence = Presence::NextLaunch;
        }
    }
    for (name, report) in reports {
        let is_there = !report.is_gone();
        let waits_for = report.waiting_for.clone().filter(|what| *what != WaitingFor::MailOrTask);
        match candidates.iter_mut().find(|candidate| candidate.name == name) {
            Some(candidate) => {
                candidate.presence = if is_there { Presence::Here } else { Presence::Stopped };
                candidate.waits_for = waits_for;
            }
            None if is_there => {
                candidates.push(ClaimCandidate { waits_for, ..ClaimCandidate::of(name, vec![report.role.clone()]) });
            }
            None => {}
        }
    }
    candidates
}

/// Returns true if the folder of the task's worktree does not exist any more.
fn is_worktree_removed(workspace: &Workspace, task: Option<&Task>) -> ApiResult<bool> {
    let Some(folder) = task.and_then(|task| task.worktree.as_deref()) else { return Ok(false) };
    Ok(workspace.folder()?.join(folder).symlink_metadata().is_err())
}
