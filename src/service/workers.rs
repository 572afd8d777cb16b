//! Dead workers: their commands end first, then they are removed, then their claims are reclaimed.

use std::collections::{BTreeMap, BTreeSet};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::domain::task::Task;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::WorkerRecord;
use crate::ports::{Board, StoreResult, WorkerSurvey, Workers};
use crate::sandbox::orphans;

/// Returns the claims of dead workers, after their commands have ended. The caller reclaims them.
///
/// Claims are read before workers, so that a worker that starts meanwhile keeps its claims.
///
/// # Errors
/// The errors of the board and the workers.
pub async fn claims_of_dead(board: &dyn Board, workers: &dyn Workers) -> StoreResult<Vec<ClaimRef>> {
    let view = board.view().await?;
    let held: Vec<(ClaimRef, &str)> = view.tasks.values().filter_map(|task| worker_claim(task)).collect();
    let claimants = held.iter().map(|(_, worker)| (*worker).to_owned()).collect();
    let live = end_dead(workers, &claimants).await?;
    Ok(held.into_iter().filter(|(_, worker)| !live.contains_key(*worker)).map(|(claim, _)| claim).collect())
}

/// Ends the commands of dead workers, removes these workers, and returns the live ones.
///
/// # Errors
/// The errors of the workers.
pub async fn end_dead(
    workers: &dyn Workers,
    claimants: &BTreeSet<String>,
) -> StoreResult<BTreeMap<String, Option<WorkerRecord>>> {
    let WorkerSurvey { live, dead } = workers.survey(claimants).await?;
    for (id, record) in dead {
        if let Some(record) = record {
            end_commands(&record);
        }
        workers.remove(&id).await?;
    }
    Ok(live)
}

/// Returns the claim of a task in progress and its worker. A claim with a lease has no worker.
fn worker_claim(task: &Task) -> Option<(ClaimRef, &str)> {
    let claim = task.current_claim().filter(|claim| !claim.is_lease())?;
    Some((ClaimRef::of(task), &claim.worker))
}

fn end_commands(record: &WorkerRecord) {
    match Handle::current().runtime_flavor() {
        // One thread runs a `brigade` command, which does nothing else meanwhile, or a simulation, in which the order comes from a seed.
        RuntimeFlavor::CurrentThread => orphans::end_commands(record),
        _ => tokio::task::block_in_place(|| orphans::end_commands(record)),
    }
}
