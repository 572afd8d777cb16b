//! Claims by command, and the claims of a team that ended. Without a running team only commands reclaim tasks.

use std::time::Duration;

use crate::domain::task::claim_queue::TaskScope;
use crate::domain::task::{Task, TaskId, lease_worker};
use crate::domain::team::name::Name;
use crate::ports::{Claimant, CurrentLead, ReclaimRequest, Reclaimed, StoreResult, Stores};

use super::workers;

/// Claims a task for `name` with a lease; without an id, the best claimable one. First reclaims tasks whose lease expired, and those of
/// a team that ended. Returns `None` if no task is claimable.
///
/// # Errors
/// The task with this id is not claimable, or the errors of the stores.
pub async fn claim_with_lease(
    stores: &Stores,
    id: Option<TaskId>,
    name: &Name,
    capabilities: Vec<String>,
    lease: Duration,
) -> StoreResult<Option<Task>> {
    let board = stores.board.as_ref();
    let expired = ReclaimRequest { is_failure: true, reason: "its lease ran out".into(), ..ReclaimRequest::default() };
    board.reclaim(&expired).await?;
    let view = board.view().await?;
    let mut claims = view.tasks.values().filter_map(|task| task.current_claim());
    let has_worker_claims = claims.any(|claim| !claim.is_lease());
    if has_worker_claims && matches!(stores.leadership.current().await?, CurrentLead::None(_)) {
        reclaim_of_ended_team(stores).await?;
    }
    let claimant = Claimant {
        name: name.to_string(),
        capabilities,
        worker: lease_worker(name.as_str()),
        lease: Some(lease),
        scope: TaskScope::All,
    };
    match id {
        Some(id) => board.claim(id, &claimant).await.map(Some),
        None => board.claim_next(&claimant).await,
    }
}

/// Reclaims the tasks of dead workers, after their commands have ended. The whole team ended, so this is no failed attempt.
///
/// # Errors
/// The errors of the board and the workers.
pub async fn reclaim_of_ended_team(stores: &Stores) -> StoreResult<Vec<Reclaimed>> {
    let reason = "the team ended before it was done".to_owned();
    let claims = workers::claims_of_dead(stores.board.as_ref(), stores.workers.as_ref()).await?;
    stores.board.reclaim(&ReclaimRequest { claims, reason, ..ReclaimRequest::default() }).await
}
