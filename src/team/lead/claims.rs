//! Claims that the lead takes back: those of dead workers, leases that ran out, and claims that no member holds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lead;
use crate::agents::AgentServices;
use crate::domain::log::event::EventKind;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::team::name::{LEAD, Name};
use crate::domain::team::phase::ClaimRef;
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, ReclaimRequest};
use crate::service::workers;
use crate::team::supervisor::Supervisor;

/// The claims that the lead watches between polls.
#[derive(Default)]
pub(super) struct ClaimWatch {
    /// Claims of this worker that no member holds, with the time at which they were first found.
    unheld: HashMap<ClaimRef, Instant>,
    /// The leases, with their ends on a clock that does not jump.
    leases: BTreeMap<Lease, Instant>,
    /// Members whose claims could not be reclaimed since the team's stop began.
    ended: Vec<EndedMember>,
}

/// A member that has ended without releasing its claims.
pub(super) struct EndedMember {
    pub name: Name,
    /// The reason of its end.
    pub reason: String,
    /// True if its attempt has failed.
    pub is_failure: bool,
}

/// The lease of a claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Lease {
    claim: ClaimRef,
    /// Its end on the wall clock.
    expires: UnixMs,
}

impl ClaimWatch {
    /// Reclaims the claims of dead workers, and leases that ran out.
    pub async fn reclaim_lost(&mut self, services: &AgentServices, view: &BoardView) {
        let claims = match workers::claims_of_dead(&*services.stores.board, &*services.stores.workers).await {
            Ok(claims) => claims,
            Err(error) => return tracing::warn!("cannot read the workers' records: {error}"),
        };
        let reason = "its worker is gone".to_owned();
        let running_leases = self.running_leases(view, services.clock.now());
        // This worker lives, so the death of another counts as a failed attempt of its task.
        reclaim(services, ReclaimRequest { claims, running_leases, is_failure: true, reason }).await;
    }

    /// Returns the leases that have not run out by a monotonic clock. So a wall clock that is set forward ends none.
    fn running_leases(&mut self, view: &BoardView, now: UnixMs) -> Vec<ClaimRef> {
        let lease = |task: &Arc<Task>| {
            let expires = task.current_claim()?.expires?;
            let remaining = Duration::from_millis(u64::try_from(expires.0.saturating_sub(now.0)).unwrap_or(0));
            Some((Lease { claim: ClaimRef::of(task), expires }, remaining))
        };
        let leases: BTreeMap<_, _> = view.tasks.values().filter_map(lease).collect();
        self.leases.retain(|lease, _| leases.contains_key(lease));
        for (lease, remaining) in leases {
            self.leases.entry(lease).or_insert_with(|| Instant::now() + remaining);
        }
        let runs = self.leases.iter().filter(|(_, until)| **until > Instant::now());
        runs.map(|(lease, _)| lease.claim).collect()
    }

    /// Reclaims claims of this worker that no member holds, because their holder ended just as it claimed. A claim in progress
    /// looks the same for a moment, so only a claim that looks so for a whole poll interval is reclaimed.
    pub async fn reclaim_unheld(&mut self, services: &AgentServices, view: &BoardView, members: &Supervisor) {
        let worker = services.stores.workers.worker_id();
        let held_claims: HashSet<ClaimRef> =
            members.by_name.values().filter_map(|member| member.progress.claim()).collect();
        let is_of_this_worker = |task: &&Arc<Task>| task.current_claim().is_some_and(|claim| claim.worker == worker);
        let claims = view.tasks.values().filter(is_of_this_worker).map(|task| ClaimRef::of(task));
        let unheld_claims: Vec<ClaimRef> = claims.filter(|claim| !held_claims.contains(claim)).collect();
        self.unheld.retain(|claim, _| unheld_claims.contains(claim));
        for claim in &unheld_claims {
            self.unheld.entry(*claim).or_insert_with(Instant::now);
        }
        let is_old = |since: &Instant| since.elapsed() >= services.spec.limits.poll_interval;
        let claims: Vec<_> = self.unheld.iter().filter(|(_, since)| is_old(since)).map(|(claim, _)| *claim).collect();
        if !claims.is_empty() {
            let reason = "its teammate ended just as it claimed the task".to_owned();
            reclaim(services, ReclaimRequest { claims, reason, ..ReclaimRequest::default() }).await;
        }
    }
}

impl Lead {
    /// Reclaims everything that an ended member holds on the board. If this fails during a stop, [`Self::reclaim_rest`] tries again for
    /// it and all later members: each try may wait for a lock that another process holds.
    pub(super) async fn reclaim_from(&mut self, ended: EndedMember) {
        let is_stopping = self.stop.is_in_progress();
        let must_wait = is_stopping && !self.board.claims.ended.is_empty();
        if must_wait || !self.try_reclaim_from(&ended).await && is_stopping {
            self.board.claims.ended.push(ended);
        }
    }

    /// Reclaims at the end of a stop what could not be reclaimed before. After another failure, the next launch reclaims the rest.
    pub(super) async fn reclaim_rest(&mut self) {
        for ended in std::mem::take(&mut self.board.claims.ended) {
            if !self.try_reclaim_from(&ended).await {
                return;
            }
        }
    }

    /// Returns false if the board cannot be read or changed.
    async fn try_reclaim_from(&mut self, EndedMember { name, reason, is_failure }: &EndedMember) -> bool {
        if !self.read_board().await {
            return false;
        }
        let claims = self.board.claims_of(name, self.services.stores.workers.worker_id());
        if claims.is_empty() {
            return true;
        }
        let (is_failure, reason) = (*is_failure, format!("{name} has stopped: {reason}"));
        let request = ReclaimRequest { claims, is_failure, reason, ..ReclaimRequest::default() };
        let is_reclaimed = reclaim(&self.services, request).await;
        self.poll_board().await;
        is_reclaimed
    }
}

/// Removes claims, and reports each removed claim. Returns false if the board cannot be changed.
async fn reclaim(services: &AgentServices, request: ReclaimRequest) -> bool {
    let reclaimed = match services.stores.board.reclaim(&request).await {
        Ok(reclaimed) => reclaimed,
        Err(error) => {
            services.events.warn("board", format!("cannot reclaim tasks: {error}"));
            return false;
        }
    };
    for claim in reclaimed {
        let (task, attempt, reason) = (claim.task.id, claim.task.attempt, claim.reason.clone());
        let reclaimed = EventKind::TaskReclaimed { task, attempt, teammate: claim.owner, reason };
        services.events.record_task_event(reclaimed, &claim.task);
        if claim.task.status == TaskStatus::Failed
            && let Err(error) = services.outbox().notify_lead_of_failure(&claim.task, &claim.reason).await
        {
            services.events.warn(LEAD, format!("cannot be sent a message: {error}"));
        }
    }
    true
}
