//! A teammate's work between turns: it reads mail, claims and releases tasks, answers shutdown requests, informs the lead.

use std::sync::Arc;
use std::time::Duration;

use super::{Permissions, Teammate};
use crate::agents::AgentError;
use crate::agents::worktree::WorktreeSetup;
use crate::domain::approval::{ApprovalAnswer, Request, RequestKind};
use crate::domain::event::EventKind;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, LEAD, SYSTEM};
use crate::domain::phase::{ClaimRef, Phase, PhaseEvent, ReleaseReason};
use crate::domain::prompt::claimed_block;
use crate::domain::task::{Task, TaskId};
use crate::domain::transition::{Actor, Change};
use crate::ports::{Claimant, StoreError};
use crate::service::approvals;

/// The wait before a failed store is tried again.
const STORE_BACKOFF: Duration = Duration::from_secs(15);

impl Teammate {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle { .. } | Phase::OnCall)
    }

    /// Reads prompts and mail, as far as they may start a turn now. Unreadable mail waits.
    pub(super) async fn read_inbox(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        match self.try_read_inbox().await {
            Err(AgentError::Store(error)) => {
                self.host.services.events.warn(self.host.name(), format!("cannot read its mail: {error}"));
                // A teammate that is waiting already does not extend its wait.
                if self.is_idle() && self.back_off.can_work() {
                    self.back_off.begin("its inbox", STORE_BACKOFF);
                    self.report();
                }
                Ok(Vec::new())
            }
            outcome => outcome,
        }
    }

    async fn try_read_inbox(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        let is_idle = self.is_idle();
        if is_idle && !self.back_off.can_work() {
            return self.check_shutdown_requests().await;
        }
        let may_act = !is_idle || self.permissions.borrow().read_mail || !self.requests.prompts.is_empty();
        while let Some(prompt) = self.requests.prompts.front().cloned() {
            // A prompt from before a crash is not given twice.
            if !self.host.conversation.prompts_mut().was_prompted_before(&prompt.text) {
                self.host.append_prompt(prompt.kind, prompt.text).await?;
            }
            // A prompt that cannot be recorded now is recorded at the next poll.
            self.requests.prompts.pop_front();
            self.requests.prompts_taken = prompt.number;
            self.report();
        }
        if !may_act {
            return self.check_shutdown_requests().await;
        }
        let shutdown_before = self.requests.shutdown.clone();
        let outcomes = self.host.read_inbox().await?;
        let mut events = self.handle_outcomes(outcomes).await?;
        if matches!(self.phase, Phase::Waiting { .. }) && events.is_empty() {
            // Its model answers a shutdown request. An approval that came before the wait is in its context.
            if self.requests.shutdown != shutdown_before {
                events.push(PhaseEvent::Mail);
            } else if !self.awaits_answer().await {
                events.push(PhaseEvent::WorkEnded);
            }
        }
        if !is_idle {
            return Ok(events);
        }
        if !events.contains(&PhaseEvent::Mail) {
            // An idle teammate has no work to lose: the harness accepts for it, without a model request.
            events.extend(self.accept_shutdown().await);
        }
        let has_unanswered = self.host.conversation.prompts().has_unanswered();
        if has_unanswered && !events.iter().any(|event| matches!(event, PhaseEvent::Mail | PhaseEvent::StopRequested)) {
            events.push(PhaseEvent::Mail);
        }
        Ok(events)
    }

    /// Reads mail that needs no model: shutdown requests and notices. Other mail waits.
    async fn check_shutdown_requests(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        let waiting = self.host.services.stores.mailbox.peek(self.host.name()).await?;
        let kinds = || waiting.iter().map(|delivery| delivery.message.kind);
        let has_stop_request = kinds().any(|kind| kind == MessageType::ShutdownRequest);
        let are_notices = kinds().all(MessageType::is_notice);
        if waiting.is_empty() || !(has_stop_request || are_notices) {
            return Ok(Vec::new());
        }
        let outcomes = self.host.read_inbox().await?;
        let mut events = self.handle_outcomes(outcomes).await?;
        events.extend(self.accept_shutdown().await);
        // It stops, or its model may not be asked. A later run answers the other mail.
        events.retain(|event| *event == PhaseEvent::StopRequested);
        Ok(events)
    }

    /// Accepts a shutdown request that its model has not answered. Returns the stop event.
    async fn accept_shutdown(&mut self) -> Option<PhaseEvent> {
        let request_id = self.requests.shutdown.take()?;
        let services = Arc::clone(&self.host.services);
        let name = self.host.name().to_owned();
        let approvals = services.stores.requests.all().await.unwrap_or_default();
        let is_this_request = |request: &&Request| request.id == request_id && request.kind == RequestKind::Shutdown;
        let answered = approvals.requests.iter().find(is_this_request).and_then(|request| request.answer.as_ref());
        if let Some(answer) = answered {
            return answer.approve.then_some(PhaseEvent::StopRequested);
        }
        let text = "Idle, so it stops.";
        let mut message = Message::new(MessageType::ShutdownResponse, &name, text, services.clock.now());
        message.request_id = Some(request_id.clone());
        message.approve = Some(true);
        if let Err(error) = services.stores.mailbox.send(LEAD, message).await {
            services.events.warn(name.clone(), format!("cannot send a message to the lead: {error}"));
        }
        let answer =
            ApprovalAnswer { approve: true, text: text.to_owned(), by: name.clone(), at: services.clock.now() };
        if let Err(error) = services.stores.requests.answer(&request_id, RequestKind::Shutdown, answer).await {
            tracing::debug!("cannot record the answer to a shutdown request: {error}");
        }
        Some(PhaseEvent::StopRequested)
    }

    /// Returns true if a plan or review of its current task waits for an answer.
    pub(super) async fn awaits_answer(&self) -> bool {
        let (name, since) = (&self.host.spec.name, self.claimed_at);
        let approvals = self.host.services.stores.requests.all().await;
        approvals.is_ok_and(|approvals| {
            approvals.open_approvals().any(|approval| name.is_same(&approval.from) && approval.at >= since)
        })
    }

    /// Reminds it once of each approval that it has not answered. After that, the person has to answer. Returns true if it was
    /// reminded now.
    pub(super) async fn remind_of_approvals(&mut self) -> Result<bool, AgentError> {
        let services = Arc::clone(&self.host.services);
        let name = self.host.spec.name.clone();
        let Ok(requests) = services.stores.requests.all().await else { return Ok(false) };
        let mut is_reminded_now = false;
        for approval in requests.open_approvals().filter(|approval| name.is_same(&approval.to)) {
            let (id, from, noun) = (&approval.id, &approval.from, approval.kind.noun());
            if self.approvals_reminded.insert(id.clone()) {
                let tool = if approval.kind == RequestKind::Review { "review" } else { "plan_approval" };
                let text = format!(
                    "{from} waits for your answer to {noun} {id}: look at it, then call {tool} with request_id {id} and approve. If you reject it, add feedback."
                );
                self.host.append_message(text).await?;
                is_reminded_now = true;
                continue;
            }
            services.events.warn(name.as_str(), format!("has not answered {noun} {id}; a person has to answer it now"));
            match approvals::reassign(&services.stores, id, approval.kind, HUMAN, services.clock.now()).await {
                Ok(Some(message)) => {
                    let about = format!("{noun} {id} is yours to answer");
                    services.events.record(EventKind::MessageSent {
                        from: from.clone(),
                        to: HUMAN.to_owned(),
                        message,
                        about,
                    });
                }
                Ok(None) => {}
                Err(error) => services.events.warn(HUMAN, format!("cannot be asked for an answer: {error}")),
            }
        }
        Ok(is_reminded_now)
    }

    /// Claims a task if it is idle and allowed to.
    pub(super) async fn claim_next(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        if !self.is_idle() {
            return Ok(Vec::new());
        }
        if !self.permissions.borrow().claim || !self.back_off.can_work() {
            return Ok(vec![PhaseEvent::NothingFound]);
        }
        if self.reclaim_first.is_none() && self.reclaim_order.must_wait(&self.host.spec.name) {
            return Ok(vec![PhaseEvent::NothingFound]);
        }
        loop {
            let reclaimed_first = self.reclaim_first;
            match self.claim().await {
                Ok(Some(task)) => {
                    self.host.services.events.record_task(&task);
                    // A reclaimed task counts as held since its work on it began.
                    let since =
                        self.host.conversation.worked_since(task.id).filter(|_| reclaimed_first == Some(task.id));
                    self.claimed_at = since.unwrap_or_else(|| self.host.services.clock.now());
                    match self.host.prepare_worktree(&task).await? {
                        WorktreeSetup::Ready => {
                            let mut events = vec![PhaseEvent::Claimed(self.begin_task(&task).await?)];
                            // A plan from that time still waits for its answer, and so does the teammate.
                            if since.is_some() && self.awaits_answer().await {
                                events.push(PhaseEvent::AnswerAwaited);
                            }
                            return Ok(events);
                        }
                        WorktreeSetup::AlreadyMerged | WorktreeSetup::Failed(_) => {}
                        WorktreeSetup::Unavailable(reason) => {
                            self.harness_failed(&reason);
                            self.report();
                            return Ok(vec![PhaseEvent::NothingFound]);
                        }
                    }
                }
                Ok(None) => return Ok(vec![PhaseEvent::NothingFound]),
                // It waits for a board that cannot be written.
                Err(error) => {
                    self.host.services.events.warn(self.host.name(), format!("cannot claim: {error}"));
                    self.back_off.begin("the board", STORE_BACKOFF);
                    self.report();
                    return Ok(vec![PhaseEvent::NothingFound]);
                }
            }
        }
    }

    async fn begin_task(&mut self, task: &Task) -> Result<ClaimRef, AgentError> {
        let claim = ClaimRef::of(task);
        self.turn_control.set_claim(Some(claim));
        self.backend.begin_task(task, &mut self.host).await?;
        let note = self.host.worktree_note();
        self.host.append_message(claimed_block(task, note.as_deref())).await?;
        Ok(claim)
    }

    async fn claim(&mut self) -> Result<Option<Task>, StoreError> {
        let stores = &self.host.services.stores;
        let claimant = Claimant {
            name: self.host.name().to_owned(),
            capabilities: self.host.spec.capabilities(),
            worker: stores.workers.worker_id().to_owned(),
            lease: None,
        };
        if let Some(id) = self.reclaim_first.take() {
            let claimed = stores.board.claim(id, &claimant).await;
            if self.reclaim_order.record_try(&self.host.spec.name) {
                // The others may claim now; the lead wakes them.
                self.host.services.member_reported.notify_one();
            }
            if let Ok(task) = claimed {
                return Ok(Some(task));
            }
        }
        stores.board.claim_next(&claimant).await
    }

    pub(super) async fn remind(&mut self) -> Result<(), AgentError> {
        let Some(claim) = self.phase.claim() else { return Ok(()) };
        let text = format!(
            "You still hold task {}, and have not reported its result. If it is done, call task_update now: task_id {}, status completed, a result. If not, call the tool for its next step. If you cannot do it, call task_update with status failed and the reason, or pending to give it back. If you end without a report, it counts as a failed attempt.",
            claim.task, claim.task.0
        );
        self.host.append_message(text).await
    }

    pub(super) async fn notify_claim_lost(&mut self) -> Result<(), AgentError> {
        self.turn_control.set_claim(None);
        let task = match self.lost_claim.take() {
            Some(id) => self.host.services.stores.board.get(id).await.ok(),
            None => None,
        };
        let sentence = match &task {
            Some(task) => {
                let owner = task.owner.as_ref().map_or_else(String::new, |owner| format!(", {owner}"));
                format!("Task {} is not yours any more ({}{owner})", task.id, task.status)
            }
            None => "Your task is not yours any more".to_owned(),
        };
        self.host.append_message(format!("{sentence}: it was taken over or changed. Stop working on it.")).await
    }

    pub(super) async fn release(&mut self, claim: ClaimRef, cause: ReleaseReason) -> Result<(), AgentError> {
        let services = Arc::clone(&self.host.services);
        let error_text = self.back_off.last_error();
        let reason = match cause {
            ReleaseReason::Unfinished => "its teammate ended its work twice without a report".to_owned(),
            // The error was reported once for all members.
            ReleaseReason::ModelFailed if error_text.is_empty() => "its teammate's model failed".to_owned(),
            ReleaseReason::ModelFailed => format!("its teammate's model failed: {error_text}"),
            ReleaseReason::HarnessFailed => format!("its teammate's tools or workspace failed: {error_text}"),
            ReleaseReason::Truncated => error_text.to_owned(),
            ReleaseReason::Stopping if services.budget.spent().is_some() => "the budget is spent".to_owned(),
            ReleaseReason::Stopping if *self.permissions.borrow() == Permissions::default() => {
                "the team stopped".to_owned()
            }
            ReleaseReason::Stopping => format!("{} stopped", self.host.name()),
        };
        let change = Change::Release { reason: reason.clone(), counts: cause.counts_as_failure() };
        let by = Actor::holder(self.host.name(), claim.attempt);
        match services.stores.board.change(claim.task, change, &by).await {
            Ok(task) => {
                services.events.record_task(&task);
                if cause.counts_as_failure() {
                    let text = format!("Task {} ({}): {reason}.", task.id, task.subject);
                    self.notify_lead(MessageType::TaskFailed, text).await;
                }
            }
            // The claim is lost already.
            Err(StoreError::Refused(_) | StoreError::NoTask(_) | StoreError::InvalidTask { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.turn_control.set_claim(None);
        Ok(())
    }

    pub(super) async fn notify_lead_of_model(&self, reason: &str) {
        if self.host.name() != LEAD {
            let released = if self.phase.claim().is_some() { " I released my task and wait." } else { " I wait." };
            self.notify_lead(MessageType::Message, format!("My model gave no answer: {reason}.{released}")).await;
        }
    }

    /// Sends the lead a message. A full inbox or disk must not end a teammate.
    async fn notify_lead(&self, kind: MessageType, text: String) {
        let services = &self.host.services;
        let from = if kind == MessageType::TaskFailed { SYSTEM } else { self.host.name() };
        let message = Message::new(kind, from, text, services.clock.now());
        if let Err(error) = services.stores.mailbox.send(LEAD, message).await {
            services.events.warn(self.host.name(), format!("cannot send a message to the lead: {error}"));
        }
    }

    pub(super) async fn record_task(&self, id: TaskId) {
        if let Ok(task) = self.host.services.stores.board.get(id).await {
            self.host.services.events.record_task(&task);
        }
    }
}
