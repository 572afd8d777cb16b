//! The facts about the team that views of tasks need.

use std::collections::HashSet;
use std::sync::Arc;

use super::TaskContext;
use crate::api::ApiResult;
use crate::api::lead_status::LeadStatus;
use crate::api::members::candidates;
use crate::api::workspace::Workspace;
use crate::domain::task::Task;
use crate::ports::BoardView;
use crate::service::pending::PendingForPerson;
use crate::stores::workspace::OpenMode;

/// Loads the facts that views of tasks need: the members, the live workers and the open approvals.
///
/// # Errors
/// The approvals cannot be read.
pub async fn load<'v>(workspace: &Workspace, view: &'v BoardView) -> ApiResult<TaskContext<'v>> {
    let pending = PendingForPerson::of(&workspace.stores(OpenMode::ReadOnly).await?).await?;
    Ok(TaskContext {
        live_workers: live_workers(workspace, view).await,
        approvals: pending.approvals,
        questions: pending.questions,
        candidates: workspace.location.team_if_valid(None).as_ref().map(candidates).unwrap_or_default(),
        ..TaskContext::of(view, workspace.now())
    })
}

/// The tasks in progress whose worker has died.
pub async fn abandoned_tasks(workspace: &Workspace, view: &BoardView) -> Vec<Arc<Task>> {
    let live_workers = live_workers(workspace, view).await;
    let task_context = TaskContext { live_workers, ..TaskContext::of(view, workspace.now()) };
    view.tasks.values().filter(|task| task_context.is_abandoned(task)).cloned().collect()
}

/// Returns the ids of the live workers; `None` if they cannot be read. Also `None` if no worker has a claim, because then they do not
/// matter.
async fn live_workers(workspace: &Workspace, view: &BoardView) -> Option<HashSet<String>> {
    let has_worker = |task: &Task| task.claim.as_ref().is_some_and(|claim| claim.expires.is_none());
    if !view.tasks.values().any(|task| has_worker(task)) {
        return None;
    }
    let lead_status = LeadStatus::of(workspace).await.ok()?;
    let Some(mark) = lead_status.surrounding_team_mark else {
        return Some(lead_status.workers.into_iter().collect());
    };
    // In the team's sandbox a command does not see the workers. There, all workers of the team count as live.
    let claims = view.tasks.values().filter_map(|task| task.claim.as_ref());
    Some(claims.map(|claim| claim.worker.clone()).filter(|worker| worker.starts_with(&mark)).collect())
}
