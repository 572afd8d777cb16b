//! The claims of a teammate: it takes the next task, releases it, and notices that it lost one.

use std::sync::Arc;

use super::reclaim_order::ReclaimOrder;
use super::turn_driver::Interruption;
use crate::agents::{AgentBackend, AgentError, AgentHost, task_start};
use crate::domain::task::claim_queue::TaskScope;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::approval::{RequestKind, ReviewSubject};
use crate::domain::team::budget::CapReached;
use crate::domain::team::phase::{ClaimRef, PhaseEvent};
use crate::ports::{Claimant, StoreResult};

/// The claims of one teammate.
pub(super) struct Claims {
    pub reclaim_order: Arc<ReclaimOrder>,
    /// The first of the attempts that its last claim continues. Earlier plans and reviews are not about this claim.
    pub first_attempt: u32,
    /// The task of a lost claim, until its agent has the notice.
    pub lost: Option<TaskId>,
    /// The cap that the task of this claim reached, until the claim is released.
    pub cap_reached: Option<(ClaimRef, CapReached)>,
}

impl Claims {
    /// Creates the claims of a teammate that claims in this order.
    pub fn new(reclaim_order: Arc<ReclaimOrder>) -> Self {
        Self { reclaim_order, first_attempt: 0, lost: None, cap_reached: None }
    }

    /// Claims the next task, and records the event. `scope` has the tasks that its agent can do.
    pub async fn take_next(&mut self, host: &AgentHost, scope: TaskScope) -> StoreResult<Option<Task>> {
        let former_task = self.reclaim_order.former_task(&host.spec.name);
        let Some(task) = self.claim(host, former_task, scope).await? else { return Ok(None) };
        host.services.events.record_task(&task);
        self.first_attempt = task.first_continued_attempt();
        Ok(Some(task))
    }

    async fn claim(
        &self,
        host: &AgentHost,
        former_task: Option<TaskId>,
        scope: TaskScope,
    ) -> StoreResult<Option<Task>> {
        let stores = &host.services.stores;
        let claimant = Claimant {
            name: host.name().to_owned(),
            capabilities: host.spec.capabilities(),
            worker: stores.workers.worker_id().to_owned(),
            lease: None,
            scope,
        };
        if let Some(id) = former_task {
            let claimed = stores.board.claim(id, &claimant).await;
            if self.reclaim_order.record_try(&host.spec.name) {
                // The others may claim now; the lead wakes them.
                host.services.member_reported.notify_one();
            }
            if let Ok(task) = claimed {
                return Ok(Some(task));
            }
        }
        stores.board.claim_next(&claimant).await
    }

    /// Records that it lost its claim meanwhile, and returns the event.
    pub fn record_interruption(&mut self, interruption: &Interruption) -> Option<PhaseEvent> {
        self.lost = Some(interruption.claim_lost?.task);
        Some(PhaseEvent::ClaimLost)
    }

    /// Begins the work on a task whose worktree is ready.
    pub async fn begin_work(
        &self,
        host: &mut AgentHost,
        backend: &mut dyn AgentBackend,
        task: &Task,
    ) -> Result<Vec<PhaseEvent>, AgentError> {
        let mut events = vec![PhaseEvent::Claimed(task_start::begin(host, backend, task).await?)];
        // A plan or a review of an earlier attempt may still wait for its answer, and so does the teammate.
        if self.awaits_answer(host).await {
            events.push(PhaseEvent::AnswerAwaited);
        }
        Ok(events)
    }

    /// Returns a text that tells its agent of the lost claim.
    pub async fn take_loss_text(&mut self, host: &AgentHost) -> String {
        let task = match self.lost.take() {
            Some(id) => host.services.stores.board.get(id).await.ok(),
            None => None,
        };
        let sentence = match &task {
            Some(task) => {
                let owner = task.owner.as_ref().map_or_else(String::new, |owner| format!(", {owner}"));
                format!("Task {} is not yours any more ({}{owner})", task.id, task.status)
            }
            None => "Your task is not yours any more".to_owned(),
        };
        format!("{sentence}: it was taken over or changed. Stop working on it.")
    }

    /// Returns the event after the agent ended its work on this claim: it waits for an answer, or the attempt has some evidence. If the
    /// attempt cannot go on, `is_ending` is true, and an open question does not count.
    pub async fn check_evidence(
        &self,
        host: &mut AgentHost,
        claim: ClaimRef,
        is_ending: bool,
    ) -> StoreResult<PhaseEvent> {
        if self.awaits_approval(host).await || (!is_ending && host.awaits_answer_to_question()) {
            return Ok(PhaseEvent::AnswerAwaited);
        }
        Ok(PhaseEvent::EvidenceFound(host.evidence(claim).await?))
    }

    /// Returns true if a plan, a review or a question of its current task waits for an answer.
    pub async fn awaits_answer(&self, host: &AgentHost) -> bool {
        host.awaits_answer_to_question() || self.awaits_approval(host).await
    }

    /// Returns true if a plan or review of its current task waits for an answer. It is of this attempt or of one that this one continues.
    async fn awaits_approval(&self, host: &AgentHost) -> bool {
        let Some(claim) = host.turn_control.claim() else { return false };
        let is_of_claim = |about: &ReviewSubject| about.task == claim.task && about.attempt >= self.first_attempt;
        let approvals = host.services.stores.requests.all().await;
        approvals.is_ok_and(|approvals| {
            // A permission is awaited within a turn.
            approvals.open_approvals().any(|approval| {
                host.spec.name.is_same(&approval.from)
                    && approval.kind != RequestKind::Permission
                    && approval.about.as_ref().is_some_and(is_of_claim)
            })
        })
    }
}

/// Reminds its agent of the claim that it holds.
pub(super) async fn remind(host: &mut AgentHost) -> Result<(), AgentError> {
    let Some(claim) = host.turn_control.claim() else { return Ok(()) };
    let text = format!(
        "You still hold task {}, and have not reported its result. If it is done, call task_update now: task_id {}, status completed, a result. If not, call the tool for its next step. If you cannot do it, call task_update with status failed and the reason, or pending to give it back.",
        claim.task, claim.task.0
    );
    host.append_message(text).await
}

/// Records the changes of a task that its agent reported or claimed, and returns it.
pub(super) async fn record_task(host: &AgentHost, id: TaskId) -> Option<Task> {
    let task = host.services.stores.board.get(id).await.ok()?;
    host.services.events.record_task(&task);
    Some(task)
}

/// Returns the reason of a release by a teammate that stops.
pub(super) fn stop_reason(host: &AgentHost, may_read: bool) -> String {
    if host.services.budget.spent().is_some() {
        "the budget is spent".to_owned()
    } else if !may_read {
        "the team stopped".to_owned()
    } else {
        format!("{} stopped", host.name())
    }
}
